"""Chosen events -> smaller traces that open in Perfetto: the events' own bytes, in one pass over the source."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from tracelens_infer.trace.columns import Role, RowArray, Trace
from tracelens_infer.trace.reader import SliceEvents, iter_slice_events

__all__ = ["TraceOutput", "WrittenTraces", "write_traces"]

_BUFFER_BYTES = 256 << 10  # an output holds at most this much before it is compressed
_ALL_BUFFERS_BYTES = 32 << 20  # all outputs together: thousands of single steps are written in one pass
_LEVEL = 1  # 3 ms where gzip's level 9 takes 154 ms, for 1.5 times the size
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"  # no name, no time: equal input gives an equal file
_MAX_ORIGINALS = 20  # texts of repaired events that are kept for the manifest


@dataclass(frozen=True, slots=True)
class TraceOutput:
    """One trace to write: where, and which rows of the source (ascending)."""

    path: Path
    rows: RowArray


@dataclass(frozen=True, slots=True)
class WrittenTraces:
    """How many events went into each output (metadata not counted), and the first texts of repaired ones."""

    events: tuple[int, ...]
    repaired: int
    originals: tuple[str, ...]


def write_traces(trace: Trace, outputs: Sequence[TraceOutput]) -> WrittenTraces:
    """Write every output in one pass. Each gets the header's keys, all metadata (once) and its own events.

    Events keep their bytes, except those that were repaired: they are written as they were understood.
    """
    buffers = _Buffers()
    files = [_GzipFile(output.path, buffers) for output in outputs]
    for file in files:
        file.write(trace.header.prefix + b"[\n")
        file.write(b",\n".join(trace.metadata_texts))
        file.empty = not trace.metadata_texts
    chosen = [_without_metadata(trace, output.rows) for output in outputs]
    takers = _takers(trace, chosen)
    last_slice: dict[int, int] = {}
    for taken in sorted(takers):
        last_slice |= dict.fromkeys(takers[taken], taken)
    repairs = _Repairs(trace)
    written = [0] * len(outputs)
    for part in iter_slice_events(trace, takers.__contains__):
        for number in takers[part.number]:
            rows = part.among(chosen[number])
            repairs.note(rows, part)
            files[number].write_events([repairs.text(row, part) for row in rows])
            written[number] += len(rows)
            if last_slice[number] == part.number:
                files[number].close(b"\n]" + trace.header.suffix)
    for number, file in enumerate(files):
        if number not in last_slice:
            file.close(b"\n]" + trace.header.suffix)
    return WrittenTraces(tuple(written), len(repairs.rows), tuple(repairs.originals))


def _without_metadata(trace: Trace, rows: RowArray) -> RowArray:
    """All metadata goes into every output anyway."""
    kept: RowArray = rows[trace.lanes.roles[trace.columns.lane[rows]] != Role.METADATA]
    return kept


def _takers(trace: Trace, chosen: Sequence[RowArray]) -> dict[int, list[int]]:
    """Number of a slice -> the outputs that take events from it."""
    takers: dict[int, list[int]] = {}
    for number, rows in enumerate(chosen):
        cut = np.searchsorted(rows, trace.slices.first_row)
        for taken in np.flatnonzero(cut[1:] > cut[:-1]).tolist():
            takers.setdefault(taken, []).append(number)
    return takers


class _Repairs:
    """Texts of repaired events: those that are written, and the first of those that stood in the file."""

    def __init__(self, trace: Trace) -> None:
        self._clipped = trace.clipped
        self.rows: set[int] = set()
        self.originals: list[str] = []

    def text(self, row: int, part: SliceEvents) -> bytes:
        """An event as it is written."""
        clipped = self._clipped.get(row) if self._clipped else None
        return part.text(row) if clipped is None else _with_duration(part.text(row), clipped.clipped_ns)

    def note(self, rows: list[int], part: SliceEvents) -> None:
        """Count which of the rows were repaired."""
        if not self._clipped and not part.originals:
            return
        for row in rows:
            if row in self.rows or (row not in self._clipped and row not in part.originals):
                continue
            self.rows.add(row)
            if len(self.originals) < _MAX_ORIGINALS:
                self.originals.append((part.originals.get(row) or part.text(row)).decode("utf-8", "replace"))


def _with_duration(text: bytes, duration_ns: int) -> bytes:
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    fields["dur"] = msgspec.Raw(b"%d.%03d" % divmod(duration_ns, 1000))
    return msgspec.json.encode(fields)


class _Buffers:
    """The text that outputs hold before it is compressed, all of them together."""

    def __init__(self) -> None:
        self.holders: dict[_GzipFile, None] = {}
        self.size = 0

    def grow(self, file: _GzipFile, size: int) -> None:
        self.holders[file] = None
        self.size += size
        if self.size > _ALL_BUFFERS_BYTES:
            for holder in list(self.holders):
                holder.flush()

    def release(self, file: _GzipFile, size: int) -> None:
        self.holders.pop(file, None)
        self.size -= size


class _GzipFile:
    """One gzip member, written in parts without holding a compressor or an open file between them.

    Each part ends with a full flush on a byte border, so parts concatenate to one deflate stream: some viewers read
    only the first member of a file, and thousands of compressors would not fit in memory.
    """

    def __init__(self, path: Path, buffers: _Buffers) -> None:
        self.path = path
        self.empty = True
        self._buffer = bytearray()
        self._buffers = buffers
        self._crc = 0
        self._size = 0
        path.write_bytes(_GZIP_HEADER)

    def write(self, text: bytes) -> None:
        self._buffer += text
        self._buffers.grow(self, len(text))
        if len(self._buffer) > _BUFFER_BYTES:
            self.flush()

    def write_events(self, texts: list[bytes]) -> None:
        self.write((b"" if self.empty else b",\n") + b",\n".join(texts))
        self.empty = False

    def flush(self) -> None:
        if not self._buffer:
            return
        from isal import isal_zlib

        compressor = isal_zlib.compressobj(_LEVEL, wbits=-15)
        packed = compressor.compress(self._buffer) + compressor.flush(isal_zlib.Z_FULL_FLUSH)
        self._crc = zlib.crc32(self._buffer, self._crc)
        self._size += len(self._buffer)
        self._append(packed)
        self._buffers.release(self, len(self._buffer))
        self._buffer = bytearray()

    def close(self, ending: bytes) -> None:
        self.write(ending)
        self.flush()
        last_block = zlib.compressobj(wbits=-15).flush()
        self._append(last_block + self._crc.to_bytes(4, "little") + (self._size & 0xFFFFFFFF).to_bytes(4, "little"))

    def _append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)
