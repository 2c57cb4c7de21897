"""A trace file -> Trace. With event.py and salvage.py the only place that knows Chrome-trace JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from tracelens_infer.trace.columns import (
    MISSING,
    EventColumns,
    Int64Array,
    Lane,
    LaneTable,
    Role,
    RowArray,
    SliceTable,
    Trace,
)
from tracelens_infer.trace.event import BareEvent, ExactTimes, FullEvent, LinkedEvent, NamedEvent, exact_ns
from tracelens_infer.trace.header import read_header
from tracelens_infer.trace.losses import Losses
from tracelens_infer.trace.repairs import repair
from tracelens_infer.trace.salvage import Salvaged, salvage_slice
from tracelens_infer.trace.slices import EventSlice, Slicer
from tracelens_infer.trace.source import CHUNK_BYTES, DEFAULT_MAX_BYTES, iter_chunks

__all__ = ["Progress", "SliceEvents", "event_names", "iter_slice_events", "read_trace"]

_EXACT_LIMIT_US = 8.8e12
"""Below it a double times 1000, rounded, is the exact nanosecond; absolute timestamps (1.7e15 us) lie beyond."""
_LONGEST_US = 9.2e15  # int64 nanoseconds end here

_LINK_ROLES = frozenset({Role.LAUNCH, Role.DEVICE, Role.FLOW_START, Role.FLOW_END})
_FLOW_ROLES = np.array([int(Role.FLOW_START), int(Role.FLOW_END)], dtype=np.int8)
_OLD_HOST_OP = "Operator"  # 2021's Kineto puts ProfilerStep#N under this category
_OLD_LABEL = "ProfilerStep"

Progress: TypeAlias = Callable[[int], None]
"""Is told how many uncompressed bytes were read so far."""

_track = attrgetter("ph", "cat", "pid", "tid")
_ts, _dur, _name, _id = attrgetter("ts"), attrgetter("dur"), attrgetter("name"), attrgetter("id")
_correlation = attrgetter("args.correlation")


def read_trace(
    path: Path, *, name: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None
) -> Trace:
    """What events does this file hold? Reads it once, in slices; memory grows by about 30 bytes an event.

    ``name`` is how the user calls the file where that differs from ``path``; ``progress`` is called with the number
    of uncompressed bytes read so far. Damage is repaired where that is
    possible and told in the trace's notes. Raises UnreadableTraceError (no trace in it) and DecompressionLimitError.
    """
    losses = Losses()
    reader = _Reader(losses)
    chunks = _Counted(iter_chunks(path, losses, max_bytes), progress)
    slicer = Slicer(iter(chunks), name or str(path), losses, reader.decode)
    for event_slice in slicer.slices():
        list_end = reader.add(event_slice)
        if list_end is not None:
            slicer.close_list(list_end)
    columns, lanes, slices = reader.finish()
    header, metadata, header_notes = read_header(
        slicer.prefix, slicer.suffix, reader.foreign_headers, reader.labels.values(), losses
    )
    trace = Trace(
        path=path,
        name=name or str(path),
        columns=columns,
        lanes=lanes,
        slices=slices,
        labels=reader.labels,
        header=header,
        metadata=metadata,
        size_bytes=chunks.total,
        metadata_texts=tuple(reader.metadata_texts),
    )
    return repair(trace, (*losses.notes(), *header_notes))


class _Counted:
    """Counts the bytes that pass."""

    def __init__(self, chunks: Iterable[bytes], progress: Progress | None) -> None:
        self.total = 0
        self._chunks = chunks
        self._progress = progress

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.total += len(chunk)
            if self._progress is not None:
                self._progress(self.total)
            yield chunk


class _LaneCodes(dict[tuple[Any, ...], int]):
    """(ph, cat, pid, tid) -> lane number; unseen lanes get the next one."""

    def __missing__(self, track: tuple[Any, ...]) -> int:
        number = self[track] = len(self)
        return number


_SHAPES: dict[tuple[bool, bool], type[BareEvent]] = {
    (False, False): BareEvent,
    (True, False): NamedEvent,
    (False, True): LinkedEvent,
    (True, True): FullEvent,
}


class _Reader:
    """Turns slices into columns. What one slice needed decoded is decoded of the next one at once.

    Kineto writes its categories one after another, so the guess is wrong a handful of times in a file, and then the
    slice is decoded again.
    """

    def __init__(self, losses: Losses) -> None:
        self.labels: dict[int, str] = {}
        self.metadata_texts: dict[bytes, None] = {}
        self.foreign_headers: list[bytes] = []
        self._losses = losses
        self._lane_codes = _LaneCodes()
        self._roles: list[Role] = []
        self._old_host_ops: list[bool] = []
        self._decoders = {needs: msgspec.json.Decoder(list[shape]) for needs, shape in _SHAPES.items()}  # type: ignore[valid-type]
        self._needs = (True, True)  # names, links
        self._decoded: Sequence[Any] = ()
        self._rows = 0
        self._starts, self._durations = _GrowingColumn(np.int64), _GrowingColumn(np.int64)
        self._lanes, self._links = _GrowingColumn(np.int32), _GrowingColumn(np.int64)
        self._slices: list[tuple[int, int, int, bool]] = []

    def decode(self, text: bytearray) -> None:
        """Decode a bracketed list and keep the result for the next call of :meth:`add`."""
        self._decoded = ()  # freed before the new list is made, not after
        self._decoded = self._decoders[self._needs].decode(text)

    def add(self, event_slice: EventSlice) -> int | None:
        """Append a slice's events; returns where in it the event list closed, if only the salvager could tell."""
        list_end = None
        sound = event_slice.sound
        if sound:
            try:
                self._append(event_slice)
            except (OverflowError, ValueError, TypeError):
                sound = False  # well-formed JSON whose numbers do not fit the columns: sorted out one by one
        if not sound:
            saved = salvage_slice(event_slice.text, event_slice.offset, self._losses, at_end=event_slice.at_end)
            self.foreign_headers += saved.headers
            list_end = saved.list_end
            mended = bytearray(b"[%b]" % b",".join(saved.events))
            self.decode(mended)
            self._append(EventSlice(mended, len(mended) - 2, event_slice.offset, True, event_slice.at_end))
        self._slices.append((event_slice.offset, event_slice.length, self._rows - len(self._decoded), not sound))
        self._decoded = ()
        return list_end

    def finish(self) -> tuple[EventColumns, LaneTable, SliceTable]:
        """The columns of every slice added."""
        columns = EventColumns(
            self._starts.trimmed(), self._durations.trimmed(), self._lanes.trimmed(), self._links.trimmed()
        )
        offsets, lengths, rows, salvaged = zip(*self._slices, strict=True) if self._slices else ((), (), (), ())
        slices = SliceTable(
            np.array(offsets, dtype=np.int64),
            np.array(lengths, dtype=np.int64),
            np.array([*rows, self._rows], dtype=np.int64),
            np.array(salvaged, dtype=np.bool_),
        )
        table = LaneTable(Lane(phase, category or "", pid, tid) for phase, category, pid, tid in self._lane_codes)
        return columns, table, slices

    def _append(self, event_slice: EventSlice) -> None:
        """Turn the decoded events into columns. Nothing is kept if that fails."""
        events = self._decoded
        count = len(events)
        lane = np.fromiter(map(self._lane_codes.__getitem__, map(_track, events)), dtype=np.int32, count=count)
        for track in list(self._lane_codes)[len(self._roles) :]:
            self._roles.append(Lane(track[0], track[1] or "", track[2], track[3]).role)
            self._old_host_ops.append(track[1] == _OLD_HOST_OP)
        used = np.flatnonzero(np.bincount(lane, minlength=len(self._roles)))
        needs = (
            any(self._roles[code] is Role.ANNOTATION or self._old_host_ops[code] for code in used),
            any(self._roles[code] in _LINK_ROLES for code in used),
        )
        decoded_with, self._needs = self._needs, needs
        if needs[0] > decoded_with[0] or needs[1] > decoded_with[1]:
            self.decode(bytearray(b"[%b]" % event_slice.text))
            events = self._decoded
        start = self._start_ns(events, event_slice)
        duration = _microseconds(np.fromiter(map(_dur, events), dtype=np.float64, count=count))
        link = self._links_of(events, lane) if needs[1] else np.full(count, MISSING, dtype=np.int64)
        if needs[0]:
            self._keep_labels(events, lane)
        if any(self._roles[code] is Role.METADATA for code in used):
            self._keep_metadata(event_slice, lane)
        self._starts.append(start)
        self._durations.append(self._default_durations(duration, lane))
        self._lanes.append(lane)
        self._links.append(link)
        self._rows += count

    def _start_ns(self, events: Sequence[Any], event_slice: EventSlice) -> Int64Array:
        microseconds = np.fromiter(map(_ts, events), dtype=np.float64, count=len(events))
        size = np.abs(microseconds)
        if not (size >= _EXACT_LIMIT_US).any():
            return _microseconds(microseconds)
        beyond = int((size > _LONGEST_US).sum())
        if beyond:
            self._losses.add("number_out_of_range", event_slice.offset, beyond)
        times = msgspec.json.decode(b"[%b]" % event_slice.text, type=list[ExactTimes])
        exact = (exact_ns(bytes(event.ts)) for event in times)
        return np.fromiter((MISSING if ns is None else ns for ns in exact), dtype=np.int64, count=len(events))

    def _keep_metadata(self, event_slice: EventSlice, lane: np.ndarray[Any, Any]) -> None:
        raws = msgspec.json.decode(b"[%b]" % event_slice.text, type=list[msgspec.Raw])
        metadata = np.array([role is Role.METADATA for role in self._roles], dtype=np.bool_)
        for row in np.flatnonzero(metadata[lane]).tolist():
            self.metadata_texts[bytes(raws[row])] = None

    def _default_durations(self, duration: Int64Array, lane: np.ndarray[Any, Any]) -> Int64Array:
        """Only complete events last; where one does not say how long, that is a loss."""
        complete = np.array([track[0] == "X" for track in self._lane_codes], dtype=np.bool_)[lane]
        duration[(duration == MISSING) & ~complete] = 0
        return duration

    def _links_of(self, events: Sequence[Any], lane: np.ndarray[Any, Any]) -> Int64Array:
        link = np.fromiter(map(_correlation, events), dtype=np.int64, count=len(events))
        flows = np.flatnonzero(np.isin(np.array(self._roles, dtype=np.int8), _FLOW_ROLES)[lane])
        if len(flows):
            ids = [events[row].id for row in flows.tolist()]
            plain = all(type(flow_id) is int for flow_id in ids)
            link[flows] = ids if plain else [_flow_id(flow_id) for flow_id in ids]
        return link

    def _keep_labels(self, events: Sequence[Any], lane: np.ndarray[Any, Any]) -> None:
        marks = np.array([role is Role.ANNOTATION for role in self._roles], dtype=np.bool_) | np.array(
            self._old_host_ops
        )
        for row in np.flatnonzero(marks[lane]).tolist():
            label = events[row].name
            if not self._old_host_ops[lane[row]] or label.startswith(_OLD_LABEL):
                self.labels[self._rows + row] = label


