"""A damaged slice of the event list -> every event in it that can be saved, as valid JSON texts."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Literal, TypeAlias

import msgspec

from tracelens_infer.trace.event import (
    EVENT_BOUNDARY,
    EVENT_START,
    FILLED_EVENT_LIST,
    FullEvent,
    coerce_event,
    fits_columns,
)
from tracelens_infer.trace.losses import Losses
from tracelens_infer.trace.mend import UnfinishedError, mend_json

__all__ = ["Salvaged", "salvage_slice"]

_event_decoder = msgspec.json.Decoder(FullEvent)
_value_decoder = msgspec.json.Decoder(msgspec.Raw)
_SPACE = re.compile(rb"[ \t\r\n]*")
_BLANK = b" \t\r\n"
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_LIST_END = re.compile(rb"\](?!\s*\}?\s*,\s*\{)\s*(?:,\s*\"|,?\s*\}|,?\s*\Z|\x00)")
_PHASE = re.compile(rb"\"ph\"\s*:")
_FIELD = re.compile(
    rb"\"(ph|cat|name|pid|tid|ts|dur|id|correlation)\"\s*:\s*"
    rb"(\"(?:[^\"\\\n]|\\.)*\"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?=\s*[,}\n\]])"
)
_BRACE_OR_TEXT = re.compile(rb"\"(?:[^\"\\\n]|\\.)*\"|[{}\[\]]")
# How far a damaged event may reach, in objects that look like events and in bytes: bounds, or damage that fails every
# try would make salvage quadratic. A few events of a slice may reach further.
_MAX_STARTS = 256
_MAX_DAMAGED_BYTES = 4 << 20
_FURTHER = 4  # times the slice's length, for all of them together
_MAX_LIST_ENDS = 64
_LONGEST_START = 256  # of an event: a brace, space, a key and a colon

_Extent: TypeAlias = Literal["whole", "unfinished", "damaged"]


@dataclass(slots=True)
class Salvaged:
    """What a damaged slice yields.

    Attributes:
        events: each event as valid JSON text, in file order.
        originals: number of a repaired event within ``events`` -> its text as it stood in the file.
        headers: texts of trace headers found inside the list: another writer's beginnings.
        end: how much of the slice was used. An event that goes on after the slice is left for the next one.
        closed: the event list closes there; the bracket is used, too.
    """

    events: list[bytes] = field(default_factory=list)
    originals: dict[int, bytes] = field(default_factory=dict)
    headers: list[bytes] = field(default_factory=list)
    end: int = 0
    closed: bool = False


def salvage_slice(text: bytes, offset: int, losses: Losses, *, at_end: bool, forced: bool = False) -> Salvaged:
    """Which events does this slice hold? It begins at an event; ``offset`` is where it begins in the input.

    ``at_end`` says that the input ends with the slice, so that an unfinished last event was cut off; ``forced``, that
    an event that begins in its first half has to be given up if its end is not in the slice. What is lost or repaired
    is counted in ``losses``, with the offset of the event (or of what stands between events). Equal arguments yield
    equal events.
    """
    return _Salvager(text, offset, losses, at_end=at_end, forced=forced).run()


class _Salvager:
    """Walks through a slice, entry by entry."""

    def __init__(self, text: bytes, offset: int, losses: Losses, *, at_end: bool, forced: bool) -> None:
        self._text = text
        self._view = memoryview(text)
        self._offset = offset
        self._losses = losses
        self._at_end = at_end
        self._forced = forced
        self._saved = Salvaged()
        self._commas = [boundary.start(1) for boundary in EVENT_BOUNDARY.finditer(text)]
        self._commas.append(len(text))
        self._complete: dict[int, bool] = {}  # where an object begins -> it is an event
        self._last_comma: int | None = None  # since the last entry
        self._needs_comma = False
        self._further = _FURTHER * len(text)
        self._astray = False  # since the last event that was made out: what stands here may be a part of a lost one

    def run(self) -> Salvaged:
        at = self._skip(0)
        while at < len(self._text):
            end = self._take(at)
            if end is None:  # goes on after the slice
                break
            if self._saved.closed:
                at = end
                break
            at = self._skip(end)
        self._saved.end = at
        return self._saved

    def _take(self, at: int) -> int | None:
        first = self._text[at]
        if first == 0x2C:
            return self._comma(at)
        if first == 0x5D:
            return self._bracket(at)
        return self._event(at) if first == 0x7B else self._no_event(at)

    def _skip(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        return space.end() if space else at

    def _lose(self, code: str, at: int) -> None:
        self._losses.add(code, self._offset + at)

    # -- between events -----------------------------------------------------------------------------------------

    def _comma(self, at: int) -> int:
        if not self._needs_comma and not self._astray:
            self._lose("trailing_comma", at)
        self._needs_comma, self._last_comma = False, at
        return at + 1

    def _bracket(self, at: int) -> int | None:
        """The end of the list, if what follows can follow it."""
        if not _LIST_END.match(self._text, at) or (self._astray and not self._header_follows(at + 1)):
            return at + 1 if self._stray(at) else None
        if self._last_comma is not None and not self._needs_comma:
            self._lose("trailing_comma", self._last_comma)
        self._saved.closed = True
        return at + 1

    def _stray(self, at: int) -> bool:
        """Begin to skip what belongs to no event; False if where it ends is not in this slice."""
        if not self._astray:
            if self._next_complete(at, _MAX_STARTS) == len(self._text) and self._goes_on(at):
                return False
            self._lose("stray_text", at)
        self._astray, self._needs_comma, self._last_comma = True, False, None
        return True

    def _no_event(self, at: int) -> int | None:
        """Skip a number, a text or a literal, or what is no JSON at all."""
        extent, end = _extent(self._view, at)
        if extent == "whole" and self._text[at] != 0x5B:
            following = self._skip(end)
            if self._text[following : following + 1] in (b"", b",", b"]"):
                self._found_no_event(at)
                return end
        if extent == "unfinished" and self._at_end and self._text[at] != 0x5B:
            self._lose("truncated", at)
            return len(self._text)
        if not self._stray(at):
            return None
        start = EVENT_START.search(self._text, at + 1)
        end = start.start() if start else len(self._text)
        list_end = self._list_end
        return list_end if list_end is not None and at < list_end < end else end

    def _found_no_event(self, at: int) -> None:
        if not self._astray:
            self._lose("not_an_event", at)
        self._needs_comma, self._last_comma = True, None

    # -- events -------------------------------------------------------------------------------------------------

    def _event(self, at: int) -> int | None:
        """Save the event at ``at``; returns where it ends, None if that is not in this slice."""
        if self._needs_comma and not self._astray:
            self._lose("missing_comma", at)
        self._needs_comma, self._last_comma = True, None
        comma = self._commas[bisect_left(self._commas, at)]
        if self._save_whole(at, comma):
            return comma
        extent, end = _extent(self._view, at)
        if extent == "whole":
            if not self._save_whole(at, end):
                self._save_coerced(at, end)
            return end
        if extent == "unfinished" and self._goes_on(at):
            return None
        return self._damaged(at)

    def _goes_on(self, at: int) -> bool:
        """May the rest of an event whose end is not in this slice be in the next one?"""
        return not self._at_end and (not self._forced or at > len(self._text) // 2)

    def _save_whole(self, at: int, end: int) -> bool:
        """Save an event that is one as it stands."""
        piece = self._text[at:end].rstrip(_BLANK)
        try:
            event = _event_decoder.decode(piece)
        except (msgspec.DecodeError, RecursionError):
            return False
        if not fits_columns(event) or not _is_utf8(piece):
            return False
        self._saved.events.append(piece)
        self._astray = False
        return True

    def _save_coerced(self, at: int, end: int) -> None:
        """Save an event that is JSON, but has fields of the wrong type, or text that is not UTF-8."""
        text = self._text[at:end]
        sound = _is_utf8(text)
        codes = [] if sound else ["invalid_utf8"]
        self._save_object(at, end, text if sound else text.decode("utf-8", "replace").encode(), codes)

    def _save_object(self, at: int, end: int, text: bytes, codes: Iterable[str]) -> None:
        event = coerce_event(text)
        if event is None:
            self._found_no_event(at)
            return
        for code in {*codes, *event[1]}:
            self._lose(code, at)
        self._keep(event[0], self._text[at:end])

    def _save_mended(self, at: int, limit: int) -> int | None:
        """Save an event whose syntax can be mended; returns where it ends. Raises UnfinishedError at ``limit``."""
        try:
            mended = mend_json(self._text[at:limit])
        except UnfinishedError:
            further = self._next_complete(at, len(self._starts))
            if further <= limit or self._further < further - at:
                raise
            self._further -= further - at
            return self._save_mended(at, further)
        if mended is None:
            return None
        end = at + mended.end
        self._save_object(at, end, mended.json, mended.codes)
        return end

    def _keep(self, event: bytes, original: bytes) -> None:
        self._saved.originals[len(self._saved.events)] = original
        self._saved.events.append(event)
        self._astray = False

    def _damaged(self, at: int) -> int | None:
        """Save what can be saved of an event that is no JSON; returns where to go on, None if its end is not here."""
        limit = self._next_complete(at, _MAX_STARTS)
        header = FILLED_EVENT_LIST.search(self._text, at, limit + _LONGEST_START)
        if header:  # another trace begins inside this one
            self._saved.headers.append(self._text[at : header.start()])
            self._lose("unreadable_event", at)
            self._needs_comma, self._last_comma = False, None
            return header.end()
        try:
            end = self._save_mended(at, limit)
            if end is not None:
                return end
        except UnfinishedError:
            if self._at_end and limit == len(self._text):
                self._lose("truncated", at)
                return limit
        if limit == len(self._text) and self._goes_on(at):
            return None
        return self._save_fields(at, limit)

    @cached_property
    def _starts(self) -> list[int]:
        """Where objects begin that may be events."""
        return [start.start() for start in EVENT_START.finditer(self._text)]

    def _next_complete(self, at: int, most: int) -> int:
        """Where the next event begins that is one as it stands; a damaged event reaches no further.

        Gives up after ``most`` objects that are none, and says where the one after them begins.
        """
        number = bisect_right(self._starts, at)
        farthest = min([len(self._text), at + _MAX_DAMAGED_BYTES, *self._starts[number + most :][:1]])
        for start in islice(self._starts, number, number + most):
            if start >= farthest:
                break
            known = self._complete.get(start)
            if known is None:
                extent, end = _extent(self._view, start)
                known = self._complete[start] = extent == "whole" and _is_complete(self._text[start:end])
            if known:
                return start
        return farthest

    def _save_fields(self, at: int, limit: int) -> int:
        """Last resort: the fields that can be recognised make an event, if they say what and when it was."""
        number = bisect_left(self._commas, at)
        ends = [self._commas[number], limit]
        list_end = self._list_end
        if list_end is not None and list_end > at:
            ends.append(list_end)
        end = min(ends)
        piece = self._text[at:end].rstrip(_BLANK + b",")
        fields = _recognise(piece)
        text = b"{%b}" % b", ".join(b'"%b": %b' % item for item in fields.items())
        event = coerce_event(text) if {b"ph", b"ts"} <= fields.keys() else None
        if event is None:
            self._lose("unreadable_event", at)
        else:
            self._lose("broken_syntax", at)
            self._keep(event[0], piece)
        self._astray, self._last_comma = True, None  # the objects of a list among its arguments may follow
        return end

    @cached_property
    def _list_end(self) -> int | None:
        """Where the list closes, judged by what follows: the rest of the header, whole or cut by the slice's end."""
        bounds = [0, *(comma + 1 for comma in self._commas[:-1])]
        last = next((begin for begin in reversed(bounds) if _PHASE.search(self._text, begin)), 0)
        candidates = islice(_LIST_END.finditer(self._text, last), _MAX_LIST_ENDS)
        ends = (candidate.start() for candidate in candidates)
        return next((end for end in ends if self._header_follows(end + 1)), None)

    def _header_follows(self, at: int) -> bool:
        rest = b'{"":0' + self._text[at:]
        extent, end = _extent(memoryview(rest), 0)
        if extent == "whole":
            return self._at_end and not rest[end:].strip()
        return extent == "unfinished" and (self._at_end or bool(self._text[at:].strip()))


