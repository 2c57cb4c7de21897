"""Where do the iterations begin in the sequence of kernels? For traces with nothing on the host."""

from __future__ import annotations

import numpy as np

from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.detect_top_level import cut_positions, last_ends, objection
from tracelens_infer.steps.folding import folded
from tracelens_infer.steps.op_sequence import Sequence, level_of
from tracelens_infer.steps.periodicity import symbol_codes
from tracelens_infer.steps.tiles import tiled
from tracelens_infer.trace.columns import RowArray, Trace
from tracelens_infer.trace.launches import DeviceWork
from tracelens_infer.trace.reader import event_names

__all__ = ["device_candidates"]


def device_candidates(trace: Trace, work: DeviceWork) -> list[Candidate]:
    """Which kernel begins each iteration, on the stream that works the most? Times are the device's."""
    chosen = _busiest_stream(trace, work)
    if not len(chosen):
        return []
    row, start, end = work.row[chosen], work.start_ns[chosen], work.end_ns[chosen]
    names = event_names(trace, row)
    codes = symbol_codes([names[one] for one in row.tolist()])
    until = np.maximum.accumulate(end)
    idle = np.maximum(start - np.append(start[:1], until[:-1]), 0)
    each = np.ones(len(row), dtype=np.bool_)
    sequence = Sequence(row, codes, start, end, idle, each, each.astype(np.int64), ~each, ~each)
    level = level_of(sequence)
    cuts = cut_positions(sequence, level) if level is not None else codes[:0]
    if level is None or len(cuts) < 2:
        return []
    boundaries = tiled(row[cuts], start[cuts], last_ends(sequence, cuts, level))
    label = folded(names[int(row[cuts[0]])])
    return [Candidate(f"device_sequence:{label}", boundaries, on_device=True, rejected=objection(sequence, level))]


def _busiest_stream(trace: Trace, work: DeviceWork) -> RowArray:
    """Positions in ``work`` of the stream with the most device time; other streams overlap it and blur the order."""
    used = np.flatnonzero(work.timed)
    if not len(used):
        return used
    stream = trace.lanes.track_codes()[trace.columns.lane[work.row[used]]]
    busiest = np.bincount(stream, weights=(work.end_ns - work.start_ns)[used]).argmax()
    chosen: RowArray = used[stream == busiest]
    return chosen
