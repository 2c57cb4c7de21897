"""``tracelens info`` as a user calls it."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, steps_of_kinds
from tests.make_trace import DECODE, EXTEND, TraceMaker, Work, vllm

SCREEN_LINES = 24


def rows(text: str) -> dict[str, str]:
    """Read what is shown as name and value; values on several lines joined."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines()[1:]:
        if line:
            name = line[:18].strip() or name
            found[name] = f"{found.get(name, '')} {line[18:].strip()}".strip()
    return found


HEADER: dict[str, object] = {
    "vllm_version": "0.99.1",
    "distributedInfo": {"rank": 3, "world_size": 8},
    "deviceProperties": [{"name": "Made GPU"}, {"name": "Made GPU"}],
    "record_shapes": 1,
    "with_stack": 1,
}


def test_one_screen_says_what_is_in_a_trace(tracelens: Command, tmp_path: Path) -> None:
    path = steps_of_kinds(HEADER).write(tmp_path)
    outcome = tracelens("info", path)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[0] == str(path)
    assert len(outcome.out.splitlines()) < SCREEN_LINES
    assert max(map(len, outcome.out.splitlines()[1:])) <= 80
    shown = rows(outcome.out)
    assert shown.pop("events").endswith("MB of JSON ac2g 80, user_annotation 40, cpu_op 40, cuda_runtime 40, kernel 40")
    assert shown == {
        "engine": "vLLM 0.99.1",
        "rank": "3 of 8",
        "devices": "2 x Made GPU",
        "recorded": "4.00 ms, with shapes, with stacks",
        "steps": "40 from vLLM labels: 36 decode-only, 4 prefill-decode "
        "100.0% of the device time between first and last is in them",
        "step time": "decode-only: 100.0 us prefill-decode: 100.0 us",
        "engine mode": "mixed: prefills share steps with decodes",
        "graphs": "none in 40 steps",
        "device work": "40 events, 40 with their launch in the file, 40 in steps",
    }


