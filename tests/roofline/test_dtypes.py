from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tracelens_infer.errors import UsageError
from tracelens_infer.roofline.dtypes import DTYPES, dtype_name, multiply_dtype, storage_bits, storage_bytes


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("fp32", 32),
        ("bf16", 16),
        ("fp16", 16),
        ("fp8", 8),
        ("mxfp4", Fraction("4.25")),
        ("nvfp4", Fraction("4.5")),
        ("int4", Fraction("4.15625")),
    ],
)
def test_a_stored_value_takes_its_bits_and_its_share_of_the_scales(dtype: str, bits: Fraction) -> None:
    assert storage_bits(dtype) == bits


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.bfloat16", "bf16"),
        ("c10::BFloat16", "bf16"),
        ("BFloat16", "bf16"),
        ("float16", "fp16"),
        ("c10::Half", "fp16"),
        ("float8_e4m3fn", "fp8"),
        ("fp8_e5m2", "fp8"),
        ("float32", "fp32"),
        (" MXFP4 ", "mxfp4"),
    ],
)
def test_names_of_configs_engines_and_traces_mean_the_same_format(text: str, name: str) -> None:
    assert dtype_name(text) == name


def test_an_unknown_format_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="bf16") as caught:
        storage_bits("fp7")
    assert "fp7" in caught.value.thing


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_known_name_is_its_own_name_and_can_be_multiplied_with_itself(dtype: str) -> None:
    assert dtype_name(dtype) == dtype
    assert multiply_dtype(dtype, dtype)


def test_bytes_of_a_block_hold_its_scale() -> None:
    assert storage_bytes(32, "mxfp4") == 17  # 16 bytes of values and one of scale
    assert storage_bytes(16, "nvfp4") == 9
    assert storage_bytes(128, "int4") == 67  # 64 of values, 2.5 of scale and zero, rounded up
    assert storage_bytes(3, "fp8") == 3


def test_bytes_of_a_column_are_those_of_each_row() -> None:
    counts = np.array([0, 1, 32, 33], dtype=np.int64)
    got = storage_bytes(counts, "mxfp4")
    assert got.dtype == np.int64
    assert got.tolist() == [storage_bytes(int(count), "mxfp4") for count in counts]


@pytest.mark.parametrize(
    ("first", "second", "peak"),
    [
        ("fp8", "fp8", "fp8"),
        ("bf16", "fp8", "bf16"),  # an fp8 KV cache with bf16 queries
        ("bf16", "int4", "bf16"),  # weight-only
        ("bf16", "mxfp4", "bf16"),
        ("fp8", "nvfp4", "fp8"),
        ("nvfp4", "nvfp4", "fp4"),
        ("fp16", "bf16", "fp16"),
        ("bf16", "fp32", "fp32"),
    ],
)
def test_the_peak_follows_the_wider_operand(first: str, second: str, peak: str) -> None:
    assert multiply_dtype(first, second) == peak
