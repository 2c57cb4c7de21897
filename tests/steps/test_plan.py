"""Plans: when to profile, refusals, recipes and the JSON form."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_infer.errors import UsageError
from tracelens_infer.report.plan_text import OTHER_RECIPES, plan_lines
from tracelens_infer.steps.plan import Plan, ProfilerRecipe, make_plan
from tracelens_infer.steps.workload import Workload

EXAMPLE = Workload(64, 1024, 0.8)
VLLM_STYLE = Workload(64, 1000, 0.25, range_ratio_style="vllm")
CHUNKED = Workload(64, 1024, 0.8, num_prompts=640, prompt_tokens=4096, chunk_size=512)
BUSY = Workload(64, 1024, 0.8, prompt_tokens=5000, chunk_size=512)
FAR = "local_mix_withheld"
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
    assert plan.mix is not None
    assert round(plan.mix.prefill_decode_steps, 1) == 39.0
    assert round(plan.mixed_steps_stationary, 1) == 17.8
    assert plan.notes == ()


def test_notes_of_the_workload_and_of_the_profile_come_along() -> None:
    plan = make_plan(Workload(16, 1024, 0.8, prompt_tokens=4096, chunk_size=2048))
    assert [note.code for note in plan.notes] == ["prompt_is_chunked", "max_iters_clamped"]
    assert plan.notes[0].text.startswith("A prompt is computed in 3 chunks")


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


@pytest.mark.parametrize("data", [{}, {"inputs": {}}, {"inputs": None}, {"inputs": {"concurrency": 64}}])
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
        "max_iters": 256,
        "unclamped_max_iters": 256,
        "delay_iters": 4480,
        "first_step": 4480,
        "end_step": 4736,
        "analytic_window_first_step": 4096,
        "analytic_window_last_step": 5120,
        "completion_ranges_steps": [[819, 1024], [1638, 2048], [2458, 3072], [3277, 4096], [4096, 5120]],
    }
    whole = [*data["profile"].items(), *((name, data["run"][name]) for name in data["run"] if name.endswith("_steps"))]
    assert [name for name, value in whole if isinstance(value, float)] == []


def test_names_of_numbers_in_json_tell_the_unit() -> None:
    units = (
        "_steps",
        "_step",
        "_iters",
        "_prompts",
        "_completions",
        "concurrency",
        "_tokens",
        "_fraction",
        "_ratio",
        "_ranks",
        "_stages",
        "_version",
    )
    not_numbers = {"range_ratio_style", "is_prefill_bound"}
    counted = {"requests_per_step", "completions_per_step", "chunks_per_request"}
    data = make_plan(EXAMPLE).to_dict()
    named = [name for part in ("inputs", "output_lengths", "run", "expected_mix", "profile") for name in data[part]]
    assert [name for name in named if not name.endswith(units) and name not in not_numbers | counted] == []
    assert {"delay_iters", "max_iters", "family"} <= set(keys(data["profilers"]))
    assert not [name for name in keys(data) if name.endswith(("_iters_steps", "_prompts_requests"))]


# --------------------------------------------------------------------------------------------------------- text


def test_text_says_the_range_first() -> None:
    assert plan_lines(make_plan(EXAMPLE))[0] == ("Output lengths: 819.2 to 1,024 tokens (document style, R = 0.8)")
    vllm = make_plan(Workload(64, 1000, 0.25, range_ratio_style="vllm"))
    assert plan_lines(vllm)[:2] == [
        "Output lengths: 750 to 1,250 tokens (vllm style, R = 0.25; in document style",
        "                R = 0.6)",
    ]


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (EXAMPLE, ["64 requests", "921.6 tokens", "0.06944", "9,216 steps", "39.0 of 256 steps  17.8 if"]),
        (EXAMPLE, ["4,096 to 5,120", "4,480 steps", "256 steps", "4,480 to 4,736"]),
        (EXAMPLE, ["OSL * (1 + R) / 2", "steps 5 * R * OSL to 5 * OSL", "each its own step", "16 * OSL / CONC"]),
        (Workload(64, 1024, data_parallel=4, pipeline_stages=2), ["16 requests  CONC / DP", "8 requests"]),
        (Workload(64, 1024, data_parallel=3), ["21.3 requests", "lambda = (CONC / DP) / mean output"]),
        (VLLM_STYLE, ["OSL, the middle of the lengths", "5 * OSL * (1 - R)", "16 * OSL * (1 + R) / CONC"]),
        (CHUNKED, ["69.44 %", "33.98 %", "87.0 of 256 steps  177.8 if"]),
        (BUSY, ["withheld  chunks queue: see the warning"]),
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
        if line.startswith("  export"):
            shlex.split(line)


TEXTS = [
    EXAMPLE,
    VLLM_STYLE,
    CHUNKED,
    BUSY,
    PLANS[1],
    Workload(64, 1024),
    Workload(4096, 100_000, 0.37, data_parallel=7),
]


@pytest.mark.parametrize("workload", TEXTS)
@pytest.mark.parametrize("engine", [None, "vllm", "sglang", "all"])
def test_text_fits_a_terminal(workload: Workload, engine: str | None) -> None:
    lines = plan_lines(make_plan(workload), engine)
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if line != line.rstrip()] == []
    assert not [line for line in lines if "by the document" in line]


@pytest.mark.parametrize("engine", [None, "vllm", "sglang", "all"])
def test_text_holds_the_engines_asked_for(engine: str | None) -> None:
    wanted = {
        None: [VLLM_NEW, SGLANG],
        "vllm": [VLLM_NEW, VLLM_OLDER, VLLM_OLDEST],
        "sglang": [SGLANG, SGLANG_MIXED],
        "all": [VLLM_NEW, VLLM_OLDER, VLLM_OLDEST, SGLANG, SGLANG_MIXED],
    }
    lines = plan_lines(make_plan(EXAMPLE), engine)
    assert [line for line in lines if line in recipes(make_plan(EXAMPLE))] == wanted[engine]
    assert (OTHER_RECIPES in lines) is (engine is None)


def test_text_tells_where_requests_end() -> None:
    lines = plan_lines(make_plan(EXAMPLE))
    place = lines.index("Steps in which requests end: k * R * OSL to k * OSL, k = 1 to 5")
    assert lines[place + 1] == "  819-1,024, 1,638-2,048, 2,458-3,072, 3,277-4,096, 4,096-5,120"
    assert "  1,024, 2,048, 3,072, 4,096, 5,120" in plan_lines(make_plan(Workload(64, 1024)))


def test_commands_in_the_text_are_those_of_the_recipes() -> None:
    plan = make_plan(EXAMPLE)
    for prefix in ("", "# "):
        text = "\n".join(line.removeprefix("  ").removeprefix(prefix) for line in plan_lines(plan, "all"))
        shown = [shlex.split(line) for line in re.sub(r"\\\n *", "", text).splitlines() if line.startswith("curl")]
        parts = [part for recipe in plan.recipes for part in (recipe.remarks if prefix else recipe.commands)]
        wanted = [shlex.split(part) for part in parts if part.startswith("curl")]
        assert [words for words in wanted if words not in shown] == []


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (CHUNKED, ["prompt_is_chunked"]),
        (BUSY, ["prompt_is_chunked", "local_mix_withheld"]),
        (
            Workload(64, 60_000, 0.8, prompt_tokens=4096, chunk_size=2048),
            ["prompt_is_chunked", "max_iters_clamped", "profile_below_steps_needed", FAR],
        ),
        (Workload(64, 1024), ["completions_in_one_burst"]),
    ],
)
def test_notes_of_a_plan(workload: Workload, expected: list[str]) -> None:
    plan = make_plan(workload)
    assert [note.code for note in plan.notes] == expected
    assert (plan.mix is None) is ("local_mix_withheld" in expected)
    assert (plan.to_dict()["expected_mix"]["profile_local_steps"] is None) is (plan.mix is None)
