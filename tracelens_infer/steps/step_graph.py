"""One step's host calls, launches and device work as a graph: which chain of them takes longest?"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from tracelens_infer.steps.analyze import StepAnalysis
from tracelens_infer.steps.build import GRAPH_KERNELS
from tracelens_infer.steps.call_tree import nesting
from tracelens_infer.trace.columns import MISSING, BoolArray, Int64Array, Role, RowArray, Trace, median_of
from tracelens_infer.trace.launches import covered_ns
from tracelens_infer.trace.reader import event_names
from tracelens_infer.trace.syncs import stream_waits

__all__ = ["Edge", "EdgeKind", "StepWindow", "Unit", "clock_offset_ns", "longest_path", "units_of"]

_LATEST_CLOCK_NS = 1_000_000_000
"""Where every kernel starts a second or more after its launch, the device has a clock of its own: the latest single one
began 0.49 s after it (SGLang, MI300X)."""
_SYNC_TOLERANCE_NS = 2_000  # a blocking call may seem to return so much before the work it waits for ends
_WAITED_NS = 20_000  # from the end of work to that of another stream which waits for it: 10 to 18 us (MI300X, DDP)
_LONGEST_LATENCY_NS = 100_000
"""From a launch to its kernel on an idle stream: median 7 to 14 us, 99th percentile 20 to 41 us (H100, V100 traces).
A median far beyond that is no latency: all of the step's kernels on idle streams wait for something else."""
_LONG_WAIT_FACTOR = 4  # a kernel that starts so many times later than the step's others on an idle stream waits
_BLOCKING = ("Synchronize", "cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream")


class EdgeKind(StrEnum):
    """What passes on one edge?"""

    BETWEEN = "between"  # the thread runs, but in no recorded op
    HOST = "host"
    LAUNCH_CALL = "launch call"
    LATENCY = "latency"  # from a launch to its kernel on an idle stream
    UNSEEN = "unseen"  # launched, the stream idle, and yet no start for far longer than a launch takes
    DEVICE = "device"
    BEFORE = "before"  # work of the steps before
    ORDER = "order"  # one after another: no time of its own


@dataclass(frozen=True, slots=True)
class Edge:
    """One piece of a path: what passes from ``start_ns`` on, for ``weight_ns``.

    ``row`` is the op, call or launch (for DEVICE the position of the unit), -1 where there is none.
    """

    kind: EdgeKind
    row: int
    start_ns: int
    weight_ns: int


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The step's times: on the host, and (on the host's clock) the end of all device work of the steps before."""

    first_ns: int
    last_ns: int
    before_ns: int | None


@dataclass(frozen=True, slots=True)
class Unit:
    """Device work that is one node: a kernel, or all that one launch put on one stream.

    Attributes:
        rows: of the kernels.
        launch: row of the launch; -1 where the file holds none.
        launch_ns, start_ns, end_ns: on the host's clock.
        busy_ns: while at least one of its kernels ran.
        track: number of device and stream.
        stream: the stream's number, if it is one.
    """

    rows: RowArray
    launch: int
    launch_ns: int
    start_ns: int
    end_ns: int
    busy_ns: int
    track: int
    stream: int


def clock_offset_ns(analysis: StepAnalysis) -> int:
    """How far has the device's clock to be set back, so that no kernel starts before its launch? 0 as a rule."""
    work = analysis.work
    known = work.linked & work.timed
    if not known.any():
        return 0
    earliest = int((work.start_ns - work.launch_ns)[known].min())
    return earliest if earliest < 0 or earliest > _LATEST_CLOCK_NS else 0


