"""Which events belong to a step, to a range of steps, and to none; nothing between two steps is lost or twice."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.make_trace import DECODE, DEVICE, HOST, STREAM, TraceMaker, Work
from tracelens_infer.steps.analyze import StepAnalysis
from tracelens_infer.steps.members import StepMembers, members_of, retention
from tracelens_infer.trace.columns import RowArray


def members(analysis: StepAnalysis, *, gap_fill: bool = True) -> StepMembers:
    return members_of(analysis.trace, analysis.work, analysis.step_work, gap_fill=gap_fill)


def names(maker: TraceMaker, rows: RowArray) -> list[str]:
    return [maker.events[row]["name"] for row in rows.tolist()]


LABELS = [f"ProfilerStep#{number}" for number in range(3)]


def three_steps() -> TraceMaker:
    """Make steps at 0, 100 and 200, each labelled for 60 of its 100 us."""
    maker = TraceMaker()
    for number, label in enumerate(LABELS):
        maker.label(label, 100 * number, 60)
    return maker


# An event added to three steps -> the steps it belongs to, with and without filling of gaps.
EVENTS: dict[str, tuple[Callable[[TraceMaker], Any], list[int], list[int]]] = {
    "an op of the second step": (lambda m: m.op("x", 110, 20), [1], [1]),
    "at its start": (lambda m: m.op("x", 100, 5), [1], [1]),
    "a nanosecond before": (lambda m: m.op("x", 99.999, 5), [0], []),
    "after the label": (lambda m: m.op("x", 170, 5), [1], []),
    "that outlasts the label": (lambda m: m.op("x", 150, 30), [1], [1]),
    "that outlasts the tile": (lambda m: m.op("x", 190, 30), [1], []),
    "before the first step": (lambda m: m.op("x", -5, 3), [], []),
    "after the last one's label": (lambda m: m.op("x", 270, 3), [2], []),
    "after the last tile": (lambda m: m.op("x", 300, 3), [], []),
    "on another thread": (lambda m: m.op("x", 110, 20, thread=HOST + 3), [1], [1]),
    "of another process": (lambda m: m.op("x", 110, 20, process=HOST + 3), [1], [1]),
    "a Python frame": (lambda m: m.frame("x", 110, 20), [1], [1]),
    "a scope": (lambda m: m.label("x", 110, 20), [1], [1]),
    "a span of no known category": (lambda m: m.span("overhead", "x", 110, 20), [1], [1]),
    "an instant": (lambda m: m.event(ph="i", s="g", name="x", pid=HOST, tid=HOST, ts=150), [1], [1]),
    "a counter": (lambda m: m.event(ph="C", name="x", pid=HOST, ts=150, args={"v": 1}), [1], [1]),
    "as long as its tile": (lambda m: m.frame("x", 110, 100), [1], [1]),
    "longer than its tile": (lambda m: m.frame("x", 110, 100.001), [], []),
    "an op without a duration": (lambda m: m.span("cpu_op", "x", 110, None), [1], [1]),
    "an op without a start": (lambda m: m.op("x", 110, 20).pop("ts"), [], []),
    "metadata with a time": (lambda m: m.event(ph="M", name="x", pid=HOST, ts=150, args={"name": "n"}), [], []),
}


@pytest.mark.parametrize(("add", "filled", "bare"), EVENTS.values(), ids=EVENTS.keys())
def test_host_events_belong_to_the_step_in_which_they_begin(
    add: Callable[[TraceMaker], Any], filled: list[int], bare: list[int], tmp_path: Path
) -> None:
    maker = three_steps()
    add(maker)
    analysis = maker.analyze(tmp_path)
    for gap_fill, expected in ((True, filled), (False, bare)):
        found = members(analysis, gap_fill=gap_fill)
        assert [step for step in range(3) if "x" in names(maker, found.rows_of(step, step + 1))] == expected
        assert [name for name in names(maker, found.rows) if name in LABELS] == LABELS


# -- ranges and what encloses them -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "duration", "in_range", "in_enclosing"),
    [
        (-50, 500, False, True),  # around all of the range
        (0, 200, True, True),  # as long as the range
        (10, 150, True, True),  # across the end of a step, within the range
        (-50, 200, False, False),  # begins before it
        (110, 150, False, False),  # ends after it
        (-50, 250, False, True),  # ends with it
        (0, 250, False, True),  # begins with it
        (250, 500, False, False),
    ],
)
def test_frames_longer_than_a_step(
    start: float, duration: float, in_range: bool, in_enclosing: bool, tmp_path: Path
) -> None:
    maker = three_steps()
    maker.frame("x", start, duration)
    found = members(maker.analyze(tmp_path))
    assert ("x" in names(maker, found.rows_of(0, 2))) is in_range
    assert ("x" in names(maker, found.rows_of(0, 2, enclosing=True))) is in_enclosing


def test_between_two_labels_nothing_is_added_without_filling_gaps(tmp_path: Path) -> None:
    maker = three_steps()
    maker.label("ProfilerStep#3", 300, 5)
    maker.label("ProfilerStep#4", 310, 5)  # a tile of 10 us, less than what runs between two others
    maker.op("x", 165, 30)
    analysis = maker.analyze(tmp_path)
    assert "x" in names(maker, members(analysis).rows_of(0, 5))
    assert "x" not in names(maker, members(analysis, gap_fill=False).rows_of(0, 5, enclosing=True))


def test_rows_of_a_range_are_in_file_order(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op("late", 210, 5)
    maker.label(DECODE, 100, 60)
    maker.op("early", 10, 5)
    maker.label(DECODE, 0, 60)
    maker.frame("around", -10, 500)
    maker.label(DECODE, 200, 60)
    found = members(maker.analyze(tmp_path))
    assert found.rows_of(0, 3, enclosing=True).tolist() == [0, 1, 2, 3, 4, 5]
    assert found.rows_of(0, 1).tolist() == [2, 3]
    assert found.rows_of(1, 3).tolist() == [0, 1, 5]


def test_exact_duplicates_belong_to_no_step(tmp_path: Path) -> None:
    maker = three_steps()
    maker.op("x", 110, 20)
    maker.events.append(dict(maker.events[-1]))
    analysis = maker.analyze(tmp_path)
    assert names(maker, members(analysis).rows_of(1, 2)) == [LABELS[1], "x"]


# -- begin and end events --------------------------------------------------------------------------------------------


def pair(maker: TraceMaker, start: float, end: float) -> None:
    for phase, time in (("B", start), ("E", end)):
        maker.event(ph=phase, cat="cpu_op", name=phase, pid=HOST, tid=HOST, ts=time)


@pytest.mark.parametrize(
    ("start", "end", "in_step", "in_range"),
    [
        (110, 130, True, True),
        (190, 210, True, True),  # the end follows its begin into the step
        (110, 250, False, True),  # longer than the step
        (-50, 400, False, True),
    ],
)
def test_an_end_goes_where_its_begin_goes(
    start: float, end: float, in_step: bool, in_range: bool, tmp_path: Path
) -> None:
    maker = three_steps()
    pair(maker, start, end)
    found = members(maker.analyze(tmp_path))
    both = ["B", "E"]
    assert [name for name in names(maker, found.rows_of(1, 2)) if name in both] == (both if in_step else [])
    whole = names(maker, found.rows_of(0, 3, enclosing=True))
    assert [name for name in whole if name in both] == (both if in_range else [])


def test_an_end_without_a_begin_belongs_to_no_step(tmp_path: Path) -> None:
    maker = three_steps()
    maker.event(ph="E", cat="cpu_op", name="E", pid=HOST, tid=HOST, ts=110)
    assert "E" not in names(maker, members(maker.analyze(tmp_path)).rows)


# -- device events, arrows and device labels -------------------------------------------------------------------------


def phases(maker: TraceMaker, rows: RowArray) -> list[str]:
    """List category and phase of events, the labels of steps left out."""
    events = [maker.events[row] for row in rows.tolist()]
    return [f"{event['cat']} {event['ph']}" for event in events if event["name"] not in (DECODE, *LABELS)]


WORK = ["cuda_runtime X", "kernel X", "ac2g s", "ac2g f"]


@pytest.mark.parametrize(
    ("launch", "filled", "bare"),
    [(110, [1], [1]), (170, [1], []), (-5, [], []), (305, [], [])],
    ids=["in the label", "after it", "before the first step", "after the last"],
)
@pytest.mark.parametrize("start", [20, 150, 5000], ids=["before the step", "in it", "long after it"])
def test_device_work_and_its_arrow_go_with_the_launch(
    launch: float, start: float, filled: list[int], bare: list[int], tmp_path: Path
) -> None:
    maker = three_steps()
    maker.work(Work(launch, start, 10))
    analysis = maker.analyze(tmp_path)
    for gap_fill, expected in ((True, filled), (False, bare)):
        found = members(analysis, gap_fill=gap_fill)
        assert [step for step in range(3) if phases(maker, found.rows_of(step, step + 1)) == WORK] == expected
        assert len(found.rows) == 3 + len(WORK) * len(expected)


def test_every_kernel_of_a_graph_goes_with_its_launch(tmp_path: Path) -> None:
    maker = three_steps()
    maker.work(Work(110, 500, 10, kernels=50))
    found = members(maker.analyze(tmp_path))
    assert phases(maker, found.rows_of(1, 2)).count("kernel X") == 50


def test_work_without_a_launch_and_arrows_without_one_belong_to_no_step(tmp_path: Path) -> None:
    maker = three_steps()
    maker.kernel(110, 10, correlation=99)
    maker.kernel(120, 10)
    maker.arrow(99, "ac2g", 105, 110)
    maker.arrow(98, "ac2g", 106, 111)
    assert phases(maker, members(maker.analyze(tmp_path)).rows) == []


def test_an_arrow_s_number_is_that_of_a_correlation_not_of_another_sequence(tmp_path: Path) -> None:
    """Arrows from forward to backward ops are numbered on their own: 1 is not the first launch."""
    maker = three_steps()
    maker.work(Work(10, 50, 10))
    maker.op("forward", 110, 5)
    maker.op("backward", 120, 5)
    maker.arrow(1, "fwdbwd", 110, 120, pid=HOST, tid=HOST)
    found = members(maker.analyze(tmp_path))
    assert phases(maker, found.rows_of(0, 1)) == WORK
    assert phases(maker, found.rows_of(1, 2)) == ["cpu_op X", "cpu_op X", "fwdbwd s", "fwdbwd f"]


@pytest.mark.parametrize(
    ("forward", "backward", "in_step"),
    [(110, 130, [1]), (110, 170, [1]), (110, 210, []), (10, 130, []), (-20, 130, []), (110, 400, [])],
)
def test_arrows_between_ops_belong_to_a_step_that_holds_both_ends(
    forward: float, backward: float, in_step: list[int], tmp_path: Path
) -> None:
    maker = three_steps()
    maker.op("forward", forward, 5)
    maker.op("backward", backward, 5, thread=HOST + 1)
    maker.arrow(1, "fwdbwd", forward, backward, pid=HOST, tid=HOST + 1)
    found = members(maker.analyze(tmp_path))
    arrows = ["fwdbwd s", "fwdbwd f"]
    for step in range(3):
        here = [phase for phase in phases(maker, found.rows_of(step, step + 1)) if phase in arrows]
        assert here == (arrows if step in in_step else [])


def test_half_an_arrow_belongs_to_no_step(tmp_path: Path) -> None:
    maker = three_steps()
    maker.op("forward", 110, 5)
    maker.arrow(1, "fwdbwd", 110, 120, pid=HOST, tid=HOST)
    maker.events.pop()
    assert phases(maker, members(maker.analyze(tmp_path)).rows) == ["cpu_op X"]


@pytest.mark.parametrize(
    ("start", "duration", "steps"),
    [
        (520, 30, [1]),  # around the work
        (529.001, 30, [1]),
        (531, 30, [1]),  # up to 1 us after its start
        (531.001, 30, []),
        (520, 5, []),  # before it
        (600, 5, []),
        (630, 30, [2]),
    ],
)
def test_device_labels_go_with_the_first_work_that_begins_in_them(
    start: float, duration: float, steps: list[int], tmp_path: Path
) -> None:
    maker = three_steps()
    for number in range(3):
        maker.work(Work(100 * number + 10, 100 * number + 430, 10))
    maker.device_label("forward", start, duration)
    found = members(maker.analyze(tmp_path))
    here = [step for step in range(3) if "forward" in names(maker, found.rows_of(step, step + 1))]
    assert here == steps


def test_of_steps_marked_on_the_device_the_work_its_launches_and_arrows_are_members(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(3):
        maker.device_label(DECODE, 100 * number + 20, 40)
        maker.work(Work(launch=100 * number - 100, start=100 * number + 20, duration=20))
        maker.op("aten::mm", 100 * number + 20, 20)
    found = members(maker.analyze(tmp_path))
    for step in range(3):
        assert phases(maker, found.rows_of(step, step + 1)) == WORK
        assert DECODE in names(maker, found.rows_of(step, step + 1))


# -- retention -------------------------------------------------------------------------------------------------------


def test_retention_counts_linked_work_between_the_first_and_the_last_step(tmp_path: Path) -> None:
    maker = three_steps()
    for launch in (-5, 10, 70, 110, 170, 210, 290, 310):
        maker.work(Work(launch, launch + 500, 10))
    maker.kernel(120, 10, correlation=99)
    analysis = maker.analyze(tmp_path)
    rows = len(analysis.trace.columns)
    whole = retention(rows, analysis.work, analysis.step_work, members(analysis))
    assert (whole.linked_between, whole.in_steps, whole.duplicated, whole.share) == (6, 6, 0, 1.0)
    cut = retention(rows, analysis.work, analysis.step_work, members(analysis, gap_fill=False))
    assert (cut.linked_between, cut.in_steps, cut.duplicated, cut.share) == (6, 3, 0, 0.5)


def test_without_device_work_there_is_nothing_to_keep(tmp_path: Path) -> None:
    analysis = three_steps().analyze(tmp_path)
    assert retention(3, analysis.work, analysis.step_work, members(analysis)).share is None


TIMES = st.integers(-200, 1500)


@given(
    labels=st.lists(st.tuples(TIMES, st.integers(0, 400)), min_size=1, max_size=8),
    works=st.lists(st.tuples(TIMES, TIMES, st.integers(0, 90), st.integers(1, 5), st.integers(7, 9)), max_size=20),
    ops=st.lists(st.tuples(TIMES, st.integers(0, 900), st.integers(HOST, HOST + 2)), max_size=20),
    cut=st.integers(0, 8),
)
def test_nothing_is_lost_between_the_steps_nor_in_two_of_them(
    labels: list[tuple[int, int]],
    works: list[tuple[int, int, int, int, int]],
    ops: list[tuple[int, int, int]],
    cut: int,
) -> None:
    maker = TraceMaker()
    for number, (start, duration) in enumerate(labels):
        maker.label(f"ProfilerStep#{number}", start, duration)
    for launch, start, duration, kernels, stream in works:
        maker.work(Work(launch, start, duration, kernels, stream))
    for number, (start, duration, thread) in enumerate(ops):
        maker.op(f"op {number}", start, duration, thread=thread)
    with tempfile.TemporaryDirectory() as folder:
        analysis = maker.analyze(Path(folder))
    found = members(analysis)
    kept = retention(len(analysis.trace.columns), analysis.work, analysis.step_work, found)
    assert kept.duplicated == 0
    assert kept.share in (None, 1.0)
    count = len(analysis.steps.steps)
    cut = min(cut, count)
    # Single steps, both halves, and the whole hold the same events, save what is longer than a step.
    singles = [found.rows_of(step, step + 1) for step in range(count)]
    assert np.array_equal(np.sort(np.concatenate(singles)), np.sort(found.rows))
    assert len(np.unique(found.rows)) == len(found.rows)
    whole = set(found.rows_of(0, count).tolist())
    for first, last in ((0, cut), (cut, count)):
        if first < last:
            half = found.rows_of(first, last)
            assert set(half.tolist()) <= whole
            assert (np.diff(half) > 0).all()
    assert set(found.rows.tolist()) <= whole <= set(found.rows_of(0, count, enclosing=True).tolist())


def test_the_builder_s_work_is_a_launch_a_kernel_and_an_arrow_on_its_stream() -> None:
    maker = TraceMaker()
    maker.work(Work(1, 2, 3))
    assert [(event["pid"], event["tid"]) for event in maker.events] == [
        (HOST, HOST),
        (DEVICE, STREAM),
        (HOST, HOST),
        (DEVICE, STREAM),
    ]
