"""Iterations and device work -> Steps: times, kinds, graph mode, and which step each device event belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.steps.annotation import AttentionLoad
from tracelens_infer.steps.candidates import Candidate, StepBoundary, Window
from tracelens_infer.steps.classify import classify, engine_mode, speculates, stalled_decodes
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.steps.step import Confidence, DurationFrom, GraphMode, Step, StepKind, Steps
from tracelens_infer.trace.columns import Int64Array, RowArray, median_of
from tracelens_infer.trace.launches import DeviceWork, union_ns

if TYPE_CHECKING:
    from tracelens_infer.steps.phases import PhaseGuess

__all__ = ["GRAPH_KERNELS", "StepWork", "build_steps"]

GRAPH_KERNELS = 4
"""A launch that owns as many kernels replays a graph: eager calls were seen to own one, library calls up to three."""

_LEAST_IN_STEPS = 0.5  # of the device work; recordings begin and end within a step, but not most of them
_SHORT_GRAPH_SHARE = 0.5
"""A replay with less than this share of its siblings' kernels lost some: replays of one model differ little."""

_TRANSIENT_FACTOR = 10
_TRANSIENT_STEPS = 4  # start-up (first collectives, compilation) was seen to last no longer
_FEWEST_SIBLINGS = 3

_FEWEST_FORWARD_KERNELS = 4  # norm, projection, attention, projection: no forward has fewer
_FORWARD_SHARE = 0.5
"""Work after a label that has more than this share of a step's kernels is a forward of its own, not sampling."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """Which step does each device event belong to? ``step`` is aligned with DeviceWork's rows; -1 for none."""

    candidate: Candidate
    step: Int64Array


def build_steps(
    candidate: Candidate, work: DeviceWork, guesses: Sequence[PhaseGuess] | None = None
) -> tuple[Steps, StepWork]:
    """What are the steps, and what ran in each?

    ``guesses`` says what each boundary's step does where labels do not tell. The candidate returned has dummy steps
    added to its boundaries.
    """
    candidate, dummies = _with_dummies(candidate, work)
    owner = step_numbers(candidate, _attribution_times(candidate, work))
    owner[~work.linked & (not candidate.on_device)] = -1
    count = len(candidate.boundaries)
    phases = _labelled(candidate) if guesses is None else _guessed(candidate, guesses)
    stalled = stalled_decodes(
        [phase.load.context.requests if phase.load else 0 for phase in phases],
        [phase.load.generation.requests if phase.load else 0 for phase in phases],
    )
    times = _DeviceTimes.of(work, owner, count)
    graphs = _graph_modes(work.launch, owner, count)
    steps = tuple(_step(i, candidate.boundaries, phases[i], stalled[i], times, graphs[i]) for i in range(count))
    notes = (*_notes(candidate, work, owner, dummies), *_suspect_steps(steps))
    mode = engine_mode([phase.kind for phase in phases], stalled)
    found = Steps(steps, mode, bool((owner >= 0).any()), notes, guesses is not None)
    return found, StepWork(candidate, owner)


@dataclass(frozen=True, slots=True)
class _Phase:
    """What a step does, and how that is known."""

    kind: StepKind
    kind_from: str
    load: AttentionLoad | None
    requests: int | None
    confidence: Confidence


def _labelled(candidate: Candidate) -> list[_Phase]:
    speculative = speculates([boundary.annotation for boundary in candidate.boundaries])
    phases = []
    for boundary in candidate.boundaries:
        annotation = boundary.annotation
        if annotation is None:
            phases.append(_unlabelled(boundary))
            continue
        kind, kind_from = classify(annotation, speculative=speculative)
        confidence = Confidence.UNKNOWN if kind is StepKind.UNKNOWN else Confidence.HIGH
        phases.append(_Phase(kind, kind_from, annotation.load, annotation.requests, confidence))
    return phases


def _unlabelled(boundary: StepBoundary) -> _Phase:
    if boundary.window is Window.DUMMY:
        return _Phase(StepKind.DUMMY, "device work between annotations", None, None, Confidence.MEDIUM)
    reason = "before or after the iterations" if boundary.window is Window.BOOKEND else "no label"
    return _Phase(StepKind.UNKNOWN, reason, None, None, Confidence.UNKNOWN)


def _guessed(candidate: Candidate, guesses: Sequence[PhaseGuess]) -> list[_Phase]:
    return [
        _unlabelled(boundary)
        if boundary.window is Window.BOOKEND
        else _Phase(guess.kind, guess.source, guess.load, guess.requests, guess.confidence)
        for boundary, guess in zip(candidate.boundaries, guesses, strict=True)
    ]


