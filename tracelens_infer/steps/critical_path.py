"""What bounds one step: the host, launching, the device, or collectives? And which step is typical of its kind?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tracelens_infer.errors import UsageError
from tracelens_infer.notes import Note
from tracelens_infer.steps.analyze import StepAnalysis
from tracelens_infer.steps.call_tree import nesting
from tracelens_infer.steps.kernel_families import KernelFamily, NamedRows, named_rows
from tracelens_infer.steps.step import GraphMode, Step, StepKind
from tracelens_infer.steps.step_graph import (
    Edge,
    EdgeKind,
    StepWindow,
    Unit,
    clock_offset_ns,
    innermost_rows,
    longest_path,
    units_of,
)
from tracelens_infer.trace.columns import Int64Array, Role, RowArray, Trace
from tracelens_infer.trace.launches import covered_ns
from tracelens_infer.trace.reader import event_names

__all__ = ["Bound", "Contributor", "CriticalPath", "PathSegment", "PathSource", "critical_path", "median_step"]

_TOP = 10  # contributors; a step has dozens of kinds of kernels, the first few hold most of the time
_BETWEEN = "host, between recorded calls"
_UNSEEN = "launched, but waits for what the trace does not show"
_IDLE_IN_GRAPH = "gaps between the graph's kernels"


class Bound(StrEnum):
    """What does a step wait for?"""

    HOST = "host"  # the engine and the framework
    LAUNCH = "launch"  # calls that launch, and the time from a launch to its kernel
    DEVICE = "device"
    COLLECTIVE = "collective"  # and the wait for the slowest rank in it
    UNKNOWN = "unknown"  # nothing ran, or what the device did is not in the trace


class PathSource(StrEnum):
    """How was a step's critical path found?"""

    LONGEST_PATH = "longest path"  # through host calls, launches and device work
    LAUNCH_GAP = "launch gap"  # of a step that replays one graph: idle before it against the graph's own time


@dataclass(frozen=True, slots=True)
class PathSegment:
    """One piece of the path: what the step waited for from ``start_ns`` on (the host's clock), and how long."""

    name: str
    bound: Bound
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Contributor:
    """How much of the path goes to everything of one name? ``share`` is of the path's length, 0 to 1."""

    name: str
    bound: Bound
    duration_ns: int
    share: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """What bounds a step?

    Attributes:
        step: its index.
        bound_by: what most of the path is.
        source: how the path was found.
        length_ns: of all segments; at most the step's duration, as waiting is not counted.
        host_ns, launch_ns, device_ns, collective_ns: the path's parts.
        unknown_ns: what is left: work was launched and its stream was idle, and yet it did not begin.
        contributors: the names that take most of it, the longest first.
        segments: the path in order; neighbours of one name are one.
        notes: what could not be seen.
    """

    step: int
    bound_by: Bound
    source: PathSource
    length_ns: int
    host_ns: int
    launch_ns: int
    device_ns: int
    collective_ns: int
    unknown_ns: int
    contributors: tuple[Contributor, ...]
    segments: tuple[PathSegment, ...]
    notes: tuple[Note, ...] = ()


