"""What is the shortest pattern that a sequence repeats, and where does each repeat begin?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens_infer.trace.columns import BoolArray, Int64Array

__all__ = ["LEAST_REPEATS", "Period", "find_period", "symbol_codes"]

LEAST_REPEATS = 3
"""Two equal blocks are a coincidence as often as a loop; the shortest recordings of loops hold three iterations."""

_LEAST_AGREEMENT = 0.7
"""An irregular member (an idle step, a skipped call) disagrees with the one before it and the one after it, so one
member in seven may be irregular. Noise agrees less: two equally frequent symbols in half of the places."""
_LEAST_COVERED = 0.5  # what precedes and follows the repeats may be as long as they are, not longer

_EXACT_LENGTH = 1024
"""Up to here every period is tried; above it those that a transform finds promising."""
_PROJECTIONS = 6  # random signs a symbol; the estimate's error shrinks with their number
_PROMISING = 48

_STRETCH = 0.25  # of a repeat, short of two, from where on the space between two anchors holds two repeats

_SLACK = 4
"""Mismatches that say nothing about a period: an irregular member differs from the one before and the one after it,
and next to the edge from one of them only."""


@dataclass(frozen=True, slots=True)
class Period:
    """A pattern of ``length`` members repeats in ``sequence[first:last]``.

    Attributes:
        length: members of the pattern.
        first, last: half-open range in which it repeats.
        starts: where each repeat begins, ascending; irregular ones are longer or shorter than ``length``.
        agreement: share of the members in the range that equal the one a period later.
    """

    length: int
    first: int
    last: int
    starts: Int64Array
    agreement: float


def symbol_codes(values: list[str]) -> Int64Array:
    """Equal texts get equal numbers, in order of first appearance."""
    seen: dict[str, int] = {}
    return np.fromiter((seen.setdefault(value, len(seen)) for value in values), dtype=np.int64, count=len(values))


def find_period(sequence: Int64Array, least: int = LEAST_REPEATS) -> Period | None:
    """What is the shortest pattern that repeats at least ``least`` times over most of the sequence? None: nothing.

    Tolerates irregular members, also missing and additional ones, and a prefix and a suffix that do not repeat. A
    longer pattern is preferred only where it explains at least half of what a shorter one leaves unexplained:
    one odd member in every fortieth place makes a period of forty, an odd one now and then does not.
    Takes time proportional to n log n.
    """
    size = len(sequence)
    if size < least:
        return None
    found = []
    for length in _candidate_lengths(sequence, least):
        stretch = _best_stretch(sequence[length:] == sequence[:-length])
        if stretch is None:
            continue
        first, last, matches = stretch
        long_enough = last - first >= (least - 1) * length and last - first + length >= _LEAST_COVERED * size
        if long_enough and matches >= _LEAST_AGREEMENT * (last - first):
            found.append((length, first, last + length, matches / (last - first), size - length - matches))
    if not found:
        return None
    best = min(found, key=lambda one: one[4])
    length, first, last, agreement, _ = next(one for one in found if _is_as_good(sequence, one[0], best))
    starts = _repeat_starts(sequence, length, first, last)
    if len(starts) < least:
        return None
    return Period(length, first, last, starts, agreement)


def _is_as_good(sequence: Int64Array, length: int, best: tuple[int, int, int, float, int]) -> bool:
    """Does a period leave, where the best one repeats, at most twice as much unexplained? Edges do not count."""
    best_length, first, last, _, _ = best
    part = sequence[first:last]
    mismatches = int((part[length:] != part[:-length]).sum())
    allowed = 2 * int((part[best_length:] != part[:-best_length]).sum()) + _SLACK
    return length == best_length or (length < best_length and mismatches <= allowed)


def _candidate_lengths(sequence: Int64Array, least: int) -> list[int]:
    """Lengths worth trying, ascending."""
    size = len(sequence)
    longest = size // least
    if size <= _EXACT_LENGTH:
        return list(range(1, longest + 1))
    estimate = _agreement_by_lag(sequence)[: longest + 1]
    estimate /= size - np.arange(len(estimate))
    estimate[0] = -np.inf
    # Peaks only: around one of them its neighbours are promising too, and would crowd out the others.
    inner = np.append(np.inf, estimate[1:])
    peak = (estimate >= np.append(inner[1:], -np.inf)) & (estimate >= np.append(-np.inf, estimate[:-1]))
    peaks = np.flatnonzero(peak)
    best = peaks[np.argsort(-estimate[peaks], kind="stable")[:_PROMISING]]
    return sorted({1, *best.tolist()})


def _agreement_by_lag(sequence: Int64Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How many members equal the one so many places on? Estimated: equal symbols get equal random signs."""
    size = len(sequence)
    padded = 1 << (2 * size - 1).bit_length()
    _, codes = np.unique(sequence, return_inverse=True)
    signs = np.random.default_rng(0).choice(np.array([-1.0, 1.0]), size=(_PROJECTIONS, int(codes.max()) + 1))
    total = np.zeros(size)
    for row in signs:
        spectrum = np.fft.rfft(row[codes], padded)
        total += np.fft.irfft(spectrum * np.conj(spectrum), padded)[:size]
    return total / _PROJECTIONS