def _attribution_times(candidate: Candidate, work: DeviceWork) -> Int64Array:
    """Work belongs to the step that launched it; only labels on the device's tracks leave no choice but its start."""
    return work.start_ns if candidate.on_device else work.launch_ns


@dataclass(frozen=True, slots=True)
class _DeviceTimes:
    """Per step: number of device events, extent (0 where there is none), busy time, and duration end to end."""

    kernels: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    busy_ns: Int64Array
    duration_ns: Int64Array
    has_before: np.ndarray[tuple[int], np.dtype[np.bool_]]
    next_start_ns: Int64Array

    @classmethod
    def of(cls, work: DeviceWork, owner: Int64Array, count: int) -> _DeviceTimes:
        owned = owner >= 0
        kernels = np.bincount(owner[owned], minlength=count).astype(np.int64)
        timed = owned & work.timed
        step, start, end = owner[timed], work.start_ns[timed], work.end_ns[timed]
        first = np.full(count, np.iinfo(np.int64).max)
        last = np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(first, step, start)
        np.maximum.at(last, step, end)
        has_work = np.bincount(step, minlength=count) > 0
        # The end of all work so far: a step whose work ends before that of the one before it lasts no time.
        ends = np.maximum.accumulate(last)
        before = np.append(np.iinfo(np.int64).min, ends[:-1])
        has_before = before != np.iinfo(np.int64).min
        duration = np.where(has_before, np.maximum(last - np.where(has_before, before, 0), 0), last - first)
        following = np.minimum.accumulate(np.append(first, np.iinfo(np.int64).max)[::-1])[::-1][1:]
        return cls(
            kernels,
            np.where(has_work, first, 0),
            np.where(has_work, last, 0),
            union_ns(start, end, step, count),
            np.where(has_work, duration, 0),
            has_before,
            following,
        )


def _step(
    index: int,
    boundaries: tuple[StepBoundary, ...],
    phase: _Phase,
    stalled: int,
    times: _DeviceTimes,
    graph: GraphMode,
) -> Step:
    boundary = boundaries[index]
    annotation = boundary.annotation
    has_work = bool(times.end_ns[index] or times.start_ns[index])
    busy = int(times.busy_ns[index])
    if has_work:
        duration = int(times.duration_ns[index])
        source = DurationFrom.DEVICE_END_TO_END if times.has_before[index] else DurationFrom.DEVICE_EXTENT
    elif index + 1 < len(boundaries):
        duration, source = boundaries[index + 1].start_ns - boundary.start_ns, DurationFrom.HOST_START_TO_START
    else:
        duration, source = boundary.end_ns - boundary.start_ns, DurationFrom.HOST_SPAN
    following = int(times.next_start_ns[index])
    return Step(
        index=index,
        kind=phase.kind,
        kind_from=phase.kind_from,
        load=phase.load,
        host_start_ns=boundary.start_ns,
        host_end_ns=boundary.end_ns,
        tile_end_ns=boundary.tile_end_ns,
        device_start_ns=int(times.start_ns[index]) if has_work else None,
        device_end_ns=int(times.end_ns[index]) if has_work else None,
        device_busy_ns=busy,
        device_idle_ns=max(duration - busy, 0) if has_work else 0,
        duration_ns=duration,
        duration_from=source,
        start_to_start_ns=following - int(times.start_ns[index])
        if has_work and following != np.iinfo(np.int64).max
        else None,
        graph=graph,
        padded_batch=annotation.padded_batch if annotation is not None else None,
        stalled_decodes=stalled,
        kernels=int(times.kernels[index]),
        annotation=annotation.text if annotation is not None else "",
        batch_size=phase.requests,
        confidence=phase.confidence,
    )


def _graph_modes(launch: RowArray, owner: Int64Array, count: int) -> list[GraphMode]:
    """How many of a step's kernels does one launch own, and how many do launches that own several?"""
    owned = (owner >= 0) & (launch >= 0)
    if not owned.any():
        return [GraphMode.UNKNOWN] * count
    order = np.lexsort((launch[owned], owner[owned]))
    step, call = owner[owned][order], launch[owned][order]
    first = np.flatnonzero(np.append(True, (step[1:] != step[:-1]) | (call[1:] != call[:-1])))
    size = np.diff(np.append(first, len(step)))
    step = step[first]
    kernels = np.bincount(step, weights=size, minlength=count)
    in_graphs = np.bincount(step, weights=np.where(size >= GRAPH_KERNELS, size, 0), minlength=count)
    largest = np.zeros(count, dtype=np.int64)
    np.maximum.at(largest, step, np.where(size >= GRAPH_KERNELS, size, 0))
    modes = []
    for total, graphed, most in zip(kernels.tolist(), in_graphs.tolist(), largest.tolist(), strict=True):
        if not total:
            modes.append(GraphMode.UNKNOWN)
        elif most > total / 2:
            modes.append(GraphMode.FULL)
        else:
            modes.append(GraphMode.PIECEWISE if graphed > total / 2 else GraphMode.NONE)
    return modes


