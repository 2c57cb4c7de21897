"""From names to bytes: which files are meant, what they unpack to, and where that stops."""

from __future__ import annotations

import builtins
import contextlib
import gzip
import io
import os
import random
import struct
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.trace.layouts import SliceSizes, write
from tracelens_infer.errors import DecompressionLimitError, TracelensError, UnreadableTraceError
from tracelens_infer.trace import slices, source
from tracelens_infer.trace.losses import Losses
from tracelens_infer.trace.reader import read_trace
from tracelens_infer.trace.source import CHUNK_BYTES, file_stamp, find_traces, iter_chunks, local_file, trace_stem

TRACE = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 5, "dur": 2}]}'
NOISE = random.Random(1).randbytes(40_000).hex().encode()  # compresses to half: unpacks over many reads
LONG = NOISE * 40  # more than a chunk


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)
    return archive.getvalue()


def zst(data: bytes, *, checksum: bool = False, sized: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=sized).compress(data)


def skippable(data: bytes) -> bytes:
    return b"\x53\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


def swapped(data: bytes, at: int, mask: int = 0xFF) -> bytes:
    changed = bytearray(data)
    changed[at] ^= mask
    return bytes(changed)


def unpack(path: Path, *, max_bytes: int | None = None) -> tuple[bytes, dict[str, int | None]]:
    """What the file unpacks to, and where what was lost."""
    losses = Losses()
    data = b"".join(iter_chunks(path, losses, max_bytes))
    return data, {note.code: note.first_offset_bytes for note in losses.notes()}


# -- compression ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """A file, what it unpacks to, and what is said about it."""

    data: bytes
    unpacked: bytes
    code: str | None = None


def member(flags: int, extra: bytes = b"") -> bytes:
    """A gzip member with these parts in its header."""
    raw = gzipped(NOISE)
    return raw[:3] + bytes([flags]) + raw[4:10] + extra + raw[10:]


HEADER = b"\x1f\x8b\x08\x02\x00\x00\x00\x00\x00\xff"
SIZE = len(NOISE)
SOUND = {
    "plain": Packed(LONG, LONG),
    "empty": Packed(b"", b""),
    "two bytes": Packed(b"[]", b"[]"),
    "gzip": Packed(gzipped(LONG), LONG),
    "gzip of nothing": Packed(gzipped(b""), b""),
    "gzip members": Packed(gzipped(NOISE) + gzipped(b"") + gzipped(NOISE[:7]), NOISE + NOISE[:7]),
    "thousands of gzip members": Packed(
        b"".join(gzipped(b"%06d\n" % i) for i in range(3000)), b"".join(b"%06d\n" % i for i in range(3000))
    ),
    "gzip, then zeros": Packed(gzipped(NOISE) + bytes(1000), NOISE),
    "gzip, then more zeros than are read at once": Packed(gzipped(NOISE) + bytes(1_200_000), NOISE),
    "zeros between gzip members": Packed(gzipped(NOISE) + bytes(513) + gzipped(b"end"), NOISE + b"end"),
    "gzip, then garbage": Packed(gzipped(NOISE) + b"garbage", NOISE, "trailing_garbage"),
    "gzip, then one byte": Packed(gzipped(NOISE) + b"\x1f", NOISE, "trailing_garbage"),
    "gzip, then zeros and garbage": Packed(gzipped(NOISE) + bytes(9) + b"garbage", NOISE, "trailing_garbage"),
    "gzip with a name": Packed(member(8, b"trace.json\0"), NOISE),
    "gzip with a comment": Packed(member(16, b"comment\0"), NOISE),
    "gzip with extra fields": Packed(member(4, b"\x03\0abc"), NOISE),
    "gzip with all of them": Packed(member(28, b"\x03\0abcname\0comment\0"), NOISE),
    "gzip with a checksum of its header": Packed(
        HEADER + (zlib.crc32(HEADER) & 0xFFFF).to_bytes(2, "little") + gzipped(NOISE)[10:], NOISE
    ),
    # isal does not look at the reserved flags, zlib refuses them: more is read, and nothing wrong.
    "gzip with reserved flags": Packed(member(0xE0), NOISE),
    "zip": Packed(zipped(("trace.json", LONG)), LONG),
    "zip, stored": Packed(zipped(("trace.json", LONG), method=zipfile.ZIP_STORED), LONG),
    "zip, bzip2": Packed(zipped(("trace.json", NOISE), method=zipfile.ZIP_BZIP2), NOISE),
    "zip, LZMA": Packed(zipped(("trace.json", NOISE), method=zipfile.ZIP_LZMA), NOISE),
    "zip of a gzip": Packed(zipped(("trace.json.gz", gzipped(LONG))), LONG),
    "zip of a gzip that is not called so": Packed(
        zipped(("trace.json", gzipped(NOISE) + gzipped(b"end"))), NOISE + b"end"
    ),
    "zip with a Mac's shadow": Packed(
        zipped(("t/", b""), ("t/a.json", NOISE), ("__MACOSX/t/._a.json", b"shadow")), NOISE
    ),
    "zip with other files": Packed(zipped(("README", b"read"), ("t/a.json", NOISE), ("b.json", b"")), NOISE),
    "zip with one file of any name": Packed(zipped(("rank0", NOISE)), NOISE),
    "zst": Packed(zst(LONG), LONG),
    "zst of unknown size, with a checksum": Packed(zst(LONG, checksum=True, sized=False), LONG),
    "zst frames": Packed(zst(LONG) + zst(b"", sized=False) + zst(NOISE, checksum=True), LONG + NOISE),
    "zst with skippable frames": Packed(skippable(b"1234") + zst(NOISE) + skippable(b"") + zst(b"end"), NOISE + b"end"),
    "zst of a run": Packed(zst(b"a" * 3_000_000), b"a" * 3_000_000),
}


