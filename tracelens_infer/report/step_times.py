"""How long do steps take, by kind?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracelens_infer.steps.step import Step

__all__ = ["durations_us", "median_us"]

_PERCENTILES = (10, 50, 90)


def durations_us(steps: Iterable[Step]) -> dict[str, dict[str, float]]:
    """Kind -> p10, p50 and p90 of its steps' durations in microseconds, in order of first appearance."""
    return {
        kind: dict(
            zip(
                (f"p{percentile}" for percentile in _PERCENTILES),
                np.percentile(durations, _PERCENTILES).round(3).tolist(),
                strict=True,
            )
        )
        for kind, durations in _by_kind(steps).items()
    }


def median_us(steps: Iterable[Step]) -> dict[str, float]:
    """Kind -> median duration of its steps in microseconds."""
    return {kind: round(float(np.median(durations)), 3) for kind, durations in _by_kind(steps).items()}


def _by_kind(steps: Iterable[Step]) -> dict[str, list[float]]:
    by_kind: dict[str, list[float]] = {}
    for step in steps:
        by_kind.setdefault(step.kind.value, []).append(step.duration_ns / 1000)
    return by_kind
