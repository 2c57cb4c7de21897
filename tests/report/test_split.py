"""What a split writes: which traces, with which events, the tables, and the manifest that tells of them."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.make_trace import HOST, TraceMaker, Work, event_texts, read_events, vllm
from tracelens_infer.errors import LowCoverageError, NothingFoundError, OutputExistsError, UsageError
from tracelens_infer.report.split import SplitResult, split_trace
from tracelens_infer.report.split_plan import SplitOptions, parse_range
from tracelens_infer.steps import coverage
from tracelens_infer.steps.table import STEP_COLUMNS
from tracelens_infer.steps.workload import Workload

KINDS = [
    *("prefill_only", "prefill_decode"),
    *(["decode_only"] * 9 + ["prefill_decode"]) * 6,
    *("decode_only", "empty", "decode_only"),
]
LABELS = {
    "prefill_only": vllm(4, 0),
    "prefill_decode": vllm(1, 7),
    "decode_only": vllm(0, 8),
    "empty": vllm(0, 0),
}
HEADER = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "Made GPU", "numSms": 4}],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "record_shapes": 1,
    "with_stack": 0,
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    "vllm_version": "0.99.1",
    "own": {"nested": ['a "quoted" word', None, 1.50]},
}
START = 5000  # us, of the first step
MIX_OPTIONS = SplitOptions(workload=Workload(concurrency=8, output_tokens=80, length_ratio=1.0))


def mixed_run() -> TraceMaker:
    """Make a run of 65 steps, 100 us apart: a ramp-up, six times nine decodes and a prefill, an end."""
    maker = TraceMaker(HEADER)
    maker.event(ph="M", name="process_name", pid=HOST, tid=0, ts=0, args={"name": "engine"})
    maker.frame("engine.py(1): run", START - 10, 100 * len(KINDS) + 20)
    for number, kind in enumerate(KINDS):
        at = START + 100 * number
        maker.label(LABELS[kind], at, 60)
        maker.frame("engine.py(2): step", at - 0.5, 70)
        maker.op("aten::mm", at + 1.125, 50)
        if kind != "empty":
            maker.work(Work(at + 5, at + 30, 10 if kind == "decode_only" else 15, kernels=6))
        maker.op("aten::copy_", at + 80, 5)  # between two labels
    maker.event(ph="M", name="thread_name", pid=HOST, tid=HOST, args={"name": "main"})
    return maker


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_run().write(tmp_path_factory.mktemp("mixed"), "mixed.json.gz")


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


ALWAYS = ["split.json", "steps.csv", "steps.parquet"]
STEADY = ["steady_decode_only.json.gz", "steady_mixed.json.gz", "steady_prefill_decode.json.gz"]


def singles(first: int = 0, last: int = len(KINDS), folder: str = "iterations") -> list[str]:
    return [f"{folder}/{number:04}.json.gz" for number in range(first, last)]


def phases(first: int = 0, last: int = len(KINDS)) -> list[str]:
    folder_of = {"decode_only": "decode_only", "empty": "other"}
    return [f"{folder_of.get(KINDS[n], 'prefilldecodemix')}/{n:04}.json.gz" for n in range(first, last)]


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, STEADY),
        ({"steady_state": True}, STEADY),
        ({"num_steps": 12}, STEADY),
        ({"iterations": "3:7"}, ["iterations_3-7.json.gz"]),
        ({"iterations": "5"}, ["iterations_5-6.json.gz"]),
        ({"iterations": ":4"}, ["iterations_0-4.json.gz"]),
        ({"iterations": "60:"}, ["iterations_60-65.json.gz"]),
        ({"iterations": "all"}, ["iterations_0-65.json.gz"]),
        ({"iterations": " 3:7 "}, ["iterations_3-7.json.gz"]),
        ({"single_iterations": True}, singles()),
        ({"single_iterations": True, "iterations": "3:7"}, singles(3, 7)),
        ({"divide_phases": True}, phases()),
        ({"divide_phases": True, "iterations": "60:65"}, ["iterations_60-65.json.gz", *phases(60, 65)]),
        ({"divide_phases": True, "gap_fill": False}, phases()),
        (
            {"steady_state": True, "iterations": "all", "single_iterations": True, "divide_phases": True},
            [*STEADY, *singles(), *phases()],
        ),
        ({"steady_state": True, "iterations": "2:4"}, [*STEADY, "iterations_2-4.json.gz"]),
    ],
)
def test_what_is_asked_for_is_written(
    options: dict[str, Any], written: list[str], source: Path, tmp_path: Path
) -> None:
    result = split_trace(source, tmp_path / "out", SplitOptions(**options))
    assert files(tmp_path / "out") == sorted([*written, *ALWAYS])
    assert sorted(output.file for output in result.outputs) == sorted(written)


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("0:1", 5, (0, 1)),
        ("0:5", 5, (0, 5)),
        (":", 5, (0, 5)),
        ("all", 5, (0, 5)),
        ("4", 5, (4, 5)),
        ("0", 1, (0, 1)),
        ("000:002", 5, (0, 2)),
    ],
)
def test_ranges(text: str, count: int, expected: tuple[int, int]) -> None:
    assert parse_range(text, count) == expected


@pytest.mark.parametrize("text", ["5", "5:", "5:6", "0:6", "9:", "100000"])
def test_ranges_beyond_the_trace_are_not_found(text: str) -> None:
    with pytest.raises(NothingFoundError) as beyond:
        parse_range(text, 5)
    assert beyond.value.thing == f"--iterations {text}"
    assert beyond.value.reason == "The trace has steps 0 to 4."


@pytest.mark.parametrize(
    "text", ["", "x", "1:2:3", "-1", "-3:", "1.5", "1-2", "1,2", "ALL", "0x5", "9999999999", "1 2"]
)
def test_what_is_no_range_is_refused_before_anything_is_read(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        SplitOptions(iterations=text)
    assert refused.value.thing == f"--iterations {text}"


@pytest.mark.parametrize("text", ["3:3", "4:3", "0:0"])
def test_a_range_that_holds_no_step_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        SplitOptions(iterations=text)
    assert refused.value.reason == "It holds no step: B is not included."


# -- events ----------------------------------------------------------------------------------------------------------


def is_metadata(text: str) -> bool:
    return bool(json.loads(text)["ph"] == "M")


@pytest.mark.parametrize("gap_fill", [True, False])
def test_single_steps_together_hold_what_the_source_holds(gap_fill: bool, source: Path, tmp_path: Path) -> None:
    options = SplitOptions(single_iterations=True, gap_fill=gap_fill)
    result = split_trace(source, tmp_path / "out", options)
    texts = event_texts(source)
    metadata = [text for text in texts if is_metadata(text)]
    written: Counter[str] = Counter()
    for output in result.outputs:
        found = event_texts(tmp_path / "out" / output.file)
        assert found[:2] == metadata
        assert len(found) - 2 == output.events
        written.update(found[2:])
    assert set(written.values()) == {1}
    left_out = [json.loads(text) for text in texts if text not in written and not is_metadata(text)]
    if gap_fill:  # the frame around all steps, and the one that begins before the first
        assert [event["name"] for event in left_out] == ["engine.py(1): run", "engine.py(2): step"]
    else:
        names = Counter(event["name"] for event in left_out)
        # Each step's frame begins in the gap before it.
        assert names == {"engine.py(1): run": 1, "engine.py(2): step": len(KINDS), "aten::copy_": len(KINDS)}


def test_written_events_are_the_source_s_to_the_letter_and_in_its_order(source: Path, tmp_path: Path) -> None:
    result = split_trace(source, tmp_path / "out", SplitOptions(steady_state=True, iterations="3:7"))
    texts = event_texts(source)
    place = {text: number for number, text in enumerate(texts)}
    assert len(place) == len(texts)
    for output in result.outputs:
        found = event_texts(tmp_path / "out" / output.file)
        places = [place[text] for text in found[2:]]
        assert places == sorted(places)
        labels = sum(text.count('"user_annotation"') for text in found)
        assert labels == output.last - output.first
        # An arrow has both ends.
        ends = Counter(json.loads(text)["ph"] for text in found if '"ac2g"' in text)
        assert ends["s"] == ends["f"] > 0


def test_a_range_comes_with_the_frames_around_it_and_a_window_without(source: Path, tmp_path: Path) -> None:
    split_trace(source, tmp_path / "out", SplitOptions(steady_state=True, iterations="3:7"))
    for file, around in (("iterations_3-7", 1), ("steady_mixed", 0)):
        names = Counter(event["name"] for event in read_events(tmp_path / "out" / f"{file}.json.gz")["traceEvents"])
        assert names["engine.py(1): run"] == around


def test_each_trace_has_the_header_s_keys_in_order(source: Path, tmp_path: Path) -> None:
    result = split_trace(source, tmp_path / "out", SplitOptions(divide_phases=True, iterations="0:3"))
    for output in result.outputs:
        trace = read_events(tmp_path / "out" / output.file)
        events = trace.pop("traceEvents")
        assert trace == HEADER
        assert list(trace) == list(HEADER)
        assert [event["name"] for event in events if event["ph"] == "M"] == ["process_name", "thread_name"]


def test_equal_input_gives_equal_bytes(source: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        split_trace(source, tmp_path / name, MIX_OPTIONS)
    for file in files(tmp_path / "first"):
        if file.endswith((".gz", ".csv")):
            assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


# -- manifest --------------------------------------------------------------------------------------------------------


def manifest_of(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "split.json").read_text())
    return manifest


@pytest.fixture(scope="module")
def mixed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> SplitResult:
    return split_trace(source, tmp_path_factory.mktemp("out") / "out", MIX_OPTIONS, name="the run")


def test_the_manifest_says_what_was_found(mixed: SplitResult, source: Path) -> None:
    manifest = manifest_of(mixed.folder)
    assert manifest == mixed.manifest
    assert (manifest["schema_version"], manifest["status"]) == (1, "ok")
    assert manifest["tool_version"]
    assert (manifest["detector"], manifest["grade"]) == ("annotation:vllm", "splittable")
    assert (manifest["explained_share"], manifest["span_share"]) == (1.0, 1.0)
    assert (manifest["steps"], manifest["engine_mode"], manifest["step_times"]) == (len(KINDS), "mixed", "device")
    assert manifest["steps_by_kind"] == Counter(KINDS)
    assert manifest["steps_by_graph"] == {"full": len(KINDS) - 1, "unknown": 1}
    assert manifest["durations_us"]["decode_only"]["p50"] == 100.0
    work = 6 * (len(KINDS) - 1)
    assert manifest["device_events"] == {"count": work, "linked": work, "in_steps": work}
    assert manifest["retention"] == {"linked_between": work, "in_steps": work, "duplicated": 0, "share": 1.0}
    assert manifest["tables"] == ["steps.csv", "steps.parquet"]
    assert manifest["rejected_candidates"] == []
    assert manifest["repaired_events"] == {"count": 0, "first_originals": []}
    assert manifest["clipped_durations"] == []
    assert manifest["source"]["name"] == "the run"
    assert {key: manifest["source"][key] for key in ("engine", "engine_version", "rank", "world_size")} == {
        "engine": "vllm",
        "engine_version": "0.99.1",
        "rank": 3,
        "world_size": 8,
    }
    assert manifest["source"]["events"] == len(event_texts(source))
    assert manifest["source"]["device_names"] == ["Made GPU"]
    assert (manifest["source"]["has_shapes"], manifest["source"]["has_stacks"]) == (True, False)


def test_the_manifest_places_the_first_event_in_time(mixed: SplitResult) -> None:
    assert manifest_of(mixed.folder)["time_base"] == {
        "first_event_us": START - 10,
        "first_event_unix_ns": 1_700_000_000_000_000_000 + (START - 10) * 1000,
        "base_time_ns": 1_700_000_000_000_000_000,
        "extent_us": 100 * len(KINDS) + 20,
    }


def test_the_manifest_tells_what_each_window_holds(mixed: SplitResult) -> None:
    manifest = manifest_of(mixed.folder)
    by_role = {output["role"]: output for output in manifest["outputs"]}
    assert set(by_role) == {"steady_mixed", "steady_decode_only", "steady_prefill_decode"}
    for output in by_role.values():
        held = Counter(KINDS[output["first"] : output["last"]])
        assert output["composition"] == held
        assert set(output["median_duration_us"]) == set(held)
        assert output["events"] > 0
        assert (mixed.folder / output["file"]).is_file()
    assert set(by_role["steady_decode_only"]["composition"]) == {"decode_only"}
    assert set(by_role["steady_prefill_decode"]["composition"]) == {"prefill_decode"}
    assert by_role["steady_mixed"]["composition"]["prefill_decode"] >= 1
    windows = manifest["steady_state"]["windows"]
    assert [(f"steady_{window['kind']}", window["first"], window["last"]) for window in windows] == [
        (output["role"], output["first"], output["last"]) for output in manifest["outputs"]
    ]
    assert windows[0]["mix_observed"] == pytest.approx(
        by_role["steady_mixed"]["composition"]["prefill_decode"] / (windows[0]["last"] - windows[0]["first"])
    )
    assert windows[0]["mix_expected"] == pytest.approx(0.1)  # 8 requests finish in 80 steps


def test_the_manifest_keeps_options_and_every_note(mixed: SplitResult, source: Path, tmp_path: Path) -> None:
    manifest = manifest_of(mixed.folder)
    assert manifest["options"]["workload"]["concurrency"] == 8
    assert manifest["options"]["gap_fill"] is True
    assert [note["code"] for note in manifest["notes"]] == [note.code for note in mixed.notes]
    assert "expected_mix" in [note["code"] for note in manifest["notes"]]
    assert all(note["text"] and note["level"] in ("info", "warning", "error") for note in manifest["notes"])
    other = split_trace(source, tmp_path / "out", SplitOptions(iterations="1:3", gap_fill=False)).manifest
    assert other["steady_state"] is None
    assert (other["options"]["workload"], other["options"]["iterations"]) == (None, "1:3")
    assert other["retention"]["share"] == 1.0  # all launches lie in the labels


def test_a_rejected_candidate_is_in_the_manifest(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([vllm(0, 8)] * 4)
    maker.label("ProfilerStep#0", 0, 400)
    manifest = split_trace(maker.write(tmp_path), tmp_path / "out", SplitOptions(iterations="all")).manifest
    (rejected,) = manifest["rejected_candidates"]
    assert (rejected["detector"], rejected["steps"], rejected["explained_share"]) == ("annotation:profiler", 1, 1.0)
    assert "schedule" in rejected["rejected"]


# -- repairs ---------------------------------------------------------------------------------------------------------


def overlong_run(count: int) -> TraceMaker:
    """Make a run in which ``count`` kernels are said to last 1.6 s."""
    maker = TraceMaker()
    for number in range(40):
        at = 1000 * number
        maker.step(vllm(0, 8), at, 600, *(Work(at + 5 + i, at + 100 + 20 * i, 10) for i in range(5)))
    kernels = [event for event in maker.events if event["cat"] == "kernel"]
    for event in kernels[3 : 3 + count]:
        event["dur"] = 1.6e6
    return maker


def test_a_clipped_duration_is_written_as_clipped_and_the_original_is_kept(tmp_path: Path) -> None:
    maker = overlong_run(1)
    original = next(event for event in maker.events if event.get("dur") == 1.6e6)
    result = split_trace(maker.write(tmp_path), tmp_path / "out", SplitOptions(iterations="all"))
    manifest = result.manifest
    row = maker.events.index(original)
    assert manifest["clipped_durations"] == [{"row": row, "recorded_us": 1.6e6, "clipped_us": 20.0}]
    assert manifest["repaired_events"] == {"count": 1, "first_originals": [json.dumps(original)]}
    written = read_events(tmp_path / "out" / "iterations_0-40.json.gz")["traceEvents"]
    assert written == [original | {"dur": 20.0} if event is original else event for event in maker.events]
    assert "clipped_durations" in [note["code"] for note in manifest["notes"]]
    assert max(step.device_busy_ns for step in result.analysis.steps.steps) <= 100_000


def test_a_repaired_event_outside_of_what_is_written_is_not_counted(tmp_path: Path) -> None:
    source = overlong_run(1).write(tmp_path)
    manifest = split_trace(source, tmp_path / "out", SplitOptions(iterations="5:9")).manifest
    assert manifest["repaired_events"] == {"count": 0, "first_originals": []}
    assert len(manifest["clipped_durations"]) == 1


def test_an_event_in_two_outputs_is_repaired_once(tmp_path: Path) -> None:
    source = overlong_run(1).write(tmp_path)
    options = SplitOptions(iterations="all", single_iterations=True, divide_phases=True)
    assert split_trace(source, tmp_path / "out", options).manifest["repaired_events"]["count"] == 1


def test_of_many_repairs_the_first_twenty_are_listed(tmp_path: Path) -> None:
    maker = overlong_run(0)
    for number in range(30):
        maker.op(f"with a \\ backslash {number}", 1000 * number + 50, 5)
    source = maker.write(tmp_path)
    broken = source.read_text().replace("with a \\\\ backslash", "with a \\ backslash")
    source.write_text(broken)
    manifest = split_trace(source, tmp_path / "out", SplitOptions(iterations="all")).manifest
    assert manifest["repaired_events"]["count"] == 30
    originals = manifest["repaired_events"]["first_originals"]
    assert len(originals) == 20
    assert originals[0] in broken
    written = read_events(tmp_path / "out" / "iterations_0-40.json.gz")["traceEvents"]
    assert written == maker.events


# -- tables ----------------------------------------------------------------------------------------------------------

SUMS = ("query_tokens", "kv_tokens", "query_kv", "query_query")
DESIGN_COLUMNS = [
    *("index", "kind", "kind_from", "context_requests", "generation_requests"),
    *(f"context_{name}" for name in SUMS),
    *(f"generation_{name}" for name in SUMS),
    *("host_start_us", "host_duration_us", "device_start_us", "device_end_us", "device_busy_us", "device_idle_us"),
    *("duration_us", "duration_from", "graph", "stalled_decodes", "kernels", "annotation"),
]


def tables(folder: Path) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    with (folder / "steps.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)), pq.read_table(folder / "steps.parquet").to_pylist()


def test_the_columns_are_those_of_the_design_in_its_order(mixed: SplitResult) -> None:
    assert list(STEP_COLUMNS)[: len(DESIGN_COLUMNS)] == DESIGN_COLUMNS
    rows, typed = tables(mixed.folder)
    assert list(rows[0]) == list(typed[0]) == list(STEP_COLUMNS)


def test_csv_and_parquet_are_equal(mixed: SplitResult) -> None:
    rows, typed = tables(mixed.folder)
    assert len(rows) == len(typed) == len(KINDS)
    for row, cells in zip(rows, typed, strict=True):
        for name, value in cells.items():
            text = row[name]
            if value is None:
                assert text == ""
            elif isinstance(value, float):
                assert text == f"{value:.3f}"
            else:
                assert text == str(value)


def test_parquet_has_one_type_a_column_also_where_all_is_missing(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps(["ProfilerStep#0", "ProfilerStep#1"], device=False)
    split_trace(maker.write(tmp_path), tmp_path / "out")
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "out" / "steps.parquet")}
    assert types == {
        name: {"int": "int64", "float": "double", "text": "string"}[kind] for name, (kind, _) in STEP_COLUMNS.items()
    }
    rows, typed = tables(tmp_path / "out")
    assert typed[0]["context_requests"] is None
    assert typed[0]["device_start_us"] is None
    assert rows[0]["context_requests"] == rows[0]["device_start_us"] == ""
    assert typed[0]["duration_from"] == "host_start_to_start"


def test_the_table_says_what_the_steps_are(mixed: SplitResult) -> None:
    _, rows = tables(mixed.folder)
    assert [row["index"] for row in rows] == list(range(len(KINDS)))
    assert [row["kind"] for row in rows] == KINDS
    assert [row["annotation"] for row in rows] == [LABELS[kind] for kind in KINDS]
    first, second = rows[0], rows[1]
    # Times count from the first event, the frame 10 us before the first label.
    assert (first["host_start_us"], first["host_duration_us"]) == (10.0, 60.0)
    assert (first["device_start_us"], first["device_end_us"]) == (40.0, 130.0)
    assert (first["device_busy_us"], first["device_idle_us"]) == (90.0, 0.0)
    assert (first["duration_us"], first["duration_from"]) == (90.0, "device_extent")
    assert (second["duration_us"], second["duration_from"]) == (100.0, "device_end_to_end")
    assert (second["device_idle_us"], second["start_to_start_us"]) == (10.0, 100.0)
    assert (first["context_requests"], first["generation_requests"], first["kernels"]) == (4, 0, 6)
    assert (second["context_requests"], second["generation_requests"], second["requests"]) == (1, 7, 8)
    assert [second[f"context_{name}"] for name in SUMS] == [64, 64, 4096, 4096]
    assert [second[f"generation_{name}"] for name in SUMS] == [7, 3500, 3500, 7]
    assert (first["graph"], first["kind_from"], first["stalled_decodes"]) == ("full", "vllm-detailed", 0)


def test_texts_with_commas_quotes_and_line_ends_survive_in_both(tmp_path: Path) -> None:
    """ATOM's labels hold commas."""
    label = "prefill[bs=2 tok=14721 ctx=[7803, 6918]]"
    maker = TraceMaker()
    maker.steps([label] * 2)
    split_trace(maker.write(tmp_path), tmp_path / "out")
    rows, typed = tables(tmp_path / "out")
    assert rows[0]["annotation"] == typed[0]["annotation"] == label