@pytest.mark.parametrize("packed", SOUND.values(), ids=list(SOUND))
@pytest.mark.parametrize("compressed", [512 << 10, 1000])
def test_compression_is_told_by_content_whatever_the_name(tmp_path: Path, packed: Packed, compressed: int) -> None:
    expected = {} if packed.code is None else {packed.code: len(packed.unpacked)}
    for name in ("trace.json", "trace.json.gz", "trace.zip", "trace.zst", "trace"):
        with SliceSizes(compressed=compressed).in_force():
            assert unpack(write(tmp_path, packed.data, name)) == (packed.unpacked, expected)


@pytest.mark.parametrize("packed", SOUND.values(), ids=list(SOUND))
def test_chunks_are_of_about_one_size(tmp_path: Path, packed: Packed) -> None:
    chunks = list(iter_chunks(write(tmp_path, packed.data), Losses()))
    assert all(0 < len(chunk) <= CHUNK_BYTES * 5 // 4 for chunk in chunks)
    assert len(chunks) <= 1 + len(packed.unpacked) // (CHUNK_BYTES // 4)


def test_small_gzip_members_are_joined_to_chunks(tmp_path: Path) -> None:
    path = write(tmp_path, gzipped(NOISE) * 100)
    sizes = [len(chunk) for chunk in iter_chunks(path, Losses())]
    assert sum(sizes) == 100 * SIZE
    assert all(CHUNK_BYTES // 4 <= size < CHUNK_BYTES // 4 + SIZE for size in sizes[:-1])


def zlib_prefix(data: bytes) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(data)


@pytest.mark.parametrize("cut", [11, 100, 5000, 30_000, len(gzipped(NOISE)) - 8, len(gzipped(NOISE)) - 1])
def test_of_a_truncated_gzip_all_that_can_be_unpacked_is_kept(tmp_path: Path, cut: int) -> None:
    data = gzipped(NOISE)[:cut]
    kept, losses = unpack(write(tmp_path, data))
    assert losses == {"truncated_compression": len(kept)}
    reference = zlib_prefix(data)
    assert NOISE.startswith(kept)
    assert abs(len(kept) - len(reference)) <= 1  # the last symbol may be told from fewer bits


@pytest.mark.parametrize("size", range(1, 10))
def test_a_gzip_header_alone_unpacks_to_nothing(tmp_path: Path, size: int) -> None:
    path = write(tmp_path, gzipped(TRACE)[:size])
    if size > 1:
        assert unpack(path) == (b"", {"truncated_compression": 0})
    with pytest.raises(UnreadableTraceError):
        read_trace(path)


def test_of_a_truncated_later_member_the_members_before_are_kept(tmp_path: Path) -> None:
    kept, losses = unpack(write(tmp_path, gzipped(NOISE) + gzipped(LONG)[:-20]))
    assert kept[:SIZE] == NOISE
    assert LONG.startswith(kept[SIZE:])
    assert len(kept) > SIZE + len(LONG) - 100
    assert losses == {"truncated_compression": len(kept)}


def damaged_blocks(count: int, bad: int) -> tuple[bytes, bytes]:
    """Raw deflate blocks, each on a byte border, the ``bad``-th of which is of no type; and the text before it."""
    packer = zlib.compressobj(wbits=-15)
    blocks = [packer.compress(NOISE) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(count)]
    blocks[bad] = b"\x07" + blocks[bad][1:]
    return b"".join(blocks), NOISE * bad


@pytest.mark.parametrize("bad", [0, 1, 7, 29])
@pytest.mark.parametrize("before", [b"", b"first"], ids=["first member", "second member"])
def test_of_a_corrupt_gzip_every_byte_before_the_damage_is_kept(tmp_path: Path, bad: int, before: bytes) -> None:
    raw, sound = damaged_blocks(30, bad)
    data = (gzipped(before) if before else b"") + gzipped(b"")[:10] + raw
    kept, losses = unpack(write(tmp_path, data))
    assert kept == before + sound
    assert losses == {"corrupt_compression": len(kept)}


CHECKED = {
    "gzip": (gzipped(LONG), len(gzipped(LONG)) - 6),
    "gzip size": (gzipped(LONG), len(gzipped(LONG)) - 1),
    "small gzip": (gzipped(TRACE), len(gzipped(TRACE)) - 6),
    "gzip in a zip": (
        zipped(("a", gzipped(TRACE)), method=0),
        zipped(("a", gzipped(TRACE)), method=0).index(b"PK\1\2") - 6,
    ),
    "zip": (zipped(("a", LONG)), zipped(("a", LONG)).index(b"PK\1\2") + 16),
    "small zip": (zipped(("a", TRACE)), zipped(("a", TRACE)).index(b"PK\1\2") + 16),
    "stored zip": (zipped(("a", TRACE), method=0), zipped(("a", TRACE), method=0).index(b"PK\1\2") + 16),
}


@pytest.mark.parametrize(("data", "at"), CHECKED.values(), ids=list(CHECKED))
def test_where_only_the_checksum_is_wrong_all_data_is_kept(tmp_path: Path, data: bytes, at: int) -> None:
    sound, _ = unpack(write(tmp_path, data))
    assert len(sound) in (len(LONG), len(TRACE))
    kept, losses = unpack(write(tmp_path, swapped(data, at, 1)))
    if kept != sound:  # in a nested gzip that cannot go back, the last piece is lost with its checksum
        assert data is CHECKED["gzip in a zip"][0]
        assert kept == b""
    assert losses == {"corrupt_compression": len(kept)}


def test_of_a_corrupt_zip_what_was_unpacked_before_is_kept(tmp_path: Path) -> None:
    raw, sound = damaged_blocks(30, 20)
    data = zipped(("a.json", LONG))
    begin = data.index(b"a.json") + len(b"a.json")
    end = data.index(b"PK\1\2")
    kept, losses = unpack(write(tmp_path, data[:begin] + raw[: end - begin].ljust(end - begin, b"\xff") + data[end:]))
    assert sound.startswith(kept)
    assert len(kept) > len(sound) - 20_000
    assert losses == {"corrupt_compression": len(kept)}


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.9999])
@pytest.mark.parametrize("checksum", [False, True])
def test_of_a_truncated_zst_what_was_unpacked_before_is_kept(tmp_path: Path, keep: float, checksum: bool) -> None:
    whole = zst(LONG, checksum=checksum)
    data = zst(NOISE) + whole[: int(len(whole) * keep)]
    kept, losses = unpack(write(tmp_path, data))
    assert kept.startswith(NOISE)
    assert LONG.startswith(kept[SIZE:])
    assert losses == {"truncated_compression": len(kept)}


