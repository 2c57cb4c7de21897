"""Thirty damaged or unusual variants of one real trace: what is saved of each, what is said, and how each ends.

The variants are made by a script that stands beside the large real traces.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tracelens_infer.cli.main import run
from tracelens_infer.errors import MergedTraceError, NothingFoundError, UnreadableTraceError
from tracelens_infer.steps.analyze import StepAnalysis, analyze_steps
from tracelens_infer.steps.step import DurationFrom, GraphMode, StepKind
from tracelens_infer.steps.table import Table, steps_table
from tracelens_infer.trace.columns import Lane, Role, Trace
from tracelens_infer.trace.reader import read_trace

EVENTS, KERNELS, DEVICE_EVENTS = 1993, 425, 434


@dataclass(frozen=True)
class Expected:
    """What is read of a file; ``notes`` are codes with the count of each."""

    events: int = EVENTS
    kernels: int = KERNELS
    notes: tuple[tuple[str, int], ...] = ()
    same: bool = True  # columns, steps and step table are those of the undamaged file
    error: tuple[type[Exception], int, str] | None = None  # type, exit code, part of the reason


def note(code: str, count: int = 1) -> tuple[tuple[str, int], ...]:
    return ((code, count),)


NAN_COUNTER = Expected(events=EVENTS + 1, notes=note("not_a_number"))
FILES: dict[str, Expected] = {
    # cut short
    "truncated_json.json": Expected(1582, 14, note("truncated"), same=False),
    "truncated_gzip.json.gz": Expected(
        1104, 0, (("truncated_compression", 1), ("truncated", 1), ("host_times", 1)), same=False
    ),
    # compression and encoding
    "multi_member.json.gz": Expected(),
    "multi_member_then_garbage.json.gz": Expected(),
    "plain_json_named_gz.json.gz": Expected(),
    "gz_named_json.json": Expected(),
    "utf8_bom.json": Expected(notes=note("byte_order_mark")),
    # numbers that are none
    "nan_dur.json": Expected(notes=(("not_a_number", 1), ("missing_durations", 1)), same=False),
    "bare_nan_counter.json": NAN_COUNTER,
    "infinity_counter.json": NAN_COUNTER,
    "int_above_int64.json": Expected(),
    "ts_as_strings.json": Expected(notes=note("number_as_text", 1539)),
    # names that break the syntax
    "unescaped_quote_in_name.json": Expected(notes=note("unescaped_quote")),
    "raw_newline_in_name.json": Expected(notes=note("control_character")),
    "control_char_in_name.json": Expected(notes=note("control_character")),
    "bad_backslash_in_name.json": Expected(notes=note("bad_escape")),
    "invalid_utf8_in_name.json": Expected(notes=note("invalid_utf8")),
    # other layouts
    "trailing_comma.json": Expected(notes=note("trailing_comma")),
    "bare_event_list.json": Expected(),
    "bare_list_no_close.json": Expected(notes=note("missing_bracket")),
    "shuffled.json.gz": Expected(),
    # times and links
    "negative_zero_absurd_durations.json.gz": Expected(
        notes=(("negative_durations", 8), ("zero_times", 5), ("clipped_durations", 4)), same=False
    ),
    "gpu_clock_30s_early.json.gz": Expected(notes=note("clock_skew", DEVICE_EVENTS), same=False),
    "no_correlation.json.gz": Expected(
        notes=(("unattributed_device_work", DEVICE_EVENTS), ("host_times", 1)), same=False
    ),
    "exact_duplicates.json.gz": Expected(notes=note("exact_duplicates", EVENTS)),
    # several writers
    "two_ranks_same_pid_correlation.json.gz": Expected(
        events=2 * EVENTS,
        kernels=2 * KERNELS,
        notes=(("duplicate_keys", 1), ("merged_ranks", 2)),
        error=(MergedTraceError, 3, "the events of 2 ranks (ranks 0, 1)"),
    ),
    "interleaved_gzip_writers.json.gz": Expected(
        events=-1, error=(MergedTraceError, 3, "the events of 2 writers, interleaved")
    ),
    # no trace, or none to speak of
    "empty.json": Expected(error=(UnreadableTraceError, 3, "The file is empty.")),
    "no_traceEvents_key.json": Expected(error=(UnreadableTraceError, 3, 'it holds no "traceEvents" list.')),
    "empty_events.json": Expected(0, 0, error=(NothingFoundError, 4, "The trace holds no events.")),
}
READABLE = {name: expected for name, expected in FILES.items() if expected.error is None}
REFUSED = {name: expected.error for name, expected in FILES.items() if expected.error is not None}


@pytest.fixture(scope="module")
def source(shared_traces: Path) -> Path:
    return shared_traces / "tracelens" / "vllm_mi300x_decode_graph.json.gz"


@pytest.fixture(scope="module")
def damaged(source: Path, shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = shared_traces.parent / "tools" / "damage_trace.py"
    if not script.is_file():
        pytest.skip("no script that damages traces beside the large real ones")
    folder = tmp_path_factory.mktemp("damaged")
    subprocess.run([sys.executable, str(script), str(source), str(folder)], check=True)
    return folder


@cache
def analysis_of(path: Path) -> StepAnalysis:
    return analyze_steps(path)


def kernels(trace: Trace) -> int:
    """Count the events of category kernel that are there once."""
    of_kernels = np.array([lane.category == "kernel" for lane in trace.lanes.lanes])
    counted = of_kernels[trace.columns.lane]
    counted[trace.dropped] = False
    return int(counted.sum())


def rows_of(trace: Trace, *, in_order: bool = True) -> list[tuple[int, int, int, Lane]]:
    """List every event's columns, and its lane by what it means; what was dropped left out."""
    columns = trace.columns
    present = np.ones(len(columns), dtype=np.bool_)
    present[trace.dropped] = False
    kept = np.flatnonzero(present)
    lanes = [trace.lanes.lanes[lane] for lane in columns.lane[kept]]
    rows = list(
        zip(
            columns.start_ns[kept].tolist(),
            columns.duration_ns[kept].tolist(),
            columns.link[kept].tolist(),
            lanes,
            strict=True,
        )
    )
    return rows if in_order else sorted(rows, key=str)


