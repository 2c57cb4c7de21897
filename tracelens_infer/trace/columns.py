"""Trace: every event of a file as columns, with the way back to each event's bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tracelens_infer.notes import Note

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

__all__ = [
    "MISSING",
    "BoolArray",
    "ClippedDuration",
    "DeviceProperties",
    "EventColumns",
    "Identifier",
    "Int64Array",
    "Lane",
    "LaneTable",
    "Role",
    "RowArray",
    "SliceTable",
    "Trace",
    "TraceHeader",
    "TraceMetadata",
    "median_of",
]

Identifier: TypeAlias = int | float | str | None
if TYPE_CHECKING:
    BoolArray: TypeAlias = npt.NDArray[np.bool_]
    Int64Array: TypeAlias = npt.NDArray[np.int64]
    RowArray: TypeAlias = npt.NDArray[np.intp]
else:  # numpy.typing takes 15 ms to import
    BoolArray = Int64Array = RowArray = np.ndarray

MISSING = int(np.iinfo(np.int64).min)
"""A time or a link that the file does not tell: no real event lies 292 years before its trace's origin."""


class Role(IntEnum):
    """What is an event, whatever its writer calls it?"""

    OTHER = 0
    DEVICE = 1  # kernel, memory copy or fill
    LAUNCH = 2  # runtime or driver call; can own device work
    ANNOTATION = 3  # host-side label
    DEVICE_ANNOTATION = 4  # the same label, drawn on a stream by the profiler
    HOST_OP = 5
    PYTHON = 6
    FLOW_START = 7
    FLOW_END = 8
    METADATA = 9
    INSTANT = 10
    COUNTER = 11
    BEGIN = 12  # of a category without a role of its own; a "B" kernel is device work
    END = 13


# Lower-cased `cat` of complete ("X") events; 2021's Kineto wrote Kernel, Memcpy, Operator, Runtime.
_ROLE_OF_CATEGORY = {
    "kernel": Role.DEVICE,
    "gpu_memcpy": Role.DEVICE,
    "gpu_memset": Role.DEVICE,
    "memcpy": Role.DEVICE,
    "memset": Role.DEVICE,
    "concurrent_kernel": Role.DEVICE,
    "user_annotation": Role.ANNOTATION,
    "gpu_user_annotation": Role.DEVICE_ANNOTATION,
    "cpu_op": Role.HOST_OP,
    "operator": Role.HOST_OP,
    "python_function": Role.PYTHON,
}
_ROLE_OF_PHASE = {
    "s": Role.FLOW_START,
    "t": Role.FLOW_END,
    "f": Role.FLOW_END,
    "M": Role.METADATA,
    "i": Role.INSTANT,
    "I": Role.INSTANT,
    "C": Role.COUNTER,
    "B": Role.BEGIN,
    "E": Role.END,
}


