"""Where do the iterations begin in the sequence of ops? For traces without stacks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tracelens_infer.steps.call_tree import CallTree
from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.detect_call_tree import LEAST_WORK, folded, tiled
from tracelens_infer.steps.periodicity import LEAST_REPEATS, symbol_codes
from tracelens_infer.steps.recurrence import Level, find_levels, step_level
from tracelens_infer.trace.columns import MISSING, BoolArray, Int64Array, Role, RowArray, Trace
from tracelens_infer.trace.launches import DeviceWork
from tracelens_infer.trace.reader import event_names

__all__ = ["Sequence", "cut_positions", "foreign_share", "last_ends", "level_of", "objection", "top_level_candidates"]

_FOREIGN_SHARE = 0.1
"""Layers lie between an embedding and a head, which occur in none of them: as much of a repeat, outside of them, in
symbols that no repeat holds. What lies before and after steps is cut-off steps, which consist of the same symbols."""

_SAMPLE = 120_000
"""Symbols in which the level is looked for; a step has up to some thousand, and a hundred steps show their level."""
_SAMPLE_REPEATS = 12  # fewer than this in the sample, and the whole sequence is looked at

_FIRM_SHARE = 0.5
"""When as many of the cuts lie equally far from the next (last) landmark, the others are moved there."""


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
    """

    row: RowArray
    codes: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    idle_ns: Int64Array
    can_begin: BoolArray
    pieces: Int64Array

    def part(self, begin: int, end: int) -> Sequence:
        """The sequence between two positions."""
        parts = (getattr(self, name)[begin:end] for name in self.__slots__)
        return Sequence(*parts)


def top_level_candidates(trace: Trace, work: DeviceWork, tree: CallTree) -> list[Candidate]:
    """Which op begins each iteration? The level of recurrence of ops and kernels, cut where all rest the longest."""
    sequence = _sequence(trace, work, tree)
    level = level_of(sequence)
    if level is None:
        return []
    cuts = cut_positions(sequence, level)
    if len(cuts) < 2:
        return []
    ends = last_ends(sequence, cuts, level)
    boundaries = tiled(sequence.row[cuts], sequence.start_ns[cuts], ends)
    first = sequence.row[cuts[:1]]
    label = folded(event_names(trace, first)[int(first[0])])
    return [Candidate(f"top_level:{label}", boundaries, span_share=1.0, rejected=objection(sequence, level))]


def objection(sequence: Sequence, level: Level) -> str:
    """What speaks against the level being that of the steps? Empty: nothing."""
    anchor = level.positions[0]
    up_to = np.append(0, np.cumsum(sequence.pieces))
    if float(np.median(np.diff(up_to[anchor]))) < LEAST_WORK:
        return f"fewer than {LEAST_WORK} pieces of work in a repeat"
    if not level.has_layers and foreign_share(sequence.codes, anchor) > _FOREIGN_SHARE:
        return "what lies around the repeats is none of them: they are the layers of one step"
    return ""


def foreign_share(codes: Int64Array, anchor: Int64Array) -> float:
    """How much work is of a kind that repeats do not hold? The larger of two shares.

    Of a repeat: what lies around all of them and is in none. Of all repeats: what only a single one holds, which is
    what lies between the layers of two steps.
    """
    width = int(codes.max()) + 1
    part = codes[anchor[0] : anchor[-1]]
    segment = np.searchsorted(anchor, np.arange(anchor[0], anchor[-1]), side="right")
    held_by = np.bincount(np.unique(segment * width + part) % width, minlength=width)
    around = np.append(codes[: anchor[0]], codes[anchor[-1] :])
    outside = float((held_by[around] == 0).sum() / np.median(np.diff(anchor)))
    lonely = float((held_by[part] == 1).mean()) if len(anchor) > LEAST_REPEATS else 0.0
    return max(outside, lonely)


def level_of(sequence: Sequence) -> Level | None:
    """The level of the steps, looked for in the middle of a long sequence and then followed through all of it."""
    codes = sequence.codes
    if len(codes) > _SAMPLE:
        begin = (len(codes) - _SAMPLE) // 2
        sample = sequence.part(begin, begin + _SAMPLE)
        level = step_level(find_levels(sample.codes), lambda level: max(_waits(sample, level)))
        if level is not None and level.count >= _SAMPLE_REPEATS:
            whole = _followed(codes, sample.codes, level)
            if whole is not None:
                return whole
    return step_level(find_levels(codes), lambda level: max(_waits(sequence, level)))


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


