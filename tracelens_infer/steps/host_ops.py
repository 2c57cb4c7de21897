"""Which ops ran on the host, and which family of work does each count for?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracelens_infer.steps.call_tree import nesting
from tracelens_infer.steps.kernel_families import KernelFamily, NamedRows, is_wrapper, named_rows
from tracelens_infer.trace.columns import MISSING, Int64Array, Role, RowArray, Trace

__all__ = ["HostOps", "host_ops"]


@dataclass(frozen=True, slots=True)
class HostOps:
    """Every op of the host with the family it counts for: the outermost one that is known, wrappers excepted.

    A wrapper's own name counts only for the time that none of the ops in it takes. Families of ``named`` are those of
    the ops, so that :func:`family_times` of ``self_ns`` gives each nanosecond of each thread once.

    Attributes:
        named: the ops, thread by thread, in order of time, outer before inner.
        start_ns, end_ns: when each ran; no op outlasts its parent.
        self_ns: the part of an op that lies in none of its children.
        parent: position of the op around it; -1 for the outermost.
        past: position behind the last op within it.
    """

    named: NamedRows
    start_ns: Int64Array
    end_ns: Int64Array
    self_ns: Int64Array
    parent: Int64Array
    past: Int64Array

    def outermost(self, *families: KernelFamily) -> Int64Array:
        """Which ops of these families lie in no other of them? Positions."""
        wanted = self.named.is_any(*families)
        depth = np.zeros(len(wanted) + 1, dtype=np.int64)
        np.add.at(depth, np.flatnonzero(wanted) + 1, 1)
        np.add.at(depth, self.past[wanted], -1)
        return np.flatnonzero(wanted & (np.cumsum(depth)[:-1] == 0))

    def within(self, value_ns: Int64Array) -> Int64Array:
        """How much of a value is in each op and all below it? int64, one an op."""
        total = np.append(0, np.cumsum(value_ns))
        inside: Int64Array = total[self.past] - total[: len(self.past)]
        return inside


def host_ops(trace: Trace) -> HostOps:
    """Which ops ran on the host, and which family does each count for?

    Without a device the ops' own times are what there is to measure: attention that is a custom op around a kernel op
    around views counts once, as a whole.
    """
    rows = trace.rows(Role.HOST_OP)
    rows = rows[(trace.columns.start_ns[rows] != MISSING) & (trace.columns.duration_ns[rows] >= 0)]
    parts = list(_by_thread(trace, rows))
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return HostOps(named_rows(trace, rows), none, none, none, none, none)
    row, start, end, parent, depth, past = (np.concatenate(column) for column in zip(*parts, strict=True))
    below = np.zeros(len(row), dtype=np.int64)
    inner = parent >= 0
    np.add.at(below, parent[inner], (end - start)[inner])
    named = _counted_for(named_rows(trace, row), parent, depth)
    return HostOps(named, start, end, end - start - below, parent, past)


def _by_thread(trace: Trace, rows: RowArray) -> Iterator[tuple[Int64Array, ...]]:
    """The call stacks of each thread: row, start, end, parent, depth and past, numbered on from thread to thread."""
    track = trace.lanes.track_codes()[trace.columns.lane[rows]]
    so_far = 0
    for number in np.unique(track).tolist():
        own = rows[track == number]
        start, duration = trace.columns.start_ns[own], trace.columns.duration_ns[own]
        order = np.lexsort((-duration, start))
        start = start[order]
        parent, depth, end = nesting(start, start + np.maximum(duration[order], 1))
        past = np.maximum(np.searchsorted(start, end, side="left"), np.arange(len(own)) + 1)
        yield own[order], start, end, np.where(parent >= 0, parent + so_far, -1), depth, past + so_far
        so_far += len(own)


def _counted_for(named: NamedRows, parent: Int64Array, depth: Int64Array) -> NamedRows:
    """The ops with the families they count for. Names that count for several families appear once for each."""
    order = list(KernelFamily)
    unknown = order.index(KernelFamily.UNKNOWN)
    own = np.array([order.index(family) for family in named.families], dtype=np.int64)[named.name]
    wraps = np.array([is_wrapper(name) for name in named.names], dtype=np.bool_)[named.name]
    family, claims = own.copy(), (own != unknown) & ~wraps
    for level in range(1, int(depth.max(initial=0)) + 1):
        at = np.flatnonzero(depth == level)
        above = parent[at]
        inherits = claims[above] | (own[at] == unknown)
        family[at] = np.where(inherits, family[above], own[at])
        claims[at] = claims[above] | claims[at]
    code, name = np.unique(named.name * len(order) + family, return_inverse=True)
    names = tuple(named.names[number] for number in (code // len(order)).tolist())
    return NamedRows(named.row, name, names, tuple(order[number] for number in (code % len(order)).tolist()))
