"""From what the user names to bytes: paths, globs, rank directories and stdin; compression told by content."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from tracelens_infer.errors import DecompressionLimitError, UnreadableTraceError

if TYPE_CHECKING:
    import zipfile
    import zlib

    from tracelens_infer.trace.losses import Losses

__all__ = ["CHUNK_BYTES", "DEFAULT_MAX_BYTES", "file_stamp", "find_traces", "iter_chunks", "local_file", "trace_stem"]

CHUNK_BYTES = 2 << 20
"""Uncompressed bytes handed on at a time: 8 MB were measured to be 7 % slower, 512 kB 10 %, and 64 MB larger, too."""

DEFAULT_MAX_BYTES = 32 << 30
"""Largest uncompressed size that is read: six times the largest trace seen, far below what a zip bomb unpacks to."""

_COMPRESSED_CHUNK_BYTES = 512 << 10
_CAREFUL_BYTES = 4 << 10  # compressed bytes unpacked at a time where damage is near
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")  # the second is that of an empty archive
_ZIP_ENCRYPTED = 1  # a flag of a member
_NO_TRACE = "split.json"  # a split's own list of what it wrote
_TRACE_SUFFIXES = (".json", ".json.gz", ".json.zip", ".json.zst", ".zip", ".gz", ".zst")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def find_traces(name: str) -> list[Path]:
    """Which files does a path, glob or rank directory name? Sorted; ``-`` (stdin) names itself."""
    if name == "-":
        return [Path("-")]
    if not name:
        raise UnreadableTraceError("''", "The name is empty.", "Name a trace; is a shell variable unset?")
    try:
        found = _named_files(Path(name))
    except (OSError, ValueError) as error:  # no permission; a name that no file can have
        raise _cannot_open(name, error) from error
    if not found:
        raise UnreadableTraceError(
            name, "There is no such file.", "Check the path; quote a glob if the shell expands it."
        )
    return found


def _named_files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(
            entry
            for entry in path.iterdir()
            if entry.is_file() and entry.name.endswith(_TRACE_SUFFIXES) and entry.name != _NO_TRACE
        )
        if not found:
            raise UnreadableTraceError(
                str(path),
                "The directory holds no .json, .json.gz, .zip or .zst file.",
                "Name a directory of trace files.",
            )
        return found
    if path.exists():
        return [path]
    return sorted(Path(match) for match in glob.glob(str(path)) if Path(match).is_file())


def _cannot_open(name: str, error: OSError | ValueError) -> UnreadableTraceError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return UnreadableTraceError(name, reason, "Check the path and its permissions.")


def file_stamp(path: Path, name: str) -> tuple[int, ...]:
    """By what is a file known again? Size, time of the last change, and number. ``name``: what errors call it."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise _cannot_open(name, error) from error
    return status.st_size, status.st_mtime_ns, status.st_ino


