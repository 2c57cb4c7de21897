"""Broken JSON -> the JSON it was meant to be: one case a kind of damage, and text that nobody can mend."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.layouts import LAYOUTS, Layout, plain, timed_events
from tracelens_infer.trace.mend import UnfinishedError, mend_json

CASES = {
    "sound": (b'{"a": [1, -2.5e3, true, null, "x\\n\\u00fc\\ud83d\\ude00"], "b": {}}', {}),
    "nan": (b'{"a": nan}', {"not_a_number": 6}),
    "NaN": (b'{"a": NaN, "b": NaN}', {"not_a_number": 6}),
    "infinity": (b"[1, -Infinity, +inf]", {"not_a_number": 4}),
    "nan of another library": (b'{"a": -nan(ind)}', {"not_a_number": 6}),
    "a word that is nothing": (b'{"a": None}', {"wrong_type": 6}),
    "a hexadecimal number": (b'{"a": 0x1F}', {"wrong_type": 6}),
    "a number with a leading zero": (b'{"a": 007}', {"wrong_type": 6}),
    "a bad escape": (b'{"n": "C:\\Users\\q.py"}', {"bad_escape": 9}),
    "an escape of too few digits": (b'{"n": "\\u12"}', {"bad_escape": 7}),
    "a backslash at the end": (b'{"n": "C:\\dir\\", "ts": 1}', {"bad_escape": 9}),
    "a backslash at the very end": (b'{"n": "C:\\dir\\"}', {"bad_escape": 9}),
    "a backslash before the end of the arguments": (b'{"args": {"n": "C:\\dir\\"}, "ts": 1}', {"bad_escape": 18}),
    "a raw newline": (b'{"n": "a\nb\tc"}', {"control_character": 8}),
    "a raw control character": (b'{"n": "a\x01b"}', {"control_character": 8}),
    "no UTF-8": (b'{"n": "a\xff\xfe\xc3("}', {"invalid_utf8": 8}),
    "a surrogate in UTF-8": (b'{"n": "\xed\xa0\x80"}', {"invalid_utf8": 7}),
    "half a character": (b'{"n": "\\ud83d!", "m": "\\udE00"}', {"lone_surrogate": 7}),
    "unescaped quotes": (b'{"n": "<lambda "x">", "b": 1}', {"unescaped_quote": 15}),
    "an unescaped quote in an item": (b'["say "hi" to", 1]', {"unescaped_quote": 6}),
    "an unescaped quote before a comma": (b'{"n": "f("a", 1)", "b": 2}', {"unescaped_quote": 9}),
    "a comma before the end of an object": (b'{"a": 1, }', {"trailing_comma": 7}),
    "a comma before the end of a list": (b'{"a": [1,2,]}', {"trailing_comma": 10}),
    "several kinds": (
        b'{"a": nan, "n": "\\q", "c": [1,]}',
        {"not_a_number": 6, "bad_escape": 17, "trailing_comma": 29},
    ),
}
MENDED = {
    "sound": {"a": [1, -2500.0, True, None, "x\n\u00fc\U0001f600"], "b": {}},
    "nan": {"a": None},
    "NaN": {"a": None, "b": None},
    "infinity": [1, None, None],
    "nan of another library": {"a": None},
    "a word that is nothing": {"a": None},
    "a hexadecimal number": {"a": None},
    "a number with a leading zero": {"a": None},
    "a bad escape": {"n": "C:\\Users\\q.py"},
    "an escape of too few digits": {"n": "\\u12"},
    "a backslash at the end": {"n": "C:\\dir\\", "ts": 1},
    "a backslash at the very end": {"n": "C:\\dir\\"},
    "a backslash before the end of the arguments": {"args": {"n": "C:\\dir\\"}, "ts": 1},
    "a raw newline": {"n": "a\nb\tc"},
    "a raw control character": {"n": "a\x01b"},
    "no UTF-8": {"n": "a\ufffd\ufffd\ufffd("},
    "a surrogate in UTF-8": {"n": "\ufffd\ufffd\ufffd"},
    "half a character": {"n": "\ufffd!", "m": "\ufffd"},
    "unescaped quotes": {"n": '<lambda "x">', "b": 1},
    "an unescaped quote in an item": ['say "hi" to', 1],
    "an unescaped quote before a comma": {"n": 'f("a", 1)', "b": 2},
    "a comma before the end of an object": {"a": 1},
    "a comma before the end of a list": {"a": [1, 2]},
    "several kinds": {"a": None, "n": "\\q", "c": [1]},
}


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_of_damage_is_mended_and_named(kind: str) -> None:
    text, codes = CASES[kind]
    for after in (b"", b", {next", b"\n]"):
        mended = mend_json(text + (after if kind != "a backslash at the very end" else b""))
        assert mended is not None
        assert json.loads(mended.json) == MENDED[kind]
        assert mended.codes == codes
        assert mended.end == len(text)


HOPELESS = [
    b'{"a" 1}',
    b"{a: 1}",
    b'{"a": 1 "b": 2}',
    b'{"a": [1, 2}',
    b'{"a": }',
    b'{"a": 12 34"}',
    b'{{"a": 1}: 2}',
    b'{"a": 1,, "b": 2}',
    b'{"a"  7, "b": 1}',
    # The closing quote is missing: the text must not swallow the fields, or the event, that follow it.
    b'{"name": "foo, "ts": 1, "tid": "x", "args": {}}',
    b'{"name": "foo}, {"ph": "X", "name": "bar", "ts": 1}',
    # Deeper than anything a profiler writes.
    b"[" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
]
UNFINISHED = [b"", b" ", b"{", b'{"a', b'{"a"', b'{"a":', b'{"a": 1', b'{"a": 1,', b'{"a": "b}', b'[1, {"a": []}', b'"']


@pytest.mark.parametrize("text", HOPELESS)
def test_what_nobody_can_mend_is_refused(text: bytes) -> None:
    assert mend_json(text) is None


@pytest.mark.parametrize("text", UNFINISHED)
def test_what_goes_on_is_told_from_what_is_broken(text: bytes) -> None:
    with pytest.raises(UnfinishedError):
        mend_json(text)


@given(event=timed_events(), layout=st.sampled_from(LAYOUTS))
@settings(max_examples=200)
def test_sound_text_is_left_as_it_is(event: dict[str, object], layout: Layout) -> None:
    text = layout.event(event, plain).encode()
    mended = mend_json(text + b', {"ph": "X"}')
    assert mended is not None
    assert (json.loads(mended.json), mended.end, mended.codes) == (json.loads(text), len(text), {})


@given(text=st.binary(max_size=60) | st.text('{}[]",:\\ nau0123dDcC\n', max_size=60).map(str.encode))
@settings(max_examples=400)
def test_whatever_is_mended_is_json(text: bytes) -> None:
    try:
        mended = mend_json(text)
    except UnfinishedError:
        return
    if mended is not None:
        json.loads(mended.json.decode(), parse_constant=pytest.fail)
        assert 0 < mended.end <= len(text)


def test_work_is_bounded_where_every_quote_might_be_the_last() -> None:
    hostile = b'{"name": "' + b'a" ' * 20_000
    assert mend_json(hostile) is None
    assert mend_json(b'{"name": "' + b"\\" * 50_000 + b'" ' * 1000) is None