def _extent(view: memoryview, at: int) -> tuple[_Extent, int]:
    """Is the value at ``at`` well-formed, and where does it end?"""
    try:
        _value_decoder.decode(view[at:])
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            return "unfinished", at
        trailing = _TRAILING.search(str(error))
        if trailing is None:
            return "damaged", at
        end = at + int(trailing.group(1)) - 1  # the number is that of the first byte too many, counted from 1
    except RecursionError:
        return "damaged", at
    else:
        end = len(view)
    while view[end - 1] in _BLANK:
        end -= 1
    return "whole", end


def _is_complete(text: bytes) -> bool:
    """Does this object have everything that real events have?"""
    try:
        event = _event_decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bool(event.ph) and event.pid is not None and (event.ph == "M" or not math.isnan(event.ts))


def _recognise(piece: bytes) -> dict[bytes, bytes]:
    """The fields of a damaged event that can be made out. Of its arguments, only the correlation."""
    fields: dict[bytes, bytes] = {}
    depth = position = 0
    for found in _FIELD.finditer(piece):
        for part in _BRACE_OR_TEXT.finditer(piece, position, found.start()):
            depth += (part.group() in b"{[") - (part.group() in b"}]")
        position = found.end()
        key, value = found.groups()
        if key == b"correlation":
            if depth == 2:
                fields.setdefault(b"args", b'{"correlation":%b}' % value)
        elif depth == 1:
            fields.setdefault(key, value)
    return fields


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
