"""The steady state: which steps of a trace to look at, and how sure that they stand for the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.steps import steady_notes
from tracelens_infer.steps.expected_mix import ExpectedMix, MixFrom, analytic_region, of_one_batch, run_positions
from tracelens_infer.steps.regions import (
    KINDS,
    NEAR_PEAK_SHARES,
    UNTOLD,
    FloatArray,
    Limit,
    LoadColumns,
    Plateau,
    Range,
    find_limit,
    find_plateau,
    longest,
    near_peak_margin,
)
from tracelens_infer.steps.steady_state import SteadyState, SteadyWindow, WindowKind, describe_window, prefill_share
from tracelens_infer.steps.step import EngineMode, StepKind, Steps
from tracelens_infer.steps.whole_numbers import check_count
from tracelens_infer.steps.window_choice import (
    LEVEL_CV,
    choose_decode_only,
    choose_level_durations,
    choose_mixed,
    choose_prefill_decode,
)
from tracelens_infer.steps.workload import Workload

__all__ = ["SteadyState", "SteadyWindow", "WindowKind", "find_steady_state"]

NUM_STEPS = 32  # a trace of this many steps opens in a viewer at once, and holds a prefill at most workloads
MISMATCH_FACTOR = 2.0  # a mix twice or half of what the workload promises is another workload's
MISMATCH_DEVIATIONS = 3.0  # prefills come at random: of fewer steps no more can be said
REFILL_STEPS = 2  # a client needs a step or two to replace a finished request: so many places are empty at a time
FEWEST_LEVEL_STEPS = 4  # the spread of fewer durations says nothing


def find_steady_state(
    steps: Steps,
    workload: Workload | None = None,
    *,
    num_steps: int | None = None,
    trace_starts_at: int | None = None,
) -> SteadyState:
    """Which steps are the steady state, and which windows of it should one look at?

    Args:
        steps: every step of the trace.
        workload: what was benchmarked; its figures guide the choice of the mixed window and its length.
        num_steps: steps a window should hold; 32 by default. Raised to what a representative mix needs.
        trace_starts_at: the step of the run that the trace begins with, for a capture that was delayed.

    Raises:
        UsageError: ``num_steps`` is no whole number from 1 on, or ``trace_starts_at`` none from 0 on.
    """
    wanted = NUM_STEPS if num_steps is None else num_steps
    check_count("num_steps (--num-steps)", wanted, 1)
    check_count("trace_starts_at (--trace-starts-at)", trace_starts_at or 0, 0)
    columns = LoadColumns.of(steps.steps)
    if not columns.sized.any():
        return _by_duration(steps, columns, wanted, workload is not None)
    batch = None if workload is None else of_one_batch(workload)
    plateau = find_plateau(columns)
    off = 0.0 if batch is None else _off_conc(plateau, batch)
    bound = off < 0 and batch is not None and bool(batch.is_prefill_bound)
    limit = find_limit(columns, plateau, bound) if off < 0 or not plateau.reached else None
    trusted = batch if plateau.reached else None
    search = _place(_Seen(columns, plateau, steps.engine_mode, trusted, trace_starts_at), wanted)
    windows = _windows(search)
    if steps.guessed_phases:
        windows = tuple(replace(window, tier="batch_size") for window in windows)
    return SteadyState(
        peak_requests=plateau.peak,
        regions=plateau.regions,
        region=search.region,
        region_from=search.region_from,
        ramp_up=plateau.ramp_up,
        ramp_down=plateau.ramp_down,
        plateau=plateau.reached,
        limit=limit,
        windows=windows,
        notes=(*_concurrency_notes(columns, plateau, limit, batch), *search.notes, *_absence_notes(search, windows)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """Where to look for windows of the concurrency tier, and by which figures."""

    columns: LoadColumns
    region: Range
    region_from: Literal["largest", "analytic"]
    length: int
    mix: ExpectedMix | None  # None without a workload, or where its figures are withheld
    positions: FloatArray  # which step of the run each step is; read only where region_from is analytic
    notes: tuple[Note, ...]

    @property
    def mix_from(self) -> MixFrom:
        """Which figure judges a mixed window here?"""
        if self.mix is None:
            return "region average"
        return "local" if self.region_from == "analytic" else "stationary"

    def expected(self) -> float | FloatArray:
        """Which mix is expected, of every window of the region or of each by its start?"""
        if self.mix is None:
            return prefill_share(self.columns, self.region)
        if self.region_from == "largest":
            return self.mix.stationary
        first, last = self.region
        return self.mix.local_by_start(self.positions[first : last - self.length + 1], self.length)

    def expected_of(self, window: Range) -> float:
        """Which mix is expected of this window?"""
        if self.mix is None or self.region_from == "largest":
            return float(self.expected())
        first = int(self.positions[window[0]])
        return self.mix.local(first, first + window[1] - window[0])


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What the steps show, and what is known about the run they are of."""

    columns: LoadColumns
    plateau: Plateau
    mode: EngineMode
    workload: Workload | None  # None also where its figures are withheld
    trace_starts_at: int | None

    @property
    def position_known(self) -> bool:
        """Is it known which part of the run the trace holds?"""
        both_ramps = self.plateau.ramp_up is not None and self.plateau.ramp_down is not None
        return self.trace_starts_at is not None or both_ramps

    @property
    def positions(self) -> FloatArray:
        """Which step of the run is each step of the trace?"""
        return run_positions(self.columns, self.trace_starts_at or 0)