class _GrowingColumn:
    """A column that grows in place: joining a list of parts at the end would need the memory twice."""

    def __init__(self, dtype: type) -> None:
        self._values: Any = np.empty(1 << 16, dtype=dtype)
        self._size = 0

    def append(self, values: np.ndarray[Any, Any]) -> None:
        size = self._size + len(values)
        if size > len(self._values):
            # By a quarter: the new part is filled with zeros, so that memory for it is taken at once.
            self._values.resize(max(size, len(self._values) * 5 // 4), refcheck=False)
        self._values[self._size : size] = values
        self._size = size

    def trimmed(self) -> Any:  # noqa: ANN401 - an array of the column's dtype
        self._values.resize(self._size, refcheck=False)
        return self._values


def _microseconds(values: np.ndarray[Any, np.dtype[np.float64]]) -> Int64Array:
    """Microseconds as int64 nanoseconds; NaN and what does not fit as MISSING."""
    good = np.abs(values) <= _LONGEST_US
    if good.all():
        exact: Int64Array = np.rint(values * 1000).astype(np.int64)
        return exact
    nanoseconds = np.full(len(values), MISSING, dtype=np.int64)
    nanoseconds[good] = np.rint(values[good] * 1000)
    return nanoseconds


def _flow_id(value: float | str | None) -> int:
    """Flow ids are numbers, or texts such as "0x1f"; other texts are numbered by their bytes."""
    if isinstance(value, str):
        try:
            return int(value, 0)
        except ValueError:
            return int.from_bytes(value.encode()[:7], "big")
    return MISSING if value is None else int(value)


# -- second pass -------------------------------------------------------------------------------------------------


class SliceEvents:
    """The events of one slice as JSON texts. ``originals``: row -> the text in the file, for repaired events."""

    __slots__ = ("_texts", "first_row", "number", "originals")

    def __init__(
        self, number: int, first_row: int, texts: Sequence[bytes | msgspec.Raw], originals: dict[int, bytes]
    ) -> None:
        self.number = number
        self.first_row = first_row
        self.originals = originals
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, row: int) -> bytes:
        """The event of this row of the trace."""
        return bytes(self._texts[row - self.first_row])

    def among(self, rows: RowArray) -> list[int]:
        """Which of these rows (ascending) are in this slice?"""
        first, last = np.searchsorted(rows, [self.first_row, self.first_row + len(self)])
        found: list[int] = rows[first:last].tolist()
        return found


def iter_slice_events(trace: Trace, wanted: Callable[[int], bool]) -> Iterator[SliceEvents]:
    """The bytes of the events of every slice for which ``wanted(slice number)`` holds; reads the file again."""
    table = trace.slices
    numbers = [number for number in range(len(table)) if wanted(number)]
    if not numbers:
        return
    for number, text in zip(numbers, _slice_texts(trace, numbers), strict=False):
        first_row = int(table.first_row[number])
        if table.salvaged[number]:
            at_end = int(table.offset[number]) + len(text) >= trace.size_bytes
            saved: Salvaged = salvage_slice(text, int(table.offset[number]), Losses(), at_end=at_end)
            originals = {first_row + index: text for index, text in saved.originals.items()}
            yield SliceEvents(number, first_row, saved.events, originals)
        else:
            yield SliceEvents(number, first_row, msgspec.json.decode(b"[%b]" % text, type=list[msgspec.Raw]), {})


def _slice_texts(trace: Trace, numbers: list[int]) -> Iterator[bytes]:
    """The bytes of the given slices, in order."""
    table = trace.slices
    pending = iter(numbers)
    number = next(pending)
    position = 0
    held = bytearray()
    for chunk in iter_chunks(trace.path, Losses(), max(trace.size_bytes, CHUNK_BYTES)):
        if not held and position + len(chunk) <= table.offset[number]:
            position += len(chunk)
            continue
        held += chunk
        while True:
            begin = int(table.offset[number]) - position
            end = begin + int(table.length[number])
            if end > len(held):
                drop = min(begin, len(held))
                del held[:drop]
                position += drop
                break
            yield bytes(memoryview(held)[begin:end])
            following = next(pending, None)
            if following is None:
                return
            number = following


def event_names(trace: Trace, rows: RowArray) -> dict[int, str]:
    """What are these events called? Row -> name; reads only the slices that hold them."""
    wanted = np.sort(rows)
    bounds = np.searchsorted(wanted, trace.slices.first_row)
    names: dict[int, str] = {}
    for part in iter_slice_events(trace, lambda number: bool(bounds[number + 1] > bounds[number])):
        for row in part.among(wanted):
            names[row] = msgspec.json.decode(part.text(row), type=NamedEvent).name
    return names