def _best_stretch(match: BoolArray) -> tuple[int, int, int] | None:
    """The stretch in which matches outweigh mismatches most, half-open, and its number of matches."""
    if not match.any():
        return None
    cost = _LEAST_AGREEMENT / (1 - _LEAST_AGREEMENT)
    score = np.append(0.0, np.cumsum(np.where(match, 1.0, -cost)))
    lowest = np.minimum.accumulate(score)
    last = int((score - lowest).argmax())
    first = int(np.argmax(score[: last + 1] == lowest[last]))
    return first, last, int(match[first:last].sum())


def _repeat_starts(sequence: Int64Array, length: int, first: int, last: int) -> Int64Array:
    """Where each repeat begins, told by a group of members that a repeat has once."""
    part = sequence[first:last]
    repeats = len(part) / length
    anchor, offset = _anchor(part, length, repeats)
    starts = anchor - offset
    filled = []
    for start, following in zip(starts.tolist(), [*starts[1:].tolist(), len(part)], strict=True):
        # A repeat with additional members is longer; one whose anchor is missing lies within twice the length.
        tolerance = 0.5 if following == len(part) else _STRETCH
        count = max(int((following - start) / length + tolerance), 1)
        filled += [start + length * number for number in range(count)]
    while filled and filled[0] >= length:
        filled.insert(0, filled[0] - length)
    # A piece of a last repeat counts from half of it on.
    whole = [start for start in filled if start >= 0 and len(part) - start >= length / 2]
    kept = np.unique(np.array(whole, dtype=np.int64))
    return kept + first


def _in_step(anchor: Int64Array, length: int) -> Int64Array:
    """The anchors without those that chance put there: alone, out of step with the ones before and after."""
    if len(anchor) < LEAST_REPEATS:
        return anchor
    phase = anchor % length
    same = phase[1:] == phase[:-1]
    kept = anchor[np.append(same, False) | np.append(False, same)]
    return kept if len(kept) >= len(anchor) / 2 else anchor


def _anchor(part: Int64Array, length: int, repeats: float) -> tuple[Int64Array, int]:
    """Positions of a group that occurs about once a repeat, and how far into the repeat it lies."""
    _, codes = np.unique(part, return_inverse=True)
    width = 1
    while True:
        counts = np.bincount(codes)
        away = np.abs(counts - repeats)
        best = int(away.argmin())
        if away[best] <= max(1.0, 0.1 * repeats) or width >= length:
            chosen = np.flatnonzero(away <= away[best])
            at_first = [int(np.argmax(codes == code)) for code in chosen[:64].tolist()]
            best = int(chosen[int(np.argmin(at_first))])
            anchor = np.flatnonzero(codes == best)
            near = np.flatnonzero(np.diff(anchor) < length / 2) + 1  # twice in one repeat: the first one counts
            anchor = np.delete(anchor, near)
            anchor = _in_step(anchor, length)
            return anchor, int(anchor[0]) % length
        pairs = codes[:-width] * (int(codes.max()) + 1) + codes[width:]
        tail = len(codes) - len(pairs)
        _, codes = np.unique(pairs, return_inverse=True)
        if not len(codes) or tail <= 0:
            return np.arange(0, len(part), length), 0
        width *= 2
