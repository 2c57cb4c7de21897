"""docs/outputs.md names every key that --json prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tracelens_infer.cli.main import cli
from tracelens_infer.steps.step import StepKind

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "outputs.md").read_text(encoding="utf-8")
FENCED = re.compile(r"```.*?```", re.DOTALL)
ROOFLINE_PAGE = FENCED.sub("", (ROOT / "docs" / "roofline.md").read_text(encoding="utf-8"))
STEP_KINDS = tuple(kind.value for kind in StepKind)
QUOTED = re.compile(r"`([^`]+)`")
SAMPLE = str(ROOT / "traces" / "vllm_cpu_decode_10steps.json.gz")

# Keys under which categories, labels, kinds and graph modes stand.
COUNTED_BY_NAME = {"events_by_category", "labels", "steps_by_kind", "steps_by_graph", "durations_us"}


def keys(value: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield every key of a JSON value that is a name of ours."""
    if isinstance(value, list):
        for item in value:
            yield from keys(item)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key not in COUNTED_BY_NAME:
                yield from keys(inner)


def printed(*arguments: str) -> Any:  # noqa: ANN401 - JSON
    """Run a command with --json and return what it prints."""
    return json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)


@pytest.mark.parametrize(
    "command",
    [
        ["info", SAMPLE],
        ["plan", "--CONC", "64", "--OSL", "1024", "--R", "0.8", "--isl", "8192", "--chunk-size", "2048"],
    ],
    ids=["info", "plan"],
)
def test_every_key_is_explained(command: list[str]) -> None:
    assert set(keys(printed(*command))) - set(QUOTED.findall(PAGE)) == set()


@pytest.mark.parametrize(
    "command",
    [
        [SAMPLE, "--peak-tflops", "1", "--peak-bandwidth", "50"],
        [SAMPLE, "--model", "Qwen3-8B", "--gpu", "H100-SXM"],
        [
            "--annotation",
            "execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk538sqsq8sqsk538)",
            "--model",
            "Qwen3-8B",
        ],
    ],
    ids=["shapes", "model", "annotation"],
)
def test_every_key_of_a_roofline_is_explained(command: list[str]) -> None:
    explained = set(QUOTED.findall(PAGE)) | set(QUOTED.findall(ROOFLINE_PAGE))
    named = {"peaks", "time_shares"}  # by number format, by kind of step
    found = printed("roofline", *command)
    for key in named & set(found.get("hardware") or {}) | named & set(found):
        holder = found if key in found else found["hardware"]
        holder[key] = list(holder[key].values())
    assert set(keys(found)) - explained - set(STEP_KINDS) == set()


def test_every_column_of_a_roofline_is_explained(tmp_path: Path) -> None:
    out = tmp_path / "out"
    CliRunner().invoke(cli, ["roofline", SAMPLE, "--model", "Qwen3-8B", "--gpu", "H100-SXM", "-o", str(out)])
    explained = set(QUOTED.findall(ROOFLINE_PAGE))
    for name in ("attention", "steps"):
        columns = (out / f"{name}.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
        assert {column for column in columns if not column.endswith("_sum_us")} - explained == set()


def test_info_explains_a_trace_without_steps(tmp_path: Path) -> None:
    trace = tmp_path / "none.json"
    trace.write_text('{"traceEvents": [{"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 1}]}')
    found = printed("info", str(trace))
    assert "no_steps" in found
    assert set(keys(found)) - set(QUOTED.findall(PAGE)) == set()


def test_one_trace_gives_an_object_and_several_an_array(tmp_path: Path) -> None:
    alone = printed("split", SAMPLE, "-o", str(tmp_path / "one"))
    assert alone["folder"] == str(tmp_path / "one")
    other = str(ROOT / "traces" / "vllm_cpu_mixed_60steps.json.gz")
    several = printed("split", SAMPLE, other, "-o", str(tmp_path / "all"))
    folders = [tmp_path / "all" / "vllm_cpu_decode_10steps", tmp_path / "all" / "vllm_cpu_mixed_60steps"]
    assert [found["folder"] for found in several] == [str(folder) for folder in folders]
    assert all((folder / "split.json").is_file() for folder in folders)