def test_of_a_zst_without_its_checksum_all_data_is_kept(tmp_path: Path) -> None:
    assert unpack(write(tmp_path, zst(NOISE, checksum=True)[:-2])) == (NOISE, {"truncated_compression": SIZE})


def test_of_a_corrupt_zst_what_was_unpacked_before_is_kept(tmp_path: Path) -> None:
    data = zst(NOISE) + b"\x28\xb5\x2f\xfd" + b"\xff" * 500
    kept, losses = unpack(write(tmp_path, data))
    assert kept == NOISE
    assert losses == {"corrupt_compression": SIZE}


# -- archives that cannot be read ----------------------------------------------------------------------------------


def encrypted() -> bytes:
    data = bytearray(zipped(("a.json", TRACE)))
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    return bytes(data)


def of_method(number: int) -> bytes:
    data = bytearray(zipped(("a.json", TRACE)))
    struct.pack_into("<H", data, 8, number)
    struct.pack_into("<H", data, data.index(b"PK\1\2") + 10, number)
    return bytes(data)


UNREADABLE = {
    "several traces": (
        zipped(("a.json", TRACE), ("b.json.gz", TRACE)),
        "The archive should hold one trace; it holds 2: a.json, b.json.gz.",
    ),
    "many traces": (
        zipped(*((f"r{number}.json", TRACE) for number in range(9))),
        "The archive should hold one trace; it holds 9: r0.json, r1.json, r2.json, r3.json, ....",
    ),
    "several files, none of a trace's name": (
        zipped(("a.txt", b"a"), ("b.txt", b"b")),
        "The archive should hold one trace; it holds 2: a.txt, b.txt.",
    ),
    "an empty zip": (zipped(), "The archive should hold one trace; it holds 0: none."),
    "a zip of an empty file": (zipped(("a.json", b"")), "The archive should hold one trace; it holds 0: none."),
    "an encrypted zip": (encrypted(), "In the zip archive a.json is encrypted."),
    "an unknown method": (of_method(98), "The zip archive cannot be unpacked: That compression method"),
    "a truncated zip": (zipped(("a.json", LONG))[:-40], "The zip archive cannot be unpacked: "),
    "a zip's magic alone": (b"PK\x03\x04", "The zip archive cannot be unpacked: File is not a zip file."),
    "a member elsewhere": (
        swapped(zipped(("a.json", TRACE)), zipped(("a.json", TRACE)).index(b"PK\1\2") + 44),
        "The zip archive cannot be unpacked: ",
    ),
}


