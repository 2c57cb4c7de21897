"""A trace file -> Trace. With event.py and salvage.py the only place that knows Chrome-trace JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from tracelens_infer.errors import InputError, UnreadableTraceError
from tracelens_infer.trace.columns import (
    MISSING,
    BoolArray,
    EventColumns,
    Int64Array,
    Lane,
    LaneTable,
    Role,
    RowArray,
    SliceTable,
    Trace,
)
from tracelens_infer.trace.event import (
    LONGEST_US,
    BareEvent,
    ExactTimes,
    FullEvent,
    LinkedEvent,
    NamedEvent,
    exact_ns,
)
from tracelens_infer.trace.header import HeaderText, read_header
from tracelens_infer.trace.losses import Losses
from tracelens_infer.trace.repairs import repair
from tracelens_infer.trace.salvage import Salvaged, salvage_slice
from tracelens_infer.trace.slices import EventSlice, Slicer
from tracelens_infer.trace.source import DEFAULT_MAX_BYTES, file_stamp, iter_chunks

__all__ = ["Progress", "SliceEvents", "event_names", "iter_slice_events", "read_trace"]

_EXACT_LIMIT_US = 2**43
"""Below it a double tells the nanosecond; absolute timestamps (1.7e15 us) lie beyond."""
_EVENTLESS_BYTES = 64 << 20  # JSON without an event in this many bytes is no trace
_NO_EVENTS = ("unreadable_event", "not_an_event", "stray_text", "truncated", "missing_bracket")

_LINK_ROLES = frozenset({Role.LAUNCH, Role.DEVICE, Role.FLOW_START, Role.FLOW_END})
_FLOW_ROLES = (Role.FLOW_START, Role.FLOW_END)
_OLD_HOST_OP = "Operator"  # 2021's Kineto puts ProfilerStep#N under this category
_OLD_LABEL = "ProfilerStep"

Progress: TypeAlias = Callable[[int], None]
"""Is told how many uncompressed bytes were read so far."""

_track = attrgetter("ph", "cat", "pid", "tid")
_ts, _dur, _name, _id = attrgetter("ts"), attrgetter("dur"), attrgetter("name"), attrgetter("id")
_correlation = attrgetter("args.correlation")


def read_trace(
    path: str | PathLike[str],
    *,
    name: str | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Progress | None = None,
) -> Trace:
    """What events does this file hold? Reads it once, in slices; memory grows by about 30 bytes an event.

    ``name`` is how the user calls the file where that differs from ``path``; ``progress`` is called with the number of
    uncompressed bytes read so far. Damage is repaired where that is possible and told in the trace's notes. Raises
    UnreadableTraceError (no trace in it) and DecompressionLimitError.
    """
    path = Path(path)
    name = name or str(path)
    losses = Losses()
    reader = _Reader(losses)
    stamp = file_stamp(path, name)
    chunks = _Counted(iter_chunks(path, losses, max_bytes, name=name), progress)
    slicer = Slicer(iter(chunks), name, losses, reader.decode)
    for event_slice in slicer.slices():
        saved = reader.add(event_slice)
        if saved is not None:
            slicer.used(saved.end, closed=saved.closed)
        if not reader.rows and event_slice.offset > _EVENTLESS_BYTES:
            raise _no_events(name)
    if not reader.rows and any(code in losses for code in _NO_EVENTS):
        raise _no_events(name)
    columns, lanes, slices = reader.finish()
    header, metadata, header_notes = read_header(
        HeaderText(slicer.prefix, tuple(slicer.suffixes), slicer.prefix_offset, slicer.suffix_offset),
        reader.foreign_headers,
        reader.labels.values(),
        losses,
    )
    trace = Trace(
        path=path,
        name=name,
        columns=columns,
        lanes=lanes,
        slices=slices,
        labels=reader.labels,
        header=header,
        metadata=metadata,
        size_bytes=chunks.total,
        metadata_texts=tuple(reader.metadata_texts),
        stamp=stamp,
    )
    return repair(trace, (*losses.notes(), *header_notes))


def _no_events(name: str) -> UnreadableTraceError:
    return UnreadableTraceError(
        name,
        "It holds a list, but no event of a trace can be read from it.",
        "Name a trace that torch.profiler (or an engine's /stop_profile) wrote.",
    )


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

    def __init__(self) -> None:
        super().__init__()
        self.lanes: list[Lane] = []
        self.roles: list[Role] = []

    def __missing__(self, track: tuple[Any, ...]) -> int:
        phase, category, process, thread = track
        lane = Lane(phase, category or "", process, thread)
        number = self[track] = len(self.lanes)
        self.lanes.append(lane)
        self.roles.append(lane.role)
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
        self.rows = 0
        self._losses = losses
        self._codes = _LaneCodes()
        self._decoders = {needs: msgspec.json.Decoder(list[shape]) for needs, shape in _SHAPES.items()}  # type: ignore[valid-type]
        self._needs = (True, True)  # names, links
        self._decoded: Sequence[Any] = ()
        self._starts, self._durations = _GrowingColumn(np.int64), _GrowingColumn(np.int64)
        self._lanes, self._links = _GrowingColumn(np.int32), _GrowingColumn(np.int64)
        self._slices: list[tuple[int, int, int, bool, bool, bool]] = []

    def decode(self, text: bytearray) -> None:
        """Decode a bracketed list and keep the result for the next call of :meth:`add`."""
        self._decoded = ()  # freed before the new list is made, not after
        self._decoded = self._decoders[self._needs].decode(text)

    def add(self, event_slice: EventSlice) -> Salvaged | None:
        """Append a slice's events; returns how far the salvager came if it had to be asked."""
        saved = None
        first_row = self.rows
        try:
            sound = event_slice.sound and self._append(event_slice)
        except (OverflowError, ValueError, TypeError, RecursionError):
            sound = False  # well-formed JSON whose numbers do not fit the columns: sorted out one by one
        if not sound:
            saved = salvage_slice(
                event_slice.text,
                event_slice.offset,
                self._losses,
                at_end=event_slice.at_end,
                forced=event_slice.forced,
            )
            if not saved.end:
                return saved  # an event longer than the slice
            self.foreign_headers += saved.headers
            mended = bytearray(b"[%b]" % b",".join(saved.events))
            self.decode(mended)
            self._append(replace(event_slice, buffer=mended, length=len(mended) - 2))
        self._decoded = ()
        self._slices.append(
            (event_slice.offset, event_slice.length, first_row, not sound, event_slice.at_end, event_slice.forced)
        )
        return saved

    def finish(self) -> tuple[EventColumns, LaneTable, SliceTable]:
        """The columns of every slice added."""
        columns = EventColumns(
            self._starts.trimmed(), self._durations.trimmed(), self._lanes.trimmed(), self._links.trimmed()
        )
        parts = zip(*self._slices, strict=True) if self._slices else ((),) * 6
        offsets, lengths, rows, salvaged, at_end, forced = parts
        slices = SliceTable(
            np.array(offsets, dtype=np.int64),
            np.array(lengths, dtype=np.int64),
            np.array([*rows, self.rows], dtype=np.int64),
            np.array(salvaged, dtype=np.bool_),
            np.array(at_end, dtype=np.bool_),
            np.array(forced, dtype=np.bool_),
        )
        return columns, LaneTable(self._codes.lanes), slices

    def _append(self, event_slice: EventSlice) -> bool:
        """Turn the decoded events into columns. Raises ValueError and keeps nothing if they do not fit."""
        events = self._decoded
        count = len(events)
        lane = np.fromiter(map(self._codes.__getitem__, map(_track, events)), dtype=np.int32, count=count)
        lanes, roles = self._codes.lanes, self._codes.roles
        used = np.flatnonzero(np.bincount(lane, minlength=len(lanes))).tolist()
        if not all(lanes[code].phase for code in used):
            raise ValueError("an object that is no event")
        needs = (
            any(roles[code] is Role.ANNOTATION or lanes[code].category == _OLD_HOST_OP for code in used),
            any(roles[code] in _LINK_ROLES for code in used),
        )
        decoded_with, self._needs = self._needs, needs
        if needs[0] > decoded_with[0] or needs[1] > decoded_with[1]:
            self.decode(bytearray(b"[%b]" % event_slice.text))
            events = self._decoded
        start = self._start_ns(events, event_slice)
        duration = _microseconds(np.fromiter(map(_dur, events), dtype=np.float64, count=count))
        # Only complete events last; where one does not say how long, that is a loss.
        complete = self._mask([code for code in used if lanes[code].phase == "X"])[lane]
        duration[(duration == MISSING) & ~complete] = 0
        link = self._links_of(events, lane, used) if needs[1] else np.full(count, MISSING, dtype=np.int64)
        if needs[0]:
            self._keep_labels(events, lane, used)
        metadata = [code for code in used if roles[code] is Role.METADATA]
        if metadata:
            raws = msgspec.json.decode(b"[%b]" % event_slice.text, type=list[msgspec.Raw])
            for row in np.flatnonzero(self._mask(metadata)[lane]).tolist():
                self.metadata_texts[bytes(raws[row])] = None
        self._starts.append(start)
        self._durations.append(duration)
        self._lanes.append(lane)
        self._links.append(link)
        self.rows += count
        return True

    def _mask(self, codes: list[int]) -> BoolArray:
        """A flag for each lane number."""
        mask = np.zeros(len(self._codes.lanes), dtype=np.bool_)
        mask[codes] = True
        return mask

    def _start_ns(self, events: Sequence[Any], event_slice: EventSlice) -> Int64Array:
        microseconds = np.fromiter(map(_ts, events), dtype=np.float64, count=len(events))
        if not (np.abs(microseconds) >= _EXACT_LIMIT_US).any():
            return _microseconds(microseconds)
        _refuse_beyond_limit(microseconds)
        times = msgspec.json.decode(b"[%b]" % event_slice.text, type=list[ExactTimes])
        exact = (exact_ns(bytes(event.ts)) for event in times)
        return np.fromiter((MISSING if ns is None else ns for ns in exact), dtype=np.int64, count=len(events))

    def _links_of(self, events: Sequence[Any], lane: np.ndarray[Any, Any], used: list[int]) -> Int64Array:
        link = np.fromiter(map(_correlation, events), dtype=np.int64, count=len(events))
        roles = self._codes.roles
        others = [code for code in used if roles[code] not in _LINK_ROLES]
        if others:  # some host ops repeat the correlation of their launch
            link[self._mask(others)[lane]] = MISSING
        flow_lanes = [code for code in used if roles[code] in _FLOW_ROLES]
        if flow_lanes:
            flows = np.flatnonzero(self._mask(flow_lanes)[lane])
            ids = [events[row].id for row in flows.tolist()]
            try:
                link[flows] = ids if all(type(flow_id) is int for flow_id in ids) else list(map(_flow_id, ids))
            except OverflowError:
                link[flows] = list(map(_flow_id, ids))
        return link

    def _keep_labels(self, events: Sequence[Any], lane: np.ndarray[Any, Any], used: list[int]) -> None:
        lanes, roles = self._codes.lanes, self._codes.roles
        old = [code for code in used if lanes[code].category == _OLD_HOST_OP]
        marks = self._mask(old + [code for code in used if roles[code] is Role.ANNOTATION])
        only_steps = self._mask(old)
        for row in np.flatnonzero(marks[lane]).tolist():
            label = events[row].name
            if not only_steps[lane[row]] or label.startswith(_OLD_LABEL):
                self.labels[self.rows + row] = label


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


