"""Random events, the ways in which writers lay them out, and what a reader has to make of them.

The oracle is the standard library's json with Decimal numbers: it shares no code with the reader.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import strategies as st

from tracelens_infer.trace import slices, source
from tracelens_infer.trace.columns import MISSING, Lane, Trace
from tracelens_infer.trace.reader import iter_slice_events

Event: TypeAlias = dict[str, Any]
Escape: TypeAlias = Callable[[str], str]


class Number(str):
    """A JSON number as it is to be written."""

    __slots__ = ()


# -- writing -----------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Every character as it is, where JSON allows that."""
    return json.dumps(text, ensure_ascii=False)


def ascii_only(text: str) -> str:
    return json.dumps(text)


def escaped_slashes(text: str) -> str:
    return json.dumps(text).replace("/", "\\/")


def dump(value: object, escape: Escape, comma: str, colon: str) -> str:
    """One JSON value on one line."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return (
            "{"
            + comma.join(f"{escape(key)}{colon}{dump(item, escape, comma, colon)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + comma.join(dump(item, escape, comma, colon) for item in value) + "]"
    return json.dumps(value)


def indented(value: object, escape: Escape, step: str, indent: str = "\n") -> str:
    """One JSON value, one line an item."""
    deeper = indent + step
    if isinstance(value, dict) and value:
        items = (f"{escape(key)}: {indented(item, escape, step, deeper)}" for key, item in value.items())
        return "{" + deeper + ("," + deeper).join(items) + indent + "}"
    if isinstance(value, list) and value:
        return "[" + deeper + ("," + deeper).join(indented(item, escape, step, deeper) for item in value) + indent + "]"
    return dump(value, escape, ", ", ": ")


def kineto_event(event: Event, escape: Escape) -> str:
    """Kineto's own layout: a few fields a line, arguments on lines of their own."""
    lines: list[str] = []
    first = ", ".join(
        f"{escape(key)}: {dump(item, escape, ', ', ': ')}" for key, item in event.items() if key != "args"
    )
    lines.append(f"    {first}")
    if "args" in event:
        inner = dump(event["args"], escape, ", ", ": ")
        lines.append(
            f'    "args": {{\n      {inner[1:-1]}\n    }}'
            if isinstance(event["args"], dict)
            else f'    "args": {inner}'
        )
    return "{\n" + ",\n".join(lines) + "\n  }"


def kineto_fields_event(event: Event, escape: Escape) -> str:
    """A newer Kineto: a line for each field."""
    lines = [f"    {escape(key)}: {dump(item, escape, ', ', ': ')}" for key, item in event.items()]
    return "{\n" + ",\n".join(lines) + "\n  }"


@dataclass(frozen=True)
class Layout:
    """How a writer arranges events: one event, and what stands between and around them."""

    name: str
    event: Callable[[Event, Escape], str]
    opening: str
    between: str
    closing: str
    header: Callable[[object, Escape], str]


def one_line(comma: str, colon: str) -> Callable[[object, Escape], str]:
    return lambda value, escape: dump(value, escape, comma, colon)


def by_indent(step: str, level: int) -> Callable[[object, Escape], str]:
    return lambda value, escape: indented(value, escape, step, "\n" + step * level)


LAYOUTS = (
    Layout("kineto", kineto_event, "\n  ", ",\n  ", "\n  ", one_line(", ", ": ")),
    Layout("kineto fields", kineto_fields_event, "\n  ", ",\n  ", "\n  ", one_line(", ", ": ")),
    Layout("json", one_line(", ", ": "), "", ", ", "", one_line(", ", ": ")),
    Layout("compact", one_line(",", ":"), "", ",", "", one_line(",", ":")),
    Layout("indent 1", by_indent(" ", 2), "\n  ", ",\n  ", "\n ", by_indent(" ", 1)),
    Layout("indent 4", by_indent("    ", 2), "\n        ", ",\n        ", "\n    ", by_indent("    ", 1)),
    Layout("spacious", one_line(" , ", " : "), " \t", "\r\n ,\t ", " \r\n", one_line(" , ", " : ")),
)
FORMS = ("before", "after", "both", "bare", "bare without bracket")


