"""Bytes -> columns and back: any event, in any layout, cut into slices of any size, is read the same."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.trace.layouts import (
    Rendered,
    SliceSizes,
    assert_lined_up,
    expected_rows,
    rendered_traces,
    rows_of,
    slice_sizes,
    texts_of,
    write,
)
from tracelens_infer.errors import UnreadableTraceError
from tracelens_infer.notes import Note
from tracelens_infer.trace import reader
from tracelens_infer.trace.columns import Trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module", autouse=True)
def _as_recorded() -> Iterator[None]:
    """Repairs change columns: their own tests are elsewhere."""

    def untouched(trace: Trace, notes: tuple[Note, ...]) -> Trace:
        return replace(trace, notes=tuple(notes))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "repair", untouched)
        yield


def read_or_none(path: Path) -> Trace | None:
    """The trace, or None where there is none; any error but that is a bug."""
    try:
        return reader.read_trace(path)
    except UnreadableTraceError:
        return None


def check_whole(folder: Path, rendered: Rendered, sizes: SliceSizes, *, zipped: bool) -> None:
    assume(rendered.spans or rendered.closed)
    data = gzip.compress(rendered.data, 1) if zipped else rendered.data
    path = write(folder, data)
    with sizes.in_force():
        trace = reader.read_trace(path)
        texts = texts_of(trace)
    assert texts == rendered.texts
    assert rows_of(trace) == expected_rows(rendered.texts)
    metadata = [text for text, row in zip(texts, rows_of(trace), strict=True) if row.lane.phase == "M"]
    assert list(trace.metadata_texts) == list(dict.fromkeys(metadata))
    assert [note.code for note in trace.notes] == ([] if rendered.closed else ["missing_bracket"])
    assert trace.size_bytes == len(rendered.data)


@given(rendered=rendered_traces(), sizes=slice_sizes, zipped=st.booleans())
@settings(max_examples=150)
def test_a_sound_trace_is_read_as_it_was_written(
    folder: Path, rendered: Rendered, sizes: SliceSizes, zipped: bool
) -> None:
    check_whole(folder, rendered, sizes, zipped=zipped)


@given(rendered=rendered_traces(min_size=1), sizes=slice_sizes, data=st.data())
@settings(max_examples=150)
def test_of_a_trace_that_was_cut_off_every_whole_event_is_kept(
    folder: Path, rendered: Rendered, sizes: SliceSizes, data: st.DataObject
) -> None:
    size = data.draw(st.integers(0, len(rendered.data)), label="cut at")
    kept = rendered.after_cut(size)
    path = write(folder, rendered.data[:size])
    with sizes.in_force():
        trace = read_or_none(path)
        if trace is None:
            assert not kept
            return
        texts = texts_of(trace)
    assert texts == kept
    assert rows_of(trace) == expected_rows(kept)
    told = {note.code for note in trace.notes}
    if not rendered.closed:
        assert told <= {"truncated", "missing_bracket"}
        assert told
    elif size < len(rendered.data.rstrip()):
        assert told & {"truncated", "missing_bracket", "damaged_header"}


def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """A few bytes flipped, deleted, inserted or repeated."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, max(0, len(changed) - 1)))
        end = at + draw(st.integers(1, 4) | st.integers(1, 300))
        kind = draw(st.sampled_from(["flip", "delete", "insert", "repeat", "swap"]))
        if kind == "flip" and at < len(changed):
            changed[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "delete":
            del changed[at:end]
        elif kind == "insert":
            changed[at:at] = draw(st.binary(max_size=4) | st.sampled_from(SNIPPETS))
        elif kind == "repeat":
            changed[at:at] = changed[at:end]
        else:
            changed[at:end] = changed[at:end][::-1]
    return bytes(changed)


SNIPPETS = [
    *(
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b"]}",
        b"}}",
        b"},{",
        b",]",
        b"[[[[",
        b"\x00" * 9,
        b"\\",
        b"NaN",
        b"-Infinity",
    ),
    *(
        b'"traceEvents": [',
        b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1}',
        b'{"ph":"X","ts":5},',
        b"\xff\xfe",
        b"null,",
    ),
    *(b"1e999", b"123456789012345678901234567890", b'\\ud800"', b'"ts": "7.5",', b'"ph": 1, ', b'"pid": true, '),
]


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    rendered = draw(rendered_traces(min_size=1))
    return mutated(draw, rendered.data)


def check_any_bytes(folder: Path, data: bytes, sizes: SliceSizes) -> None:
    """No error but our own; both passes agree; the same bytes give the same trace."""
    path = write(folder, data)
    with sizes.in_force():
        trace = read_or_none(path)
        if trace is None:
            return
        assert_lined_up(trace)
        again = reader.read_trace(path)
    assert rows_of(again) == rows_of(trace)
    assert (again.notes, again.header, again.metadata) == (trace.notes, trace.header, trace.metadata)


@given(data=damaged_files(), sizes=slice_sizes)
@settings(max_examples=250)
def test_a_damaged_trace_is_read_alike_by_both_passes(folder: Path, data: bytes, sizes: SliceSizes) -> None:
    check_any_bytes(folder, data, sizes)


FRONTS = [
    b"",
    b"[",
    b"{",
    b'{"traceEvents": [',
    b'{"traceEvents": [{"ph": "X", "ts": 1},',
    b"\xef\xbb\xbf[{",
    b"\x1f\x8b\x08",
]


@given(front=st.sampled_from(FRONTS), rest=st.lists(st.binary(max_size=20) | st.sampled_from(SNIPPETS), max_size=12))
@settings(max_examples=200)
def test_any_bytes_end_in_a_trace_or_in_one_of_our_errors(folder: Path, front: bytes, rest: list[bytes]) -> None:
    check_any_bytes(folder, front + b"".join(rest), SliceSizes(chunk=16))


@pytest.mark.slow
@given(data=damaged_files(), sizes=slice_sizes)
@settings(max_examples=3000)
def test_many_damaged_traces_are_read_alike_by_both_passes(folder: Path, data: bytes, sizes: SliceSizes) -> None:
    check_any_bytes(folder, data, sizes)


@pytest.mark.slow
@given(rendered=rendered_traces(), sizes=slice_sizes, zipped=st.booleans())
@settings(max_examples=2000)
def test_many_sound_traces_are_read_as_they_were_written(
    folder: Path, rendered: Rendered, sizes: SliceSizes, zipped: bool
) -> None:
    check_whole(folder, rendered, sizes, zipped=zipped)