def test_a_trace_that_tells_little_is_shown_with_what_it_tells(tracelens: Command, tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps(["ProfilerStep#0"], start=1000, device=False)
    shown = rows(tracelens("info", maker.write(tmp_path)).out)
    assert shown.pop("events").startswith("2 in 0.0 MB of JSON")
    assert shown == {
        "engine": "unknown",
        "devices": "none listed; no device events, so step times are host times",
        "recorded": "80.0 us, without shapes, without stacks",
        "steps": "1 from ProfilerStep labels; they do not tell what a step does "
        "100.0% of the host op time between first and last is in them",
        "step time": "80.0 us",
        "info": "The trace holds no device events: step times are host times.",
    }


def test_an_exclusive_engine_and_a_family_that_is_not_used(tracelens: Command, tmp_path: Path) -> None:
    maker = TraceMaker({"deviceProperties": [{"name": ""}]})
    maker.steps([DECODE, EXTEND, DECODE.replace("8", "10")])
    maker.label("ProfilerStep#0", 0, 300)
    shown = rows(tracelens("info", maker.write(tmp_path)).out)
    assert shown["engine"] == "SGLang"
    assert shown["devices"] == "unnamed"
    assert shown["engine mode"] == "exclusive: decodes stand still during a prefill"
    assert shown["not used"] == (
        "ProfilerStep labels (1 step): the engine's own labels are preferred to the profiler's schedule"
    )


def test_notes_are_part_of_what_is_shown_informative_ones_too(tracelens: Command, tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.step(vllm(0, 8), 0, 80, Work(5, 20, 30), Work(6, 0, 30))
    maker.events.append(dict(maker.events[0]))
    path = maker.write(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    outcome = tracelens("info", path)
    assert (outcome.code, outcome.err) == (0, "")
    shown = rows(outcome.out)
    assert shown["info"] == "The file begins with a byte-order mark. (first at byte 0)"
    assert "Events that stand in the file twice were dropped." in shown["warning"]


def test_a_trace_without_steps_is_described_as_far_as_it_goes(tracelens: Command, tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label("warm-up", 0, 10)
    maker.kernel(5, 10, correlation=7)
    path = maker.write(tmp_path)
    outcome = tracelens("info", path)
    assert (outcome.code, outcome.err) == (0, "")
    shown = rows(outcome.out)
    assert shown["steps"].startswith("none. No step markers: none of the labels seen is one of a step: warm-up (1).")
    assert shown["labels"] == "warm-up (1)"
    assert shown["warning"].startswith("1 of 1 device events were launched before recording")
    data = as_json(tracelens, path)
    assert set(data["no_steps"]) == {"reason", "action"}
    assert "steps" not in data


def test_a_file_of_several_ranks_is_described_but_not_cut_into_steps(tracelens: Command, tmp_path: Path) -> None:
    text = steps_of_kinds().text()
    ranks = '"distributedInfo": {"rank": 0, "world_size": 2},' * 2
    path = tmp_path / "merged.json"
    path.write_text("{" + ranks.replace('"rank": 0', '"rank": 1', 1) + text[1:])
    outcome = tracelens("info", path)
    assert outcome.code == 0
    assert rows(outcome.out)["steps"].startswith("none. This file holds the events of 2 ranks (ranks 0, 1)")


# -- JSON ------------------------------------------------------------------------------------------------------------


def as_json(tracelens: Command, *arguments: str | Path) -> Any:  # noqa: ANN401 - JSON
    outcome = tracelens("info", *arguments, "--json")
    return json.loads(outcome.out)


def test_json_has_what_is_shown(tracelens: Command, tmp_path: Path) -> None:
    data = as_json(tracelens, steps_of_kinds(HEADER).write(tmp_path))
    assert data["schema_version"] == 1
    assert data["source"]["rank"] == 3
    assert data["events_by_category"] == {
        "ac2g": 80,
        "user_annotation": 40,
        "cpu_op": 40,
        "cuda_runtime": 40,
        "kernel": 40,
    }
    assert (data["steps"], data["detector"], data["engine_mode"]) == (40, "annotation:vllm", "mixed")
    assert data["steps_by_kind"] == {"decode_only": 36, "prefill_decode": 4}
    assert data["durations_us"]["decode_only"] == {"p10": 100.0, "p50": 100.0, "p90": 100.0}
    assert data["labels"] == {"execute_#_context_#(sq#sk#sqsq#sqsk#)_generation_#(sq#sk#sqsq#sqsk#)": 40}


def test_several_traces_are_a_list(tracelens: Command, ranks: Path) -> None:
    assert [info["source"]["rank"] for info in as_json(tracelens, ranks)] == [0, 2, 3]
    one = as_json(tracelens, ranks / "rank0.json.gz")
    assert one["source"]["rank"] == 0


# -- several traces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ranks", "ranks/*.gz", "ranks/rank?.json.gz"])
def test_a_folder_or_a_glob_is_all_of_its_traces(name: str, tracelens: Command, ranks: Path) -> None:
    outcome = tracelens("info", name)
    assert outcome.code == 0
    headings = [line for line in outcome.out.splitlines() if line and not line.startswith(" ")]
    assert headings == [f"{ranks.name}/rank{rank}.json.gz" for rank in (0, 2, 3)]


def test_missing_and_short_ranks_are_named(tracelens: Command, ranks: Path) -> None:
    assert tracelens("info", "ranks").lines == [
        "warning: Of 5 ranks these are missing: 1, 4. [2]",
        "warning: Less than half of the other ranks' events are in ranks/rank3.json.gz; cut short?",
    ]


def test_ranks_that_stand_twice_are_named(tracelens: Command, ranks: Path) -> None:
    shutil.copy(ranks / "rank0.json.gz", ranks / "rank1.json.gz")
    lines = tracelens("info", "ranks").lines
    assert "warning: More than one trace says that it is of rank 0." in lines


def test_many_missing_ranks_are_counted(tracelens: Command, tmp_path: Path) -> None:
    for rank in (0, 1):
        header: dict[str, object] = {"distributedInfo": {"rank": rank, "world_size": 64}}
        steps_of_kinds(header).write(tmp_path, f"rank{rank}.json")
    lines = tracelens("info", "rank*.json").lines
    assert lines == ["warning: Of 64 ranks these are missing: 2, 3, 4, 5, 6, 7, 8, 9 and 54 more. [62]"]


def test_a_trace_named_twice_is_shown_once(tracelens: Command, ranks: Path) -> None:
    path = ranks / "rank0.json.gz"
    assert tracelens("info", path, path) == tracelens("info", path)


def test_one_that_cannot_be_read_does_not_keep_the_others_from_being_shown(tracelens: Command, ranks: Path) -> None:
    (ranks / "rank1.json").write_text("")
    outcome = tracelens("info", "ranks")
    assert outcome.code == 3
    assert outcome.lines[:2] == ["error: ranks/rank1.json", "  The file is empty."]
    assert outcome.out.count("  rank ") == 3
    assert len(as_json(tracelens, "ranks")) == 3


@pytest.mark.parametrize("command", ["info", "split"])
def test_a_name_that_is_none_does_not_keep_the_others_from_being_used(
    command: str, tracelens: Command, trace: Path
) -> None:
    outcome = tracelens(command, "none.json", trace, "--json")
    assert outcome.code == 3
    assert outcome.lines[:2] == ["error: none.json", "  There is no such file."]
    assert [found["steps"] for found in json.loads(outcome.out)] == [40]


@pytest.mark.parametrize("command", ["info", "split"])
def test_of_several_of_which_none_can_be_used_json_is_an_empty_list(command: str, tracelens: Command) -> None:
    outcome = tracelens(command, "none.json", "neither.json", "--json")
    assert (outcome.code, json.loads(outcome.out)) == (3, [])
    assert len(outcome.lines) == 6


def test_what_a_trace_brings_along_does_not_steer_the_terminal(tracelens: Command, tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label("\x1b[mred\x07\ud800 \u202e", 0, 10)
    for command, code in (("info", 0), ("split", 4)):
        outcome = tracelens(command, maker.write(tmp_path))
        assert outcome.code == code
        assert "?[mred" in outcome.out + outcome.err
        assert outcome.out.replace("\n", "").isprintable()
        assert outcome.err.replace("\n", "").isprintable()
    assert "red" in tracelens("info", maker.write(tmp_path), "--json").out


def test_standard_input(tmp_path: Path) -> None:
    data = gzip.compress(steps_of_kinds().text().encode())
    done = subprocess.run(
        [sys.executable, "-m", "tracelens_infer", "info", "-"],
        input=data,
        capture_output=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout.startswith(b"-\n")
    assert b"40 from vLLM labels" in done.stdout
