"""Where does a step's time go? Each nanosecond once: attention, products, experts, collectives, copies, idle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tracelens_infer.steps.analyze import StepAnalysis
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.steps.host_ops import host_ops
from tracelens_infer.steps.kernel_families import KernelFamily, NamedRows, named_rows
from tracelens_infer.trace.columns import Int64Array
from tracelens_infer.trace.launches import union_ns

__all__ = ["Part", "StepSplit", "step_split"]


class Part(StrEnum):
    """What takes a step's time? In the order in which overlapping work counts: computing before waiting."""

    ATTENTION = "attention"
    GEMM = "gemm"
    MOE = "moe"
    OTHER = "other"
    COPIES = "copies"
    COLLECTIVE = "collective_and_wait"  # exposed: nothing else ran; it includes the wait for the slowest rank
    IDLE = "device_idle"


_PARTS = {
    KernelFamily.ATTENTION: Part.ATTENTION,
    KernelFamily.ATTENTION_COMBINE: Part.ATTENTION,
    KernelFamily.ATTENTION_INDEX: Part.ATTENTION,
    KernelFamily.LINEAR_ATTENTION: Part.ATTENTION,
    KernelFamily.GEMM: Part.GEMM,
    KernelFamily.MOE: Part.MOE,
    KernelFamily.COPY: Part.COPIES,
    KernelFamily.COLLECTIVE: Part.COLLECTIVE,
}
_ORDER = tuple(Part)


@dataclass(frozen=True, slots=True, eq=False)
class StepSplit:
    """Where each step's time goes. One row a step.

    Attributes:
        parts_ns: int64, one column a :class:`Part`; of work that overlaps, the part that comes first in that order
            counts. A step's parts add up to ``total_ns``.
        total_ns: the step's duration; longer where its work began before the step before it had ended.
        hidden_collective_ns: time of collectives during which something else ran.
        families: the families that occur anywhere.
        family_ns: int64, one column a family: sums over kernels (without a device: over ops), which may overlap.
        unknown_ns: time of kernels that no rule knows; it is in ``other``.
        on_device: False where ops of the host were measured.
    """

    parts_ns: Int64Array
    total_ns: Int64Array
    hidden_collective_ns: Int64Array
    families: tuple[KernelFamily, ...]
    family_ns: Int64Array
    unknown_ns: Int64Array
    on_device: bool

    def part_ns(self, part: Part) -> Int64Array:
        """How long did each step spend on this part?"""
        column: Int64Array = self.parts_ns[:, _ORDER.index(part)]
        return column

    @property
    def shares(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """The parts as shares of each step, in the order of :class:`Part`; they add up to 1."""
        return np.asarray(self.parts_ns / np.maximum(self.total_ns, 1)[:, None])


def step_split(analysis: StepAnalysis, named: NamedRows | None = None) -> StepSplit:
    """Where does each step's time go? ``named`` spares a second reading of names: all device work of the steps."""
    durations = np.array([step.duration_ns for step in analysis.steps.steps], dtype=np.int64)
    if len(analysis.work.row):
        return _of_device(analysis, named, durations)
    return _of_host(analysis, durations)


def _of_device(analysis: StepAnalysis, named: NamedRows | None, durations: Int64Array) -> StepSplit:
    work, owner = analysis.work, analysis.step_work.step
    owned = np.flatnonzero((owner >= 0) & work.timed)
    rows = work.row[owned]
    named = named_rows(analysis.trace, rows) if named is None else named.of(rows)
    step, start, end = owner[owned], work.start_ns[owned], work.end_ns[owned]
    part = _part_numbers(named)
    count = len(durations)
    parts = np.zeros((count, len(_ORDER)), dtype=np.int64)
    busy = np.zeros(count, dtype=np.int64)
    for number in range(len(_ORDER) - 1):
        upto = part <= number
        covered = union_ns(start[upto], end[upto], step[upto], count)
        parts[:, number] = covered - busy
        busy = covered
    collective = part == _ORDER.index(Part.COLLECTIVE)
    alone = union_ns(start[collective], end[collective], step[collective], count)
    hidden = alone - parts[:, _ORDER.index(Part.COLLECTIVE)]
    return _split(named, step, end - start, parts, busy, durations, hidden, on_device=True)


def _of_host(analysis: StepAnalysis, durations: Int64Array) -> StepSplit:
    """Without a device: the time of ops that none of their children takes. Threads that run at once are added up."""
    ops = host_ops(analysis.trace)
    number = step_numbers(analysis.step_work.candidate, ops.start_ns)
    inside = np.flatnonzero(number >= 0)
    named = NamedRows(ops.named.row[inside], ops.named.name[inside], ops.named.names, ops.named.families)
    step, lasts = number[inside], ops.self_ns[inside]
    parts = np.zeros((len(durations), len(_ORDER)), dtype=np.int64)
    np.add.at(parts, (step, _part_numbers(named)), lasts)
    busy = parts.sum(axis=1)
    return _split(named, step, lasts, parts, busy, durations, np.zeros_like(durations), on_device=False)


def _part_numbers(named: NamedRows) -> Int64Array:
    numbers = [_ORDER.index(_PARTS.get(family, Part.OTHER)) for family in named.families]
    return np.array(numbers, dtype=np.int64)[named.name]


def _split(
    named: NamedRows,
    step: Int64Array,
    lasts_ns: Int64Array,
    parts: Int64Array,
    busy: Int64Array,
    durations: Int64Array,
    hidden: Int64Array,
    *,
    on_device: bool,
) -> StepSplit:
    idle = np.maximum(durations - busy, 0)
    parts[:, _ORDER.index(Part.IDLE)] = idle
    order = tuple(dict.fromkeys(named.families))
    place = np.array([order.index(family) for family in named.families], dtype=np.int64)
    family_ns = np.zeros((len(durations), len(order)), dtype=np.int64)
    np.add.at(family_ns, (step, place[named.name]), lasts_ns)
    unknown = order.index(KernelFamily.UNKNOWN) if KernelFamily.UNKNOWN in order else None
    unknown_ns = np.zeros_like(durations) if unknown is None else family_ns[:, unknown]
    return StepSplit(parts, busy + idle, hidden, order, family_ns, unknown_ns, on_device)
