"""find_iterations(): which of the candidates marks the iterations, and why were the others rejected?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tracelens_infer.errors import MergedTraceError, NothingFoundError
from tracelens_infer.notes import Note
from tracelens_infer.steps.annotation import StepFormat, format_notes, registered_formats
from tracelens_infer.steps.candidates import Candidate, annotation_candidates, family_rank, label_families
from tracelens_infer.steps.coverage import graded
from tracelens_infer.steps.twins import merge_twins
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.launches import DeviceWork

__all__ = ["Iterations", "find_iterations"]


@dataclass(frozen=True, slots=True)
class Iterations:
    """The chosen candidate and every other one, each with the reason why it was rejected."""

    chosen: Candidate
    rejected: tuple[Candidate, ...]
    notes: tuple[Note, ...]


def find_iterations(trace: Trace, work: DeviceWork) -> Iterations:
    """Where are the iterations of this trace?

    Raises NothingFoundError where no label is known and MergedTraceError where ranks or writers share the file.
    """
    refuse_merged(trace)
    candidates = [graded(trace, work, merge_twins(candidate, work)) for candidate in annotation_candidates(trace)]
    if not candidates:
        raise NothingFoundError(trace.name, _nothing_found(trace), _ADVICE)
    formats = registered_formats()
    # An engine's own label before the profiler's schedule; the one that tells sums over requests; else the outer one.
    candidates.sort(key=lambda found: (family_rank(formats, found.detector), not found.has_aggregates, -found.span_ns))
    chosen = candidates[0]
    rejected = tuple(replace(other, rejected=_why(formats, chosen, other)) for other in candidates[1:])
    return Iterations(chosen, rejected, (*format_notes(), *_notes(chosen)))


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


_ADVICE = (
    "Record with step annotations: vLLM >= 0.26 --profiler-config.detailed_trace_annotation True, "
    "or torch.profiler's schedule with step()."
)


def _nothing_found(trace: Trace) -> str:
    if trace.event_count == 0:
        return "The trace holds no events."
    families = label_families(trace)
    if not families:
        return "No step markers: the trace holds no annotations of the host at all."
    seen = ", ".join(f"{label} ({count})" for label, count in families[:4])
    return f"No step markers: none of the labels seen is one of a step: {seen}."


def _why(formats: Iterable[StepFormat], chosen: Candidate, other: Candidate) -> str:
    if family_rank(formats, chosen.detector) != family_rank(formats, other.detector):
        return "the engine's own labels are preferred to the profiler's schedule"
    if chosen.has_aggregates and not other.has_aggregates:
        return "the chosen labels tell the sums over requests"
    return "the chosen labels are the outer ones, and nested labels count once"


def _notes(chosen: Candidate) -> list[Note]:
    notes = []
    if chosen.overlapping:
        text = "Step labels that run into the next step's; their tiles end where the next one starts."
        notes.append(Note("info", "overlapping_steps", text, chosen.overlapping))
    if chosen.on_device:
        text = "Steps are marked on the device's tracks only: times are the device's, and work is attributed by time."
        notes.append(Note("warning", "device_labels_only", text, len(chosen.boundaries)))
    return notes