def _sequence(trace: Trace, work: DeviceWork, tree: CallTree) -> Sequence:
    """Labels and outermost ops of the main thread, and the device work of all threads, in host order."""
    roles = trace.lanes.roles[trace.columns.lane[tree.row]]
    is_label = roles == Role.ANNOTATION
    tops = np.union1d(tree.outermost(roles == Role.HOST_OP), np.flatnonzero(is_label))
    used = work.linked & work.timed
    order = np.argsort(work.launch_ns[used], kind="stable")  # a launch's kernels stay in order of their start
    kernels = work.row[used][order]
    row = np.append(tree.row[tops], kernels)
    marker = np.append(tree.row[tops], work.launch[used][order])
    start = np.append(tree.start_ns[tops], work.launch_ns[used][order])
    end = np.append(tree.end_ns[tops], work.launch_ns[used][order])
    # Work that was launched outside of any op can begin an iteration itself.
    bare = tree.innermost(work.launch_ns[used][order]) < 0 if len(tree) else np.ones(len(kernels), dtype=np.bool_)
    can_begin = np.append(np.ones(len(tops), dtype=np.bool_), bare)
    # An op that lasts and runs nothing (a data loader) is a wait.
    waits = np.where((tree.weight_ns[tops] > 0) | is_label[tops], 0, (tree.end_ns - tree.start_ns)[tops])
    waits = np.append(waits, np.zeros(len(kernels), dtype=np.int64))
    pieces = np.where(is_label[tops] | tree.on_device, 0, tree.kernels[tops])
    pieces = np.append(pieces, np.ones(len(kernels), dtype=np.int64))
    merged = np.argsort(start, kind="stable")
    row, start, end, can_begin = row[merged], start[merged], end[merged], can_begin[merged]
    marker = marker[merged]
    names = event_names(trace, np.unique(row)) if len(row) else {}
    labels = trace.labels  # numbered, as a rule: no two alike
    codes = symbol_codes([folded(names[one]) if one in labels else names[one] for one in row.tolist()])
    idle = _host_idle(trace, start) + waits[merged]
    return Sequence(marker, codes, start, end, np.where(can_begin, idle, 0), can_begin, pieces[merged])


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


def cut_positions(sequence: Sequence, level: Level) -> Int64Array:
    """Where does each iteration begin? Between which two landmarks the wait is longest, and where between them."""
    waits = _waits(sequence, level)
    before, after = _regions(level)[int(np.argmax(waits))]
    idle = np.where(sequence.can_begin, sequence.idle_ns, -1)
    cuts = np.full(len(before), -1)
    for number, (low, high) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
        stretch = idle[low + 1 : high + 1]
        if len(stretch) and stretch.max() >= 0:
            cuts[number] = low + 1 + int(stretch.argmax())
    firm = _firm(sequence, cuts, before, after)
    return np.unique(firm[firm >= 0])


def _regions(level: Level) -> list[tuple[Int64Array, Int64Array]]:
    """The stretches from one landmark to the next, (before, after]; the first leads over from the repeat before."""
    marks = level.positions
    return [(np.append(-1, marks[-1][:-1]), marks[0]), *pairwise(marks)]


def _waits(sequence: Sequence, level: Level) -> list[float]:
    """The longest wait in each of the stretches, as a rule; negative where no iteration can begin in it."""
    idle = np.append(np.where(sequence.can_begin, sequence.idle_ns, -1), -1)
    waits = []
    for before, after in _regions(level):
        sound = after > before  # a pair of symbols may lie where the next symbol does
        bounds = np.column_stack((before + 1, after + 1))[sound].ravel()
        longest = np.full(len(before), -1)
        if len(bounds):
            longest[sound] = np.maximum.reduceat(idle, bounds)[::2]
        waits.append(float(np.median(longest)))
    return waits


def _firm(sequence: Sequence, cuts: Int64Array, before: Int64Array, after: Int64Array) -> Int64Array:
    """The cuts, those that stand alone moved: most lie equally far from one of the landmarks."""
    known = cuts >= 0
    best_share, best = 0.0, cuts
    for landmark in (after, before):
        away = (cuts - landmark)[known & (landmark >= 0)]
        if not len(away):
            continue
        values, times = np.unique(away, return_counts=True)
        share = float(times.max() / len(away))
        if share > best_share:
            usual = landmark + int(values[times.argmax()])
            fits = (usual > before) & (usual <= after) & (landmark >= 0)
            fits &= sequence.can_begin[np.clip(usual, 0, len(sequence.row) - 1)]
            best_share, best = share, np.where(fits, usual, cuts)
    return best if best_share >= _FIRM_SHARE else cuts


def last_ends(sequence: Sequence, cuts: Int64Array, level: Level) -> Int64Array:
    """When does the last span of each iteration end? Of the last one: as far as its landmarks reach."""
    until = max(int(level.positions[:, -1].max()), int(cuts[-1])) + 1
    end = np.maximum.reduceat(sequence.end_ns[:until], cuts)
    return np.maximum(end, sequence.start_ns[cuts] + 1)
