"""Workload: the closed-form figures, their limits, and a simulation that they have to agree with."""

from __future__ import annotations

import heapq
import math
import random
import statistics
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_infer.errors import UsageError
from tracelens_infer.steps.local_mix import LAST_STEP
from tracelens_infer.steps.workload import RangeRatioStyle, Workload

EXAMPLE = Workload(64, 1024, 0.8)


def codes(workload: Workload) -> list[str]:
    return [note.code for note in workload.notes]


def profile_codes(workload: Workload) -> list[str]:
    return [note.code for note in workload.profile_window().notes]


# --------------------------------------------------------------------------------------------- worked example


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("shortest_output_tokens", 819.2),
        ("longest_output_tokens", 1024.0),
        ("interpreted_ratio", 0.8),
        ("mean_output_tokens", 921.6),
        ("completions_per_step", 0.069444),
        ("mix_fraction_document", 0.069444),
        ("mix_fraction_batched", 0.067088),
        ("mix_fraction_exclusive", 0.065001),  # 64 / 984.6
        ("exclusive_cycle_steps", 984.6),
        ("prompts", 640),
        ("total_steps", 9216.0),
        ("prefill_decode_steps", 640.0),
        ("decode_only_steps", 8576.0),
        ("steps_needed", 15),
        ("ramp_up_steps", 64),
        ("rank_concurrency", 64.0),
        ("requests_per_step", 64.0),
        ("analytic_window_steps", (4096.0, 5120.0)),
        ("notes", ()),
        ("mix_fraction_chunked", None),
        ("chunks_per_request", None),
        ("uncached_prompt_tokens", None),
        ("prefill_budget_tokens", None),
        ("is_prefill_bound", None),
    ],
)
def test_worked_example(figure: str, expected: object) -> None:
    value = getattr(EXAMPLE, figure)
    if isinstance(expected, float):
        assert value == pytest.approx(expected, abs=1e-6)
    else:
        assert value == expected


def test_profile_window_of_the_worked_example() -> None:
    profile = EXAMPLE.profile_window()
    assert (profile.max_iters, profile.delay_iters, profile.unclamped_max_iters) == (256, 4480, 256.0)
    assert (profile.first_step, profile.end_step) == (4480, 4736)
    assert profile.notes == ()


def test_local_mix_of_the_worked_example() -> None:
    mix = EXAMPLE.local_mix(4480, 4736)
    assert mix.steps == 256
    assert mix.prefill_decode_steps == pytest.approx(39.02, abs=0.01)
    assert mix.completions == pytest.approx(42.39, abs=0.01)
    assert mix.fraction == pytest.approx(0.1524, abs=1e-4)
    assert 256 * EXAMPLE.mix_fraction_document == pytest.approx(17.8, abs=0.05)


@pytest.mark.parametrize(("k", "expected"), [(1, (819.2, 1024)), (2, (1638.4, 2048)), (10, (8192, 10240))])
def test_completion_ranges(k: int, expected: tuple[float, float]) -> None:
    assert EXAMPLE.completion_range_steps(k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("first", "end", "inside"),
    [(4480, 4736, True), (4096, 5120, True), (4095, 4200, False), (5000, 5121, False), (4500, 4500, False)],
)
def test_is_in_analytic_window(first: int, end: int, inside: bool) -> None:
    assert EXAMPLE.is_in_analytic_window(first, end) is inside


# ---------------------------------------------------------------------------------------------- range ratio


@pytest.mark.parametrize(
    ("given_tokens", "ratio", "shortest", "longest", "document_ratio"),
    [
        (1000, 0.0, 1000, 1000, 1.0),
        (1000, 0.25, 750, 1250, 0.6),
        (1024, 0.8, 204.8, 1843.2, 1 / 9),
        (100, 0.5, 50, 150, 1 / 3),
    ],
)
def test_vllm_style(given_tokens: int, ratio: float, shortest: float, longest: float, document_ratio: float) -> None:
    work = Workload(64, given_tokens, ratio, range_ratio_style="vllm")
    assert work.shortest_output_tokens == pytest.approx(shortest)
    assert work.longest_output_tokens == pytest.approx(longest)
    assert work.interpreted_ratio == pytest.approx(document_ratio)
    assert work.mean_output_tokens == pytest.approx(given_tokens)


