"""From what the user names to bytes: paths, globs, rank directories and stdin; compression told by content."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from tracelens_infer.errors import DecompressionLimitError, UnreadableTraceError

if TYPE_CHECKING:
    from tracelens_infer.trace.losses import Losses

__all__ = ["CHUNK_BYTES", "DEFAULT_MAX_BYTES", "find_traces", "iter_chunks", "local_file", "trace_stem"]

CHUNK_BYTES = 2 << 20
"""Uncompressed bytes handed on at a time: 8 MB were measured to be 7 % slower, 512 kB 10 %, and 64 MB larger, too."""

DEFAULT_MAX_BYTES = 32 << 30
"""Largest uncompressed size that is read: six times the largest trace seen, far below what a zip bomb unpacks to."""

_COMPRESSED_CHUNK_BYTES = 512 << 10
_GZIP_MAGIC, _ZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
_TRACE_SUFFIXES = (".json", ".json.gz", ".json.zip", ".json.zst", ".zip", ".gz", ".zst")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def find_traces(name: str) -> list[Path]:
    """Which files does a path, glob or rank directory name? Sorted; ``-`` (stdin) names itself."""
    if name == "-":
        return [Path("-")]
    path = Path(name)
    if path.is_dir():
        found = sorted(entry for entry in path.iterdir() if entry.is_file() and entry.name.endswith(_TRACE_SUFFIXES))
        if not found:
            raise UnreadableTraceError(
                name, "The directory holds no .json, .json.gz, .zip or .zst file.", "Name a directory of trace files."
            )
        return found
    if path.exists():
        return [path]
    found = sorted(Path(match) for match in glob.glob(name) if Path(match).is_file())
    if not found:
        raise UnreadableTraceError(
            name, "There is no such file.", "Check the path; quote a glob if the shell expands it."
        )
    return found


def trace_stem(path: Path) -> str:
    """What should an output of this trace be called? Its name without .gz, .json, .trace and .pt."""
    name = "stdin" if str(path) == "-" else path.name
    for suffix in (".gz", ".zip", ".zst", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name or "trace"


@contextlib.contextmanager
def local_file(path: Path) -> Iterator[Path]:
    """A file that can be read twice: the path itself, or a temporary copy of stdin or of a pipe.

    Raises UnreadableTraceError where the path cannot be opened.
    """
    try:
        if str(path) != "-" and stat.S_ISREG(path.stat().st_mode):
            yield path
            return
        if path.is_dir():
            raise UnreadableTraceError(str(path), "This is a directory.", "Name one trace file.")
        stream = sys.stdin.buffer if str(path) == "-" else path.open("rb")
    except OSError as error:
        raise UnreadableTraceError(
            str(path), error.strerror or str(error), "Check the path and its permissions."
        ) from error
    import shutil
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="tracelens-", suffix=".trace") as copy:
        shutil.copyfileobj(stream, copy, CHUNK_BYTES)
        copy.flush()
        yield Path(copy.name)


def iter_chunks(path: Path, losses: Losses, max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[bytes]:
    """What does the file unpack to? Chunks of about 2 MB, whatever its compression.

    Damage to the compression ends the stream with an entry in ``losses``; what was unpacked before it is kept.
    Raises DecompressionLimitError beyond ``max_bytes`` and UnreadableTraceError where the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            total = 0
            for chunk in _unpacked(file, str(path), losses):
                total += len(chunk)
                if total > max_bytes:
                    raise DecompressionLimitError(
                        str(path),
                        f"It unpacks to more than the limit of {max_bytes:,} bytes.",
                        "If the size is genuine, raise the limit with --max-bytes.",
                    )
                yield chunk
    except OSError as error:
        raise UnreadableTraceError(
            str(path), error.strerror or str(error), "Check the path and its permissions."
        ) from error


def _unpacked(file: BinaryIO, name: str, losses: Losses) -> Iterator[bytes]:
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        yield from _gzip_chunks(file, losses)
    elif magic == _ZIP_MAGIC:
        yield from _zip_chunks(file, name, losses)
    elif magic == _ZSTD_MAGIC:
        yield from _zstd_chunks(file, name, losses)
    else:
        yield from iter(lambda: file.read(CHUNK_BYTES), b"")


