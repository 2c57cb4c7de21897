"""How things are called in texts for people: counts, times, detectors, engines, notes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

__all__ = [
    "LINE_WIDTH",
    "detector_text",
    "engine_text",
    "folded",
    "kind_text",
    "kinds_text",
    "note_text",
    "plural",
    "row_lines",
    "time_text",
    "together",
]

LINE_WIDTH = 80
_NAME_WIDTH = 15
_NO_BREAK_SPACE = "\xa0"
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "atom": "ATOM", "profiler": "ProfilerStep"}


def plural(count: int, noun: str) -> str:
    """``1 step``, ``2,000 steps``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def time_text(microseconds: float) -> str:
    """A time for people, in the largest unit of which there is one."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(microseconds) >= size:
            return f"{microseconds / size:,.2f} {unit}"
    return f"{microseconds:,.1f} us"


def engine_text(name: str) -> str:
    """An engine as it writes itself; names that are not known as they are."""
    return _ENGINES.get(name, name)


def detector_text(detector: str) -> str:
    """What marks the steps? ``annotation:vllm`` is "vLLM labels"."""
    kind, _, what = detector.partition(":")
    match kind:
        case "annotation":
            return f"{engine_text(what)} labels"
        case "device_annotation":
            return f"{engine_text(what)} labels on the device's streams"
        case "family":
            return f"labels like {what}"
        case "call_tree":
            return f"the call tree ({what})"
        case "top_level":
            return f"the op {what}"
        case "device_sequence":
            return f"the sequence of kernels ({what})"
        case "bookends":
            return f"{detector_text(what)} and what runs around them"
        case _:
            return detector


def kind_text(kind: str) -> str:
    """``decode-only``; a step whose label does not tell what it does has no kind to name."""
    return "of unknown kind" if kind == "unknown" else kind.replace("_", "-")


def kinds_text(kinds: Mapping[str, int]) -> str:
    """``76 decode-only, 23 prefill-decode``: most frequent first."""
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    return ", ".join(together(f"{count:,} {kind_text(kind)}") for kind, count in ordered)


def note_text(text: str, count: int | None, first_offset_bytes: int | None) -> str:
    """A note with its count, unless the text holds it, and the place of the first."""
    counted = f" [{count:,}]" if count not in (None, 1) and f"{count:,}" not in text else ""
    at = f" (first at byte {first_offset_bytes:,})" if first_offset_bytes is not None else ""
    return f"{text}{counted}{at}"


def row_lines(name: str, value: str) -> list[str]:
    """A name and what is to be said about it, in lines that fit; lines after the first are indented alike."""
    return folded(value, f"  {name:<{_NAME_WIDTH}} ")


def folded(text: str, beginning: str) -> list[str]:
    """A text after ``beginning``, in lines that fit; names and paths are never cut, nor what :func:`together` joins."""
    lines = textwrap.wrap(
        text,
        LINE_WIDTH,
        initial_indent=beginning,
        subsequent_indent=" " * len(beginning),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK_SPACE, " ") for line in lines or [beginning.rstrip()]]


def together(text: str) -> str:
    """A text that no line break may divide."""
    return text.replace(" ", _NO_BREAK_SPACE)
