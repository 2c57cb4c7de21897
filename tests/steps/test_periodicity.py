"""The shortest repeating pattern: exact, irregular, with a prefix and a suffix, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tracelens_infer.steps.periodicity import find_period, symbol_codes
from tracelens_infer.trace.columns import Int64Array


def codes(text: str) -> Int64Array:
    return symbol_codes(list(text))


def is_primitive(pattern: list[int]) -> bool:
    """Does it repeat nothing shorter?"""
    size = len(pattern)
    return not any(size % part == 0 and pattern == pattern[:part] * (size // part) for part in range(1, size))


patterns = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(is_primitive)


@given(patterns, st.integers(3, 30))
def test_repeats_without_noise(pattern: list[int], repeats: int) -> None:
    period = find_period(np.array(pattern * repeats))
    assert period is not None
    assert period.length <= len(pattern)
    if period.length < len(pattern):  # nearly periodic itself: one member in seven may differ
        assert period.agreement < 1
        return
    assert period.agreement == 1
    assert period.starts.tolist() == list(range(0, len(pattern) * repeats, len(pattern)))


distinct = st.lists(st.integers(0, 99), min_size=2, max_size=12, unique=True)


@given(distinct, st.integers(8, 40), st.integers(0, 20), st.integers(0, 20))
def test_a_prefix_and_a_suffix_do_not_count(pattern: list[int], repeats: int, before: int, after: int) -> None:
    assume(before + after <= len(pattern) * repeats / 2)
    sequence = [*range(1000, 1000 + before), *(pattern * repeats), *range(2000, 2000 + after)]
    period = find_period(np.array(sequence))
    assert period is not None
    assert period.length == len(pattern)
    assert (period.first, period.last) == (before, before + len(pattern) * repeats)
    assert period.starts.tolist() == list(range(before, before + len(pattern) * repeats, len(pattern)))


@given(distinct, st.integers(14, 40), st.data())
def test_an_irregular_repeat_is_one(pattern: list[int], repeats: int, data: st.DataObject) -> None:
    """A member is replaced, missing or additional in one repeat in the middle: the others keep their places."""
    where = data.draw(st.integers(6, repeats - 6))
    member = data.draw(st.integers(1, len(pattern) - 1))
    changed = list(pattern)
    change = data.draw(st.sampled_from(["replaced", "missing", "additional"]))
    if change == "replaced":
        changed[member] = 500
    elif change == "missing":
        del changed[member]
    else:
        changed.insert(member, 500)
    sequence = pattern * where + changed + pattern * (repeats - where - 1)
    period = find_period(np.array(sequence))
    assert period is not None
    assert period.length == len(pattern)
    shift = len(changed) - len(pattern)
    expected = [number * len(pattern) + (shift if number > where else 0) for number in range(repeats)]
    assert period.starts.tolist() == expected


@given(st.integers(0, 2**32 - 1), st.integers(5, 40), st.integers(30, 2500))
def test_chance_has_no_period(seed: int, symbols: int, size: int) -> None:
    assert find_period(np.random.default_rng(seed).integers(0, symbols, size)) is None


@given(distinct, st.integers(20, 60), st.integers(0, 2**32 - 1))
def test_a_multiple_is_not_preferred_among_noise(pattern: list[int], repeats: int, seed: int) -> None:
    sequence = np.array(pattern * repeats)
    chance = np.random.default_rng(seed)
    odd = chance.random(len(sequence)) < 0.03
    sequence[odd] = chance.integers(200, 300, int(odd.sum()))
    period = find_period(sequence)
    assert period is not None
    assert period.length == len(pattern)
    assert len(period.starts) >= 0.5 * repeats  # many next to an edge hide the repeats beyond them


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("AAAAA", 1),
        ("ABABAB", 2),
        ("AABBAABBAABB", 4),
        ("ABACABACABAC", 4),
        (("E" + "L" * 36 + "S") * 4, 38),
        ("xyAAAz", 1),
    ],
)
def test_examples(text: str, length: int) -> None:
    period = find_period(codes(text))
    assert period is not None
    assert period.length == length


@pytest.mark.parametrize("text", ["", "A", "AA", "ABAB", "ABCDEFGH", "ABCDEFGABxyz"])
def test_too_little_is_none(text: str) -> None:
    assert find_period(codes(text)) is None


def test_a_long_sequence_with_long_irregular_repeats() -> None:
    chance = np.random.default_rng(1)
    pattern = chance.integers(0, 20, 700)
    sequence = np.append(chance.integers(0, 20, 5000), np.tile(pattern, 200))
    odd = chance.random(len(sequence)) < 0.02
    sequence[odd] = chance.integers(0, 20, int(odd.sum()))
    period = find_period(sequence)
    assert period is not None
    assert period.length == 700
    assert abs(period.first - 5000) <= 5
    assert len(period.starts) == 200
    assert set(np.diff(period.starts).tolist()) == {700}
