"""What is known of the large real traces, and that each of them is split without losing anything."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.make_trace import event_texts
from tracelens_infer.cli.main import run
from tracelens_infer.steps.analyze import StepAnalysis, analyze_steps
from tracelens_infer.steps.candidates import annotation_candidates
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.steps.members import members_of, retention
from tracelens_infer.steps.step import DurationFrom, EngineMode, GraphMode, Step, StepKind
from tracelens_infer.trace.columns import Role
from tracelens_infer.trace.launches import covered_ns
from tracelens_infer.trace.reader import event_names, read_trace

DECODE_ONLY, PREFILL_DECODE, PREFILL_ONLY = StepKind.DECODE_ONLY, StepKind.PREFILL_DECODE, StepKind.PREFILL_ONLY
EMPTY, UNKNOWN = StepKind.EMPTY, StepKind.UNKNOWN

A = "vllm_cpu/a_dense_detailed_shapes_stack.pt.trace"
B = "vllm_cpu/b_dense_native_shapes_stack_pollframes_removed.pt.trace"
C2 = "vllm_cpu/c2_dense_detailed_shapes_nostack_steadywindow.pt.trace"
D = "vllm_cpu/d_dense_noannotation_stripped_from_g_stack.pt.trace"
G = "vllm_cpu/g_dense_detailed_shapes_stack_10steps.pt.trace"
GRAPH, PIECEWISE = "tracelens/vllm_mi300x_decode_graph", "tracelens/vllm_mi300x_mixed_piecewise"
SGLANG, DDP = "tracelens/sglang_mi300x_qwen3_8b_prefill", "tracelens/ddp_mi300x_resnet"
H100 = "tracelens/hf_h100_qwen1.5_0.5b"
CPU_ONLY = "hta/cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace"
NANOSECONDS = "hta/ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace"
EVENT_SYNC = "hta/critical_path_cuda_event_sync_multi_stream__event_sync_trace"
OLD = "kineto/w0_old"


@dataclass(frozen=True)
class Marked:
    """What is known of a trace with step markers."""

    events: int
    kinds: dict[StepKind, int]
    detector: str = "annotation:vllm"
    graphs: GraphMode = GraphMode.UNKNOWN
    mode: EngineMode = EngineMode.UNKNOWN
    device_events: tuple[int, int] = (0, 0)  # all of them, and those launched before recording
    codes: tuple[str, ...] = ()


PROFILER, MIXED, NONE = "annotation:profiler", EngineMode.MIXED, GraphMode.NONE
HOST, BEFORE = ("host_times",), ("launched_before_recording",)
MARKED = {
    A: Marked(630_403, {DECODE_ONLY: 76, PREFILL_DECODE: 23, PREFILL_ONLY: 4, EMPTY: 4}, mode=MIXED, codes=HOST),
    B: Marked(237_798, {DECODE_ONLY: 46, PREFILL_DECODE: 30, PREFILL_ONLY: 1, EMPTY: 1}, mode=MIXED, codes=HOST),
    C2: Marked(211_362, {DECODE_ONLY: 176, PREFILL_DECODE: 24}, mode=MIXED, codes=HOST),
    G: Marked(45_036, {DECODE_ONLY: 10}, codes=HOST),
    GRAPH: Marked(1_993, {DECODE_ONLY: 1}, graphs=GraphMode.FULL, device_events=(434, 0)),
    PIECEWISE: Marked(19_289, {PREFILL_DECODE: 1}, graphs=GraphMode.PIECEWISE, mode=MIXED, device_events=(423, 0)),
    SGLANG: Marked(60_315, {PREFILL_ONLY: 1}, graphs=NONE, device_events=(534, 0)),
    H100: Marked(18_221, {UNKNOWN: 1}, PROFILER, NONE, device_events=(1_707, 509), codes=BEFORE),
    DDP: Marked(56_451, {UNKNOWN: 3}, PROFILER, NONE, device_events=(3_653, 968), codes=BEFORE),
    NANOSECONDS: Marked(68_692, {UNKNOWN: 5}, PROFILER, NONE, device_events=(6_095, 0)),
    CPU_ONLY: Marked(30, {UNKNOWN: 1}, PROFILER, codes=HOST),
    OLD: Marked(73_639, {UNKNOWN: 6}, PROFILER, NONE, device_events=(10_015, 733), codes=BEFORE),
}
UNMARKED = (D, EVENT_SYNC)  # the first has steps none the less


@cache
def analysis_of(path: Path) -> StepAnalysis:
    return analyze_steps(path)


@pytest.fixture(scope="module")
def real(shared_traces: Path) -> Path:
    return shared_traces


def analyzed(real: Path, name: str) -> StepAnalysis:
    return analysis_of(real / f"{name}.json.gz")


def only_step(real: Path, name: str) -> Step:
    (step,) = analyzed(real, name).steps.steps
    return step


def test_every_real_trace_is_known(real: Path) -> None:
    names = {str(path.relative_to(real)).removesuffix(".json.gz") for path in real.rglob("*.gz")}
    assert names == {*MARKED, *UNMARKED}


@pytest.mark.parametrize(("name", "known"), MARKED.items())
def test_steps_kinds_graphs_and_notes(name: str, known: Marked, real: Path) -> None:
    analysis = analyzed(real, name)
    steps = analysis.steps.steps
    assert analysis.trace.event_count == known.events
    assert analysis.iterations.chosen.detector == known.detector
    assert Counter(step.kind for step in steps) == known.kinds
    assert {step.graph for step in steps} == {known.graphs}
    assert analysis.steps.engine_mode is known.mode
    assert tuple(note.code for note in analysis.notes) == known.codes
    assert (len(analysis.work.row), int((~analysis.work.linked).sum())) == known.device_events
    assert [step.host_start_ns for step in steps] == sorted(step.host_start_ns for step in steps)
    assert all(step.duration_ns >= 0 for step in steps)


@pytest.mark.parametrize("name", MARKED)
def test_nothing_between_the_first_and_the_last_step_is_lost_or_twice(name: str, real: Path) -> None:
    analysis = analyzed(real, name)
    members = members_of(analysis.trace, analysis.work, analysis.step_work)
    kept = retention(len(analysis.trace.columns), analysis.work, analysis.step_work, members)
    assert kept.duplicated == 0
    assert kept.share == (1.0 if MARKED[name].device_events[0] else None)
    assert analysis.iterations.chosen.explained_share == 1.0
    count = len(analysis.steps.steps)
    assert len(np.unique(members.rows)) == len(members.rows)
    whole = members.rows_of(0, count, enclosing=True)
    assert set(members.rows.tolist()) <= set(whole.tolist())


@pytest.mark.parametrize("name", MARKED)
def test_every_marked_trace_is_split(name: str, real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["split", str(real / f"{name}.json.gz"), "-o", str(tmp_path / "out"), "-q"]) == 0
    assert capsys.readouterr().err == ""
    manifest = json.loads((tmp_path / "out" / "split.json").read_text())
    assert (manifest["status"], manifest["retention"]["duplicated"]) == ("ok", 0)
    assert manifest["retention"]["share"] in (None, 1.0)
    assert manifest["outputs"]
    for output in manifest["outputs"]:
        written = read_trace(tmp_path / "out" / output["file"])
        assert written.notes == ()
        metadata = int((written.lanes.roles == Role.METADATA)[written.columns.lane].sum())
        assert written.event_count == output["events"] + metadata
        found = analyze_steps(tmp_path / "out" / output["file"]).steps.steps
        assert Counter(step.kind.value for step in found) == output["composition"]
        mixed = output["role"] == "steady_mixed"
        assert not mixed or output["composition"].keys() & {"prefill_decode", "prefill_only"}


@pytest.mark.parametrize("name", [GRAPH, SGLANG, DDP])
def test_events_are_written_to_the_letter(name: str, real: Path, tmp_path: Path) -> None:
    source = real / f"{name}.json.gz"
    assert run(["split", str(source), "-o", str(tmp_path / "out"), "-q", "--store-single-iteration"]) == 0
    texts = Counter(event_texts(source))
    metadata = {text for text in texts if json.loads(text)["ph"] == "M"}
    written: Counter[str] = Counter()
    for path in (tmp_path / "out" / "iterations").iterdir():
        found = event_texts(path)
        assert metadata <= set(found)
        written.update(text for text in found if text not in metadata)
    assert not written - texts


def test_a_trace_in_which_nothing_repeats_ends_with_4_and_one_clear_message(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = real / f"{EVENT_SYNC}.json.gz"
    assert run(["split", str(path), "-o", str(tmp_path / "out")]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    thing, reason, _ = captured.err.splitlines()
    assert thing == f"error: {path}"
    assert reason.startswith("  No step markers: the trace holds no annotations of the host at all.")
    assert list(tmp_path.iterdir()) == []
    assert run(["info", str(path)]) == 0
    assert "none. No step markers" in capsys.readouterr().out


def test_without_its_labels_the_same_steps_are_found(real: Path) -> None:
    labelled, stripped = analyzed(real, G), analyzed(real, D)
    assert not stripped.trace.labels
    assert stripped.iterations.chosen.detector.startswith("call_tree:")
    steps = stripped.steps.steps
    assert [step.kind for step in steps] == [DECODE_ONLY] * 10
    for step, before in zip(steps, labelled.steps.steps, strict=True):
        # The label lies within the call that it is put around.
        assert step.host_start_ns <= before.host_start_ns
        assert step.host_end_ns >= before.host_end_ns


# -- vLLM on a CPU ---------------------------------------------------------------------------------------------------


def test_a_whole_run_has_four_steps_without_tokens(real: Path) -> None:
    analysis = analyzed(real, A)
    steps = analysis.steps.steps
    assert [step.index for step in steps if step.kind is EMPTY] == [33, 47, 58, 106]
    assert {step.annotation for step in steps if step.kind is EMPTY} == {
        "execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_0(sq0sk0sqsq0sqsk0)"
    }
    assert (analysis.trace.metadata.engine, analysis.trace.metadata.engine_version) == ("vllm", "0.32.0")
    assert analysis.trace.size_bytes == pytest.approx(205e6, rel=0.01)
    # Ramp-up, steady, ramp-down, more than once: 40 prompts of a closed loop at 8, and prefills that were injected.
    requests = [step.requests for step in steps]
    assert (requests[0], requests[1], max(requests), requests[-2]) == (2, 8, 9, 1)


def test_durations_without_a_device_are_host_start_to_start(real: Path) -> None:
    for name in (A, B, C2, G):
        steps = analyzed(real, name).steps.steps
        assert {step.duration_from for step in steps[:-1]} == {DurationFrom.HOST_START_TO_START}
        assert steps[-1].duration_from is DurationFrom.HOST_SPAN
        assert [step.duration_ns for step in steps[:-1]] == [
            after.host_start_ns - before.host_start_ns for before, after in pairwise(steps)
        ]


def test_native_labels_tell_no_kv_tokens(real: Path) -> None:
    loads = [step.load for step in analyzed(real, B).steps.steps]
    assert {load.generation.kv_tokens for load in loads if load and load.generation.requests} == {None}
    assert not analyzed(real, B).iterations.chosen.has_aggregates
    assert analyzed(real, A).iterations.chosen.has_aggregates


def test_prefix_cache_hits_are_seen_in_the_loads(real: Path) -> None:
    steps = analyzed(real, C2).steps.steps
    contexts = {step.index: step.load.context for step in steps if step.load and step.load.context.requests}
    assert (contexts[93].query_tokens, contexts[93].kv_tokens) == (320, 576)
    # The first 1,024 tokens of the 4,096 came from the cache: seven chunks for the other 3,072.
    chunks = [contexts[number] for number in range(145, 152)]
    assert [chunk.query_tokens for chunk in chunks] == [504] * 6 + [48]
    assert sum(chunk.query_tokens or 0 for chunk in chunks) == 3072
    assert (chunks[0].kv_tokens, chunks[-1].kv_tokens) == (1024 + 504, 4096)
    assert 144 not in contexts
    assert 152 not in contexts


def test_the_first_op_of_a_step_may_start_late(real: Path) -> None:
    analysis = analyzed(real, C2)
    starts = np.sort(analysis.trace.columns.start_ns[analysis.trace.rows(Role.HOST_OP)])
    steps = analysis.steps.steps[:-1]
    waits = [int(starts[np.searchsorted(starts, step.host_start_ns)]) - step.host_start_ns for step in steps]
    tiles = [step.tile_end_ns - step.host_start_ns for step in steps]
    assert sum(wait > 0.05 * tile for wait, tile in zip(waits, tiles, strict=True)) == 7
    assert len(steps) == 199


def test_contexts_grow_by_a_token_a_request_and_step(real: Path) -> None:
    loads = [step.load for step in analyzed(real, G).steps.steps]
    assert [load.generation.kv_tokens for load in loads if load] == list(range(538, 611, 8))
    assert {load.generation.requests for load in loads if load} == {8}


# -- GPUs ------------------------------------------------------------------------------------------------------------


def milliseconds(step: Step, origin_ns: int) -> list[float]:
    """Round host start and end, and device start and end, in ms since ``origin_ns``."""
    times = (step.host_start_ns, step.host_end_ns, step.device_start_ns, step.device_end_ns)
    return [round((time - origin_ns) / 1e6, 2) for time in times if time is not None]


def test_a_graph_s_device_work_runs_after_the_label(real: Path) -> None:
    analysis, step = analyzed(real, GRAPH), only_step(real, GRAPH)
    assert milliseconds(step, analysis.trace.extent_ns[0]) == [0.0, 2.41, 8.37, 19.11]
    assert Counter(analysis.work.launch.tolist()).most_common(1)[0][1] == 421
    assert set(analysis.trace.metadata.device_names) == {""}
    assert (step.generation_requests, step.context_requests, step.kernels) == (32, 0, 434)


def test_a_mixed_step_s_device_work_runs_long_after_the_label(real: Path) -> None:
    analysis, step = analyzed(real, PIECEWISE), only_step(real, PIECEWISE)
    times = milliseconds(step, analysis.trace.extent_ns[0])
    assert [round(time, 1) for time in times] == [0.0, 26.4, 151.2, 307.7]
    assert times[1] == 26.35
    assert (step.context_requests, step.generation_requests) == (9, 37)


def test_nested_labels_of_sglang_are_one_step(real: Path) -> None:
    analysis = analyzed(real, SGLANG)
    step = only_step(real, SGLANG)
    assert (step.context_requests, step.load and step.load.context.query_tokens, step.kernels) == (15, 15_360, 534)
    assert [other.detector for other in analysis.iterations.rejected] == ["annotation:sglang"]
    owned = {
        found.detector: int((step_numbers(found, analysis.work.launch_ns) >= 0).sum())
        for found in annotation_candidates(analysis.trace)
    }
    assert owned == {"annotation:vllm": 534, "annotation:sglang": 524}
    assert analysis.trace.metadata.engine == "sglang"


def test_sglang_s_attention_kernels(real: Path) -> None:
    trace = analyzed(real, SGLANG).trace
    names = event_names(trace, trace.rows(Role.DEVICE))
    attention = [row for row, name in names.items() if "FmhaBatchPrefill" in name]
    assert len(attention) == 36
    assert round(int(trace.columns.duration_ns[attention].sum()) / 1000) == 20_075


def test_several_streams_overlap_and_run_behind(real: Path) -> None:
    work = analyzed(real, DDP).work
    busy = covered_ns(work.start_ns, work.end_ns)
    assert int((work.end_ns - work.start_ns).sum()) / busy == pytest.approx(1.193, abs=0.0005)
    lag_ns = (work.start_ns - work.launch_ns)[work.linked]
    assert int(lag_ns.min()) >= 21_000_000
    for step in analyzed(real, DDP).steps.steps:
        assert step.device_busy_ns <= step.duration_ns
        assert step.device_start_ns is not None
        assert step.device_start_ns > step.host_end_ns  # each step's work begins after its label ended


def test_nanoseconds_are_exact(real: Path) -> None:
    trace = analyzed(real, NANOSECONDS).trace
    spans = np.array([lane.phase == "X" for lane in trace.lanes.lanes])[trace.columns.lane]
    assert int(trace.columns.start_ns[np.flatnonzero(spans)[0]]) == 1_712_195_495_519_689_047
    assert trace.metadata.base_time_ns == 0


def test_three_streams_of_one_device(real: Path) -> None:
    trace = read_trace(real / f"{EVENT_SYNC}.json.gz")
    streams = {(lane.process, lane.thread) for lane in trace.lanes.lanes if lane.role is Role.DEVICE}
    assert streams == {(0, 20), (0, 24), (0, 28)}


def test_old_traces_have_capitalised_categories_and_threads_that_are_texts(real: Path) -> None:
    trace = analyzed(real, OLD).trace
    categories = {lane.category for lane in trace.lanes.lanes}
    assert {"Kernel", "Memcpy", "Memset", "Operator", "Runtime"} <= categories
    assert any(isinstance(lane.thread, str) for lane in trace.lanes.lanes)
    assert [step.annotation for step in analyzed(real, OLD).steps.steps] == [f"ProfilerStep#{n}" for n in range(5, 11)]


def test_a_trace_without_a_device_says_so(real: Path) -> None:
    analysis = analyzed(real, CPU_ONLY)
    assert not analysis.trace.has_device_events
    assert not analysis.steps.has_device_work
    assert only_step(real, CPU_ONLY).duration_from is DurationFrom.HOST_SPAN
    assert (analysis.trace.metadata.rank, analysis.trace.metadata.world_size) == (34, 300)