def _place(seen: _Seen, asked: int) -> _Search:
    """Which region do the windows come from, and how long are they?"""
    workload, regions = seen.workload, seen.plateau.regions
    wanted = asked if workload is None else max(asked, workload.steps_needed)
    region = longest(regions)
    region_from: Literal["largest", "analytic"] = "largest"
    analytic, notes = _analytic(seen, wanted)
    if analytic is not None:
        region, region_from = analytic, "analytic"
    length = min(wanted, region[1] - region[0])
    if len(regions) > 1:
        notes.append(steady_notes.several_regions(len(regions), region))
    if length > asked:
        notes.append(steady_notes.num_steps_raised(asked, length))
    if length < wanted:
        notes.append(steady_notes.region_short(wanted, region))
    mix = None if workload is None else ExpectedMix.of(workload, seen.columns, region, seen.mode)
    return _Search(seen.columns, region, region_from, length, mix, seen.positions, tuple(notes))


def _analytic(seen: _Seen, wanted: int) -> tuple[Range | None, list[Note]]:
    """Which steps lie in the analytic window, and if it is not used: why?"""
    if seen.workload is None:
        reason = "it takes CONC, OSL and R, and a plateau to use them on"
        return None, [] if seen.trace_starts_at is None else [steady_notes.position_unused(reason)]
    if seen.mode is EngineMode.EXCLUSIVE:
        reason = "prefill steps hold the decodes up, and the analytic window counts steps in which all advance"
        return None, [steady_notes.position_unused(reason)] if seen.position_known else []
    if not seen.position_known:
        return None, [steady_notes.position_unknown()]
    region = analytic_region(seen.columns, seen.plateau, seen.workload, seen.positions)
    if region is None or region[1] - region[0] < wanted:
        return None, [steady_notes.analytic_not_in_trace()]
    return region, [steady_notes.analytic_used(region)]


def _windows(search: _Search) -> tuple[SteadyWindow, ...]:
    """Which window of each kind does the region offer?"""
    columns, region, length = search.columns, search.region, search.length
    windows = []
    mixed = choose_mixed(columns, region, length, search.expected())
    if mixed is not None:
        observed, expected = prefill_share(columns, mixed), search.expected_of(mixed)
        pacing = search.mix.pacing if search.mix else None
        note = steady_notes.expected_mix(observed, expected, search.mix_from, pacing)
        window = describe_window("mixed", columns, mixed, "concurrency", (note, *_mix_mismatch(search, expected)))
        windows.append(replace(window, mix_expected=expected, mix_expected_from=search.mix_from))
    decode_only = choose_decode_only(columns, region, length)
    if decode_only is not None:
        window = describe_window("decode_only", columns, decode_only, "concurrency")
        percentile = _kv_percentile(columns, region, window.mean_kv_tokens)
        notes = () if percentile is not None else (steady_notes.kv_untold(),)
        windows.append(replace(window, kv_percentile=percentile, notes=notes))
    prefill_decode = choose_prefill_decode(columns, region, length)
    if prefill_decode is not None:
        windows.append(describe_window("prefill_decode", columns, prefill_decode, "concurrency"))
    return tuple(windows)


def _mix_mismatch(search: _Search, expected: float) -> tuple[Note, ...]:
    """Is the mix of the whole region another than the workload's, beyond what chance explains?"""
    if search.mix is None:
        return ()
    observed = prefill_share(search.columns, search.region)
    ran = max(int(search.columns.ran[slice(*search.region)].sum()), 1)
    noise = MISMATCH_DEVIATIONS * math.sqrt(expected * (1 - expected) / ran)
    near = expected / MISMATCH_FACTOR <= observed <= expected * MISMATCH_FACTOR
    if near or abs(observed - expected) <= noise:
        return ()
    return (steady_notes.mix_mismatch(observed, expected),)