def table_of(analysis: StepAnalysis) -> Table:
    return steps_table(analysis.steps.steps, analysis.trace.extent_ns[0])


def test_every_file_of_the_script_is_in_the_table(damaged: Path) -> None:
    assert {path.name for path in damaged.iterdir()} == set(FILES)
    assert len(FILES) == 30


def test_the_undamaged_file_is_one_step_without_a_note(source: Path) -> None:
    analysis = analysis_of(source)
    assert (analysis.trace.event_count, kernels(analysis.trace)) == (EVENTS, KERNELS)
    assert analysis.notes == ()
    (step,) = analysis.steps.steps
    assert (step.kind, step.kernels, step.graph) == (StepKind.DECODE_ONLY, DEVICE_EVENTS, GraphMode.FULL)


@pytest.mark.parametrize("name", READABLE)
def test_what_is_saved(name: str, damaged: Path) -> None:
    expected, analysis = FILES[name], analysis_of(damaged / name)
    assert (analysis.trace.event_count, kernels(analysis.trace)) == (expected.events, expected.kernels)
    assert [(note.code, note.count) for note in analysis.notes] == list(expected.notes)
    assert len(analysis.steps.steps) == 1


@pytest.mark.parametrize("name", [name for name, expected in READABLE.items() if expected.same])
def test_what_was_only_written_oddly_is_read_as_the_undamaged_file(name: str, source: Path, damaged: Path) -> None:
    original, analysis = analysis_of(source), analysis_of(damaged / name)
    in_order = not name.startswith("shuffled")
    expected = rows_of(original.trace, in_order=in_order)
    found = rows_of(analysis.trace, in_order=in_order)
    assert found[: len(expected)] == expected
    assert len(found) == FILES[name].events  # a counter may follow
    assert table_of(analysis) == table_of(original)
    assert analysis.steps.steps == original.steps.steps


@pytest.mark.parametrize("name", ["bad_backslash", "unescaped_quote", "raw_newline", "control_char", "invalid_utf8"])
def test_of_a_file_with_a_broken_name_at_most_one_event_is_lost(name: str, damaged: Path) -> None:
    (found,) = (expected.events for file, expected in FILES.items() if file.startswith(name))
    assert analysis_of(damaged / f"{name}_in_name.json").trace.event_count == found >= EVENTS - 1


def test_losses_are_placed(damaged: Path) -> None:
    for name in READABLE:
        for loss in analysis_of(damaged / name).trace.notes:
            if loss.code in ("truncated", "unescaped_quote", "bad_escape", "not_a_number", "truncated_compression"):
                assert loss.first_offset_bytes is not None
                assert 0 < loss.first_offset_bytes <= analysis_of(damaged / name).trace.size_bytes


def test_a_label_without_a_duration_ends_with_its_ops_and_launches(source: Path, damaged: Path) -> None:
    original, analysis = analysis_of(source), analysis_of(damaged / "nan_dur.json")
    (before,), (step,) = original.steps.steps, analysis.steps.steps
    columns = analysis.trace.columns
    ran = analysis.trace.rows(Role.HOST_OP, Role.LAUNCH)
    ran = ran[columns.start_ns[ran] >= step.host_start_ns]
    assert step.host_end_ns == (columns.start_ns[ran] + np.maximum(columns.duration_ns[ran], 0)).max()
    assert step.host_start_ns == before.host_start_ns
    assert (step.kernels, step.duration_ns, step.kind) == (before.kernels, before.duration_ns, before.kind)


