"""How long do steps take, by kind?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracelens_infer.steps.step import Step
from tracelens_infer.trace.columns import median_of

__all__ = ["durations_us", "median_us"]

_PERCENTILES = (10, 50, 90)


def durations_us(steps: Iterable[Step]) -> dict[str, dict[str, float]]:
    """Kind -> p10, p50 and p90 of its steps' durations in microseconds, in order of first appearance."""
    return {
        kind: dict(
            zip(
                (f"p{percentile}" for percentile in _PERCENTILES),
                _percentiles(durations),
                strict=True,
            )
        )
        for kind, durations in _by_kind(steps).items()
    }


def _percentiles(values: list[float]) -> list[float]:
    """By linear interpolation, as numpy.percentile, which would import masked arrays: 10 ms of a command's time."""
    at = np.array(_PERCENTILES) / 100 * (len(values) - 1)
    found: list[float] = np.interp(at, np.arange(len(values)), np.sort(values)).round(3).tolist()
    return found


def median_us(steps: Iterable[Step]) -> dict[str, float]:
    """Kind -> median duration of its steps in microseconds."""
    return {kind: round(median_of(np.array(durations)), 3) for kind, durations in _by_kind(steps).items()}


def _by_kind(steps: Iterable[Step]) -> dict[str, list[float]]:
    by_kind: dict[str, list[float]] = {}
    for step in steps:
        by_kind.setdefault(step.kind.value, []).append(step.duration_ns / 1000)
    return by_kind