@pytest.mark.parametrize(("data", "reason"), UNREADABLE.values(), ids=list(UNREADABLE))
def test_an_archive_that_cannot_be_read_ends_in_a_clear_error(tmp_path: Path, data: bytes, reason: str) -> None:
    path = write(tmp_path, data, "a.zip")
    with pytest.raises(UnreadableTraceError) as raised:
        unpack(path)
    assert raised.value.thing == str(path)
    assert raised.value.reason.startswith(reason)
    assert "\n" not in raised.value.reason
    assert raised.value.exit_code == 3


def test_without_the_library_a_zst_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, zst(TRACE))
    importing = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:  # noqa: ANN401 - passed on
        if name == "zstandard":
            raise ImportError(name)
        return importing(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnreadableTraceError) as raised:
        unpack(path)
    assert raised.value.reason == "It is compressed with zstd, which needs a library."
    assert raised.value.action == "pip install 'tracelens-infer[zstd]'"


# -- limits --------------------------------------------------------------------------------------------------------

MEGABYTE = 1 << 20
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzipped,
    "gzip members": lambda data: gzipped(data[: len(data) // 2]) + gzipped(data[len(data) // 2 :]),
    "zip": lambda data: zipped(("a.json", data)),
    "zip of a gzip": lambda data: zipped(("a.json.gz", gzipped(data))),
    "zst": zst,
    "plain": bytes,
}


@pytest.mark.parametrize("pack", PACKERS.values(), ids=list(PACKERS))
def test_unpacking_stops_at_the_limit(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path, pack(bytes(40 * MEGABYTE)))
    got = 0
    limit = 10 * MEGABYTE
    with pytest.raises(DecompressionLimitError) as raised:  # noqa: PT012 - counts on the way
        for chunk in iter_chunks(path, Losses(), limit, name="a name"):
            got += len(chunk)
    assert limit - 2 * CHUNK_BYTES < got <= limit
    assert raised.value.thing == "a name"
    assert raised.value.reason == "It unpacks to more than the limit of 10,485,760 bytes."
    assert "--max-bytes" in raised.value.action
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("pack", PACKERS.values(), ids=list(PACKERS))
def test_exactly_as_much_as_the_limit_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path, pack(NOISE))
    assert unpack(path, max_bytes=SIZE) == (NOISE, {})
    with pytest.raises(DecompressionLimitError):
        unpack(path, max_bytes=SIZE - 1)
    with pytest.raises(DecompressionLimitError):
        read_trace(path, max_bytes=SIZE - 1)


