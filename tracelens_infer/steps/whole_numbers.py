"""Whole numbers: which counts are accepted, and how a quotient becomes one in spite of its rounding error."""

from __future__ import annotations

import math
from numbers import Integral

from tracelens_infer.errors import UsageError

__all__ = ["LARGEST_COUNT", "ROUNDING", "check_count", "round_up"]

LARGEST_COUNT = 10**9  # beyond any benchmark; keeps the arithmetic exact in a double
ROUNDING = 1e-9  # relative error of a double that must not push a quotient to the next whole number


def check_count(thing: str, value: object, smallest: int) -> None:
    """Is this a count of at least ``smallest``? Raises UsageError, with ``thing`` as its subject, where it is not."""
    if not isinstance(value, bool) and isinstance(value, Integral) and smallest <= int(value) <= LARGEST_COUNT:
        return
    reason = f"is not a whole number from {smallest} to {LARGEST_COUNT:,}"
    raise UsageError(f"{thing}: {value}", reason, "pass one in that range")


def round_up(value: float) -> int:
    """Which whole number is the next one, the rounding error of ``value`` ignored?"""
    return math.ceil(value * (1 - ROUNDING))
