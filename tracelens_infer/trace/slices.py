"""Bytes of a trace file -> its header and slices of its event list, each cut between two events."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import msgspec

from tracelens_infer.errors import UnreadableTraceError
from tracelens_infer.trace.event import EVENT_BOUNDARY, EVENT_LIST, EVENT_START
from tracelens_infer.trace.losses import Losses

__all__ = ["EventSlice", "Slicer"]

_KINETO_BOUNDARY = b"\n  },\n  {"
_ANY_BOUNDARY = re.compile(rb"\}\s*(,)\s*(?=\{\s*\")")  # where no event begins with a key that is known
_BARE_LIST = re.compile(rb"\s*\[")
_FIRST_ENTRY = re.compile(rb"\s*([^\s])")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_AFTER_LIST = re.compile(rb"\s*(?:,\s*\"|,?\s*\}|,?\s*\Z|\x00)")  # zeros: padding
_LIST_GOES_ON = re.compile(rb"\s*\}?\s*,\s*\{")  # a bracket that strayed in between two events
_MAX_LISTS = 256  # a bound: thousands of traces one after another are no trace, and each costs another look at the rest
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CUT_SEARCH_BYTES = 64 << 10  # how far from a chunk's end the last boundary is looked for before all of it is
_BACKOFF_BYTES = (0, 4 << 10, 64 << 10, 1 << 20)
"""How far before a cut that proved wrong the next one is looked for. A bound on the tries, or damage that fails every
one would make reading quadratic; growing, since one event's arguments may hold a long list of objects."""
_MAX_HEADER_BYTES = 64 << 20  # the largest real one is 200 kB
_MAX_EVENT_BYTES = 16 << 20  # the largest real one is 1 MB (a 300 MB trace of Triton source comments)
_OVERLAP_BYTES = 256  # of a key that a chunk's end cuts


@dataclass(frozen=True, slots=True)
class EventSlice:
    """Some consecutive events: ``length`` bytes from the second one of ``buffer`` on, with commas between.

    ``offset`` is where they begin in the uncompressed input. ``sound`` says that they decode as they stand, ``at_end``
    that the input ends with them, ``forced`` that they go on for longer than any event does, and have to be given up.
    The buffer is the slicer's own: what is kept of it must be copied.
    """

    buffer: bytearray
    length: int
    offset: int
    sound: bool
    at_end: bool = False
    forced: bool = False

    @property
    def text(self) -> bytes:
        """A copy of the events, without brackets."""
        return bytes(memoryview(self.buffer)[1 : 1 + self.length])


