"""Everything that runs, in the order in which the host asked for it, and what of it recurs once an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tracelens_infer.steps.call_tree import CallTree
from tracelens_infer.steps.folding import folded
from tracelens_infer.steps.periodicity import LEAST_REPEATS, symbol_codes
from tracelens_infer.steps.recurrence import Level, find_levels, step_level
from tracelens_infer.trace.columns import MISSING, BoolArray, Int64Array, Role, RowArray, Trace
from tracelens_infer.trace.launches import DeviceWork
from tracelens_infer.trace.reader import event_names

__all__ = ["SAMPLE", "Sequence", "has_optimizer", "level_of", "longest_waits", "op_sequence", "stretches"]

SAMPLE = 120_000
"""Symbols in which the level is looked for; a step has up to some thousand, and a hundred steps show their level."""
_SAMPLE_REPEATS = 12  # fewer than this in the sample, and the whole sequence is looked at

_FORWARD_OPS = frozenset({"aten::embedding", "aten::argmax", "aten::multinomial"})
"""A forward of a language model looks its tokens up once and picks the next ones once, whatever its layers do. Models
with several embeddings make the bound that follows from it looser, not wrong."""
_OPTIMIZER = "Optimizer.step#"
"""torch labels each call of an optimizer like this: one a training step, however many micro-batches that has."""
_GRAPH_KERNELS = 5  # of one launch: a graph, in which ops do not show; other launches were seen to own two at most
_CERTAIN = 2  # forwards: up to here no partial one more, at the edge of the recording, is allowed for


@dataclass(frozen=True, slots=True)
class Sequence:
    """Everything that runs, in the order in which the host asked for it.

    Attributes:
        row: the events' rows.
        codes: equal names, equal numbers.
        start_ns, end_ns: on the clock of the boundaries (for device work: when it was launched).
        idle_ns: for how long nothing had been under way before each. The device does not count: it idles or works ahead
            of the host, so that its rest does not tell where the host began.
        can_begin: is it a span at which an iteration can begin?
        pieces: of work (kernels; ops, without a device) that it stands for.
        is_once: is it something that an iteration runs once, by what is known of models?
        is_optimizer: is it an optimizer's call, with which a training step ends?
    """

    row: RowArray
    codes: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    idle_ns: Int64Array
    can_begin: BoolArray
    pieces: Int64Array
    is_once: BoolArray
    is_optimizer: BoolArray

    def part(self, begin: int, end: int) -> Sequence:
        """The sequence between two positions."""
        parts = (getattr(self, name)[begin:end] for name in self.__slots__)
        return Sequence(*parts)

    def middle(self) -> Sequence:
        """The part in which the level of a long sequence is looked for; of a short one all."""
        begin = max(0, (len(self.row) - SAMPLE) // 2)
        return self.part(begin, begin + SAMPLE)

    @property
    def most_iterations(self) -> int | None:
        """How many iterations are there at most, by what is known of models? None where nothing is known."""
        codes = self.codes[self.is_once]
        if not len(codes):
            return None
        most = int(np.bincount(codes).max())
        return most if most <= _CERTAIN else most + 1


def level_of(sequence: Sequence) -> Level | None:
    """The level of the steps, looked for in the middle of a long sequence and then followed through all of it."""
    if len(sequence.row) > SAMPLE:
        sample = sequence.middle()
        level = _level(sample)
        if level is not None and level.count >= _SAMPLE_REPEATS:
            whole = _followed(sequence.codes, sample.codes, level)
            if whole is not None:
                return whole
    return _level(sequence)


def _level(sequence: Sequence) -> Level | None:
    levels = find_levels(sequence.codes, sequence.is_once)
    ended = [level for level in levels if has_optimizer(sequence, level) and level.count >= LEAST_REPEATS]
    if ended:  # what is coarser are epochs, or stretches between two evaluations
        return max(ended, key=lambda level: level.count)
    return step_level(levels, lambda level: max(longest_waits(sequence, level)), sequence.most_iterations)


def has_optimizer(sequence: Sequence, level: Level) -> bool:
    """Does each of the level's iterations call an optimizer once?"""
    return any(bool(sequence.is_optimizer[marks].all()) for marks in level.positions)


def _followed(codes: Int64Array, sample: Int64Array, level: Level) -> Level | None:
    """The same symbols in the whole sequence; None where too few of them are single symbols."""
    symbols = sample[level.positions[:, 0]]
    kept = []
    count = None
    for symbol in symbols.tolist():
        if (sample == symbol).sum() != level.count:
            continue  # it was the pair that occurred once
        at = np.flatnonzero(codes == symbol)
        count = len(at) if count is None else count
        if len(at) == count:
            kept.append(at)
    if len(kept) < 2:
        return None
    positions = np.array(kept)
    return Level(
        positions[np.argsort(positions[:, 0], kind="stable")], level.regularity, level.has_layers, level.is_layer
    )