def _gzip_chunks(file: _Readable, losses: Losses) -> Iterator[bytes]:
    from isal import igzip_lib

    def new_member() -> igzip_lib.IgzipDecompressor:
        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)

    produced = 0
    member = new_member()
    data = file.read(_COMPRESSED_CHUNK_BYTES)
    while True:
        try:
            chunk = member.decompress(data, CHUNK_BYTES)
        except (igzip_lib.IsalError, EOFError, ValueError):  # type: ignore[misc]  # typed as a plain object
            losses.add("corrupt_compression", produced)
            return
        if chunk:
            produced += len(chunk)
            yield chunk
        if member.eof:
            data = _next_member(member.unused_data, file)
            if not data:
                return
            if not data.startswith(_GZIP_MAGIC):
                losses.add("trailing_garbage", produced)
                return
            member = new_member()
        elif member.needs_input:
            data = file.read(_COMPRESSED_CHUNK_BYTES)
            if not data:
                losses.add("truncated_compression", produced)
                return
        else:
            data = b""


def _next_member(rest: bytes, file: _Readable) -> bytes:
    """The bytes from the next gzip header on; padding of zeros between or after members is legal."""
    rest = rest.lstrip(b"\x00")
    while len(rest) < len(_GZIP_MAGIC):
        more = file.read(_COMPRESSED_CHUNK_BYTES)
        if not more:
            return rest
        rest = (rest + more).lstrip(b"\x00")
    return rest


def _zip_chunks(file: BinaryIO, name: str, losses: Losses) -> Iterator[bytes]:
    import zipfile

    try:
        with zipfile.ZipFile(file) as archive:
            members = [
                entry
                for entry in archive.infolist()
                if not entry.is_dir() and entry.file_size and not entry.filename.startswith("__MACOSX/")
            ]
            traces = [entry for entry in members if entry.filename.endswith(_TRACE_SUFFIXES)] or members
            if len(traces) != 1:
                listed = ", ".join(entry.filename for entry in traces[:4]) or "none"
                raise UnreadableTraceError(
                    name,
                    f"The archive should hold one trace; it holds {len(traces)}: {listed}.",
                    "Unpack it and name one.",
                )
            with archive.open(traces[0]) as member:
                yield from _member_chunks(member, losses)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UnreadableTraceError(
            name, f"The zip archive cannot be unpacked: {error}.", "Unpack it by hand."
        ) from error


def _member_chunks(member: _Readable, losses: Losses) -> Iterator[bytes]:
    """A zip member, which may itself be gzip; a bad checksum ends it like a truncation."""
    from zipfile import BadZipFile

    produced = 0
    first = member.read(CHUNK_BYTES)
    if first.startswith(_GZIP_MAGIC):
        yield from _gzip_chunks(_Prefixed(first, member), losses)
        return
    while first:
        produced += len(first)
        yield first
        try:
            first = member.read(CHUNK_BYTES)
        except (BadZipFile, EOFError, ValueError):
            losses.add("corrupt_compression", produced)
            return


class _Prefixed:
    """A stream some of which was read already."""

    def __init__(self, head: bytes, rest: _Readable) -> None:
        self._head = head
        self._rest = rest

    def read(self, size: int, /) -> bytes:
        if not self._head:
            return self._rest.read(size)
        head, self._head = self._head[:size], self._head[size:]
        return head


def _zstd_chunks(file: BinaryIO, name: str, losses: Losses) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise UnreadableTraceError(
            name, "It is compressed with zstd, which needs a library.", "pip install 'tracelens-infer[zstd]'"
        ) from error
    produced = 0
    with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as stream:
        while True:
            try:
                chunk = stream.read(CHUNK_BYTES)
            except zstandard.ZstdError:
                losses.add("corrupt_compression", produced)
                return
            if not chunk:
                if os.fstat(file.fileno()).st_size and not produced:
                    losses.add("truncated_compression", 0)
                return
            produced += len(chunk)
            yield chunk