OPENINGS = {
    "nothing but zeros": b"",
    "zeros in the header": b'{"schemaVersion": 1, ',
    "zeros in the list": b'{"traceEvents": [',
    "zeros in an event": b'{"traceEvents": [{"ph": "X", "name": "',
    "zeros in a bare list": b"[",
}


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=list(OPENINGS))
def test_a_bomb_of_zeros_ends_in_a_clear_error_before_much_of_it_is_held(
    tmp_path: Path, opening: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits of a hundredth, so that a hundredth of the zeros is enough."""
    monkeypatch.setattr(slices, "_MAX_HEADER_BYTES", 640_000)
    monkeypatch.setattr(slices, "_MAX_EVENT_BYTES", 160_000)
    monkeypatch.setattr("tracelens_infer.trace.reader._EVENTLESS_BYTES", 640_000)
    most = 0
    trying = slices.Slicer._try

    def watched(self: slices.Slicer, buffer: bytearray, cut: int) -> str | int:
        nonlocal most
        most = max(most, len(buffer))
        return trying(self, buffer, cut)

    monkeypatch.setattr(slices.Slicer, "_try", watched)
    monkeypatch.setattr(source, "CHUNK_BYTES", 20_000)
    seen: list[int] = []
    path = write(tmp_path, gzipped(opening + bytes(100 * MEGABYTE)))
    with pytest.raises(UnreadableTraceError) as raised:
        read_trace(path, progress=seen.append)
    assert seen[-1] < 1_500_000
    assert most < 700_000
    assert str(path) in str(raised.value)
    assert len(str(raised.value)) < len(str(path)) + 300


def test_zeros_after_a_trace_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_MAX_HEADER_BYTES", 640_000)
    path = write(tmp_path, gzipped(TRACE + bytes(50 * MEGABYTE)))
    trace = read_trace(path)
    assert trace.event_count == 1
    assert [note.code for note in trace.notes] == ["trailing_text"]


# -- names ---------------------------------------------------------------------------------------------------------


def test_a_path_a_glob_and_a_directory_name_files(tmp_path: Path) -> None:
    named = ["b.json", "a.json.gz", "c.zip", "d.json.zst", "rank[0].json"]
    for name in [*named, "notes.txt", "table.csv", "trace"]:
        write(tmp_path, TRACE, name)
    (tmp_path / "folder.json").mkdir()
    assert find_traces(str(tmp_path / "b.json")) == [tmp_path / "b.json"]
    assert find_traces(str(tmp_path / "trace")) == [tmp_path / "trace"]
    assert find_traces(str(tmp_path / "rank[0].json")) == [tmp_path / "rank[0].json"]
    assert find_traces(str(tmp_path)) == sorted(tmp_path / name for name in named)
    assert find_traces(str(tmp_path / "*.json")) == [tmp_path / "b.json", tmp_path / "rank[0].json"]
    assert find_traces(str(tmp_path / "[ab].*")) == [tmp_path / "a.json.gz", tmp_path / "b.json"]
    assert find_traces("-") == [Path("-")]


NAMELESS = {
    "missing": ("missing.json", "There is no such file."),
    "a glob without a match": ("*.json", "There is no such file."),
    "an empty directory": ("", "The directory holds no .json, .json.gz, .zip or .zst file."),
    "no name at all": ("a\0b", ""),
    "a name that is too long": ("x" * 5000, "File name too long"),
}


@pytest.mark.parametrize(("name", "reason"), NAMELESS.values(), ids=list(NAMELESS))
def test_a_name_of_no_trace_ends_in_a_clear_error(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(UnreadableTraceError) as raised:
        find_traces(str(tmp_path / name))
    assert raised.value.thing.startswith(str(tmp_path))
    assert reason in raised.value.reason
    assert raised.value.exit_code == 3


STEMS = {
    "a.pt.trace.json.gz": "a",
    "a.pt.trace.json": "a",
    "host_123.1700000000.pt.trace.json.gz": "host_123.1700000000",
    "a.json": "a",
    "a.json.zip": "a",
    "a.json.zst": "a",
    "a.zip": "a",
    "trace.json.gz": "trace",
    "TP-0.trace.json.gz": "TP-0",
    "x": "x",
    "a.b": "a.b",
    ".gz": "trace",
    ".json": "trace",
    ".pt.trace.json.gz": "trace",
    "-": "stdin",
    "json": "json",
}


@pytest.mark.parametrize(("name", "stem"), STEMS.items())
def test_an_output_is_called_after_its_trace(name: str, stem: str) -> None:
    assert trace_stem(Path(name)) == stem
    if name != "-":
        assert trace_stem(Path("folder.json") / name) == stem


def test_a_file_is_known_again_until_it_changes(tmp_path: Path) -> None:
    path = write(tmp_path, TRACE)
    stamp = file_stamp(path, "a name")
    assert file_stamp(path, "a name") == stamp
    os.utime(path, ns=(0, 1))
    assert file_stamp(path, "a name") != stamp
    with pytest.raises(UnreadableTraceError, match="a name"):
        file_stamp(tmp_path / "missing", "a name")


def test_a_file_that_cannot_be_opened_ends_in_a_clear_error(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "missing", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UnreadableTraceError) as raised:
            unpack(path)
        assert (raised.value.thing, raised.value.reason.startswith(reason)) == (str(path), True)


# -- streams -------------------------------------------------------------------------------------------------------


class Stdin:
    """Standard input that holds these bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@contextlib.contextmanager
def fifo(folder: Path, data: bytes) -> Iterator[Path]:
    path = folder / "pipe.json"
    os.mkfifo(path)

    def feed() -> None:
        with contextlib.suppress(BrokenPipeError), path.open("wb") as file:
            file.write(data)

    thread = threading.Thread(target=feed)
    thread.start()
    yield path
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_a_regular_file_is_read_where_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, TRACE)
    with local_file(path, max_bytes=1) as local:
        assert local == path
    assert path.exists()


