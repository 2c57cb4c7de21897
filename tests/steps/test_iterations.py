"""Which candidate marks the iterations, why the others do not, and what a trace without any is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.make_trace import DECODE, DEVICE, EXTEND, HOST, TraceMaker, Work, vllm, vllm_native
from tracelens_infer.errors import MergedTraceError, NothingFoundError
from tracelens_infer.steps.candidates import Grade
from tracelens_infer.steps.iterations import Iterations, find_iterations, refuse_merged
from tracelens_infer.trace.launches import link_device_work
from tracelens_infer.trace.reader import read_trace

DETAILED_EXTEND = "step[EXTEND bs=2 toks=512 c_sq=512 c_sqsq=131072 c_sqsk=131072 c_sk=512]"


def iterations(maker: TraceMaker, folder: Path) -> Iterations:
    trace = maker.read(folder)
    return find_iterations(trace, link_device_work(trace))


def nested(outer: str, inner: str, steps: int = 2) -> TraceMaker:
    """Make steps with a label inside of a label; the work is launched inside of both."""
    maker = TraceMaker()
    for number in range(steps):
        at = 100 * number
        maker.label(outer, at, 80)
        maker.label(inner, at + 10, 60)
        maker.work(Work(launch=at + 20, start=at + 50, duration=40))
    return maker


SCHEDULE = "the engine's own labels are preferred to the profiler's schedule"
SUMS = "the chosen labels tell the sums over requests"
OUTER = "the chosen labels are the outer ones, and nested labels count once"


@pytest.mark.parametrize(
    ("outer", "inner", "chosen", "rejected", "why"),
    [
        (vllm_native(2, 0), DETAILED_EXTEND, "sglang", "vllm", SUMS),  # the one that tells the sums, though inside
        (vllm(2, 0), EXTEND, "vllm", "sglang", SUMS),  # SGLang on MI300X
        (vllm(2, 0), DETAILED_EXTEND, "vllm", "sglang", OUTER),  # both tell them
        (vllm_native(2, 0), EXTEND, "vllm", "sglang", OUTER),  # neither does
        (EXTEND, vllm_native(2, 0), "sglang", "vllm", OUTER),
        ("ProfilerStep#3", DECODE, "sglang", "profiler", SCHEDULE),
        (DECODE, "ProfilerStep#3", "sglang", "profiler", SCHEDULE),
        ("ProfilerStep#3", vllm(0, 8), "vllm", "profiler", SCHEDULE),
    ],
)
def test_nested_families_count_once(
    outer: str, inner: str, chosen: str, rejected: str, why: str, tmp_path: Path
) -> None:
    found = iterations(nested(outer, inner), tmp_path)
    assert found.chosen.detector == f"annotation:{chosen}"
    assert len(found.chosen.boundaries) == 2
    assert [(other.detector, other.rejected) for other in found.rejected] == [(f"annotation:{rejected}", why)]
    assert found.chosen.rejected == ""
    assert found.chosen.grade is Grade.SPLITTABLE


def test_a_schedule_that_ticks_once_for_many_steps_is_not_taken_for_them(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 6)
    maker.label("ProfilerStep#0", 0, 299)
    maker.label("ProfilerStep#1", 299, 301)
    found = iterations(maker, tmp_path)
    assert (found.chosen.detector, len(found.chosen.boundaries)) == ("annotation:sglang", 6)
    assert [len(other.boundaries) for other in found.rejected] == [2]


def test_three_nested_families_leave_one(tmp_path: Path) -> None:
    maker = nested(vllm_native(0, 8), DECODE)
    maker.label("ProfilerStep#0", 0, 200)
    found = iterations(maker, tmp_path)
    assert found.chosen.detector == "annotation:vllm"
    assert [(other.detector, other.rejected) for other in found.rejected] == [
        ("annotation:sglang", OUTER),
        ("annotation:profiler", SCHEDULE),
    ]


def test_of_two_equal_labels_in_a_row_one_of_which_launches_nothing_there_is_one_step(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(4):
        at = 100 * number
        maker.label(DECODE, at, 20)
        maker.label(DECODE, at + 30, 50)
        maker.work(Work(launch=at + 40, start=at + 60, duration=30))
    found = iterations(maker, tmp_path)
    assert [boundary.start_ns for boundary in found.chosen.boundaries] == [0, 100_000, 200_000, 300_000]


# -- notes -----------------------------------------------------------------------------------------------------------


def test_overlapping_labels_are_noted(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(3):
        maker.label(DECODE, 100 * number, 120)
    (note,) = iterations(maker, tmp_path).notes
    assert (note.level, note.code, note.count) == ("info", "overlapping_steps", 2)


def test_labels_on_the_device_alone_are_noted(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(3):
        maker.device_label(DECODE, 100 * number, 50)
    found = iterations(maker, tmp_path)
    assert [(note.level, note.code, note.count) for note in found.notes] == [("warning", "device_tracks_only", 3)]
    assert found.chosen.detector == "device_annotation:sglang"


def test_plain_steps_give_no_note(tmp_path: Path) -> None:
    assert iterations(nested(DECODE, "gpu_model_runner: forward"), tmp_path).notes == ()


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([], "No step markers: the trace holds no annotations of the host at all."),
        (["a 1", "a 2", "b"], "No step markers: none of the labels seen is one of a step: a # (2), b (1)."),
        (
            [f"{letter}{number}" for number, letter in enumerate("aabbccddee")],
            "No step markers: none of the labels seen is one of a step: a# (2), b# (2), c# (2), d# (2).",
        ),
        (["capture_8_decode"], "No step markers: none of the labels seen is one of a step: capture_#_decode (1)."),
    ],
)
def test_a_trace_without_step_labels_is_told_what_was_seen(labels: list[str], reason: str, tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    for number, label in enumerate(labels):
        maker.label(label, 10 * number, 5)
    with pytest.raises(NothingFoundError) as nothing:
        iterations(maker, tmp_path)
    assert nothing.value.reason.startswith(f"{reason} Nothing else marks them, either: looked for labels of one family")
    assert nothing.value.thing == str(tmp_path / "made.json")
    assert "detailed_trace_annotation" in nothing.value.action


def test_a_trace_without_events_holds_none(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError) as nothing:
        iterations(TraceMaker(), tmp_path)
    assert nothing.value.reason == "The trace holds no events."


def rank(number: int) -> dict[str, Any]:
    return {"backend": "nccl", "rank": number, "world_size": 2}


def test_a_file_of_two_ranks_is_refused(tmp_path: Path) -> None:
    maker = nested(DECODE, "forward")
    text = maker.text()
    path = tmp_path / "merged.json"
    path.write_text(f'{{"distributedInfo": {rank(0)}, "distributedInfo": {rank(1)}, {text[1:]}'.replace("'", '"'))
    trace = read_trace(path)
    with pytest.raises(MergedTraceError) as merged:
        find_iterations(trace, link_device_work(trace))
    assert merged.value.reason.startswith("This file holds the events of 2 ranks (ranks 0, 1)")
    assert merged.value.exit_code == 3


@pytest.mark.parametrize("told", [None, 0, 1])
def test_a_file_of_one_rank_is_not(told: int | None, tmp_path: Path) -> None:
    maker = TraceMaker(None if told is None else {"distributedInfo": rank(told)})
    maker.label(DECODE, 0, 10)
    refuse_merged(maker.read(tmp_path))


def test_the_file_of_a_rank_may_name_work_of_several_processes(tmp_path: Path) -> None:
    """Data loaders and compile workers run beside the engine; only labels of two processes are two engines."""
    maker = nested(DECODE, "forward")
    maker.op("aten::mm", 30, 10, process=HOST + 5)
    maker.span("gpu_memcpy", "Memcpy HtoD", 20, 5, process=DEVICE + 1, thread=7)
    assert len(iterations(maker, tmp_path).chosen.boundaries) == 2


def two_engines(launches: int, others: int) -> TraceMaker:
    """Make work of two processes without a label of either."""
    maker = TraceMaker()
    for number in range(launches + others):
        where = {} if number < launches else {"process": HOST + 5}
        maker.op("aten::mm", 20 * number, 10, **where)
        maker.work(Work(launch=20 * number + 1, start=20 * number + 5, duration=8), **where)
    return maker


def test_work_of_two_engines_without_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MergedTraceError) as merged:
        iterations(two_engines(30, 10), tmp_path)
    assert merged.value.reason == (
        "No label marks the steps, and 2 processes launch the device's work (75%, 25% of its time)."
    )


def test_a_helper_that_copies_now_and_then_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError):
        iterations(two_engines(99, 1), tmp_path)
