"""Names of number formats: how many bits does a stored value take, and in which format are two of them multiplied?"""

from __future__ import annotations

from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tracelens_infer.errors import UsageError

__all__ = ["DTYPES", "dtype_name", "multiply_dtype", "storage_bits", "storage_bytes"]

Count = TypeVar("Count", int, npt.NDArray[np.int64])

BITS_PER_BYTE = 8

# A block of values shares a scale, which is stored with them.
_MX_SCALE = Fraction(8, 32)  # OCP Microscaling (MX) v1.0: one 8-bit exponent for 32 values
_NV_SCALE = Fraction(8, 16)  # NVIDIA's NVFP4: one fp8 scale for 16 values; the fp32 scale of a tensor counts nothing
_GROUP_SCALE = Fraction(16 + 4, 128)  # GPTQ and AWQ as published: a 16-bit scale and a 4-bit zero for 128 values

_BITS = {
    "fp64": Fraction(64),
    "fp32": Fraction(32),
    "bf16": Fraction(16),
    "fp16": Fraction(16),
    "fp8": Fraction(8),
    "int8": Fraction(8),
    "mxfp8": 8 + _MX_SCALE,
    "mxfp4": 4 + _MX_SCALE,
    "nvfp4": 4 + _NV_SCALE,
    "int4": 4 + _GROUP_SCALE,
}

DTYPES = tuple(_BITS)
"""Every name that the roofline knows."""

# What config files, engines' options and traces write.
_ALIASES = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2": "fp8",
    "float8_e5m2fnuz": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "w8a8": "int8",
    "w4a16": "int4",
    "uint4": "int4",
}
_PREFIXES = ("torch.", "c10::")  # torch.bfloat16 in older config files, c10::BFloat16 in traces

# What the multiply of two values of this storage format alone would run in. Weight-only formats are unpacked first,
# unless the other side is as narrow: then the hardware's own 4-bit units are used.
_MULTIPLY = {"mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
_WIDTH = {"fp64": 64, "fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4}


def dtype_name(text: str) -> str:
    """What do we call the number format that a config, an engine or a trace writes as ``text``?

    Letters' case does not matter: ``torch.bfloat16``, ``BFloat16`` and ``bf16`` are all ``bf16``.
    Raises UsageError for a format that is not known.
    """
    name = text.strip().lower()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    name = _ALIASES.get(name, name)
    if name not in _BITS:
        raise UsageError(f"dtype {text}", "No such number format is known.", f"Choose one of {', '.join(DTYPES)}.")
    return name


def storage_bits(dtype: str) -> Fraction:
    """How many bits does a stored value take, its share of the scales included?

    mxfp4 takes 4.25 (OCP MX: an 8-bit scale for 32 values), nvfp4 4.5 (an 8-bit scale for 16), int4 4.15625 (GPTQ and
    AWQ with groups of 128). Raises UsageError for a format that is not known.
    """
    return _BITS[dtype_name(dtype)]


def storage_bytes(elements: Count, dtype: str) -> Count:
    """How many bytes do so many values take? An integer, rounded up; a count or an int64 array of counts."""
    bits = storage_bits(dtype)
    # The negated floor division rounds up.
    return -((-elements * bits.numerator) // (bits.denominator * BITS_PER_BYTE))


def multiply_dtype(one: str, other: str) -> str:
    """In which format does the hardware multiply values stored as these two? The peak rate to compare with is that.

    The wider of the two: fp8 keys with fp8 queries run in fp8, with bf16 queries in bf16; int4, mxfp4 and nvfp4 weights
    with bf16 activations in bf16, with fp8 activations in fp8. mxfp4 with mxfp4 (or nvfp4 with nvfp4) runs in "fp4".
    Of two formats of the same width the first counts, so name the activation (or the query) first.
    Raises UsageError for a format that is not known.
    """
    first, second = dtype_name(one), dtype_name(other)
    first, second = _MULTIPLY.get(first, first), _MULTIPLY.get(second, second)
    return second if _WIDTH[second] > _WIDTH[first] else first
