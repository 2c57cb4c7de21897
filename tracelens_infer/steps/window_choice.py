"""Which window of a region to look at: one rule a kind of window, each by sliding sums over the region's steps."""

from __future__ import annotations

import numpy as np

from tracelens_infer.steps.regions import UNTOLD, FloatArray, LoadColumns, Range, runs_of
from tracelens_infer.trace.columns import BoolArray, Int64Array

__all__ = ["choose_decode_only", "choose_level_durations", "choose_mixed", "choose_prefill_decode"]

# A decode-only run this much shorter than the longest still competes with its larger contexts; a shorter one
# averages too few steps to stand for them.
COMPETING_RUN_SHARE = 0.5
LEVEL_CV = 0.15  # coefficient of variation below which a window's durations count as steady
HALF_A_STEP = 0.5  # a whole number of prefills cannot be asked to come nearer to a fractional one
SAME_DECIMALS = 9  # two distances from an expected figure are the same to here: their last bits are rounding


def choose_mixed(columns: LoadColumns, region: Range, length: int, expected: float | FloatArray) -> Range | None:
    """Which window has the prefill share nearest to the expected one; None where none holds prefill and decode.

    ``expected`` is one figure, or one for each start of a window in the region. Windows within half a step of it are
    equally near: nothing but the fraction in the expected figure tells them apart. Ties go to the window with most
    requests a step, then to the one nearest the region's middle, then to the earlier. A prefill that the prefix
    cache answers does not make a window mixed.
    """
    inside = slice(*region)
    prefill, sized = columns.prefill[inside], columns.sized[inside]
    share: FloatArray = _sliding(prefill, length) / np.maximum(_sliding(columns.ran[inside], length), 1)
    fresh = _sliding(prefill & ~columns.cache_hit[inside], length)
    decodes = _sliding(columns.decode[inside], length)
    requests = _sliding(np.where(sized, columns.requests[inside], 0), length)
    distance = np.maximum(np.abs(share - expected), HALF_A_STEP / length).round(SAME_DECIMALS)
    best = _narrow((fresh > 0) & (decodes > 0), distance)
    best = _narrow(best, -requests / np.maximum(_sliding(sized, length), 1))
    best = _narrow(best, _off_middle(share.size))
    return _first(best, region[0], np.arange(share.size), np.full(share.size, length))


def choose_decode_only(columns: LoadColumns, region: Range, length: int) -> Range | None:
    """Which contiguous decode-only steps hold the most KV tokens a request; the longest run where that is untold.

    A window is a whole run, or ``length`` steps of a longer one. Untold KV tokens take the end of the longest run:
    contexts grow along a run.
    """
    inside = slice(*region)
    mask, kv = columns.decode_only[inside], columns.generation_kv[inside]
    if np.any(kv[mask] == UNTOLD):
        run_starts, run_ends = runs_of(mask)
        longest = int(np.argmax(run_ends - run_starts))
        last = int(run_ends[longest])
        return region[0] + max(int(run_starts[longest]), last - length), region[0] + last
    starts, lengths = _windows(mask, length, COMPETING_RUN_SHARE)
    requests = _between(columns.generation_requests[inside], starts, lengths)
    best = _narrow(np.ones(starts.size, np.bool_), -_between(kv, starts, lengths) / np.maximum(requests, 1))
    return _first(best, region[0], starts, lengths)


def choose_prefill_decode(columns: LoadColumns, region: Range, length: int) -> Range | None:
    """Which contiguous steps with a prefill form the longest run, up to ``length``? Ties go to the most new tokens."""
    inside = slice(*region)
    starts, lengths = _windows(columns.prefill[inside], length, 1.0)
    tokens = columns.context_tokens[inside]
    size = np.where(tokens == UNTOLD, columns.context_requests[inside], tokens)
    best = _narrow(np.ones(starts.size, np.bool_), -_between(size, starts, lengths))
    return _first(best, region[0], starts, lengths)


def choose_level_durations(durations_ns: Int64Array, length: int) -> Range:
    """Which window's durations are steady and lowest; the steadiest where none is below ``LEVEL_CV``?

    Ties go to the window nearest the middle, where a trace without loads most likely is in its steady state.
    """
    sums = _sliding(durations_ns, length)
    # Python's integers: squared nanoseconds outgrow int64, and one stall of a minute drowns the rest in a double.
    squares = np.concatenate(([0], np.cumsum(durations_ns.astype(object) ** 2)))
    scaled = length * (squares[length:] - squares[:-length]) - sums.astype(object) ** 2  # variance * length ** 2
    variation = (np.sqrt(scaled.astype(np.float64)) / np.maximum(sums, 1)).round(SAME_DECIMALS)
    level = variation < LEVEL_CV
    best = _narrow(level, sums) if level.any() else _narrow(np.ones_like(level), variation)
    first = int(np.argmax(_narrow(best, _off_middle(sums.size))))
    return first, first + length


def _windows(mask: BoolArray, length: int, competing_share: float) -> tuple[Int64Array, Int64Array]:
    """Where do the windows start, and how long are they: ``length`` steps of a run, or the whole of a shorter one?"""
    run_starts, run_ends = runs_of(mask)
    if not run_starts.size:
        return run_starts, run_starts
    full = np.minimum(run_ends - run_starts, length)
    starts = np.flatnonzero(mask)
    run = np.searchsorted(run_starts, starts, side="right") - 1
    lengths = np.minimum(run_ends[run] - starts, length)
    competes = (lengths == full[run]) & (lengths >= competing_share * full.max())
    return starts[competes], lengths[competes]


def _between(values: BoolArray | Int64Array, starts: Int64Array, lengths: Int64Array) -> Int64Array:
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)))
    between: Int64Array = total[starts + lengths] - total[starts]
    return between


def _sliding(values: BoolArray | Int64Array, length: int) -> Int64Array:
    starts = np.arange(values.size - length + 1, dtype=np.int64)
    return _between(values, starts, np.full_like(starts, length))


def _off_middle(count: int) -> Int64Array:
    """How far, in half steps, is each of ``count`` windows' middle from the middle of them all?"""
    return np.abs(2 * np.arange(count, dtype=np.int64) - (count - 1))


def _narrow(candidates: BoolArray, score: Int64Array | FloatArray) -> BoolArray:
    """Which candidates have the lowest score?"""
    if not candidates.any():
        return candidates
    lowest: BoolArray = candidates & (score == score[candidates].min())
    return lowest


def _first(candidates: BoolArray, offset: int, starts: Int64Array, lengths: Int64Array) -> Range | None:
    if not candidates.any():
        return None
    at = int(np.argmax(candidates))
    return offset + int(starts[at]), offset + int(starts[at] + lengths[at])