class Slicer:
    """Cuts a stream of chunks. ``decodes`` is asked to decode a list, and raises what msgspec raises.

    After :meth:`slices` is exhausted, ``prefix`` holds what stands before the events, ``suffixes`` what follows each
    event list (a sound trace has one), and ``prefix_offset`` and ``suffix_offset`` where they begin.
    """

    def __init__(
        self, chunks: Iterator[bytes], name: str, losses: Losses, decodes: Callable[[bytearray], None]
    ) -> None:
        self.prefix = b""
        self.prefix_offset = 0
        self.suffixes: list[bytes] = []
        self.suffix_offset = 0
        self._chunks = chunks
        self._name = name
        self._losses = losses
        self._decodes = decodes
        self._offset = 0  # of the first byte in the buffer
        self._used: tuple[int, bool] | None = None  # set by the reader while it holds a slice

    def slices(self) -> Iterator[EventSlice]:
        """Every slice of the event list, in order. Raises UnreadableTraceError where there is no event list."""
        rest = self._read_header()
        while True:
            rest = yield from self._list_slices(rest)
            if not self.suffixes:
                self.suffix_offset = self._offset
            rest, again = self._read_suffix(rest)
            if not again:
                return
            self._losses.add("second_event_list", self._offset)
            if len(self.suffixes) > _MAX_LISTS:
                self._losses.add("trailing_text", self._offset)
                return

    def used(self, length: int, *, closed: bool) -> None:
        """The salvager tells how much of the slice it was given last it used, and whether the list closes there."""
        self._used = (length, closed)

    # -- header -------------------------------------------------------------------------------------------------

    def _read_header(self) -> bytes:
        head = bytearray()
        for chunk in self._chunks:
            searched = max(0, len(head) - _OVERLAP_BYTES)
            head += chunk
            if not self._offset:
                if len(head) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(head):
                    continue
                if head.startswith(_BYTE_ORDER_MARK):
                    self._losses.add("byte_order_mark", 0)
                    del head[: len(_BYTE_ORDER_MARK)]
                    self._offset = self.prefix_offset = len(_BYTE_ORDER_MARK)
            bare = _BARE_LIST.match(head)
            found = self._bare_list(head, bare) if bare else EVENT_LIST.search(head, searched)
            if found:
                return self._begin(head, found, bare=bool(bare))
            if len(head) > _MAX_HEADER_BYTES:
                break
        else:
            bare = _BARE_LIST.match(head)
            if bare and not head[bare.end() :].strip():
                return self._begin(head, bare, bare=True)
        raise self._no_trace(bytes(head[:4096]), empty=not head.strip())

    def _begin(self, head: bytearray, found: re.Match[bytes], *, bare: bool) -> bytes:
        self.prefix = b"" if bare else bytes(head[: found.end() - 1])
        self._offset += found.end()
        return bytes(memoryview(head)[found.end() :])

    @staticmethod
    def _bare_list(head: bytearray, bare: re.Match[bytes]) -> re.Match[bytes] | None:
        """A list that begins with an event, or one in which an event follows something else soon."""
        first = _FIRST_ENTRY.match(head, bare.end())
        if first and (first.group(1) in b"{]" or EVENT_START.search(head, 0, _CUT_SEARCH_BYTES)):
            return bare
        return None

    def _no_trace(self, head: bytes, *, empty: bool) -> UnreadableTraceError:
        if "truncated_compression" in self._losses or "corrupt_compression" in self._losses:
            reason = "Its compressed data is damaged before the event list begins."
        elif empty:
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
        more = 0  # as much again is read each time no cut is found, so that a long event costs linear time
        while True:
            parts = self._read(more)
            at_end = not parts
            buffer = bytearray().join((b"[", rest, *parts))
            del parts
            cut, sound, closed = self._cut(buffer, at_end=at_end)
            forced = not (sound or at_end) and len(buffer) > _MAX_EVENT_BYTES
            if forced and not cut:
                cut = len(buffer)
            begin = cut  # of the rest, past the comma
            if cut > 1:
                yield EventSlice(buffer, cut - 1, self._offset, sound, at_end, forced)
                used, self._used = self._used, None
                if used is not None and used[1]:
                    cut, closed = used[0], True
                elif used is not None and (used[0] < cut - 1 or cut == len(buffer)):
                    begin = used[0]
            if closed:
                self._offset += cut
                return bytes(memoryview(buffer)[cut + 1 :])
            if at_end:
                if "truncated" not in self._losses:
                    self._losses.add("missing_bracket", self._offset + cut - 1)
                return b""
            more = 0 if begin else len(buffer)
            rest = bytes(memoryview(buffer)[begin + 1 :])
            self._offset += begin

    def _read(self, least: int) -> list[bytes]:
        """The next chunks, of ``least`` bytes and one chunk at least; none at the end of the input."""
        parts = []
        for chunk in self._chunks:
            parts.append(chunk)
            least -= len(chunk)
            if least <= 0:
                break
        return parts

    def _cut(self, buffer: bytearray, *, at_end: bool) -> tuple[int, bool, bool]:
        """Where to end the slice that begins after the bracket in ``buffer``: position, sound, list closed there.

        Position 0 asks for more bytes.
        """
        if at_end:
            return self._cut_at_end(buffer)
        end = len(buffer)
        for backoff in _BACKOFF_BYTES:
            cut = _last_boundary(buffer, max(0, end - backoff))
            if cut <= 1:
                break
            outcome = self._try(buffer, cut)
            if isinstance(outcome, int):
                return outcome, True, True
            if outcome != "unfinished":
                return cut, outcome == "sound", False
            end = cut
        return 0, False, False

    def _cut_at_end(self, buffer: bytearray) -> tuple[int, bool, bool]:
        end = len(buffer)
        if not bytes(memoryview(buffer)[1:]).strip():
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
        outcome: str | int = "sound"
        try:
            if not buffer.isascii():
                buffer.decode("utf-8")
            self._decodes(buffer)
        except msgspec.DecodeError as error:
            outcome = _what_failed(str(error), buffer)
        except (UnicodeDecodeError, RecursionError):
            outcome = "damaged"
        buffer[cut] = held
        buffer += tail
        if isinstance(outcome, int) and not _is_sound(self._decodes, buffer, outcome):
            return "damaged"
        return outcome

    # -- suffix -------------------------------------------------------------------------------------------------

    def _read_suffix(self, rest: bytes) -> tuple[bytes, bool]:
        """Reads on to the end of the input, or to another event list."""
        tail = bytearray(rest)
        searched = 0
        while True:
            found = EVENT_LIST.search(tail, searched)
            if found:
                self.suffixes.append(bytes(tail[: found.start()]))
                self._offset += found.end()
                return bytes(memoryview(tail)[found.end() :]), True
            searched = max(0, len(tail) - _OVERLAP_BYTES)
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            if len(tail) > _MAX_HEADER_BYTES:
                self._losses.add("trailing_text", self._offset)
                for _ in self._chunks:
                    pass
                break
            tail += chunk
        self.suffixes.append(bytes(tail))
        return b"", False


def _last_boundary(buffer: bytearray, end: int) -> int:
    """Position of the comma of the last boundary between two events before ``end``; 0 where there is none."""
    at = buffer.rfind(_KINETO_BOUNDARY, 0, end)
    if at >= 0 and end - at < _CUT_SEARCH_BYTES:
        return at + 4
    start = max(0, end - _CUT_SEARCH_BYTES)
    for boundary, begin in ((EVENT_BOUNDARY, start), (EVENT_BOUNDARY, 0), (_ANY_BOUNDARY, 0)):
        last = 0
        for found in boundary.finditer(buffer, begin, end):
            last = found.start(1)
        if last:
            return last
    return 0


def _what_failed(message: str, buffer: bytearray) -> str | int:
    if "truncated" in message:
        return "unfinished"
    trailing = _TRAILING.search(message)
    if trailing is None:
        return "damaged"
    closed = buffer.rfind(b"]", 0, int(trailing.group(1)) - 1)  # the number is that of the first byte too many, from 1
    # The last byte is the bracket that was put in place of the cut.
    end = len(buffer) - 1
    closes = (
        closed > 0 and _AFTER_LIST.match(buffer, closed + 1, end) and not _LIST_GOES_ON.match(buffer, closed + 1, end)
    )
    return closed if closes else "damaged"


def _is_sound(decodes: Callable[[bytearray], None], buffer: bytearray, closed: int) -> bool:
    try:
        decodes(buffer[: closed + 1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
