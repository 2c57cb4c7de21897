"""Options that commands share: sizes, workloads, --config."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.conftest import Command
from tracelens_infer.cli.main import _COMMANDS, cli
from tracelens_infer.cli.options import _WORKLOAD_NAMES, byte_size, workload_from
from tracelens_infer.cli.split import _SECTIONS, split_command
from tracelens_infer.errors import UsageError
from tracelens_infer.report.split_plan import SplitOptions
from tracelens_infer.steps.workload import Workload

OPTION = click.Option(["--max-bytes"])
CONTEXT = click.Context(split_command)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("500", 500),
        ("10K", 10 << 10),
        ("500M", 500 << 20),
        ("32G", 32 << 30),
        ("32g", 32 << 30),
        ("2T", 2 << 40),
        ("1.5G", 3 << 29),
        ("10 MB", 10 << 20),
        ("10MiB", 10 << 20),
        (" 7B ", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert byte_size(CONTEXT, OPTION, text) == size


@pytest.mark.parametrize("text", ["", "0", "0.1", "-5", "5X", "G", "1e9", "5 GG", "0x10", "٣.٣.٣"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter):
        byte_size(CONTEXT, OPTION, text)


def given(**options: Any) -> dict[str, Any]:  # noqa: ANN401 - the values of options
    defaults: dict[str, Any] = dict.fromkeys(_WORKLOAD_NAMES)
    defaults |= {"range_ratio_style": "document", "cached_tokens": 0, "data_parallel": 1, "pipeline_stages": 1}
    return defaults | options


def test_without_conc_and_osl_there_is_no_workload() -> None:
    options = given(others=1)
    assert workload_from(options) is None
    assert options == {"others": 1}


def test_options_become_a_workload() -> None:
    options = given(concurrency=64, output_tokens=1024, length_ratio=0.8, num_prompts=640)
    expected = Workload(concurrency=64, output_tokens=1024, length_ratio=0.8, num_prompts=640)
    assert workload_from(options) == expected


@pytest.mark.parametrize("style", ["document", "vllm"])
def test_lengths_are_equal_without_a_ratio(style: str) -> None:
    workload = workload_from(given(concurrency=8, output_tokens=100, range_ratio_style=style))
    assert workload.shortest_output_tokens == workload.longest_output_tokens == 100


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 8},
        {"output_tokens": 8},
        {"length_ratio": 0.5},
        {"num_prompts": 80},
        {"prompt_tokens": 80},
        {"chunk_size": 80},
        {"concurrency": 8, "length_ratio": 0.5},
    ],
)
def test_half_a_workload_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        workload_from(given(**options))


def test_the_options_are_the_fields_of_what_they_make() -> None:
    assert set(_WORKLOAD_NAMES) == set(Workload.__dataclass_fields__)
    names = {option.name for option in split_command.params}
    assert set(SplitOptions.__dataclass_fields__) - {"workload"} <= names


def test_every_option_of_a_section_exists_and_all_have_help() -> None:
    names = [option.name for option in split_command.params if isinstance(option, click.Option)]
    listed = [name for section in _SECTIONS.values() for name in section]
    assert set(listed) <= set(names)
    assert len(listed) == len(set(listed))
    context = click.Context(cli)
    for command in _COMMANDS:
        found = cli.get_command(context, command)
        assert found is not None
        silent = [option.name for option in found.params if isinstance(option, click.Option) and not option.help]
        assert silent == []


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_shows_every_option_once(command: str, tracelens: Command) -> None:
    listed = re.findall(r"^  (-.*?)(?:  |$)", tracelens(command, "--help").out, re.MULTILINE)
    names = [word for definition in listed for word in re.findall(r"--?[\w-]+", definition)]
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    options = [option for option in found.params if isinstance(option, click.Option)]
    spelled = [name for option in options for name in (*option.opts, *option.secondary_opts)]
    assert sorted(names) == sorted([*spelled, "-h", "--help"])


# -- --config --------------------------------------------------------------------------------------------------------


def config(folder: Path, text: str) -> Path:
    path = folder / "tracelens.toml"
    path.write_text(text)
    return path


SPLIT = """
[split]
CONC = 8
output-len = 10
"--R" = 1.0
num-steps = 7
no-gap-fill = true
divide-phases = true
json = true
force = true