def _with_dummies(candidate: Candidate, work: DeviceWork) -> tuple[Candidate, int]:
    """A forward between two labels (a data-parallel rank without requests keeps pace) becomes a step of its own.

    Kernels launched after a label ends are sampling as a rule; what exceeds the usual number of those by half a step
    is another forward, and begins with the first launch beyond that number.
    """
    labelled = any(boundary.annotation is not None for boundary in candidate.boundaries)
    if candidate.on_device or not labelled or not work.linked.any():
        return candidate, 0
    times = np.sort(work.launch_ns[work.linked])
    tile = step_numbers(candidate, times)
    in_span = step_numbers(candidate, times, spans_only=True) >= 0
    count = len(candidate.boundaries)
    inside = np.bincount(tile[(tile >= 0) & in_span], minlength=count)
    after = np.bincount(tile[(tile >= 0) & ~in_span], minlength=count)
    working = inside[inside > 0]
    if not len(working):
        return candidate, 0
    usual = int(median_of(after))
    least = max(_FEWEST_FORWARD_KERNELS, _FORWARD_SHARE * median_of(working))
    forwards = np.flatnonzero(after >= usual + least)
    if not len(forwards):
        return candidate, 0
    boundaries = list(candidate.boundaries)
    for number in forwards[::-1].tolist():
        boundary = boundaries[number]
        start = int(times[(tile == number) & ~in_span][usual])
        if start <= boundary.start_ns:
            continue
        boundaries[number] = replace(boundary, tile_end_ns=start)
        boundaries.insert(
            number + 1, StepBoundary(-1, start, boundary.tile_end_ns, boundary.tile_end_ns, None, Window.DUMMY)
        )
    return replace(candidate, boundaries=tuple(boundaries)), len(boundaries) - count


def _notes(candidate: Candidate, work: DeviceWork, owner: Int64Array, dummies: int) -> tuple[Note, ...]:
    notes = []
    if not len(work.row):
        text = "The trace holds no device events: step times are host times."
        notes.append(Note("info", "host_times", text, len(candidate.boundaries)))
    elif not (owner >= 0).any():
        text = "No device work could be attributed to a step: step times are host times."
        notes.append(Note("warning", "host_times", text, len(candidate.boundaries)))
    linked, inside = int(work.linked.sum()), int((owner >= 0).sum())
    if inside and inside < _LEAST_IN_STEPS * linked and not candidate.on_device:
        text = f"Only {inside / linked:.0%} of the device work lies between the first and the last step."
        notes.append(Note("warning", "work_outside_steps", text, linked - inside))
    if dummies:
        text = "Forwards without a label were found between steps (data-parallel dummy batches)."
        notes.append(Note("info", "dummy_steps", text, dummies))
    return tuple(notes)


def _suspect_steps(steps: Sequence[Step]) -> list[Note]:
    """Steps whose figures mislead: replays that were recorded in part, and start-up at the beginning."""
    notes = []
    replays = [step for step in steps if step.graph is GraphMode.FULL]
    usual = median_of(np.array([step.kernels for step in replays])) if replays else 0
    short = [step.index for step in replays if step.kernels < _SHORT_GRAPH_SHARE * usual]
    if short:
        text = (
            f"Graph replays with less than half of the others' kernels (first: step {short[0]}): the recording is "
            "incomplete there, and what looks like idle time is not."
        )
        notes.append(Note("warning", "incomplete_graph_recording", text, len(short)))
    slow = [step.index for step in steps[:_TRANSIENT_STEPS] if _is_transient(step, steps)]
    if slow:
        text = (
            f"The first steps (up to {slow[-1]}) keep the device busy over ten times as long as others of their kind."
        )
        notes.append(Note("warning", "startup_transient", text, len(slow)))
    return notes


def _is_transient(step: Step, steps: Sequence[Step]) -> bool:
    siblings = [other.device_busy_ns for other in steps[_TRANSIENT_STEPS:] if other.kind is step.kind]
    return (
        len(siblings) >= _FEWEST_SIBLINGS
        and step.device_busy_ns > _TRANSIENT_FACTOR * median_of(np.array(siblings)) > 0
    )
