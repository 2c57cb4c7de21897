"""Which events belong to a range of steps? Found once for a trace, then looked up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens_infer.steps.build import StepWork
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.trace.columns import MISSING, BoolArray, Int64Array, Role, RowArray, Trace
from tracelens_infer.trace.launches import DeviceWork

__all__ = ["Retention", "StepMembers", "members_of", "retention"]

_LEAD_NS = 1_000  # a label on the device's track may start up to 1 us before its first kernel
_HOST_FLOW = "fwdbwd"  # links forward ops to backward ops; its ids are another sequence than correlations


@dataclass(frozen=True, slots=True)
class StepMembers:
    """Every event that belongs to a step, sorted by step: ``rows[first[i]:first[i + 1]]`` are those of step i.

    ``enclosing`` are frames longer than a step, with ``enclosing_start_ns`` and ``enclosing_end_ns``; ``begin_ns`` and
    ``end_ns`` are each step's own, on the host.
    """

    rows: RowArray
    first: Int64Array
    enclosing: RowArray
    enclosing_start_ns: Int64Array
    enclosing_end_ns: Int64Array
    begin_ns: Int64Array
    end_ns: Int64Array

    def rows_of(self, first: int, last: int, *, enclosing: bool = False) -> RowArray:
        """The rows of steps first..last-1, in file order; with ``enclosing`` the frames around all of them, too.

        A frame that lies across a step's end, but within the range, belongs to the range.
        """
        rows = self.rows[self.first[first] : self.first[last]]
        begin, end = self.begin_ns[first], self.end_ns[last - 1]
        starts, ends = self.enclosing_start_ns, self.enclosing_end_ns
        within = (starts >= begin) & (ends <= end)
        if enclosing:
            within |= (starts <= begin) & (ends >= end)
        return np.sort(np.append(rows, self.enclosing[within]))


def members_of(trace: Trace, work: DeviceWork, step_work: StepWork, *, gap_fill: bool = True) -> StepMembers:
    """Assign events to steps: host events by their start, device events by their launch, flows by their launch.

    With ``gap_fill`` each step owns the whole tile up to the next one, so that nothing between the first and the last
    is lost; without, only its labelled span. An event longer than its tile encloses steps; it belongs to none.
    """
    candidate = step_work.candidate
    columns, roles = trace.columns, trace.lanes.roles
    present = np.ones(len(columns), dtype=np.bool_)
    present[trace.dropped] = False
    owner = np.full(len(columns), -1, dtype=np.int64)
    spans_only = not gap_fill
    # Device events: by the step of their launch.
    device_step = step_work.step
    if spans_only:
        times = work.start_ns if candidate.on_device else work.launch_ns
        device_step = np.where(device_step >= 0, step_numbers(candidate, times, spans_only=True), -1)
    owner[work.row] = device_step
    if candidate.on_device:
        # The host's clock says nothing about labels of the device: only the launches of a step's work go with it.
        launched = (device_step >= 0) & work.linked
        owner[work.launch[launched]] = device_step[launched]
        enclosing = np.zeros(0, dtype=np.intp)
    else:
        enclosing = _assign_host(trace, step_work, owner, present, spans_only=spans_only)
    _assign_flows(trace, owner, present)
    _assign_device_labels(trace, work, device_step, owner, len(candidate.boundaries))
    for begin, end in trace.partners.items():
        owner[end] = owner[begin]
    chosen = np.flatnonzero((owner >= 0) & present & (roles != Role.METADATA)[columns.lane])
    order = np.argsort(owner[chosen], kind="stable")
    rows = chosen[order]
    first = np.searchsorted(owner[rows], np.arange(len(candidate.boundaries) + 1))
    # An event that was written as a begin and an end is both of them.
    begun = enclosing[np.isin(enclosing, np.array(list(trace.partners), dtype=np.intp))]
    ended = np.array([trace.partners[row] for row in begun.tolist()], dtype=np.intp)
    timed_by = np.append(enclosing, begun)
    return StepMembers(
        rows,
        first.astype(np.int64),
        np.append(enclosing, ended),
        columns.start_ns[timed_by],
        columns.start_ns[timed_by] + np.maximum(columns.duration_ns[timed_by], 0),
        np.array([boundary.start_ns for boundary in candidate.boundaries], dtype=np.int64),
        np.array([boundary.tile_end_ns for boundary in candidate.boundaries], dtype=np.int64),
    )


def _assign_host(
    trace: Trace, step_work: StepWork, owner: Int64Array, present: BoolArray, *, spans_only: bool
) -> RowArray:
    """Host events of every thread by their start; returns those that are too long to belong to one step."""
    columns, candidate = trace.columns, step_work.candidate
    not_host = [Role.DEVICE, Role.DEVICE_ANNOTATION, Role.FLOW_START, Role.FLOW_END, Role.METADATA, Role.END]
    host_lane = np.isin(trace.lanes.roles, [int(role) for role in not_host], invert=True)
    rows = np.flatnonzero(host_lane[columns.lane] & present & (columns.start_ns != MISSING))
    tile = step_numbers(candidate, columns.start_ns[rows])
    step = step_numbers(candidate, columns.start_ns[rows], spans_only=True) if spans_only else tile
    tiles = np.array([b.tile_end_ns - b.start_ns for b in candidate.boundaries], dtype=np.int64)
    duration = np.maximum(columns.duration_ns[rows], 0)
    long = duration > np.where(tile >= 0, tiles[tile], int(tiles.min()))
    marks = np.zeros(len(columns), dtype=np.bool_)
    marks[[boundary.row for boundary in candidate.boundaries if boundary.row >= 0]] = True
    launches = (trace.lanes.roles == Role.LAUNCH)[columns.lane[rows]]  # their work is in the step: so are they
    long &= ~launches
    fits = (step >= 0) & (~long | marks[rows])
    owner[rows] = np.where(fits, step, -1)
    return rows[long & ~marks[rows]]


def _assign_flows(trace: Trace, owner: Int64Array, present: BoolArray) -> None:
    """Arrows from a launch to its work go with the launch; arrows between host ops with both of their ends."""
    columns = trace.columns
    lanes = trace.lanes.lanes
    host_flow = np.array([lane.category == _HOST_FLOW for lane in lanes], dtype=np.bool_)
    flows = trace.rows(Role.FLOW_START, Role.FLOW_END)
    if not len(flows):
        return
    arrows = flows[~host_flow[columns.lane[flows]] & (columns.link[flows] != MISSING)]
    linked = trace.rows(Role.LAUNCH, Role.DEVICE)
    linked = linked[(owner[linked] >= 0) & (columns.link[linked] != MISSING)]
    if len(linked) and len(arrows):
        linked = linked[np.argsort(columns.link[linked], kind="stable")]
        link = columns.link[linked]
        at = np.minimum(np.searchsorted(link, columns.link[arrows]), len(link) - 1)
        owner[arrows] = np.where(link[at] == columns.link[arrows], owner[linked[at]], -1)
    _assign_host_flows(trace, owner, flows[host_flow[columns.lane[flows]]])


def _assign_host_flows(trace: Trace, owner: Int64Array, flows: RowArray) -> None:
    """An arrow between two ops belongs to a step when both ends lie at ops of it."""
    if not len(flows):
        return
    columns = trace.columns
    ops = trace.rows(Role.HOST_OP, Role.ANNOTATION)
    ops = ops[np.argsort(columns.start_ns[ops], kind="stable")]
    if not len(ops):
        return
    at = np.maximum(np.searchsorted(columns.start_ns[ops], columns.start_ns[flows], side="right") - 1, 0)
    step = owner[ops[at]]
    order = np.argsort(columns.link[flows], kind="stable")
    link = columns.link[flows][order]
    first = np.flatnonzero(np.append(True, link[1:] != link[:-1]))
    low, high = np.minimum.reduceat(step[order], first), np.maximum.reduceat(step[order], first)
    size = np.diff(np.append(first, len(link)))
    whole = np.where((low == high) & (size > 1), low, -1)
    owner[flows[order]] = np.repeat(whole, size)


def _assign_device_labels(
    trace: Trace, work: DeviceWork, device_step: Int64Array, owner: Int64Array, count: int
) -> None:
    """Labels on the device's tracks go with the first work of a step that begins in them."""
    labels = trace.rows(Role.DEVICE_ANNOTATION)
    owned = np.flatnonzero((device_step >= 0) & work.timed)
    if not len(labels) or not len(owned):
        return
    starts = work.start_ns[owned]  # DeviceWork is sorted by start
    label_start = trace.columns.start_ns[labels]
    label_end = label_start + np.maximum(trace.columns.duration_ns[labels], 0)
    at = np.searchsorted(starts, label_start - _LEAD_NS)
    inside = (at < len(starts)) & (starts[np.minimum(at, len(starts) - 1)] <= label_end)
    owner[labels] = np.where(inside, device_step[owned[np.minimum(at, len(starts) - 1)]], -1)


@dataclass(frozen=True, slots=True)
class Retention:
    """Of the linked device events launched between the first and the last step: how many are in a step, how often?"""

    linked_between: int
    in_steps: int
    duplicated: int

    @property
    def share(self) -> float | None:
        """The share that is kept; None where there are none to keep."""
        return self.in_steps / self.linked_between if self.linked_between else None


def retention(row_count: int, work: DeviceWork, step_work: StepWork, members: StepMembers) -> Retention:
    """Is any linked device event between the first and the last of a trace's steps lost, or in two of them?"""
    boundaries = step_work.candidate.boundaries
    times = work.start_ns if step_work.candidate.on_device else work.launch_ns
    between = (times >= boundaries[0].start_ns) & (times < boundaries[-1].tile_end_ns)
    if not step_work.candidate.on_device:
        between &= work.linked
    kept = np.zeros(row_count, dtype=np.bool_)
    kept[members.rows] = True
    duplicated = len(members.rows) - int(kept.sum())
    return Retention(int(between.sum()), int(kept[work.row[between]].sum()), duplicated)
