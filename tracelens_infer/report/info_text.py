"""What is in a trace, as lines for a terminal: one screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["format_ms", "info_lines", "kinds_text"]

_CATEGORIES = 6
_LABELS = 4
_WIDTH = 14


def info_lines(info: Mapping[str, Any]) -> list[str]:
    """The answers to: what is this, what is in it, what are its steps, what is missing or damaged?"""
    return [info["source"]["name"], *_what(info), *_steps(info), *_notes(info), ""]


def _row(name: str, value: str) -> str:
    return f"  {name:<{_WIDTH}} {value}"


def _what(info: Mapping[str, Any]) -> Iterator[str]:
    source, base = info["source"], info["time_base"]
    engine = " ".join(filter(None, (source["engine"], source["engine_version"]))) or "unknown"
    yield _row("engine", engine)
    if source["rank"] is not None:
        yield _row("rank", f"{source['rank']} of {source['world_size'] or '?'}")
    yield _row("devices", _devices(source, info))
    recorded = [name for name, flag in (("shapes", "has_shapes"), ("stacks", "has_stacks")) if source[flag]]
    yield _row(
        "recorded", f"{format_ms(base['extent_us'])} with {' and '.join(recorded) or 'neither shapes nor stacks'}"
    )
    size = source["uncompressed_bytes"] / 1e6
    yield _row("events", f"{source['events']:,} in {size:,.1f} MB of JSON")
    categories = list(info["events_by_category"].items())
    listed = [f"{name} {count:,}" for name, count in categories[:_CATEGORIES]]
    yield _row("", ", ".join(listed) + (", ..." if len(categories) > _CATEGORIES else ""))


def _devices(source: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    names = [name for name in source["device_names"] if name]
    count = f"{source['device_count']} x " if source["device_count"] > 1 else ""
    unnamed = f"{count}unnamed" if source["device_count"] else "none"
    listed = count + ", ".join(names) if names else unnamed
    return listed if info["has_device_events"] else f"{listed}; no device events: step times are host times"


def _steps(info: Mapping[str, Any]) -> Iterator[str]:
    if "no_steps" in info:
        yield _row("steps", f"none: {info['no_steps']['reason']}")
        yield _row("", info["no_steps"]["action"])
        return
    yield _row("steps", f"{info['steps']:,} from {info['detector']}: {kinds_text(info['steps_by_kind'])}")
    share = f"{info['explained_share']:.1%} of the {'device' if info['step_times'] == 'device' else 'host op'} time"
    yield _row("", f"explain {share} between the first and the last ({info['grade']})")
    for kind, spread in info["durations_us"].items():
        middle, low, high = (format_ms(spread[key]) for key in ("p50", "p10", "p90"))
        yield _row("", f"{kind.replace('_', '-')}: median {middle} (p10 {low}, p90 {high})")
    if info["engine_mode"] != "unknown":
        meaning = {"mixed": "prefills share steps with decodes", "exclusive": "decodes stand still during a prefill"}
        yield _row("engine mode", f"{info['engine_mode']}: {meaning[info['engine_mode']]}")
    graphs = {graph: count for graph, count in info["steps_by_graph"].items() if graph != "unknown"}
    if graphs:
        yield _row("graphs", ", ".join(f"{graph} {count:,}" for graph, count in graphs.items()))
    device = info["device_events"]
    if device["count"]:
        yield _row(
            "device work", f"{device['count']:,} events, {device['linked']:,} linked, {device['in_steps']:,} in steps"
        )
    for other in info["rejected_candidates"]:
        yield _row("rejected", f"{other['detector']} ({other['steps']:,} steps): {other['rejected']}")


def _notes(info: Mapping[str, Any]) -> Iterator[str]:
    labels = list(info["labels"].items())
    if labels and "no_steps" in info:
        yield _row("labels", ", ".join(f"{label} ({count:,})" for label, count in labels[:_LABELS]))
    for note in info["notes"]:
        count = f" [{note['count']:,}]" if note.get("count", 1) != 1 else ""
        at = f" (first at byte {note['first_offset_bytes']:,})" if "first_offset_bytes" in note else ""
        yield _row(note["level"], f"{note['text']}{count}{at}")


def kinds_text(kinds: Mapping[str, int]) -> str:
    """``76 decode-only, 23 prefill-decode``: most frequent first."""
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {kind.replace('_', '-')}" for kind, count in ordered)


def format_ms(microseconds: float) -> str:
    """A time for people: milliseconds, or seconds from one second on."""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:,.2f} s"
    return f"{microseconds / 1e3:,.2f} ms"
