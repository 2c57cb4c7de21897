"""Damaged event lists: what is wrong is named, counted and placed, and every event around it is kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trace.layouts import (
    LAYOUTS,
    Event,
    Layout,
    Number,
    Rendered,
    SliceSizes,
    assert_lined_up,
    parse,
    random_events,
    render,
    rows_of,
    slice_sizes,
    texts_of,
    write,
)
from tracelens_infer.errors import UnreadableTraceError
from tracelens_infer.notes import Note
from tracelens_infer.trace import mend, reader, salvage, slices
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.losses import Losses
from tracelens_infer.trace.reader import iter_slice_events

EVENTS = 9
LossNote: TypeAlias = tuple[str, int | None, int | None]


@pytest.fixture(autouse=True)
def _as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repairs change columns and add notes: their own tests are elsewhere."""

    def untouched(trace: Trace, notes: Sequence[Note]) -> Trace:
        return replace(trace, notes=tuple(notes))

    monkeypatch.setattr(reader, "repair", untouched)


def event(number: int) -> Event:
    """An event with something of everything."""
    return {
        "ph": "X",
        "cat": "kernel",
        "name": f"NAME{number}",
        "pid": 3,
        "tid": "thread 7",
        "ts": Number(f"{100 + number}.5"),
        "dur": Number("7.25"),
        "args": {"correlation": 77, "stream": 4, "parts": [{"name": "a", "x": 1}, {"name": "b"}]},
    }


def swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def damage(text: bytes) -> bytes:
        assert text.count(old) == 1
        return text.replace(old, new)

    return damage