def _refuse_beyond_limit(microseconds: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    if (np.abs(microseconds) > LONGEST_US).any():
        raise ValueError("a time beyond 64 bits")


def _microseconds(values: np.ndarray[Any, np.dtype[np.float64]]) -> Int64Array:
    """Microseconds as int64 nanoseconds, NaN as MISSING. Exact: whole microseconds and the rest are rounded apart.

    Multiplying at once would be off by one for some values from 4.4e12 on.
    """
    _refuse_beyond_limit(values)
    missing = np.isnan(values)
    if missing.any():
        values[missing] = 0.0
    whole = np.rint(values)
    values -= whole
    values *= 1000
    nanoseconds: Int64Array = whole.astype(np.int64)
    nanoseconds *= 1000
    nanoseconds += np.rint(values, out=values).astype(np.int64)
    nanoseconds[missing] = MISSING
    return nanoseconds


def _flow_id(value: float | str | None) -> int:
    """Flow ids are numbers, or texts such as "0x1f"; other texts get a number by which they are told apart."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        try:
            number = int(value, 0)
        except ValueError:
            from hashlib import blake2b  # loads OpenSSL: 4 MB

            number = int.from_bytes(blake2b(value.encode(), digest_size=8).digest())
    else:
        number = int(value)
    return (number + 2**63) % 2**64 - 2**63  # ids beyond int64 are none the less ids


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
    """The bytes of the events of every slice for which ``wanted(slice number)`` holds; reads the file again.

    Raises InputError where the file is not the one that was read any more.
    """
    table = trace.slices
    numbers = [number for number in range(len(table)) if wanted(number)]
    if not numbers:
        return
    if trace.stamp is not None and file_stamp(trace.path, trace.name) != trace.stamp:
        raise _changed(trace)
    number = -1
    for number, text in zip(numbers, _slice_texts(trace, numbers), strict=False):
        first_row = int(table.first_row[number])
        events = _slice_events(trace, number, first_row, text)
        if len(events) != int(table.first_row[number + 1]) - first_row:
            raise _changed(trace)
        yield events
    if number != numbers[-1]:
        raise _changed(trace)


def _slice_events(trace: Trace, number: int, first_row: int, text: bytes) -> SliceEvents:
    table = trace.slices
    if table.salvaged[number]:
        at_end, forced = bool(table.at_end[number]), bool(table.forced[number])
        saved = salvage_slice(text, int(table.offset[number]), Losses(), at_end=at_end, forced=forced)
        originals = {first_row + index: original for index, original in saved.originals.items()}
        return SliceEvents(number, first_row, saved.events, originals)
    try:
        return SliceEvents(number, first_row, msgspec.json.decode(b"[%b]" % text, type=list[msgspec.Raw]), {})
    except (msgspec.DecodeError, RecursionError) as error:
        raise _changed(trace) from error


def _changed(trace: Trace) -> InputError:
    return InputError(trace.name, "The file changed while it was read.", "Wait until it is written, and run again.")


def _slice_texts(trace: Trace, numbers: list[int]) -> Iterator[bytes]:
    """The bytes of the given slices, in order."""
    table = trace.slices
    pending = iter(numbers)
    number = next(pending)
    position = 0
    held = bytearray()
    for chunk in iter_chunks(trace.path, Losses(), name=trace.name, max_bytes=None):
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
    """What are these events called? Row -> name, empty where it is no text; reads only the slices that hold them."""
    wanted = np.sort(rows)
    bounds = np.searchsorted(wanted, trace.slices.first_row)
    names: dict[int, str] = {}
    for part in iter_slice_events(trace, lambda number: bool(bounds[number + 1] > bounds[number])):
        for row in part.among(wanted):
            try:
                names[row] = msgspec.json.decode(part.text(row), type=NamedEvent).name
            except msgspec.ValidationError:
                names[row] = ""
    return names
