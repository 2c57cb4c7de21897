"""Which host call launched each piece of device work? One launch may own many kernels (a graph replay)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.trace.columns import MISSING, BoolArray, Int64Array, Role, RowArray, Trace

__all__ = ["DeviceWork", "covered_ns", "link_device_work", "union_ns"]

_SKEW_NS = 1_000_000  # kernels seen up to 9 us before their launch; a millisecond is no rounding of a clock any more
_SHIFT_LIMIT_NS = 2**62  # groups laid end to end must fit in 64 bits


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """Device events in order of their start, and the launch of each.

    Attributes:
        row: the event's row in the trace.
        launch: row of its launch; -1 where the file holds none.
        launch_ns: when the launch began on the host; MISSING where there is none.
        start_ns, end_ns: int64, on the device's clock.
        timed: False for events that were never stamped, which are kept out of extents.
        notes: unlinked work, clock skew, correlations used twice.
    """

    row: RowArray
    launch: RowArray
    launch_ns: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    timed: BoolArray
    notes: tuple[Note, ...]

    @property
    def linked(self) -> BoolArray:
        """Which of the events have their launch in the file?"""
        return self.launch >= 0


def link_device_work(trace: Trace) -> DeviceWork:
    """Join device work to launches by correlation, within the file and, where processes reuse numbers, the device.

    Never by time: device clocks were seen 30 s off. Never by External id, which is another sequence.
    """
    columns = trace.columns
    rows = trace.rows(Role.DEVICE)
    rows = rows[np.argsort(columns.start_ns[rows], kind="stable")]
    start = columns.start_ns[rows]
    timed = start != MISSING
    launches = trace.rows(Role.LAUNCH)
    launches = launches[(columns.link[launches] != MISSING) & (columns.start_ns[launches] != MISSING)]
    launch, ambiguous = _join(trace, rows, launches)
    launch_ns = np.where(launch >= 0, columns.start_ns[launch], MISSING)
    notes = _notes(trace, rows, launch, launch_ns, timed, ambiguous)
    end = np.where(timed, start + np.maximum(columns.duration_ns[rows], 0), start)
    return DeviceWork(rows, launch, launch_ns, start, end, timed, notes)


def _join(trace: Trace, rows: RowArray, launches: RowArray) -> tuple[RowArray, int]:
    """The launch of each device event, and how many events could belong to several processes' launches."""
    columns = trace.columns
    if not len(launches) or not len(rows):
        return np.full(len(rows), -1, dtype=np.intp), 0
    # Of several calls with one correlation (a runtime call around a driver call) the outermost began first, or else
    # lasted longest.
    shortness = -np.maximum(columns.duration_ns[launches], 0)
    order = np.lexsort((shortness, columns.start_ns[launches], columns.link[launches]))
    launches = launches[order]
    link = columns.link[launches]
    wanted = columns.link[rows]
    first = np.searchsorted(link, wanted)
    hit = (wanted != MISSING) & (link[np.minimum(first, len(link) - 1)] == wanted)
    launch = np.where(hit, launches[np.minimum(first, len(link) - 1)], -1)
    process = trace.lanes.process_codes()[columns.lane]
    shared = link[1:][(link[1:] == link[:-1]) & (process[launches[1:]] != process[launches[:-1]])]
    if not len(shared):
        return launch, 0
    return _by_home_process(rows, launch, launches, link, wanted, process, np.unique(shared))


