"""What is in a trace, as plain values: the content of ``tracelens info --json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tracelens_infer.errors import MergedTraceError, NothingFoundError
from tracelens_infer.notes import Note
from tracelens_infer.report.manifest import analysis_dict, note_dict, trace_dict
from tracelens_infer.steps.analyze import StepAnalysis, steps_of
from tracelens_infer.steps.candidates import label_families
from tracelens_infer.steps.step import Step
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.launches import link_device_work
from tracelens_infer.trace.reader import Progress, read_trace
from tracelens_infer.trace.source import DEFAULT_MAX_BYTES

__all__ = ["describe_trace", "rank_notes"]

_SHORT_SHARE = 0.5  # a rank with less than half of the others' events was cut off


def describe_trace(
    path: Path, *, name: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None
) -> dict[str, Any]:
    """What is in this trace? Engine, rank, devices, events by category, steps, notes on what is missing or damaged.

    A trace without steps, or one that several ranks share, is described as far as it goes; ``no_steps`` says why.
    Raises InputError where there is no trace to describe.
    """
    trace = read_trace(path, name=name, max_bytes=max_bytes, progress=progress)
    events = {"events_by_category": _by_category(trace), "labels": dict(label_families(trace)[:_LABELS])}
    try:
        analysis = steps_of(trace)
    except (NothingFoundError, MergedTraceError) as error:
        notes = (*trace.notes, *link_device_work(trace).notes)
        reason = {"reason": error.reason, "action": error.action}
        return {**trace_dict(trace), **events, "no_steps": reason, "notes": [note_dict(note) for note in notes]}
    return {
        **analysis_dict(analysis),
        **events,
        "durations_us": _durations(analysis),
        "notes": [note_dict(note) for note in analysis.notes],
    }


_LABELS = 12


def _by_category(trace: Trace) -> dict[str, int]:
    """How many events are there of each category (of events without one: of each phase)? Most frequent first."""
    kept = np.ones(len(trace.columns), dtype=np.bool_)
    kept[trace.dropped] = False
    counts = np.bincount(trace.columns.lane[kept], minlength=len(trace.lanes.lanes))
    categories: Counter[str] = Counter()
    for lane, count in zip(trace.lanes.lanes, counts.tolist(), strict=True):
        categories[lane.category or f"ph {lane.phase}"] += count
    return {category: count for category, count in categories.most_common() if count}


def _durations(analysis: StepAnalysis) -> dict[str, dict[str, float]]:
    """Median and 10th to 90th percentile of the step durations of each kind, in microseconds."""
    by_kind: dict[str, list[Step]] = {}
    for step in analysis.steps.steps:
        by_kind.setdefault(step.kind.value, []).append(step)
    return {
        kind: dict(
            zip(
                ("p10", "p50", "p90"),
                np.percentile([step.duration_ns / 1000 for step in steps], [10, 50, 90]).round(3).tolist(),
                strict=True,
            )
        )
        for kind, steps in by_kind.items()
    }


def rank_notes(infos: Sequence[dict[str, Any]]) -> tuple[Note, ...]:
    """Of several ranks' traces: which are missing, and which were cut short?"""
    sources = [info["source"] for info in infos]
    ranks = {source["rank"] for source in sources if source["rank"] is not None}
    world_size = max((source["world_size"] or 0 for source in sources), default=0)
    if len(sources) < 2 or not ranks:
        return ()
    notes = []
    missing = sorted(set(range(world_size)) - ranks)
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        notes.append(
            Note("warning", "missing_ranks", f"Of {world_size} ranks these are missing: {listed}.", len(missing))
        )
    typical = median(source["events"] for source in sources)
    short = [source["name"] for source in sources if source["events"] < _SHORT_SHARE * typical]
    if short:
        text = f"Less than half of the other ranks' events: {', '.join(short[:4])}; cut short?"
        notes.append(Note("warning", "short_ranks", text, len(short)))
    return tuple(notes)
