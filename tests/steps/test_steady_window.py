"""The steady state of synthetic step sequences, each with the answer that a reader would give by hand."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_infer.errors import UsageError
from tracelens_infer.steps.annotation import AttentionLoad, PhaseLoad
from tracelens_infer.steps.expected_mix import ExpectedMix, of_one_batch
from tracelens_infer.steps.regions import LoadColumns, find_limit, find_plateau
from tracelens_infer.steps.steady_window import SteadyState, SteadyWindow, WindowKind, find_steady_state
from tracelens_infer.steps.step import DurationFrom, EngineMode, GraphMode, Step, StepKind, Steps
from tracelens_infer.steps.window_choice import choose_decode_only, choose_level_durations, choose_mixed
from tracelens_infer.steps.workload import Workload

EXAMPLE = Workload(64, 1024, 0.8)

# ------------------------------------------------------------------------------------------------ building steps


@dataclass(frozen=True)
class Run:
    """``count`` steps alike: context and generation requests, requests that stand still, tokens told or not."""

    context: int = 0
    generation: int = 0
    count: int = 1
    stalled: int = 0
    kind: StepKind | None = None
    context_tokens: int | None = None
    kv_a_request: int | None = None
    tokens_a_request: int = 1
    told: bool = True
    duration_ns: int = 1000

    def step(self, index: int) -> Step:
        kv = None if self.kv_a_request is None else self.kv_a_request * self.generation
        load = AttentionLoad(
            PhaseLoad(self.context, self.context_tokens, self.context_tokens),
            PhaseLoad(self.generation, self.generation * self.tokens_a_request, kv),
        )
        return Step(
            index=index,
            kind=self.kind or kind_of(self.context, self.generation),
            kind_from="test",
            load=load if self.told else None,
            host_start_ns=index * 1000,
            host_end_ns=index * 1000 + 900,
            tile_end_ns=index * 1000 + 1000,
            device_start_ns=None,
            device_end_ns=None,
            device_busy_ns=0,
            device_idle_ns=0,
            duration_ns=self.duration_ns,
            duration_from=DurationFrom.HOST_START_TO_START,
            start_to_start_ns=None,
            graph=GraphMode.UNKNOWN,
            padded_batch=None,
            stalled_decodes=self.stalled,
            kernels=0,
            annotation="",
        )


def kind_of(context: int, generation: int) -> StepKind:
    if context:
        return StepKind.PREFILL_DECODE if generation else StepKind.PREFILL_ONLY
    return StepKind.DECODE_ONLY if generation else StepKind.EMPTY


def trace(*runs: Run | Sequence[Run], mode: EngineMode = EngineMode.MIXED) -> Steps:
    flat = [run for item in runs for run in ([item] if isinstance(item, Run) else item)]
    repeated = [run for run in flat for _ in range(run.count)]
    return Steps(tuple(run.step(i) for i, run in enumerate(repeated)), mode, has_device_work=False)


def climb(peak: int) -> list[Run]:
    """One request more a step, from a prefill alone to one prefill beside ``peak - 1`` decodes."""
    return [Run(1, generation) for generation in range(peak)]


def fall(peak: int) -> list[Run]:
    return [Run(0, generation) for generation in range(peak - 1, 0, -1)]


def cycles(peak: int, decodes: int, count: int) -> list[Run]:
    """``count`` times: decode-only steps, then a finished request's successor prefills."""
    return [Run(0, peak, decodes), Run(1, peak - 1)] * count


def closed_loop(work: Workload, *, exclusive: bool = False, seed: int = 0, prompt: int = 1000) -> Steps:
    """A benchmark run: CONC requests at once, prompts of one chunk each, from the first request to the last."""
    chooser = random.Random(seed)
    lengths = [
        chooser.randint(int(work.shortest_output_tokens), int(work.longest_output_tokens)) for _ in range(work.prompts)
    ]
    waiting, runs = lengths[::-1], []
    decoding: list[list[int]] = []  # tokens so far, tokens in all
    while waiting or decoding:
        starting = [[1, waiting.pop()] for _ in range(min(len(waiting), work.concurrency - len(decoding), 4))]
        still = decoding if exclusive and starting else []
        advancing = [] if still else decoding
        for request in advancing:
            request[0] += 1
        mean = sum(prompt + done for done, _ in advancing) // max(len(advancing), 1)
        runs.append(
            Run(
                len(starting),
                len(advancing),
                stalled=len(still),
                context_tokens=prompt * len(starting),
                kv_a_request=mean,
            )
        )
        decoding = [request for request in decoding + starting if request[0] < request[1]]
    return trace(runs, mode=EngineMode.EXCLUSIVE if exclusive else EngineMode.MIXED)


def codes(state: SteadyState) -> list[str]:
    return [note.code for note in state.notes]


