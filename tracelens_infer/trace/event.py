"""How an event looks in Chrome-trace JSON: lean structs to decode, and what to make of fields of the wrong type."""

from __future__ import annotations

import math
import re

import msgspec

__all__ = [
    "EVENT_BOUNDARY",
    "EVENT_LIST",
    "EVENT_START",
    "FIELD_INSIDE",
    "FILLED_EVENT_LIST",
    "LONGEST_US",
    "NO_LINK",
    "BareEvent",
    "EventArgs",
    "ExactTimes",
    "FullEvent",
    "LinkedEvent",
    "NamedEvent",
    "coerce_event",
    "exact_ns",
    "fits_columns",
]

NO_LINK = -(2**63)
LONGEST_US = 4.6e15
"""No time or duration is longer: the sum of two still fits int64 nanoseconds, and the year 2115 can be told."""
_NAN = math.nan

# What an event may begin with. Every writer seen begins with one of the first; the others are Chrome's.
_KEY = (
    rb"\"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp"
    rb"|tts|tdur|cname|sf|esf|stack|id2|bind_id|scope|local|flow_in|flow_out)\"\s*:"
)
EVENT_START = re.compile(rb"\{\s*" + _KEY)
EVENT_BOUNDARY = re.compile(rb"\}\s*(,)\s*(?=\{\s*" + _KEY + rb")")
"""The comma between two events, whatever the layout; a list of objects inside an event rarely looks like this."""
FIELD_INSIDE = re.compile(rb"[,{]\s*" + _KEY)
"""A field of an event; a text that holds one, quotes and all, lacks its own closing quote."""
EVENT_LIST = re.compile(rb"\"traceEvents\"\s*:\s*\[")
FILLED_EVENT_LIST = re.compile(EVENT_LIST.pattern + rb"\s*(?=\{\s*" + _KEY + rb")")


class EventArgs(msgspec.Struct, gc=False, frozen=True):
    """The one argument that the columns keep."""

    correlation: int = NO_LINK


_NO_ARGS = EventArgs()


# Four shapes, since each field that is decoded costs time: host ops and Python frames have no links, and names are
# wanted only of events that can mark a step. Every other key is skipped without an object being made for it.
class BareEvent(msgspec.Struct, gc=False):
    """Track and time of an event; ts and dur in microseconds, NaN where missing."""

    ph: str = ""
    cat: str | None = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: float = _NAN
    dur: float = _NAN


class NamedEvent(BareEvent, gc=False):
    """A bare event and its name."""

    name: str = ""


class LinkedEvent(BareEvent, gc=False):
    """A bare event, its flow id and its correlation."""

    id: int | float | str | None = None
    args: EventArgs = msgspec.field(default_factory=lambda: _NO_ARGS)


class FullEvent(LinkedEvent, gc=False):
    """Everything that the columns and labels keep."""

    name: str = ""


class ExactTimes(msgspec.Struct, gc=False):
    """The start as written, for timestamps of which a double would lose nanoseconds."""

    ts: msgspec.Raw = msgspec.Raw(b"null")


def fits_columns(event: FullEvent) -> bool:
    """Is this an event, all of whose numbers fit the columns?"""
    return (
        bool(event.ph)
        and not abs(event.ts) > LONGEST_US  # NaN, a time that is missing, fits
        and not abs(event.dur) > LONGEST_US
        and -(2**63) <= event.args.correlation < 2**63
    )


def exact_ns(text: bytes) -> int | None:
    """How many nanoseconds is this JSON number of microseconds, exactly? None where it is no number that fits."""
    digits = text.decode("ascii", "replace")
    whole, _, fraction = digits.partition(".")
    if whole.isdigit() and len(fraction) <= 3 and (fraction.isdigit() or not fraction):
        return int(whole) * 1000 + int((fraction + "000")[:3])
    from decimal import Decimal, DecimalException

    try:
        value = Decimal(digits)
        return int((value * 1000).to_integral_value()) if abs(value) <= LONGEST_US else None
    except DecimalException:
        return None


_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NUMBER_AS_TEXT = re.compile(rb'"\s*(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*"')
_WHOLE_FLOAT = re.compile(rb"(-?\d+)\.0+")  # what a data frame makes of integers
_full_decoder = msgspec.json.Decoder(FullEvent)
_KEYS = frozenset({"ph", "cat", "pid", "tid", "ts", "dur", "id", "name", "args"})
_NUMBERS = frozenset({"ts", "dur", "id", "pid", "tid"})


def coerce_event(text: bytes) -> tuple[bytes, set[str]] | None:
    """Which event did this well-formed object mean, fields of the wrong type mended? None where it is no event.

    Numbers written as texts become numbers, digit for digit; what else has the wrong type is left out.
    Returns the object as JSON text and the kinds of damage.
    """
    fields = _decode_fields(text)
    if fields is None:
        return None
    codes: set[str] = set()
    for key in _KEYS & fields.keys():
        value = _coerce_field(key, bytes(fields[key]), codes)
        if value is None:
            del fields[key]
        else:
            fields[key] = msgspec.Raw(value)
    if "ph" not in fields:
        return None
    return msgspec.json.encode(fields), codes


def _decode_fields(text: bytes) -> dict[str, msgspec.Raw] | None:
    try:
        return _fields_decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _fits(key: str, value: bytes) -> bool:
    phase = b"" if key == "ph" else b'"ph":"X",'
    try:
        event = _full_decoder.decode(b'{%b"%b":%b}' % (phase, key.encode(), value))
    except (msgspec.DecodeError, RecursionError):
        return False
    return fits_columns(event)


def _coerce_field(key: str, value: bytes, codes: set[str]) -> bytes | None:
    if _fits(key, value):
        return value
    as_text = _NUMBER_AS_TEXT.fullmatch(value)
    if as_text and key in ("ts", "dur") and _fits(key, as_text.group(1)):
        codes.add("number_as_text")
        return as_text.group(1)
    if key == "args":
        return _coerce_args(value, codes)
    if value != b"null":
        is_number = key in _NUMBERS and value[:1] in b"-0123456789"
        codes.add("number_out_of_range" if is_number else "wrong_type")
    return None


def _coerce_args(value: bytes, codes: set[str]) -> bytes | None:
    fields = _decode_fields(value)
    if fields is None:
        if value != b"null":
            codes.add("wrong_type")
        return None
    correlation = bytes(fields.pop("correlation", msgspec.Raw(b"null")))
    as_text = _NUMBER_AS_TEXT.fullmatch(correlation)
    digits = as_text.group(1) if as_text else correlation
    whole_float = _WHOLE_FLOAT.fullmatch(digits)
    digits = whole_float.group(1) if whole_float else digits
    if _fits("args", b'{"correlation":%b}' % digits):
        if as_text:
            codes.add("number_as_text")
        fields["correlation"] = msgspec.Raw(digits)
    elif correlation != b"null":
        codes.add("number_out_of_range" if digits[:1] in b"-0123456789" else "wrong_type")
    return msgspec.json.encode(fields)