def critical_path(analysis: StepAnalysis, index: int) -> CriticalPath:
    """What bounds this step, and what takes most of its time?

    The path begins where the work of the steps before ends: what the host prepares while the device is still busy
    costs nothing. A step that replays one graph is answered from the gap before the graph; for others the longest path
    through host calls, launches and device work is taken. Raises UsageError where there is no such step.
    """
    steps = analysis.steps.steps
    if not 0 <= index < len(steps):
        raise UsageError(f"step {index}", f"The trace has steps 0 to {len(steps) - 1}.", "Give one of those.")
    step = steps[index]
    offset = clock_offset_ns(analysis)
    units = units_of(analysis, index, offset)
    known = _end_of_earlier(analysis, index, offset)
    notes = [_unseen(index)] if units and known is None else []
    if len(analysis.work.row) and not (analysis.step_work.step >= 0).any():
        text = "No device work could be attributed to a step: the path shows the host's part alone."
        notes.append(Note("warning", "device_work_unattributed", text, 1))
    # A first step's duration is its device work's extent, for the same reason.
    before = units[0].start_ns if units and known is None else known
    if step.graph is GraphMode.FULL and units:
        segments, fine = _by_launch_gap(analysis.trace, units, before or 0)
        return _path(index, PathSource.LAUNCH_GAP, segments, fine, notes)
    first = min([step.host_start_ns, *(unit.launch_ns for unit in units), *([] if known is None else [known])])
    # What the host does after the last launch is on no path to the end of the device's work.
    last = max(unit.launch_ns + 1 for unit in units) if units else step.host_start_ns + step.duration_ns
    edges = longest_path(analysis, units, StepWindow(first, last, before), offset)
    segments, fine = _segments(analysis.trace, units, edges, before)
    unseen = sum(segment.duration_ns for segment in segments if segment.bound is Bound.UNKNOWN)
    if unseen:
        notes.append(_waited(index, unseen))
    return _path(index, PathSource.LONGEST_PATH, segments, fine, notes)