def spans(state: SteadyState) -> dict[str, tuple[int, int]]:
    return {window.kind: (window.first, window.last) for window in state.windows}


def the(state: SteadyState, kind: WindowKind) -> SteadyWindow:
    window = state.window(kind)
    assert window is not None
    return window


def text(state: SteadyState, code: str) -> str:
    return next(note.text for note in state.notes if note.code == code)


# --------------------------------------------------------------------------------------------- whole sequences


@dataclass(frozen=True)
class Case:
    steps: Steps
    peak: int | None
    regions: tuple[tuple[int, int], ...]
    ramp_up: tuple[int, int] | None = None
    ramp_down: tuple[int, int] | None = None
    plateau: bool = True
    limit: str | None = None
    windows: dict[str, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    num_steps: int | None = None


NO_PREFILL = ["no_mixed_window", "no_prefill_decode_window"]
NO_DECODE = ["no_mixed_window", "no_decode_only_window"]
UNTOLD = Run(told=False, kind=StepKind.UNKNOWN)

CASES = {
    # 0-7 climb, near the peak from 6; ten cycles of 9 + 1 steps; 108-114 fall, near the peak in 108
    "whole run": Case(
        trace(climb(8), cycles(8, 9, 10), fall(8)),
        8,
        ((6, 109),),
        (0, 6),
        (109, 115),
        windows={"mixed": (52, 62), "decode_only": (8, 17), "prefill_decode": (6, 8)},
        num_steps=10,
    ),
    "all decode": Case(trace(Run(0, 8, 40)), 8, ((0, 40),), windows={"decode_only": (8, 40)}, notes=NO_PREFILL),
    "all prefill": Case(trace(Run(3, 0, 40)), 3, ((0, 40),), windows={"prefill_decode": (0, 32)}, notes=NO_DECODE),
    "one decode step": Case(
        trace(Run(0, 8)),
        8,
        ((0, 1),),
        plateau=False,
        limit="too few steps",
        windows={"decode_only": (0, 1)},
        notes=["too_few_steps", "region_short", *NO_PREFILL],
    ),
    "one prefill step": Case(
        trace(Run(15, 0)),
        15,
        ((0, 1),),
        plateau=False,
        limit="too few steps",
        windows={"prefill_decode": (0, 1)},
        notes=["too_few_steps", "region_short", *NO_DECODE],
    ),
    "one prefill-decode step": Case(
        trace(Run(9, 37)),
        46,
        ((0, 1),),
        plateau=False,
        limit="too few steps",
        windows={"mixed": (0, 1), "prefill_decode": (0, 1)},
        notes=["too_few_steps", "region_short", "no_decode_only_window"],
    ),
    "spike": Case(
        trace(Run(0, 8, 20), Run(0, 80), Run(0, 8, 20)),
        8,
        ((0, 41),),
        windows={"decode_only": (9, 41)},
        notes=NO_PREFILL,
    ),
    "spike in a short trace": Case(
        trace(Run(0, 8, 2), Run(0, 80), Run(0, 8)),
        8,
        ((0, 4),),
        plateau=False,
        limit="too few steps",
        windows={"decode_only": (0, 4)},
        notes=["too_few_steps", "region_short", *NO_PREFILL],
    ),
    # one request more for the seven chunks of its prompt: 7 of 200 steps do not make the peak
    "injected prompt": Case(
        trace(Run(0, 8, 100), Run(1, 8, 7), Run(0, 8, 60), Run(0, 7, 33)),
        8,
        ((0, 200),),
        windows={"mixed": (69, 101), "decode_only": (68, 100), "prefill_decode": (100, 107)},
    ),
    # 61 is reached by the 7 steps of at least 5 % of the busy ones; 0.9 * 61 = 54.9
    "no plateau": Case(
        trace(climb(64), fall(64)),
        61,
        ((54, 73),),
        (0, 54),
        (73, 127),
        plateau=False,
        limit="unknown",
        windows={"mixed": (54, 73), "decode_only": (64, 73), "prefill_decode": (54, 64)},
        notes=["no_plateau", "region_short"],
    ),
    "dip that lasts": Case(
        trace(cycles(8, 5, 4), Run(0, 4, 6), cycles(8, 5, 5)),
        8,
        ((0, 24), (30, 60)),
        windows={"mixed": (30, 60), "decode_only": (30, 35), "prefill_decode": (35, 36)},
        notes=["several_regions", "region_short"],
    ),
    "dip that passes": Case(
        trace(cycles(8, 5, 4), Run(0, 4, 5), cycles(8, 5, 4)),
        8,
        ((0, 53),),
        windows={"mixed": (10, 42), "decode_only": (24, 34), "prefill_decode": (5, 6)},
    ),
    "too few near the peak to open": Case(
        trace(Run(0, 8, 5), Run(0, 4), Run(0, 8, 6), Run(0, 1, 40)),
        8,
        ((6, 12),),
        None,
        (12, 52),
        windows={"decode_only": (6, 12)},
        notes=["region_short", *NO_PREFILL],
    ),
    # steps without requests stand between near-peak steps that count as consecutive, and end no region
    "empties inside": Case(
        trace([Run(0, 8, 2), Run(), Run(kind=StepKind.DUMMY), UNTOLD] * 10, Run(0, 8, 4), Run(count=9)),
        8,
        ((0, 54),),
        windows={"decode_only": (50, 54)},
        notes=NO_PREFILL,
    ),
    "exclusive": Case(
        trace([Run(0, 64, 9), Run(1, 0, stalled=63)] * 10, mode=EngineMode.EXCLUSIVE),
        64,
        ((0, 100),),
        windows={"mixed": (34, 66), "decode_only": (0, 9), "prefill_decode": (9, 10)},
    ),
    "exclusive, start of the run": Case(
        trace(
            [Run(1, 0, stalled=i) for i in range(64)],
            [Run(0, 64, 9), Run(1, 0, stalled=63)] * 10,
            mode=EngineMode.EXCLUSIVE,
        ),
        64,
        ((64, 164),),
        (0, 64),
        windows={"mixed": (98, 130), "decode_only": (64, 73), "prefill_decode": (73, 74)},
    ),
    # nothing follows the last step, so that nobody can be seen to stand still in it; no ramp-down
    "exclusive, cut in a prefill": Case(
        trace(
            Run(1, 0), [Run(0, 64, 9), Run(1, 0, stalled=63)] * 3, Run(0, 64, 9), Run(1, 0), mode=EngineMode.EXCLUSIVE
        ),
        64,
        ((1, 40),),
        windows={"mixed": (4, 36), "decode_only": (1, 10), "prefill_decode": (10, 11)},
    ),
    "all admitted at once": Case(
        trace(Run(8, 0), Run(0, 8, 40)), 8, ((1, 41),), (0, 1), windows={"decode_only": (9, 41)}, notes=NO_PREFILL
    ),
    # its decodes come from nowhere, so the trace begins in the middle
    "starts in a prefill": Case(
        trace(Run(1, 7), Run(0, 8, 40)),
        8,
        ((0, 41),),
        windows={"mixed": (0, 32), "decode_only": (9, 41), "prefill_decode": (0, 1)},
    ),
    "decode instance filling up": Case(
        trace([Run(0, i) for i in range(1, 17)], Run(0, 16, 40)),
        16,
        ((14, 56),),
        (0, 14),
        windows={"decode_only": (24, 56)},
        notes=NO_PREFILL,
    ),
    # four tokens a request are no prefill: requests count, not tokens
    "speculative": Case(
        trace([Run(0, 8, 9, tokens_a_request=4, kv_a_request=kv) for kv in (100, 900, 100, 900)]),
        8,
        ((0, 36),),
        windows={"decode_only": (4, 36)},
        notes=NO_PREFILL,
    ),
    "cache hits": Case(
        trace([Run(0, 8, 9), Run(1, 7, context_tokens=1)] * 10),
        8,
        ((0, 100),),
        windows={"decode_only": (0, 9), "prefill_decode": (9, 10)},
        notes=["prefill_cache_hits", "no_mixed_window"],
    ),
    "no step": Case(trace(), None, (), plateau=False, notes=["no_steps"]),
    "no request": Case(
        trace(Run(count=9), Run(kind=StepKind.DUMMY)), None, (), plateau=False, notes=["no_active_steps"]
    ),
    "profiler steps": Case(
        trace([replace(UNTOLD, count=50)]),
        None,
        (),
        plateau=False,
        limit="unknown",
        windows={"any": (9, 41)},
        notes=["loads_unknown"],
    ),
    "three profiler steps": Case(
        trace([replace(UNTOLD, count=3)]),
        None,
        (),
        plateau=False,
        limit="too few steps",
        windows={"any": (0, 3)},
        notes=["loads_unknown", "too_few_steps"],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_sequence(case: Case) -> None:
    state = find_steady_state(case.steps, num_steps=case.num_steps)
    assert state.peak_requests == case.peak
    assert state.regions == case.regions
    assert (state.ramp_up, state.ramp_down) == (case.ramp_up, case.ramp_down)
    assert (state.plateau, state.limit) == (case.plateau, case.limit)
    assert spans(state) == case.windows
    assert codes(state) == case.notes


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_windows_of_a_sequence_hold_what_they_are_called(case: Case) -> None:
    state = find_steady_state(case.steps, num_steps=case.num_steps)
    wanted = case.num_steps or 32
    for window in state.windows:
        inside = case.steps.steps[window.first : window.last]
        kinds = [step.kind for step in inside]
        assert 0 < window.steps <= wanted
        assert window.composition == {kind: kinds.count(kind) for kind in kinds}
        assert state.region is not None
        assert state.region[0] <= window.first
        assert window.last <= state.region[1]
        match window.kind:
            case "mixed":
                assert any(step.context_requests for step in inside)
                assert any(step.generation_requests for step in inside)
            case "decode_only":
                assert set(kinds) == {StepKind.DECODE_ONLY}
            case "prefill_decode":
                assert all(step.context_requests for step in inside)
            case "any":
                assert window.tier == "duration"


@pytest.mark.parametrize(
    ("steps", "code", "reason"),
    [
        (trace(Run(0, 8, 9)), "no_mixed_window", "no step of the region carries a prefill."),
        (trace(Run(8, 0), Run(0, 8, 9)), "no_mixed_window", "those of the trace lie outside"),
        (trace(Run(3, 0, 9)), "no_mixed_window", "without a decode beside it"),
        (trace([Run(0, 8), Run(1, 7, context_tokens=1)] * 9), "no_mixed_window", "cache hits"),
        (trace([Run(0, 8), Run(1, 0, stalled=7)] * 9), "no_mixed_window", "no 1 steps of the region hold both"),
        (trace(Run(1, 7, 9)), "no_decode_only_window", "decodes without a prefill"),
        (trace(Run(0, 8, 9)), "no_prefill_decode_window", "no step of the region carries a prefill."),
    ],
)
def test_an_absent_window_says_why(steps: Steps, code: str, reason: str) -> None:
    assert reason in text(find_steady_state(steps, num_steps=1), code)


def test_cache_hits_are_counted() -> None:
    state = find_steady_state(trace([Run(0, 8, 9), Run(2, 6, context_tokens=2), Run(1, 7, context_tokens=500)] * 3))
    assert "3 of 6 steps with a prefill" in text(state, "prefill_cache_hits")
    assert the(state, "mixed").mix_observed == pytest.approx(6 / 32, abs=0.5 / 32)


# ------------------------------------------------------------------------------------------ what a window tells


def test_a_window_tells_its_loads() -> None:
    state = find_steady_state(
        trace(Run(0, 8, 20, kv_a_request=100), Run(1, 7, 1, kv_a_request=200), Run(0, 8, 9, kv_a_request=300))
    )
    mixed = the(state, "mixed")
    assert (mixed.first, mixed.last, mixed.tier) == (0, 30, "concurrency")
    assert mixed.mix_observed == mixed.mix_expected == pytest.approx(1 / 30)
    assert mixed.mix_expected_from == "region average"
    assert mixed.mean_requests == 8.0
    assert mixed.mean_kv_tokens == pytest.approx((20 * 8 * 100 + 7 * 200 + 9 * 8 * 300) / (29 * 8 + 7))
    assert mixed.composition == {StepKind.DECODE_ONLY: 29, StepKind.PREFILL_DECODE: 1}
    assert [note.code for note in mixed.notes] == ["expected_mix"]
    decode_only = the(state, "decode_only")
    assert (decode_only.first, decode_only.last) == (0, 20)  # the 9 steps at 300 are too few beside 20
    assert decode_only.mean_kv_tokens == 100.0
    assert decode_only.kv_percentile == pytest.approx(100 * 20 / 29)
    assert decode_only.mix_expected is None


def test_a_shorter_run_with_larger_contexts_is_the_decode_only_window() -> None:
    short = [Run(0, 8, 10, kv_a_request=900), Run(1, 7, kv_a_request=500)]
    state = find_steady_state(trace(Run(0, 8, 20, kv_a_request=100), Run(1, 7, kv_a_request=500), *short))
    window = the(state, "decode_only")
    assert (window.first, window.last, window.mean_kv_tokens, window.kv_percentile) == (21, 31, 900.0, 100.0)
    assert window.notes == ()


def test_untold_kv_tokens_take_the_end_of_the_longest_run_and_say_so() -> None:
    state = find_steady_state(trace(Run(0, 8, 9, kv_a_request=900), Run(1, 7), Run(0, 8, 40)))
    window = the(state, "decode_only")
    assert (window.first, window.last) == (18, 50)
    assert (window.mean_kv_tokens, window.kv_percentile) == (None, None)
    assert [note.code for note in window.notes] == ["kv_tokens_unknown"]


def test_prefill_decode_ties_go_to_the_most_new_tokens() -> None:
    def prefill(tokens: int | None) -> list[Run]:
        return [Run(0, 8, 9), Run(1, 7, 2, context_tokens=tokens)]

    state = find_steady_state(trace(prefill(512), prefill(2048), prefill(None), prefill(1024)))
    window = the(state, "prefill_decode")
    assert (window.first, window.last) == (20, 22)


def test_a_step_whose_requests_are_untold_still_counts_as_a_prefill() -> None:
    mixed = Run(told=False, kind=StepKind.PREFILL_DECODE)
    state = find_steady_state(trace([Run(0, 62, 9), mixed] * 5))
    assert spans(state) == {"mixed": (7, 39), "decode_only": (0, 9), "prefill_decode": (9, 10)}
    assert (the(state, "mixed").mix_observed, the(state, "mixed").mean_requests) == (3 / 32, 62.0)


# ------------------------------------------------------------------------------------------------ with a workload


def test_the_analytic_region_of_a_whole_run_is_judged_by_the_local_figure() -> None:
    state = find_steady_state(closed_loop(EXAMPLE), EXAMPLE)
    assert (state.peak_requests, state.plateau, state.limit) == (64, True, None)
    assert (state.region, state.region_from) == ((4096, 5120), "analytic")
    assert state.ramp_up == (0, 14)  # four prefills a step: 60 of 64 requests in step 14
    assert state.ramp_down is not None
    assert state.ramp_down[0] == state.regions[0][1]
    mixed = the(state, "mixed")
    assert mixed.mix_expected_from == "local"
    assert mixed.mix_expected == EXAMPLE.local_mix(mixed.first, mixed.last).fraction
    assert abs((mixed.mix_observed or 0) - mixed.mix_expected) <= 0.5 / 32
    assert mixed.first == 4592  # 4592 to 4624 lie around 4608 = (1 + 0.8) / 2 * 5 * 1024
    assert codes(state) == ["analytic_region_used"]
    assert "local figure, prefills batched" in mixed.notes[0].text


def test_a_delayed_capture_is_placed_by_its_first_step() -> None:
    whole = closed_loop(EXAMPLE).steps
    capture = Steps(whole[4480:4736], EngineMode.MIXED, has_device_work=False)
    state = find_steady_state(capture, EXAMPLE, num_steps=256, trace_starts_at=4480)
    assert (state.region, state.region_from) == ((0, 256), "analytic")
    expected = the(state, "mixed").mix_expected
    assert expected is not None
    assert expected * 256 == pytest.approx(39.0, abs=0.05)  # the figure of docs/formulas.md
    unplaced = find_steady_state(capture, EXAMPLE, num_steps=256)
    assert unplaced.region_from == "largest"
    assert the(unplaced, "mixed").mix_expected_from == "stationary"
    assert the(unplaced, "mixed").mix_expected == EXAMPLE.mix_fraction_batched
    assert codes(unplaced) == ["trace_position_unknown"]


@pytest.mark.parametrize("starts_at", [0, 200, 5000])
def test_a_capture_of_another_part_of_the_run_is_judged_by_the_stationary_figure(starts_at: int) -> None:
    state = find_steady_state(trace(cycles(64, 13, 10)), EXAMPLE, num_steps=130, trace_starts_at=starts_at)
    assert state.region_from == "largest"
    assert the(state, "mixed").mix_expected_from == "stationary"
    assert the(state, "mixed").mix_expected == EXAMPLE.mix_fraction_document  # no two prefills share a step
    assert codes(state) == ["analytic_region_not_in_trace"]


def test_the_analytic_region_lies_in_the_run_that_the_trace_begins_with() -> None:
    work = Workload(8, 16, 0.5)  # analytic window: steps 40 to 80
    run = [*climb(8), *cycles(8, 5, 3), *fall(8)]  # 33 steps
    state = find_steady_state(trace(run, run, run), work, num_steps=4)
    assert (state.region_from, codes(state)[0]) == ("largest", "analytic_region_not_in_trace")


def test_steps_without_requests_do_not_advance_the_run() -> None:
    work = Workload(8, 16, 0.5)
    state = find_steady_state(trace(climb(8), Run(count=100), cycles(8, 5, 20), fall(8)), work, num_steps=10)
    assert (state.region, state.region_from) == ((140, 180), "analytic")


def test_exclusive_engines_are_judged_by_their_own_figure() -> None:
    state = find_steady_state(closed_loop(EXAMPLE, exclusive=True), EXAMPLE)
    mixed = the(state, "mixed")
    assert (state.peak_requests, state.region_from, state.ramp_up) == (64, "largest", (0, 16))
    assert (mixed.mix_expected, mixed.mix_expected_from) == (EXAMPLE.mix_fraction_exclusive, "stationary")
    assert mixed.composition == {StepKind.DECODE_ONLY: 30, StepKind.PREFILL_ONLY: 2}
    assert codes(state) == ["trace_position_unused"]


def test_the_workload_raises_the_length_and_the_region_limits_it() -> None:
    work = Workload(8, 1024, 1.0)  # one prefill in 128 steps
    long = find_steady_state(trace(cycles(8, 99, 3)), work, num_steps=40)
    assert the(long, "mixed").steps == 128
    assert "num_steps_raised" in codes(long)
    assert "128 steps instead of 40" in text(long, "num_steps_raised")
    short = find_steady_state(trace(cycles(8, 49, 2)), work, num_steps=40)
    assert the(short, "mixed").steps == 100
    assert {"num_steps_raised", "region_short"} <= set(codes(short))


@pytest.mark.parametrize(
    ("work", "pacing", "stationary"),
    [
        (EXAMPLE, "unbatched", 64 / 921.6),
        (replace(EXAMPLE, prompt_tokens=4096, chunk_size=2112), "chunked", 2 * 64 / 921.6),
        (replace(EXAMPLE, data_parallel=2), "unbatched", 32 / 921.6),
        (replace(EXAMPLE, pipeline_stages=4), "unbatched", 16 / 921.6),
        (replace(EXAMPLE, data_parallel=2, pipeline_stages=4), "unbatched", 8 / 921.6),
    ],
)
def test_the_stationary_figure_follows_how_prefills_take_steps(work: Workload, pacing: str, stationary: float) -> None:
    peak = int(work.requests_per_step)
    steps = trace(cycles(peak, 13, 10))
    state = find_steady_state(steps, work)
    mixed = the(state, "mixed")
    assert mixed.mix_expected == pytest.approx(stationary)
    assert pacing in mixed.notes[0].text
    assert codes(state) in (["trace_position_unknown"], ["trace_position_unknown", "num_steps_raised"])


@pytest.mark.parametrize("pacing", ["batched", "unbatched", "chunked"])
def test_the_local_figure_between_its_pieces(pacing: str) -> None:
    work = replace(EXAMPLE, prompt_tokens=4096, chunk_size=2112) if pacing == "chunked" else EXAMPLE
    mix = ExpectedMix(work, pacing)  # type: ignore[arg-type] # a parameter is any string to mypy
    positions = np.arange(4096.0, 5089.0)
    exact = np.array([mix.local(int(first), int(first) + 32) for first in positions])
    assert np.abs(mix.local_by_start(positions, 32) - exact).max() < 0.002 * exact.max()


def test_a_micro_batch_is_no_smaller_than_a_request() -> None:
    assert of_one_batch(Workload(4, 100, pipeline_stages=8)).requests_per_step == 1
    assert of_one_batch(EXAMPLE) == EXAMPLE


# ------------------------------------------------------------------------------------- the peak against CONC


@pytest.mark.parametrize(
    ("peak", "work", "expected"),
    [
        (64, EXAMPLE, []),
        (63, EXAMPLE, ["peak_is_not_conc"]),
        (65, EXAMPLE, ["peak_is_not_conc"]),
        (32, EXAMPLE, ["peak_is_not_conc"]),
        (32, replace(EXAMPLE, data_parallel=2), []),
        (33, Workload(65, 1024, 0.8, data_parallel=2), []),  # 32.5 a rank
        (32, replace(EXAMPLE, prompt_tokens=30000, chunk_size=2048), ["bound_by_prefill"]),
        (80, replace(EXAMPLE, prompt_tokens=30000, chunk_size=2048), ["peak_is_not_conc"]),
        (248, Workload(256, 64), []),  # 4 requests finish a step, and twice as many places may be empty
        (247, Workload(256, 64), ["peak_is_not_conc"]),
    ],
)
def test_the_peak_against_conc(peak: int, work: Workload, expected: list[str]) -> None:
    state = find_steady_state(trace(cycles(peak, 13, 10)), work)
    found = [code for code in codes(state) if code in ("peak_is_not_conc", "bound_by_prefill")]
    assert found == expected
    assert (state.limit is not None) == (bool(expected) and peak < work.requests_per_step)


def test_steps_tell_a_bound_by_prefill_too() -> None:
    state = find_steady_state(trace(Run(2, 30, 40, context_tokens=2000)), EXAMPLE)
    assert (state.plateau, state.limit) == (True, "prefill")
    assert "never reaches the 64" in text(state, "bound_by_prefill")


# ------------------------------------------------------------------------------------------------- no plateau


def wander(context: int, kv_total: int | None, count: int = 200) -> list[Run]:
    """Concurrency that sways between 20 and 60."""
    sizes = [round(40 + 20 * np.sin(step / 7)) for step in range(count)]
    return [
        Run(
            context,
            size - context,
            kv_a_request=None if kv_total is None else kv_total // (size - context),
            context_tokens=0,
        )
        for size in sizes
    ]


@pytest.mark.parametrize(
    ("runs", "limit"),
    [
        (wander(1, None), "prefill"),
        (wander(0, 60_000), "KV space"),
        ([Run(0, 20, 20), Run(0, 30, kind=StepKind.RECOMPUTE), *wander(0, None)], "KV space"),
        ([replace(run, kv_a_request=1000) for run in wander(0, 0)], "arrival rate"),
        ([Run(0, 20), Run(), *wander(0, None)], "arrival rate"),
        (wander(0, None), "unknown"),
    ],
)
def test_the_limit_is_named_and_the_workloads_figures_withheld(runs: list[Run], limit: str) -> None:
    state = find_steady_state(trace(runs), EXAMPLE, num_steps=4, trace_starts_at=4480)
    assert (state.plateau, state.limit, state.region_from) == (False, limit, "largest")
    assert ("cannot be told" if limit == "unknown" else f"limited by {limit}") in text(state, "no_plateau")
    assert "withheld" in text(state, "no_plateau")
    assert {"trace_position_unused", "several_regions"} <= set(codes(state))
    assert all(window.mix_expected_from in (None, "region average") for window in state.windows)
    assert all(window.steps <= 4 for window in state.windows)  # not raised to the 15 steps of CONC, OSL and R
    assert "withheld" not in text(find_steady_state(trace(runs)), "no_plateau")


def test_a_peak_above_conc_is_not_explained_by_prefills() -> None:
    state = find_steady_state(trace(wander(1, None)), Workload(8, 1024))
    assert state.limit == "prefill"
    assert "peak_is_not_conc" in codes(state)


def test_few_steps_withhold_the_workloads_figures() -> None:
    state = find_steady_state(trace(Run(1, 63), Run(0, 64, 2)), EXAMPLE)
    assert the(state, "mixed").mix_expected_from == "region average"
    assert "withheld" in text(state, "too_few_steps")
    assert [note.level for note in state.notes if note.code == "too_few_steps"] == ["warning"]


# --------------------------------------------------------------------------------------------- duration tier


def timed(durations: Iterable[int]) -> Steps:
    return trace([replace(UNTOLD, duration_ns=duration) for duration in durations])


@pytest.mark.parametrize(
    ("durations", "num_steps", "expected"),
    [
        ([900, 100, 101, 100, 100, 50, 900, 20], 4, (1, 5)),
        ([100] * 6 + [40] * 5 + [100] * 6, 5, (6, 11)),
        ([100] * 9, 4, (2, 6)),  # nearest the middle, then the earlier
        ([100, 300, 100, 500, 110, 600], 2, (1, 5)),  # no level window: the lowest spread of four
        ([5, 9], 32, (0, 2)),
        ([0] * 6, 4, (1, 5)),
    ],
)
def test_level_durations(durations: list[int], num_steps: int, expected: tuple[int, int]) -> None:
    window = the(find_steady_state(timed(durations), num_steps=num_steps), "any")
    assert (window.first, window.last, window.tier) == (*expected, "duration")
    assert window.composition == {StepKind.UNKNOWN: window.steps}
    assert (window.mix_observed, window.mean_requests, window.mean_kv_tokens) == (None, None, None)


def test_unsteady_durations_are_told() -> None:
    window = the(find_steady_state(timed([100, 300, 100, 500, 110, 600])), "any")
    assert [note.code for note in window.notes] == ["durations_unsteady"]


def test_loads_unknown_says_what_cannot_be_checked() -> None:
    assert "cannot be checked" in text(find_steady_state(timed([1] * 9), EXAMPLE), "loads_unknown")
    assert "cannot be checked" not in text(find_steady_state(timed([1] * 9)), "loads_unknown")


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=40), st.integers(1, 12))
def test_level_durations_against_brute_force(durations: list[int], length: int) -> None:
    length = min(length, len(durations))
    windows = [durations[first : first + length] for first in range(len(durations) - length + 1)]
    spread = [round(statistics.pstdev(window) / max(statistics.mean(window), 1 / length), 9) for window in windows]
    level = [first for first, variation in enumerate(spread) if variation < 0.15]
    scores: dict[int, float] = {first: sum(windows[first]) for first in level} or dict(enumerate(spread))
    best = [first for first, score in scores.items() if score == min(scores.values())]
    expected = min(best, key=lambda first: (abs(2 * first + length - len(durations)), first))
    assert choose_level_durations(np.array(durations, dtype=np.int64), length) == (expected, expected + length)


# ----------------------------------------------------------------------------------------- brute-force oracles

STEP = st.one_of(
    st.builds(Run, st.integers(0, 2), st.integers(0, 3), stalled=st.integers(0, 2), context_tokens=st.integers(0, 4)),
    st.just(Run(kind=StepKind.DUMMY)),
    st.just(UNTOLD),
)


@given(st.lists(STEP, min_size=1, max_size=25), st.integers(1, 8), st.floats(0, 1))
def test_the_mixed_window_against_brute_force(runs: list[Run], length: int, expected: float) -> None:
    steps, length = trace(runs).steps, min(length, len(runs))
    neutral = (StepKind.EMPTY, StepKind.DUMMY, StepKind.UNKNOWN)
    best: tuple[float, float, int, int] | None = None
    for first in range(len(steps) - length + 1):
        ran = [step for step in steps[first : first + length] if step.kind not in neutral]
        prefills = [step for step in ran if step.context_requests]
        tokens = [step.load.context.query_tokens or 0 for step in prefills if step.load]
        fresh = any(new > step.context_requests for step, new in zip(prefills, tokens, strict=True))
        if not fresh or not any(step.generation_requests for step in ran):
            continue
        distance = round(max(abs(len(prefills) / len(ran) - expected), 0.5 / length), 9)
        requests = sum(step.requests + step.stalled_decodes for step in ran) / len(ran)
        key = (distance, -requests, abs(2 * first + length - len(steps)), first)
        best = key if best is None else min(best, key)
    window = choose_mixed(LoadColumns.of(steps), (0, len(steps)), length, expected)
    assert window == (None if best is None else (best[3], best[3] + length))


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=30), st.integers(1, 8)
)
def test_the_decode_only_window_against_brute_force(parts: list[tuple[bool, int, int]], length: int) -> None:
    steps = trace([Run(int(prefill), requests, kv_a_request=kv) for prefill, requests, kv in parts]).steps
    runs: list[list[Step]] = [[]]
    for step in steps:
        runs = [*runs, []] if step.context_requests else [*runs[:-1], [*runs[-1], step]]
    longest = min(length, max(len(run) for run in runs))
    candidates = [
        run[first : first + length]
        for run in runs
        if run and min(len(run), length) >= longest / 2
        for first in range(max(len(run) - length, 0) + 1)
    ]

    def mean_kv(window: list[Step]) -> float:
        kv = sum(step.load.generation.kv_tokens or 0 for step in window if step.load)
        return kv / sum(step.generation_requests for step in window)

    chosen = choose_decode_only(LoadColumns.of(steps), (0, len(steps)), length)
    if not candidates:
        assert chosen is None
    else:
        best = max(candidates, key=mean_kv)
        assert chosen == (best[0].index, best[-1].index + 1)