def median_of(values: npt.NDArray[np.generic]) -> float:
    """The median of some numbers, at least one. numpy.median imports masked arrays: 10 ms of a command's time."""
    ordered = np.sort(values)
    count = len(ordered)
    return (float(ordered[(count - 1) // 2]) + float(ordered[count // 2])) / 2


@dataclass(frozen=True, slots=True)
class Lane:
    """Which kind of event on which track? Events share a few hundred lanes, so each holds only a lane number."""

    phase: str
    category: str
    process: Identifier
    thread: Identifier

    @property
    def role(self) -> Role:
        """What are the events of this lane?"""
        if self.phase not in ("X", "B"):
            return _ROLE_OF_PHASE.get(self.phase, Role.OTHER)
        category = self.category.lower()
        role = _ROLE_OF_CATEGORY.get(category)
        if role is None:
            # cuda_runtime, cuda_driver, hip_runtime, xpu_runtime, mtia_runtime, Runtime ...
            role = Role.LAUNCH if category.endswith(("runtime", "driver")) else Role.OTHER
        if role is Role.OTHER and self.phase == "B":
            role = Role.BEGIN
        return role


class LaneTable:
    """Which lanes does a trace have? Built once by the reader; looked up by lane number."""

    __slots__ = ("lanes", "roles")

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self.lanes = tuple(lanes)
        self.roles = np.array([lane.role for lane in self.lanes], dtype=np.int8)

    def codes(self, values: Iterable[Identifier]) -> Int64Array:
        """Number equal values alike, in order of first appearance; one number a lane."""
        seen: dict[Identifier, int] = {}
        return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)

    def process_codes(self) -> Int64Array:
        """Which lanes share a process (for device lanes: a device)?"""
        return self.codes(lane.process for lane in self.lanes)

    def track_codes(self) -> Int64Array:
        """Which lanes share a track, that is a process and thread (for device lanes: device and stream)?"""
        return self.codes(f"{lane.process!r}/{lane.thread!r}" for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Every event of a trace, one row each in file order.

    Attributes:
        start_ns: int64, time since the trace's own origin; MISSING where the event has none.
        duration_ns: int64; MISSING where a complete event has none, 0 for events without extent.
        lane: int32, index into the lane table.
        link: int64, the correlation of launches and device work, the id of flows; MISSING elsewhere.
    """

    start_ns: Int64Array
    duration_ns: Int64Array
    lane: npt.NDArray[np.int32]
    link: Int64Array

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True, slots=True)
class SliceTable:
    """Where are the bytes of each event? Slices of 2-4 MB, each with its rows; a slice decodes in milliseconds.

    Attributes:
        offset: int64, first byte in the uncompressed input.
        length: int64, bytes.
        first_row: int64, one more entry than slices.
        salvaged: bool, the slice holds damaged events and is read by the salvager.
        at_end, forced: bool, what the salvager was told (see there).
    """

    offset: Int64Array
    length: Int64Array
    first_row: Int64Array
    salvaged: BoolArray
    at_end: BoolArray
    forced: BoolArray

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What stands around the events: ``prefix`` before the opening bracket, ``suffix`` after the closing one.

    Both are exactly the file's bytes unless the header was damaged; then they hold its repaired form.
    """

    prefix: bytes
    suffix: bytes


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What does the profiler say about a device? ``name`` may be empty, as it was seen on ROCm; None where untold.

    Attributes:
        memory_bytes: all of its memory that a program can use.
        num_sms: multiprocessors (AMD: compute units).
    """

    name: str
    memory_bytes: int | None = None
    num_sms: int | None = None


@dataclass(frozen=True, slots=True)
class TraceMetadata:
    """Where does a trace come from, and what did its profiler record?

    ``ranks`` and ``writers`` tell a file into which several ranks or writers wrote.
    """

    engine: str | None = None
    engine_version: str | None = None
    rank: int | None = None
    world_size: int | None = None
    device_names: tuple[str, ...] = ()
    device_count: int = 0
    base_time_ns: int = 0
    has_shapes: bool = False
    has_stacks: bool = False
    trace_id: str | None = None
    ranks: tuple[int, ...] = ()
    writers: int = 1
    devices: tuple[DeviceProperties, ...] = ()


@dataclass(frozen=True, slots=True)
class ClippedDuration:
    """How long did an event last, as recorded and as it can be?"""

    recorded_ns: int
    clipped_ns: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace file in memory: columns, lanes, and the texts of the events that can mark a step.

    Attributes:
        path: the (uncompressed or compressed) file that a second pass reads.
        name: how the user named it.
        columns: every event.
        lanes: what the lane numbers mean.
        slices: where the bytes of the events are.
        metadata_texts: the metadata events ("M": names of processes and threads), each text once, in file order.
        labels: row -> name of every host annotation (and of 2021's ``Operator`` events).
        clipped: row -> both durations of an event whose recorded one cannot be.
        partners: row of a begin event -> row of its end event.
        extent_ns: when the first event starts and the last one ends; events at time 0 and metadata do not count.
        dropped: rows that count as not there (exact duplicates, paired end events are not among them).
        stamp: size and times of the file when it was read, by which a second pass knows it again.
    """

    path: Path
    name: str
    columns: EventColumns
    lanes: LaneTable
    slices: SliceTable
    labels: Mapping[int, str]
    header: TraceHeader
    metadata: TraceMetadata
    size_bytes: int
    metadata_texts: tuple[bytes, ...] = ()
    clipped: Mapping[int, ClippedDuration] = field(default_factory=dict)
    partners: Mapping[int, int] = field(default_factory=dict)
    extent_ns: tuple[int, int] = (0, 0)
    dropped: RowArray = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    notes: tuple[Note, ...] = ()
    stamp: tuple[int, ...] | None = None

    def rows(self, *roles: Role) -> RowArray:
        """Which rows have one of these roles? Dropped rows excepted."""
        wanted = np.isin(self.lanes.roles, [int(role) for role in roles])
        if not wanted.any():
            return np.zeros(0, dtype=np.intp)
        mask = wanted[self.columns.lane]
        mask[self.dropped] = False
        return np.flatnonzero(mask)

    @property
    def event_count(self) -> int:
        """How many events does the trace hold, without exact duplicates?"""
        return len(self.columns) - len(self.dropped)

    @property
    def has_device_events(self) -> bool:
        """Did the profiler record a device?"""
        return bool((self.lanes.roles == Role.DEVICE).any())
