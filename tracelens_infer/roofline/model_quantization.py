"""In which number formats does a config.json keep weights, experts and KV cache?"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens_infer.errors import UsageError
from tracelens_infer.notes import Note
from tracelens_infer.roofline.dtypes import dtype_name
from tracelens_infer.roofline.model_fields import ConfigFields

__all__ = ["ModelDtypes", "model_dtypes"]

_DEFAULT_ACTIVATION = "bf16"  # what nearly every published checkpoint since 2023 is computed in

_FIXED = {"fp8": "fp8", "fbgemm_fp8": "fp8", "deepspeedfp": "fp8", "nvfp4": "nvfp4"}
_BY_BITS = ("gptq", "awq", "gptq_marlin", "awq_marlin", "auto-round", "autoround", "hqq", "bitsandbytes")
_OF_BITS = {4: "int4", 8: "int8"}


@dataclass(frozen=True, slots=True)
class ModelDtypes:
    """How is each part stored? ``moe`` is None where experts are stored as the other weights are."""

    activation: str
    weight: str
    kv: str
    moe: str | None
    notes: tuple[Note, ...]


def model_dtypes(fields: ConfigFields, *, has_experts: bool) -> ModelDtypes:
    """How are this model's values stored? What is not told is stored as the activations are, with a Note."""
    notes: list[Note] = []
    activation = _known(fields.text("dtype", "torch_dtype"))
    if activation is None:
        activation = _DEFAULT_ACTIVATION
        notes.append(Note("info", "dtype_assumed", "The config does not tell a known dtype; bf16 is assumed."))
    quantization = fields.mapping("quantization_config") or fields.mapping("compression_config")
    if quantization is None:
        return ModelDtypes(activation, activation, activation, None, tuple(notes))
    kv = _kv(quantization) or activation
    weight = _weight(quantization)
    if weight is None:
        method = quantization.text("quant_method", "quant_algo") or "unnamed"
        text = f"The weights' format is not told by the quantization ({method}); {activation} is assumed."
        notes.append(Note("warning", "quantization_unknown", text))
        return ModelDtypes(activation, activation, kv, None, tuple(notes))
    # gpt-oss: experts alone are mxfp4; its other matrices are among the modules that are not converted.
    if has_experts and weight == "mxfp4" and quantization.text("quant_method") == "mxfp4":
        return ModelDtypes(activation, activation, kv, weight, tuple(notes))
    return ModelDtypes(activation, weight, kv, None, tuple(notes))


def _known(text: str | None) -> str | None:
    try:
        return dtype_name(text) if text else None
    except UsageError:  # "auto", or a format that is none of ours: the caller says what it assumes
        return None


def _weight(quantization: ConfigFields) -> str | None:
    method = (quantization.text("quant_method") or "").lower()
    algorithm = (quantization.text("quant_algo") or "").lower()  # modelopt: FP8, NVFP4, W4A16_AWQ ...
    for text in (algorithm, method):
        if text in _FIXED:
            return _FIXED[text]
        if text.startswith("mxfp4"):
            return "mxfp4"
        if text.startswith(("w4a16", "w4a8")):
            return "int4"
    if method in _BY_BITS:
        four, eight = quantization.flag("load_in_4bit"), quantization.flag("load_in_8bit")
        bits = quantization.whole("bits", "w_bit", "nbits") or (4 if four else 8 if eight else None)
        return _OF_BITS.get(bits or 0)
    return _of_groups(quantization) or _quark(quantization)


def _of_groups(quantization: ConfigFields) -> str | None:
    """compressed-tensors: the first group's weights, or the format of all."""
    form = quantization.text("format") or ""
    for name in ("nvfp4", "mxfp4"):
        if form.startswith(name):
            return name
    groups = quantization.mapping("config_groups")
    group = groups.mapping(next(iter(groups.values), "")) if groups else None
    weights = group.mapping("weights") if group else None
    if weights is None:
        return None
    bits, kind = weights.whole("num_bits"), weights.text("type")
    if kind == "float":
        # Four-bit floats share a scale: 16 values NVIDIA's format, 32 the MX one.
        return {8: "fp8", 4: "mxfp4" if weights.whole("group_size") == 32 else "nvfp4"}.get(bits or 0)
    return _OF_BITS.get(bits or 0)


def _quark(quantization: ConfigFields) -> str | None:
    """AMD Quark: dtype of the weights; fp4 comes in MX blocks."""
    whole = quantization.mapping("global_quant_config")
    weights = whole.mapping("weight") if whole else None
    dtype = weights.text("dtype") if weights else None
    return "mxfp4" if dtype == "fp4" else _known(dtype)


def _kv(quantization: ConfigFields) -> str | None:
    algorithm = quantization.text("kv_cache_quant_algo", "kv_cache_dtype")
    if algorithm:
        return _known(algorithm)
    scheme = quantization.mapping("kv_cache_scheme")
    if scheme is None:
        return None
    bits, kind = scheme.whole("num_bits"), scheme.text("type")
    return {8: "fp8", 4: "nvfp4"}.get(bits or 0) if kind == "float" else _OF_BITS.get(bits or 0)