def median_step(steps: Iterable[Step], kind: StepKind) -> int | None:
    """Which step of this kind takes as long as half of them do? Its index, the lower of two; None where none is.

    A first step without one before it counts only where there is no other: its duration is shorter than it felt.
    """
    own = [step for step in steps if step.kind is kind]
    timed = [step for step in own if step.duration_from not in ("device_extent", "host_span")] or own
    if not timed:
        return None
    ordered = sorted(timed, key=lambda step: (step.duration_ns, step.index))
    return ordered[(len(ordered) - 1) // 2].index


def _end_of_earlier(analysis: StepAnalysis, index: int, offset_ns: int) -> int | None:
    work, owner = analysis.work, analysis.step_work.step
    earlier = (owner >= 0) & (owner < index) & work.timed
    return int(work.end_ns[earlier].max()) - offset_ns if earlier.any() else None


def _unseen(index: int) -> Note:
    text = f"What the device did before step {index} was not recorded: idle time before its first kernel is unknown."
    return Note("info", "device_before_step_unknown", text, 1)


def _waited(index: int, unseen_ns: int) -> Note:
    text = (
        f"For {unseen_ns / 1e6:,.3f} ms of step {index} launched work did not begin although its stream was idle: work "
        "that was launched before recording, on another stream or by another process held it up."
    )
    return Note("warning", "unseen_device_wait", text, 1)


def _path(
    index: int,
    source: PathSource,
    segments: list[PathSegment],
    named: list[PathSegment],
    notes: Iterable[Note] = (),
) -> CriticalPath:
    """Sums over the segments; ``named`` are the pieces that contributors are made of, if finer than those."""
    taken = dict.fromkeys(Bound, 0)
    for segment in segments:
        taken[segment.bound] += segment.duration_ns
    length = sum(taken.values())
    bound = max(taken, key=lambda one: taken[one]) if length else Bound.UNKNOWN
    sums: dict[tuple[str, Bound], int] = {}
    for segment in named:
        key = (segment.name, segment.bound)
        sums[key] = sums.get(key, 0) + segment.duration_ns
    top = sorted(sums.items(), key=lambda item: -item[1])[:_TOP]
    return CriticalPath(
        index,
        bound,
        source,
        length,
        taken[Bound.HOST],
        taken[Bound.LAUNCH],
        taken[Bound.DEVICE],
        taken[Bound.COLLECTIVE],
        taken[Bound.UNKNOWN],
        tuple(Contributor(name, kind, spent, spent / length) for (name, kind), spent in top if spent),
        tuple(_merged(segments)),
        tuple(notes),
    )


def _merged(segments: Iterable[PathSegment]) -> list[PathSegment]:
    merged: list[PathSegment] = []
    for segment in segments:
        if not segment.duration_ns:
            continue
        if merged and (merged[-1].name, merged[-1].bound) == (segment.name, segment.bound):
            before = merged.pop()
            segment = PathSegment(
                segment.name, segment.bound, before.start_ns, before.duration_ns + segment.duration_ns
            )
        merged.append(segment)
    return merged


# -- from the graph


def _segments(
    trace: Trace, units: list[Unit], edges: list[Edge], before: int | None
) -> tuple[list[PathSegment], list[PathSegment]]:
    """The edges that lie after the steps before, and the same with graphs by kernel names."""
    edges = [edge for edge in edges if edge.kind not in (EdgeKind.ORDER, EdgeKind.BEFORE) and edge.weight_ns]
    on_host = [edge.row for edge in edges if edge.kind is not EdgeKind.DEVICE and edge.row >= 0]
    names = event_names(trace, np.unique(np.array(on_host, dtype=np.intp))) if on_host else {}
    frames = _frames(trace, [edge for edge in edges if edge.kind is EdgeKind.BETWEEN])
    kernels = _kernels(trace, units, [edge.row for edge in edges if edge.kind is EdgeKind.DEVICE])
    segments: list[PathSegment] = []
    fine: list[PathSegment] = []
    for edge in edges:
        start, end = edge.start_ns, edge.start_ns + edge.weight_ns
        start = start if before is None else max(start, before)
        if end <= start:
            continue
        if edge.kind is EdgeKind.DEVICE:
            runs, parts = _running(trace, kernels[edge.row], units[edge.row].busy_ns, start, end)
            segments += runs
            fine += parts
            continue
        if edge.kind is EdgeKind.UNSEEN:
            name, bound = _UNSEEN, Bound.UNKNOWN
        elif edge.kind is EdgeKind.LATENCY:
            name, bound = f"from {names.get(edge.row, 'launch')} to its kernel", Bound.LAUNCH
        elif edge.kind is EdgeKind.LAUNCH_CALL:
            name, bound = names.get(edge.row, "launch"), Bound.LAUNCH
        else:
            name, bound = names.get(edge.row) or frames.get(edge.start_ns, _BETWEEN), Bound.HOST
        segments.append(PathSegment(name, bound, start, end - start))
        fine.append(segments[-1])
    return segments, fine


def _kernels(trace: Trace, units: list[Unit], numbers: list[int]) -> dict[int, NamedRows]:
    """Unit -> its kernels with names, all of them read at once."""
    if not numbers:
        return {}
    named = named_rows(trace, np.concatenate([units[number].rows for number in numbers]))
    ends = np.cumsum([len(units[number].rows) for number in numbers]).tolist()
    found = {}
    for number, end in zip(numbers, ends, strict=True):
        part = slice(end - len(units[number].rows), end)
        found[number] = NamedRows(named.row[part], named.name[part], named.names, named.families)
    return found


def _frames(trace: Trace, gaps: list[Edge]) -> dict[int, str]:
    """Start of a gap -> the innermost Python frame at its middle, where stacks were recorded."""
    rows = trace.rows(Role.PYTHON)
    if not len(rows) or not gaps:
        return {}
    start, duration = trace.columns.start_ns[rows], trace.columns.duration_ns[rows]
    middle = np.array(sorted(edge.start_ns + edge.weight_ns // 2 for edge in gaps), dtype=np.int64)
    near = (start <= middle[-1]) & (start + duration > middle[0])
    rows, start, duration = rows[near], start[near], duration[near]
    track = trace.lanes.track_codes()[trace.columns.lane[rows]]
    launches = trace.rows(Role.LAUNCH, Role.HOST_OP)
    home = trace.lanes.track_codes()[trace.columns.lane[launches]]
    if len(home):  # frames of the thread that calls most, not of a helper that sleeps through the trace
        own = track == np.bincount(home).argmax()
        rows, start, duration = rows[own], start[own], duration[own]
    order = np.lexsort((-duration, start))
    rows, start = rows[order], start[order]
    parent, _, end = nesting(start, start + np.maximum(duration[order], 1))
    middles = np.array([edge.start_ns + edge.weight_ns // 2 for edge in gaps], dtype=np.int64)
    inner = innermost_rows(rows, start, end, parent, middles)
    names = event_names(trace, np.unique(inner[inner >= 0]))
    return {edge.start_ns: names[row] for edge, row in zip(gaps, inner.tolist(), strict=True) if row >= 0}


# -- from the gap before a graph


def _by_launch_gap(trace: Trace, units: list[Unit], at: int) -> tuple[list[PathSegment], list[PathSegment]]:
    """Idle time before each piece of device work against its own time: one graph owns most of the step's kernels.

    While the device idles, the step waits for the host until the next launch begins, and for the launch from then on.
    """
    segments: list[PathSegment] = []
    fine: list[PathSegment] = []
    launches = [unit.launch for unit in units if unit.launch >= 0]
    calls = event_names(trace, np.unique(np.array(launches, dtype=np.intp))) if launches else {}
    kernels = _kernels(trace, units, list(range(len(units))))
    for number, unit in enumerate(units):
        if unit.start_ns > at:
            launched = min(max(unit.launch_ns, at), unit.start_ns)
            call = calls.get(unit.launch) or "launch"
            gap = [
                PathSegment(f"host, before {call}", Bound.HOST, at, launched - at),
                PathSegment(f"from {call} to its kernel", Bound.LAUNCH, launched, unit.start_ns - launched),
            ]
            segments += gap
            fine += gap
        if unit.end_ns > at:
            runs, parts = _running(trace, kernels[number], unit.busy_ns, max(at, unit.start_ns), unit.end_ns)
            segments += runs
            fine += parts
            at = unit.end_ns
    return segments, fine


def _running(
    trace: Trace, kernels: NamedRows, busy_ns: int, start_ns: int, end_ns: int
) -> tuple[list[PathSegment], list[PathSegment]]:
    """A unit's time between two moments: exposed collectives apart; and the same by kernel names.

    Kernels that run at once share the time that they take together.
    """
    length = end_ns - start_ns
    duration = np.maximum(trace.columns.duration_ns[kernels.row], 0)
    together = kernels.is_any(KernelFamily.COLLECTIVE)
    exposed = min(_covered(trace, kernels.row) - _covered(trace, kernels.row[~together]), length)
    if len(kernels.row) == 1:
        bound = Bound.COLLECTIVE if exposed else Bound.DEVICE
        alone = [PathSegment(kernels.names[int(kernels.name[0])], bound, start_ns, length)]
        return alone, alone
    name = f"graph of {len(kernels.row)} kernels"
    segments = [
        PathSegment(name, Bound.DEVICE, start_ns, length - exposed),
        PathSegment(f"collectives in a {name}", Bound.COLLECTIVE, end_ns - exposed, exposed),
    ]
    busy = min(busy_ns, length)
    parts = [PathSegment(_IDLE_IN_GRAPH, Bound.DEVICE, start_ns, length - busy)]
    for kind, own, spent in ((Bound.DEVICE, ~together, busy - exposed), (Bound.COLLECTIVE, together, exposed)):
        total = int(duration[own].sum())
        by_name = np.zeros(len(kernels.names), dtype=np.int64)
        np.add.at(by_name, kernels.name[own], duration[own])
        for number in np.flatnonzero(by_name).tolist():
            share = round(spent * int(by_name[number]) / total)
            parts.append(PathSegment(kernels.names[number], kind, start_ns, share))
    return segments, parts


def _covered(trace: Trace, rows: RowArray) -> int:
    start: Int64Array = trace.columns.start_ns[rows]
    order = np.argsort(start, kind="stable")
    return covered_ns(start[order], (start + np.maximum(trace.columns.duration_ns[rows], 0))[order])
