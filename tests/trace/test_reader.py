"""Bytes -> columns and back: any event, in any layout, cut into slices of any size, is read the same."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.layouts import (
    Rendered,
    SliceSizes,
    assert_lined_up,
    expected_rows,
    render,
    rendered_traces,
    rows_of,
    slice_sizes,
    texts_of,
    write,
)
from tracelens_infer.errors import TracelensError
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


def check_whole(folder: Path, rendered: Rendered, sizes: SliceSizes, *, zipped: bool) -> None:
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
    if rendered.spans or rendered.closed:
        check_whole(folder, rendered, sizes, zipped=zipped)
