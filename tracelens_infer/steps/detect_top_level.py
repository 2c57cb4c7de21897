"""Where do the iterations begin in the sequence of ops? For traces without stacks."""

from __future__ import annotations

import numpy as np

from tracelens_infer.steps.call_tree import CallTree
from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.detect_call_tree import LEAST_WORK
from tracelens_infer.steps.folding import folded
from tracelens_infer.steps.op_sequence import Sequence, level_of, longest_waits, op_sequence, stretches
from tracelens_infer.steps.periodicity import LEAST_REPEATS
from tracelens_infer.steps.recurrence import Level
from tracelens_infer.steps.tiles import tiled
from tracelens_infer.trace.columns import Int64Array, Trace
from tracelens_infer.trace.launches import DeviceWork
from tracelens_infer.trace.reader import event_names

__all__ = ["cut_positions", "foreign_share", "last_ends", "objection", "top_level_candidates"]

_FOREIGN_SHARE = 0.1
"""Layers lie between an embedding and a head, which occur in none of them: as much of a repeat, outside of them, in
symbols that no repeat holds. What lies before and after steps is cut-off steps, which consist of the same symbols."""

_SHORTLY_AFTER = 0.33  # of the way to the next optimizer; the second of two micro-batches begins at a half
_REST_SHARE = 0.5  # of the longest wait there
_JITTER = 0.05  # of the things that an iteration runs

_FIRM_SHARE = 0.5
"""When as many of the cuts lie equally far from the next (last) landmark, the others are moved there."""


def top_level_candidates(trace: Trace, work: DeviceWork, tree: CallTree) -> list[Candidate]:
    """Which op begins each iteration? The level of recurrence of ops and kernels, cut where all rest the longest."""
    sequence = op_sequence(trace, work, tree)
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


def cut_positions(sequence: Sequence, level: Level) -> Int64Array:
    """Where does each iteration begin? Between which two landmarks the wait is longest, and where between them.

    After the optimizer, where there is one: a step of several micro-batches waits before each of them.
    """
    ended = _after_optimizer(sequence, level)
    if ended is not None:
        return ended
    waits = longest_waits(sequence, level)
    before, after = stretches(level)[int(np.argmax(waits))]
    idle = np.where(sequence.can_begin, sequence.idle_ns, -1)
    cuts = np.full(len(before), -1)
    for number, (low, high) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
        stretch = idle[low + 1 : high + 1]
        if len(stretch) and stretch.max() >= 0:
            cuts[number] = low + 1 + int(stretch.argmax())
    firm = _firm(sequence, cuts, before, after)
    return np.unique(firm[firm >= 0])


def _after_optimizer(sequence: Sequence, level: Level) -> Int64Array | None:
    """After the first long wait behind each optimizer but the last; None where the level has no optimizer."""
    marks = next((marks for marks in level.positions if sequence.is_optimizer[marks].all()), None)
    if marks is None:
        return None
    idle = np.where(sequence.can_begin, sequence.idle_ns, -1)
    begin = sequence.end_ns[marks[:-1]]
    until = begin + ((sequence.start_ns[marks[1:]] - begin) * _SHORTLY_AFTER).astype(np.int64)
    first, last = np.searchsorted(sequence.start_ns, begin), np.searchsorted(sequence.start_ns, until, side="right")
    cuts = []
    for low, high in zip(first.tolist(), last.tolist(), strict=True):
        waits = idle[low : max(high, low + 1)]
        cuts.append(low + int(np.argmax(waits >= _REST_SHARE * waits.max())))
    # No optimizer precedes the first iteration; it is as long as the others, or begins with the recording.
    size = int(np.median(marks[1:] - np.array(cuts)))
    jitter = int(size * _JITTER)
    low = int(marks[0]) - size - jitter
    opening = low + int(idle[low : low + 2 * jitter + 1].argmax()) if low > 0 else int(np.argmax(sequence.can_begin))
    return np.unique(np.array([opening, *cuts]))


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