def units_of(analysis: StepAnalysis, index: int, offset_ns: int) -> list[Unit]:
    """The device work of one step as units, in order of their start. Graphs are one unit a stream."""
    work, trace = analysis.work, analysis.trace
    own = np.flatnonzero((analysis.step_work.step == index) & work.timed)
    if not len(own):
        return []
    lanes = trace.columns.lane[work.row[own]]
    track = trace.lanes.track_codes()[lanes]
    key = np.stack([work.launch[own], track])
    _, group, size = np.unique(key, axis=1, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    alone = (size[group] < GRAPH_KERNELS) | (work.launch[own] < 0)
    group = np.where(alone, len(size) + np.arange(len(own)), group)
    order = np.lexsort((work.start_ns[own], group))
    units = []
    for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        members = own[part]
        start, end = work.start_ns[members] - offset_ns, work.end_ns[members] - offset_ns
        launch = int(work.launch[members[0]])
        thread = trace.lanes.lanes[lanes[part[0]]].thread
        units.append(
            Unit(
                work.row[members],
                launch,
                int(work.launch_ns[members[0]]) if launch >= 0 else int(start.min()),
                int(start.min()),
                int(end.max()),
                covered_ns(start, end),
                int(track[part[0]]),
                thread if isinstance(thread, int) else -1,
            )
        )
    return sorted(units, key=lambda unit: (unit.start_ns, unit.end_ns))


def longest_path(analysis: StepAnalysis, units: list[Unit], window: StepWindow, offset_ns: int) -> list[Edge]:
    """Which chain of host calls, launches and device work takes longest? Its edges in order, empty where nothing ran.

    Edges: host calls of a thread in order, a launch to its kernel, kernels of a stream in order, waits between streams
    as the trace tells them (else as times suggest), and a blocking call to the work that it waits for.
    """
    import networkx as nx

    builder = _Builder(analysis.trace, units, window)
    graph = nx.DiGraph()
    for (tail, head), edge in builder.edges(analysis, offset_ns).items():
        graph.add_edge(tail, head, weight=edge.weight_ns, edge=edge)
    if not graph:
        return []
    nodes = nx.dag_longest_path(graph, weight="weight", default_weight=0)
    return [graph.edges[tail, head]["edge"] for tail, head in pairwise(nodes)]


_Node = tuple[str, int, int]  # kind, thread or unit, time


class _Builder:
    """Collects the edges of one step; of two between the same nodes the longer counts."""

    def __init__(self, trace: Trace, units: list[Unit], window: StepWindow) -> None:
        self.trace, self.units, self.window = trace, units, window
        self.found: dict[tuple[_Node, _Node], Edge] = {}
        self.source: _Node = ("source", 0, window.first_ns)
        before = window.first_ns if window.before_ns is None else max(window.before_ns, window.first_ns)
        self.before: _Node = ("before", 0, before)

    def add(self, tail: _Node, head: _Node, kind: EdgeKind, row: int, start_ns: int, weight_ns: int) -> None:
        known = self.found.get((tail, head))
        if known is None or known.weight_ns < weight_ns:
            self.found[tail, head] = Edge(kind, row, start_ns, max(weight_ns, 0))

    def order(self, tail: _Node, head: _Node) -> None:
        self.add(tail, head, EdgeKind.ORDER, -1, tail[2], 0)

    def edges(self, analysis: StepAnalysis, offset_ns: int) -> dict[tuple[_Node, _Node], Edge]:
        first = self.window.first_ns
        self.add(self.source, self.before, EdgeKind.BEFORE, -1, first, self.before[2] - first)
        host = _HostThreads.of(self.trace, self.window, {unit.launch for unit in self.units})
        self._host(host)
        self._device(analysis, host, offset_ns)
        return self.found

    # -- host

    def _host(self, host: _HostThreads) -> None:
        for thread, points in host.points.items():
            times, rows = points.time_ns, points.row
            self._hand_over(host, thread, times[0])
            for number, (start, end) in enumerate(pairwise(times)):
                tail, head = ("host", thread, start), ("host", thread, end)
                row = rows[number]
                if row in host.blocking and self._waits(row, start, end, head):
                    self.order(tail, head)
                elif row < 0 and thread != host.main:
                    self.order(tail, head)  # it waits for work from another thread
                    self._hand_over(host, thread, end)
                else:
                    kind = EdgeKind.BETWEEN if row < 0 else EdgeKind.HOST
                    kind = EdgeKind.LAUNCH_CALL if row in host.launching else kind
                    self.add(tail, head, kind, row, start, end - start)

    def _hand_over(self, host: _HostThreads, thread: int, at_ns: int) -> None:
        """What a thread begins was asked for by the one that drives the step."""
        if thread == host.main:
            start = self.window.first_ns
            self.add(self.source, ("host", thread, at_ns), EdgeKind.BETWEEN, -1, start, at_ns - start)
            return
        times = host.points[host.main].time_ns if host.main in host.points else []
        earlier = bisect_right(times, at_ns)
        tail = ("host", host.main, times[earlier - 1]) if earlier else self.source
        self.order(tail, ("host", thread, at_ns))

    def _waits(self, row: int, start_ns: int, end_ns: int, head: _Node) -> bool:
        """Tie a blocking call to the last work that ended before it returned. False where there is none."""
        began = int(self.trace.columns.start_ns[row])
        done = [
            (unit.end_ns, number)
            for number, unit in enumerate(self.units)
            if (unit.launch_ns < began or unit.launch == row) and unit.end_ns <= end_ns + _SYNC_TOLERANCE_NS
        ]
        if done:
            latest, number = max(done)
            self.order(("end", number, latest), head)
            return latest > start_ns or bool(self._before_ends_in(start_ns, end_ns))
        if self._before_ends_in(start_ns, end_ns):
            self.order(self.before, head)
            return True
        return False

    def _before_ends_in(self, start_ns: int, end_ns: int) -> bool:
        before = self.window.before_ns
        return before is not None and start_ns < before <= end_ns + _SYNC_TOLERANCE_NS

    # -- device

    def _device(self, analysis: StepAnalysis, host: _HostThreads, offset_ns: int) -> None:
        free_at = _free_before(analysis, self.units, offset_ns)
        last: dict[int, int] = {}
        waits = self._told_waits()
        idle = []
        for number, unit in enumerate(self.units):
            if free_at[number] <= unit.launch_ns and number not in waits:
                idle.append(unit.start_ns - unit.launch_ns)
        usual = min(int(median_of(np.array(idle))), _LONGEST_LATENCY_NS) if idle else 0
        for number, unit in enumerate(self.units):
            begin, end = ("start", number, unit.start_ns), ("end", number, unit.end_ns)
            runs = min(unit.busy_ns, unit.end_ns - max(unit.start_ns, min(free_at[number], unit.end_ns)))
            self.add(begin, end, EdgeKind.DEVICE, number, unit.start_ns, runs)
            known = last.get(unit.track)
            before = ("end", known, self.units[known].end_ns) if known is not None else self.before
            last[unit.track] = number
            self._launched(host.node_at(unit.launch), before, begin, free_at[number], usual, waits.get(number, set()))

    def _launched(
        self, launch: _Node | None, before: _Node, begin: _Node, free_at_ns: int, usual_ns: int, others: set[int]
    ) -> None:
        """Tie a unit to its launch, to the work before it on its stream, and to that of other streams it waited for."""
        unit = self.units[begin[1]]
        returned = unit.launch_ns
        if unit.launch >= 0:
            returned += max(int(self.trace.columns.duration_ns[unit.launch]), 0)
        idle = free_at_ns <= unit.launch_ns and before[2] <= unit.launch_ns
        ready = min(returned + usual_ns if idle else max(returned, free_at_ns, before[2]), unit.start_ns)
        late = unit.start_ns - ready > (_LONG_WAIT_FACTOR - 1) * usual_ns + _WAITED_NS
        if late and not others:
            others = self._seems_to_wait_for(begin[1])
        for other in others:
            self.order(("end", other, self.units[other].end_ns), begin)
        head = begin
        if late and not others:
            head = ("wait", begin[1], ready)
            self.add(head, begin, EdgeKind.UNSEEN, unit.launch, ready, unit.start_ns - ready)
        self.order(before, head)
        latency = (ready if late or others else unit.start_ns) - unit.launch_ns if idle else 0
        if launch is not None:
            self.add(launch, head, EdgeKind.LATENCY, unit.launch, unit.launch_ns, latency)

    def _told_waits(self) -> dict[int, set[int]]:
        """Unit -> units of other streams that it waits for, as the profiler tells."""
        waits = stream_waits(self.trace, self.window.first_ns, self.window.last_ns)
        found: dict[int, set[int]] = {}
        if not len(waits):
            return found
        calls = self.trace.rows(Role.LAUNCH)
        link, begun = self.trace.columns.link[calls].tolist(), self.trace.columns.start_ns[calls].tolist()
        recorded = dict(zip(link, begun, strict=True))
        columns = [column.tolist() for column in (waits.start_ns, waits.stream, waits.on_stream, waits.recorded_by)]
        for start, stream, on_stream, call in zip(*columns, strict=True):
            waiting = [n for n, unit in enumerate(self.units) if unit.stream == stream and unit.launch_ns >= start]
            at = recorded.get(call, start)
            done = [n for n, unit in enumerate(self.units) if unit.stream == on_stream and unit.launch_ns < at]
            if waiting and done:
                found.setdefault(waiting[0], set()).add(done[-1])
        return found

    def _seems_to_wait_for(self, number: int) -> set[int]:
        """The work of another stream that ended right before this began, where no launch explains the delay."""
        unit = self.units[number]
        near = [
            (other.end_ns, n)
            for n, other in enumerate(self.units)
            if other.track != unit.track
            and other.launch_ns <= unit.launch_ns
            and max(unit.launch_ns, unit.start_ns - _WAITED_NS) <= other.end_ns <= unit.start_ns
        ]
        return {max(near)[1]} if near else set()


def _free_before(analysis: StepAnalysis, units: list[Unit], offset_ns: int) -> list[int]:
    """From when on was each unit's stream free, other steps' work included?"""
    work = analysis.work
    track = analysis.trace.lanes.track_codes()[analysis.trace.columns.lane[work.row]]
    free = {}
    for number in {unit.track for unit in units}:
        first = min(unit.start_ns for unit in units if unit.track == number)
        earlier = work.timed & (track == number) & (work.start_ns - offset_ns < first)
        free[number] = int(work.end_ns[earlier].max()) - offset_ns if earlier.any() else MISSING
    found = []
    for unit in units:
        found.append(free[unit.track])
        free[unit.track] = max(free[unit.track], unit.end_ns)
    return found


@dataclass(frozen=True, slots=True)
class _Points:
    """Where a thread passes from one call to another, and (one fewer) the innermost call from each on; -1 for none."""

    time_ns: list[int]
    row: list[int]


@dataclass(frozen=True, slots=True)
class _HostThreads:
    """The threads of one step: ``main`` launches most; ``blocking`` and ``launching`` are rows of calls."""

    points: dict[int, _Points]
    main: int
    blocking: frozenset[int]
    launching: frozenset[int]
    starts: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, trace: Trace, window: StepWindow, launching: set[int]) -> _HostThreads:
        columns = trace.columns
        rows = trace.rows(Role.HOST_OP, Role.LAUNCH)
        start, duration = columns.start_ns[rows], columns.duration_ns[rows]
        inside = (start < window.last_ns) & (start + duration > window.first_ns) & (start != MISSING) & (duration >= 0)
        rows = rows[inside]
        process = trace.lanes.process_codes()[columns.lane[rows]]
        owners = np.isin(rows, np.array(sorted(launching), dtype=np.intp))
        if owners.any():
            rows = rows[process == np.bincount(process[owners]).argmax()]
        track = trace.lanes.track_codes()[columns.lane[rows]]
        calls = rows[trace.lanes.roles[columns.lane[rows]] == Role.LAUNCH]
        heavy = track[np.isin(rows, np.array(sorted(launching), dtype=np.intp))]
        heavy = heavy if len(heavy) else track
        main = int(np.bincount(heavy).argmax()) if len(heavy) else -1
        points = {number: _points(trace, rows[track == number], window) for number in np.unique(track).tolist()}
        starts = {
            row: (number, at)
            for row, number, at in zip(rows.tolist(), track.tolist(), columns.start_ns[rows].tolist(), strict=True)
            if row in launching
        }
        return cls(points, main, frozenset(_blocking(trace, calls)), frozenset(launching), starts)

    def node_at(self, launch: int) -> _Node | None:
        """The moment at which a launch begins."""
        if launch not in self.starts:
            return None
        thread, at = self.starts[launch]
        return ("host", thread, at)


