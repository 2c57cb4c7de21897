"""Which call launched each piece of device work, and how long a device was busy."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.make_trace import DEVICE, HOST, TraceMaker, Work
from tracelens_infer.notes import Note
from tracelens_infer.trace.columns import MISSING, Int64Array, Trace
from tracelens_infer.trace.launches import DeviceWork, covered_ns, link_device_work, union_ns

UNKNOWN = -1


def launch(
    maker: TraceMaker,
    correlation: int | None,
    start: float,
    duration: float | None = 2,
    *,
    process: int = HOST,
    category: str = "cuda_runtime",
) -> int:
    """Add a call; returns its row."""
    args = {} if correlation is None else {"correlation": correlation}
    maker.span(category, "launch", start, duration, process=process, **args)
    return len(maker.events) - 1


def kernel(
    maker: TraceMaker, correlation: int | None, start: float, duration: float = 5, *, device: int = DEVICE
) -> int:
    """Add device work; returns its row."""
    args = {} if correlation is None else {"correlation": correlation}
    maker.span("kernel", "k", start, duration, process=device, thread=7, **args)
    return len(maker.events) - 1


def pairs(work: DeviceWork) -> dict[int, int]:
    return dict(zip(work.row.tolist(), work.launch.tolist(), strict=True))


def codes(work: DeviceWork) -> dict[str, int | None]:
    return {note.code: note.count for note in work.notes}


# -- links ---------------------------------------------------------------------------------------------------------


def test_one_launch_owns_many_kernels(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.work(Work(10, 100, 3, kernels=1566))
    maker.work(Work(20, 6000, 3))
    trace = maker.read(tmp_path)
    work = link_device_work(trace)
    starts = [event["ts"] for event in maker.events]
    graph, other = starts.index(10), starts.index(20)
    assert np.bincount(work.launch).tolist() == [1566] + [0] * (other - 1) + [1]
    assert graph == 0
    assert work.launch_ns.tolist() == [10_000] * 1566 + [20_000]
    assert work.linked.all()
    assert work.notes == ()


def test_device_work_is_in_order_of_its_start_with_its_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens_infer.trace.repairs._LONG_BEFORE_NS", 1)  # these traces begin near 0
    maker = TraceMaker()
    call = launch(maker, 1, 5)
    late, unstamped, early, endless = kernel(maker, 1, 90), kernel(maker, 1, 0), kernel(maker, 1, 50, 7.5), 0
    maker.span("gpu_memcpy", "endless", 70, None, process=DEVICE, thread=8, correlation=1)
    endless = len(maker.events) - 1
    maker.span("kernel", "timeless", 0, 5, process=DEVICE, thread=7, correlation=1)
    del maker.events[-1]["ts"]
    timeless = len(maker.events) - 1
    work = link_device_work(maker.read(tmp_path))
    assert work.row.tolist() == [unstamped, timeless, early, endless, late]
    assert work.timed.tolist() == [False, False, True, True, True]
    assert work.start_ns.tolist() == [MISSING, MISSING, 50_000, 70_000, 90_000]
    assert work.end_ns.tolist() == [MISSING, MISSING, 57_500, 70_000, 95_000]
    assert work.launch.tolist() == [call] * 5


@pytest.mark.parametrize(
    "category",
    ["cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "privateuse1_driver", "Runtime"],
)
def test_any_runtime_or_driver_call_can_be_a_launch(tmp_path: Path, category: str) -> None:
    maker = TraceMaker()
    call = launch(maker, 7, 1, category=category)
    owned = kernel(maker, 7, 5)
    assert pairs(link_device_work(maker.read(tmp_path))) == {owned: call}


def test_a_correlation_is_never_joined_to_an_external_id(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.span("cuda_runtime", "launch", 1, 2, **{"External id": 7})
    maker.span("cpu_op", "aten::mm", 0, 9, **{"External id": 7, "correlation": 7})
    maker.span("cuda_runtime", "launch", 1, 2, **{"External id": 8, "correlation": 9})
    maker.span("kernel", "k", 5, 5, process=DEVICE, thread=7, **{"External id": 9, "correlation": 7})
    maker.span("kernel", "k", 15, 5, process=DEVICE, thread=7, **{"External id": 9, "correlation": 8})
    work = link_device_work(maker.read(tmp_path))
    assert work.launch.tolist() == [UNKNOWN, UNKNOWN]


def test_a_flow_or_an_annotation_with_the_same_number_launches_nothing(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.arrow(7, "ac2g", 1, 5)
    maker.label("step", 0, 9, correlation=7)
    maker.span("gpu_user_annotation", "step", 4, 9, process=DEVICE, thread=7, correlation=7)
    owned = kernel(maker, 7, 5)
    assert pairs(link_device_work(maker.read(tmp_path))) == {owned: UNKNOWN}


def test_unlinked_work_is_told_by_why_it_is(tmp_path: Path) -> None:
    maker = TraceMaker()
    launch(maker, 1, 1)
    launch(maker, None, 2)
    for number, correlation in enumerate((None, 98, 1, None, 99, None)):
        kernel(maker, correlation, 5 + number)
    work = link_device_work(maker.read(tmp_path))
    assert work.linked.tolist() == [False, False, True, False, False, False]
    assert work.launch_ns.tolist() == [MISSING, MISSING, 1000, MISSING, MISSING, MISSING]
    assert work.notes == (
        Note(
            "warning",
            "unattributed_device_work",
            "3 of 6 device events carry no correlation: they are not attributed to steps.",
            3,
        ),
        Note(
            "warning",
            "launched_before_recording",
            "2 of 6 device events were launched before recording; they belong to no step.",
            2,
        ),
    )


def test_without_launches_or_without_device_work_nothing_is_linked(tmp_path: Path) -> None:
    maker = TraceMaker()
    kernel(maker, 1, 5)
    work = link_device_work(maker.read(tmp_path))
    assert (work.launch.tolist(), codes(work)) == ([UNKNOWN], {"launched_before_recording": 1})
    maker = TraceMaker()
    launch(maker, 1, 5)
    work = link_device_work(maker.read(tmp_path))
    assert (len(work.row), len(work.launch_ns), work.notes) == (0, 0, ())
    work = link_device_work(TraceMaker().read(tmp_path))
    assert (len(work.row), work.notes) == (0, ())


def test_a_dropped_duplicate_launches_nothing_and_is_no_work(tmp_path: Path) -> None:
    maker = TraceMaker()
    for _ in range(2):
        launch(maker, 1, 1)
        kernel(maker, 1, 5)
    work = link_device_work(maker.read(tmp_path))
    assert pairs(work) == {1: 0}


def test_a_launch_without_a_time_is_none(tmp_path: Path) -> None:
    maker = TraceMaker()
    del maker.events[launch(maker, 1, 1)]["ts"]
    owned = kernel(maker, 1, 5)
    assert pairs(link_device_work(maker.read(tmp_path))) == {owned: UNKNOWN}


@pytest.mark.parametrize("outer_first", [True, False])
@pytest.mark.parametrize("inner_start", [11, 10])
def test_of_a_runtime_call_around_a_driver_call_the_outer_one_launches(
    tmp_path: Path, inner_start: float, outer_first: bool
) -> None:
    maker = TraceMaker()
    calls = {"cuda_runtime": (10.0, 20.0), "cuda_driver": (inner_start, 5.0)}
    rows = {
        category: launch(maker, 1, *calls[category], category=category)
        for category in (calls if outer_first else reversed(calls))
    }
    owned = kernel(maker, 1, 40)
    work = link_device_work(maker.read(tmp_path))
    assert pairs(work) == {owned: rows["cuda_runtime"]}
    assert work.launch_ns.tolist() == [10_000]
    assert work.notes == ()


# -- several processes ---------------------------------------------------------------------------------------------


def two_ranks(shared: list[int], own: dict[int, list[int]]) -> tuple[TraceMaker, dict[tuple[int, int], int]]:
    """Make two processes, 100 and 200, that launch on devices 0 and 1; returns the row of each launch."""
    maker = TraceMaker()
    calls = {}
    for device, process in ((0, 100), (1, 200)):
        for correlation in shared + own[device]:
            calls[device, correlation] = launch(maker, correlation, 10 * correlation + device, process=process)
            kernel(maker, correlation, 1000 + 10 * correlation + device, device=device)
    return maker, calls


def test_work_whose_correlation_two_processes_use_goes_to_the_home_of_its_device(tmp_path: Path) -> None:
    maker, calls = two_ranks([5, 6, 7], {0: [1, 2], 1: [11]})
    trace = maker.read(tmp_path)
    work = link_device_work(trace)
    assert pairs(work) == {row + 1: row for row in calls.values()}
    assert work.notes == ()


def test_the_home_of_a_device_is_the_process_of_most_of_its_other_work(tmp_path: Path) -> None:
    maker, calls = two_ranks([5, 6], {0: [1, 2, 3], 1: [11, 12, 13]})
    stray = kernel(maker, 11, 1, device=0)
    work = link_device_work(maker.read(tmp_path))
    assert pairs(work) == {row + 1: row for row in calls.values()} | {stray: calls[1, 11]}


def test_where_nothing_tells_processes_apart_the_earliest_launch_is_taken_and_it_is_said(tmp_path: Path) -> None:
    maker, calls = two_ranks([5, 6], {0: [], 1: []})
    work = link_device_work(maker.read(tmp_path))
    earliest = {5: calls[0, 5], 6: calls[0, 6]}
    assert pairs(work) == {row + 1: earliest[correlation] for (_, correlation), row in calls.items()}
    assert codes(work) == {"ambiguous_correlations": 4}


def test_one_device_may_be_at_home_and_the_other_not(tmp_path: Path) -> None:
    maker, calls = two_ranks([5], {0: [], 1: [11]})
    work = link_device_work(maker.read(tmp_path))
    assert pairs(work) == {row + 1: row for row in calls.values()}
    assert codes(work) == {"ambiguous_correlations": 1}


def test_a_home_process_that_did_not_make_the_call_leaves_it_to_the_one_that_did(tmp_path: Path) -> None:
    maker = TraceMaker()
    home = launch(maker, 1, 1, process=100)
    first = launch(maker, 5, 2, process=200)
    launch(maker, 5, 3, process=300)
    rows = [kernel(maker, 1, 50), kernel(maker, 5, 60)]
    assert pairs(link_device_work(maker.read(tmp_path))) == dict(zip(rows, [home, first], strict=True))


def test_two_calls_of_one_process_are_not_two_processes(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.span("cuda_runtime", "launch", 1, 2, thread=1, correlation=5)
    maker.span("cuda_runtime", "launch", 9, 2, thread=2, correlation=5)
    owned = kernel(maker, 5, 50)
    work = link_device_work(maker.read(tmp_path))
    assert (pairs(work), work.notes) == ({owned: 0}, ())


# -- clocks --------------------------------------------------------------------------------------------------------


def skewed(folder: Path, early_us: float) -> DeviceWork:
    """Make three kernels, the second of which starts ``early_us`` before its launch."""
    maker = TraceMaker()
    for number in (1, 2, 3):
        launch(maker, number, 50_000 * number)
        kernel(maker, number, 50_000 * number + (-early_us if number == 2 else 10))
    kernel(maker, None, 1)
    return link_device_work(maker.read(folder))


@pytest.mark.parametrize("early_us", [0, 9, 999, 1000])
def test_a_kernel_a_little_before_its_launch_is_no_skew(tmp_path: Path, early_us: float) -> None:
    work = skewed(tmp_path, early_us)
    assert codes(work) == {"unattributed_device_work": 1}
    assert work.linked.sum() == 3


def test_a_clock_more_than_a_millisecond_early_is_told(tmp_path: Path) -> None:
    work = skewed(tmp_path, 1000.001)
    text = (
        "The device's clock runs 1.000 ms early: kernels start before their launch. Work is attributed by correlation."
    )
    assert work.notes[1:] == (Note("warning", "clock_skew", text, 3),)
    assert work.linked.sum() == 3
    assert "30,000.000 ms" in skewed(tmp_path, 30e6).notes[1].text


def test_work_that_was_never_stamped_is_no_skew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens_infer.trace.repairs._LONG_BEFORE_NS", 1)  # these traces begin near 0
    maker = TraceMaker()
    launch(maker, 1, 50_000)
    kernel(maker, 1, 0)
    work = link_device_work(maker.read(tmp_path))
    assert (work.linked.tolist(), work.notes) == ([True], ())


# -- busy time -----------------------------------------------------------------------------------------------------

intervals = st.lists(st.tuples(st.integers(-30, 30), st.integers(0, 25)), max_size=12)


def brute_force(spans: list[tuple[int, int]]) -> int:
    return len({moment for start, length in spans for moment in range(start, start + length)})


def columns(spans: list[tuple[int, int]]) -> tuple[Int64Array, Int64Array]:
    start = np.array([start for start, _ in spans], dtype=np.int64)
    return start, start + np.array([length for _, length in spans], dtype=np.int64)


@given(spans=intervals)
def test_covered_time_counts_each_moment_once(spans: list[tuple[int, int]]) -> None:
    assert covered_ns(*columns(sorted(spans))) == brute_force(spans)


@given(groups=st.lists(intervals, min_size=1, max_size=5), order=st.randoms(use_true_random=False), far=st.booleans())
def test_the_union_of_each_group_is_its_covered_time(
    groups: list[list[tuple[int, int]]], order: random.Random, far: bool
) -> None:
    rows = [(number, span) for number, spans in enumerate(groups) for span in spans]
    order.shuffle(rows)
    start, end = columns([span for _, span in rows])
    group = np.array([number for number, _ in rows], dtype=np.int64)
    expected = [brute_force(spans) for spans in groups]
    if far:  # each group has an event that was stamped by another clock, as far off as times can be
        base = np.arange(len(groups))
        start = np.concatenate([start, np.full(len(groups), 4_600_000_000_000_000_000)])
        end = np.concatenate([end, np.full(len(groups), 4_600_000_000_000_000_003)])
        group = np.concatenate([group, base])
        expected = [each + 3 for each in expected]
    assert union_ns(start, end, group, len(groups)).tolist() == expected


def test_groups_without_work_are_not_busy() -> None:
    empty = np.zeros(0, dtype=np.int64)
    assert union_ns(empty, empty, empty, 3).tolist() == [0, 0, 0]
    start, end = columns([(5, 10), (8, 10), (100, 1)])
    assert union_ns(start, end, np.array([1, 1, 3]), 5).tolist() == [0, 13, 0, 1, 0]


def test_time_on_several_streams_is_a_union_not_a_sum(tmp_path: Path) -> None:
    maker = TraceMaker()
    for stream, start, duration in ((7, 100, 50), (8, 120, 50), (9, 130, 10), (7, 200, 10)):
        maker.kernel(start, duration, stream=stream)
    work = link_device_work(maker.read(tmp_path))
    assert (work.end_ns - work.start_ns).sum() == 120_000
    assert covered_ns(work.start_ns, work.end_ns) == 80_000
    one = np.zeros(4, dtype=np.int64)
    assert union_ns(work.start_ns, work.end_ns, one, 1).tolist() == [80_000]


def test_links_do_not_depend_on_the_order_of_events(tmp_path: Path) -> None:
    maker, _ = two_ranks([5, 6, 7], {0: [1, 2], 1: [11]})

    def by_times(trace: Trace) -> dict[int, int]:
        work = link_device_work(trace)
        return dict(zip(work.start_ns.tolist(), work.launch_ns.tolist(), strict=True))

    forwards = by_times(maker.read(tmp_path))
    maker.events.reverse()
    assert by_times(maker.read(tmp_path)) == forwards