def test_impossible_times_are_told_and_clipped(source: Path, damaged: Path) -> None:
    original, analysis = analysis_of(source), analysis_of(damaged / "negative_zero_absurd_durations.json.gz")
    (before,), (step,) = original.steps.steps, analysis.steps.steps
    assert step.kernels == before.kernels
    assert step.duration_ns == before.duration_ns
    assert 0.9 * before.device_busy_ns < step.device_busy_ns <= before.device_busy_ns
    assert {clipped.recorded_ns for clipped in analysis.trace.clipped.values()} == {1_600_000_000}
    assert analysis.trace.extent_ns == original.trace.extent_ns
    (told,) = (note.text for note in analysis.notes if note.code == "clipped_durations")
    assert "6,410.280 ms as recorded, 10.303 ms clipped" in told


def test_a_device_clock_that_runs_early_changes_no_duration(source: Path, damaged: Path) -> None:
    original, analysis = analysis_of(source), analysis_of(damaged / "gpu_clock_30s_early.json.gz")
    (before,), (step,) = original.steps.steps, analysis.steps.steps
    assert (step.kernels, step.graph) == (before.kernels, before.graph)
    assert (step.duration_ns, step.device_busy_ns) == (before.duration_ns, before.device_busy_ns)
    assert step.device_start_ns is not None
    assert before.device_start_ns is not None
    assert before.device_start_ns - step.device_start_ns == 30_000_000_000
    assert np.array_equal(analysis.step_work.step, original.step_work.step)
    (skew,) = analysis.work.notes
    assert "29,993.115 ms early" in skew.text


def test_without_correlations_the_step_is_timed_on_the_host(source: Path, damaged: Path) -> None:
    (before,), (step,) = analysis_of(source).steps.steps, analysis_of(damaged / "no_correlation.json.gz").steps.steps
    assert (step.kernels, step.device_busy_ns, step.duration_from) == (0, 0, DurationFrom.HOST_SPAN)
    assert step.duration_ns == before.host_end_ns - before.host_start_ns


def test_a_file_cut_short_keeps_the_step_and_what_came_before_the_cut(source: Path, damaged: Path) -> None:
    original = rows_of(analysis_of(source).trace)
    for name, work in (("truncated_json.json", 23), ("truncated_gzip.json.gz", 0)):
        analysis = analysis_of(damaged / name)
        found = rows_of(analysis.trace)
        assert found == original[: len(found)]
        (step,) = analysis.steps.steps
        assert (step.kernels, step.kind) == (work, StepKind.DECODE_ONLY)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("command", ["split", "info"])
def test_what_cannot_be_used_ends_in_three_lines(
    name: str, command: str, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error_type, exit_code, reason = REFUSED[name]
    path = damaged / name
    readable = error_type is not UnreadableTraceError
    if readable and command == "info":  # it is described as far as it goes
        assert run(["info", str(path)]) == 0
        captured = capsys.readouterr()
        assert reason in " ".join(captured.out.split())
        assert captured.err == ""
        return
    arguments = ["-o", str(tmp_path / "out")] if command == "split" else []
    assert run([command, str(path), *arguments]) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 3
    assert lines[0] == f"error: {path}"
    assert reason in lines[1]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(error_type):
        analyze_steps(path)


def test_writers_and_ranks_that_share_a_file_are_named(damaged: Path) -> None:
    two_ranks = read_trace(damaged / "two_ranks_same_pid_correlation.json.gz")
    expected = FILES["two_ranks_same_pid_correlation.json.gz"]
    assert (two_ranks.event_count, kernels(two_ranks)) == (expected.events, expected.kernels)
    assert [(note.code, note.count) for note in two_ranks.notes] == list(expected.notes)
    assert two_ranks.metadata.ranks == (0, 1)
    interleaved = read_trace(damaged / "interleaved_gzip_writers.json.gz")
    assert interleaved.metadata.writers == 2
    (named,) = (note for note in interleaved.notes if note.code == "interleaved_writers")
    assert (named.level, named.count) == ("error", 2)


@pytest.mark.parametrize("name", READABLE)
def test_every_readable_file_is_split(
    name: str, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["split", str(damaged / name), "-o", str(tmp_path / "out"), "--iterations", "all"]) == 0
    written = read_trace(tmp_path / "out" / "iterations_0-1.json.gz")
    assert [note.code for note in written.notes if note.level == "error"] == []
    assert written.event_count > 0
    assert "Traceback" not in capsys.readouterr().err
