"""The types of measured attention: each main kernel with its layer and its time, and sums over groups of layers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.roofline.model import AttentionKind
from tracelens_infer.steps.attention_ops import Serves
from tracelens_infer.trace.columns import BoolArray, Int64Array, RowArray

__all__ = ["SERVES", "AttentionCalls", "AttentionGroup", "GroupTimes", "GroupedBy"]

SERVES = (Serves.BOTH, Serves.CONTEXT, Serves.GENERATION)
"""What the numbers in ``serves`` columns mean."""


class GroupedBy(StrEnum):
    """By what are the layers of a trace told apart?"""

    KERNEL_NAME = "kernel name"
    LAYER_ORDER = "order of the model's layers"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Which layers run the same attention?

    Attributes:
        number: what the column ``group`` says.
        kind: from the model; None without one.
        layers: their places among the layers with attention, counted from 0 in the order they run.
        model_layers: their places among all of the model's layers; empty without a model.
        names: of their main kernels.
    """

    number: int
    kind: AttentionKind | None
    layers: tuple[int, ...]
    model_layers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """How long did each group of layers compute attention in each step? One row a step, phase and group.

    Attributes:
        step, serves, group: int64; ``serves`` numbers :data:`SERVES`.
        calls: main kernels.
        main_ns, combine_ns: sums over them.
    """

    step: Int64Array
    serves: Int64Array
    group: Int64Array
    calls: Int64Array
    main_ns: Int64Array
    combine_ns: Int64Array

    def __len__(self) -> int:
        return len(self.step)

    @property
    def duration_ns(self) -> Int64Array:
        """Main kernels and what merges their parts, together."""
        return self.main_ns + self.combine_ns


@dataclass(frozen=True, slots=True)
class AttentionCalls:
    """Every main kernel of attention, in order of steps and of launches within a step. Columns: one row a kernel.

    Attributes:
        row: the main kernel's row in the trace (without a device: the op's).
        step: its step.
        serves: whose attention it is; numbers :data:`SERVES`.
        layer: its layer, counted from 0 among those with attention in the order they run.
        group: number of its group; -1 where that cannot be told.
        draft: it belongs to a draft model's layers, which are numbered on.
        main_ns, combine_ns: its own time, and that of the kernels that merge its parts (or picked its tokens).
        name: position in ``names``.
        names: what the main kernels are called.
        groups: which layers belong together; one group where they cannot be told apart.
        grouped_by: by what; None where nothing told.
        layers: layers with attention; None where steps do not agree.
        linear_ns: time of linear-attention kernels; one a step.
        on_device: False where ops on the host were measured instead of kernels.
        notes: what did not fit.
    """

    row: RowArray
    step: Int64Array
    serves: Int64Array
    layer: Int64Array
    group: Int64Array
    draft: BoolArray
    main_ns: Int64Array
    combine_ns: Int64Array
    name: Int64Array
    names: tuple[str, ...]
    groups: tuple[AttentionGroup, ...]
    grouped_by: GroupedBy | None
    layers: int | None
    linear_ns: Int64Array
    on_device: bool
    notes: tuple[Note, ...]

    def __len__(self) -> int:
        return len(self.row)

    @property
    def duration_ns(self) -> Int64Array:
        """Attention time of each layer: the main kernel and what merges its parts."""
        return self.main_ns + self.combine_ns

    def of_step(self, step: int) -> slice:
        """Which rows belong to this step?"""
        return slice(*np.searchsorted(self.step, [step, step + 1]).tolist())

    def group_times(self) -> GroupTimes:
        """How long did each group take in each step, phases apart? Draft layers are left out."""
        own = ~self.draft
        key = np.stack([self.step[own], self.serves[own], self.group[own]])
        if not key.shape[1]:
            none = np.zeros(0, dtype=np.int64)
            return GroupTimes(none, none, none, none, none, none)
        found, place = np.unique(key, axis=1, return_inverse=True)
        place = place.reshape(-1)
        calls = np.bincount(place, minlength=found.shape[1])
        main_ns, combine_ns = np.zeros_like(calls), np.zeros_like(calls)
        np.add.at(main_ns, place, self.main_ns[own])
        np.add.at(combine_ns, place, self.combine_ns[own])
        return GroupTimes(found[0], found[1], found[2], calls, main_ns, combine_ns)

    def draft_ns(self) -> Int64Array:
        """How long did the draft model's attention take? One a step."""
        total = np.zeros(len(self.linear_ns), dtype=np.int64)
        np.add.at(total, self.step[self.draft], self.duration_ns[self.draft])
        return total
