"""Spans of iterations -> boundaries that leave no gap."""

from __future__ import annotations

import numpy as np

from tracelens_infer.steps.candidates import StepBoundary
from tracelens_infer.trace.columns import BoolArray, Int64Array

__all__ = ["tiled"]


def tiled(
    row: Int64Array, start: Int64Array, end: Int64Array, keep: BoolArray | None = None
) -> tuple[StepBoundary, ...]:
    """What are the boundaries? Each tile reaches to the next start, the last one as far as a typical one would."""
    if keep is not None:
        row, start, end = row[keep], start[keep], end[keep]
    typical = int(np.median(np.diff(start))) if len(start) > 1 else 0
    tile_end = np.append(start[1:], max(int(end[-1]), int(start[-1]) + typical))
    return tuple(
        StepBoundary(*values, None)
        for values in zip(row.tolist(), start.tolist(), end.tolist(), tile_end.tolist(), strict=True)
    )
