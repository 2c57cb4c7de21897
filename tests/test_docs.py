"""The pages under docs/ name what the code has: note codes, columns, keys, files, labels."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tracelens_infer.cli.main import cli
from tracelens_infer.report.split import SplitResult, split_trace
from tracelens_infer.report.split_plan import SplitOptions
from tracelens_infer.steps.annotation import parse_annotation
from tracelens_infer.steps.formats import BUILT_IN
from tracelens_infer.steps.step import DurationFrom, GraphMode, StepKind
from tracelens_infer.steps.table import STEP_COLUMNS
from tracelens_infer.steps.workload import Workload
from tracelens_infer.trace import losses

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tracelens_infer"
FIRST_CELL = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
CONSOLE = re.compile(r"^```console\n\$ tracelens (.+)\n((?:.*\n)*?)```$", re.MULTILINE)
QUOTED = re.compile(r"`([^`]+)`")

# Keys of the manifest under which names of kinds, of graph modes or of percentiles stand.
COUNTED_BY_NAME = {"steps_by_kind", "steps_by_graph", "composition", "median_duration_us"}


def page(name: str) -> str:
    """Return a page of docs/."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """Return what stands under a heading of the second level."""
    return text.split(f"\n## {title}\n")[1].partition("\n## ")[0]


# ----------------------------------------------------------------------------------------------------- notes


def note_calls() -> Iterator[tuple[Path, ast.expr]]:
    """Yield the code argument of every call that makes a Note."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Note":
                named = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                yield path, named[0] if named else node.args[1]


def codes_and_patterns() -> tuple[set[str], set[str]]:
    """Return the codes that the package writes out, and patterns of those it puts together."""
    codes, patterns = set(losses._TEXTS), set()
    for path, code in note_calls():
        if isinstance(code, ast.Constant):
            codes.add(str(code.value))
        elif isinstance(code, ast.JoinedStr):
            parts = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"\w+" for part in code.values]
            patterns.add("".join(parts))
        else:
            assert path.name == "losses.py", f"{path.name}: a note's code has to be readable where the note is made"
    return codes, patterns


def test_every_note_is_explained_once() -> None:
    codes, patterns = codes_and_patterns()
    explained = FIRST_CELL.findall(page("notes"))
    assert len(explained) == len(set(explained))
    composed = {code for code in explained if any(re.fullmatch(pattern, code) for pattern in patterns)} - codes
    assert codes - set(explained) == set(), "not explained in docs/notes.md"
    assert set(explained) - codes - composed == set(), "docs/notes.md explains what no longer exists"
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, code) for code in composed)] == []


# --------------------------------------------------------------------------------------------------- outputs


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> SplitResult:
    """Return a split of a sample with every kind of output."""
    options = SplitOptions(
        Workload(8, 128, 0.5), steady_state=True, iterations="0:40", single_iterations=True, divide_phases=True
    )
    return split_trace(
        ROOT / "traces" / "vllm_cpu_mixed_60steps.json.gz", tmp_path_factory.mktemp("docs") / "out", options
    )


def keys(value: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield every key of a JSON value that is a name of ours."""
    if isinstance(value, list):
        for item in value:
            yield from keys(item)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key == "durations_us":
                yield from (name for spread in inner.values() for name in spread)
            elif key not in COUNTED_BY_NAME:
                yield from keys(inner)


def test_every_column_is_explained_in_order() -> None:
    assert FIRST_CELL.findall(section(page("outputs"), "steps.csv")) == list(STEP_COLUMNS)


def test_values_of_columns_are_those_of_the_code() -> None:
    rows = section(page("outputs"), "steps.csv").splitlines()
    for column, values in (("kind", StepKind), ("graph", GraphMode), ("duration_from", DurationFrom)):
        row = next(line for line in rows if line.startswith(f"| `{column}` |"))
        assert set(QUOTED.findall(row)) == {column, *(value.value for value in values)}


def test_every_key_of_the_manifest_is_explained(everything: SplitResult) -> None:
    named = set(QUOTED.findall(section(page("outputs"), "split.json")))
    found = set(keys(everything.manifest))
    # What this sample has none of: rejected labels, clipped durations, places in a damaged file.
    absent = {"rejected", "row", "recorded_us", "clipped_us", "first_offset_bytes"}
    assert found - named == set()
    top_level = set(FIRST_CELL.findall(section(page("outputs"), "split.json"))) | {"schema_version", "tool_version"}
    assert top_level - found == set()
    assert set(everything.manifest) - named == set()
    assert absent <= named


def test_every_written_file_is_explained(everything: SplitResult) -> None:
    files = FIRST_CELL.findall(section(page("outputs"), "Files"))
    explained = {re.sub(r"\d{4}", "#", name) for name in (*files, "steps.csv", "steps.parquet")}
    written = {path.relative_to(everything.folder).as_posix() for path in everything.folder.rglob("*.*")}
    names = {re.sub(r"\d{4}", "#", re.sub(r"_\d+-\d+\.", "_A-B.", name)) for name in written}
    assert names - explained == set()
    assert len(names) > 7


# ---------------------------------------------------------------------------------------------------- labels


def test_every_format_of_labels_has_an_example_that_it_reads() -> None:
    rows = [line.split(" | ") for line in section(page("annotations"), "What is recognised").splitlines()]
    examples = {row[0].strip("| `"): QUOTED.findall(row[1]) for row in rows if row[0].startswith("| `")}
    assert list(examples) == [fmt.name for fmt in BUILT_IN]
    read = {name: [parse_annotation(label) for label in labels] for name, labels in examples.items()}
    assert {name: {found.format if found else None for found in labels} for name, labels in read.items()} == {
        name: {name} for name in examples
    }
    sums = {
        row[0].strip("| `"): row[4].strip("| ") == "yes" for row in rows if len(row) > 4 and row[0].startswith("| `")
    }
    assert sums == {fmt.name: fmt.has_aggregates for fmt in BUILT_IN}


# ---------------------------------------------------------------------------------------------------- README


def test_commands_in_the_readme_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    monkeypatch.chdir(tmp_path)
    shown = CONSOLE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert shown
    for command, expected in shown:
        done = CliRunner().invoke(cli, shlex.split(command))
        printed = [line.rstrip() for line in done.stdout.splitlines()]
        assert "\n".join(printed).strip("\n") == expected.strip("\n"), f"README.md: tracelens {command}"
