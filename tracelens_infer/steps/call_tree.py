"""What calls what on the host, and how much device work does each call bring about? From the columns alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tracelens_infer.trace.columns import MISSING, BoolArray, Int64Array, Role, RowArray, Trace
from tracelens_infer.trace.launches import DeviceWork

__all__ = ["CallTree", "build_call_tree", "nesting"]

_HOST_ROLES = (Role.ANNOTATION, Role.PYTHON, Role.HOST_OP)
"""Launches call nothing: their work counts for the span in which they lie."""

_ROUNDING_NS = 2
"""Start and duration are rounded apart: of two spans in a row the first may seem to end as much into the second."""

_MAIN_SHARE = 0.02
"""A thread that launches less of the work than this drives no steps: helpers copy, poll and write checkpoints."""


@dataclass(frozen=True, slots=True)
class CallTree:
    """The host spans of the thread that drives the steps, outer before inner, in order of time.

    Work that other threads of the process launch (autograd's, a copy helper's) counts for the call of this thread
    that was under way; their frames, some of which last as long as the trace, are nobody's ancestors.

    Attributes:
        row: the events' rows in the trace.
        start_ns, end_ns: a span never outlasts its parent.
        parent: position of the parent in these arrays; -1 for the outermost.
        depth: 0 for the outermost.
        past: position behind the last descendant.
        weight_ns: device time brought about in a span and below it; host op time where no device work is linked.
        kernels: device events (ops) likewise.
        on_device: what the weight is.
    """

    row: RowArray
    start_ns: Int64Array
    end_ns: Int64Array
    parent: Int64Array
    depth: Int64Array
    past: Int64Array
    weight_ns: Int64Array
    kernels: Int64Array
    on_device: bool

    def __len__(self) -> int:
        return len(self.row)

    @property
    def total_ns(self) -> int:
        """How much work is there under all of the outermost spans?"""
        return int(self.weight_ns[self.parent < 0].sum())

    @property
    def self_ns(self) -> Int64Array:
        """How much of a span's weight belongs to none of its children?"""
        below = np.zeros(len(self), dtype=np.int64)
        inner = self.parent >= 0
        np.add.at(below, self.parent[inner], self.weight_ns[inner])
        return self.weight_ns - below

    def children(self, position: int) -> Int64Array:
        """Which spans lie directly below this one (-1: are outermost)? Positions in order of time."""
        if position < 0:
            return np.flatnonzero(self.parent < 0)
        inside = self.parent[position + 1 : self.past[position]]
        return np.flatnonzero(inside == position) + position + 1

    def outermost(self, is_wanted: BoolArray) -> Int64Array:
        """Which of the wanted spans lie in no other wanted one? Positions; ``is_wanted`` has one entry a span."""
        covered = np.zeros(len(self) + 1, dtype=np.int64)
        np.add.at(covered, np.flatnonzero(is_wanted) + 1, 1)
        np.add.at(covered, self.past[is_wanted], -1)
        return np.flatnonzero(is_wanted & (np.cumsum(covered)[:-1] == 0))

    def innermost(self, times_ns: Int64Array) -> Int64Array:
        """Which span was being executed at each time? -1 where none was."""
        at = np.searchsorted(self.start_ns, times_ns, side="right") - 1
        over = (at >= 0) & (self.end_ns[at] <= times_ns)
        while over.any():
            at[over] = self.parent[at[over]]
            over = (at >= 0) & (self.end_ns[at] <= times_ns)
        return at


def build_call_tree(trace: Trace, work: DeviceWork) -> CallTree:
    """What calls what on the thread that drives the steps? Empty where the host left no trace."""
    rows = trace.rows(*_HOST_ROLES)
    rows = rows[(trace.columns.start_ns[rows] != MISSING) & (trace.columns.duration_ns[rows] >= 0)]
    on_device = bool(work.linked.any())
    process = trace.lanes.process_codes()[trace.columns.lane]
    track = trace.lanes.track_codes()[trace.columns.lane]
    bearing, weight = _work_of_rows(trace, work, rows, on_device=on_device)
    main = _main_track(trace, rows, bearing, weight, process, track)
    own = rows[track[rows] == main]
    order, start, end = _in_order(trace, own)
    row = own[order]
    parent, depth, end = nesting(start, end)
    past = np.searchsorted(start, end, side="left")
    past = np.maximum(past, np.arange(len(row)) + 1)
    tree = CallTree(row, start, end, parent, depth, past, start, start, on_device)
    home = process[row[0]] if len(row) else -1
    return _weighed(trace, tree, bearing[process[bearing] == home], weight[process[bearing] == home])


def nesting(start: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The parent and depth of each span, and its end, clipped to the parent's. Sorted by start, longer ones first."""
    # Spans that began before this one, less those that had ended by then, are its ancestors.
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, side="right")
    parent = _parents(depth)
    if not ((parent >= 0) & (end > end[parent])).any():
        return parent, depth, end
    # Writers round to a microsecond, which pushes ends past each other: a span that outlasts its caller is cut short
    # before the next one looks for its own caller, so one after the other.
    parent, end = _stacked(start.tolist(), end.tolist())
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, side="right")
    return parent, depth, end


