"""What bounds a step: made steps whose answer is known, and real ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.loops import serving
from tests.make_trace import DECODE, TraceMaker, Work
from tracelens_infer.errors import UsageError
from tracelens_infer.steps.analyze import StepAnalysis, analyze_steps, steps_of
from tracelens_infer.steps.critical_path import Bound, CriticalPath, PathSource, critical_path, median_step
from tracelens_infer.steps.step import DurationFrom, GraphMode, StepKind
from tracelens_infer.trace.syncs import stream_waits

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
SIDE = 9  # a second stream


class Engine:
    """Writes steps: each op takes the host some time and launches kernels, which queue on their stream."""

    def __init__(self) -> None:
        self.maker = TraceMaker()
        self.now = 0.0
        self.free: dict[int, float] = {}
        self.calls = 0

    def call(self, name: str, start: float, lasts: float = 2.0) -> int:
        self.calls += 1
        self.maker.span("cuda_runtime", name, start, lasts, correlation=self.calls)
        return self.calls

    def op(self, name: str, lasts: float, kernel: str = "", device: float = 0.0, *, after: float = 0.0) -> None:
        """Run an op; its kernel starts 6 us after the launch, when its stream is free and ``after`` is over."""
        self.maker.op(name, self.now, lasts)
        if kernel:
            stream = SIDE if kernel == NCCL else 7
            correlation = self.call("cudaLaunchKernel", self.now + lasts / 2)
            start = max(self.now + lasts / 2 + 6, self.free.get(stream, 0), after)
            self.maker.kernel(start, device, correlation=correlation, stream=stream, name=kernel)
            self.free[stream] = start + device
        self.now += lasts

    def wait(self, waiting: int, on: int, *, told: bool) -> float:
        """Let one stream wait for the work so far of another; returns when that ends."""
        recorded = self.call("cudaEventRecord", self.now)
        self.call("cudaStreamWaitEvent", self.now + 3)
        if told:
            args = {"cuda_sync_kind": "Stream Wait Event", "stream": waiting, "wait_on_stream": on}
            args["wait_on_cuda_event_record_corr_id"] = recorded
            self.maker.span("cuda_sync", "Stream Wait Event", self.now + 3, 1, process=0, thread=waiting, **args)
        self.now += 6
        return self.free[on]

    def synchronise(self) -> None:
        """Block the host until the device is idle."""
        until = max(self.now + 1, *self.free.values())
        self.call("cudaDeviceSynchronize", self.now, until - self.now + 1)
        self.now = until + 1

    def steps(self, count: int) -> Iterator[int]:
        """Label what is written during each turn."""
        for number in range(count):
            begin = self.now
            yield number
            self.maker.label(DECODE, begin, self.now - begin)
            self.now += 1

    def path(self, folder: Path, step: int = 1) -> CriticalPath:
        return critical_path(self.maker.analyze(folder), step)


def parts(path: CriticalPath) -> tuple[float, float, float, float, float]:
    """Host, launch, device, collective and unknown time in us."""
    taken = (path.host_ns, path.launch_ns, path.device_ns, path.collective_ns, path.unknown_ns)
    return tuple(part / 1e3 for part in taken)  # type: ignore[return-value]


def test_short_kernels_with_gaps_are_bound_by_the_host(tmp_path: Path) -> None:
    engine = Engine()
    for _ in engine.steps(2):
        for _ in range(5):
            engine.op("aten::mm", 100, "gemm", 5)
    path = engine.path(tmp_path)
    assert (path.bound_by, path.source) == (Bound.HOST, PathSource.LONGEST_PATH)
    # The first step's last kernel ends at 461; the second one's last launch is at 501 + 450, its kernel 6 us later.
    # Of those 490 us on the host 4 x 2 us are earlier launches.
    assert parts(path) == (482.0, 14.0, 5.0, 0.0, 0.0)
    assert path.length_ns == 501_000
    top = path.contributors[0]
    assert (top.name, top.bound) == ("aten::mm", Bound.HOST)
    assert top.share == pytest.approx(top.duration_ns / path.length_ns)
    assert [segment.name for segment in path.segments[-3:]] == [
        "aten::mm",
        "from cudaLaunchKernel to its kernel",
        "gemm",
    ]


def test_a_full_queue_is_bound_by_the_device_and_the_host_in_its_shadow_costs_nothing(tmp_path: Path) -> None:
    engine = Engine()
    for _ in engine.steps(3):
        for _ in range(5):
            engine.op("aten::mm", 10, "gemm", 100)
    path = engine.path(tmp_path, 2)
    assert (path.bound_by, parts(path)) == (Bound.DEVICE, (0.0, 0.0, 500.0, 0.0, 0.0))
    assert [(one.name, one.bound, one.duration_ns, one.share) for one in path.contributors] == [
        ("gemm", Bound.DEVICE, 500_000, 1.0)
    ]
    assert len(path.segments) == 1
    assert path.notes == ()


@pytest.mark.parametrize("told", [True, False], ids=["told by the trace", "seen from the times"])
def test_a_collective_between_kernels_of_another_stream_is_on_the_path(tmp_path: Path, told: bool) -> None:
    engine = Engine()
    signal = 60 if told else 8  # no two times suggest a wait that takes its signal so long
    for _ in engine.steps(2):
        for _ in range(3):
            engine.op("aten::mm", 10, "gemm", 100)
        after = engine.wait(SIDE, 7, told=told) + signal
        engine.op("c10d::allreduce_", 10, NCCL, 900, after=after)
        after = engine.wait(7, SIDE, told=told) + signal
        engine.op("aten::mm", 10, "gemm", 100, after=after)
    path = engine.path(tmp_path)
    assert (path.bound_by, parts(path)) == (Bound.COLLECTIVE, (0.0, 0.0, 400.0, 900.0, 0.0))
    assert [(segment.name, segment.duration_ns) for segment in path.segments] == [
        ("gemm", 300_000),
        (NCCL, 900_000),
        ("gemm", 100_000),
    ]
    assert path.contributors[0].share == pytest.approx(900 / 1300)


def test_a_host_that_waits_for_the_device_is_not_what_bounds_the_step(tmp_path: Path) -> None:
    engine = Engine()
    for _ in engine.steps(2):
        engine.op("aten::mm", 10, "gemm", 400)
        engine.synchronise()
        engine.op("aten::argmax", 20, "argmax", 10)
    path = engine.path(tmp_path)
    assert path.bound_by is Bound.DEVICE
    assert path.device_ns == 410_000
    assert path.host_ns < 50_000
    assert "cudaDeviceSynchronize" not in {one.name for one in path.contributors}


def test_a_wait_for_the_step_before_costs_nothing_either(tmp_path: Path) -> None:
    engine = Engine()
    for _ in engine.steps(2):
        engine.synchronise() if engine.free else None
        engine.op("aten::mm", 10, "gemm", 400)
    path = engine.path(tmp_path)
    assert (path.bound_by, path.device_ns) == (Bound.DEVICE, 400_000)
    assert path.length_ns < 420_000


def test_launched_work_that_does_not_begin_on_an_idle_stream_is_unknown(tmp_path: Path) -> None:
    engine = Engine()
    for number in engine.steps(2):
        engine.op("aten::mm", 10, "gemm", 20)
        engine.op("aten::mm", 10, "gemm", 20, after=5_000.0 if number else 0.0)
    path = engine.path(tmp_path)
    assert path.bound_by is Bound.UNKNOWN
    assert path.unknown_ns > 4_800_000
    assert [note.code for note in path.notes] == ["unseen_device_wait"]


def test_what_other_threads_launch_is_part_of_the_path(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(2):
        at = number * 1_000
        maker.label(DECODE, at, 900)
        maker.op("aten::mm", at, 100)
        maker.work(Work(at + 50, at + 56, 10))
        maker.op("MmBackward0", at + 120, 600, thread=77)
        maker.work(Work(at + 700, at + 706, 10), thread=77)
    path = critical_path(maker.analyze(tmp_path), 1)
    assert path.bound_by is Bound.HOST
    assert path.contributors[0].name == "MmBackward0"


# -- steps that replay a graph


def replay(folder: Path, *, rest: float, launch_gap: float, kernel: float, collective: bool = False) -> CriticalPath:
    """Make two steps of 20 kernels each: the second one's launch comes ``rest`` us after the first one's end."""
    maker = TraceMaker()
    end = 0.0
    for _ in range(2):
        begin, start = end + rest, end + rest + launch_gap
        maker.label(DECODE, begin - 1, 20)
        maker.span("cuda_runtime", "cudaGraphLaunch", begin, 4, correlation=int(begin) + 1)
        for place in range(20):
            name = NCCL if collective and place % 2 else "gemm" if place else "rms_norm"
            maker.kernel(start + place * (kernel + 1), kernel, correlation=int(begin) + 1, name=name)
        end = start + 20 * (kernel + 1) - 1
    analysis = maker.analyze(folder)
    assert analysis.steps.steps[1].graph is GraphMode.FULL
    return critical_path(analysis, 1)


@pytest.mark.parametrize(
    ("rest", "launch_gap", "kernel", "collective", "bound", "expected"),
    [
        (500, 10, 9, False, Bound.HOST, (500.0, 10.0, 199.0, 0.0, 0.0)),
        (20, 300, 9, False, Bound.LAUNCH, (20.0, 300.0, 199.0, 0.0, 0.0)),
        (20, 10, 9, False, Bound.DEVICE, (20.0, 10.0, 199.0, 0.0, 0.0)),
        (20, 10, 9, True, Bound.DEVICE, (20.0, 10.0, 109.0, 90.0, 0.0)),
    ],
)
def test_a_replayed_step_is_bound_by_the_gap_before_its_graph_or_by_the_graph(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rest: float,
    launch_gap: float,
    kernel: float,
    collective: bool,
    bound: Bound,
    expected: tuple[float, ...],
) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)  # no graph of the graph's kernels is made
    path = replay(tmp_path, rest=rest, launch_gap=launch_gap, kernel=kernel, collective=collective)
    assert (path.bound_by, path.source, parts(path)) == (bound, PathSource.LAUNCH_GAP, expected)
    assert sum(segment.duration_ns for segment in path.segments) == path.length_ns


def test_a_graphs_contributors_are_its_kernels_by_name_and_the_gaps_between_them(tmp_path: Path) -> None:
    path = replay(tmp_path, rest=20, launch_gap=10, kernel=9)
    assert [(one.name, one.duration_ns) for one in path.contributors] == [
        ("gemm", 171_000),
        ("host, before cudaGraphLaunch", 20_000),
        ("gaps between the graph's kernels", 19_000),
        ("from cudaGraphLaunch to its kernel", 10_000),
        ("rms_norm", 9_000),
    ]
    assert [segment.name for segment in path.segments] == [
        "host, before cudaGraphLaunch",
        "from cudaGraphLaunch to its kernel",
        "graph of 20 kernels",
    ]


@pytest.mark.parametrize(("graphs", "bound"), [(True, Bound.HOST), (False, Bound.DEVICE)])
def test_in_a_serving_loop_replays_wait_for_the_host_and_slow_eager_kernels_do_not(
    tmp_path: Path, graphs: bool, bound: Bound
) -> None:
    analysis = steps_of(serving([False] * 12, graphs=graphs, stacks=True).read(tmp_path))
    for step in analysis.steps.steps[3:9]:
        path = critical_path(analysis, step.index)
        assert path.source is (PathSource.LAUNCH_GAP if graphs else PathSource.LONGEST_PATH)
        # The host rests for 300 us between two steps; eager kernels take four times as long as replayed ones.
        assert (step.device_idle_ns > step.device_busy_ns) == graphs
        assert path.bound_by is bound
        assert path.host_ns > 240_000
        assert path.length_ns == pytest.approx(step.duration_ns, rel=0.05)


# -- whatever the step


def all_paths(analysis: StepAnalysis) -> list[CriticalPath]:
    return [critical_path(analysis, step.index) for step in analysis.steps.steps]


def check(analysis: StepAnalysis, path: CriticalPath) -> None:
    """Hold what is true of every path."""
    assert path.length_ns == sum(segment.duration_ns for segment in path.segments)
    taken = path.host_ns + path.launch_ns + path.device_ns + path.collective_ns + path.unknown_ns
    assert taken == path.length_ns
    assert sum(one.share for one in path.contributors) <= 1 + 1e-6
    assert path.length_ns <= analysis.steps.steps[path.step].duration_ns * 1.001
    if path.length_ns:
        own = {Bound.HOST: path.host_ns, Bound.LAUNCH: path.launch_ns, Bound.DEVICE: path.device_ns}
        own |= {Bound.COLLECTIVE: path.collective_ns, Bound.UNKNOWN: path.unknown_ns}
        assert own[path.bound_by] == max(own.values())


def test_a_device_clock_of_its_own_changes_nothing(tmp_path: Path) -> None:
    engine = Engine()
    for _ in engine.steps(3):
        for _ in range(5):
            engine.op("aten::mm", 10, "gemm", 100)
    right = engine.path(tmp_path, 2)
    for event in engine.maker.events:
        if event.get("cat") == "kernel":
            event["ts"] -= 30_000_000
    early = engine.path(tmp_path, 2)
    assert parts(early) == pytest.approx(parts(right), abs=7)
    assert early.bound_by is Bound.DEVICE


def test_a_step_in_which_nothing_ran_is_bound_by_nothing(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 3)
    maker.label(DECODE, 300, 80)
    path = critical_path(maker.analyze(tmp_path), 3)
    assert (path.bound_by, path.length_ns, path.contributors, path.segments) == (Bound.UNKNOWN, 0, (), ())


def test_without_a_device_the_host_is_all_there_is(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 3, device=False)
    path = critical_path(maker.analyze(tmp_path), 1)
    assert (path.bound_by, path.host_ns, path.notes) == (Bound.HOST, path.length_ns, ())
    assert path.contributors[0].name == "aten::mm"


def test_device_work_that_no_launch_explains_is_missed_with_a_note(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 2, device=False)
    maker.kernel(50, 20)
    path = critical_path(maker.analyze(tmp_path), 1)
    assert (path.bound_by, [note.code for note in path.notes]) == (Bound.HOST, ["device_work_unattributed"])


def test_idle_time_before_the_first_step_is_said_to_be_unknown(tmp_path: Path) -> None:
    engine = Engine()
    for _ in engine.steps(2):
        engine.op("aten::mm", 10, "gemm", 100)
    assert [note.code for note in engine.path(tmp_path, 0).notes] == ["device_before_step_unknown"]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_step_that_is_not_there_is_a_usage_error(tmp_path: Path, index: int) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 2)
    with pytest.raises(UsageError, match=f"step {index}"):
        critical_path(maker.analyze(tmp_path), index)


def test_waits_between_streams_are_read_as_the_profiler_tells_them(tmp_path: Path) -> None:
    engine = Engine()
    engine.op("aten::mm", 10, "gemm", 100)
    engine.wait(SIDE, 7, told=True)
    engine.maker.span("cuda_sync", "Event Sync", 15, 1, process=0, thread=-1, cuda_sync_kind="Event Sync")
    engine.maker.span("cuda_sync", "Stream Wait Event", 15, 1, process=0, thread=SIDE)
    waits = stream_waits(engine.maker.read(tmp_path), 0, 1_000_000)
    columns = (waits.start_ns, waits.stream, waits.on_stream, waits.recorded_by)
    assert [column.tolist() for column in columns] == [[13_000], [SIDE], [7], [2]]


# -- the typical step


def test_the_median_step_of_a_kind_lasts_as_long_as_half_of_them(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 5)
    steps = maker.analyze(tmp_path).steps.steps
    lasting = [replace(step, duration_ns=lasts) for step, lasts in zip(steps, (1, 70, 30, 50, 10), strict=True)]
    # The first one has no step before it, so that its duration is not what a client felt.
    assert steps[0].duration_from is DurationFrom.DEVICE_EXTENT
    assert median_step(lasting, StepKind.DECODE_ONLY) == 2
    assert median_step(lasting[:1], StepKind.DECODE_ONLY) == 0
    assert median_step(lasting, StepKind.PREFILL_ONLY) is None


# -- real traces


def test_training_on_several_ranks_is_bound_by_its_collectives(shared_traces: Path) -> None:
    analysis = analyze_steps(shared_traces / "tracelens/ddp_mi300x_resnet.json.gz")
    for path in all_paths(analysis):
        check(analysis, path)
        assert path.bound_by is Bound.COLLECTIVE
        assert path.contributors[0].name.startswith("ncclDevKernel_Generic")
        assert path.contributors[0].share == pytest.approx(0.84, abs=0.01)
        assert path.length_ns == pytest.approx(analysis.steps.steps[path.step].duration_ns, rel=0.01)


def test_a_forward_on_an_h100_is_bound_by_the_device(shared_traces: Path) -> None:
    analysis = analyze_steps(shared_traces / "tracelens/hf_h100_qwen1.5_0.5b.json.gz")
    path = critical_path(analysis, 0)
    check(analysis, path)
    assert path.bound_by is Bound.DEVICE
    assert path.device_ns / path.length_ns == pytest.approx(0.83, abs=0.01)
    assert path.contributors[0].name.startswith("sm90_xmma_gemm_bf16")
    assert path.length_ns == pytest.approx(analysis.steps.steps[0].duration_ns, rel=0.05)


def test_a_replayed_decode_step_is_answered_without_a_graph(
    shared_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    analysis = analyze_steps(shared_traces / "tracelens/vllm_mi300x_decode_graph.json.gz")
    path = critical_path(analysis, 0)
    check(analysis, path)
    assert (path.bound_by, path.source) == (Bound.DEVICE, PathSource.LAUNCH_GAP)
    assert path.contributors[0].name == "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1"
    assert path.device_ns / path.length_ns > 0.99


def test_graphs_between_attention_are_named_by_their_kernels(shared_traces: Path) -> None:
    analysis = analyze_steps(shared_traces / "tracelens/vllm_mi300x_mixed_piecewise.json.gz")
    path = critical_path(analysis, 0)
    check(analysis, path)
    assert path.bound_by is Bound.DEVICE
    assert path.contributors[0].name == "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu"
    assert path.contributors[0].share == pytest.approx(0.534, abs=0.005)


def test_a_device_that_something_unseen_holds_up_is_not_blamed_on_the_launch(shared_traces: Path) -> None:
    analysis = analyze_steps(shared_traces / "tracelens/sglang_mi300x_qwen3_8b_prefill.json.gz")
    path = critical_path(analysis, 0)
    check(analysis, path)
    assert round(path.unknown_ns / 1e6) == 493  # one stream stands still for so long behind a launched kernel
    assert round(path.device_ns / 1e6) == 493
    assert [note.code for note in path.notes] == ["device_before_step_unknown", "unseen_device_wait"]


def test_every_step_of_other_real_traces_holds_what_is_true_of_paths(shared_traces: Path) -> None:
    for name, bound in (
        ("hta/ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", Bound.DEVICE),
        ("vllm_cpu/g_dense_detailed_shapes_stack_10steps.pt.trace.json.gz", Bound.HOST),
    ):
        analysis = analyze_steps(shared_traces / name)
        for path in all_paths(analysis):
            check(analysis, path)
            assert path.bound_by is bound
