"""SteadyState and SteadyWindow: what the search for the steady state finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.steps.expected_mix import MixFrom
from tracelens_infer.steps.regions import KINDS, UNTOLD, Limit, LoadColumns, Range
from tracelens_infer.steps.step import StepKind

__all__ = ["RegionFrom", "SteadyState", "SteadyWindow", "Tier", "WindowKind", "describe_window", "prefill_share"]

WindowKind = Literal["mixed", "decode_only", "prefill_decode", "any"]
Tier = Literal["concurrency", "batch_size", "duration"]
RegionFrom = Literal["largest", "analytic", "trace"]


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """Which steps [first, last) answer a question about the steady state, and what do they hold?

    Attributes:
        kind: ``mixed`` for the engine's everyday mix, ``decode_only``, ``prefill_decode`` for steps that all carry
            a prefill, ``any`` where the steps do not say what they did.
        first: index of the first step.
        last: index after the last step.
        tier: what found it: the number of requests that labels tell (``concurrency``) or op shapes (``batch_size``), or
            the steps' ``duration``.
        mix_observed: share of the steps that ran requests which carries a prefill; None where no step tells.
        mix_expected: the same share as expected.
        mix_expected_from: which figure that is: the workload's ``stationary`` or ``local`` one, or, where the
            workload is unknown or its figures are withheld, the ``region average``.
        mean_requests: requests present in a step; None where no step tells.
        mean_kv_tokens: KV tokens a decoding request attends to; None where unknown or nothing decodes.
        kv_percentile: percentage of the region's decode-only steps with at most that many; decode-only windows only.
        composition: number of steps of each kind that occurs.
        notes: what to know about this window.
    """

    kind: WindowKind
    first: int
    last: int
    tier: Tier
    mix_observed: float | None
    mix_expected: float | None
    mix_expected_from: MixFrom | None
    mean_requests: float | None
    mean_kv_tokens: float | None
    kv_percentile: float | None
    composition: Mapping[StepKind, int]
    notes: tuple[Note, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps does the window hold?"""
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Where is the steady state of a trace?

    Ranges are half-open, in step indices.

    Attributes:
        peak_requests: the highest number of requests that lasts; None where no step tells its requests.
        regions: the ranges near that peak.
        region: the range that the windows are taken from: the largest region, or the part of one that lies in the
            workload's analytic window. None where there is no step to take.
        region_from: which of the two it is; ``trace`` where no step tells its requests.
        ramp_up: steps before the first region; None where the trace does not hold the run's start.
        ramp_down: steps after the last region; None where the trace does not hold the run's end.
        plateau: whether the trace stays near its peak, rather than passing through.
        limit: what keeps concurrency from a plateau, or below CONC; None where neither is the case.
        windows: at most one of each kind.
        notes: what to know about all of it.
    """

    peak_requests: int | None
    regions: tuple[Range, ...]
    region: Range | None
    region_from: RegionFrom | None
    ramp_up: Range | None
    ramp_down: Range | None
    plateau: bool
    limit: Limit | None
    windows: tuple[SteadyWindow, ...]
    notes: tuple[Note, ...]

    def window(self, kind: WindowKind) -> SteadyWindow | None:
        """Which window is of this kind?"""
        return next((window for window in self.windows if window.kind == kind), None)


def describe_window(
    kind: WindowKind, columns: LoadColumns, span: Range, tier: Tier, notes: tuple[Note, ...] = ()
) -> SteadyWindow:
    """What do the steps of this window hold?"""
    inside = slice(*span)
    sized = columns.sized[inside]
    kv, decoding = columns.generation_kv[inside], columns.generation_requests[inside]
    decodes = int(decoding.sum())
    told = decodes > 0 and not np.any((decoding > 0) & (kv == UNTOLD))
    counts = np.bincount(columns.kinds[inside], minlength=len(KINDS))
    return SteadyWindow(
        kind=kind,
        first=span[0],
        last=span[1],
        tier=tier,
        mix_observed=prefill_share(columns, span) if columns.ran[inside].any() else None,
        mix_expected=None,
        mix_expected_from=None,
        mean_requests=float(columns.requests[inside][sized].mean()) if sized.any() else None,
        mean_kv_tokens=int(kv[decoding > 0].sum()) / decodes if told else None,
        kv_percentile=None,
        composition={kind: int(number) for kind, number in zip(KINDS, counts, strict=True) if number},
        notes=notes,
    )


def prefill_share(columns: LoadColumns, span: Range) -> float:
    """Which share of the steps that ran requests carries a prefill?"""
    inside = slice(*span)
    return int(columns.prefill[inside].sum()) / max(int(columns.ran[inside].sum()), 1)
