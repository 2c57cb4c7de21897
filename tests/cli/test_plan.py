"""``tracelens plan`` as a user calls it."""

from __future__ import annotations

import json
from typing import Any, get_args

import click
import pytest
from click.testing import CliRunner, Result

from tracelens_infer.cli.main import cli
from tracelens_infer.cli.options import EQUAL_LENGTHS
from tracelens_infer.cli.plan import plan_command
from tracelens_infer.errors import UsageError
from tracelens_infer.steps import profile_window
from tracelens_infer.steps.profiler_recipes import Engine
from tracelens_infer.steps.workload import RangeRatioStyle

EXAMPLE = ("--CONC", "64", "--OSL", "1024", "--R", "0.8")


def plan(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["plan", *arguments])
    if result.exception and not isinstance(result.exception, (UsageError, SystemExit)):
        raise result.exception
    return result


def as_json(*arguments: str) -> dict[str, Any]:
    result = plan(*arguments, "--json")
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_worked_example() -> None:
    result = plan(*EXAMPLE)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "Output lengths: 819.2 to 1,024 tokens (document style, R = 0.8)"
    assert "39.0 of 256 steps" in result.stdout
    assert "--profiler-config.delay_iterations 4480" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--CONC", "64", "--OSL", "1024", "--R", "0.8"),
        ("--concurrency", "64", "--output-len", "1024", "--range-ratio", "0.8"),
        ("--CONC=64", "--OSL=1024", "--R=0.8", "--num-prompts=640", "--range-ratio-style=document"),
    ],
)
def test_names_and_aliases(arguments: tuple[str, ...]) -> None:
    assert as_json(*arguments) == as_json(*EXAMPLE)


def test_every_option_reaches_the_plan() -> None:
    arguments = (
        *("--CONC", "64", "--OSL", "1000", "--R", "0.25", "--range-ratio-style", "vllm", "--num-prompts", "900"),
        *("--isl", "4096", "--cached-tokens", "96", "--chunk-size", "2048", "--dp", "2", "--pp", "4"),
        *("--min-iters", "40", "--max-iters", "300"),
    )
    assert as_json(*arguments)["inputs"] == {
        "concurrency": 64,
        "output_tokens": 1000,
        "length_ratio": 0.25,
        "range_ratio_style": "vllm",
        "num_prompts": 900,
        "prompt_tokens": 4096,
        "cached_tokens": 96,
        "chunk_size_tokens": 2048,
        "data_parallel_ranks": 2,
        "pipeline_stages": 4,
        "shortest_profile_steps": 40,
        "longest_profile_steps": 300,
    }
    assert as_json(*EXAMPLE, "--input-len", "100")["inputs"]["prompt_tokens"] == 100


@pytest.mark.parametrize("style", ["document", "vllm"])
def test_lengths_are_equal_without_a_ratio(style: str) -> None:
    lengths = as_json("--CONC", "8", "--OSL", "100", "--range-ratio-style", style)["output_lengths"]
    assert lengths["shortest_output_tokens"] == lengths["longest_output_tokens"] == 100


def test_json_is_data_only_and_notes_go_to_stderr() -> None:
    result = plan("--CONC", "16", "--OSL", "1024", "--R", "0.8", "--json")
    data = json.loads(result.stdout)
    assert [note["code"] for note in data["notes"]] == ["max_iters_clamped"]
    assert result.stderr == f"info: {data['notes'][0]['text']}\n"


def test_notes_of_the_text_go_to_stderr() -> None:
    result = plan("--CONC", "16", "--OSL", "1024", "--R", "0.8")
    assert result.stderr.startswith("info: 16 * longest output / CONC asks for 1,024 steps")
    assert "asks for" not in result.stdout


@pytest.mark.parametrize(("engine", "families"), [("vllm", {"vllm"}), ("sglang", {"sglang"}), ("all", None)])
def test_engine_chooses_the_flags(engine: str, families: set[str] | None) -> None:
    chosen = {recipe["family"] for recipe in as_json(*EXAMPLE, "--engine", engine)["profilers"]}
    assert chosen == (families or {"vllm", "sglang"})
    assert as_json(*EXAMPLE)["profilers"] == as_json(*EXAMPLE, "--engine", "all")["profilers"]
    text = plan(*EXAMPLE, "--engine", engine).stdout
    assert ("vLLM before 0.13" in text) is (engine != "sglang")
    assert ("--enable-mixed-chunk" in text) is (engine != "vllm")
    assert "--enable-mixed-chunk" not in plan(*EXAMPLE).stdout


def test_engines_are_those_of_the_library() -> None:
    kind = next(option for option in plan_command.params if option.name == "engine").type
    assert isinstance(kind, click.Choice)
    assert list(kind.choices) == [*get_args(Engine), "all"]


def test_chunks_count_in_the_profile() -> None:
    """The figure of the profile must not contradict the chunked one beside it."""
    result = plan(*EXAMPLE, "--num-prompts", "640", "--chunk-size", "512", "--isl", "4096")
    assert "69.44 %" in result.stdout
    assert "87.0 of 256 steps  177.8 if" in result.stdout
    assert "39.0" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "thing"),
    [
        (("--CONC", "0", "--OSL", "1024"), "--CONC"),
        (("--CONC", "64", "--OSL", "-1"), "--OSL"),
        (("--CONC", "64", "--OSL", "1024", "--R", "1.2"), "--R"),
        (("--CONC", "64", "--OSL", "1024", "--R", "nan"), "--R"),
        (("--CONC", "64", "--OSL", "1024", "--R", "1", "--range-ratio-style", "vllm"), "--R"),
        ((*EXAMPLE, "--num-prompts", "300"), "--num-prompts"),
        ((*EXAMPLE, "--chunk-size", "64"), "--chunk-size"),
        ((*EXAMPLE, "--cached-tokens", "5"), "--cached-tokens"),
        ((*EXAMPLE, "--isl", "0"), "--isl"),
        ((*EXAMPLE, "--dp", "65"), "--dp"),
        ((*EXAMPLE, "--pp", "0"), "--pp"),
        ((*EXAMPLE, "--min-iters", "600"), "--min-iters"),
        ((*EXAMPLE, "--max-iters", "0"), "--max-iters"),
    ],
)
def test_refusals_reach_the_caller_and_name_an_option_that_exists(arguments: tuple[str, ...], thing: str) -> None:
    result = plan(*arguments)
    assert isinstance(result.exception, UsageError)
    assert thing in result.exception.thing
    assert thing in {name for option in plan_command.params for name in option.opts}
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [(), ("--CONC", "64"), ("--CONC", "x", "--OSL", "1"), (*EXAMPLE, "--range-ratio-style", "sglang"), (*EXAMPLE, "a")],
)
def test_what_click_refuses(arguments: tuple[str, ...]) -> None:
    assert plan(*arguments).exit_code == 2


def test_defaults_and_choices_are_those_of_the_library() -> None:
    options = {option.name: option for option in plan_command.params}
    assert options["min_iters"].default == profile_window.SHORTEST_PROFILE_STEPS
    assert options["max_iters"].default == profile_window.LONGEST_PROFILE_STEPS
    style = options["range_ratio_style"].type
    assert isinstance(style, click.Choice)
    assert list(style.choices) == list(EQUAL_LENGTHS) == list(get_args(RangeRatioStyle))


def test_every_option_has_help() -> None:
    assert [option.name for option in plan_command.params if not getattr(option, "help", None)] == []
    assert "Say when to profile" in plan("--help").stdout
