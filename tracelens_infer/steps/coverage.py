"""How much of the device's time do a candidate's windows explain?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens_infer.steps.candidates import Candidate, Grade
from tracelens_infer.trace.columns import Int64Array, Role, Trace
from tracelens_infer.trace.launches import DeviceWork, covered_ns

__all__ = ["DEGRADED_SHARE", "LEAST_INSIDE_SPANS", "SPLITTABLE_SHARE", "graded", "step_numbers"]

SPLITTABLE_SHARE = 0.95
"""Above it a candidate's windows explain the trace: what is outside is start-up and sampling of a step or two."""
LEAST_INSIDE_SPANS = 0.5
"""Tiles have no gaps, so they explain whatever lies between labels, too: labels within which less than half of the work
is launched mark something else."""
DEGRADED_SHARE = 0.75
"""Below it more than a quarter of the device's time happens outside of what is called a step."""


def step_numbers(candidate: Candidate, times_ns: Int64Array, *, spans_only: bool = False) -> Int64Array:
    """In which of a candidate's tiles (or spans) does each time lie? -1 for none. Times on the candidate's clock."""
    starts = np.array([boundary.start_ns for boundary in candidate.boundaries], dtype=np.int64)
    if spans_only:
        ends = np.array([boundary.end_ns for boundary in candidate.boundaries], dtype=np.int64)
    else:
        ends = np.array([boundary.tile_end_ns for boundary in candidate.boundaries], dtype=np.int64)
    number = np.searchsorted(starts, times_ns, side="right") - 1
    inside = (number >= 0) & (times_ns < ends[number])
    return np.where(inside, number, -1)


def graded(trace: Trace, work: DeviceWork, candidate: Candidate) -> Candidate:
    """The candidate with its shares and grade: of linked device time where there is any, else of host op time.

    The grade is taken on tiles; the share of the bare spans stands beside it.
    """
    if work.linked.any() or (candidate.on_device and len(work.row)):
        chosen = work.timed if candidate.on_device else work.linked & work.timed
        times = work.start_ns[chosen] if candidate.on_device else work.launch_ns[chosen]
        start, end = work.start_ns[chosen], work.end_ns[chosen]
    else:
        rows = trace.rows(Role.HOST_OP)
        rows = rows[np.argsort(trace.columns.start_ns[rows], kind="stable")]
        times = start = trace.columns.start_ns[rows]
        end = start + np.maximum(trace.columns.duration_ns[rows], 0)
    first, last = candidate.boundaries[0].start_ns, candidate.boundaries[-1].tile_end_ns
    between = (times >= first) & (times < last)
    times, start, end = times[between], start[between], end[between]
    total = covered_ns(start, end)
    in_span = step_numbers(candidate, times, spans_only=True) >= 0
    in_tile = step_numbers(candidate, times) >= 0
    spans = covered_ns(start[in_span], end[in_span])
    tiles = total if in_tile.all() else covered_ns(start[in_tile], end[in_tile])
    share = tiles / total if total else 1.0  # nothing ran, so nothing is left unexplained
    inside = float(in_span.mean()) if len(in_span) else 1.0
    return replace(
        candidate,
        span_share=spans / total if total else 1.0,
        explained_share=share,
        inside_spans=inside,
        grade=_grade(candidate, share, inside),
    )


def _grade(candidate: Candidate, share: float, inside: float) -> Grade:
    if share < DEGRADED_SHARE:
        return Grade.NOT_SPLITTABLE
    labelled = any(boundary.annotation is not None for boundary in candidate.boundaries)
    if share < SPLITTABLE_SHARE or candidate.disputed or (labelled and inside < LEAST_INSIDE_SPANS):
        return Grade.DEGRADED
    return Grade.SPLITTABLE
