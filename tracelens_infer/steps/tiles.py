"""Spans of iterations -> boundaries that leave no gap."""

from __future__ import annotations

import numpy as np

from tracelens_infer.steps.candidates import StepBoundary
from tracelens_infer.trace.columns import Int64Array

__all__ = ["tiled"]


def tiled(row: Int64Array, start: Int64Array, end: Int64Array) -> tuple[StepBoundary, ...]:
    """What are the boundaries? Each tile reaches to the next start, the last one as far as a typical one would."""
    typical = int(np.median(np.diff(start))) if len(start) > 1 else 0
    tile_end = np.append(start[1:], max(int(end[-1]), int(start[-1]) + typical))
    return tuple(
        StepBoundary(*values, None)
        for values in zip(row.tolist(), start.tolist(), end.tolist(), tile_end.tolist(), strict=True)
    )
