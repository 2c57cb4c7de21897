"""What is in a trace, as lines for a terminal: one screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracelens_infer.report.wording import (
    detector_text,
    engine_text,
    kind_text,
    kinds_text,
    note_text,
    plural,
    row_lines,
    time_text,
    together,
)

__all__ = ["info_lines"]

_CATEGORIES = 6
_LABELS = 4
_MODES = {"mixed": "prefills share steps with decodes", "exclusive": "decodes stand still during a prefill"}


def info_lines(info: Mapping[str, Any]) -> list[str]:
    """The answers to: what is this, what is in it, what are its steps, what is missing or damaged?"""
    rows = (*_what(info), *_steps(info), *_notes(info))
    return [info["source"]["name"], *(line for name, value in rows for line in row_lines(name, value)), ""]


_Rows = Iterator[tuple[str, str]]


def _what(info: Mapping[str, Any]) -> _Rows:
    source, base = info["source"], info["time_base"]
    engine = engine_text(source["engine"]) if source["engine"] else "unknown"
    yield "engine", " ".join(filter(None, (engine, source["engine_version"])))
    if source["rank"] is not None:
        yield "rank", f"{source['rank']} of {source['world_size'] or '?'}"
    yield "devices", _devices(source, info)
    recorded = [
        f"{'with' if source[flag] else 'without'} {name}"
        for name, flag in (("shapes", "has_shapes"), ("stacks", "has_stacks"))
    ]
    yield "recorded", f"{time_text(base['extent_us'])}, {', '.join(recorded)}"
    yield "events", f"{source['events']:,} in {source['uncompressed_bytes'] / 1e6:,.1f} MB of JSON"
    categories = list(info["events_by_category"].items())
    if categories:
        listed = [together(f"{name} {count:,}") for name, count in categories[:_CATEGORIES]]
        yield "", ", ".join(listed) + (", ..." if len(categories) > _CATEGORIES else "")


def _devices(source: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    count = source["device_count"]
    names = [name for name in source["device_names"] if name]
    times = f"{count} x " if count > 1 else ""
    listed = times + (", ".join(names) or "unnamed") if count else "none listed"
    return listed if info["has_device_events"] else f"{listed}; no device events, so step times are host times"


def _steps(info: Mapping[str, Any]) -> _Rows:
    if "no_steps" in info:
        yield "steps", f"none. {info['no_steps']['reason']}"
        yield "", info["no_steps"]["action"]
        return
    told = {kind: count for kind, count in info["steps_by_kind"].items() if kind != "unknown"}
    what = f": {kinds_text(info['steps_by_kind'])}" if told else "; they do not tell what a step does"
    yield "steps", f"{info['steps']:,} from {detector_text(info['detector'])}{what}"
    yield "", _explained(info)
    for number, (kind, spread) in enumerate(info["durations_us"].items()):
        yield "" if number else "step time", _spread(kind, spread, alone=not told)
    if info["engine_mode"] in _MODES:
        yield "engine mode", f"{info['engine_mode']}: {_MODES[info['engine_mode']]}"
    graphs = {graph: count for graph, count in info["steps_by_graph"].items() if graph != "unknown"}
    if graphs:
        yield "graphs", ", ".join(f"{graph} in {plural(count, 'step')}" for graph, count in graphs.items())
    device = info["device_events"]
    if device["count"]:
        linked = together(f"{device['linked']:,} with their launch in the file")
        yield "device work", f"{plural(device['count'], 'event')}, {linked}, {device['in_steps']:,} in steps"
    for other in info["rejected_candidates"]:
        found = f"{detector_text(other['detector'])} ({plural(other['steps'], 'step')})"
        yield "not used", f"{found}: {other['rejected']}"


def _explained(info: Mapping[str, Any]) -> str:
    what = "device" if info["step_times"] == "device" else "host op"
    doubt = "" if info["grade"] == "splittable" else f": {info['grade'].replace('_', ' ')}"
    return f"{info['explained_share']:.1%} of the {what} time between first and last is in them{doubt}"


def _spread(kind: str, spread: Mapping[str, float], *, alone: bool) -> str:
    of_kind = "" if alone else f"{kind_text(kind)}: "
    middle, low, high = (time_text(spread[key]) for key in ("p50", "p10", "p90"))
    return f"{of_kind}{middle}" if low == high else f"{of_kind}median {middle}, p10 {low}, p90 {high}"


def _notes(info: Mapping[str, Any]) -> _Rows:
    labels = list(info["labels"].items())
    if labels and "no_steps" in info:
        yield "labels", ", ".join(f"{label} ({count:,})" for label, count in labels[:_LABELS])
    for note in info["notes"]:
        yield note["level"], note_text(note["text"], note.get("count"), note.get("first_offset_bytes"))
