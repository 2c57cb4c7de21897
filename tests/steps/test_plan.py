"""Plans: when to profile, refusals, recipes and the JSON form."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_infer.errors import UsageError
from tracelens_infer.report.plan_text import note_lines, plan_lines
from tracelens_infer.steps.plan import Plan, ProfilerRecipe, make_plan
from tracelens_infer.steps.workload import Workload

EXAMPLE = Workload(64, 1024, 0.8)
VLLM_NEW, VLLM_OLDER, VLLM_OLDEST = "vLLM 0.26 and later", "vLLM 0.13 to 0.25", "vLLM before 0.13"
SGLANG, SGLANG_MIXED = (
    "SGLang, default scheduling (a prefill step holds no decodes)",
    "SGLang with --enable-mixed-chunk",
)


def recipes(plan: Plan) -> dict[str, ProfilerRecipe]:
    return {recipe.engine: recipe for recipe in plan.recipes}


def flags(recipe: ProfilerRecipe) -> dict[str, str]:
    words = shlex.split(" ".join(recipe.server_flags))
    return dict(zip(words[::2], words[1::2], strict=True))


def body(command: str) -> dict[str, Any]:
    words = shlex.split(command)
    assert words[:3] == ["curl", "-X", "POST"]
    found: dict[str, Any] = json.loads(words[words.index("-d") + 1])
    return found


def keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(name for inner in value.values() for name in keys(inner))]
    if isinstance(value, list):
        return [name for inner in value for name in keys(inner)]
    return []


def test_worked_example() -> None:
    plan = make_plan(EXAMPLE)
    assert (plan.profile.delay_iters, plan.profile.max_iters) == (4480, 256)
    assert round(plan.mix.prefill_decode_steps, 1) == 39.0
    assert round(plan.mixed_steps_stationary, 1) == 17.8
    assert plan.notes == ()


def test_notes_of_the_workload_and_of_the_profile_come_along() -> None:
    plan = make_plan(Workload(16, 1024, 0.8, prompt_tokens=4096, chunk_size=2048))
    assert [note.code for note in plan.notes] == ["prompt_is_chunked", "max_iters_clamped"]
    assert note_lines(plan.notes)[0].startswith("info: A prompt is computed in 3 chunks")


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("workload", "enough"),
    [
        (Workload(64, 1024, 0.8, num_prompts=300), 329),  # ceil(4736 * 64 / 921.6)
        (Workload(64, 1024, 0.8, num_prompts=328), 329),
        (Workload(64, 1024, 0.8, num_prompts=1), 329),
        (Workload(1, 16), 17),  # 1 + 256 steps of 16: the default of ten prompts is not enough
        (Workload(256, 32, 0.8, num_prompts=2559), 2560),  # exactly 288 steps
        (Workload(64, 1024, 0.8, num_prompts=300, data_parallel=4), 338),  # ceil((4352 + 512) * 64 / 921.6)
    ],
)
def test_a_run_that_is_too_short_is_refused(workload: Workload, enough: int) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(workload)
    assert caught.value.thing == f"num_prompts (--num-prompts): {workload.prompts}"
    assert f"--num-prompts {enough} " in caught.value.action


def test_the_smallest_run_that_is_long_enough_is_accepted() -> None:
    assert make_plan(Workload(64, 1024, 0.8, num_prompts=329)).profile.end_step == 4736
    assert make_plan(Workload(256, 32, 0.8, num_prompts=2560)).profile.end_step == 288


@given(st.integers(1, 300), st.integers(1, 2000), st.floats(0, 1), st.integers(1, 3))
def test_the_prompts_named_in_a_refusal_are_the_fewest(conc: int, osl: int, ratio: float, ranks: int) -> None:
    ranks = min(ranks, conc)
    with pytest.raises(UsageError) as caught:
        make_plan(Workload(conc, osl, ratio, num_prompts=1, data_parallel=ranks))
    enough = int(caught.value.action.split("--num-prompts ")[1].split()[0])
    make_plan(Workload(conc, osl, ratio, num_prompts=enough, data_parallel=ranks))
    if enough > 1:
        with pytest.raises(UsageError, match="num_prompts"):
            make_plan(Workload(conc, osl, ratio, num_prompts=enough - 1, data_parallel=ranks))


# ------------------------------------------------------------------------------------------------------ recipes


def test_vllm_flags() -> None:
    found = flags(recipes(make_plan(EXAMPLE))[VLLM_NEW])
    assert found == {
        "--profiler-config.profiler": "torch",
        "--profiler-config.torch_profiler_dir": "$PWD/traces",
        "--profiler-config.ignore_frontend": "True",
        "--profiler-config.delay_iterations": "4480",
        "--profiler-config.max_iterations": "256",
        "--profiler-config.detailed_trace_annotation": "True",
    }


def test_vllm_request_with_the_counts() -> None:
    recipe = recipes(make_plan(EXAMPLE))[VLLM_NEW]
    (request,) = [remark for remark in recipe.remarks if remark.startswith("curl")]
    assert body(request) == {"delay_iterations": 4480, "max_iterations": 256}


def test_older_vllm_has_no_detailed_annotations() -> None:
    found = flags(recipes(make_plan(EXAMPLE))[VLLM_OLDER])
    assert "--profiler-config.detailed_trace_annotation" not in found
    assert found["--profiler-config.delay_iterations"] == "4480"


def test_oldest_vllm_is_told_by_the_environment() -> None:
    recipe = recipes(make_plan(EXAMPLE))[VLLM_OLDEST]
    assert recipe.server_flags == ()
    assert 'VLLM_TORCH_PROFILER_DIR="$PWD/traces"' in recipe.environment


@pytest.mark.parametrize(("engine", "start"), [(SGLANG, 4795), (SGLANG_MIXED, 4480)])
def test_sglang_request(engine: str, start: int) -> None:
    recipe = recipes(make_plan(EXAMPLE))[engine]
    assert body(recipe.commands[0]) == {"start_step": start, "num_steps": 256}
    assert recipe.delay_iters == start
    assert 'SGLANG_TORCH_PROFILER_DIR="$PWD/traces"' in recipe.environment


# --------------------------------------------------------------------------------------------------------- JSON

PLANS = [
    EXAMPLE,
    Workload(16, 1000, 0.25, 400, 4096, 512, 2048, "vllm", 2, 2),
]


@pytest.mark.parametrize("workload", PLANS)
def test_plan_comes_back_from_its_json(workload: Workload) -> None:
    plan = make_plan(workload, 64, 400)
    back = Plan.from_dict(json.loads(json.dumps(plan.to_dict(), allow_nan=False)))
    assert back.to_dict() == plan.to_dict()
    assert (back.shortest_steps, back.longest_steps) == (64, 400)


@pytest.mark.parametrize("data", [{}, {"inputs": {}}, {"inputs": None}, {"inputs": {"concurrency_requests": 64}}])
def test_what_is_no_plan_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="plan"):
        Plan.from_dict(data)


def test_json_has_every_figure() -> None:
    data = make_plan(EXAMPLE).to_dict()
    assert data["output_lengths"]["shortest_output_tokens"] == 819.2
    assert data["run"]["total_steps"] == 9216.0
    assert data["run"]["needed_steps"] == 15
    assert data["expected_mix"]["profile_local_steps"] == pytest.approx(39.02, abs=0.01)
    assert data["profile"] == {
        "max_iters_steps": 256,
        "unclamped_max_iters_steps": 256.0,
        "delay_iters_steps": 4480,
        "first_step": 4480,
        "end_step": 4736,
        "analytic_window_first_step": 4096.0,
        "analytic_window_last_step": 5120.0,
    }


def test_names_of_numbers_in_json_end_in_a_unit() -> None:
    units = ("_steps", "_step", "_tokens", "_requests", "_fraction", "_ratio", "_ranks", "_stages", "_version")
    not_numbers = {"range_ratio_style", "is_prefill_bound"}
    counted = {"requests_per_step", "completions_per_step", "chunks_per_request"}
    data = make_plan(EXAMPLE).to_dict()
    named = [name for part in ("inputs", "output_lengths", "run", "expected_mix", "profile") for name in data[part]]
    assert [name for name in named if not name.endswith(units) and name not in not_numbers | counted] == []
    assert {"delay_iters_steps", "max_iters_steps"} <= set(keys(data["profilers"]))


# --------------------------------------------------------------------------------------------------------- text


def test_text_says_the_range_first() -> None:
    assert plan_lines(make_plan(EXAMPLE))[0] == (
        "Output lengths: 819.2 to 1,024 tokens (range-ratio style: document, R = 0.8)"
    )
    vllm = make_plan(Workload(64, 1000, 0.25, range_ratio_style="vllm"))
    assert plan_lines(vllm)[0] == (
        "Output lengths: 750 to 1,250 tokens (range-ratio style: vllm, r = 0.25, the document's R = 0.6)"
    )


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (EXAMPLE, ["64 requests", "921.6 tokens", "0.06944", "9,216 steps", "39.0 of 256 steps  17.8 if"]),
        (EXAMPLE, ["4,096 to 5,120", "4,480 steps", "256 steps", "4,480 to 4,736"]),
        (Workload(64, 1024, data_parallel=4, pipeline_stages=2), ["16 requests  CONC / DP", "8 requests"]),
        (Workload(64, 1024, prompt_tokens=8192, chunk_size=2048), ["1,984 tokens", "chunks a prompt", "31.25 %"]),
    ],
)
def test_text_holds_the_figures(workload: Workload, expected: list[str]) -> None:
    text = "\n".join(plan_lines(make_plan(workload)))
    assert [part for part in expected if part not in text] == []


def test_text_holds_flags_that_a_shell_can_read() -> None:
    lines = plan_lines(make_plan(EXAMPLE))
    start = lines.index(VLLM_NEW) + 2
    end = next(index for index in range(start, len(lines)) if not lines[index].endswith("\\"))
    words = shlex.split("\n".join(lines[start : end + 1]).replace("\\\n", " "))
    assert words[-2:] == ["--profiler-config.detailed_trace_annotation", "True"]
    for line in lines:
        if line.startswith(("  curl", "  export")):
            shlex.split(line)


def test_text_has_no_trailing_space() -> None:
    assert [line for line in plan_lines(make_plan(EXAMPLE)) if line != line.rstrip()] == []