# -- refusals --------------------------------------------------------------------------------------------------------


def test_nothing_is_read_where_the_output_exists(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([vllm(0, 8)] * 2)
    source = maker.write(tmp_path)
    split_trace(source, tmp_path / "out")
    source.unlink()
    with pytest.raises(OutputExistsError):
        split_trace(source, tmp_path / "out")


def test_a_split_that_fails_leaves_nothing(source: Path, tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError):
        split_trace(source, tmp_path / "out", SplitOptions(iterations="100:"))
    assert list(tmp_path.iterdir()) == []


def test_steps_that_explain_too_little_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "SPLITTABLE_SHARE", 1.5)
    with pytest.raises(LowCoverageError) as low:
        split_trace(source, tmp_path / "out")
    assert low.value.reason == (
        "The steps found (vLLM labels) explain only 100.0% of the device time between the first and the last."
    )
    assert low.value.action == "Accept them with --allow-degraded."
    manifest = split_trace(source, tmp_path / "out", SplitOptions(allow_degraded=True)).manifest
    assert (manifest["status"], manifest["grade"]) == ("degraded", "degraded")
    monkeypatch.setattr(coverage, "DEGRADED_SHARE", 1.5)
    with pytest.raises(LowCoverageError) as too_low:
        split_trace(source, tmp_path / "other", SplitOptions(allow_degraded=True))
    assert too_low.value.action == "See what is there with: tracelens info"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