def _by_duration(steps: Steps, columns: LoadColumns, wanted: int, with_workload: bool) -> SteadyState:
    """Which window has level durations, where no step tells its requests?"""
    count = len(steps.steps)
    idle = np.isin(columns.kinds, [KINDS.index(StepKind.EMPTY), KINDS.index(StepKind.DUMMY)])
    if not count or idle.all():
        note = steady_notes.no_active_steps(count) if count else steady_notes.no_steps()
        return SteadyState(None, (), None, None, None, None, False, None, (), (note,))
    durations = np.fromiter((step.duration_ns for step in steps.steps), np.int64, count)
    chosen = choose_level_durations(durations, min(max(wanted, FEWEST_LEVEL_STEPS), count))
    level = durations[slice(*chosen)]
    variation = float(level.std() / max(float(level.mean()), 1.0))
    unsteady = (steady_notes.durations_unsteady(variation),) if variation >= LEVEL_CV else ()
    window = describe_window("any", columns, chosen, "duration", unsteady)
    notes = [steady_notes.loads_unknown(with_workload)]
    limit: Limit = "unknown"
    if count < FEWEST_LEVEL_STEPS:
        limit = "too few steps"
        notes.append(steady_notes.too_few_steps(count, False))
    return SteadyState(None, (), (0, count), "trace", None, None, False, limit, (window,), tuple(notes))


def _kv_percentile(columns: LoadColumns, region: Range, mean_kv_tokens: float | None) -> float | None:
    """Which percentage of the region's decode-only steps has at most this many KV tokens a request?"""
    inside = slice(*region)
    mask = columns.decode_only[inside]
    kv, requests = columns.generation_kv[inside][mask], columns.generation_requests[inside][mask]
    if mean_kv_tokens is None or np.any(kv == UNTOLD):
        return None
    return 100 * int(np.count_nonzero(kv / np.maximum(requests, 1) <= mean_kv_tokens)) / int(mask.sum())


def _off_conc(plateau: Plateau, workload: Workload) -> float:
    """By how many requests is the peak above CONC, or (negative) below? 0 where it is what CONC promises."""
    expected = workload.requests_per_step
    off, near = plateau.peak - expected, NEAR_PEAK_SHARES[0] * expected
    if plateau.opened and not plateau.reached:
        return off if abs(off) > near_peak_margin(expected) else 0.0  # what is passed through has no exact height
    refilling = min(REFILL_STEPS * workload.completions_per_step, near)
    return off if off >= 1 or (off <= -1 and -off > refilling) else 0.0


def _concurrency_notes(
    columns: LoadColumns, plateau: Plateau, limit: Limit | None, workload: Workload | None
) -> Iterator[Note]:
    """What is unusual about the trace's concurrency and its prefills?"""
    if not plateau.reached:
        sized = int(columns.sized.sum())
        if limit == "too few steps":
            yield steady_notes.too_few_steps(sized, workload is not None)
        else:
            yield steady_notes.no_plateau(plateau.peak, limit or "unknown", workload is not None)
    off = 0.0 if workload is None else _off_conc(plateau, workload)
    if workload is not None and off:
        bound = limit == "prefill" and off < 0
        told = steady_notes.bound_by_prefill if bound else steady_notes.peak_is_not_conc
        yield told(plateau.peak, workload.requests_per_step)
    hits = int(columns.cache_hit.sum())
    if hits:
        yield steady_notes.cache_hits(hits, int(columns.prefill.sum()))


def _absence_notes(search: _Search, windows: tuple[SteadyWindow, ...]) -> Iterator[Note]:
    """Why is a kind of window absent?"""
    found = {window.kind for window in windows}
    inside = slice(*search.region)
    prefills = search.columns.prefill[inside]
    no_prefill = "no step of the region carries a prefill"
    if "mixed" not in found:
        if not prefills.any():
            reason = no_prefill if not search.columns.prefill.any() else f"{no_prefill}, those of the trace lie outside"
        elif not search.columns.decode[inside].any():
            reason = "every step of the region is a prefill, without a decode beside it"
        elif np.array_equal(prefills, search.columns.cache_hit[inside]):
            reason = "the prefills of the region are cache hits"
        else:
            reason = f"no {search.length} steps of the region hold both a prefill and a decode"
        yield steady_notes.no_window("mixed", reason)
    if "decode_only" not in found:
        yield steady_notes.no_window("decode_only", "no step of the region decodes without a prefill")
    if "prefill_decode" not in found:
        yield steady_notes.no_window("prefill_decode", no_prefill)
