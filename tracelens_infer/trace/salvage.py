"""A damaged slice of the event list -> every event in it that can be saved, as valid JSON texts."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeAlias

import msgspec

from tracelens_infer.trace.event import (
    EVENT_BOUNDARY,
    EVENT_LIST,
    EVENT_START,
    FullEvent,
    coerce_event,
    fits_columns,
)
from tracelens_infer.trace.losses import Losses
from tracelens_infer.trace.mend import mend_json

__all__ = ["Salvaged", "salvage_slice"]

_event_decoder = msgspec.json.Decoder(FullEvent)
_value_decoder = msgspec.json.Decoder(msgspec.Raw)
_SPACE = re.compile(rb"[ \t\r\n]*")
_BLANK = b" \t\r\n"
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_LIST_END = re.compile(rb"\]\s*(?:,\s*\"|,?\s*\}|,?\s*\Z|\x00)")
_PHASE = re.compile(rb"\"ph\"\s*:")
_FIELD = re.compile(
    rb"\"(ph|cat|name|pid|tid|ts|dur|id|correlation)\"\s*:\s*"
    rb"(\"(?:[^\"\\\n]|\\.)*\"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?=\s*[,}\n\]])"
)
_BRACE_OR_TEXT = re.compile(rb"\"(?:[^\"\\\n]|\\.)*\"|[{}\[\]]")
# How far a damaged event may reach, in boundaries that look like those between events and in bytes: bounds, or
# damage that fails every try would make salvage quadratic.
_MAX_BOUNDARIES = 32
_MAX_DAMAGED_BYTES = 4 << 20
_MAX_LIST_ENDS = 64

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
        self._sound: dict[int, bool] = {}  # comma -> what follows it is an event
        self._last_comma: int | None = None  # since the last entry
        self._needs_comma = False
        self._looked_for_list_end = False
        self._known_list_end: int | None = None

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
        if not self._needs_comma:
            self._lose("trailing_comma", at)
        self._needs_comma, self._last_comma = False, at
        return at + 1

    def _bracket(self, at: int) -> int:
        """The end of the list, if what follows can follow it."""
        if not _LIST_END.match(self._text, at):
            self._lose("stray_text", at)
            return at + 1
        if self._last_comma is not None and not self._needs_comma:
            self._lose("trailing_comma", self._last_comma)
        self._saved.closed = True
        return at + 1

    def _no_event(self, at: int) -> int:
        """Skip a number, a text or a literal, or what is no JSON at all."""
        extent, end = _extent(self._view, at)
        if extent == "whole" and self._text[at] != 0x5B:
            following = self._skip(end)
            if self._text[following : following + 1] in (b"", b",", b"]"):
                self._lose("not_an_event", at)
                self._needs_comma = True
                return end
        if extent == "unfinished" and self._at_end and self._text[at] != 0x5B:
            self._lose("truncated", at)
            return len(self._text)
        self._lose("stray_text", at)
        self._needs_comma = False
        start = EVENT_START.search(self._text, at + 1)
        end = start.start() if start else len(self._text)
        list_end = self._list_end()
        return list_end if list_end is not None and at < list_end < end else end

    # -- events -------------------------------------------------------------------------------------------------

    def _event(self, at: int) -> int | None:
        """Save the event at ``at``; returns where it ends, None if that is not in this slice."""
        if self._needs_comma:
            self._lose("missing_comma", at)
        self._needs_comma = True
        comma = self._commas[bisect_left(self._commas, at)]
        if self._save_whole(at, comma):
            return comma
        extent, end = _extent(self._view, at)
        if extent == "whole":
            if not self._save_whole(at, end):
                self._save_mended(at, end)
            return end
        if extent == "unfinished":
            if self._at_end:
                mended_end = self._save_mended(at, len(self._text))
                if mended_end is None:
                    self._lose("truncated", at)
                return mended_end or len(self._text)
            if not self._forced or at > len(self._text) // 2:
                return None
        return self._damaged(at)

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
        return True

    def _save_mended(self, at: int, limit: int) -> int | None:
        """Save an event of which nothing is lost but what is wrong with it; returns where it ends."""
        mended = mend_json(self._text[at:limit])
        if mended is None:
            return None
        end = at + mended.end
        event = coerce_event(mended.json)
        if event is None:
            self._lose("not_an_event", at)
            return end
        for code in mended.codes.keys() | event[1]:
            self._lose(code, at)
        self._keep(event[0], self._text[at:end])
        return end

    def _keep(self, event: bytes, original: bytes) -> None:
        self._saved.originals[len(self._saved.events)] = original
        self._saved.events.append(event)

    def _damaged(self, at: int) -> int:
        """Save what can be saved of an event that is no JSON; returns where to go on."""
        limit = self._next_sound(at)
        header = EVENT_LIST.search(self._text, at, limit)
        if header:  # another trace begins inside this one
            self._saved.headers.append(self._text[at : header.start()])
            self._lose("unreadable_event", at)
            self._needs_comma, self._last_comma = False, None
            return header.end()
        end = self._save_mended(at, limit)
        return self._save_fields(at, limit) if end is None else end

    def _next_sound(self, at: int) -> int:
        """The comma before the next event that is one as it stands; a damaged event reaches no further."""
        number = bisect_left(self._commas, at)
        farthest = min(number + _MAX_BOUNDARIES, len(self._commas) - 1)
        while number < farthest and not self._is_followed_by_event(self._commas[number]):
            number += 1
        return min(self._commas[number], at + _MAX_DAMAGED_BYTES)

    def _is_followed_by_event(self, comma: int) -> bool:
        known = self._sound.get(comma)
        if known is None:
            at = self._skip(comma + 1)
            extent, end = _extent(self._view, at)
            known = self._sound[comma] = extent == "whole" and _is_complete(self._text[at:end])
        return known

    def _save_fields(self, at: int, limit: int) -> int:
        """Last resort: the fields that can be recognised make an event, if they say what and when it was."""
        number = bisect_left(self._commas, at)
        end = min(self._commas[number], limit)
        list_end = self._list_end()
        if list_end is not None and at < list_end < end:
            end = list_end
        piece = self._text[at:end].rstrip(_BLANK)
        fields = _recognise(piece)
        text = b"{%b}" % b", ".join(b'"%b": %b' % item for item in fields.items())
        event = coerce_event(text) if {b"ph", b"ts"} <= fields.keys() else None
        if event is None:
            self._lose("unreadable_event", at)
        else:
            self._lose("broken_syntax", at)
            self._keep(event[0], piece)
        if end != self._commas[number]:
            return end
        # The objects of a list among its arguments are parts of this event.
        while self._commas[number] < limit and not _PHASE.search(
            self._text, self._commas[number], self._commas[number + 1]
        ):
            number += 1
        return self._commas[number]

    def _list_end(self) -> int | None:
        """Where the list closes, judged by what follows: the rest of the header, whole or cut by the slice's end."""
        if not self._looked_for_list_end:
            self._looked_for_list_end = True
            bounds = [0, *(comma + 1 for comma in self._commas[:-1])]
            last = next((begin for begin in reversed(bounds) if _PHASE.search(self._text, begin)), 0)
            candidates = islice(_LIST_END.finditer(self._text, last), _MAX_LIST_ENDS)
            ends = (candidate.start() for candidate in candidates)
            self._known_list_end = next((end for end in ends if self._header_follows(end + 1)), None)
        return self._known_list_end

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
