"""A damaged slice of the event list -> every event in it that can be saved, as valid JSON texts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from tracelens_infer.trace.event import FullEvent, coerce_event
from tracelens_infer.trace.losses import Losses
from tracelens_infer.trace.mend import mend_json

__all__ = ["EVENT_BOUNDARY", "EVENT_LIST", "Salvaged", "salvage_slice"]

_EVENT_KEYS = rb"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)"
EVENT_BOUNDARY = re.compile(rb"\}\s*(,)\s*(?=\{\s*\"" + _EVENT_KEYS + rb"\"\s*:)")
"""The comma between two events, whatever the layout; a list of objects inside an event rarely looks like this."""

EVENT_LIST = re.compile(rb"\"traceEvents\"\s*:\s*\[")

_decoder = msgspec.json.Decoder(FullEvent)
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_LIST_END = re.compile(rb"\s*,?\s*\]")
_MAX_PIECES_JOINED = 8  # an event whose arguments hold a list of objects may be cut into as many pieces
_FIELD = re.compile(
    rb"\"(ph|cat|name|pid|tid|ts|dur|id|correlation)\"\s*:\s*"
    rb"(\"(?:[^\"\\\n]|\\.)*\"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?=\s*[,}\n\]])"
)


@dataclass(slots=True)
class Salvaged:
    """What a damaged slice yields.

    Attributes:
        events: each event as valid JSON text, in file order.
        originals: number of a repaired event within ``events`` -> its text as it stood in the file.
        list_end: where in the slice the event list closes; None where it goes on.
        headers: texts of trace headers found inside the list: another writer's beginnings.
    """

    events: list[bytes] = field(default_factory=list)
    originals: dict[int, bytes] = field(default_factory=dict)
    list_end: int | None = None
    headers: list[bytes] = field(default_factory=list)


def salvage_slice(text: bytes, offset: int, losses: Losses, *, at_end: bool) -> Salvaged:
    """Which events does this slice hold? It begins at an event; ``offset`` is where it begins in the input.

    ``at_end`` says that the input ends with the slice, so that an unfinished last event was cut off. What is lost
    or repaired is counted in ``losses``. The same slice always yields the same events.
    """
    saved = Salvaged()
    bounds = [0, *(match.start(1) + 1 for match in EVENT_BOUNDARY.finditer(text)), len(text) + 1]
    number = 0
    while number < len(bounds) - 1 and saved.list_end is None:
        number += _take(text, bounds, number, offset, losses, saved, at_end=at_end)
    return saved


def _take(
    text: bytes, bounds: list[int], number: int, offset: int, losses: Losses, saved: Salvaged, *, at_end: bool
) -> int:
    """Save the event that begins with piece ``number``; returns how many pieces it took."""
    start = bounds[number]
    start += len(text[start : bounds[number + 1] - 1]) - len(text[start : bounds[number + 1] - 1].lstrip())
    piece = text[start : bounds[number + 1] - 1]
    found = EVENT_LIST.search(piece)
    if found:  # another trace begins inside this one
        saved.headers.append(piece[: found.start()])
        losses.add("unreadable_event", offset + start)
        start += found.end()
        piece = text[start : bounds[number + 1] - 1]
    last = number + 2 >= len(bounds)
    if last and not piece.strip():
        return 1
    if _save_whole(piece, start, saved):
        return 1
    for count in range(2, min(_MAX_PIECES_JOINED, len(bounds) - 1 - number) + 1):
        if _save_whole(text[start : bounds[number + count] - 1], start, saved):
            return count
    _save_mended(piece, start, offset, losses, saved, cut_off=last and at_end)
    return 1


def _save_whole(piece: bytes, start: int, saved: Salvaged) -> bool:
    """Save a piece that is an event as it stands, perhaps with the end of the list after it."""
    end, list_end = len(piece), None
    try:
        event = _decoder.decode(piece)
    except msgspec.DecodeError as error:
        trailing = _TRAILING.search(str(error))
        if trailing is None:
            return False
        end = piece.rfind(b"}", 0, int(trailing.group(1)) - 1) + 1  # the number is that of the first character too many
        closing = _LIST_END.match(piece, end)
        if closing is None:
            return False
        list_end = start + closing.end() - 1
        try:
            event = _decoder.decode(piece[:end])
        except msgspec.DecodeError:
            return False
    except UnicodeDecodeError:
        return False
    if not event.ph or not _is_utf8(piece[:end]) or not _links_fit(event):
        return False
    saved.events.append(piece[:end])
    saved.list_end = list_end
    return True


def _links_fit(event: FullEvent) -> bool:
    return all(not isinstance(link, int) or -(2**63) <= link < 2**63 for link in (event.id, event.args.correlation))


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _save_mended(piece: bytes, start: int, offset: int, losses: Losses, saved: Salvaged, *, cut_off: bool) -> None:
    """Save what can be saved of a damaged event, and count what was wrong with it."""
    mended = mend_json(piece) if piece.startswith(b"{") else None
    if mended is not None:
        rest = piece[mended.end :]
        closing = _LIST_END.match(rest)
        if not rest.strip() or closing:
            event = coerce_event(mended.json)
            if closing:
                saved.list_end = start + mended.end + closing.end() - 1
                if b"," in closing.group():
                    losses.add("trailing_comma", offset + start)
            if event is None:
                losses.add("not_an_event", offset + start)
                return
            for code in mended.codes | event[1]:
                losses.add(code, offset + start)
            saved.originals[len(saved.events)] = piece[: mended.end]
            saved.events.append(event[0])
            return
    closing = _LIST_END.match(piece)
    if closing:  # nothing but the end of the list
        saved.list_end = start + closing.end() - 1
        return
    if cut_off:
        losses.add("truncated", offset + start)
        return
    _save_fields(piece, start, offset, losses, saved)


def _save_fields(piece: bytes, start: int, offset: int, losses: Losses, saved: Salvaged) -> None:
    """Last resort: the fields that can be recognised make an event, if they say what and when it was."""
    fields: dict[bytes, bytes] = dict(_FIELD.findall(piece))
    correlation = fields.pop(b"correlation", None)
    if correlation is not None:
        fields[b"args"] = b'{"correlation":%s}' % correlation
    text = b"{%s}" % b", ".join(b'"%s": %s' % item for item in fields.items())
    event = coerce_event(text) if piece.startswith(b"{") and {b"ph", b"ts"} <= fields.keys() else None
    if event is None:
        losses.add("unreadable_event", offset + start)
        return
    losses.add("broken_syntax", offset + start)
    saved.originals[len(saved.events)] = piece
    saved.events.append(event[0])