@dataclass(frozen=True)
class Rendered:
    """A trace file: its bytes, and where in them each event lies."""

    data: bytes
    spans: tuple[tuple[int, int], ...]
    closed: bool

    @property
    def texts(self) -> list[bytes]:
        return [self.data[begin:end] for begin, end in self.spans]

    def after_cut(self, size: int) -> list[bytes]:
        """The events that are whole in the first ``size`` bytes."""
        return [self.data[begin:end] for begin, end in self.spans if end <= size]


def render(
    events: Sequence[Event],
    layout: Layout = LAYOUTS[0],
    form: str = "both",
    escape: Escape = plain,
    header: Mapping[str, Any] | None = None,
) -> Rendered:
    """Write the events as this layout and form have it."""
    keys = [f"{escape(key)}: {layout.header(value, escape)}" for key, value in (header or {"schemaVersion": 1}).items()]
    before = keys[: {"before": len(keys), "both": len(keys) // 2}.get(form, 0)]
    after = keys[len(before) :] if form in ("after", "both") else []
    bare = form.startswith("bare")
    data = bytearray(("" if bare else "{" + "".join(f"{key}, " for key in before) + '"traceEvents": ').encode())
    data += ("[" + layout.opening).encode()
    spans: list[tuple[int, int]] = []
    for event in events:
        text = layout.event(event, escape).encode()
        data += layout.between.encode() if spans else b""
        spans.append((len(data), len(data) + len(text)))
        data += text
    data += layout.closing.encode()
    closed = form != "bare without bracket"
    data += b"]" if closed else b""
    data += b"" if bare else ("".join(f", {key}" for key in after) + "}\n").encode()
    return Rendered(bytes(data), tuple(spans), closed)


# -- the oracle --------------------------------------------------------------------------------------------------

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel", "memcpy", "memset"}


@dataclass(frozen=True)
class Row:
    """What the columns hold of one event."""

    start_ns: int
    duration_ns: int
    lane: Lane
    link: int
    label: str | None


def expected_rows(texts: Sequence[bytes]) -> list[Row]:
    """What the reader should make of these events, each well-formed and of sound types."""
    return [expected_row(parse(text)) for text in texts]


def parse(text: bytes) -> Event:
    """The standard library's reading, with numbers as exact as they are written."""

    def exact(digits: str) -> Decimal:
        try:
            return Decimal(digits)
        except InvalidOperation:  # an exponent of more digits than there are atoms
            return Decimal("NaN")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    event: Event = json.loads(text.decode(), parse_float=exact, parse_constant=refuse)
    return event


def expected_row(event: Event) -> Row:
    phase, category = event["ph"], event.get("cat", "")
    lasts = phase in ("X", "B")
    duration = nanoseconds(event.get("dur"))
    if duration == MISSING and phase != "X":
        duration = 0
    link = MISSING
    if lasts and (category.lower() in DEVICE or category.lower().endswith(("runtime", "driver"))):
        link = event.get("args", {}).get("correlation", MISSING)
    elif phase in ("s", "t", "f"):
        link = event.get("id", MISSING)
        link = int(link, 0) if isinstance(link, str) else link
    label = None
    if lasts and (
        category.lower() == "user_annotation" or (category == "Operator" and event["name"].startswith("ProfilerStep"))
    ):
        label = event["name"]
    return Row(
        nanoseconds(event.get("ts")), duration, Lane(phase, category, event.get("pid"), event.get("tid")), link, label
    )


def nanoseconds(microseconds: Decimal | int | None) -> int:
    return MISSING if microseconds is None else int((Decimal(microseconds) * 1000).to_integral_value())


def rows_of(trace: Trace) -> list[Row]:
    """What the columns do hold."""
    columns = trace.columns
    numbers = zip(
        columns.start_ns.tolist(),
        columns.duration_ns.tolist(),
        columns.lane.tolist(),
        columns.link.tolist(),
        strict=True,
    )
    return [
        Row(start, duration, trace.lanes.lanes[lane], link, trace.labels.get(row))
        for row, (start, duration, lane, link) in enumerate(numbers)
    ]


def texts_of(trace: Trace) -> list[bytes]:
    """The text of every event, by a second pass over the file."""
    texts: list[bytes] = []
    for part in iter_slice_events(trace, lambda number: True):
        assert part.first_row == len(texts)
        texts += [part.text(row) for row in range(part.first_row, part.first_row + len(part))]
    return texts


def assert_lined_up(trace: Trace) -> None:
    """Both passes saw the same events: the texts of the second tell what the columns of the first hold."""
    assert_texts_match(trace, texts_of(trace))
    first_rows = trace.slices.first_row.tolist()
    assert first_rows == sorted(first_rows)
    assert first_rows[-1] == len(trace.columns)
    assert all(begin <= later for begin, later in pairwise(trace.slices.offset.tolist()))


def assert_texts_match(trace: Trace, texts: Sequence[bytes]) -> None:
    assert len(texts) == len(trace.columns)
    for row, text in zip(rows_of(trace), texts, strict=True):
        event = parse(text)
        assert event["ph"] == row.lane.phase
        assert (event.get("cat") or "") == row.lane.category
        for told, read in ((event.get("pid"), row.lane.process), (event.get("tid"), row.lane.thread)):
            assert (float(told) if isinstance(told, Decimal) else told) == read
        if "ts" in event:
            assert abs(nanoseconds(event["ts"]) - row.start_ns) <= 1
        else:
            assert row.start_ns == MISSING
        if row.label is not None:
            assert row.label == event.get("name", "")


# -- slices ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SliceSizes:
    """The sizes by which the reader cuts, small enough to matter in a small file."""

    chunk: int = source.CHUNK_BYTES
    search: int = 64 << 10
    backoff: tuple[int, ...] = (0, 4 << 10, 64 << 10, 1 << 20)
    longest_event: int = 16 << 20
    compressed: int = field(default=512 << 10)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source, "CHUNK_BYTES", self.chunk)
            patch.setattr(source, "_COMPRESSED_CHUNK_BYTES", self.compressed)
            patch.setattr(slices, "_CUT_SEARCH_BYTES", self.search)
            patch.setattr(slices, "_BACKOFF_BYTES", self.backoff)
            patch.setattr(slices, "_MAX_EVENT_BYTES", self.longest_event)
            yield


slice_sizes = st.builds(
    SliceSizes,
    chunk=st.integers(1, 3000) | st.just(source.CHUNK_BYTES),
    search=st.sampled_from([8, 100, 64 << 10]),
    backoff=st.sampled_from([(0,), (0, 40, 400), (0, 4 << 10, 64 << 10, 1 << 20)]),
    compressed=st.integers(1, 300) | st.just(512 << 10),
)


# -- events ------------------------------------------------------------------------------------------------------

NASTY = [
    '},{"ph"',
    '}, {"name": "x", "ph": "X"}',
    '\n  },\n  {\n    "ph": "X"',
    '"traceEvents": [',
    "]}",
    "]",
    "C:\\Users\\q.py(3)",
    "ends with \\",
    'says "hi"',
    "a/b",
    "\u2028 line, \x7f delete, \x00 zero, \u00fc, \u6f22, \U0001f600",
    "",
    "nan",
    "[0, 1",
    "void at::native::kernel<4, float(*)[4], (lambda(int))>",
]
names = st.sampled_from(NASTY) | st.text(max_size=12)
keys = st.sampled_from(["name", "ph", "ts", "cat", "args", "traceEvents", "x", '},{"ph"', ""]) | st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers(-(10**25), 10**25) | names | st.sampled_from([0.5, -1e300, 1e-9])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
list_of_objects = st.lists(
    st.fixed_dictionaries({"name": names}, optional={"ph": st.just("X"), "ts": st.integers(0, 9), "x": values}),
    max_size=4,
)


@st.composite
def microseconds(draw: st.DrawFn) -> Number:
    """A time with up to three decimals: relative, absolute, and where doubles begin to round."""
    whole = draw(
        st.integers(0, 10**9)
        | st.integers(1_600_000_000_000_000, 1_800_000_000_000_000)
        | st.integers(4_390_000_000_000, 8_900_000_000_000)
        | st.integers(-5000, -1)
        | st.just(0)
    )
    decimals = draw(st.sampled_from(["", ".0", ".5", ".25"]) | st.integers(0, 999).map(lambda ns: f".{ns:03d}"))
    return Number(f"{whole}{decimals}")


@st.composite
def durations(draw: st.DrawFn) -> Number:
    return Number(draw(st.integers(0, 10**7).map(str)) + draw(st.sampled_from(["", ".5", ".001", ".999"])))


identifiers = (
    st.integers(0, 5) | st.sampled_from(["1", "stream 7", "Spans", ""]) | st.just(-1) | st.integers(2**31, 2**40)
)
categories = st.sampled_from(
    [
        *("cpu_op", "user_annotation", "python_function", "cuda_runtime", "hip_driver", "Runtime", "Operator", "Trace"),
        *("kernel", "gpu_memcpy", "gpu_user_annotation", "Kernel", "ac2g", "fwdbwd", ""),
    ]
)
correlations = st.integers(0, 50) | st.integers(-(2**63), 2**63 - 1)
link_ids = st.integers(0, 99) | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 255).map(hex)


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if draw(st.booleans()):
        args["External id"] = draw(st.integers(0, 999))
    if draw(st.booleans()):
        args["correlation"] = draw(correlations)
    args |= {f"arg {key}": item for key, item in draw(st.dictionaries(keys, values, max_size=2)).items()}
    if draw(st.booleans()):
        args["parts"] = draw(list_of_objects)
    return dict(draw(st.permutations(list(args.items()))))