[plan]
CONC = 64
OSL = 1024
R = 0.8
json = true
"""


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_configuration_gives_defaults(place: str, tracelens: Command, trace: Path, tmp_path: Path) -> None:
    path = config(tmp_path, SPLIT)
    arguments = ["--config", path, "split", trace] if place == "before" else ["split", trace, "--config", path]
    outcome = tracelens(*arguments)
    assert outcome.code == 0, outcome.err
    options = json.loads(outcome.out)["options"]
    workload = options.pop("workload")
    assert (workload["concurrency"], workload["output_tokens"], workload["length_ratio"]) == (8, 10, 1.0)
    assert options == {
        "num_steps": 7,
        "trace_starts_at": None,
        "iterations": None,
        "single_iterations": False,
        "divide_phases": True,
        "gap_fill": False,
        "allow_degraded": False,
        "llm_inference": False,
        "max_num_seq": None,
    }


def test_required_options_may_come_from_it(tracelens: Command, tmp_path: Path) -> None:
    outcome = tracelens("plan", "--config", config(tmp_path, SPLIT))
    assert 64 in json.loads(outcome.out)["inputs"].values()


def test_flags_win(tracelens: Command, trace: Path, tmp_path: Path) -> None:
    flags = ["--concurrency", "4", "--num-steps", "9", "--gap-fill"]
    outcome = tracelens("--config", config(tmp_path, SPLIT), "split", trace, *flags)
    options = json.loads(outcome.out)["options"]
    assert (options["workload"]["concurrency"], options["num_steps"], options["gap_fill"]) == (4, 9, True)
    assert options["workload"]["output_tokens"] == 10


def test_the_nearer_file_wins(tracelens: Command, trace: Path, tmp_path: Path) -> None:
    far = config(tmp_path, SPLIT)
    near = tmp_path / "near.toml"
    near.write_text("[split]\nnum-steps = 5\n")
    outcome = tracelens("--config", far, "split", trace, "--config", near)
    options = json.loads(outcome.out)["options"]
    assert (options["num_steps"], options["gap_fill"]) == (5, False)


@pytest.mark.parametrize(
    ("text", "thing", "reason"),
    [
        ("[slice]\nforce = true", "", "[slice] is no command."),
        ("force = true", "", "[force] is no command."),
        ("split = 3", "", "[split] is no command."),
        ("[split]\nfrce = true", ", [split] frce", "There is no option of this name."),
        ("[split]\nTRACE = 'x'", ", [split] TRACE", "There is no option of this name."),
        ("[split]\nconfig = 'x'", ", [split] config", "There is no option of this name."),
        ("[split]\nhelp = true", ", [split] help", "There is no option of this name."),
        ("[split]\nconc = 8", ", [split] conc", "There is no option of this name."),
        ("[plan]\nforce = true", ", [plan] force", "There is no option of this name."),
        ("[split]\nforce = 'yes'", ", [split] force", "This option is on or off."),
        ("[split]\nforce = 1", ", [split] force", "This option is on or off."),
        ("[split]\nnum-steps = true", ", [split] num-steps", "This option has a value."),
        ("[split]\nnum-steps = [1]", ", [split] num-steps", "An option has one value, no list or table."),
        ("[split.force]\nx = 1", ", [split] force", "An option has one value, no list or table."),
        (
            "[split]\nCONC = 8\nconcurrency = 9",
            ", [split] concurrency",
            "The same option stands above under another name.",
        ),
        ("[split]\nnum-steps = ", "", None),
        ("[split]\nforce = true\nforce = true", "", None),
    ],
)
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_configuration_that_makes_no_sense_is_refused(
    text: str, thing: str, reason: str | None, place: str, tracelens: Command, trace: Path, tmp_path: Path
) -> None:
    path = config(tmp_path, text)
    arguments = ["--config", path, "split", trace] if place == "before" else ["split", trace, "--config", path]
    outcome = tracelens(*arguments)
    assert (outcome.code, outcome.out, len(outcome.lines)) == (2, "", 3)
    assert outcome.lines[0] == f"error: {path}{thing}"
    if reason is None:
        assert outcome.lines[1].startswith("  The configuration is no TOML:")
    else:
        assert outcome.lines[1] == f"  {reason}"


@pytest.mark.parametrize(
    ("text", "thing"),
    [("num-steps = 0", "--num-steps"), ("num-steps = 'x'", "--num-steps"), ("CONC = 1.5", "--CONC / --concurrency")],
)
def test_values_are_checked_as_those_of_flags(
    text: str, thing: str, tracelens: Command, trace: Path, tmp_path: Path
) -> None:
    outcome = tracelens("--config", config(tmp_path, f"[split]\n{text}"), "split", trace)
    assert (outcome.code, outcome.lines[0]) == (2, f"error: tracelens split {thing}")


def test_a_configuration_that_is_not_there(tracelens: Command, trace: Path, tmp_path: Path) -> None:
    for path, reason in (("none.toml", "No such file or directory"), (tmp_path, "Is a directory")):
        outcome = tracelens("--config", path, "info", trace)
        assert outcome.code == 2
        assert outcome.lines == [
            f"error: {path}",
            f"  The configuration cannot be read: {reason}.",
            "  Check the path.",
        ]


def test_a_configuration_of_bytes_that_are_no_text(tracelens: Command, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "tracelens.toml"
    path.write_bytes(b"\xff\xfe")
    outcome = tracelens("--config", path, "info", trace)
    assert (outcome.code, len(outcome.lines)) == (2, 3)
    assert outcome.lines[1].startswith("  The configuration is no TOML:")


def test_an_empty_configuration_changes_nothing(tracelens: Command, trace: Path, tmp_path: Path) -> None:
    plain = tracelens("info", trace)
    assert tracelens("--config", config(tmp_path, ""), "info", trace) == plain
    assert tracelens("--config", config(tmp_path, "[split]\nforce = true"), "info", trace) == plain