@pytest.mark.parametrize("data", [b"", TRACE, gzipped(LONG)], ids=["empty", "small", "large"])
def test_stdin_is_copied_and_the_copy_removed(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    with local_file(Path("-")) as local:
        assert [local.read_bytes(), local.read_bytes()] == [data, data]
    assert not local.exists()


def test_a_pipe_is_copied_and_the_copy_removed(tmp_path: Path) -> None:
    data = gzipped(TRACE)
    with fifo(tmp_path, data) as path, local_file(path) as local:
        assert local != path
        assert local.read_bytes() == data
        assert read_trace(local, name="pipe").event_count == 1
    assert not local.exists()


def test_what_comes_out_of_a_pipe_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", Stdin(bytes(5 * MEGABYTE)))
    with pytest.raises(DecompressionLimitError) as raised, local_file(Path("-"), max_bytes=3 * MEGABYTE):
        pass
    assert raised.value.thing == "-"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(sys, "stdin", Stdin(bytes(3 * MEGABYTE)))
    with local_file(Path("-"), max_bytes=3 * MEGABYTE) as local:
        assert local.stat().st_size == 3 * MEGABYTE


def test_the_copy_is_removed_when_its_user_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"no trace"))
    held: list[Path] = []
    with pytest.raises(TracelensError), local_file(Path("-")) as local:  # noqa: PT012 - the block fails
        held.append(local)
        read_trace(local, name="-")
    assert not held[0].exists()


def test_streams_that_cannot_be_opened_end_in_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for path, reason in (
        (Path("-"), "Standard input is closed"),
        (tmp_path, "This is a directory."),
        (tmp_path / "missing", "No such file or directory"),
    ):
        with pytest.raises(UnreadableTraceError) as raised, local_file(path):
            pass
        assert (raised.value.thing, raised.value.reason) == (str(path), reason)


def test_an_empty_name_names_nothing() -> None:
    with pytest.raises(UnreadableTraceError) as nothing:
        find_traces("")
    assert nothing.value.reason == "The name is empty."


def test_the_list_of_a_split_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text("{}")
    (tmp_path / "steady_mixed.json.gz").write_bytes(b"")
    assert [path.name for path in find_traces(str(tmp_path))] == ["steady_mixed.json.gz"]