def swap_all(pattern: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def damage(text: bytes) -> bytes:
        damaged, count = re.subn(pattern, lambda _: new, text)
        assert count
        return damaged

    return damage


@dataclass(frozen=True)
class Damage:
    """A kind of damage to one event: the codes that name it, and what of the event is kept (None: nothing)."""

    make: Callable[[bytes], bytes]
    codes: tuple[str, ...]
    kept: dict[str, object] | None
    beside: bool = False  # the event, not in it


WHOLE = {"ph": "X", "cat": "kernel", "pid": 3, "tid": "thread 7", "dur": 7.25, "correlation": 77}


def without(*names: str) -> dict[str, object]:
    return {key: value for key, value in WHOLE.items() if key not in names}


DAMAGE = {
    "nan": Damage(swap(b"7.25", b"nan"), ("not_a_number",), without("dur")),
    "infinity": Damage(swap(b"7.25", b"-Infinity"), ("not_a_number",), without("dur")),
    "a path": Damage(swap(b"NAME", b"C:\\Users\\q"), ("bad_escape",), WHOLE),
    "a path with a backslash at its end": Damage(swap_all(rb"NAME\d", b"C:\\dir\\"), ("bad_escape",), WHOLE),
    "a raw newline": Damage(swap(b"NAME", b"a\nb"), ("control_character",), WHOLE),
    "a control character": Damage(swap(b"NAME", b"a\x01b"), ("control_character",), WHOLE),
    "a zero byte": Damage(swap(b"NAME", b"a\x00b"), ("control_character",), WHOLE),
    "no UTF-8": Damage(swap(b"NAME", b"\xff\xfe\xc3("), ("invalid_utf8",), WHOLE),
    "no UTF-8 in an argument": Damage(swap(b'"a"', b'"\xff"'), ("invalid_utf8",), WHOLE),
    "half a character": Damage(swap(b"NAME", b"\\ud83d"), ("lone_surrogate",), WHOLE),
    "quotes": Damage(swap(b"NAME", b'<lambda "x">'), ("unescaped_quote",), WHOLE),
    "a comma at the end of the arguments": Damage(swap(b'"b"', b'"b",'), ("trailing_comma",), WHOLE),
    "two kinds": Damage(swap_all(rb"NAME\d", b"\\q\x01"), ("bad_escape", "control_character"), WHOLE),
    "a time as text": Damage(swap(b"7.25", b'"7.25"'), ("number_as_text",), WHOLE),
    "a correlation as text": Damage(swap(b"77", b'"77"'), ("number_as_text",), WHOLE),
    "a correlation as a float": Damage(swap(b"77", b"77.0"), (), WHOLE),
    "no number": Damage(swap(b"7.25", b'"long"'), ("wrong_type",), without("dur")),
    "null": Damage(swap(b"7.25", b"null"), (), without("dur")),
    "a process that is none": Damage(swap_all(rb'"pid"\s*:\s*3', b'"pid": true'), ("wrong_type",), without("pid")),
    "a correlation beyond int64": Damage(swap(b"77", b"9" * 30), ("number_out_of_range",), without("correlation")),
    "a duration beyond int64": Damage(swap(b"7.25", b"1e300"), ("number_out_of_range",), without("dur")),
    "a duration beyond a double": Damage(swap(b"7.25", b"1e999"), ("number_out_of_range",), without("dur")),
    "a thread without its first quote": Damage(swap(b'"thread 7"', b'thread 7"'), ("broken_syntax",), without("tid")),
    "a thread without its last quote": Damage(swap(b'"thread 7"', b'"thread 7'), ("broken_syntax",), without("tid")),
    "a name without its last quote": Damage(swap_all(rb'(?<=NAME\d)"', b""), ("broken_syntax",), WHOLE),
    "two numbers": Damage(swap(b"7.25", b"7 25"), ("broken_syntax",), without("dur")),
    "no colon": Damage(swap_all(rb'"dur"\s*:', b'"dur" '), ("broken_syntax",), without("dur")),
    "a key without quotes": Damage(swap(b'"dur"', b"dur"), ("broken_syntax",), without("dur")),
    "a list that is not closed": Damage(swap(b"]", b""), ("broken_syntax",), WHOLE),
    "arguments that are not closed": Damage(swap_all(rb"\}\s*\}$", b"}"), ("broken_syntax",), WHOLE),
    "endless nesting": Damage(swap_all(rb"77", b"[" * 3000), ("broken_syntax",), without("correlation")),
    "an end that is lost": Damage(swap_all(rb'(?s)"ts".*', b'"t'), ("unreadable_event",), None),
    "a beginning that is lost": Damage(swap_all(rb'(?s)^.*"dur"', b'"dur"'), ("stray_text",), None),
    "no phase": Damage(swap_all(rb'"ph"\s*:\s*"X"', b'"p": "X"'), ("not_an_event",), None),
    "an empty phase": Damage(swap(b'"X"', b'""'), ("not_an_event",), None),
    "an empty object": Damage(lambda text: b"{}", ("not_an_event",), None),
    "a number": Damage(lambda text: b"-5.5", ("not_an_event",), None),
    "a text": Damage(lambda text: b'"},{\\"ph\\""', ("not_an_event",), None),
    "nothing": Damage(lambda text: b"null", ("not_an_event",), None),
    "garbage": Damage(lambda text: b"\x8f\x00 garbage; [", ("stray_text",), None),
    "a comma too many": Damage(lambda text: text + b",", ("trailing_comma",), WHOLE, beside=True),
    "a brace too many": Damage(lambda text: text + b"}", ("stray_text",), WHOLE, beside=True),
}


BY_NAME = {layout.name: layout for layout in LAYOUTS}


def damaged_file(name: str, form: str, at: int, damage: Callable[[bytes], bytes]) -> tuple[bytes, Rendered, int]:
    """The file with event ``at`` damaged, the sound file, and where in both that event begins."""
    sound = render([event(number) for number in range(EVENTS)], BY_NAME[name], form)
    begin, end = sound.spans[at]
    data = sound.data[:begin] + damage(sound.data[begin:end]) + sound.data[end:]
    return data, sound, begin


def read_notes(trace: Trace) -> list[LossNote]:
    return [(note.code, note.count, note.first_offset_bytes) for note in trace.notes]


def flat(text: bytes) -> dict[str, object]:
    """An event's fields and its correlation side by side; no name, which some damage changes, and no start."""
    found = parse(text)
    args = found.get("args")
    if isinstance(args, dict) and "correlation" in args:
        found["correlation"] = args["correlation"]
    return {key: found[key] for key in WHOLE if key in found}


PLACES = {"first": 0, "middle": EVENTS // 2, "last": EVENTS - 1}
NO_END = "an end that is lost"  # at the end of the list, whatever follows is a part of the event


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        pytest.param(kind, at, id=f"{kind}, {place}")
        for kind in DAMAGE
        for place, at in PLACES.items()
        if kind != NO_END or place != "last"
    ],
)
def test_one_damaged_event_is_named_and_its_neighbours_are_kept(tmp_path: Path, kind: str, at: int) -> None:
    damage = DAMAGE[kind]
    for layout, form in (("kineto", "both"), ("compact", "before"), ("indent 1", "bare"), ("spacious", "after")):
        data, sound, begin = damaged_file(layout, form, at, damage.make)
        path = write(tmp_path, data)
        notes = []
        # The second border is in the middle of the damaged event, the third right after it.
        for chunk in (len(data), begin + 40, sound.spans[at][1] + 3, 64):
            with SliceSizes(chunk=chunk).in_force():
                trace = reader.read_trace(path)
                assert_lined_up(trace)
                check_events(trace, sound.texts, at, damage)
            notes.append(read_notes(trace))
        assert notes == [notes[0]] * len(notes)
        check_notes(notes[0], damage, data, begin)


