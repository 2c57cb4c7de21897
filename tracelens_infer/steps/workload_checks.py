"""Which values can a benchmark's parameters have?"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Literal, get_args

from tracelens_infer.errors import UsageError
from tracelens_infer.steps.whole_numbers import check_count

__all__ = ["COUNTS", "RangeRatioStyle", "check_counts", "check_ratio"]

RangeRatioStyle = Literal["document", "vllm"]

# Whole numbers: field of Workload -> its option and the smallest value that means something.
COUNTS = {
    "concurrency": ("--CONC", 1),
    "output_tokens": ("--OSL", 1),
    "num_prompts": ("--num-prompts", 1),
    "prompt_tokens": ("--isl", 1),
    "cached_tokens": ("--cached-tokens", 0),
    "chunk_size": ("--chunk-size", 1),
    "data_parallel": ("--dp", 1),
    "pipeline_stages": ("--pp", 1),
}
_OPTIONAL = frozenset({"num_prompts", "prompt_tokens", "chunk_size"})  # these may be None


def check_counts(values: Mapping[str, object]) -> None:
    """Is each of these fields a whole number in its range? Raises UsageError for the first that is not."""
    for name, value in values.items():
        option, smallest = COUNTS[name]
        if value is not None or name not in _OPTIONAL:
            check_count(f"{name} ({option})", value, smallest)


def check_ratio(value: object, style: str) -> None:
    """Is this a ratio of output lengths, in this style? Raises UsageError where it is not."""
    if style not in get_args(RangeRatioStyle):
        thing = f"range_ratio_style (--range-ratio-style): {style}"
        raise UsageError(thing, "is not a known style", "pass document or vllm")
    if not isinstance(value, bool) and isinstance(value, Real):
        ratio = float(value)
        if 0 <= ratio < 1 or (ratio == 1 and style == "document"):
            return
    if style == "vllm":
        reason = "is not in [0, 1)"
        action = "pass r of [OSL * (1 - r), OSL * (1 + r)]: 0 for outputs of equal length"
    else:
        reason = "is not in [0, 1]"
        action = "pass R of [R * OSL, OSL]: 1 for outputs of equal length"
    raise UsageError(f"length_ratio (--R): {value}", reason, action)
