"""What is written: each event's own bytes, the header and the metadata around them, in one gzip member a file."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.make_trace import TraceMaker, event_texts
from tests.trace.layouts import Rendered, SliceSizes, parse, rendered_traces, slice_sizes, write
from tracelens_infer.errors import InputError
from tracelens_infer.trace import reader, writer
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.reader import read_trace
from tracelens_infer.trace.writer import TraceOutput, WrittenTraces, write_traces

SMALL = SliceSizes(chunk=300, search=100, backoff=(0, 40, 400))

ONE_LINE = '{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 1, "tid": 1, "ts": %s, "dur": 2}'
PROCESS = '{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}'
THREAD = '{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}}'


def numbered(count: int) -> list[str]:
    return [ONE_LINE % (f"op{number}", number * 10 + 5) for number in range(count)]


def trace_file(folder: Path, *events: str, before: str = "{", after: str = "}") -> Path:
    return write(folder, f'{before}"traceEvents": [{", ".join(events)}]{after}'.encode())


def write_rows(trace: Trace, folder: Path, *chosen: list[int]) -> tuple[WrittenTraces, list[Path]]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.json.gz" for number in range(len(chosen))]
    outputs = [TraceOutput(path, np.array(rows, dtype=np.intp)) for path, rows in zip(paths, chosen, strict=True)]
    return write_traces(trace, outputs), paths


def only_member(path: Path) -> bytes:
    """What the file unpacks to, if it is exactly one gzip member."""
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(path.read_bytes())
    assert unpacker.eof
    assert unpacker.unused_data == b""
    return text


def read_json(path: Path) -> Any:  # noqa: ANN401 - JSON
    return json.loads(only_member(path))


def names_in(path: Path) -> list[str]:
    return [event["name"] for event in read_json(path)["traceEvents"]]


# -- events --------------------------------------------------------------------------------------------------------


def test_events_are_written_byte_for_byte(tmp_path: Path) -> None:
    texts = [
        '{"ph":"X" ,  "cat":"cpu_op","name":"\\u00fc \\/ ü","pid":1,"tid":"a b","ts":1.50,"dur":2e0}',
        (
            '{\n    "ph": "X", "cat": "kernel", "name": "k<4, float(*)[4]>", "pid": 0, "tid": 7,\n'
            '    "ts": 5e1, "dur": 1.000,\n    "args": {\n      "correlation": 1, "big": 1234567890123456789012345\n'
            "    }\n  }"
        ),
        '{"name":"twice","name":"the last counts","ph":"i","pid":1,"tid":1,"ts":1700000000000000.123,"s":"t"}',
    ]
    trace = read_trace(trace_file(tmp_path, *texts))
    written, (path,) = write_rows(trace, tmp_path / "out", [0, 1, 2])
    assert only_member(path).decode() == '{"traceEvents": [\n' + ",\n".join(texts) + "\n]}"
    assert written == WrittenTraces((3,), 0, ())


@given(rendered=rendered_traces(min_size=1), sizes=slice_sizes, data=st.data())
@settings(max_examples=60)
def test_whatever_is_chosen_is_written_as_it_stood(
    tmp_path_factory: pytest.TempPathFactory, rendered: Rendered, sizes: SliceSizes, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("written")
    path = write(folder, rendered.data)
    with sizes.in_force():
        trace = read_trace(path)
        assume(not trace.clipped)
        rows = st.sets(st.integers(0, len(trace.columns) - 1)).map(sorted)
        chosen = data.draw(st.lists(rows, min_size=1, max_size=3), label="rows")
        written, paths = write_rows(trace, folder / "out", *chosen)
    kept = [[row for row in rows if parse(rendered.texts[row])["ph"] != "M"] for rows in chosen]
    assert written == WrittenTraces(tuple(map(len, kept)), 0, ())
    for path, wanted in zip(paths, kept, strict=True):
        json.loads(only_member(path))
        metadata = [text.decode() for text in trace.metadata_texts]
        assert event_texts(path) == metadata + [rendered.texts[row].decode() for row in wanted]


def test_outputs_that_overlap_are_written_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    one_pass = reader.iter_slice_events

    def counted(*arguments: Any) -> Any:  # noqa: ANN401 - passed on
        passes.append(1)
        return one_pass(*arguments)

    monkeypatch.setattr(writer, "iter_slice_events", counted)
    with SMALL.in_force():
        trace = read_trace(trace_file(tmp_path, *numbered(60)))
        assert len(trace.slices) > 10
        chosen = [list(range(60)), list(range(10, 30)), list(range(20, 45)), [0, 59], [17], []]
        written, paths = write_rows(trace, tmp_path / "out", *chosen)
    assert len(passes) == 1
    assert written.events == (60, 20, 25, 2, 1, 0)
    assert [names_in(path) for path in paths] == [[f"op{row}" for row in rows] for rows in chosen]


def test_only_the_slices_that_hold_chosen_events_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    one_pass = reader.iter_slice_events

    def listening(trace: Trace, wanted: Any) -> Any:  # noqa: ANN401 - passed on
        for part in one_pass(trace, wanted):
            asked.append(part.number)
            yield part

    monkeypatch.setattr(writer, "iter_slice_events", listening)
    with SMALL.in_force():
        trace = read_trace(trace_file(tmp_path, *numbered(60)))
        write_rows(trace, tmp_path / "out", [30], [30, 31])
    first = trace.slices.first_row
    holding = {int(np.searchsorted(first, row, side="right")) - 1 for row in (30, 31)}
    assert set(asked) == holding


def test_an_output_of_no_events_is_a_valid_trace(tmp_path: Path) -> None:
    plain = read_trace(trace_file(tmp_path, *numbered(2), before='{"schemaVersion": 1, '))
    written, (path,) = write_rows(plain, tmp_path / "out", [])
    assert read_json(path) == {"schemaVersion": 1, "traceEvents": []}
    assert written == WrittenTraces((0,), 0, ())
    named = read_trace(trace_file(tmp_path, PROCESS, *numbered(2)))
    written, (path,) = write_rows(named, tmp_path / "out", [])
    assert event_texts(path) == [PROCESS]
    assert written.events == (0,)


def test_no_outputs_are_no_work(tmp_path: Path) -> None:
    assert write_traces(read_trace(trace_file(tmp_path, *numbered(2))), []) == WrittenTraces((), 0, ())


def test_a_file_that_changed_since_it_was_read_is_refused(tmp_path: Path) -> None:
    path = trace_file(tmp_path, *numbered(3))
    trace = read_trace(path)
    trace_file(tmp_path, *numbered(4))
    with pytest.raises(InputError, match="changed while it was read"):
        write_rows(trace, tmp_path / "out", [0])


# -- repaired events -----------------------------------------------------------------------------------------------


def overlong(count: int) -> TraceMaker:
    """Make kernels of 1 us, every 2 us, of which the first ``count`` odd ones are said to last 1 s."""
    maker = TraceMaker()
    for number in range(4 * count + 4):
        long = number % 2 == 1 and number < 2 * count
        maker.kernel(1 + 2 * number, 1e6 if long else 1, correlation=number, name=f"k{number}")
    return maker


def test_a_clipped_event_is_written_as_it_was_clipped_and_its_text_is_kept(tmp_path: Path) -> None:
    maker = overlong(1)
    trace = maker.read(tmp_path)
    assert list(trace.clipped) == [1]
    written, (path,) = write_rows(trace, tmp_path / "out", [0, 1, 2])
    original = json.dumps(maker.events[1])
    assert written == WrittenTraces((3,), 1, (original,))
    events = read_json(path)["traceEvents"]
    assert events == [maker.events[0], maker.events[1] | {"dur": 2.0}, maker.events[2]]
    assert list(events[1]) == list(maker.events[1])
    assert b'"dur":2.000' in only_member(path)
    assert read_trace(path).clipped == {}


def test_a_salvaged_event_is_written_as_it_was_understood_and_its_text_is_kept(tmp_path: Path) -> None:
    damaged = '{"ph": "X", "cat": "cpu_op", "name": "C:\\q", "pid": 1, "tid": 1, "ts": "5", "dur": NaN}'
    sound = numbered(2)
    trace = read_trace(trace_file(tmp_path, sound[0], damaged, sound[1]))
    written, (path,) = write_rows(trace, tmp_path / "out", [0, 1, 2])
    assert written == WrittenTraces((3,), 1, (damaged,))
    first, mended, last = event_texts(path)
    assert [first, last] == sound
    assert json.loads(mended) == {"ph": "X", "cat": "cpu_op", "name": "C:\\q", "pid": 1, "tid": 1, "ts": 5}


def test_of_an_event_that_was_salvaged_and_clipped_the_text_of_the_file_is_kept(tmp_path: Path) -> None:
    maker = overlong(1)
    text = maker.text().replace('"k1"', '"C:\\q"').encode()
    trace = read_trace(write(tmp_path, text))
    assert list(trace.clipped) == [1]
    written, (path,) = write_rows(trace, tmp_path / "out", [0, 1])
    assert written.repaired == 1
    assert written.originals == (json.dumps(maker.events[1]).replace('"k1"', '"C:\\q"'),)
    assert read_json(path)["traceEvents"][1] == maker.events[1] | {"name": "C:\\q", "dur": 2}


def test_bytes_of_an_original_that_are_no_utf8_are_replaced(tmp_path: Path) -> None:
    text = (ONE_LINE % ("NAME", 5)).encode().replace(b"NAME", b"\xff")
    trace = read_trace(write(tmp_path, b'{"traceEvents": [' + text + b"]}"))
    written, (path,) = write_rows(trace, tmp_path / "out", [0])
    assert written.originals == (ONE_LINE % ("\ufffd", 5),)
    assert names_in(path) == ["\ufffd"]


def test_all_repairs_are_counted_the_first_twenty_are_kept_and_none_twice(tmp_path: Path) -> None:
    maker = overlong(25)
    with SMALL.in_force():
        trace = maker.read(tmp_path)
        assert len(trace.clipped) == 25
        everything = list(range(len(maker.events)))
        written, _ = write_rows(trace, tmp_path / "out", everything, everything[:10], everything[5:])
    originals = [json.dumps(maker.events[row]) for row in sorted(trace.clipped)]
    assert written.repaired == 25
    assert list(written.originals) == originals[:20]


def test_repairs_outside_of_what_is_written_do_not_count(tmp_path: Path) -> None:
    maker = overlong(3)
    written, _ = write_rows(maker.read(tmp_path), tmp_path / "out", [0, 2, 3])
    assert (written.repaired, written.originals) == (1, (json.dumps(maker.events[3]),))


# -- header and metadata -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """What stands around the events of a source, and what around those of an output."""

    before: str
    after: str
    written_before: str
    written_after: str


BARE = ('{"traceEvents": ', "}")
HEADERS = {
    "before the events": Header(
        '{"a": 1, "b": {"c": [2]}, "traceEvents": [', "]}", '{"a": 1, "b": {"c": [2]}, "traceEvents": ', "}"
    ),
    "after the events": Header(
        '{"traceEvents": [', '], "a": [1, 2], "b": "]}"}\n', '{"traceEvents": ', ', "a": [1, 2], "b": "]}"}'
    ),
    "on both sides": Header(
        '{\n "a" : 1,\n "traceEvents": [', '],\n "b" : 2\n}', '{\n "a" : 1,\n "traceEvents": ', ',\n "b" : 2\n}'
    ),
    "a bare list": Header("[", "]", *BARE),
    "a bare list that is not closed": Header("[", "", *BARE),
    "an object that is not closed": Header('{"a": 1, "traceEvents": [', "]", '{"a": 1, "traceEvents": ', "}"),
    "a comma too many": Header('{"a": 1, "traceEvents": [', "],}", '{"a": 1, "traceEvents": ', "}"),
    "no number": Header('{"a": NaN, "b": 1, "traceEvents": [', "]}", '{"a": null, "b": 1, "traceEvents": ', "}"),
    "damage after the events": Header('{"a": 1, "traceEvents": [', '], "b": }', '{"a": 1, "traceEvents": ', "}"),
    "damage before the events": Header('{"a" 1, {{ "traceEvents": [', "]}", *BARE),
    "text after its end": Header('{"a": 1, "traceEvents": [', "]}\nstray", '{"a": 1, "traceEvents": ', "}"),
    "a second list": Header(
        '{"a": 1, "traceEvents": [', '], "b": 2, "traceEvents": []}', '{"a": 1, "b": 2, "traceEvents": ', "}"
    ),
    "a byte-order mark": Header('\ufeff{"a": 1, "traceEvents": [', "]}", '{"a": 1, "traceEvents": ', "}"),
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=list(HEADERS))
def test_the_keys_around_the_events_are_kept(tmp_path: Path, header: Header) -> None:
    events = numbered(3)
    trace = read_trace(write(tmp_path, (header.before + ", ".join(events) + header.after).encode()))
    written, (path,) = write_rows(trace, tmp_path / "out", [0, 2])
    text = only_member(path).decode()
    assert text == f"{header.written_before}[\n{events[0]},\n{events[2]}\n]{header.written_after}"
    json.loads(text)
    assert written.events == (2,)


def test_metadata_goes_into_every_output_once(tmp_path: Path) -> None:
    op0, op1, op2 = numbered(3)
    trace = read_trace(trace_file(tmp_path, PROCESS, op0, PROCESS, THREAD, op1, THREAD, op2, PROCESS))
    rows = [[1, 6], [0, 1, 2, 3, 4, 5, 6, 7], [0, 2], []]
    written, paths = write_rows(trace, tmp_path / "out", *rows)
    assert written.events == (2, 3, 0, 0)
    events = [[op0, op2], [op0, op1, op2], [], []]
    assert [event_texts(path) for path in paths] == [[PROCESS, THREAD, *chosen] for chosen in events]


def test_metadata_of_the_whole_file_goes_into_an_output_of_its_first_event(tmp_path: Path) -> None:
    events = numbered(40)
    with SMALL.in_force():
        trace = read_trace(trace_file(tmp_path, *events, PROCESS))
        _, (path,) = write_rows(trace, tmp_path / "out", [0])
    assert event_texts(path) == [PROCESS, events[0]]


# -- gzip ----------------------------------------------------------------------------------------------------------


def test_a_large_output_is_one_member_and_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    events = numbered(12_000)
    path = trace_file(tmp_path, *events)
    trace = read_trace(path)
    everything = list(range(len(events)))
    _, (first,) = write_rows(trace, tmp_path / "first", everything)
    text = only_member(first)
    assert len(text) > 3 * writer._BUFFER_BYTES
    assert text == gzip.decompress(first.read_bytes())
    assert json.loads(text) == {"traceEvents": [json.loads(event) for event in events]}
    _, (second,) = write_rows(read_trace(path), tmp_path / "second", everything)
    assert first.read_bytes() == second.read_bytes()


def test_thousands_of_outputs_hold_little_and_need_no_open_file_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs take from the source in turn, so that each holds some text for as long as the pass lasts."""
    monkeypatch.setattr(writer, "_ALL_BUFFERS_BYTES", 20_000)
    held: list[int] = []
    all_files: list[writer._GzipFile] = []
    made, grown = writer._GzipFile.__init__, writer._Buffers.grow

    def making(self: writer._GzipFile, *arguments: Any) -> None:  # noqa: ANN401 - passed on
        all_files.append(self)
        made(self, *arguments)

    def growing(self: writer._Buffers, file: writer._GzipFile, size: int) -> None:
        grown(self, file, size)
        held.append(sum(len(each._buffer) for each in all_files))
        assert self.size == held[-1]

    monkeypatch.setattr(writer._GzipFile, "__init__", making)
    monkeypatch.setattr(writer._Buffers, "grow", growing)
    count, rounds = 2000, 3
    events = numbered(count * rounds)
    with SliceSizes(chunk=5000).in_force():
        trace = read_trace(trace_file(tmp_path, THREAD, *events))
        rows = [[1 + number + count * turn for turn in range(rounds)] for number in range(count)]
        written, paths = write_rows(trace, tmp_path / "out", *rows)
    assert len(all_files) == count
    assert max(held) <= 20_000
    assert sum(len(each._buffer) for each in all_files) == 0
    assert written.events == (rounds,) * count
    for number in (0, 1, 777, count - 1):
        assert event_texts(paths[number]) == [THREAD, *(events[number + count * turn] for turn in range(rounds))]
    for path in paths:
        read_json(path)