def check_events(trace: Trace, sound: list[bytes], at: int, damage: Damage) -> None:
    texts = texts_of(trace)
    originals = [row for part in iter_slice_events(trace, lambda number: True) for row in part.originals]
    if damage.kept is None:
        assert texts == sound[:at] + sound[at + 1 :]
        assert not originals
        return
    assert texts[:at] + texts[at + 1 :] == sound[:at] + sound[at + 1 :]
    assert flat(texts[at]) == damage.kept
    assert rows_of(trace)[at].start_ns == (100 + at) * 1000 + 500
    assert originals == ([] if damage.beside else [at])


def check_notes(notes: list[LossNote], damage: Damage, data: bytes, begin: int) -> None:
    assert [(code, count) for code, count, _ in notes] == [(code, 1) for code in damage.codes]
    for code, _, offset in notes:
        assert offset is not None
        if code in ("trailing_comma", "stray_text") and offset > begin:  # told where it is, not where an event begins
            assert data[offset : offset + 1] in (b",", b"}")
        else:
            assert offset == begin


@given(
    events=random_events(),
    kind=st.sampled_from([kind for kind in DAMAGE if kind != NO_END]),
    layout=st.sampled_from(LAYOUTS),
    sizes=slice_sizes,
    data=st.data(),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_neighbours_of_a_damaged_event_are_kept(
    tmp_path: Path, events: list[Event], kind: str, layout: Layout, sizes: SliceSizes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(events)), label="at")
    rendered = render([*events[:at], event(at % 10), *events[at:]], layout)
    begin, end = rendered.spans[at]
    damaged = rendered.data[:begin] + DAMAGE[kind].make(rendered.data[begin:end]) + rendered.data[end:]
    path = write(tmp_path, damaged)
    with sizes.in_force():
        if not events and DAMAGE[kind].kept is None:
            with pytest.raises(UnreadableTraceError):
                reader.read_trace(path)
            return
        trace = reader.read_trace(path)
        assert_lined_up(trace)
        texts = texts_of(trace)
    sound = rendered.texts
    assert texts[:at] == sound[:at]
    assert texts[len(texts) - len(sound) + at + 1 :] == sound[at + 1 :]
    assert len(texts) == len(sound) - (DAMAGE[kind].kept is None)


