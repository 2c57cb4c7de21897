"""Which layer, and which group of layers, is each kernel of attention? By names, the model's layers, or times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.roofline.measured_attention import SERVES, AttentionCalls, AttentionGroup, GroupedBy
from tracelens_infer.roofline.model import AttentionKind, ModelShape
from tracelens_infer.trace.columns import BoolArray, Int64Array

__all__ = ["grouped", "layered"]

_CLEAR_GAP = 1.5
"""Two groups of layers are told apart by time where the fastest of the slow ones takes this many times the slowest of
the fast ones: 2.13 in a mixed step of gpt-oss. Layers that are alike differ by up to 1.12 (Qwen3-8B prefill)."""
_FEWEST_LAYERS = 2  # of a group: one odd layer is an outlier, not a kind


def layered(calls: AttentionCalls, model: ModelShape | None) -> AttentionCalls:
    """Number the layers in the order they run, each phase's kernels apart where the engine has one for each."""
    if not len(calls):
        return calls
    part = calls.step * len(SERVES) + calls.serves
    order = np.argsort(part, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(part[order]) != 0))
    size = np.diff(np.append(first, len(order)))
    rank, count = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(first, size)
    count[order] = np.repeat(size, size)
    if model is None:
        usual = _usual(count, calls.duration_ns)
        notes = _unlike(calls, count != usual, f"{usual} attention kernels, as most of the time")
        return replace(calls, layer=rank, group=np.where(count == usual, 0, -1), layers=usual, notes=notes)
    layers = len(_attention_layers(model))
    if not layers:
        return replace(calls, layer=rank, group=np.full(len(calls), -1), notes=_unlike(calls, count > 0, "none"))
    # Several kernels a layer in a row: chunks of a long context. A draft model runs after all of the model's layers.
    whole = count % layers == 0
    extra = count - layers
    drafts = ~whole & (extra > 0) & (extra % model.draft_layers == 0) if model.draft_layers else np.zeros_like(whole)
    layer = np.where(whole, rank // np.maximum(count // layers, 1), rank)
    notes = _unlike(calls, ~whole & ~drafts, f"a multiple of the model's {layers} layers with attention")
    group = np.where(whole | (drafts & (rank < layers)), 0, -1)
    return replace(calls, layer=layer, group=group, draft=drafts & (rank >= layers), layers=layers, notes=notes)


def _usual(count: Int64Array, duration_ns: Int64Array) -> int:
    """The number of kernels in a row of layers that most of attention's time has."""
    found, place = np.unique(count, return_inverse=True)
    taken = np.zeros(len(found), dtype=np.int64)
    np.add.at(taken, place, duration_ns)
    return int(found[taken.argmax()])


def _unlike(calls: AttentionCalls, unlike: BoolArray, expected: str) -> tuple[Note, ...]:
    if not unlike.any():
        return calls.notes
    steps = len(np.unique(calls.step[unlike]))
    text = f"Steps whose attention kernels are not {expected}: their layers are not told apart."
    return (*calls.notes, Note("warning", "attention_calls_unlike_layers", text, steps))


def _attention_layers(model: ModelShape) -> list[int]:
    return [number for number, layer in enumerate(model.layers) if layer.attention.kind is not AttentionKind.LINEAR]


def grouped(calls: AttentionCalls, model: ModelShape | None) -> AttentionCalls:
    """Which layers belong together? A layer's kind is the model's, so all steps are asked at once."""
    placed = calls.group >= 0
    if not placed.any() or calls.layers is None:
        return calls
    by_name = _by_name(calls, placed)
    notes = calls.notes
    if model is not None:
        label, groups = _by_model(model)
        agrees = by_name is not None and _alike(by_name, label)
        if by_name is not None and not agrees:
            text = "Kernel names tell other groups of layers apart than the model's layers: those of the model count."
            notes = (*notes, Note("warning", "attention_groups_disagree", text))
        source: GroupedBy | None = GroupedBy.KERNEL_NAME if agrees else GroupedBy.LAYER_ORDER
    else:
        by_time = None if by_name is not None else _by_time(calls, placed)
        found = by_name if by_name is not None else by_time
        source = GroupedBy.KERNEL_NAME if by_name is not None else GroupedBy.TIME if by_time is not None else None
        label = _longest_first(calls, placed, found) if found is not None else np.zeros(calls.layers, dtype=np.int64)
        groups = _plain_groups(label)
    group = np.full(len(calls), -1, dtype=np.int64)
    group[placed] = label[calls.layer[placed]]
    groups = tuple(replace(one, names=_names_of(calls, group == one.number)) for one in groups)
    return replace(calls, group=group, groups=groups, grouped_by=source, notes=notes)


def _by_model(model: ModelShape) -> tuple[Int64Array, tuple[AttentionGroup, ...]]:
    place = {layer: number for number, layer in enumerate(_attention_layers(model))}
    label = np.zeros(len(place), dtype=np.int64)
    groups: list[AttentionGroup] = []
    for group in model.layer_groups():
        own = tuple(place[layer] for layer in group.layers if layer in place)
        if own:
            label[list(own)] = len(groups)
            groups.append(AttentionGroup(len(groups), group.attention.kind, own, group.layers))
    return label, tuple(groups)


def _plain_groups(label: Int64Array) -> tuple[AttentionGroup, ...]:
    return tuple(
        AttentionGroup(number, None, tuple(np.flatnonzero(label == number).tolist()))
        for number in range(int(label.max(initial=-1)) + 1)
    )


def _names_of(calls: AttentionCalls, chosen: BoolArray) -> tuple[str, ...]:
    return tuple(calls.names[number] for number in np.unique(calls.name[chosen]).tolist())


def _by_name(calls: AttentionCalls, placed: BoolArray) -> Int64Array | None:
    """One label a layer, where kernels of several names share the layers of a step, and the same ones in all steps.

    Steps whose layers all run one kernel say nothing: prefills of windowed and full layers may.
    """
    layers = calls.layers or 0
    part = (calls.step * len(SERVES) + calls.serves)[placed]
    _, place = np.unique(part, return_inverse=True)
    grid = np.full((int(place.max()) + 1, layers), -1, dtype=np.int64)
    grid[place, calls.layer[placed]] = calls.name[placed]
    told = None
    for pattern in np.unique(grid, axis=0):
        if (pattern < 0).any() or (pattern == pattern[0]).all():
            continue
        _, label = np.unique(pattern, return_inverse=True)
        if np.bincount(label).min() < _FEWEST_LAYERS or (told is not None and not _alike(told, label)):
            return None
        told = label
    return told


def _by_time(calls: AttentionCalls, placed: BoolArray) -> Int64Array | None:
    """Two groups of layers, where their times over all steps leave a clear gap and each group is alike in itself.

    Alike: between the fastest and the slowest of a group is less than the square root of the gap between the groups.
    """
    layers = calls.layers or 0
    total = np.zeros(layers, dtype=np.int64)
    np.add.at(total, calls.layer[placed], calls.duration_ns[placed])
    order = np.argsort(total, kind="stable")
    taken = total[order].astype(np.float64)
    if len(taken) < 2 * _FEWEST_LAYERS or taken[0] <= 0:
        return None
    ratio = taken[1:] / taken[:-1]
    cut = int(ratio.argmax()) + 1
    spread = max(taken[cut - 1] / taken[0], taken[-1] / taken[cut])
    if min(cut, len(taken) - cut) < _FEWEST_LAYERS or ratio[cut - 1] < _CLEAR_GAP or spread**2 >= ratio[cut - 1]:
        return None
    label = np.zeros(layers, dtype=np.int64)
    label[order[:cut]] = 1
    return label


def _longest_first(calls: AttentionCalls, placed: BoolArray, label: Int64Array) -> Int64Array:
    """The same groups, numbered by the mean time of their layers: group 0 is the one that reads most."""
    total = np.zeros(int(label.max()) + 1, dtype=np.int64)
    np.add.at(total, label[calls.layer[placed]], calls.duration_ns[placed])
    mean = total / np.bincount(label)
    return np.argsort(np.argsort(-mean, kind="stable"), kind="stable")[label]


def _alike(one: Int64Array, other: Int64Array) -> bool:
    """Do two labellings make the same groups, whatever they call them?"""
    pairs = np.unique(np.stack([one, other]), axis=1).shape[1]
    return bool(pairs == len(np.unique(one)) == len(np.unique(other)))
