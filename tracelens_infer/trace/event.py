"""How an event looks in Chrome-trace JSON: lean structs to decode, and what to make of fields of the wrong type."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

__all__ = [
    "NO_LINK",
    "BareEvent",
    "EventArgs",
    "ExactTimes",
    "FullEvent",
    "LinkedEvent",
    "NamedEvent",
    "coerce_event",
    "exact_ns",
]

NO_LINK = -(2**63)
_NAN = math.nan


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


def exact_ns(text: bytes) -> int | None:
    """How many nanoseconds is this JSON number of microseconds, exactly? None where it is no finite number."""
    digits = text.decode("ascii", "replace").strip('"')
    whole, _, fraction = digits.partition(".")
    if whole.isdigit() and len(fraction) <= 3 and (fraction.isdigit() or not fraction):
        return int(whole) * 1000 + int((fraction + "000")[:3])
    from decimal import Decimal, InvalidOperation

    try:
        value = Decimal(digits) * 1000
        return int(value.to_integral_value()) if value.is_finite() and abs(value) < 2**63 else None
    except InvalidOperation:
        return None


_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_full_decoder = msgspec.json.Decoder(FullEvent)
_NUMBER_AS_TEXT = re.compile(rb'"\s*(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*"')
_FIELD_TYPES: dict[str, type] = {
    "ph": BareEvent,
    "cat": BareEvent,
    "pid": BareEvent,
    "tid": BareEvent,
    "ts": BareEvent,
    "dur": BareEvent,
    "id": LinkedEvent,
    "name": NamedEvent,
    "args": LinkedEvent,
}


def coerce_event(text: bytes) -> tuple[bytes, set[str]] | None:
    """Which event did this well-formed object mean, fields of the wrong type mended? None where it is no event.

    Numbers written as texts become numbers, digit for digit; what else has the wrong type is left out.
    Returns the object as JSON text and the kinds of damage.
    """
    try:
        fields = _fields_decoder.decode(text)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    codes: set[str] = set()
    for key in _FIELD_TYPES.keys() & fields.keys():
        value = _coerce_field(key, bytes(fields[key]), codes)
        if value is None:
            del fields[key]
        else:
            fields[key] = msgspec.Raw(value)
    if "ph" not in fields:
        return None
    return msgspec.json.encode(fields), codes


def _fits(key: str, value: bytes) -> bool:
    try:
        event: Any = msgspec.json.decode(b'{"%s":%s}' % (key.encode(), value), type=_FIELD_TYPES[key])
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    number = event.args.correlation if key == "args" else getattr(event, key)
    return not isinstance(number, int) or -(2**63) <= number < 2**63


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
        is_number = key in ("ts", "dur", "id", "pid", "tid") and value[:1] in b"-0123456789"
        codes.add("number_out_of_range" if is_number else "wrong_type")
    return None


def _coerce_args(value: bytes, codes: set[str]) -> bytes | None:
    try:
        fields = _fields_decoder.decode(value)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        if value != b"null":
            codes.add("wrong_type")
        return None
    correlation = bytes(fields.pop("correlation", msgspec.Raw(b"null")))
    as_text = _NUMBER_AS_TEXT.fullmatch(correlation)
    digits = as_text.group(1) if as_text else correlation
    if _fits("args", b'{"correlation":%s}' % digits):
        codes.add("number_as_text")
        fields["correlation"] = msgspec.Raw(digits)
    elif correlation != b"null":
        codes.add("number_out_of_range" if digits[:1] in b"-0123456789" else "wrong_type")
    return msgspec.json.encode(fields)
