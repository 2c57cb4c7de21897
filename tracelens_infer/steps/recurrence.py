"""Which symbols occur once an iteration, in a sequence whose iterations differ? Levels of recurrence, and their choice.

A strict period fails where prefill steps run other ops than decode steps. But some ops (embedding, sampling, the copy
of the inputs) run once in each: symbols that occur equally often and take turns. Layers are such a level, steps are
one, and so is what only prefill steps do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tracelens_infer.steps.periodicity import LEAST_REPEATS
from tracelens_infer.trace.columns import BoolArray, Int64Array

__all__ = ["Level", "find_levels", "step_level"]

_CLASSES = 64  # counts examined: those that most symbols share; real traces showed up to 20
_MEMBERS = 64  # symbols of one level: more make nothing surer
_SAME_LEVEL = 0.03
"""Levels whose counts differ by less are one level, cut off differently where the recording begins and ends."""

_COVERED = 0.3
"""Less of the sequence than this between the first and the last of them, and it is an episode. Four iterations between
a start and an end of the same length, of which the last one is not counted, cover more."""

_APART = 2  # places between the first and the last symbol of a level, at least

_COMPARABLE = 0.85
"""A coarser level may be this much less regular than the best: the more a repeat holds, the more of it can vary."""

_AS_REGULAR = 0.95  # of two such levels the finer one, unless it is this much less regular
_REST_SHARE = 0.5  # of the wait before a cycle, before each of its iterations
_SAME_SIZE = 1.9  # a cycle holds two iterations at least, a step two layers

_LEAST_REGULARITY = 0.7  # noise was seen to reach a half, real steps 0.9 and more
_PROOF = 0.75  # by as much, shared among the repeats, more: three of them are alike by chance far sooner than thirty

_LAYERS = 3  # repeats inside of a repeat; two equal halves are a coincidence
_LAYER_SPACING = 0.7  # share of the distances between them that are (nearly) equal
_LAYER_JITTER = 1.25  # ops and the kernels of the ones before them interleave as chance has it
_LAYER_PAUSE = 1.5  # of the distance between two layers, from the last layer of a step to the first of the next
_LAYER_SHARE = 0.5  # of the repeats hold layers; those of a replayed graph show as kernels
_LAYERS_ALIKE = 0.9  # of those hold equally many: a model has as many layers in each step
_LAYER_COVER = 0.4
"""Layers make up most of a step; what repeats in a smaller part of it (a norm four times a layer) is no evidence."""


@dataclass(frozen=True, slots=True)
class Level:
    """Symbols that take turns. ``positions[k]``: where the k-th of them occurs; one column an iteration.

    ``has_layers``: a finer level repeats inside of it. ``is_layer``: it does so inside of a coarser one.
    """

    positions: Int64Array
    regularity: float
    has_layers: bool
    is_layer: bool

    @property
    def count(self) -> int:
        """How often does each of the symbols occur?"""
        return len(self.positions[0])


def step_level(levels: list[Level], wait_of: Callable[[Level], float], most: int | None = None) -> Level | None:
    """Which level is the iterations'? The coarsest that is regular, unless that is a cycle of several iterations.

    ``wait_of`` tells how long the host rests, as a rule, before each repeat of a level. Layers follow each other
    without a rest; the iterations of a cycle each begin with one like the cycle's, and repeat layers themselves.
    ``most``: how many iterations there are at most, where that is known.
    """
    levels = [one for one in levels if most is None or one.count <= most]
    # What is finer than layers is inside of layers, also where they are those of one or two steps.
    finest = min((one.count for one in levels if one.is_layer and not one.has_layers), default=np.inf)
    levels = [one for one in levels if one.count >= LEAST_REPEATS and (one.has_layers or one.count < finest)]
    # Layers are proof enough; so are many repeats.
    levels = [one for one in levels if one.regularity >= _LEAST_REGULARITY + _PROOF / one.count * (not one.has_layers)]
    if not levels:
        return None
    best = max(level.regularity for level in levels)
    regular = sorted((one for one in levels if one.regularity >= _COMPARABLE * best), key=lambda one: one.count)
    chosen = regular[0]
    rest = wait_of(chosen)
    for finer in regular[1:]:
        if finer.has_layers and wait_of(finer) >= _REST_SHARE * rest:
            chosen = finer
    # Levels of one size are no layers of each other: what most of the iterations do, and what some do twice.
    alike = [one for one in regular if chosen.count / _SAME_SIZE < one.count < chosen.count * _SAME_SIZE]
    best = max(one.regularity for one in alike)
    return max((one for one in alike if one.regularity >= _AS_REGULAR * best), key=lambda one: one.count)


def find_levels(codes: Int64Array, is_once: BoolArray | None = None) -> list[Level]:
    """The levels of recurrence in a sequence of symbols, coarse ones first; pairs of neighbours are symbols too.

    What occurs twice is a level as well: it tells the layers of two steps from steps. ``is_once``: which members are
    known to occur once an iteration. Levels that have one are as regular as can be, whatever lies between.
    """
    proof = _proof(codes, is_once)
    if len(codes) < LEAST_REPEATS:
        return []
    groups = _distinct([group for members in _classes(codes) for group in _taking_turns(members)])
    groups = [group for group in groups if _is_spread(group, len(codes), proven=proof(group))]
    anchors = [group[0] for group in groups]
    layers = [[_layered(anchor, inner) for inner in anchors[number + 1 :]] for number, anchor in enumerate(anchors)]
    return [
        Level(
            group,
            1.0 if proof(group) else _regularity(codes, anchors[number]),
            has_layers=any(cover > 0 for cover, _ in layers[number]),
            is_layer=any(layers[coarser][number - coarser - 1][1] for coarser in range(number)),
        )
        for number, group in enumerate(groups)
    ]


def _proof(codes: Int64Array, is_once: BoolArray | None) -> Callable[[Int64Array], bool]:
    """Is one of a group's symbols known to occur once an iteration?"""
    if is_once is None or not is_once.any():
        return lambda group: False
    counts = np.bincount(codes)

    def proven(group: Int64Array) -> bool:
        firsts = group[:, 0]
        return bool((is_once[firsts] & (counts[codes[firsts]] == group.shape[1])).any())

    return proven


