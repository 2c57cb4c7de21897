"""Times that cannot be: what is done about each, and what is left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.make_trace import DEVICE, STREAM, TraceMaker
from tests.trace.layouts import SliceSizes, write
from tracelens_infer.notes import Note
from tracelens_infer.trace.columns import MISSING, ClippedDuration, Role, Trace
from tracelens_infer.trace.reader import read_trace
from tracelens_infer.trace.repairs import OVERLONG_FACTOR, repair


def codes(trace: Trace) -> dict[str, int | None]:
    return {note.code: note.count for note in trace.notes}


def durations(trace: Trace) -> list[int]:
    found: list[int] = trace.columns.duration_ns.tolist()
    return found


def text_of(trace: Trace, code: str) -> str:
    (text,) = (note.text for note in trace.notes if note.code == code)
    return text


def test_a_sound_trace_is_left_as_it_is(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps(["step[DECODE bs=8]"] * 20, start=10)
    trace = maker.read(tmp_path)
    assert trace.notes == ()
    assert (trace.clipped, trace.partners, trace.dropped.tolist()) == ({}, {}, [])
    assert durations(trace) == [round(event.get("dur", 0) * 1000) for event in maker.events]


def test_notes_of_the_reader_come_first(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op("a", 5, -1)
    trace = replace(maker.read(tmp_path), notes=())
    trace = replace(trace, columns=replace(trace.columns, duration_ns=trace.columns.duration_ns - 1))
    notes = repair(trace, [Note("info", "read", "Read.")]).notes
    assert [note.code for note in notes] == ["read", "negative_durations"]


# -- negative, zero, missing ---------------------------------------------------------------------------------------


def test_negative_durations_are_read_as_0_and_counted(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op("a", 10, -1)
    maker.kernel(20, -0.001)
    maker.op("b", 30, 0)
    maker.op("c", 40, 5)
    maker.op("d", 50, None)  # type: ignore[arg-type]
    trace = maker.read(tmp_path)
    assert durations(trace) == [0, 0, 0, 5000, MISSING]
    assert codes(trace) == {"negative_durations": 2, "missing_durations": 1}


def test_negative_duplicates_count_once(tmp_path: Path) -> None:
    maker = TraceMaker()
    for _ in range(3):
        maker.op("a", 10, -1)
    assert codes(maker.read(tmp_path)) == {"exact_duplicates": 2, "negative_durations": 1}


def test_device_events_at_time_0_are_counted_and_out_of_the_extent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens_infer.trace.repairs._LONG_BEFORE_NS", 1)  # these traces begin near 0
    maker = TraceMaker()
    maker.kernel(0, 5)
    maker.kernel(0.0, 9e6)
    maker.span("gpu_memcpy", "copy", 0, 1, process=DEVICE, thread=STREAM)
    maker.op("host", 0, 9e6)
    maker.kernel(1000, 5)
    maker.op("b", 900, 50)
    trace = maker.read(tmp_path)
    assert codes(trace) == {"zero_times": 4}
    assert trace.extent_ns == (900_000, 1_005_000)
    assert trace.event_count == 6


def test_a_trace_whose_clock_begins_at_0_keeps_its_origin(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op("first", 0, 5)
    maker.kernel(0, 7)
    maker.op("last", 900, 50)
    trace = maker.read(tmp_path)
    assert codes(trace) == {}
    assert trace.extent_ns == (0, 950_000)


def test_events_without_a_start_are_counted(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op("a", 10, 5)
    del maker.op("b", 20, 5)["ts"]
    trace = maker.read(tmp_path)
    assert codes(trace) == {"missing_times": 1}
    assert trace.extent_ns == (10_000, 15_000)


def test_only_complete_events_without_a_duration_are_missing_one(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op("a", 10, None)  # type: ignore[arg-type]
    maker.label("b", 20, None)
    maker.event(ph="i", name="mark", pid=1, tid=1, ts=30, s="t")
    maker.event(ph="C", name="counter", pid=1, ts=30, args={"value": 1})
    maker.event(ph="M", name="process_name", pid=1, args={"name": "python"})
    maker.arrow(1, "ac2g", 40, 50)
    trace = maker.read(tmp_path)
    assert codes(trace) == {"missing_durations": 2}
    assert durations(trace) == [MISSING, MISSING, 0, 0, 0, 0, 0]
    assert trace.extent_ns == (10_000, 50_000)


def test_missing_durations_of_duplicates_count_once(tmp_path: Path) -> None:
    maker = TraceMaker()
    for _ in range(2):
        maker.op("a", 10, None)  # type: ignore[arg-type]
    assert codes(maker.read(tmp_path)) == {"exact_duplicates": 1, "missing_durations": 1}


# -- extent --------------------------------------------------------------------------------------------------------


def test_the_extent_reaches_from_the_first_start_to_the_last_end(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.event(ph="M", name="process_name", pid=1, ts=1, args={"name": "python"})
    maker.op("long", 50, 500)
    maker.op("late", 540, 5)
    maker.op("early", -20, 1)
    maker.event(ph="X", cat="cpu_op", name="nowhen", pid=1, tid=1, dur=9e6)
    assert maker.read(tmp_path).extent_ns == (-20_000, 550_000)


def test_the_extent_is_that_of_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens_infer.trace.repairs._BLOCK_ROWS", 3)
    maker = TraceMaker()
    for number in range(11):
        maker.op("a", 100 - 7 * number, 3)
    assert maker.read(tmp_path).extent_ns == (30_000, 103_000)


def test_what_was_clipped_does_not_stretch_the_extent(tmp_path: Path) -> None:
    trace = stream(tmp_path, (10, 1), (20, 1.6e6), (30, 1), (40, 1))
    assert trace.extent_ns == (10_000, 41_000)
    kernels = [(10, 1), (20, 1.6e6), (30, 1), (40, 1)]
    twice = stream(tmp_path, *kernels, *kernels)
    assert codes(twice) == {"exact_duplicates": 4, "clipped_durations": 1}
    assert twice.extent_ns == (10_000, 41_000)


def test_a_trace_without_events_has_no_extent(tmp_path: Path) -> None:
    maker = TraceMaker()
    assert maker.read(tmp_path).extent_ns == (0, 0)
    maker.event(ph="M", name="process_name", pid=1, args={"name": "python"})
    assert maker.read(tmp_path).extent_ns == (0, 0)


# -- overlong ------------------------------------------------------------------------------------------------------


def stream(folder: Path, *kernels: tuple[float, float]) -> Trace:
    """Read kernels of one stream, each with its start and its duration."""
    maker = TraceMaker()
    for start, duration in kernels:
        maker.kernel(start, duration)
    return maker.read(folder)


def test_impossible_durations_are_clipped_to_the_next_start_and_listed(tmp_path: Path) -> None:
    trace = stream(tmp_path, (10, 5), (20, 1.6e6), (32, 5), (40, 5), (50, 2e6), (55, 5))
    assert trace.clipped == {1: ClippedDuration(1_600_000_000, 12_000), 4: ClippedDuration(2_000_000_000, 5_000)}
    assert durations(trace) == [5000, 12_000, 5000, 5000, 5000, 5000]
    text = (
        "Impossible device durations were clipped to the start of the next event on their stream; "
        "device time 3,600.020 ms as recorded, 0.037 ms clipped."
    )
    assert trace.notes == (Note("warning", "clipped_durations", text, 2),)


def test_several_impossible_durations_in_a_row_are_all_clipped(tmp_path: Path) -> None:
    trace = stream(tmp_path, (10, 5), (20, 5), (30, 1.6e6), (32, 1.6e6), (34, 1.6e6), (40, 5), (50, 5), (60, 5))
    assert durations(trace) == [5000, 5000, 2000, 2000, 6000, 5000, 5000, 5000]
    assert list(trace.clipped) == [2, 3, 4]


def test_the_order_in_the_file_does_not_matter(tmp_path: Path) -> None:
    trace = stream(tmp_path, (32, 5), (20, 1.6e6), (40, 5), (10, 5))
    assert trace.clipped == {1: ClippedDuration(1_600_000_000, 12_000)}


def test_each_stream_and_each_device_is_looked_at_alone(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(6):  # collectives of a second on a stream of their own, among short kernels
        maker.kernel(10 + 2e6 * number, 1e6, stream=20)
        maker.span("kernel", "k", 12 + 2e6 * number, 1e6, process=1, thread=STREAM)
    for number in range(100):
        maker.kernel(11 + 100 * number, 5)
    trace = maker.read(tmp_path)
    assert (trace.clipped, trace.notes) == ({}, ())


GENUINE = {
    "overlaps of a few us, as programmatic launches have": [(10 * number, 14) for number in range(1, 30)],
    "one long collective over many short kernels": [(10, 4_999), *((20 + 10 * number, 5) for number in range(400))],
    "just at the limit": [(10, 5 * OVERLONG_FACTOR), *((20 + 10 * number, 5) for number in range(9))],
    "a long kernel, then a pause": [(10, 5), (20, 5), (30, 1e6), (1e6 + 40, 5), (1e6 + 50, 5)],
    "a long kernel that ends with the next one": [(10, 5), (20, 5), (30, 1e6), (1e6 + 25, 5), (1e6 + 50, 5)],
    "the last one of its stream": [(10, 5), (20, 5), (30, 5), (40, 1.6e6)],
    "the last two of their stream": [(10, 5), (20, 5), (30, 5), (40, 1.6e6), (50, 1.6e6)],
    "too few to tell": [(10, 1.6e6), (20, 5)],
    "nothing but durations of 0 and long ones": [(10, 0), (20, 0), (30, 1e6), (40, 0), (50, 1e6)],
}


@pytest.mark.parametrize("kernels", GENUINE.values(), ids=list(GENUINE))
def test_what_may_be_is_not_clipped(tmp_path: Path, kernels: list[tuple[float, float]]) -> None:
    trace = stream(tmp_path, *kernels)
    assert (trace.clipped, trace.notes) == ({}, ())
    assert durations(trace) == [round(duration * 1000) for _, duration in kernels]


def test_a_nanosecond_over_the_limit_is_clipped(tmp_path: Path) -> None:
    trace = stream(tmp_path, (10, 5 * OVERLONG_FACTOR + 0.001), *((20 + 10 * number, 5) for number in range(9)))
    assert trace.clipped == {0: ClippedDuration(5_000_001, 10_000)}


def test_durations_of_0_do_not_make_the_others_look_long(tmp_path: Path) -> None:
    sound = [(100.0 * number, 0.0) for number in range(1, 60)] + [(100.0 * number + 50, 20.0) for number in range(1, 9)]
    assert stream(tmp_path, *sound, (55, 250)).clipped == {}


def test_host_events_and_unstamped_device_events_are_not_clipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens_infer.trace.repairs._LONG_BEFORE_NS", 1)  # these traces begin near 0
    maker = TraceMaker()
    maker.kernel(0, 1.6e6)
    for number in range(1, 9):
        maker.kernel(10 * number, 5)
        maker.op("a", 10 * number, 1.6e6 if number == 3 else 5)
    assert codes(maker.read(tmp_path)) == {"zero_times": 1}


def test_totals_beyond_64_bits_are_told(tmp_path: Path) -> None:
    sound = [(100.0 + 10 * number, 5.0) for number in range(9)]
    trace = stream(tmp_path, *((10.0 + number, 4.5e15) for number in range(4)), *sound)
    assert list(trace.clipped) == [0, 1, 2, 3]
    assert "device time 18,000,000,000,000.0" in text_of(trace, "clipped_durations")


# -- duplicates ----------------------------------------------------------------------------------------------------


def test_events_that_stand_twice_to_the_letter_are_dropped(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps(["step[DECODE bs=8]"] * 3, start=10)
    once = list(maker.events)
    maker.events += once[4:9]
    maker.events += once
    with SliceSizes(chunk=400, search=100, backoff=(0, 40, 400)).in_force():
        trace = maker.read(tmp_path)
    count = len(once)
    assert trace.dropped.tolist() == list(range(count, 2 * count + 5))
    assert codes(trace) == {"exact_duplicates": count + 5}
    assert trace.event_count == count
    assert list(trace.labels) == [row for row, event in enumerate(once) if event["cat"] == "user_annotation"]
    assert trace.rows(Role.DEVICE).tolist() == [row for row, event in enumerate(once) if event["cat"] == "kernel"]


def test_metadata_that_stands_twice_is_no_duplicate(tmp_path: Path) -> None:
    maker = TraceMaker()
    for _ in range(2):
        maker.event(ph="M", name="process_name", pid=1, args={"name": "python"})
    maker.op("a", 10, 5)
    trace = maker.read(tmp_path)
    assert (trace.dropped.tolist(), trace.notes) == ([], ())


EVENT: dict[str, Any] = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 10, "dur": 5}
ALIKE = {
    "another name": json.dumps(EVENT | {"name": "b"}),
    "other arguments": json.dumps(EVENT | {"args": {"x": 1}}),
    "another thread": json.dumps(EVENT | {"tid": 2}),
    "another start": json.dumps(EVENT | {"ts": 10.001}),
    "another layout": json.dumps(EVENT, indent=1),
    "another order": json.dumps(dict(reversed(EVENT.items()))),
}


@pytest.mark.parametrize("other", ALIKE.values(), ids=list(ALIKE))
def test_events_that_only_look_alike_are_kept(tmp_path: Path, other: str) -> None:
    trace = read_trace(write(tmp_path, f'{{"traceEvents": [{json.dumps(EVENT)}, {other}]}}'.encode()))
    assert (trace.dropped.tolist(), trace.notes) == ([], ())


def test_damaged_events_that_stand_twice_are_dropped(tmp_path: Path) -> None:
    text = json.dumps(EVENT).replace('"a"', '"C:\\q"')
    trace = read_trace(write(tmp_path, f'{{"traceEvents": [{text}, {text}]}}'.encode()))
    assert trace.dropped.tolist() == [1]


# -- begin and end -------------------------------------------------------------------------------------------------


def half(phase: str, name: str, ts: float | None, *, thread: int | str = 1, process: int = 1) -> dict[str, Any]:
    fields: dict[str, Any] = {"ph": phase, "name": name, "cat": "user_annotation", "pid": process, "tid": thread}
    return fields if ts is None else fields | {"ts": ts}


def read_halves(folder: Path, *events: dict[str, Any]) -> Trace:
    maker = TraceMaker()
    maker.events += events
    return maker.read(folder)


def test_nested_pairs_last_from_begin_to_end(tmp_path: Path) -> None:
    trace = read_halves(
        tmp_path,
        half("B", "outer", 10),
        half("B", "inner", 20),
        half("B", "innermost", 30.5),
        half("E", "innermost", 40),
        half("E", "inner", 50),
        half("B", "second", 60),
        half("E", "second", 60),
        half("E", "outer", 100),
    )
    assert trace.partners == {0: 7, 1: 4, 2: 3, 5: 6}
    assert durations(trace) == [90_000, 30_000, 9_500, 0, 0, 0, 0, 0]
    assert trace.notes == ()
    assert trace.labels == {0: "outer", 1: "inner", 2: "innermost", 5: "second"}


def test_pairs_are_found_on_each_track_and_in_any_order(tmp_path: Path) -> None:
    trace = read_halves(
        tmp_path,
        half("E", "a", 90, thread=1),
        half("E", "b", 80, thread="1"),
        half("B", "a", 10, thread=1),
        half("B", "b", 20, thread="1"),
        half("B", "c", 30, thread=1, process=2),
        half("E", "c", 40, thread=1, process=2),
    )
    assert trace.partners == {2: 0, 3: 1, 4: 5}
    assert durations(trace) == [0, 0, 80_000, 60_000, 10_000, 0]
    assert trace.notes == ()


UNPAIRED: dict[str, tuple[list[dict[str, Any]], dict[int, int], int]] = {
    "an end before any begin": ([half("E", "x", 5), half("B", "a", 10), half("E", "a", 20)], {1: 2}, 1),
    "ends before any begin": (
        [half("E", "x", 5), half("E", "y", 6), half("B", "a", 10), half("E", "a", 20)],
        {2: 3},
        2,
    ),
    "a begin after all ends": ([half("B", "a", 10), half("E", "a", 20), half("B", "x", 30)], {0: 1}, 1),
    "an outer begin that never ends": ([half("B", "x", 5), half("B", "a", 10), half("E", "a", 20)], {1: 2}, 1),
    "only a begin": ([half("B", "x", 5)], {}, 1),
    "only an end": ([half("E", "x", 5)], {}, 1),
    "an end on another thread": ([half("B", "x", 5), half("E", "x", 9, thread=2)], {}, 2),
    "an end in another process": ([half("B", "x", 5), half("E", "x", 9, process=2)], {}, 2),
    "an end before its begin": ([half("B", "x", 9), half("E", "x", 5)], {}, 2),
    "a begin without a time": ([half("B", "x", None), half("B", "a", 10), half("E", "a", 20)], {1: 2}, 1),
    "an open begin on the thread before": (
        [half("B", "x", 5, thread=1), half("B", "a", 10, thread=2), half("E", "a", 20, thread=2)],
        {1: 2},
        1,
    ),
}


@pytest.mark.parametrize(("events", "partners", "unpaired"), UNPAIRED.values(), ids=list(UNPAIRED))
def test_halves_without_their_counterpart_last_no_time(
    tmp_path: Path, events: list[dict[str, Any]], partners: dict[int, int], unpaired: int
) -> None:
    trace = read_halves(tmp_path, *events)
    assert trace.partners == partners
    assert codes(trace) == {"unpaired_begin_end": unpaired}
    assert [row for row, duration in enumerate(durations(trace)) if duration] == list(partners)


def test_equal_ends_of_nested_frames_are_no_duplicates(tmp_path: Path) -> None:
    end = {"ph": "E", "pid": 1, "tid": 1, "ts": 50}
    trace = read_halves(tmp_path, half("B", "outer", 10), half("B", "inner", 20), end, end)
    assert (trace.dropped.tolist(), trace.notes) == ([], ())
    assert durations(trace) == [40_000, 30_000, 0, 0]


def test_device_work_in_halves_lasts_too(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.event(ph="B", cat="kernel", name="k", pid=DEVICE, tid=STREAM, ts=10, args={"correlation": 3})
    maker.event(ph="E", cat="kernel", name="k", pid=DEVICE, tid=STREAM, ts=17)
    trace = maker.read(tmp_path)
    assert trace.rows(Role.DEVICE).tolist() == [0]
    assert durations(trace) == [7000, 0]
    assert trace.extent_ns == (10_000, 17_000)


def test_halves_that_stand_twice_are_dropped_in_pairs(tmp_path: Path) -> None:
    begin, end = half("B", "a", 10), half("E", "a", 20)
    trace = read_halves(tmp_path, begin, end, half("B", "b", 30), half("E", "b", 40), begin, end)
    kept = [row for row in range(6) if row not in trace.dropped.tolist()]
    assert len(kept) == 4
    assert codes(trace) == {"exact_duplicates": 2}
    assert {durations(trace)[row] for row in kept} == {0, 10_000}
    assert set(trace.partners) < set(kept)
    assert set(trace.partners.values()) < set(kept)