def test_styles_agree_on_the_same_lengths() -> None:
    # r = 1/9 around 921.6 is R = 0.8 below 1024; 9216 tokens keep the numbers whole.
    by_range = Workload(64, 10240, 0.8)
    by_middle = Workload(64, 9216, 1 / 9, range_ratio_style="vllm")
    assert by_middle.profile_window().delay_iters == by_range.profile_window().delay_iters
    assert by_middle.completions_per_step == pytest.approx(by_range.completions_per_step)
    assert by_middle.analytic_window_steps == pytest.approx(by_range.analytic_window_steps)
    assert by_middle.local_mix(40000, 46000).completions == pytest.approx(by_range.local_mix(40000, 46000).completions)


# ------------------------------------------------------------------------------------------------- prefills


@pytest.mark.parametrize(
    ("prompt", "cached", "chunk", "chunks", "fraction", "bound"),
    [
        (1984, 0, 2048, 1, 0.06944, False),  # fits the 1,984 tokens that 64 decodes leave
        (1985, 0, 2048, 2, 0.13889, False),
        (8192, 1024, 2048, 4, 0.27778, False),
        (8192, 8192, 2048, 1, 0.06944, False),  # all cached: the last token is computed all the same
        (28569, 0, 2048, 15, 1.0, False),  # 0.069444 * 28569 = 1983.96, and there is room for 1984
        (28570, 0, 2048, 15, 1.0, True),  # 1984.03
        (40000, 0, 2048, 21, 1.0, True),
    ],
)
def test_chunked_prefill(prompt: int, cached: int, chunk: int, chunks: int, fraction: float, bound: bool) -> None:
    work = replace(EXAMPLE, prompt_tokens=prompt, cached_tokens=cached, chunk_size=chunk)
    assert work.chunks_per_request == chunks
    assert work.mix_fraction_chunked == pytest.approx(fraction, abs=1e-5)
    assert work.is_prefill_bound is bound


def test_prefill_bound_starts_where_arriving_tokens_pass_the_room() -> None:
    # lambda = 64 / 1024 = 1/16, room 2048 - 64 = 1984 tokens: 31,744 prompt tokens are just carried.
    work = Workload(64, 1024, prompt_tokens=31744, chunk_size=2048)
    assert work.is_prefill_bound is False
    assert "prefill_bound" not in codes(work)
    over = replace(work, prompt_tokens=31745)
    assert over.is_prefill_bound is True
    assert "prefill_bound" in codes(over)
    assert "never reaches CONC = 64" in over.notes[0].text


# ---------------------------------------------------------------------------------------------------- notes


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (EXAMPLE, []),
        (Workload(64, 64), []),  # lambda is 1 exactly: the cap does not bite
        (Workload(64, 63), ["mix_fraction_capped"]),
        (Workload(64, 1024, prompt_tokens=1984, chunk_size=2048), []),
        (Workload(64, 1024, prompt_tokens=1985, chunk_size=2048), ["prompt_is_chunked"]),
        (Workload(64, 128, prompt_tokens=8192, chunk_size=2048), ["prefill_bound", "prompt_is_chunked"]),
        (Workload(64, 1024, data_parallel=2), ["one_data_parallel_rank"]),
        (Workload(64, 1024, pipeline_stages=2), ["pipeline_micro_batches"]),
    ],
)
def test_notes(workload: Workload, expected: list[str]) -> None:
    assert codes(workload) == expected
    assert all(note.text for note in workload.notes)