def op_sequence(trace: Trace, work: DeviceWork, tree: CallTree, *, most: int | None = None) -> Sequence:
    """Labels and outermost ops of the main thread, and the device work of all threads, in host order.

    ``most``: only so many from the middle, of which alone names are then read.
    """
    roles = trace.lanes.roles[trace.columns.lane[tree.row]]
    is_label = roles == Role.ANNOTATION
    tops = np.union1d(tree.outermost(roles == Role.HOST_OP), np.flatnonzero(is_label))
    used = work.linked & work.timed
    order = np.argsort(work.launch_ns[used], kind="stable")  # a launch's kernels stay in order of their start
    kernels, launches, asked = work.row[used][order], work.launch[used][order], work.launch_ns[used][order]
    row = np.append(tree.row[tops], kernels)
    marker = np.append(tree.row[tops], launches)
    start = np.append(tree.start_ns[tops], asked)
    end = np.append(tree.end_ns[tops], asked)
    # Work that was launched outside of any op can begin an iteration itself.
    bare = tree.innermost(asked) < 0 if len(tree) else np.ones(len(kernels), dtype=np.bool_)
    can_begin = np.append(np.ones(len(tops), dtype=np.bool_), bare)
    # An op that lasts and runs nothing (a data loader) is a wait.
    waits = np.where((tree.weight_ns[tops] > 0) | is_label[tops], 0, (tree.end_ns - tree.start_ns)[tops])
    waits = np.append(waits, np.zeros(len(kernels), dtype=np.int64))
    pieces = np.where(is_label[tops] | tree.on_device, 0, tree.kernels[tops])
    pieces = np.append(pieces, np.ones(len(kernels), dtype=np.int64))
    merged = np.argsort(start, kind="stable")
    if most is not None and len(merged) > most:
        begin = (len(merged) - most) // 2
        merged = merged[begin : begin + most]
    start, can_begin = start[merged], can_begin[merged]
    names = _names(trace, row[merged])
    codes = symbol_codes(names)
    idle = np.where(can_begin, _host_idle(trace, start) + waits[merged], 0)
    has_graphs = bool(len(launches) and np.bincount(launches).max() >= _GRAPH_KERNELS)
    distinct = list(dict.fromkeys(names))
    is_optimizer = np.array([name.startswith(_OPTIMIZER) for name in distinct], dtype=np.bool_)
    is_once = is_optimizer
    if not is_optimizer.any() and not has_graphs:
        is_once = np.array([name in _FORWARD_OPS for name in distinct], dtype=np.bool_)
    return Sequence(
        marker[merged], codes, start, end[merged], idle, can_begin, pieces[merged], is_once[codes], is_optimizer[codes]
    )


def _names(trace: Trace, rows: RowArray) -> list[str]:
    names = event_names(trace, np.unique(rows)) if len(rows) else {}
    labels = trace.labels  # numbered, as a rule: no two alike
    return [folded(names[one]) if one in labels else names[one] for one in rows.tolist()]


def _host_idle(trace: Trace, times_ns: Int64Array) -> Int64Array:
    """For how long had no op or call been under way, on any thread, and no label begun, when each of these began?"""
    rows = trace.rows(Role.HOST_OP, Role.LAUNCH, Role.ANNOTATION)
    start = trace.columns.start_ns[rows]
    known = start != MISSING
    start, rows = start[known], rows[known]
    order = np.argsort(start, kind="stable")
    start = start[order]
    is_label = trace.lanes.roles[trace.columns.lane[rows[order]]] == Role.ANNOTATION
    lasts = np.where(is_label, 0, np.maximum(trace.columns.duration_ns[rows[order]], 0))
    until = np.maximum.accumulate(start + lasts)
    before = np.searchsorted(start, times_ns, side="left") - 1
    return np.where(before >= 0, np.maximum(times_ns - until[before], 0), 0)


def stretches(level: Level) -> list[tuple[Int64Array, Int64Array]]:
    """From one landmark to the next, (before, after]; the first stretch leads over from the repeat before."""
    marks = level.positions
    return [(np.append(-1, marks[-1][:-1]), marks[0]), *pairwise(marks)]


def longest_waits(sequence: Sequence, level: Level) -> list[float]:
    """The longest wait in each of the stretches, as a rule; negative where no iteration can begin in it."""
    idle = np.append(np.where(sequence.can_begin, sequence.idle_ns, -1), -1)
    waits = []
    for before, after in stretches(level):
        sound = after > before  # a pair of symbols may lie where the next symbol does
        bounds = np.column_stack((before + 1, after + 1))[sound].ravel()
        longest = np.full(len(before), -1)
        if len(bounds):
            longest[sound] = np.maximum.reduceat(idle, bounds)[::2]
        waits.append(float(np.median(longest)))
    return waits
