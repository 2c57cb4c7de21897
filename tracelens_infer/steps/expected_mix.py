"""The expected mix: which share of a window's steps should hold a prefill, by which of the workload's figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tracelens_infer.steps.regions import BUSY_SHARE, FloatArray, LoadColumns, Plateau, Range, longest
from tracelens_infer.steps.step import EngineMode
from tracelens_infer.steps.workload import Workload

__all__ = ["ExpectedMix", "MixFrom", "PrefillPacing", "analytic_region", "of_one_batch", "run_positions"]

MixFrom = Literal["stationary", "local", "region average"]
PrefillPacing = Literal["exclusive", "chunked", "batched", "unbatched"]

# Windows between which the local figure is interpolated: it varies over 0.65 of the analytic range (the standard
# deviation of the fifth completion), and 64 pieces of that range follow such a curve to within 0.2 % of its height.
LOCAL_PIECES = 64


@dataclass(frozen=True, slots=True)
class ExpectedMix:
    """Which share of steps does a workload expect to hold a prefill, stationary and around a step of the run?

    ``pacing`` says how prefills take steps: ``exclusive`` of decodes, ``chunked`` over several steps each,
    ``batched`` where they meet, or ``unbatched``, one a step.
    """

    workload: Workload
    pacing: PrefillPacing

    @classmethod
    def of(cls, workload: Workload, columns: LoadColumns, region: Range, mode: EngineMode) -> ExpectedMix:
        """Which pacing do the steps of the region show?"""
        if mode is EngineMode.EXCLUSIVE:
            return cls(workload, "exclusive")
        if (workload.chunks_per_request or 1) > 1:
            return cls(workload, "chunked")
        inside = slice(*region)
        batched = bool(np.any(columns.prefill[inside] & (columns.context_requests[inside] > 1)))
        return cls(workload, "batched" if batched else "unbatched")

    @property
    def stationary(self) -> float:
        """Which share of steps holds a prefill anywhere in the run?"""
        match self.pacing:
            case "exclusive":
                return self.workload.mix_fraction_exclusive
            case "chunked":
                return self.workload.mix_fraction_chunked or self.workload.mix_fraction_document
            case "batched":
                return self.workload.mix_fraction_batched
            case "unbatched":
                return self.workload.mix_fraction_document

    def local(self, first_step: int, end_step: int) -> float:
        """Which share of the run's steps [first_step, end_step) holds a prefill, where requests began together?

        The stationary figure where prompts queue for so much of the budget that the local one cannot be said.
        """
        if self.pacing == "chunked":
            chunked = self.workload.local_mix_chunked(first_step, end_step)
            return self.stationary if chunked is None else chunked.fraction
        mix = self.workload.local_mix(first_step, end_step)
        return mix.fraction if self.pacing == "batched" else min(1.0, mix.completions / mix.steps)

    def local_by_start(self, positions: FloatArray, length: int) -> FloatArray:
        """What is the local figure of the windows of ``length`` steps that start at these steps of the run?"""
        grid = np.unique(np.linspace(positions[0], positions[-1], LOCAL_PIECES + 1).round())
        figures = [self.local(int(start), int(start) + length) for start in grid]
        return np.interp(positions, grid, figures)


def of_one_batch(workload: Workload) -> Workload:
    """Which workload does one batch of requests see? With pipeline stages a step is that of one micro-batch.

    Micro-batches share the requests as data-parallel ranks do.
    """
    ranks = min(workload.concurrency, workload.data_parallel * workload.pipeline_stages)
    return replace(workload, data_parallel=ranks, pipeline_stages=1)


def run_positions(columns: LoadColumns, trace_starts_at: int) -> FloatArray:
    """Which step of the run is each step of the trace? Steps that ran no request do not count."""
    ran = columns.ran.astype(np.float64)
    return np.cumsum(ran) - ran + trace_starts_at


def analytic_region(columns: LoadColumns, plateau: Plateau, workload: Workload, positions: FloatArray) -> Range | None:
    """Which steps of a region lie in the analytic window of the run; None where none does?"""
    first, last = workload.analytic_window_steps
    begin, end = (int(step) for step in np.searchsorted(positions, [math.ceil(first), math.floor(last)]))
    spans = [(max(begin, region[0]), min(end, region[1])) for region in _regions_of_first_run(columns, plateau)]
    best = longest(spans)
    return best if best[0] < best[1] else None


def _regions_of_first_run(columns: LoadColumns, plateau: Plateau) -> Iterator[Range]:
    """Which regions belong to the run that the trace begins with? It ends where few requests run between two."""
    end = plateau.regions[0][1]
    for region in plateau.regions:
        between = slice(end, region[0])
        if np.any(columns.sized[between] & (columns.requests[between] <= BUSY_SHARE * plateau.peak)):
            return
        yield region
        end = region[1]
