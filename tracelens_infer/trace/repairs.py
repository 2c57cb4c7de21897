"""Known faults of recorded times, mended in the columns: one named function each, and a Note for what it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.trace.columns import (
    MISSING,
    BoolArray,
    ClippedDuration,
    EventColumns,
    Int64Array,
    Role,
    RowArray,
    Trace,
)

__all__ = ["OVERLONG_FACTOR", "repair"]

OVERLONG_FACTOR = 1000
"""A device event is impossible when it lasts this many medians of its stream and runs past the end of the next one.

ROCm was seen to report 1.6 s for kernels of some 10 us (factor 160,000); a genuine collective that overlaps its
neighbours on one track was seen at a factor below 100."""

_HASH_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], dtype=np.uint64
)


_LONG_BEFORE_NS = 3_600_000_000_000  # an hour; no trace is as long
_BLOCK_ROWS = 1 << 17


def repair(trace: Trace, notes: Sequence[Note]) -> Trace:
    """Which events have times that cannot be, and what is to be done about each? ``notes`` come first in the result."""
    kept = list(notes)
    repairs = (_pair_begin_and_end, _drop_duplicates, _clamp_negative, _count_missing, _count_zero, _clip_overlong)
    for step in repairs:
        trace, found = step(trace)
        kept += found
    return replace(trace, notes=(*trace.notes, *kept), extent_ns=_extent_ns(trace))


_Step = Callable[[Trace], tuple[Trace, list[Note]]]


def _extent_ns(trace: Trace) -> tuple[int, int]:
    """When the first event starts and the last one ends, block by block: copies of whole columns would be large."""
    columns = trace.columns
    counts = (trace.lanes.roles != Role.METADATA)[columns.lane]
    counts[trace.dropped] = False
    first, last = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for begin in range(0, len(columns), _BLOCK_ROWS):
        block = slice(begin, begin + _BLOCK_ROWS)
        start = columns.start_ns[block]
        timed = counts[block] & (start != MISSING)
        if timed.any():
            start = start[timed]
            first = min(first, int(start.min()))
            last = max(last, int((start + np.maximum(columns.duration_ns[block][timed], 0)).max()))
    return (first, last) if first <= last else (0, 0)


def _pair_begin_and_end(trace: Trace) -> tuple[Trace, list[Note]]:
    """A "B" event lasts until the "E" event that closes it on the same track: the next one at the same depth."""
    columns = trace.columns
    begins, ends = _rows_of_phase(trace, "B"), _rows_of_phase(trace, "E")
    count = len(begins) + len(ends)
    if not count:
        return trace, []
    rows = np.concatenate([begins, ends])
    opens = np.concatenate([np.ones(len(begins), np.int64), -np.ones(len(ends), np.int64)])
    timed = columns.start_ns[rows] != MISSING
    rows, opens = rows[timed], opens[timed]
    track = trace.lanes.track_codes()[columns.lane[rows]]
    order = np.lexsort((rows, columns.start_ns[rows], track))
    rows, opens, track = rows[order], opens[order], track[order]
    depth = np.cumsum(opens) - (opens > 0)  # of a begin and of the end that closes it alike
    by_depth = np.lexsort((np.arange(len(rows)), depth, track))
    rows, opens, track, depth = rows[by_depth], opens[by_depth], track[by_depth], depth[by_depth]
    paired = np.flatnonzero((opens[:-1] > 0) & (opens[1:] < 0) & (track[:-1] == track[1:]) & (depth[:-1] == depth[1:]))
    begin, end = rows[paired], rows[paired + 1]
    duration = columns.duration_ns.copy()
    duration[begin] = columns.start_ns[end] - columns.start_ns[begin]
    notes = []
    if count > 2 * len(paired):
        text = "Begin and end events without their counterpart last no time."
        notes.append(Note("warning", "unpaired_begin_end", text, count - 2 * len(paired)))
    partners = dict(zip(begin.tolist(), end.tolist(), strict=True))
    return replace(trace, columns=replace(columns, duration_ns=duration), partners=partners), notes


def _rows_of_phase(trace: Trace, phase: str) -> RowArray:
    lanes = np.array([lane.phase == phase for lane in trace.lanes.lanes], dtype=np.bool_)
    return np.flatnonzero(lanes[trace.columns.lane]) if lanes.any() else np.zeros(0, dtype=np.intp)


def _drop_duplicates(trace: Trace) -> tuple[Trace, list[Note]]:
    """Events that stand twice in the file, to the letter, count once. Metadata may repeat: profilers write it twice.

    Two end events may well be equal, when nested frames end at once: they are duplicates only with their begin events.
    """
    columns = trace.columns
    key = _row_hash(columns)
    # Sorting the hashes alone is several times faster than sorting rows; most traces end here.
    ordered = np.sort(key)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return trace, []
    candidates = np.flatnonzero(np.isin(key, twice) & (trace.lanes.roles != Role.METADATA)[columns.lane])
    if not len(candidates):
        return trace, []
    duplicates = _equal_events(trace, candidates)
    if not len(duplicates):
        return trace, []
    dropped = set(duplicates.tolist())
    labels = {row: label for row, label in trace.labels.items() if row not in dropped}
    partners = {begin: end for begin, end in trace.partners.items() if begin not in dropped}
    text = "Events that stand in the file twice were dropped."
    note = Note("warning", "exact_duplicates", text, len(duplicates))
    return replace(trace, dropped=duplicates, labels=labels, partners=partners), [note]


def _row_hash(columns: EventColumns) -> Any:  # noqa: ANN401 - uint64
    """Equal rows have equal hashes; rows that collide by chance are told apart by their texts."""
    key: Any = columns.start_ns.view(np.uint64) * _HASH_FACTORS[0]
    key += columns.duration_ns.view(np.uint64) * _HASH_FACTORS[1]
    key += columns.link.view(np.uint64) * _HASH_FACTORS[2]
    key += columns.lane.astype(np.uint64) * _HASH_FACTORS[3]
    return key


def _equal_events(trace: Trace, candidates: RowArray) -> RowArray:
    """Rows of events that stood earlier in the file already."""
    lanes = trace.lanes.lanes
    one_of_two = np.array([lane.phase in ("B", "E") for lane in lanes], dtype=np.bool_)[trace.columns.lane[candidates]]
    digests = _digests(trace, candidates)
    seen: set[bytes] = set()
    duplicates = []
    for row, is_half in zip(candidates.tolist(), one_of_two.tolist(), strict=True):
        end = trace.partners.get(row) if is_half else None
        if is_half and end not in digests:
            continue  # an end event, or one that was not paired
        digest = digests[row] if end is None else digests[row] + digests[end]
        if digest in seen:
            duplicates += [row] if end is None else [row, end]
        seen.add(digest)
    return np.array(sorted(duplicates), dtype=np.intp)


def _digests(trace: Trace, rows: RowArray) -> dict[int, bytes]:
    """Row -> a hash of its text: the texts themselves would hold a whole file that stands there twice."""
    from hashlib import blake2b

    from tracelens_infer.trace.reader import iter_slice_events

    bounds = trace.slices.first_row
    holds = np.searchsorted(rows, bounds[1:]) > np.searchsorted(rows, bounds[:-1])
    return {
        row: blake2b(part.text(row), digest_size=16).digest()
        for part in iter_slice_events(trace, lambda number: bool(holds[number]))
        for row in part.among(rows)
    }


def _clamp_negative(trace: Trace) -> tuple[Trace, list[Note]]:
    """Rounding in the profiler gives durations of -1; time does not run backwards."""
    duration = trace.columns.duration_ns
    negative = np.flatnonzero((duration < 0) & (duration != MISSING))
    if not len(negative):
        return trace, []
    clamped = duration.copy()
    clamped[negative] = 0
    trace = replace(trace, columns=replace(trace.columns, duration_ns=clamped))
    counted = len(negative) - int(np.isin(negative, trace.dropped).sum())
    text = "Negative durations were read as 0."
    return trace, [Note("warning", "negative_durations", text, counted)] if counted else []


def _count_zero(trace: Trace) -> tuple[Trace, list[Note]]:
    """Events at time 0 that is long before all others were never stamped: they have no place in any extent.

    A trace whose own clock begins at 0 is left as it is.
    """
    columns = trace.columns
    at_zero = np.flatnonzero((columns.start_ns == 0) & (trace.lanes.roles != Role.METADATA)[columns.lane])
    if not len(at_zero):
        return trace, []
    later = columns.start_ns[columns.start_ns > 0]
    if not len(later) or later.min() < _LONG_BEFORE_NS:
        return trace, []
    start = columns.start_ns.copy()
    start[at_zero] = MISSING
    text = "Events at time 0, long before all others, are kept out of extents and busy times."
    return replace(trace, columns=replace(columns, start_ns=start)), [Note("warning", "zero_times", text, len(at_zero))]


def _clip_overlong(trace: Trace) -> tuple[Trace, list[Note]]:
    """ROCm reports durations that run far past the next slices of their stream; they end where the next one begins."""
    columns = trace.columns
    rows = trace.rows(Role.DEVICE)
    rows = rows[columns.start_ns[rows] != MISSING]
    if len(rows) < 3:
        return trace, []
    track = trace.lanes.track_codes()[columns.lane[rows]]
    order = np.argsort(columns.start_ns[rows], kind="stable")  # nearly sorted as it is: several times a lexsort's speed
    order = order[np.argsort(track[order], kind="stable")]
    rows, track = rows[order], track[order]
    start, duration = columns.start_ns[rows], np.maximum(columns.duration_ns[rows], 0)
    limit = OVERLONG_FACTOR * np.maximum(_median_by_group(track, duration), 1)
    suspect = duration > limit
    next_start = np.roll(start, -1)
    # Past the end of the next event that is none of the suspects: two of them may follow each other. The last one of
    # its stream is followed by none.
    sound_end = _next_of_group(track, start + duration, ~suspect)
    overlong = suspect & (start + duration > sound_end)
    if not overlong.any():
        return trace, []
    clipped = columns.duration_ns.copy()
    clipped[rows[overlong]] = (next_start - start)[overlong]
    before = sum(duration.tolist())  # of Python's integers: impossible durations may well add up to more than 64 bits
    after = before - sum(duration[overlong].tolist()) + sum(clipped[rows[overlong]].tolist())
    text = (
        "Impossible device durations were clipped to the start of the next event on their stream; "
        f"device time {before / 1e6:,.3f} ms as recorded, {after / 1e6:,.3f} ms clipped."
    )
    listed = {int(row): ClippedDuration(int(columns.duration_ns[row]), int(clipped[row])) for row in rows[overlong]}
    trace = replace(trace, columns=replace(columns, duration_ns=clipped), clipped=listed)
    return trace, [Note("warning", "clipped_durations", text, len(listed))]


def _median_by_group(group: Int64Array, values: Int64Array) -> Int64Array:
    """The median of the positive values of each row's group, 0 where there are none; ``group`` is sorted."""
    order = np.lexsort((values, group))
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    size = np.diff(np.append(first, len(group)))
    positive = np.add.reduceat((values > 0).astype(np.int64), first)
    middle = first + size - positive + positive // 2
    medians = np.where(positive > 0, values[order][np.minimum(middle, first + size - 1)], 0)
    return np.repeat(medians, size)


