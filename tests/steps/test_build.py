"""From boundaries and device work to steps: durations, device times, graph modes, dummies."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.make_trace import DECODE, EXTEND, HOST, TraceMaker, Work, vllm
from tracelens_infer.steps.analyze import StepAnalysis
from tracelens_infer.steps.build import GRAPH_KERNELS
from tracelens_infer.steps.step import DurationFrom, EngineMode, GraphMode, Step, StepKind

END_TO_END, EXTENT = DurationFrom.DEVICE_END_TO_END, DurationFrom.DEVICE_EXTENT
START_TO_START, HOST_SPAN = DurationFrom.HOST_START_TO_START, DurationFrom.HOST_SPAN


def us(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1000


def durations(analysis: StepAnalysis) -> list[tuple[float, DurationFrom]]:
    return [(step.duration_ns / 1000, step.duration_from) for step in analysis.steps.steps]


def codes(analysis: StepAnalysis) -> list[str]:
    return [note.code for note in analysis.notes]


# -- durations -------------------------------------------------------------------------------------------------------

# Device time of each step, in us. The host launches a step every 100 us, whatever the device does.
LENGTHS = [40, 40, 200, 40, 40, 40]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_long_step_stays_the_long_one_however_far_the_device_lags(lag: int, tmp_path: Path) -> None:
    """Host start to start would blame the step that waits for the long one, ``lag`` steps later."""
    maker = TraceMaker()
    host = device = 0.0
    ends: list[float] = []
    for number, length in enumerate(LENGTHS):
        # The host may run ``lag`` steps ahead: it waits for the step that many before.
        host = max(host + 30, ends[number - lag - 1] if number > lag else 0)
        device = max(device, host + 10)
        maker.step(DECODE, host, 20, Work(launch=host + 5, start=device, duration=length - 2))
        device += length - 2
        ends.append(device)
        device += 2
    analysis = maker.analyze(tmp_path)
    times = [step.duration_ns / 1000 for step in analysis.steps.steps]
    assert max(range(len(times)), key=times.__getitem__) == 2
    assert times[2] >= 198
    assert [step.duration_from for step in analysis.steps.steps] == [EXTENT] + [END_TO_END] * 5
    assert sum(times) == pytest.approx(ends[-1] - (analysis.steps.steps[0].device_start_ns or 0) / 1000)
    host_starts = [step.host_start_ns for step in analysis.steps.steps]
    waits = [after - before for before, after in pairwise(host_starts)]
    if lag:
        assert max(range(len(waits)), key=waits.__getitem__) == 2 + lag


def test_durations_go_from_the_end_of_the_step_before_to_the_end(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.step(DECODE, 0, 50, Work(10, 20, 10), Work(12, 40, 10))  # from 20 to 50
    maker.step(DECODE, 100, 50, Work(110, 130, 10))
    maker.step(DECODE, 200, 50, Work(210, 170, 10))  # its kernel starts before its launch
    maker.step(DECODE, 300, 50, Work(310, 400, 10))
    analysis = maker.analyze(tmp_path)
    assert durations(analysis) == [(30, EXTENT), (90, END_TO_END), (40, END_TO_END), (230, END_TO_END)]
    assert [us(step.start_to_start_ns) for step in analysis.steps.steps] == [110, 40, 230, None]
    assert [us(step.device_start_ns) for step in analysis.steps.steps] == [20, 130, 170, 400]
    assert [us(step.device_end_ns) for step in analysis.steps.steps] == [50, 140, 180, 410]


def test_a_step_whose_work_ends_before_that_of_the_one_before_lasts_no_time(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.step(DECODE, 0, 50, Work(10, 20, 500))
    maker.step(DECODE, 100, 50, Work(110, 130, 10, stream=20))
    maker.step(DECODE, 200, 50, Work(210, 530, 10))
    assert durations(maker.analyze(tmp_path)) == [(500, EXTENT), (0, END_TO_END), (20, END_TO_END)]


def test_steps_without_device_work_are_timed_on_the_host(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.step(vllm(0, 0), 0, 50)
    maker.step(vllm(0, 8), 100, 50, Work(110, 120, 30))
    maker.step(vllm(0, 0), 200, 50)
    maker.step(vllm(0, 8), 250, 50, Work(260, 270, 30))
    maker.step(vllm(0, 0), 400, 50)
    analysis = maker.analyze(tmp_path)
    assert durations(analysis) == [
        (100, START_TO_START),
        (30, EXTENT),
        (50, START_TO_START),
        (150, END_TO_END),  # from the end of the last work, whichever step did it
        (50, HOST_SPAN),
    ]
    idle = [step for step in analysis.steps.steps if step.kind is StepKind.EMPTY]
    assert [(step.device_start_ns, step.device_end_ns, step.device_busy_ns) for step in idle] == [(None, None, 0)] * 3
    assert [us(step.start_to_start_ns) for step in analysis.steps.steps] == [None, 150, None, None, None]
    assert analysis.steps.has_device_work


def test_without_a_device_step_times_are_host_times_and_a_note_says_so(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 3, device=False)
    analysis = maker.analyze(tmp_path)
    assert durations(analysis) == [(100, START_TO_START), (100, START_TO_START), (80, HOST_SPAN)]
    assert {step.graph for step in analysis.steps.steps} == {GraphMode.UNKNOWN}
    assert not analysis.steps.has_device_work
    assert [(note.level, note.code, note.count) for note in analysis.notes] == [("info", "host_times", 3)]


def test_device_work_that_no_step_launched_leaves_host_times_and_a_warning(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 3, device=False)
    maker.kernel(50, 10)
    maker.kernel(60, 10, correlation=77)
    analysis = maker.analyze(tmp_path)
    assert durations(analysis)[0] == (100, START_TO_START)
    assert codes(analysis) == ["unattributed_device_work", "launched_before_recording", "host_times"]
    assert analysis.notes[-1].level == "warning"
    assert analysis.step_work.step.tolist() == [-1, -1]


# -- device times ----------------------------------------------------------------------------------------------------


def only_step(maker: TraceMaker, folder: Path) -> Step:
    (step,) = maker.analyze(folder).steps.steps
    return step


def test_busy_time_is_the_union_of_the_streams(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.step(
        DECODE, 0, 50, Work(1, 100, 40), Work(2, 120, 40, stream=20), Work(3, 180, 10), Work(4, 182, 2, stream=20)
    )
    step = only_step(maker, tmp_path)
    assert (us(step.device_start_ns), us(step.device_end_ns)) == (100, 190)
    assert (step.device_busy_ns, step.device_idle_ns, step.duration_ns) == (70_000, 20_000, 90_000)
    assert step.kernels == 4


def test_idle_time_counts_from_the_end_of_the_step_before(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.step(DECODE, 0, 50, Work(1, 10, 40))
    maker.step(DECODE, 100, 50, Work(101, 120, 40))
    second = maker.analyze(tmp_path).steps.steps[1]
    assert (second.duration_ns, second.device_busy_ns, second.device_idle_ns) == (110_000, 40_000, 70_000)


def test_copies_and_fills_are_device_work(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.step(DECODE, 0, 50, Work(1, 10, 40))
    for category in ("gpu_memcpy", "gpu_memset"):
        maker.span(category, category, 60, 5, process=0, thread=7, correlation=1)
    step = only_step(maker, tmp_path)
    assert (step.kernels, us(step.device_end_ns)) == (3, 65)


def test_work_at_time_zero_counts_but_has_no_place_in_any_extent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens_infer.trace.repairs._LONG_BEFORE_NS", 1)  # these traces begin near 0
    maker = TraceMaker()
    maker.step(DECODE, 1000, 50, Work(1001, 1010, 40), Work(1002, 0, 5000))
    analysis = maker.analyze(tmp_path)
    (step,) = analysis.steps.steps
    assert (step.kernels, us(step.device_start_ns), us(step.duration_ns)) == (2, 1010, 40)
    assert "zero_times" in codes(analysis)
    assert analysis.trace.extent_ns[0] == 1_000_000


def test_a_step_with_work_at_time_zero_only_is_timed_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens_infer.trace.repairs._LONG_BEFORE_NS", 1)  # these traces begin near 0
    maker = TraceMaker()
    maker.step(DECODE, 1000, 50, Work(1001, 0, 5))
    step = only_step(maker, tmp_path)
    assert (step.kernels, step.device_start_ns, step.duration_from) == (1, None, HOST_SPAN)


def test_work_belongs_to_the_step_that_launched_it_on_any_thread(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label(DECODE, 0, 50)
    maker.label(DECODE, 100, 50)
    for at in (0, 100):
        maker.work(Work(at + 20, at + 500, 10), thread=HOST + 9)
        maker.work(Work(at + 70, at + 520, 10))  # after the label, in its tile
    assert maker.analyze(tmp_path).step_work.step.tolist() == [0, 0, 1, 1]


def test_work_before_the_first_step_belongs_to_none(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.work(Work(5, 20, 10))
    maker.step(DECODE, 100, 50, Work(110, 150, 10))
    analysis = maker.analyze(tmp_path)
    assert analysis.step_work.step.tolist() == [-1, 0]
    assert durations(analysis) == [(10, EXTENT)]


def test_a_clock_that_runs_early_changes_nothing_but_a_note(tmp_path: Path) -> None:
    maker, early = TraceMaker(), TraceMaker()
    for number in range(3):
        at = 40e6 + 100 * number
        maker.step(DECODE, at, 50, Work(at + 5, at + 20, 30))
        early.step(DECODE, at, 50, Work(at + 5, at + 20 - 30e6, 30))
    expected, found = maker.analyze(tmp_path), early.analyze(tmp_path)
    assert durations(found) == durations(expected) == [(30, EXTENT), (100, END_TO_END), (100, END_TO_END)]
    assert (codes(expected), codes(found)) == ([], ["clock_skew"])


def test_labels_on_the_device_attribute_work_by_its_own_time(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(3):
        maker.device_label(DECODE, 100 * number + 20, 40)
        maker.work(Work(launch=100 * number - 100, start=100 * number + 20, duration=40))  # launched a step ahead
    maker.kernel(320, 5)  # without a launch
    analysis = maker.analyze(tmp_path)
    assert analysis.step_work.step.tolist() == [0, 1, 2, -1]
    assert durations(analysis) == [(40, EXTENT), (100, END_TO_END), (100, END_TO_END)]


# -- graphs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launches", "mode"),
    [
        ([], GraphMode.UNKNOWN),
        ([1], GraphMode.NONE),
        ([1] * 30, GraphMode.NONE),
        ([3] * 10, GraphMode.NONE),  # library calls that start three kernels
        ([40, 1, 1], GraphMode.FULL),
        ([GRAPH_KERNELS], GraphMode.FULL),
        ([8] * 6 + [1] * 12, GraphMode.PIECEWISE),
        ([25, 20, 1], GraphMode.FULL),  # one owns more than half
        ([20, 20], GraphMode.PIECEWISE),  # none does
        ([8, 8, *([1] * 30)], GraphMode.NONE),  # most kernels are launched one by one
        ([GRAPH_KERNELS, 1, 1, 1, 1], GraphMode.NONE),  # half is not most
    ],
)
def test_graph_mode_tells_who_owns_most_kernels(launches: list[int], mode: GraphMode, tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.step(DECODE, 0, 900)
    at = 1000.0
    for number, kernels in enumerate(launches):
        maker.work(Work(launch=10 * number, start=at, duration=1, kernels=kernels))
        at += kernels
    step = only_step(maker, tmp_path)
    assert (step.graph, step.kernels) == (mode, sum(launches))


def test_each_step_has_its_own_graph_mode(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.step(DECODE, 0, 80, Work(1, 10, 1, kernels=50))
    maker.step(EXTEND, 100, 80, *(Work(100 + i, 110 + i, 1) for i in range(50)))
    maker.step(DECODE, 200, 80)
    modes = [step.graph for step in maker.analyze(tmp_path).steps.steps]
    assert modes == [GraphMode.FULL, GraphMode.NONE, GraphMode.UNKNOWN]


def test_the_padded_batch_is_the_label_s(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.step("decode[bs=117/128 tok=117 d=117]", 0, 80)
    step = only_step(maker, tmp_path)
    assert (step.padded_batch, step.requests, step.generation_requests) == (128, 117, 117)


# -- kinds, engine mode, dummies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [
        ([vllm(2, 0), vllm(1, 2), vllm(0, 3), vllm(0, 0)], "prefill_only prefill_decode decode_only empty"),
        (["ProfilerStep#1", "ProfilerStep#2"], "unknown unknown"),
        (
            [vllm(0, 8), "execute_107_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq107sk4000sqsq10007sqsk53500)"],
            "decode_only recompute",
        ),
        ([EXTEND, DECODE, "step[MIXED bs=9]"], "prefill_only decode_only prefill_decode"),
    ],
)
def test_kinds_come_from_the_labels(labels: list[str], kinds: str, tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps(labels)
    steps = maker.analyze(tmp_path).steps.steps
    assert " ".join(step.kind for step in steps) == kinds
    assert [step.annotation for step in steps] == labels
    assert [step.index for step in steps] == list(range(len(labels)))


def test_an_exclusive_engine_s_decodes_stand_still_during_prefills(tmp_path: Path) -> None:
    maker = TraceMaker()
    one = "step[EXTEND bs=1 toks=512]"
    maker.steps([one, DECODE.replace("8", "1"), EXTEND, one, DECODE.replace("8", "4"), DECODE.replace("8", "4")])
    analysis = maker.analyze(tmp_path)
    assert [step.stalled_decodes for step in analysis.steps.steps] == [0, 0, 1, 1, 0, 0]
    assert analysis.steps.engine_mode is EngineMode.EXCLUSIVE


def test_a_mixed_engine_s_decodes_do_not(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([vllm(0, 8), vllm(2, 8), vllm(0, 10)])
    analysis = maker.analyze(tmp_path)
    assert [step.stalled_decodes for step in analysis.steps.steps] == [0, 0, 0]
    assert analysis.steps.engine_mode is EngineMode.MIXED


def forward(at: float, kernels: int = 20) -> list[Work]:
    return [Work(at + number, at + 200 + number, 1) for number in range(kernels)]


def test_a_forward_between_two_labels_is_a_dummy_step(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(5):
        at = 1000 * number
        maker.step(vllm(0, 8), at, 400, *forward(at))
        for work in forward(at + 450, kernels=3):  # sampling, after the label
            maker.work(work)
    for work in forward(2700):  # a forward that no label tells of
        maker.work(work)
    analysis = maker.analyze(tmp_path)
    steps = analysis.steps.steps
    assert [step.kind for step in steps] == [StepKind.DECODE_ONLY] * 3 + [StepKind.DUMMY] + [StepKind.DECODE_ONLY] * 2
    dummy = steps[3]
    assert (us(dummy.host_start_ns), us(dummy.tile_end_ns)) == (2700, 3000)
    assert (dummy.kernels, dummy.annotation, dummy.load) == (20, "", None)
    assert dummy.kind_from == "device work between annotations"
    assert us(steps[2].tile_end_ns) == 2700
    assert [step.kernels for step in steps] == [23, 23, 23, 20, 23, 23]
    assert [(note.code, note.count) for note in analysis.notes] == [("dummy_steps", 1)]
    assert [step.stalled_decodes for step in steps] == [0] * 6


def test_sampling_after_the_labels_is_no_dummy(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(5):
        at = 1000 * number
        maker.step(vllm(0, 8), at, 400, *forward(at))
        for work in forward(at + 450, kernels=5 + 3 * number):  # up to 17, of which 11 are usual
            maker.work(work)
    analysis = maker.analyze(tmp_path)
    assert len(analysis.steps.steps) == 5
    assert codes(analysis) == []


def test_labels_that_end_before_anything_is_launched_have_no_dummies(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(5):
        at = 1000 * number
        maker.step(vllm(0, 8), at, 5, *forward(at + 10, kernels=20 * (1 + number % 2)))
    assert len(maker.analyze(tmp_path).steps.steps) == 5


# -- suspects --------------------------------------------------------------------------------------------------------


def test_graph_replays_that_were_recorded_in_part_are_named(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number, kernels in enumerate([40, 40, 12, 40, 20]):
        at = 1000 * number
        maker.step(vllm(0, 8), at, 400, Work(at + 1, at + 10, 2, kernels=kernels))
    (note,) = maker.analyze(tmp_path).notes
    assert (note.level, note.code, note.count) == ("warning", "incomplete_graph_recording", 1)
    assert "first: step 2" in note.text


@pytest.mark.parametrize(
    ("lengths", "slow"),
    [
        ([500, 40, 40, 40, 40, 40, 40], 1),
        ([500, 40, 600, 40, 40, 40, 40], 2),
        ([400, 40, 40, 40, 40, 40, 40], 0),  # not over ten times
        ([500, 40, 40, 40, 40, 40], 0),  # too few to compare with
        ([40, 40, 40, 40, 500, 40, 40], 0),  # not at the start
    ],
)
def test_a_slow_start_is_named(lengths: list[float], slow: int, tmp_path: Path) -> None:
    maker = TraceMaker()
    for number, length in enumerate(lengths):
        at = 1000 * number
        maker.step(vllm(0, 8), at, 400, Work(at + 1, at + 10, length))
    notes = maker.analyze(tmp_path).notes
    assert [(note.code, note.count) for note in notes] == ([("startup_transient", slow)] if slow else [])
