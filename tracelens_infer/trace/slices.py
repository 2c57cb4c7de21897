"""Bytes of a trace file -> its header and slices of its event list, each cut between two events."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import msgspec

from tracelens_infer.errors import UnreadableTraceError
from tracelens_infer.trace.losses import Losses
from tracelens_infer.trace.salvage import EVENT_BOUNDARY, EVENT_LIST

__all__ = ["EventSlice", "Slicer"]

_KINETO_BOUNDARY = b"\n  },\n  {"
_BARE_LIST = re.compile(rb"\s*\[\s*(?=[{\]]|$)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_AFTER_LIST = re.compile(rb"\s*(?:,|\}|$)")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CUT_SEARCH_BYTES = 64 << 10  # how far from a chunk's end the last boundary is looked for before all of it is
_BACKOFF_BYTES = (0, 4 << 10, 64 << 10, 1 << 20)
"""How far before a cut that proved wrong the next one is looked for. A bound on the tries, or damage that fails every
one would make reading quadratic; growing, since one event's arguments may hold a long list of objects."""
_MAX_HEADER_BYTES = 64 << 20  # the largest real one is 200 kB
_MAX_EVENT_BYTES = 64 << 20  # the largest real one is 1 MB (a 300 MB trace of Triton source comments)


@dataclass(frozen=True, slots=True)
class EventSlice:
    """Some consecutive events: ``length`` bytes from the second one of ``buffer`` on, with commas between.

    ``offset`` is where they begin in the uncompressed input. ``sound`` says that they decode as they stand. The buffer
    is the slicer's own: what is kept of it must be copied.
    """

    buffer: bytearray
    length: int
    offset: int
    sound: bool
    at_end: bool

    @property
    def text(self) -> bytes:
        """A copy of the events, without brackets."""
        return bytes(memoryview(self.buffer)[1 : 1 + self.length])


