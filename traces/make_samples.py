"""Cut consecutive steps out of a Kineto trace into a smaller trace, text verbatim.

Made for the samples beside this file; see README.md for the commands. Only the standard library is needed:

    python traces/make_samples.py FULL.json.gz --steps 112:172 -o SAMPLE.json.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

DEFAULT_STEP_PATTERN = r"execute_\d+_context_\d+\("
# Spans of the profiler itself, which cover the whole recording and belong to no step.
PROFILER_CATEGORY = "Trace"


class EventText(NamedTuple):
    """One event of the list: its values, and where its text lies."""

    values: dict[str, Any]
    start: int
    end: int


def read_event_texts(text: str) -> list[EventText]:
    """Where does the text of each event of ``traceEvents`` lie?"""
    opening = re.search(r'"traceEvents"\s*:\s*\[\s*', text)
    if opening is None:
        raise SystemExit("no traceEvents in the input")
    decoder = json.JSONDecoder()
    between = re.compile(r"[\s,]*")
    events = []
    position = opening.end()
    while text[position] != "]":
        values, end = decoder.raw_decode(text, position)
        events.append(EventText(values, position, end))
        match = between.match(text, end)
        position = match.end() if match else end
    return events


def step_starts(events: list[EventText], pattern: str) -> list[float]:
    """When does each step start, in microseconds?"""
    label = re.compile(pattern)
    return sorted(
        event.values["ts"]
        for event in events
        if event.values.get("cat") == "user_annotation" and label.match(event.values["name"])
    )


def keep(event: dict[str, Any], start_us: float, end_us: float) -> bool:
    """Does an event stay? Slices only where they start inside the window, everything else always."""
    if event.get("ph") != "X" or event.get("cat") == PROFILER_CATEGORY:
        return True
    return bool(start_us <= event["ts"] < end_us)


def cut(text: str, steps: slice, pattern: str = DEFAULT_STEP_PATTERN) -> str:
    """Return the trace with the chosen steps only; what stands around the events stays as it is.

    A step reaches from the start of its annotation to the start of the next one, so that what the engine does
    between two annotations (sampling) stays with the step before.
    """
    events = read_event_texts(text)
    starts = step_starts(events, pattern)
    first, after_last = range(len(starts))[steps][0], range(len(starts))[steps][-1] + 1
    end_us = starts[after_last] if after_last < len(starts) else float("inf")
    kept = [text[event.start : event.end] for event in events if keep(event.values, starts[first], end_us)]
    separator = text[events[0].end : events[1].start]
    return text[: events[0].start] + separator.join(kept) + text[events[-1].end :]


def write_gzip(path: Path, text: str) -> None:
    """Write one gzip member without a time stamp or a file name, so that the same input gives the same bytes."""
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def main() -> None:
    """Read the options, cut, write."""
    parser = argparse.ArgumentParser(description="Cut consecutive steps out of a Kineto trace.")
    parser.add_argument("trace", type=Path, help="the whole trace, .json or .json.gz")
    parser.add_argument("--steps", default=":", help="steps to keep, as A:B (B is not kept)")
    parser.add_argument("--pattern", default=DEFAULT_STEP_PATTERN, help="what the label of a step starts with")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the .json.gz to write")
    options = parser.parse_args()

    content = options.trace.read_bytes()
    text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()
    first, _, last = options.steps.partition(":")
    steps = slice(int(first) if first else None, int(last) if last else None)
    write_gzip(options.output, cut(text, steps, options.pattern))


if __name__ == "__main__":
    main()