def _is_spread(group: Int64Array, size: int, *, proven: bool) -> bool:
    """Do the symbols lie all over the sequence, and not side by side? An op and its kernel take turns in noise too."""
    apart = proven or float(np.median(group[-1] - group[0])) >= _APART
    return apart and bool(group[0, -1] - group[0, 0] >= _COVERED * size)


def _classes(codes: Int64Array) -> list[Int64Array]:
    """Symbols by how often they occur: one array of positions a class, a row a symbol."""
    single = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    width = int(single.max()) + 1
    pairs = np.unique(single[:-1] * width + single[1:], return_inverse=True)[1].astype(np.int64)
    found: dict[int, list[Int64Array]] = {}
    for symbols in (single, pairs):
        if not len(symbols):
            continue
        order = np.argsort(symbols, kind="stable")
        counts = np.bincount(symbols)
        begins = np.cumsum(counts) - counts
        for count in np.unique(counts[counts > 1]).tolist():
            members = begins[counts == count][:_MEMBERS]
            found.setdefault(count, []).append(order[members[:, None] + np.arange(count)])
    classes = [np.concatenate(parts) for parts in found.values()]
    classes.sort(key=lambda members: (-len(members), members.shape[1]))
    return classes[:_CLASSES]


def _taking_turns(members: Int64Array) -> list[Int64Array]:
    """The largest sets of symbols, equally frequent, each of which occurs once between two of another."""
    members = members[np.argsort(members[:, 0], kind="stable")]
    groups = []
    for _ in range(3):
        if len(members) < 2:
            break
        turn = np.arange(members.shape[1])
        reference = members[0]
        with_it = np.array([bool((np.searchsorted(reference, row, side="right") == turn + 1).all()) for row in members])
        if with_it.sum() > 1:
            groups.append(members[with_it])
        members = members[~with_it]
    return groups


def _distinct(groups: list[Int64Array]) -> list[Int64Array]:
    """Groups in order of their counts; of those that count (nearly) alike the one with the most symbols."""
    kept: list[Int64Array] = []
    for group in sorted(groups, key=lambda group: -len(group)):
        count = group.shape[1]
        if all(abs(other.shape[1] - count) > max(1.0, _SAME_LEVEL * count) for other in kept):
            kept.append(group)
    return sorted(kept, key=lambda group: group.shape[1])


def _regularity(codes: Int64Array, anchor: Int64Array) -> float:
    """How alike are the segments between the anchors? Share of the members whose symbol occurs there as often as usual.

    Segments without a symbol do not count against it: prefill steps run other ops than decode steps.
    """
    width = int(codes.max()) + 1
    segment = np.searchsorted(anchor, np.arange(anchor[0], anchor[-1]), side="right")
    key, count = np.unique(segment * width + codes[anchor[0] : anchor[-1]], return_counts=True)
    symbol = key % width
    largest = int(count.max()) + 1
    kinds, times = np.unique(symbol * largest + count, return_counts=True)
    usual = np.zeros(width)
    np.maximum.at(usual, kinds // largest, times)
    segments = np.bincount(symbol, minlength=width)
    # Of k segments one always has the most usual count: it proves nothing.
    share = np.where(segments > 1, (usual - 1) / np.maximum(segments - 1, 1), 0.0)
    weight = np.bincount(symbol, weights=count, minlength=width) * (segments > 1)
    return float((share * weight).sum() / max(weight.sum(), 1))


def _layered(anchor: Int64Array, inner: Int64Array) -> tuple[float, bool]:
    """Does the finer level repeat, equally often and equally spaced, through most of every segment of the coarser one?

    The share of a segment that it covers, 0 for no; and whether it pauses from one segment to the next, as layers do
    for the head and the embedding, and the steps of a cycle do not.
    """
    segment = np.searchsorted(anchor, inner, side="right")
    within = (segment > 0) & (segment < len(anchor))
    counts = np.bincount(segment[within], minlength=len(anchor))[1 : len(anchor)]
    used = counts[counts > 0]
    gaps = np.diff(inner)
    same = (segment[1:] == segment[:-1]) & within[1:]
    if not len(used) or len(used) < _LAYER_SHARE * len(counts) or not same.any():
        return 0.0, False
    usual = int(np.bincount(used).argmax())
    spacing = float(np.median(gaps[same]))
    even = (gaps[same] >= spacing / _LAYER_JITTER) & (gaps[same] <= spacing * _LAYER_JITTER)
    cover = (usual - 1) * spacing / float(np.median(np.diff(anchor)[counts > 0]))
    alike = (used == usual).mean() >= _LAYERS_ALIKE and even.mean() >= _LAYER_SPACING
    if usual < _LAYERS or not alike or cover < _LAYER_COVER:
        return 0.0, False
    pauses = gaps[segment[1:] != segment[:-1]]
    return cover, bool(len(pauses) and np.median(pauses) >= _LAYER_PAUSE * spacing)
