"""What is in a trace, as plain values: the content of ``tracelens info --json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tracelens_infer import __version__
from tracelens_infer.errors import MergedTraceError, NothingFoundError
from tracelens_infer.notes import Note
from tracelens_infer.report.manifest import analysis_dict, note_dict, trace_dict
from tracelens_infer.steps.analyze import steps_of
from tracelens_infer.steps.candidates import label_families
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.launches import link_device_work
from tracelens_infer.trace.reader import Progress, read_trace
from tracelens_infer.trace.source import DEFAULT_MAX_BYTES

__all__ = ["SCHEMA_VERSION", "describe_trace", "rank_notes"]

SCHEMA_VERSION = 1
_LABELS = 12
_LISTED = 8
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
    found: dict[str, Any]
    try:
        analysis = steps_of(trace)
    except (NothingFoundError, MergedTraceError) as error:
        notes = (*trace.notes, *link_device_work(trace).notes)
        found = {**trace_dict(trace), "no_steps": {"reason": error.reason, "action": error.action}}
    else:
        notes, found = analysis.notes, analysis_dict(analysis)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        **found,
        **events,
        "notes": [note_dict(note) for note in notes],
    }


def _by_category(trace: Trace) -> dict[str, int]:
    """How many events are there of each category (of events without one: of each phase)? Most frequent first."""
    kept = np.ones(len(trace.columns), dtype=np.bool_)
    kept[trace.dropped] = False
    counts = np.bincount(trace.columns.lane[kept], minlength=len(trace.lanes.lanes))
    categories: Counter[str] = Counter()
    for lane, count in zip(trace.lanes.lanes, counts.tolist(), strict=True):
        categories[lane.category or f"ph {lane.phase}"] += count
    return {category: count for category, count in categories.most_common() if count}


def rank_notes(infos: Sequence[Mapping[str, Any]]) -> tuple[Note, ...]:
    """Of several ranks' traces: which are missing, which are there twice, and which were cut short?

    Each is what :func:`describe_trace` returned, or the content of a split.json.
    """
    sources = [info["source"] for info in infos]
    ranks = Counter(source["rank"] for source in sources if source["rank"] is not None)
    world_size = max((source["world_size"] or 0 for source in sources), default=0)
    if len(sources) < 2 or not ranks:
        return ()
    notes = []
    missing = sorted(set(range(world_size)) - set(ranks))
    if missing:
        text = f"Of {world_size:,} ranks these are missing: {_listed(map(str, missing))}."
        notes.append(Note("warning", "missing_ranks", text, len(missing)))
    repeated = sorted(rank for rank, count in ranks.items() if count > 1)
    if repeated:
        text = f"More than one trace says that it is of rank {_listed(map(str, repeated))}."
        notes.append(Note("warning", "repeated_ranks", text, len(repeated)))
    typical = median(source["events"] for source in sources)
    short = [source["name"] for source in sources if source["events"] < _SHORT_SHARE * typical]
    if short:
        text = f"Less than half of the other ranks' events are in {_listed(short)}; cut short?"
        notes.append(Note("warning", "short_ranks", text, len(short)))
    return tuple(notes)


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_LISTED]) + (f" and {len(listed) - _LISTED:,} more" if len(listed) > _LISTED else "")