@given(st.lists(st.tuples(st.sampled_from([0, 3, 9, 10]), st.integers(1, 9)), min_size=1, max_size=20))
def test_regions_against_a_walk_over_the_steps(parts: list[tuple[int, int]]) -> None:
    sizes = [10] * 40 + [size for size, count in parts for _ in range(count)]
    expected, streak, dip, first, last = [], 0, 0, None, 0
    for index, size in enumerate([*sizes, *[1] * 9]):
        if size == 0:
            continue
        streak, dip = (streak + 1, 0) if size >= 9 else (0, dip + 1)
        if first is None and streak > 5:
            first = next(i for i in range(index + 1) if sum(1 for s in sizes[i : index + 1] if s) == 6 and sizes[i])
        if first is not None and dip > 5:
            expected.append((first, last + 1))
            first = None
        if size >= 9:
            last = index
    plateau = find_plateau(LoadColumns.of(trace([Run(0, size) for size in sizes], Run(0, 1, 9)).steps))
    assert plateau.peak == 10
    assert list(plateau.regions) == expected


@given(st.lists(STEP, max_size=60), st.integers(1, 40), st.one_of(st.none(), st.integers(0, 5000)))
def test_any_sequence_gives_an_answer(runs: list[Run], num_steps: int, starts_at: int | None) -> None:
    for work in (None, Workload(4, 16, 0.5)):
        state = find_steady_state(trace(runs), work, num_steps=num_steps, trace_starts_at=starts_at)
        for window in state.windows:
            assert 0 <= window.first < window.last <= len(runs)
        assert state.windows or state.notes