@st.composite
def timed_events(draw: st.DrawFn) -> Event:
    event: Event = {
        "ph": draw(st.sampled_from("XXXXXXBEiICb")),
        "cat": draw(categories),
        "name": draw(names),
        "pid": draw(identifiers),
        "tid": draw(identifiers),
        "ts": draw(microseconds()),
    }
    if event["ph"] == "X" and draw(st.integers(0, 9)):
        event["dur"] = draw(durations())
    if draw(st.booleans()):
        event["args"] = draw(arguments())
    if draw(st.integers(0, 9)) == 0:
        event["stack"] = draw(list_of_objects)
    return event


@st.composite
def flow_events(draw: st.DrawFn) -> Event:
    event: Event = {"ph": draw(st.sampled_from("stf")), "id": draw(link_ids), "pid": draw(identifiers)}
    event |= {"tid": draw(identifiers), "ts": draw(microseconds()), "cat": draw(st.sampled_from(["ac2g", "fwdbwd"]))}
    event["name"] = "ac2g"
    if event["ph"] == "f":
        event["bp"] = "e"
    return event


@st.composite
def metadata_events(draw: st.DrawFn) -> Event:
    event: Event = {"name": draw(st.sampled_from(["process_name", "thread_sort_index"])), "ph": "M"}
    if draw(st.booleans()):
        event["ts"] = draw(microseconds())
    event |= {"pid": draw(identifiers), "tid": draw(identifiers), "args": {"name": draw(names)}}
    return event


@st.composite
def random_events(draw: st.DrawFn, max_size: int = 12) -> list[Event]:
    """Events of every kind, their keys in any order."""
    found = draw(st.lists(timed_events() | timed_events() | flow_events() | metadata_events(), max_size=max_size))
    if draw(st.booleans()):
        return found
    return [dict(draw(st.permutations(list(event.items())))) for event in found]


@st.composite
def rendered_traces(draw: st.DrawFn, min_size: int = 0, forms: Sequence[str] = FORMS) -> Rendered:
    events = draw(random_events().filter(lambda found: len(found) >= min_size))
    header = draw(
        st.fixed_dictionaries(
            {"schemaVersion": st.just(1)},
            optional={
                "deviceProperties": st.lists(
                    st.fixed_dictionaries({"id": st.integers(0, 7), "name": st.just("GPU")}), max_size=3
                ),
                "trace_id": names,
                "traceName": names,
            },
        )
    )
    return render(
        events,
        draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from(forms)),
        draw(st.sampled_from([plain, ascii_only, escaped_slashes])),
        header,
    )


def write(folder: Path, data: bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