@given(
    kinds=st.lists(st.sampled_from([kind for kind in DAMAGE if kind != NO_END]), min_size=2, max_size=6),
    sizes=slice_sizes,
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_events_in_a_row_do_not_swallow_each_other(tmp_path: Path, kinds: list[str], sizes: SliceSizes) -> None:
    sound = render([event(number) for number in range(len(kinds) + 2)], BY_NAME["kineto"])
    middle = [DAMAGE[kind].make(text) for kind, text in zip(kinds, sound.texts[1:-1], strict=True)]
    data = (
        sound.data[: sound.spans[0][1]]
        + b"".join(b",\n  " + text for text in middle)
        + sound.data[sound.spans[-2][1] :]
    )
    with sizes.in_force():
        trace = reader.read_trace(write(tmp_path, data))
        assert_lined_up(trace)
        texts = texts_of(trace)
    assert (texts[0], texts[-1]) == (sound.texts[0], sound.texts[-1])
    assert [flat(text) for text in texts[1:-1]] == [kept for kind in kinds if (kept := DAMAGE[kind].kept) is not None]


# -- between events ----------------------------------------------------------------------------------------------

A, B, C = (
    b'{"ph": "X", "pid": 1, "tid": 1, "ts": %d, "dur": 1, "args": {"l": [{"name": "x"}]}}' % ts for ts in (1, 2, 3)
)
HEAD = b'{"traceEvents": ['
MESS: dict[str, tuple[list[bytes], list[tuple[str, int]]]] = {
    # Pieces of the file, and each loss with the number of the piece at which it is found (first).
    "no comma": ([HEAD, A, b" ", B, b",", C, b"]}"], [("missing_comma", 3)]),
    "two commas": ([HEAD, A, b",", b",", B, b",", C, b"]}"], [("trailing_comma", 3)]),
    "a comma first": ([HEAD, b",", A, b",", B, b",", C, b"]}"], [("trailing_comma", 1)]),
    "a comma last": ([HEAD, A, b",", B, b",", C, b" ", b",", b" ]}"], [("trailing_comma", 7)]),
    "a bracket too many": ([HEAD, A, b"]", b",", B, b",", C, b"]}"], [("stray_text", 2)]),
    "a list in the list": ([HEAD, A, b",", b"[", B, b",", C, b"]", b"]}"], [("stray_text", 3), ("stray_text", 7)]),
    "two lists": ([b"[", A, b",", B, b"]", b"[", C, b"]"], [("stray_text", 4)]),
    "words": ([HEAD, A, b", ", b"see ] and } there ", B, b",", C, b"]}"], [("stray_text", 3)]),
    "zeros at the end": ([b"[", A, b",", B, b",", C, b"]", b"\0" * 99], [("trailing_text", 7)]),
    "zeros after the header": ([HEAD, A, b",", B, b",", C, b"]}", b"\0" * 99], [("trailing_text", 7)]),
    "words after the header": ([HEAD, A, b",", B, b",", C, b"]}\n", b"bye"], [("trailing_text", 7)]),
    "an open list": ([HEAD, A, b",", B, b",", C, b""], [("missing_bracket", 6)]),
    "an open list and a comma": ([HEAD, A, b",", B, b",", C, b",", b""], [("missing_bracket", 7)]),
    "an open list and space": ([HEAD, A, b",", B, b",", C, b" \n", b""], [("missing_bracket", 7)]),
    "an open header": ([HEAD, A, b",", B, b",", C, b"]", b""], [("truncated", 7)]),
    "a cut event": ([HEAD, A, b",", B, b",", C, b",", B[:40]], [("truncated", 7)]),
    "a cut list of objects": ([HEAD, A, b",", B, b",", C, b",", B[:-3] + b', {"name": "y"}'], [("truncated", 7)]),
    "a cut entry": ([HEAD, A, b",", B, b",", C, b",", b'"half'], [("truncated", 7)]),
}


@pytest.mark.parametrize("kind", MESS)
def test_what_is_wrong_between_events_costs_none(tmp_path: Path, kind: str) -> None:
    pieces, losses = MESS[kind]
    counts = Counter(code for code, _ in losses)
    expected = [(code, counts[code], sum(map(len, pieces[:piece]))) for code, piece in dict(reversed(losses)).items()]
    path = write(tmp_path, b"".join(pieces))
    for chunk in (1 << 20, 100, 7, 1):
        with SliceSizes(chunk=chunk).in_force():
            trace = reader.read_trace(path)
            assert texts_of(trace) == [A, B, C]
        assert read_notes(trace) == expected


def test_the_header_of_another_writer_is_found_among_the_events(tmp_path: Path) -> None:
    other = (
        b'{"deviceProperties": [{"id": 0, "name": "a"}, {"id": 1}], "distributedInfo": {"rank": 5}, "traceEvents": ['
    )
    half = b'{"ph": "X", "na'
    data = b'{"distributedInfo": {"rank": 2}, "traceEvents": [' + A + b", " + half + other + B + b"," + C + b"]}"
    for chunk in (1 << 20, 50):
        with SliceSizes(chunk=chunk).in_force():
            trace = reader.read_trace(write(tmp_path, data))
            assert texts_of(trace) == [A, B, C]
        assert read_notes(trace) == [("unreadable_event", 1, data.index(half)), ("interleaved_writers", 2, None)]
        assert (trace.metadata.writers, trace.metadata.ranks) == (2, (2, 5))


# -- events longer than a slice ----------------------------------------------------------------------------------


def long_event(parts: int) -> bytes:
    objects = b", ".join(b'{"name": "part %d", "ph": "X", "ts": %d}' % (part, part) for part in range(parts))
    return b'{"ph": "X", "pid": 1, "tid": 1, "ts": 5, "dur": 1, "args": {"parts": [' + objects + b"]}}"


@pytest.mark.parametrize("damage", [b"", b"\x01", b"\xff", b"nan"])
def test_a_long_list_of_objects_is_no_list_of_events(tmp_path: Path, damage: bytes) -> None:
    """Even where the event is damaged, if that can be mended."""
    long = long_event(400)
    damaged = (
        long.replace(b'part 7"', b"part 7" + damage + b'"') if damage != b"nan" else long.replace(b": 7}", b": nan}")
    )
    data = HEAD + A + b"," + damaged + b"," + B + b"]}"
    for chunk in (1 << 20, 3000, 100):
        with SliceSizes(chunk=chunk, backoff=(0, 40), search=50).in_force():
            trace = reader.read_trace(write(tmp_path, data))
            assert_lined_up(trace)
            texts = texts_of(trace)
        assert len(texts) == 3
        assert [texts[0], texts[2]] == [A, B]
        assert len(parse(texts[1])["args"]["parts"]) == 400


def test_an_event_without_an_end_is_given_up_and_what_follows_is_kept(tmp_path: Path) -> None:
    """Its list swallows every event after it; after 16 MB nobody believes that any more."""
    open_list = b'{"ph": "X", "pid": 1, "tid": 1, "ts": 9, "dur": 1, "args": {"l": [{"a": 1}'
    data = HEAD + A + b", " + open_list + b", " + b", ".join([B] * 100 + [C]) + b"]}"
    with SliceSizes(chunk=200, longest_event=1000).in_force():
        trace = reader.read_trace(write(tmp_path, data))
        assert_lined_up(trace)
        texts = texts_of(trace)
    assert [texts[0], *texts[2:]] == [A, *[B] * 100, C]
    assert parse(texts[1]) == {"ph": "X", "pid": 1, "tid": 1, "ts": 9, "dur": 1}
    assert read_notes(trace) == [("broken_syntax", 1, data.index(open_list))]


def test_zeros_in_place_of_the_rest_of_the_file_cost_only_that(tmp_path: Path) -> None:
    """A file system that crashed leaves them."""
    data = HEAD + A + b"," + B + b"," + C[:30] + b"\0" * 20_000
    with SliceSizes(chunk=300, longest_event=2000).in_force():
        trace = reader.read_trace(write(tmp_path, data))
        assert texts_of(trace) == [A, B]
    assert read_notes(trace)[:1] == [("missing_bracket", 1, len(data))]
    assert {note.code for note in trace.notes} == {"missing_bracket", "unreadable_event", "stray_text"}


# -- work --------------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """Bytes handed to the parsers: what a run costs, whatever the machine."""

    bytes: int = 0

    def count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        work = self

        class CountedMender(mend._Mender):
            def value(self, at: int, closer: bytes, *, is_key: bool) -> int:
                work.bytes += sum(map(len, self.out[-2:]))
                return super().value(at, closer, is_key=is_key)

        monkeypatch.setattr(mend, "_Mender", CountedMender)
        monkeypatch.setattr(salvage, "_event_decoder", _Counted(salvage._event_decoder, self))
        monkeypatch.setattr(salvage, "_value_decoder", _Counted(salvage._value_decoder, self))


class _Counted:
    """A decoder that counts what it read: up to the byte at which it failed."""

    def __init__(self, decoder: msgspec.json.Decoder[Any], work: Work) -> None:
        self._decoder = decoder
        self._work = work

    def decode(self, text: bytes | memoryview) -> Any:  # noqa: ANN401 - whatever is in it
        read = len(text)
        try:
            return self._decoder.decode(text)
        except msgspec.DecodeError as error:
            place = re.search(r"byte (\d+)", str(error))
            read = int(place.group(1)) if place else read
            raise
        finally:
            self._work.bytes += read


@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind != "endless nesting"])
def test_work_grows_with_the_size_even_where_every_event_is_damaged(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    work = Work()
    work.count(monkeypatch)
    done = []
    for count in (200, 400, 800):
        rendered = render([event(number % 10) for number in range(count)])
        text = b",\n  ".join(DAMAGE[kind].make(part) for part in rendered.texts)
        work.bytes = 0
        saved = salvage.salvage_slice(text, 0, Losses(), at_end=True)
        assert len(saved.events) >= (0 if DAMAGE[kind].kept is None else count - 1)  # at the end, one is cut off
        done.append(work.bytes / len(text))
    assert done[-1] <= 1.1 * done[0]  # work for each byte does not grow
    assert done[-1] < 12


def test_every_slice_damaged_is_still_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    cut = slices.Slicer._try

    def counted(self: slices.Slicer, buffer: bytearray, position: int) -> str | int:
        calls.append(len(buffer))
        return cut(self, buffer, position)

    monkeypatch.setattr(slices.Slicer, "_try", counted)
    rendered = render([event(number % 10) for number in range(500)])
    data = rendered.data.replace(b"7.25", b"NaN")
    with SliceSizes(chunk=2000).in_force():
        trace = reader.read_trace(write(tmp_path, data))
    assert read_notes(trace) == [("not_a_number", 500, rendered.spans[0][0])]
    assert sum(calls) < 6 * len(data)
