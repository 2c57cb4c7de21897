"""Labels with a damaged duration or process, labels that mark something else, and work that is no forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.make_trace import TraceMaker, Work, vllm
from tracelens_infer.errors import LowCoverageError, MergedTraceError
from tracelens_infer.report.split import split_trace
from tracelens_infer.report.split_plan import SplitOptions
from tracelens_infer.steps.analyze import StepAnalysis

DECODE = vllm(generation=8)


def steps(count: int = 6) -> TraceMaker:
    maker = TraceMaker()
    maker.steps([DECODE] * count)
    return maker


def codes(analysis: StepAnalysis) -> list[str]:
    return [note.code for note in analysis.notes]


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("duration", [1e9, 4.6e15])
def test_a_label_that_lasts_beyond_all_others_is_clipped(number: int, duration: float, tmp_path: Path) -> None:
    maker = steps()
    labels = [event for event in maker.events if event["name"] == DECODE and event["cat"] == "user_annotation"]
    labels[number]["dur"] = duration
    analysis = maker.analyze(tmp_path)
    assert [step.host_start_ns / 1000 for step in analysis.steps.steps] == [0, 100, 200, 300, 400, 500]
    assert analysis.steps.steps[number].host_end_ns == (number + 1) * 100_000
    assert "overlong_labels" in codes(analysis)


def test_a_label_around_others_of_its_family_is_not_clipped(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label(DECODE, 0, 200)
    for number in range(3):
        maker.step(DECODE, 10 + 60 * number, 50, Work(12 + 60 * number, 20 + 60 * number, 10))
    analysis = maker.analyze(tmp_path)
    assert len(analysis.steps.steps) == 1
    assert "overlong_labels" not in codes(analysis)


@pytest.mark.parametrize("process", [None, 1.5, "?"])
def test_a_label_with_a_damaged_process_is_left_out(process: Any, tmp_path: Path) -> None:  # noqa: ANN401 - damage
    maker = steps()
    next(event for event in maker.events if event["name"] == DECODE)["pid"] = process
    analysis = maker.analyze(tmp_path)
    assert len(analysis.steps.steps) == 5
    assert "stray_labels" in codes(analysis)


def test_labels_of_another_process_are_refused(tmp_path: Path) -> None:
    maker = steps()
    next(event for event in maker.events if event["name"] == DECODE)["pid"] = 8
    with pytest.raises(MergedTraceError):
        maker.analyze(tmp_path)


def test_labels_beside_the_work_are_not_trusted(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(6):
        begin = 100 * number
        maker.step(DECODE, begin, 5, *(Work(begin + 20 + 10 * k, begin + 25 + 10 * k, 5) for k in range(3)))
    path = maker.write(tmp_path)
    with pytest.raises(LowCoverageError) as low:
        split_trace(path, tmp_path / "out")
    assert low.value.reason.startswith("Only 0.0% of the device work is asked for within the vLLM labels")
    assert low.value.action == "Accept them with --allow-degraded."
    result = split_trace(path, tmp_path / "out", SplitOptions(allow_degraded=True))
    assert result.manifest["status"] == "degraded"


def test_one_kernel_after_a_label_is_no_forward(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label(DECODE, 0, 50)
    maker.label(DECODE, 100, 50)
    for work in (Work(20, 500, 10), Work(120, 520, 10), Work(170, 540, 10)):
        maker.work(work)
    assert len(maker.analyze(tmp_path).steps.steps) == 2


def test_one_pair_of_equal_labels_is_no_overlap_loop(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(3):
        maker.label(DECODE, 100 * number, 60)
    maker.work(Work(110, 150, 10))
    assert len(maker.analyze(tmp_path).steps.steps) == 3
