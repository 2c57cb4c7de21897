"""find_iterations(): which of the candidates marks the iterations, and why were the others rejected?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracelens_infer.errors import MergedTraceError, NothingFoundError
from tracelens_infer.notes import Note
from tracelens_infer.steps.annotation import StepFormat, format_notes, registered_formats
from tracelens_infer.steps.candidates import Candidate, Grade, annotation_candidates, family_rank, label_families
from tracelens_infer.steps.coverage import graded
from tracelens_infer.steps.twins import merge_drafts, merge_twins
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.launches import DeviceWork

__all__ = ["Iterations", "find_iterations"]

ENGINE_SHARE = 0.02
"""Of the device's time: a process that launches less drives no model. Helpers copy, and write checkpoints."""


@dataclass(frozen=True, slots=True)
class Iterations:
    """The chosen candidate and every other one, each with the reason why it was rejected."""

    chosen: Candidate
    rejected: tuple[Candidate, ...]
    notes: tuple[Note, ...]


def find_iterations(trace: Trace, work: DeviceWork) -> Iterations:
    """Where are the iterations of this trace?

    Known labels decide where they explain the device's time; else what repeats does, in the cascade's order. Raises
    NothingFoundError where nothing does, and MergedTraceError where ranks or writers share the file.
    """
    refuse_merged(trace)
    labelled = _by_labels(trace, work)
    if labelled and labelled[0].grade is Grade.SPLITTABLE:
        return _found(labelled[0], labelled[1:])
    from tracelens_infer.steps.cascade import find_by_cascade  # not needed for most traces

    if not labelled:
        refuse_engines(trace, work)
    structural = find_by_cascade(trace, work)
    sound = structural[:1] if structural and not structural[0].rejected else []
    if not labelled and not sound:
        raise NothingFoundError(trace.name, _nothing_found(trace, structural), _ADVICE)
    if labelled and (not sound or sound[0].explained_share <= labelled[0].explained_share):
        return _found(labelled[0], [*labelled[1:], *(_explaining_less(other) for other in structural)])
    return _found(structural[0], [*structural[1:], *(_explaining_less(other) for other in labelled)])


def _found(chosen: Candidate, others: Iterable[Candidate]) -> Iterations:
    return Iterations(chosen, tuple(others), (*format_notes(), *_notes(chosen)))


def _by_labels(trace: Trace, work: DeviceWork) -> list[Candidate]:
    """Candidates of the known labels, the preferred one first, the others with the reason why not."""
    found = [merge_drafts(merge_twins(candidate, work)) for candidate in annotation_candidates(trace)]
    candidates = [graded(trace, work, candidate) for candidate in found]
    formats = registered_formats()
    # An engine's own label before the profiler's schedule; the one that tells sums over requests; else the outer one.
    candidates.sort(key=lambda one: (family_rank(formats, one.detector), not one.has_aggregates, -one.span_ns))
    return [
        *candidates[:1],
        *(replace(other, rejected=_why(formats, candidates[0], other)) for other in candidates[1:]),
    ]


def _explaining_less(other: Candidate) -> Candidate:
    return replace(other, rejected=other.rejected or f"explains only {other.explained_share:.1%} of the device's time")


def refuse_merged(trace: Trace) -> None:
    """Raises MergedTraceError where several ranks or writers share the file."""
    metadata = trace.metadata
    if metadata.writers == 1 and len(metadata.ranks) < 2:
        return
    ranks = ", ".join(str(rank) for rank in metadata.ranks) or "unknown"
    what = f"{metadata.writers} writers, interleaved" if metadata.writers > 1 else f"{len(metadata.ranks)} ranks"
    raise MergedTraceError(
        trace.name,
        f"This file holds the events of {what} (ranks {ranks}); their correlations collide.",
        "Give each rank its own trace file, and name one.",
    )


def refuse_engines(trace: Trace, work: DeviceWork) -> None:
    """Raises MergedTraceError where several processes launch a fair share of the device's work each.

    Without labels nothing tells whose iterations are meant, and the other's kernels would count for them.
    """
    used = work.linked & work.timed
    process = trace.lanes.process_codes()[trace.columns.lane[work.launch[used]]]
    times = np.bincount(process, weights=(work.end_ns - work.start_ns)[used])
    engines = np.flatnonzero(times >= ENGINE_SHARE * times.sum()) if times.any() else times
    if len(engines) <= 1:
        return
    shares = ", ".join(f"{share:.0%}" for share in sorted((times[engines] / times.sum()).tolist(), reverse=True))
    raise MergedTraceError(
        trace.name,
        f"No label marks the steps, and {len(engines)} processes launch the device's work ({shares} of its time).",
        "Give the trace of one of them, or one with step labels.",
    )


_LISTED = 4  # labels, and refused candidates, in a message; `tracelens info` shows all of them
_ADVICE = (
    "Record with step annotations: vLLM >= 0.26 --profiler-config.detailed_trace_annotation True, "
    "or torch.profiler's schedule with step()."
)


def _nothing_found(trace: Trace, structural: Sequence[Candidate]) -> str:
    if trace.event_count == 0:
        return "The trace holds no events."
    from tracelens_infer.steps.cascade import LOOKED_FOR

    families = ", ".join(f"{label} ({count})" for label, count in label_families(trace)[:_LISTED])
    if families:
        labels = f"No step markers: none of the labels seen is one of a step: {families}."
    else:
        labels = "No step markers: the trace holds no annotations of the host at all."
    refused = "; ".join(
        f"{other.detector.partition(':')[2]} ({len(other.boundaries)} times): {other.rejected}"
        for other in structural[:_LISTED]
    )
    return f"{labels} Nothing else marks them, either: looked for {LOOKED_FOR}." + (
        f" What repeats is not them: {refused}." if refused else ""
    )


def _why(formats: Iterable[StepFormat], chosen: Candidate, other: Candidate) -> str:
    if family_rank(formats, chosen.detector) != family_rank(formats, other.detector):
        return "the engine's own labels are preferred to the profiler's schedule"
    if chosen.has_aggregates and not other.has_aggregates:
        return "the chosen labels tell the sums over requests"
    return "the chosen labels are the outer ones, and nested labels count once"


def _notes(chosen: Candidate) -> list[Note]:
    notes = list(chosen.notes)
    if chosen.overlapping:
        text = "Step labels that run into the next step's; their tiles end where the next one starts."
        notes.append(Note("info", "overlapping_steps", text, chosen.overlapping))
    if chosen.on_device:
        text = "Steps are seen on the device's tracks only: times are the device's, and work is attributed by time."
        notes.append(Note("warning", "device_tracks_only", text, len(chosen.boundaries)))
    if chosen.disputed:
        text = f"Are these the iterations? {chosen.disputed[0].upper()}{chosen.disputed[1:]}."
        notes.append(Note("warning", "iterations_disputed", text, len(chosen.boundaries)))
    if all(boundary.annotation is None for boundary in chosen.boundaries):
        text = "No label marks the steps: they were found from what repeats in the trace. Check their number."
        notes.append(Note("warning", "steps_from_structure", text, len(chosen.boundaries)))
    return notes