@pytest.mark.parametrize(("conc", "osl", "ratio"), [(8, 400, 0.96), (8, 490, 0.6), (10, 560, 0.75)])
def test_a_rounding_error_adds_no_step(conc: int, osl: int, ratio: float) -> None:
    work = Workload(conc, osl, ratio)
    assert 1 / work.mix_fraction_document > 49  # by a rounding error: it is 49
    assert work.steps_needed == 49


def test_caps() -> None:
    work = Workload(64, 32)
    assert (work.completions_per_step, work.mix_fraction_document, work.decode_only_steps) == (2.0, 1.0, 0.0)
    assert work.steps_needed == 1
    assert Workload(4, 1, 0.0).mix_fraction_exclusive == 1.0


# --------------------------------------------------------------------------------------------- profile window


@pytest.mark.parametrize(
    ("workload", "max_iters", "delay_iters", "expected"),
    [
        (Workload(64, 1024, 0.8), 256, 4480, []),
        (Workload(64, 1000, 0.8), 250, 4375, []),
        (Workload(256, 256, 0.8), 32, 1136, ["max_iters_clamped"]),  # asked for 16
        (Workload(16, 1024, 0.8), 512, 4352, ["max_iters_clamped"]),  # asked for 1,024
        (Workload(1, 1024, 0.8), 512, 4352, ["max_iters_clamped", "profile_below_steps_needed"]),
        (Workload(256, 32, 0.8), 32, 256, ["max_iters_clamped", "delay_raised_to_ramp_up"]),  # centre 144 - 16
        (Workload(64, 1024, 0.8, data_parallel=2), 512, 4352, []),  # a rank has 32: 512 as asked
        (Workload(64, 1024, 0.95), 256, 4864, []),  # the window is just as long
        (Workload(64, 1024, 0.96), 256, 4890, ["completions_in_one_burst"]),
        (Workload(64, 1024), 256, 4992, ["completions_in_one_burst"]),
        (Workload(1, 500), 512, 2244, ["max_iters_clamped"]),  # one request at a time is no burst
    ],
)
def test_profile_window(workload: Workload, max_iters: int, delay_iters: int, expected: list[str]) -> None:
    profile = workload.profile_window()
    assert (profile.max_iters, profile.delay_iters) == (max_iters, delay_iters)
    assert profile_codes(workload) == expected


def test_limits_of_the_profile_move() -> None:
    wide = Workload(1, 1024, 0.8)
    assert wide.profile_window(longest_steps=4096).max_iters == 4096
    assert wide.profile_window(longest_steps=100_000).max_iters == 16384
    assert EXAMPLE.profile_window(shortest_steps=300).max_iters == 300
    assert Workload(1024, 1024).profile_window(shortest_steps=1).max_iters == 16


@pytest.mark.parametrize("limits", [(0, 512), (513, 512), (32, 0)])
def test_limits_of_the_profile_are_checked(limits: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="_steps"):
        EXAMPLE.profile_window(*limits)


# ------------------------------------------------------------------------------------------------------ ranks


def test_ranks_share_the_requests_and_keep_the_steps() -> None:
    rank = replace(EXAMPLE, data_parallel=4)
    assert (rank.rank_concurrency, rank.rank_prompts, rank.requests_per_step) == (16, 160, 16)
    assert rank.total_steps == EXAMPLE.total_steps
    assert rank.completions_per_step == pytest.approx(EXAMPLE.completions_per_step / 4)
    alone = Workload(16, 1024, 0.8)
    assert rank.local_mix(4480, 4736) == alone.local_mix(4480, 4736)
    assert rank.profile_window().max_iters == alone.profile_window().max_iters


@pytest.mark.parametrize(
    ("dp", "pp", "expected"), [(1, 1, 64), (8, 1, 8), (1, 4, 16), (8, 4, 2), (3, 1, 64 / 3), (64, 4, 1)]
)
def test_requests_per_step(dp: int, pp: int, expected: float) -> None:
    assert Workload(64, 1024, data_parallel=dp, pipeline_stages=pp).requests_per_step == pytest.approx(expected)


