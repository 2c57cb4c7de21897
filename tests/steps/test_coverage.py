"""How much of the device's time a candidate's windows explain, and in which of them a time lies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.make_trace import DECODE, HOST, TraceMaker, Work
from tracelens_infer.steps.candidates import Candidate, Grade, StepBoundary, annotation_candidates
from tracelens_infer.steps.coverage import graded, step_numbers
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.launches import link_device_work


def candidate(*spans: tuple[int, int, int], on_device: bool = False) -> Candidate:
    """Make a candidate of start, end and tile end of each step in us."""
    boundaries = (StepBoundary(-1, start * 1000, end * 1000, tile * 1000, None) for start, end, tile in spans)
    return Candidate("made", tuple(boundaries), on_device=on_device)


def grade(trace: Trace, found: Candidate) -> Candidate:
    return graded(trace, link_device_work(trace), found)


@pytest.mark.parametrize(
    ("time", "tile", "span"),
    [
        (-1, -1, -1),
        (0, 0, 0),
        (79, 0, 0),
        (80, 0, -1),  # spans and tiles are half-open
        (99, 0, -1),
        (100, 1, 1),
        (150, -1, -1),  # between two tiles
        (200, 2, 2),
        (259, 2, 2),
        (260, -1, -1),
        (9999, -1, -1),
    ],
)
def test_a_time_lies_in_the_tile_and_the_span_that_began_last(time: int, tile: int, span: int) -> None:
    found = candidate((0, 80, 100), (100, 130, 150), (200, 260, 260))
    times = np.array([time * 1000], dtype=np.int64)
    assert step_numbers(found, times).tolist() == [tile]
    assert step_numbers(found, times, spans_only=True).tolist() == [span]


def test_times_are_looked_up_together() -> None:
    found = candidate((0, 80, 100), (100, 130, 150))
    assert step_numbers(found, np.array([120_000, -5, 10_000, 99_999], dtype=np.int64)).tolist() == [1, -1, 0, 0]
    assert step_numbers(found, np.zeros(0, dtype=np.int64)).tolist() == []


def test_of_a_step_without_extent_nothing_is_inside() -> None:
    found = candidate((100, 100, 100), (100, 130, 150))
    assert step_numbers(found, np.array([100_000], dtype=np.int64)).tolist() == [1]


def device_trace(folder: Path) -> Trace:
    """Make a trace of ten kernels of 10 us, launched every 100 us, and one that runs beside the first."""
    maker = TraceMaker()
    for number in range(10):
        maker.work(Work(launch=100 * number + 50, start=100 * number + 500, duration=10))
    maker.work(Work(launch=51, start=502, duration=5, stream=20))  # within the first: the union does not grow
    return maker.read(folder)


@pytest.mark.parametrize(
    ("spans", "explained", "in_spans", "expected"),
    [
        ([(0, 1000, 1000)], 1.0, 1.0, Grade.SPLITTABLE),
        ([(0, 40, 500), (500, 540, 1000)], 1.0, 0.0, Grade.SPLITTABLE),  # everything is launched after the labels
        ([(0, 60, 500), (500, 560, 1000)], 1.0, 0.2, Grade.SPLITTABLE),
        ([(0, 400, 400), (500, 1000, 1000)], 0.9, 0.9, Grade.DEGRADED),
        ([(0, 400, 400), (700, 1000, 1000)], 0.7, 0.7, Grade.NOT_SPLITTABLE),
        ([(500, 1000, 1000)], 1.0, 1.0, Grade.SPLITTABLE),  # what was launched before the first does not count
        ([(0, 400, 400)], 1.0, 1.0, Grade.SPLITTABLE),  # nor after the last
        ([(5000, 6000, 6000)], 1.0, 1.0, Grade.SPLITTABLE),  # nothing ran: nothing is unexplained
    ],
)
def test_the_share_is_that_of_the_device_time_between_the_first_and_the_last_step(
    spans: list[tuple[int, int, int]], explained: float, in_spans: float, expected: Grade, tmp_path: Path
) -> None:
    found = grade(device_trace(tmp_path), candidate(*spans))
    assert found.explained_share == pytest.approx(explained)
    assert found.span_share == pytest.approx(in_spans)
    assert found.grade is expected


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (0, Grade.SPLITTABLE),
        (2, Grade.SPLITTABLE),
        (3, Grade.DEGRADED),
        (10, Grade.DEGRADED),
        (11, Grade.NOT_SPLITTABLE),
    ],
)
def test_the_grades_are_at_95_and_75_percent(missing: int, expected: Grade, tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(40):
        maker.work(Work(launch=10 * number, start=1000 + 10 * number, duration=5))
    tiles = [(10 * number, 10 * number + 10, 10 * number + 10) for number in range(40)]
    assert grade(maker.read(tmp_path), candidate(*tiles[: 30 - missing], *tiles[30:])).grade is expected


def test_work_without_a_launch_in_the_file_does_not_count(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.work(Work(launch=10, start=20, duration=10))
    maker.kernel(60, 1000, correlation=999)
    found = grade(maker.read(tmp_path), candidate((0, 50, 50), (200, 250, 250)))
    assert (found.explained_share, found.span_share) == (1.0, 1.0)


def test_work_at_time_zero_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens_infer.trace.repairs._LONG_BEFORE_NS", 1)  # these traces begin near 0
    maker = TraceMaker()
    maker.work(Work(launch=10, start=20, duration=10))
    maker.work(Work(launch=60, start=0, duration=500))
    found = grade(maker.read(tmp_path), candidate((5, 50, 50), (200, 250, 250)))
    assert found.explained_share == 1.0


def test_without_a_device_the_share_is_that_of_op_time(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(4):
        maker.op("aten::mm", 100 * number + 10, 20)
        maker.op("aten::addmm", 100 * number + 12, 10)  # inside of it
        maker.frame("engine.py(1): step", 100 * number, 90)
    trace = maker.read(tmp_path)
    found = grade(trace, candidate((0, 100, 100), (200, 300, 300), (300, 305, 400)))
    assert found.explained_share == pytest.approx(0.75)
    assert found.span_share == pytest.approx(0.5)
    assert found.grade is Grade.DEGRADED


def test_without_any_op_nothing_is_unexplained(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label(DECODE, 0, 100)
    assert grade(maker.read(tmp_path), candidate((0, 50, 100))).explained_share == 1.0


def test_of_labels_on_the_device_the_work_is_told_by_its_own_time(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.kernel(10, 10)
    maker.kernel(110, 10)
    maker.kernel(210, 10, correlation=5)
    found = grade(maker.read(tmp_path), candidate((0, 15, 100), (200, 250, 300), on_device=True))
    assert found.explained_share == pytest.approx(2 / 3)
    assert found.span_share == pytest.approx(2 / 3)


def test_tiles_of_labels_explain_everything_and_spans_what_they_cover(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 4)
    maker.work(Work(launch=190, start=290, duration=100, stream=20))  # after the second label, in its tile
    trace = maker.read(tmp_path)
    (found,) = annotation_candidates(trace)
    found = grade(trace, found)
    assert found.explained_share == 1.0
    # Kernels run from 50 to 100 in each 100 us; the late one fills the gap from 300 to 350 and 10 us before 300.
    assert found.span_share == pytest.approx(200 / 250)
    assert found == replace(found, grade=Grade.SPLITTABLE)


def test_launches_of_another_thread_count(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label(DECODE, 0, 100)
    maker.work(Work(launch=50, start=60, duration=10), thread=HOST + 7)
    trace = maker.read(tmp_path)
    (found,) = annotation_candidates(trace)
    assert grade(trace, found).span_share == 1.0