def _blocking(trace: Trace, calls: RowArray) -> list[int]:
    names = event_names(trace, calls) if len(calls) else {}
    return [row for row, name in names.items() if name in _BLOCKING or name.endswith(_BLOCKING[0])]


def _points(trace: Trace, rows: RowArray, window: StepWindow) -> _Points:
    start, duration = trace.columns.start_ns[rows], trace.columns.duration_ns[rows]
    order = np.lexsort((-duration, start))
    rows = rows[order]
    end = np.minimum(start[order] + np.maximum(duration[order], 1), window.last_ns)
    start = np.maximum(start[order], window.first_ns)
    parent, _, end = nesting(start, end)
    times = np.unique(np.append(start, end))
    return _Points(times.tolist(), innermost_rows(rows, start, end, parent, times[:-1]).tolist())


def innermost_rows(
    rows: RowArray, start: Int64Array, end: Int64Array, parent: Int64Array, times: Int64Array
) -> RowArray:
    """Which of some nested spans was the innermost at each time? Rows, -1 where none was under way."""
    at = np.searchsorted(start, times, side="right") - 1
    over: BoolArray = (at >= 0) & (end[at] <= times)
    while over.any():
        at[over] = parent[at[over]]
        over = (at >= 0) & (end[at] <= times)
    return np.where(at >= 0, rows[at], -1)