class Slicer:
    """Cuts a stream of chunks. ``decodes`` is asked to decode a list, and raises what msgspec raises.

    After :meth:`slices` is exhausted, ``prefix`` and ``suffix`` hold what stands around the events.
    """

    def __init__(
        self, chunks: Iterator[bytes], name: str, losses: Losses, decodes: Callable[[bytearray], None]
    ) -> None:
        self.prefix = b""
        self.suffix = b""
        self.extra_lists = 0
        self._chunks = chunks
        self._name = name
        self._losses = losses
        self._decodes = decodes
        self._offset = 0  # of the first byte in the buffer
        self._closed_at: int | None = None  # set by the reader while it holds a slice

    def slices(self) -> Iterator[EventSlice]:
        """Every slice of the event list, in order. Raises UnreadableTraceError where there is no event list."""
        rest = self._read_header()
        while True:
            rest = yield from self._list_slices(rest)
            rest, again = self._read_suffix(rest)
            if not again:
                return
            self.extra_lists += 1
            self._losses.add("second_event_list", self._offset)

    def close_list(self, position: int) -> None:
        """The salvager tells that the list closed at this byte of the slice it was given last."""
        self._closed_at = position

    def _take_list_end(self) -> int | None:
        list_end, self._closed_at = self._closed_at, None
        return list_end

    # -- header -------------------------------------------------------------------------------------------------

    def _read_header(self) -> bytes:
        head = bytearray()
        for chunk in self._chunks:
            first = not head
            head += chunk
            if first and head.startswith(_BYTE_ORDER_MARK):
                self._losses.add("byte_order_mark", 0)
                del head[: len(_BYTE_ORDER_MARK)]
                self._offset = len(_BYTE_ORDER_MARK)
            bare = _BARE_LIST.match(head)
            found = bare or EVENT_LIST.search(head)
            if found:
                self.prefix = b"" if bare else bytes(head[: found.end() - 1])
                self._offset += found.end()
                return bytes(head[found.end() :])
            if len(head) > _MAX_HEADER_BYTES:
                break
        raise self._no_trace(bytes(head[:4096]), empty=not head.strip())

    def _no_trace(self, head: bytes, *, empty: bool) -> UnreadableTraceError:
        if empty:
            reason = "The file is empty."
        elif head.lstrip()[:1] in (b"{", b"["):
            reason = 'It is JSON, but it holds no "traceEvents" list.'
        else:
            reason = f"It is no Chrome-trace JSON: it begins with {head[:16]!r}."
        return UnreadableTraceError(
            self._name, reason, "Name a trace that torch.profiler (or an engine's /stop_profile) wrote."
        )

    # -- event list ---------------------------------------------------------------------------------------------

    def _list_slices(self, rest: bytes) -> Generator[EventSlice, None, bytes]:
        """Yields slices until the list closes; the generator's value is what follows the closing bracket."""
        while True:
            chunk = next(self._chunks, None)
            at_end = chunk is None
            buffer = bytearray().join((b"[", rest, chunk or b""))
            del chunk
            cut, sound, closed = self._cut(buffer, at_end=at_end)
            if cut > 1:
                yield EventSlice(buffer, cut - 1, self._offset, sound, at_end)
                list_end = self._take_list_end()
                if list_end is not None:  # the salvager found the end of the list
                    cut, closed = 1 + list_end, True
            if closed:
                self._offset += cut
                return bytes(memoryview(buffer)[cut + 1 :])
            if at_end:
                if "truncated" not in self._losses:
                    self._losses.add("missing_bracket", self._offset + cut - 1)
                return b""
            rest = bytes(memoryview(buffer)[cut + 1 :]) if cut else bytes(memoryview(buffer)[1:])
            self._offset += cut if cut else 0
            if len(rest) > _MAX_EVENT_BYTES:
                raise UnreadableTraceError(
                    self._name,
                    f"No end of an event within {_MAX_EVENT_BYTES >> 20} MB after byte {self._offset:,}.",
                    "The file is damaged beyond repair, or is no trace.",
                )

    def _cut(self, buffer: bytearray, *, at_end: bool) -> tuple[int, bool, bool]:
        """Where to end the slice that begins after the bracket in ``buffer``: position, sound, list closed there.

        Position 0 asks for more bytes.
        """
        if at_end:
            return self._cut_at_end(buffer)
        fallback = 0
        end = len(buffer)
        for backoff in _BACKOFF_BYTES:
            cut = _last_boundary(buffer, end - backoff)
            if cut <= 1:
                break
            fallback = fallback or cut
            outcome = self._try(buffer, cut)
            if outcome == "sound":
                return cut, True, False
            if isinstance(outcome, int):
                return outcome, True, True
            if outcome == "damaged":
                return cut, False, False
            end = cut
        return fallback, False, False

    def _cut_at_end(self, buffer: bytearray) -> tuple[int, bool, bool]:
        end = len(buffer)
        if not bytes(buffer[1:]).strip():
            return 1, True, False
        buffer.append(0x5D)
        outcome = self._try(buffer, end)
        buffer.pop()
        if isinstance(outcome, int) and outcome < end:
            return outcome, True, True
        return end, outcome == "sound", False

    def _try(self, buffer: bytearray, cut: int) -> str | int:
        """Does the list decode, closed at ``cut``? "sound", "unfinished", "damaged", or where it closed before."""
        held = buffer[cut]
        tail = bytes(memoryview(buffer)[cut + 1 :])
        buffer[cut] = 0x5D
        del buffer[cut + 1 :]
        try:
            if not buffer.isascii():
                buffer.decode("utf-8")
            self._decodes(buffer)
        except UnicodeDecodeError:
            outcome: str | int = "damaged"
        except msgspec.DecodeError as error:
            outcome = _what_failed(str(error), buffer)
        else:
            outcome = "sound"
        buffer[cut] = held
        buffer += tail
        if isinstance(outcome, int) and not _is_sound(self._decodes, buffer, outcome):
            return "damaged"
        return outcome

    # -- suffix -------------------------------------------------------------------------------------------------

    def _read_suffix(self, rest: bytes) -> tuple[bytes, bool]:
        """Reads on to the end of the input, or to another event list."""
        tail = bytearray(rest)
        while True:
            found = EVENT_LIST.search(tail)
            if found:
                self.suffix = self.suffix or bytes(tail[: found.start()])
                self._offset += found.end()
                return bytes(tail[found.end() :]), True
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            if len(tail) > _MAX_HEADER_BYTES:
                self._losses.add("trailing_text", self._offset)
                for _ in self._chunks:
                    pass
                break
            tail += chunk
        self.suffix = self.suffix or bytes(tail)
        return b"", False


def _last_boundary(buffer: bytearray, end: int) -> int:
    """Position of the comma of the last boundary between two events before ``end``; 0 where there is none."""
    at = buffer.rfind(_KINETO_BOUNDARY, 0, end)
    if at >= 0 and end - at < _CUT_SEARCH_BYTES:
        return at + 4
    for start in (max(0, end - _CUT_SEARCH_BYTES), 0):
        commas = [boundary.start(1) for boundary in EVENT_BOUNDARY.finditer(buffer, start, end)]
        if commas:
            return commas[-1]
    return 0


def _what_failed(message: str, buffer: bytearray) -> str | int:
    if "truncated" in message:
        return "unfinished"
    trailing = _TRAILING.search(message)
    if trailing is None:
        return "damaged"
    first_too_many = int(trailing.group(1)) - 1
    closed = buffer.rfind(b"]", 0, first_too_many)
    if closed < 0 or not _AFTER_LIST.match(buffer, closed + 1):
        return "damaged"
    return closed


def _is_sound(decodes: Callable[[bytearray], None], buffer: bytearray, closed: int) -> bool:
    try:
        decodes(buffer[: closed + 1])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
