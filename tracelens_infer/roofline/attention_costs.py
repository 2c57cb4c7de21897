"""What does each layer shape's attention cost in every step? Priced once for all who ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens_infer.roofline.attention import (
    AttentionCost,
    Phase,
    PhaseColumns,
    Precision,
    Ranks,
    attention_cost_columns,
)
from tracelens_infer.roofline.model import AttentionShape
from tracelens_infer.steps.annotation import PhaseLoad
from tracelens_infer.steps.step import Step

__all__ = ["AttentionCosts", "AttentionSetting"]

_Cost: TypeAlias = AttentionCost[npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class AttentionSetting:
    """How was attention run? What no trace tells: number formats, ranks, a prefix that all requests share."""

    precision: Precision = field(default_factory=Precision)
    ranks: Ranks = field(default_factory=Ranks)
    shared_prefix_tokens: int = 0


class AttentionCosts:
    """The costs of attention, a column of one row a step for each shape and phase; computed when first asked for.

    Attributes:
        told: which steps' labels tell the sums over requests; the others count as if they had none.
        loads: those sums, by phase.
    """

    def __init__(self, steps: Sequence[Step], setting: AttentionSetting) -> None:
        self.told = np.array([step.load is not None and step.load.has_sums for step in steps], dtype=np.bool_)
        self.loads = {
            phase: PhaseColumns.of(
                getattr(step.load, phase.value) if told else PhaseLoad()
                for step, told in zip(steps, self.told, strict=True)
            )
            for phase in Phase
        }
        self._setting = setting
        self._known: dict[tuple[AttentionShape, Phase], _Cost | None] = {}

    def of(self, shape: AttentionShape, phase: Phase) -> _Cost | None:
        """What does one layer of this shape cost in each step? None where its kind is not priced."""
        key = (shape, phase)
        if key not in self._known:
            self._known[key] = attention_cost_columns(
                self.loads[phase],
                shape,
                phase,
                precision=self._setting.precision,
                ranks=self._setting.ranks,
                shared_prefix_tokens=self._setting.shared_prefix_tokens,
            )
        return self._known[key]
