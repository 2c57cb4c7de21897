"""What runs before the first and after the last iteration, if that is much? Encoding and decoding around a loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens_infer.steps.candidates import Candidate, StepBoundary, Window
from tracelens_infer.steps.coverage import SPLITTABLE_SHARE, step_numbers
from tracelens_infer.trace.columns import Int64Array, Role, Trace
from tracelens_infer.trace.launches import DeviceWork, covered_ns

__all__ = ["BOOKENDS", "with_bookends", "work_intervals"]

BOOKENDS = "bookends:"
"""Begins the detector of a candidate whose first (last) boundary may be a warm-up (wrap-up) window, of row -1."""

_LEAST_SHARE = 1 - SPLITTABLE_SHARE  # less than this does not keep a trace from being explained
_LEAST_STEP_SHARE = 0.5  # of a median iteration; less is as likely the end of one that the recording cut off


def work_intervals(trace: Trace, work: DeviceWork, *, on_device: bool) -> tuple[Int64Array, Int64Array, Int64Array]:
    """When was each piece of work asked for, when did it start and end? Work as coverage.graded counts it."""
    if work.linked.any() or on_device:
        used = work.timed if on_device else work.linked & work.timed
        asked = work.start_ns[used] if on_device else work.launch_ns[used]
        return asked, work.start_ns[used], work.end_ns[used]
    rows = trace.rows(Role.HOST_OP)
    rows = rows[np.argsort(trace.columns.start_ns[rows], kind="stable")]
    start = trace.columns.start_ns[rows]
    return start, start, start + np.maximum(trace.columns.duration_ns[rows], 0)


def with_bookends(trace: Trace, work: DeviceWork, candidate: Candidate) -> Candidate | None:
    """The candidate with windows for what runs around it; None where that is little."""
    asked, start, end = work_intervals(trace, work, on_device=candidate.on_device)
    first, last = candidate.boundaries[0], candidate.boundaries[-1]
    total = covered_ns(start, end)
    before, after = asked < first.start_ns, asked >= last.end_ns
    number = step_numbers(candidate, asked)
    step = float(np.median([covered_ns(start[number == i], end[number == i]) for i in _few(len(candidate.boundaries))]))
    least = max(_LEAST_SHARE * total, _LEAST_STEP_SHARE * step, 1)
    boundaries = list(candidate.boundaries)
    if covered_ns(start[after], end[after]) >= least:
        begin, finish = int(asked[after].min()), int(asked[after].max()) + 1
        boundaries[-1] = replace(last, tile_end_ns=begin)
        boundaries.append(StepBoundary(-1, begin, finish, finish, None, Window.BOOKEND))
    if covered_ns(start[before], end[before]) >= least:
        begin = int(asked[before].min())
        boundaries.insert(0, StepBoundary(-1, begin, first.start_ns, first.start_ns, None, Window.BOOKEND))
    if len(boundaries) == len(candidate.boundaries):
        return None
    return replace(candidate, detector=BOOKENDS + candidate.detector, boundaries=tuple(boundaries))


def _few(count: int) -> list[int]:
    """Some of the iterations, evenly spread: their median is that of all."""
    return sorted(set(np.linspace(0, count - 1, num=min(count, 25)).astype(int).tolist()))
