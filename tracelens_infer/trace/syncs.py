"""Which work waits for which event on another stream? As CUDA's profiler tells it; ROCm's traces tell nothing."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from tracelens_infer.trace.columns import MISSING, Int64Array, Trace
from tracelens_infer.trace.reader import iter_slice_events

__all__ = ["StreamWaits", "stream_waits"]

_CATEGORY = "cuda_sync"


class _Args(msgspec.Struct, gc=False):
    kind: str = msgspec.field(name="cuda_sync_kind", default="")
    stream: int = -1
    on_stream: int = msgspec.field(name="wait_on_stream", default=-1)
    recorded_by: int = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=-1)


class _Sync(msgspec.Struct, gc=False):
    args: _Args | None = None


_decoder = msgspec.json.Decoder(_Sync, strict=False)


@dataclass(frozen=True, slots=True)
class StreamWaits:
    """From when on does a stream wait, and for what? One row a wait; int64.

    Attributes:
        start_ns: when the wait was asked for.
        stream, on_stream: who waits, and for whom.
        recorded_by: correlation of the call that recorded the event: work launched before it has to be done.
    """

    start_ns: Int64Array
    stream: Int64Array
    on_stream: Int64Array
    recorded_by: Int64Array

    def __len__(self) -> int:
        return len(self.start_ns)


def stream_waits(trace: Trace, first_ns: int, last_ns: int) -> StreamWaits:
    """Which waits between streams were asked for in this time? Empty where the profiler recorded none.

    A wait whose event was recorded before profiling began names no recorder and is left out.
    """
    lanes = np.array([lane.category.lower() == _CATEGORY for lane in trace.lanes.lanes], dtype=np.bool_)
    start = trace.columns.start_ns
    chosen = lanes[trace.columns.lane] & (start != MISSING) & (start >= first_ns) & (start < last_ns)
    rows = np.flatnonzero(chosen)
    bounds = np.searchsorted(rows, trace.slices.first_row)
    found: list[tuple[int, int, int, int]] = []
    for part in iter_slice_events(trace, lambda number: bool(bounds[number + 1] > bounds[number])):
        for row in part.among(rows):
            args = _args(part.text(row))
            if args.kind == "Stream Wait Event" and args.recorded_by >= 0:
                found.append((int(start[row]), args.stream, args.on_stream, args.recorded_by))
    columns = np.array(found, dtype=np.int64).reshape(len(found), 4)
    return StreamWaits(columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3])


def _args(text: bytes) -> _Args:
    try:
        return _decoder.decode(text).args or _Args()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Args()  # arguments of another form tell nothing