def _stacked(starts: list[int], ends: list[int]) -> tuple[Int64Array, Int64Array]:
    """Parents and clipped ends by a stack of open spans; a fifth of a second for a million."""
    parents = []
    open_spans, open_until = [-1], [np.iinfo(np.int64).max]
    for number, start in enumerate(starts):
        while open_until[-1] <= start:
            open_until.pop()
            open_spans.pop()
        parents.append(open_spans[-1])
        if ends[number] > open_until[-1]:
            ends[number] = open_until[-1]
        open_spans.append(number)
        open_until.append(ends[number])
    return np.array(parents, dtype=np.int64), np.array(ends, dtype=np.int64)


def _parents(depth: Int64Array) -> Int64Array:
    """The last span before each that lies one level higher."""
    deepest = int(depth.max(initial=0))
    # 16 bits: a radix sort. Recursion goes deeper than that only in traces that somebody made up.
    order = np.argsort(depth.astype(np.int16 if deepest <= np.iinfo(np.int16).max else np.int64), kind="stable")
    levels = np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)
    parent = np.full(len(depth), -1)
    for above, level in pairwise(levels):
        at = np.searchsorted(above, level) - 1
        parent[level] = np.where(at >= 0, above[at], -1)
    return parent


def _in_order(trace: Trace, rows: RowArray) -> tuple[RowArray, Int64Array, Int64Array]:
    """The order by start, longer spans first, with starts and ends; a span lasts at least a nanosecond."""
    start = trace.columns.start_ns[rows]
    duration = trace.columns.duration_ns[rows]
    order = np.argsort(start, kind="stable")
    ordered = start[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if len(tied):
        among = order[tied]
        order[tied] = among[np.lexsort((-duration[among], start[among]))]
    ordered = start[order]
    return order, ordered, ordered + np.maximum(duration[order] - _ROUNDING_NS, 1)


def _work_of_rows(trace: Trace, work: DeviceWork, rows: RowArray, *, on_device: bool) -> tuple[RowArray, Int64Array]:
    """Which rows bring about work themselves, and how much? Launches; else ops, nested ones included."""
    if on_device:
        linked = work.linked & work.timed
        return work.launch[linked], (work.end_ns - work.start_ns)[linked]
    ops = trace.lanes.roles[trace.columns.lane[rows]] == Role.HOST_OP
    return rows[ops], np.maximum(trace.columns.duration_ns[rows[ops]], 1)


def _main_track(
    trace: Trace, rows: RowArray, bearing: RowArray, weight: Int64Array, process: Int64Array, track: Int64Array
) -> int:
    """Of the threads that launch a fair share of the heaviest process's work, the one that is there the longest.

    In training autograd's thread may launch more than the main one, but begins after it and ends before it.
    """
    if not len(bearing):
        return int(np.bincount(track[rows]).argmax()) if len(rows) else -1
    home = np.bincount(process[bearing], weights=weight).argmax()
    at_home = process[bearing] == home
    shares = np.bincount(track[bearing[at_home]], weights=weight[at_home])
    best, longest = -1, -1
    for candidate in np.flatnonzero(shares >= _MAIN_SHARE * shares.sum()).tolist():
        own = rows[track[rows] == candidate]
        if not len(own):
            continue  # it only launches
        start = trace.columns.start_ns[own]
        extent = int((start + trace.columns.duration_ns[own]).max() - start.min())
        if extent > longest:
            best, longest = candidate, extent
    return best


def _weighed(trace: Trace, tree: CallTree, bearing: RowArray, weight: Int64Array) -> CallTree:
    """Add each row's work to the span of the main thread in which it happened and to all that enclose that."""
    own_weight, own_count = np.zeros(len(tree) + 1, dtype=np.int64), np.zeros(len(tree) + 1, dtype=np.int64)
    if not len(tree):
        return tree
    if tree.on_device:
        position = tree.innermost(trace.columns.start_ns[bearing])
    else:
        roles = trace.lanes.roles[trace.columns.lane[tree.row]]
        position = tree.outermost(roles == Role.HOST_OP)
        weight = (tree.end_ns - tree.start_ns)[position]
    inside = position >= 0
    np.add.at(own_weight, position[inside] + 1, weight[inside])
    np.add.at(own_count, position[inside] + 1, 1)
    up_to, count_to = np.cumsum(own_weight), np.cumsum(own_count)
    number = np.arange(len(tree))
    return CallTree(
        tree.row,
        tree.start_ns,
        tree.end_ns,
        tree.parent,
        tree.depth,
        tree.past,
        up_to[tree.past] - up_to[number],
        count_to[tree.past] - count_to[number],
        tree.on_device,
    )