def _by_home_process(
    rows: RowArray,
    launch: RowArray,
    launches: RowArray,
    link: Int64Array,
    wanted: Int64Array,
    process: Int64Array,
    shared: Int64Array,
) -> tuple[RowArray, int]:
    """Correlations that several processes use: a device's work belongs to the process that launches the rest of it."""
    unsure = np.isin(wanted, shared) & (launch >= 0)
    sure = (launch >= 0) & ~unsure
    launch = launch.copy()
    ambiguous = 0
    for device in np.unique(process[rows[unsure]]):
        own = process[launch[sure & (process[rows] == device)]]
        mine = np.flatnonzero(unsure & (process[rows] == device))
        if not len(own):
            ambiguous += len(mine)
            continue
        home = np.bincount(own).argmax()
        candidates = launches[process[launches] == home]
        candidate_link = link[process[launches] == home]
        at = np.minimum(np.searchsorted(candidate_link, wanted[mine]), len(candidates) - 1)
        launch[mine] = np.where(candidate_link[at] == wanted[mine], candidates[at], launch[mine])
    return launch, ambiguous


def _notes(
    trace: Trace, rows: RowArray, launch: RowArray, launch_ns: Int64Array, timed: BoolArray, ambiguous: int
) -> tuple[Note, ...]:
    notes = []
    columns = trace.columns
    unlinked = launch < 0
    nameless = int((unlinked & (columns.link[rows] == MISSING)).sum())
    before = int(unlinked.sum()) - nameless
    if nameless:
        text = f"{nameless:,} of {len(rows):,} device events carry no correlation: they are not attributed to steps."
        notes.append(Note("warning", "unattributed_device_work", text, nameless))
    if before:
        text = f"{before:,} of {len(rows):,} device events were launched before recording; they belong to no step."
        notes.append(Note("warning", "launched_before_recording", text, before))
    if ambiguous:
        text = "Several processes use the same correlations on one device; the earliest launch was taken."
        notes.append(Note("warning", "ambiguous_correlations", text, ambiguous))
    known = ~unlinked & timed
    if known.any():
        earliest = int((columns.start_ns[rows] - launch_ns)[known].min())
        if earliest < -_SKEW_NS:
            text = (
                f"The device's clock runs {-earliest / 1e6:,.3f} ms early: kernels start before their launch. "
                "Work is attributed by correlation."
            )
            notes.append(Note("warning", "clock_skew", text, int(known.sum())))
    return tuple(notes)


def covered_ns(start: Int64Array, end: Int64Array) -> int:
    """How long is at least one of these intervals under way? Nanoseconds; ``start`` must ascend.

    A sum would count overlapping kernels twice (up to 19 % on several streams).
    """
    if not len(start):
        return 0
    until = np.maximum.accumulate(end)
    return int(np.maximum(until - np.maximum(np.append(start[0], until[:-1]), start), 0).sum())


def union_ns(start: Int64Array, end: Int64Array, group: Int64Array, groups: int) -> Int64Array:
    """:func:`covered_ns` for each group; int64, one a group. ``group`` numbers 0..groups-1; any order."""
    busy = np.zeros(groups, dtype=np.int64)
    if not len(start):
        return busy
    order = np.lexsort((start, group))
    start, end, group = start[order], end[order], group[order]
    # Shift each group past the one before it, so that one running maximum serves all of them.
    begins = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    low = np.minimum.reduceat(start, begins)
    high = np.maximum.reduceat(end, begins)
    if (high.astype(np.float64) - low).sum() > _SHIFT_LIMIT_NS:  # times from several clocks, years apart
        ends = np.append(begins[1:], len(group))
        for number, first, last in zip(group[begins].tolist(), begins.tolist(), ends.tolist(), strict=True):
            busy[number] = covered_ns(start[first:last], end[first:last])
        return busy
    span = high - low
    shift = np.cumsum(np.append(0, span[:-1] + 1)) - low
    per_row = np.repeat(shift, np.diff(np.append(begins, len(group))))
    start, end = start + per_row, end + per_row
    covered = np.maximum.accumulate(end)
    open_until = np.append(start[0], np.maximum(covered[:-1], start[1:]))
    total = np.append(0, np.cumsum(np.maximum(covered - open_until, 0)))
    busy[group[begins]] = total[np.append(begins[1:], len(group))] - total[begins]
    return busy
