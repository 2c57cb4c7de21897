"""One event: exact times, fields of the wrong type, and what msgspec has to say for the reader to work."""

from __future__ import annotations

import json
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given

from tests.trace.layouts import microseconds, nanoseconds
from tracelens_infer.trace.event import (
    EVENT_BOUNDARY,
    EVENT_START,
    LONGEST_US,
    FullEvent,
    coerce_event,
    exact_ns,
    fits_columns,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"0", 0),
        (b"12", 12_000),
        (b"12.5", 12_500),
        (b"1712195495519689.047", 1_712_195_495_519_689_047),
        (b"-3.25", -3250),
        (b"1.7e15", 1_700_000_000_000_000_000),
        (b"1.0004", 1000),
        (b"1.0006", 1001),
        (b"-0.0", 0),
        (b"null", None),
        (b"1e300", None),
        (b"1e99999999999999999999", None),
    ],
)
def test_microseconds_are_told_to_the_nanosecond(text: bytes, expected: int | None) -> None:
    assert exact_ns(text) == expected


@given(number=microseconds())
def test_any_time_is_told_exactly(number: str) -> None:
    assert exact_ns(number.encode()) == nanoseconds(Decimal(number))


SOUND = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5.5, "dur": 1.25}


def coerced(**fields: object) -> tuple[dict[str, object], set[str]]:
    found = coerce_event(json.dumps(SOUND | fields).encode())
    assert found is not None
    event = json.loads(found[0])
    assert fits_columns(msgspec.json.decode(found[0], type=FullEvent))
    return event, found[1]


@pytest.mark.parametrize(
    ("key", "value", "kept", "code"),
    [
        ("ts", "12.5", 12.5, "number_as_text"),
        ("dur", " -3e2 ", -300.0, "number_as_text"),
        ("ts", "soon", None, "wrong_type"),
        ("ts", [1], None, "wrong_type"),
        ("ts", True, None, "wrong_type"),
        ("ts", None, None, None),
        ("dur", None, None, None),
        ("ts", 10**30, None, "number_out_of_range"),
        ("dur", -1e300, None, "number_out_of_range"),
        ("dur", LONGEST_US * 2, None, "number_out_of_range"),
        ("pid", True, None, "wrong_type"),
        ("pid", {"a": 1}, None, "wrong_type"),
        ("pid", 10**30, 10**30, None),
        ("tid", "stream 7", "stream 7", None),
        ("tid", None, None, None),
        ("cat", 5, None, "wrong_type"),
        ("cat", None, None, None),
        ("name", 5, None, "wrong_type"),
        ("name", None, None, None),
        ("id", [1], None, "wrong_type"),
        ("id", 2**70, 2**70, None),
        ("args", None, None, None),
        ("args", "text", None, "wrong_type"),
        ("args", [1, 2], None, "wrong_type"),
    ],
)
def test_a_field_of_the_wrong_type_is_mended_or_left_out(
    key: str, value: object, kept: object, code: str | None
) -> None:
    event, codes = coerced(**{key: value})
    assert event.get(key) == kept
    assert codes == ({code} if code else set())
    assert {name: item for name, item in event.items() if name != key} == {
        name: item for name, item in SOUND.items() if name != key
    }


@pytest.mark.parametrize(
    ("value", "kept", "code"),
    [
        (7, 7, None),
        ("7", 7, "number_as_text"),
        (7.0, 7, None),
        ("7.0", 7, "number_as_text"),
        (7.5, None, "number_out_of_range"),
        (2**63, None, "number_out_of_range"),
        ("many", None, "wrong_type"),
        ([7], None, "wrong_type"),
        (None, None, None),
    ],
)
def test_a_correlation_of_the_wrong_type_leaves_the_other_arguments(
    value: object, kept: object, code: str | None
) -> None:
    event, codes = coerced(ts="1", args={"correlation": value, "stream": 7, "big": 10**30})
    assert event["args"] == {"stream": 7, "big": 10**30} | ({} if kept is None else {"correlation": kept})
    assert codes == {"number_as_text"} | ({code} if code else set())


@pytest.mark.parametrize(
    "text", [b"{}", b'{"ph": ""}', b'{"ph": 5, "ts": 1}', b'{"name": "X"}', b"[]", b"5", b'{"ph": "X"']
)
def test_what_has_no_phase_is_no_event(text: bytes) -> None:
    assert coerce_event(text) is None


def test_the_last_of_a_repeated_key_counts() -> None:
    text = b'{"ph": "X", "ts": "1", "args": {"stream": 1, "stream": 2}, "ts": "3"}'
    found = coerce_event(text)
    assert found is not None
    assert json.loads(found[0])["ts"] == 3
    decoded = msgspec.json.decode(
        b'{"ph": "X", "ts": 1, "ts": 3, "args": {"correlation": 4, "correlation": 5}}', type=FullEvent
    )
    assert (decoded.ts, decoded.args.correlation) == (3, 5)


def test_deeply_nested_arguments_are_no_event() -> None:
    assert coerce_event(b'{"ph": "X", "ts": "1", "args": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}") is None


# -- what the reader takes for granted of msgspec --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[{}", "Input data was truncated"),
        (b'[{"ph": "X', "Input data was truncated"),
        (b"[{}], 5", "JSON is malformed: trailing characters (byte 5)"),
        (b"[{}]  }", "JSON is malformed: trailing characters (byte 7)"),
        (b"[{},]", "JSON is malformed: trailing comma in array (byte 4)"),
        (b"[{} {}]", "JSON is malformed: expected ',' or ']' (byte 4)"),
        (b'[{"a": nan}]', "JSON is malformed: invalid character (byte 8)"),
        (b'[{"a": 1}, 5]', "Expected `object`, got `int` - at `$[1]`"),
    ],
)
def test_msgspec_says_where_a_list_fails(text: bytes, message: str) -> None:
    """slices._what_failed and salvage._extent read these messages; the byte is counted from 1 where it is trailing."""
    with pytest.raises(msgspec.DecodeError) as raised:
        msgspec.json.decode(text, type=list[FullEvent])
    assert str(raised.value) == message


def test_msgspec_tells_deep_nesting_and_bad_text_apart() -> None:
    with pytest.raises(RecursionError):
        msgspec.json.decode(b"[" * 100_000, type=msgspec.Raw)
    with pytest.raises(msgspec.DecodeError, match="Invalid UTF-8"):
        msgspec.json.decode(b'{"name": "\xff"}', type=FullEvent)
    assert issubclass(msgspec.DecodeError, ValueError)  # as reader._Reader.add expects


# -- boundaries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [b'},{"ph"', b'}, {"ph"', b'\n  },\n  {\n    "ph"', b'} ,\r\n\t{ "args"', b'},{"tts"', b'},{"cname" ']
)
def test_a_boundary_is_found_in_any_layout(text: bytes) -> None:
    found = EVENT_BOUNDARY.search(text + b": 1")
    assert found is not None
    assert text[found.start(1) : found.end(1)] == b","


@pytest.mark.parametrize(
    "text", [b'},{"External id": 1', b'},{\\"ph\\": 1', b'},{"ph", 1', b'}, "ph": 1', b'],{"ph": 1']
)
def test_what_is_inside_an_event_is_no_boundary(text: bytes) -> None:
    assert EVENT_BOUNDARY.search(text) is None


def test_an_event_begins_with_a_key_that_is_known() -> None:
    assert EVENT_START.match(b'{ "dur" : 5') is not None
    assert EVENT_START.match(b'{"durable": 5') is None