def trace_stem(path: Path) -> str:
    """What should an output of this trace be called? Its name without .gz, .json, .trace and .pt."""
    name = "stdin" if str(path) == "-" else path.name
    for suffix in (".gz", ".zip", ".zst", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name or "trace"


@contextlib.contextmanager
def local_file(path: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[Path]:
    """A file that can be read twice: the path itself, or a temporary copy of stdin or of a pipe.

    Raises UnreadableTraceError where the path cannot be opened, DecompressionLimitError where more than ``max_bytes``
    come out of a pipe.
    """
    name = str(path)
    with contextlib.ExitStack() as opened:
        try:
            source = None if _is_regular(path) else _open_stream(path, opened)
            local = path if source is None else _temporary_copy(source, name, max_bytes, opened)
        except (OSError, ValueError) as error:
            raise _cannot_open(name, error) from error
        yield local


def _is_regular(path: Path) -> bool:
    return str(path) != "-" and stat.S_ISREG(path.stat().st_mode)


def _open_stream(path: Path, opened: contextlib.ExitStack) -> BinaryIO:
    if str(path) == "-":
        if sys.stdin is None:
            raise OSError(errno.EBADF, "Standard input is closed")
        return sys.stdin.buffer
    if path.is_dir():
        raise UnreadableTraceError(str(path), "This is a directory.", "Name one trace file.")
    return opened.enter_context(path.open("rb"))


def _temporary_copy(source: BinaryIO, name: str, max_bytes: int, opened: contextlib.ExitStack) -> Path:
    import tempfile

    copy = opened.enter_context(tempfile.NamedTemporaryFile(prefix="tracelens-", suffix=".trace"))  # noqa: SIM115
    left = max_bytes
    while chunk := source.read(CHUNK_BYTES):
        left -= len(chunk)
        if left < 0:
            raise _too_large(name, max_bytes)
        copy.write(chunk)
    copy.flush()
    return Path(copy.name)


def _too_large(name: str, max_bytes: int) -> DecompressionLimitError:
    return DecompressionLimitError(
        name,
        f"It unpacks to more than the limit of {max_bytes:,} bytes.",
        "If the size is genuine, raise the limit with --max-bytes.",
    )


def iter_chunks(
    path: Path, losses: Losses, max_bytes: int | None = DEFAULT_MAX_BYTES, *, name: str | None = None
) -> Iterator[bytes]:
    """What does the file unpack to? Chunks of about 2 MB, whatever its compression; ``name`` is what errors call it.

    Damage to the compression ends the stream with an entry in ``losses``; what was unpacked before it is kept.
    Raises DecompressionLimitError beyond ``max_bytes`` and UnreadableTraceError where the file cannot be opened.
    """
    name = name or str(path)
    try:
        with path.open("rb") as file:
            total = 0
            for chunk in _of_one_size(_unpacked(file, name, losses)):
                total += len(chunk)
                if max_bytes is not None and total > max_bytes:
                    raise _too_large(name, max_bytes)
                yield chunk
    except (OSError, ValueError) as error:
        raise _cannot_open(name, error) from error


def _of_one_size(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Small chunks joined: a file of thousands of small gzip members is read as fast as another one."""
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        small = len(chunk) < CHUNK_BYTES // 4
        if small:
            held.append(chunk)
            size += len(chunk)
        if held and (not small or size >= CHUNK_BYTES // 4):
            yield b"".join(held)
            held.clear()
            size = 0
        if not small:
            yield chunk
    if held:
        yield b"".join(held)


def _unpacked(file: BinaryIO, name: str, losses: Losses) -> Iterator[bytes]:
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        yield from _gzip_chunks(file, losses, seekable=file)
    elif magic in _ZIP_MAGICS:
        yield from _zip_chunks(file, name, losses)
    elif magic == _ZSTD_MAGIC or _is_skippable_frame(magic):
        yield from _zstd_chunks(file, name, losses)
    else:
        yield from iter(lambda: file.read(CHUNK_BYTES), b"")


# -- gzip --------------------------------------------------------------------------------------------------------


def _gzip_chunks(file: _Readable, losses: Losses, *, seekable: BinaryIO | None) -> Iterator[bytes]:
    """``seekable`` is ``file`` if that can go back: then damage costs no more than the bytes that are damaged."""
    from isal import igzip_lib

    def new_member() -> igzip_lib.IgzipDecompressor:
        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)

    produced = in_member = member_begin = 0
    member = new_member()
    data = file.read(_COMPRESSED_CHUNK_BYTES)
    while True:
        try:
            chunk = member.decompress(data, CHUNK_BYTES)
        except (igzip_lib.IsalError, EOFError, ValueError):  # type: ignore[misc]  # typed as a plain object
            if seekable is not None:
                seekable.seek(member_begin)
                for piece in _sound_part(file, in_member):
                    produced += len(piece)
                    yield piece
            losses.add("corrupt_compression", produced)
            return
        if chunk:
            produced += len(chunk)
            in_member += len(chunk)
            yield chunk
        if member.eof:
            data = _next_member(member.unused_data, file)
            if not data:
                return
            if not data.startswith(_GZIP_MAGIC):
                losses.add("trailing_garbage", produced)
                return
            member = new_member()
            in_member = 0
            member_begin = 0 if seekable is None else seekable.tell() - len(data)
        elif member.needs_input:
            data = file.read(_COMPRESSED_CHUNK_BYTES)
            if not data:
                losses.add("truncated_compression", produced)
                return
        else:
            data = b""


def _sound_part(file: _Readable, skip: int) -> Iterator[bytes]:
    """What a damaged gzip member holds up to its damage, but for the first ``skip`` bytes.

    isal keeps back what it unpacked in the same call. The standard library's state can be copied, so that the piece in
    which the damage lies is tried again byte by byte.
    """
    import zlib

    unpacker = zlib.decompressobj(wbits=31)
    damaged = False
    while not (damaged or unpacker.eof) and (data := file.read(_CAREFUL_BYTES)):
        before = unpacker.copy()
        try:
            piece = unpacker.decompress(data)
        except zlib.error:
            damaged = True
            piece = b"".join(_byte_by_byte(before, data))
        skipped = min(skip, len(piece))
        skip -= skipped
        if len(piece) > skipped:
            yield piece[skipped:]


def _byte_by_byte(unpacker: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    import zlib

    with contextlib.suppress(zlib.error):
        for byte in data:
            yield unpacker.decompress(bytes((byte,)))


def _next_member(rest: bytes, file: _Readable) -> bytes:
    """The bytes from the next gzip header on; padding of zeros between or after members is legal."""
    rest = rest.lstrip(b"\x00")
    while len(rest) < len(_GZIP_MAGIC):
        more = file.read(_COMPRESSED_CHUNK_BYTES)
        if not more:
            return rest
        rest = (rest + more).lstrip(b"\x00")
    return rest


# -- zip ---------------------------------------------------------------------------------------------------------


def _zip_chunks(file: BinaryIO, name: str, losses: Losses) -> Iterator[bytes]:
    import zipfile
    import zlib
    from lzma import LZMAError

    damage: tuple[type[Exception], ...] = (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, OSError, ValueError)
    damage += (NotImplementedError, RuntimeError)  # a method of compression that is missing
    damage += (IndexError, struct.error)  # tables that point nowhere
    try:
        archive = zipfile.ZipFile(file)
        entry = _only_trace(archive, name)
        with archive.open(_unchecked(entry)) as member:
            is_gzip = member.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    except damage as error:
        raise UnreadableTraceError(
            name, f"The zip archive cannot be unpacked: {error}.", "Unpack it by hand."
        ) from error
    pieces = _zip_member(archive, entry, damage, losses)
    yield from _gzip_chunks(_Joined(pieces), losses, seekable=None) if is_gzip else pieces


def _only_trace(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    members = [
        entry
        for entry in archive.infolist()
        if not entry.is_dir() and entry.file_size and not entry.filename.startswith("__MACOSX/")
    ]
    traces = [entry for entry in members if entry.filename.endswith(_TRACE_SUFFIXES)] or members
    if len(traces) != 1:
        listed = ", ".join(entry.filename for entry in traces[:4]) or "none"
        listed += ", ..." if len(traces) > 4 else ""
        raise UnreadableTraceError(
            name,
            f"The archive should hold one trace; it holds {len(traces)}: {listed}.",
            "Unpack it and name one.",
        )
    if traces[0].flag_bits & _ZIP_ENCRYPTED:
        raise UnreadableTraceError(name, f"In the zip archive {traces[0].filename} is encrypted.", "Unpack it by hand.")
    return traces[0]


def _zip_member(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, damage: tuple[type[Exception], ...], losses: Losses
) -> Iterator[bytes]:
    """What the member unpacks to; up to the damage if its data is damaged, all of it if only its checksum is wrong."""
    produced = 0
    # A read that ends in damage gives nothing: the second time, in small ones.
    for size, attempt in ((CHUNK_BYTES, entry), (_CAREFUL_BYTES, _unchecked(entry))):
        skip = produced
        try:
            with archive.open(attempt) as member:
                while skip and (again := member.read(min(skip, CHUNK_BYTES))):
                    skip -= len(again)
                while chunk := member.read(size):
                    produced += len(chunk)
                    yield chunk
                if attempt is entry:
                    return
        except damage:
            continue
    losses.add("corrupt_compression", produced)


def _unchecked(entry: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """The same member without its checksum, which is then not looked at: the last read would give nothing."""
    from copy import copy

    unchecked = copy(entry)
    del unchecked.CRC
    return unchecked


class _Joined:
    """Pieces as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def read(self, size: int, /) -> bytes:
        if not self._held:
            self._held = next(self._pieces, b"")
        head, self._held = self._held[:size], self._held[size:]
        return head


# -- zstd --------------------------------------------------------------------------------------------------------


def _is_skippable_frame(magic: bytes) -> bool:
    """Parallel writers put one before each frame of data."""
    return len(magic) == 4 and 0x50 <= magic[0] <= 0x5F and magic[1:] == b"\x2a\x4d\x18"


def _zstd_chunks(file: BinaryIO, name: str, losses: Losses) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise UnreadableTraceError(
            name, "It is compressed with zstd, which needs a library.", "pip install 'tracelens-infer[zstd]'"
        ) from error
    produced = 0
    for size in (CHUNK_BYTES, _CAREFUL_BYTES, 1):  # as in _zip_member, and at last byte by byte
        file.seek(0)
        skip = produced
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False) as stream:
            try:
                while skip and (again := stream.read(min(skip, CHUNK_BYTES))):
                    skip -= len(again)
                while chunk := stream.read(size):
                    produced += len(chunk)
                    yield chunk
            except zstandard.ZstdError:
                continue
        if _zstd_ends_early(file):
            losses.add("truncated_compression", produced)
        return
    losses.add("corrupt_compression", produced)


def _zstd_ends_early(file: BinaryIO) -> bool:
    """Does the last frame lack a part? The library ends there as if all was well. See RFC 8878, section 3.1."""
    import zstandard

    file.seek(0, os.SEEK_END)
    size = file.tell()
    at = 0
    while at < size:
        file.seek(at)
        head = file.read(18)  # the largest header
        if _is_skippable_frame(head[:4]):
            at += 8 + int.from_bytes(head[4:8], "little")
            continue
        try:
            at += zstandard.frame_header_size(head)
            has_checksum = zstandard.get_frame_parameters(head).has_checksum
        except zstandard.ZstdError:
            return True
        last = False
        while not last and at < size:
            file.seek(at)
            block = int.from_bytes(file.read(3), "little")
            last, kind = bool(block & 1), block >> 1 & 3
            at += 3 + (1 if kind == 1 else block >> 3)  # of a run of one byte only that byte is there
        if not last:
            return True
        at += 4 if has_checksum else 0
    return at > size