# ------------------------------------------------------------------------------------------------ limits, speed


@pytest.mark.parametrize(("num_steps", "starts_at", "thing"), [(0, 0, "--num-steps"), (1, -1, "--trace-starts-at")])
def test_values_out_of_range_are_refused(num_steps: int, starts_at: int, thing: str) -> None:
    with pytest.raises(UsageError, match=thing):
        find_steady_state(trace(Run(0, 8)), num_steps=num_steps, trace_starts_at=starts_at)


def test_a_limit_needs_steps() -> None:
    columns = LoadColumns.of(trace(Run(0, 8, 5)).steps)
    assert find_limit(columns, find_plateau(columns), prefill_bound=True) == "too few steps"


def test_a_hundred_thousand_steps_take_well_under_a_fifth_of_a_second() -> None:
    steps = trace(climb(64), cycles(64, 13, 7200), fall(64))
    assert len(steps.steps) > 100_000
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        state = find_steady_state(steps, EXAMPLE)
        seconds.append(time.perf_counter() - start)
    assert state.region_from == "analytic"
    assert min(seconds) < 0.2


def test_a_hundred_thousand_steps_without_loads_take_no_longer() -> None:
    steps = timed(range(10**7, 10**7 + 100_000))
    start = time.perf_counter()
    find_steady_state(steps)
    assert time.perf_counter() - start < 0.4  # once, on a machine that may be busy; 0.1 s alone