def _next_of_group(group: Int64Array, values: Int64Array, counts: BoolArray) -> Int64Array:
    """The value of the next row of the same group that ``counts``; the largest number where none follows."""
    rows = np.arange(len(group))
    following = np.minimum.accumulate(np.where(counts, rows, len(rows))[::-1])[::-1]
    following = np.append(following[1:], len(rows))
    inside = np.minimum(following, len(rows) - 1)
    found = (following < len(rows)) & (group[inside] == group)
    return np.where(found, values[inside], np.iinfo(np.int64).max)


def _count_missing(trace: Trace) -> tuple[Trace, list[Note]]:
    """Events without a start belong nowhere; those without a duration last no time, as far as is known."""
    notes = []
    complete = np.array([lane.phase == "X" for lane in trace.lanes.lanes], dtype=np.bool_)[trace.columns.lane]
    complete[trace.dropped] = False
    unstamped = int(np.count_nonzero((trace.columns.start_ns == MISSING) & complete))
    if unstamped:
        text = "Events without a start time belong to no step, nor does the work that they launched or labelled."
        notes.append(Note("warning", "missing_times", text, unstamped))
    missing = trace.columns.duration_ns == MISSING
    missing[trace.dropped] = False
    count = int(np.count_nonzero(missing))
    if count:
        text = "Events without a duration: their end is not known."
        notes.append(Note("warning", "missing_durations", text, count))
    return trace, notes