def test_a_rank_may_have_a_budget_below_the_concurrency_of_all_ranks() -> None:
    assert Workload(4096, 1024, chunk_size=2048, data_parallel=8).prefill_budget_tokens == 1536


# ----------------------------------------------------------------------------------------- values out of range

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("concurrency", bad) for bad in (0, -1, 1.5, 64.0, NAN, INFINITY, True, None, "64", 10**10)),
        *(("output_tokens", bad) for bad in (0, -5, 1024.0, NAN, None)),
        *(("length_ratio", bad) for bad in (-0.01, 1.01, NAN, INFINITY, -INFINITY, None, True, "0.8")),
        *(("num_prompts", bad) for bad in (0, -640, 6.4)),
        *(("prompt_tokens", bad) for bad in (0, -1, 1.5, NAN)),
        *(("cached_tokens", bad) for bad in (-1, 0.5, None)),
        *(("chunk_size", bad) for bad in (0, -1, 63, 64, 2048.0)),
        *(("data_parallel", bad) for bad in (0, -1, 65, 1.0, None)),
        *(("pipeline_stages", bad) for bad in (0, -1, 1.0, None)),
        ("range_ratio_style", "sglang"),
    ],
)
def test_values_out_of_range(field: str, value: object) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(UsageError) as caught:
        replace(EXAMPLE, **changed)
    assert field in caught.value.thing
    assert str(value) in caught.value.thing
    assert caught.value.reason
    assert caught.value.action
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("fields", "thing", "reason"),
    [
        ({"range_ratio_style": "vllm", "length_ratio": 1.0}, "length_ratio", "[0, 1)"),
        ({"range_ratio_style": "vllm", "length_ratio": -0.1}, "length_ratio", "[0, 1)"),
        ({"cached_tokens": 10}, "cached_tokens", "length of a prompt"),
        ({"prompt_tokens": 100, "cached_tokens": 101}, "cached_tokens", "100 tokens of a prompt"),
        ({"chunk_size": 16, "data_parallel": 4}, "chunk_size", "beside 16 decodes"),
    ],
)
def test_values_that_exclude_each_other(fields: dict[str, Any], thing: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(EXAMPLE, **fields)
    assert thing in caught.value.thing
    assert reason in caught.value.reason


@pytest.mark.parametrize(("first", "end"), [(5, 5), (6, 5), (-1, 5), (0, 0)])
def test_local_mix_refuses_an_empty_range(first: int, end: int) -> None:
    with pytest.raises(UsageError, match="step"):
        EXAMPLE.local_mix(first, end)


@pytest.mark.parametrize("generation", [0, -1, cast(int, 1.5)])
def test_completion_range_refuses_what_is_no_generation(generation: int) -> None:
    with pytest.raises(UsageError, match="generation"):
        EXAMPLE.completion_range_steps(generation)


def test_numpy_integers_are_whole_numbers() -> None:
    assert Workload(cast(int, np.int64(64)), 1024, 0.8).total_steps == 9216.0


@pytest.mark.parametrize("ratio", [0.0, 1.0, 0, 1])
def test_limits_of_the_ratio_are_allowed(ratio: float) -> None:
    assert Workload(64, 1024, ratio).interpreted_ratio == ratio


# ------------------------------------------------------------------------------------------- local mix, numerics


def plain_local_mix(work: Workload, first: int, end: int, generations: int = 400) -> tuple[float, float]:
    """Sum the formula term by term, as the page has it."""
    expected = completions = 0.0
    for step in range(first, end):
        rate = 0.0
        for k in range(1, generations):
            variance = (
                k * ((1 - work.interpreted_ratio) * work.longest_output_tokens) ** 2 / 12
                + work.rank_concurrency**2 / 12
            )
            distance = step - k * work.mean_output_tokens
            rate += work.rank_concurrency * math.exp(-(distance**2) / 2 / variance) / math.sqrt(2 * math.pi * variance)
        completions += rate
        expected += 1 - math.exp(-rate)
    return expected, completions


@pytest.mark.parametrize(
    ("work", "first", "end"),
    [
        (EXAMPLE, 4480, 4736),
        (EXAMPLE, 0, 64),
        (Workload(64, 1024), 5000, 5200),
        (Workload(8, 128, 0.0), 200, 300),
        (Workload(256, 32, 0.0), 100, 200),
        (Workload(1, 7), 20, 60),
        (Workload(100, 3, 0.5, data_parallel=3), 10, 60),
    ],
)
def test_local_mix_is_the_sum_of_the_formula(work: Workload, first: int, end: int) -> None:
    mix = work.local_mix(first, end)
    assert (mix.prefill_decode_steps, mix.completions) == pytest.approx(plain_local_mix(work, first, end), rel=1e-9)


def test_local_mix_does_not_depend_on_how_it_is_cut() -> None:
    whole = EXAMPLE.local_mix(0, 40_000)
    parts = [EXAMPLE.local_mix(first, first + 100) for first in range(0, 40_000, 100)]
    assert sum(part.prefill_decode_steps for part in parts) == pytest.approx(whole.prefill_decode_steps, rel=1e-12)
    assert sum(part.completions for part in parts) == pytest.approx(whole.completions, rel=1e-12)


def test_local_mix_of_long_ranges_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = EXAMPLE.local_mix(0, 10_000)
    monkeypatch.setattr("tracelens_infer.steps.local_mix.CELLS_AT_ONCE", 1 << 15)
    assert EXAMPLE.local_mix(0, 10_000).completions == pytest.approx(whole.completions, rel=1e-12)


def test_local_mix_tends_to_the_stationary_one() -> None:
    work = Workload(64, 128, 0.2)
    mix = work.local_mix(100_000, 101_000)
    assert mix.completions / mix.steps == pytest.approx(work.completions_per_step, rel=1e-3)
    assert mix.fraction == pytest.approx(work.mix_fraction_batched, rel=1e-3)


def test_thinned_generations_give_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Workload(20_000, 2, 0.5)  # neighbours are 1.5 steps apart and 5,774 wide
    thinned = work.local_mix(1_000, 1_064)  # near the first range, where the sum is cut
    monkeypatch.setattr("tracelens_infer.steps.local_mix.WAVES_AT_MOST", 1 << 20)
    full = work.local_mix(1_000, 1_064)
    assert thinned != full  # the limit was at work
    assert thinned.completions == pytest.approx(full.completions, rel=1e-6)


def test_extreme_workloads_stay_small() -> None:
    assert Workload(10**9, 1, 0.0).local_mix(5_000, 5_032).prefill_decode_steps == pytest.approx(32)
    assert Workload(1, 10**9, 0.0).local_mix(444_444_444, 444_444_476).completions < 1e-6


# -------------------------------------------------------------------------------------------------- properties

CONC = st.integers(1, 512)
OSL = st.integers(1, 4096)
RATIO = st.floats(0, 1)
STYLE = st.sampled_from(["document", "vllm"])


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    style = cast(RangeRatioStyle, draw(STYLE))
    ratio = draw(st.floats(0, 1, exclude_max=style == "vllm"))
    return Workload(draw(CONC), draw(OSL), ratio, range_ratio_style=style)


@given(OSL, RATIO, st.lists(CONC, min_size=2, max_size=2, unique=True))
def test_more_requests_at_once_finish_more_a_step(osl: int, ratio: float, concurrency: list[int]) -> None:
    fewer, more = (Workload(value, osl, ratio) for value in sorted(concurrency))
    assert fewer.completions_per_step < more.completions_per_step
    assert fewer.mix_fraction_document <= more.mix_fraction_document
    assert fewer.mix_fraction_batched <= more.mix_fraction_batched
    assert fewer.steps_needed >= more.steps_needed


@given(workloads())
def test_figures_stay_in_their_limits(work: Workload) -> None:
    assert 0 <= work.shortest_output_tokens <= work.mean_output_tokens <= work.longest_output_tokens
    assert 0 <= work.interpreted_ratio <= 1
    for fraction in (work.mix_fraction_document, work.mix_fraction_batched, work.mix_fraction_exclusive):
        assert 0 < fraction <= 1
    assert work.mix_fraction_batched <= work.mix_fraction_document
    assert work.decode_only_steps >= 0
    assert work.steps_needed * work.mix_fraction_document == pytest.approx(1, abs=work.mix_fraction_document)


@given(workloads())
def test_steps_of_a_run_add_up_unless_capped(work: Workload) -> None:
    together = work.prefill_decode_steps + work.decode_only_steps
    if "mix_fraction_capped" in codes(work):
        assert together >= work.total_steps
    else:
        assert together == pytest.approx(work.total_steps)


@given(workloads())
def test_profile_window_is_within_its_limits_and_says_when_they_bite(work: Workload) -> None:
    profile = work.profile_window()
    assert 32 <= profile.max_iters <= 512
    assert profile.delay_iters >= work.concurrency
    assert ("max_iters_clamped" in profile_codes(work)) == (profile.max_iters != round(profile.unclamped_max_iters))
    if not profile.notes:
        middle = (profile.first_step + profile.end_step) / 2
        assert middle == pytest.approx(5 * work.mean_output_tokens, abs=0.5)


@given(st.integers(4, 256), st.integers(1, 16), RATIO)
def test_local_mix_over_a_whole_run_finds_every_request(concurrency: int, times: int, ratio: float) -> None:
    work = Workload(concurrency, 2 * concurrency * times, ratio)
    mix = work.local_mix(0, round(work.total_steps))
    # Of the tenth group half is still to come; at the end a step more or less is up to 1.4 requests.
    assert mix.completions == pytest.approx(work.prompts - concurrency / 2, abs=concurrency / 4 + 1.5)
    assert 0 < mix.prefill_decode_steps <= min(mix.completions, mix.steps)


@given(workloads(), st.integers(0, 5000), st.integers(1, 200))
def test_local_mix_is_a_number_of_steps(work: Workload, first: int, length: int) -> None:
    mix = work.local_mix(first, first + length)
    assert 0 <= mix.prefill_decode_steps <= mix.steps
    assert mix.prefill_decode_steps <= mix.completions * (1 + 1e-9)


@given(st.integers(65, 4096), st.integers(1, 20_000), st.data())
def test_chunks_cover_the_prompt(chunk: int, prompt: int, data: st.DataObject) -> None:
    cached = data.draw(st.integers(0, prompt))
    work = Workload(64, 1024, 0.8, prompt_tokens=prompt, cached_tokens=cached, chunk_size=chunk)
    chunks, room, uncached = work.chunks_per_request, work.prefill_budget_tokens, work.uncached_prompt_tokens
    assert chunks is not None
    assert room is not None
    assert uncached == max(1, prompt - cached)
    assert (chunks - 1) * room < uncached <= chunks * room


# -------------------------------------------------------------------------------------------------- simulation


def simulate(seed: int, *, batched: bool) -> tuple[int, set[int]]:
    """Run the worked example in a closed loop; return its total steps and the steps that hold a prefill.

    A slot whose request finished takes the next one in the step after. Without batching, at most one request
    starts a step.
    """
    draw = random.Random(seed)
    free_from = [0] * 64
    last_start = -1
    starts = set()
    for _ in range(640):
        start = heapq.heappop(free_from)
        if not batched:
            start = max(start, last_start + 1)
        last_start = start
        starts.add(start)
        heapq.heappush(free_from, start + draw.randint(820, 1024))
    return max(free_from), starts


def simulate_exclusive(seed: int) -> list[int]:
    """Run the worked example where prefills and decodes never share a step; return the prefill steps."""
    draw = random.Random(seed)
    left: list[int] = []  # tokens that the running requests still have to decode
    waiting, step, prefills = 640, 0, []
    while waiting or left:
        starting = min(64 - len(left), waiting)
        if starting:
            prefills.append(step)
            left += [draw.randint(820, 1024) - 1 for _ in range(starting)]
            waiting -= starting
            step += 1
        soonest = min(left)
        step += soonest
        left = [tokens - soonest for tokens in left if tokens > soonest]
    return prefills


def mixed_in_profile(starts: set[int]) -> int:
    return sum(4480 <= start < 4736 for start in starts)


@pytest.mark.parametrize(("batched", "expected"), [(True, 38.7), (False, 40.8)])
def test_a_simulated_run_agrees(batched: bool, expected: float) -> None:
    runs = [simulate(seed, batched=batched) for seed in range(200)]
    assert 9_600 <= statistics.mean(total for total, _ in runs) <= 9_700
    mixed = statistics.mean(mixed_in_profile(starts) for _, starts in runs)
    assert 36 <= mixed <= 44
    assert mixed == pytest.approx(expected, abs=1)
    if batched:
        assert mixed == pytest.approx(EXAMPLE.local_mix(4480, 4736).prefill_decode_steps, abs=1)


def test_a_simulated_run_spreads_its_prefills_as_the_formula_says() -> None:
    runs = [simulate(seed, batched=True)[1] for seed in range(200)]
    for first in range(1000, 8000, 500):
        seen = statistics.mean(sum(first <= start < first + 500 for start in starts) for starts in runs)
        assert seen == pytest.approx(EXAMPLE.local_mix(first, first + 500).prefill_decode_steps, rel=0.1, abs=1)


def test_exclusive_steps_move_the_profile_as_the_cycle_says() -> None:
    runs = [simulate_exclusive(seed) for seed in range(40)]
    moved = round(5 * EXAMPLE.exclusive_cycle_steps - 128)

    def prefills_from(first: int) -> float:
        return statistics.mean(sum(first <= step < first + 256 for step in prefills) for prefills in runs)

    assert moved == 4795
    assert prefills_from(moved) > 2 * prefills_from(4480)
    assert prefills_from(moved) > 30


# --------------------------------------------------------------------------------------- chunks that queue


def simulate_chunks(work: Workload, seed: int) -> set[int]:
    """Run a workload whose prompts are cut in chunks, as a scheduler with one token budget a step does.

    Decodes take a token each, prompts the rest, first come, first served. Returns the steps that hold a prefill.
    """
    draw = random.Random(seed)
    tokens, budget = work.uncached_prompt_tokens or 0, work.chunk_size or 0
    shortest, longest = round(work.shortest_output_tokens), round(work.longest_output_tokens)
    waiting = [tokens] * work.concurrency  # what is left of each prompt
    to_come = work.prompts - len(waiting)
    ends: dict[int, int] = {}  # step -> requests that finish in it
    decoding, step, prefills = 0, 0, set()
    while waiting or decoding:
        room = budget - decoding
        if waiting:
            prefills.add(step)
        while waiting and room:
            taken = min(room, waiting[0])
            room -= taken
            waiting[0] -= taken
            if waiting[0] == 0:
                waiting.pop(0)
                decoding += 1
                last = step + draw.randint(shortest, longest) - 1
                ends[last] = ends.get(last, 0) + 1
        finished = ends.pop(step, 0)
        decoding -= finished
        starting = min(finished, to_come)
        to_come -= starting
        waiting += [tokens] * starting
        step += 1
    return prefills


CHUNKED_RUNS = [
    Workload(64, 1024, 0.8, prompt_tokens=4096, chunk_size=512),  # 10 chunks: more than the fifth range holds
    Workload(64, 1024, 0.8, prompt_tokens=8192, chunk_size=2048),
    Workload(64, 1024, 0.8, prompt_tokens=3000, chunk_size=2048),
    Workload(64, 1024, 1.0, prompt_tokens=4096, chunk_size=2048),
    Workload(64, 1000, 0.3, prompt_tokens=4096, chunk_size=2048),
    Workload(16, 1024, 0.8, prompt_tokens=8192, chunk_size=512),
    Workload(8, 128, 0.5, prompt_tokens=600, chunk_size=256),
]


@pytest.mark.parametrize("work", CHUNKED_RUNS)
def test_a_simulated_run_in_chunks_agrees(work: Workload) -> None:
    profile = work.profile_window()
    first, end = profile.first_step, profile.end_step
    runs = [simulate_chunks(work, seed) for seed in range(10)]
    seen = statistics.mean(sum(first <= step < end for step in prefills) for prefills in runs)
    told = work.local_mix_chunked(first, end)
    assert told is not None
    assert told.prefill_decode_steps == pytest.approx(seen, abs=0.06 * (end - first))
    assert told.prefill_decode_steps > 1.3 * work.local_mix(first, end).prefill_decode_steps


def test_chunks_of_the_ramp_up_fill_every_step() -> None:
    work = CHUNKED_RUNS[0]
    told = work.local_mix_chunked(0, 500)
    assert told is not None
    assert told.prefill_decode_steps == pytest.approx(500)
    assert told.completions == 0


@pytest.mark.parametrize("work", CHUNKED_RUNS)
def test_local_mix_in_chunks_adds_up_over_the_run(work: Workload) -> None:
    parts = [work.local_mix_chunked(first, first + 500) for first in range(0, 10_000, 500)]
    whole = work.local_mix_chunked(0, 10_000)
    assert whole is not None
    assert sum(part.prefill_decode_steps for part in parts if part) == pytest.approx(whole.prefill_decode_steps)
    assert all(part is not None and 0 <= part.prefill_decode_steps <= part.steps for part in parts)
    # A prompt takes all its chunks, or a few less where it shares a step: none is lost in the queue.
    chunks = work.chunks_per_request or 0
    begun = whole.completions + work.concurrency
    assert 0.5 * chunks * (begun - work.concurrency) < whole.prefill_decode_steps <= chunks * begun + 1


@pytest.mark.parametrize(
    "work",
    [
        EXAMPLE,
        replace(EXAMPLE, chunk_size=512),
        replace(EXAMPLE, prompt_tokens=4096),
        replace(EXAMPLE, prompt_tokens=448, chunk_size=512),
        replace(EXAMPLE, prompt_tokens=4096, cached_tokens=4000, chunk_size=512),
    ],
)
def test_without_chunks_the_local_mix_stays(work: Workload) -> None:
    assert work.local_mix_chunked(4480, 4736) == EXAMPLE.local_mix(4480, 4736)
    assert work.why_no_local_mix(4480, 4736) is None


def test_local_mix_in_chunks_is_withheld_where_it_cannot_be_said() -> None:
    busy = replace(EXAMPLE, prompt_tokens=5000, chunk_size=512)
    bound = replace(EXAMPLE, prompt_tokens=9000, chunk_size=512)
    for work, share in ((busy, "78 %"), (bound, "140 %")):
        assert work.local_mix_chunked(4480, 4736) is None
        note = work.why_no_local_mix(4480, 4736)
        assert note is not None
        assert (note.level, note.code) == ("warning", "local_mix_withheld")
        assert share in note.text
    far = CHUNKED_RUNS[0].why_no_local_mix(LAST_STEP, LAST_STEP + 1)
    assert far is not None
    assert "followed up to step 262,144" in far.text


@pytest.mark.parametrize(("first", "end"), [(5, 5), (-1, 5), (0, 0)])
def test_local_mix_in_chunks_refuses_an_empty_range(first: int, end: int) -> None:
    with pytest.raises(UsageError, match="step"):
        CHUNKED_RUNS[0].local_mix_chunked(first, end)


def test_numbers_in_texts_have_one_format() -> None:
    (note,) = Workload(64, 1024, 0.8, data_parallel=3).notes
    assert "CONC / DP = 21.3 requests" in note.text
    with pytest.raises(UsageError) as caught:
        Workload(64, 1024, 0.8, data_parallel=3, chunk_size=20)
    assert "beside 21.3 decodes" in caught.value.reason
