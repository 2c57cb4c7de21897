"""Where could the iterations of a trace begin? One function a detector, each returning Candidates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from tracelens_infer.errors import MergedTraceError
from tracelens_infer.notes import Note
from tracelens_infer.steps.annotation import StepAnnotation, StepFormat, parse_annotation, registered_formats
from tracelens_infer.trace.columns import MISSING, Int64Array, Role, RowArray, Trace, median_of
from tracelens_infer.trace.reader import event_names

__all__ = ["Candidate", "Grade", "StepBoundary", "Window", "annotation_candidates", "label_families"]


_STRAY_SHARE = 0.02  # of the labels: a second rank has as many as the first
_HELD_BY_AN_OVERLONG = 2  # labels of one family nest one in one
_OVERLONG_FACTOR = 10


class Grade(StrEnum):
    """How far can a candidate's windows be trusted?"""

    SPLITTABLE = "splittable"
    DEGRADED = "degraded"
    NOT_SPLITTABLE = "not_splittable"


class Window(StrEnum):
    """What does a boundary's window hold?"""

    ITERATION = "iteration"
    DUMMY = "dummy"  # a forward between two labels
    BOOKEND = "bookend"  # what runs before the first or after the last iteration


@dataclass(frozen=True, slots=True)
class StepBoundary:
    """Where does one iteration lie on the host? Half-open; its tile reaches to the next boundary's start.

    ``row`` is the event that marks it, -1 where no single event does; ``annotation`` what its label says; ``window``
    what it is, if not an iteration.
    """

    row: int
    start_ns: int
    end_ns: int
    tile_end_ns: int
    annotation: StepAnnotation | None
    window: Window = Window.ITERATION


@dataclass(frozen=True, slots=True)
class Candidate:
    """One answer to where the iterations are, and how much of the device's time it explains.

    Attributes:
        detector: what found it, e.g. ``annotation:vllm``.
        boundaries: in order of time.
        on_device: the boundaries are times on the device's clock (labels that only the device's tracks carry).
        span_share, explained_share: share of the linked device time (without a device: of host op time) between the
            first and the last boundary that lies in the marked spans, and in the tiles.
        inside_spans: share of the pieces of work, not of their time, that is asked for within the marked spans.
        grade: None until graded.
        rejected: why another candidate was preferred; empty for the chosen one.
        disputed: why its iterations may be parts of longer ones; empty where nothing says so.
        overlapping: boundaries whose span runs into the next one's.
        notes: what had to be mended, or left out.
    """

    detector: str
    boundaries: tuple[StepBoundary, ...]
    on_device: bool = False
    span_share: float = 0.0
    explained_share: float = 0.0
    inside_spans: float = 0.0
    grade: Grade | None = None
    rejected: str = ""
    disputed: str = ""
    overlapping: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def has_aggregates(self) -> bool:
        """Do the labels tell the sums over requests that the attention roofline needs?"""
        loads = [boundary.annotation.load for boundary in self.boundaries if boundary.annotation is not None]
        return bool(loads) and all(load is not None and load.has_sums for load in loads)

    @property
    def span_ns(self) -> int:
        """How long are the marked spans together?"""
        return sum(boundary.end_ns - boundary.start_ns for boundary in self.boundaries)


def annotation_candidates(trace: Trace) -> list[Candidate]:
    """Which known step labels mark iterations? One candidate a family of grammars.

    Labels on the host are used where there are any; else those that the profiler draws on the device's streams, once a
    stream, which are merged. Raises MergedTraceError where steps of several processes share the file.
    """
    rows = np.array(sorted(trace.labels), dtype=np.intp)
    found = _by_family(trace, rows, trace.labels)
    if found:
        return [_host_candidate(trace, family, members) for family, members in found.items()]
    rows = trace.rows(Role.DEVICE_ANNOTATION)
    found = _by_family(trace, rows, event_names(trace, rows))
    return [_device_candidate(trace, family, members) for family, members in found.items()]


def label_families(trace: Trace) -> list[tuple[str, int]]:
    """Which labels are there, digits folded, most frequent first? For the message when none of them is known."""
    folded = Counter("".join("#" if char.isdigit() else char for char in label) for label in trace.labels.values())
    merged: Counter[str] = Counter()
    for label, count in folded.items():
        while "##" in label:
            label = label.replace("##", "#")
        merged[label] += count
    return merged.most_common()


_Marks = list[tuple[int, StepAnnotation]]


def _by_family(trace: Trace, rows: RowArray, names: Mapping[int, str]) -> dict[str, _Marks]:
    """Family -> rows of its labels in order of time, one process each."""
    families = {fmt.name: fmt.family for fmt in registered_formats()}
    parsed: dict[str, StepAnnotation | None] = {}
    found: dict[str, _Marks] = defaultdict(list)
    starts = trace.columns.start_ns
    for row in rows[np.argsort(starts[rows], kind="stable")].tolist():
        name = names[row]
        if name not in parsed:
            parsed[name] = parse_annotation(name)
        annotation = parsed[name]
        if annotation is not None and starts[row] != MISSING:
            found[families.get(annotation.format, annotation.format)].append((row, annotation))
    return dict(found)


def family_rank(formats: Iterable[StepFormat], detector: str) -> int:
    """How much is a family's label to be trusted as the step? Smaller is better."""
    family = detector.partition(":")[2]
    return min((fmt.rank for fmt in formats if fmt.family == family), default=0)


def _host_candidate(trace: Trace, family: str, marks: _Marks) -> Candidate:
    marks, notes = _of_one_process(trace, marks)
    rows = np.array([row for row, _ in marks], dtype=np.intp)
    starts = trace.columns.start_ns[rows]
    ends = starts + trace.columns.duration_ns[rows]
    unknown = np.flatnonzero(trace.columns.duration_ns[rows] == MISSING)
    for number in unknown.tolist():
        following = int(starts[number + 1]) if number + 1 < len(starts) else None
        ends[number] = _end_of_what_it_ran(trace, int(rows[number]), following)
    notes += _clip_overlong(starts, ends)
    outer = _outermost(starts.tolist(), ends.tolist())
    annotations = [annotation for _, annotation in marks]
    spans = [(int(rows[i]), int(starts[i]), int(ends[i]), annotations[i]) for i in outer]
    return replace(_tiled(f"annotation:{family}", spans, on_device=False), notes=tuple(notes))


def _clip_overlong(starts: Int64Array, ends: Int64Array) -> list[Note]:
    """End labels, in place, that last far beyond all that begin within them: a duration that cannot be.

    A label that really holds others of its family lasts about as long as they do together.
    """
    total = np.append(0, np.cumsum(np.maximum(ends - starts, 0)))
    number = np.arange(len(starts))
    beyond = np.searchsorted(starts, ends)
    held = total[np.maximum(beyond, number + 1)] - total[number + 1]
    overlong = (beyond - number > _HELD_BY_AN_OVERLONG) & (ends - starts > _OVERLONG_FACTOR * np.maximum(held, 1))
    if not overlong.any():
        return []
    ends[overlong] = starts[np.flatnonzero(overlong) + 1]
    text = "Labels that last far beyond the steps that begin within them end where the next one begins."
    return [Note("warning", "overlong_labels", text, int(overlong.sum()))]


def _outermost(starts: list[int], ends: list[int]) -> list[int]:
    """Which spans lie in no other? Nested labels of one family count once. ``starts`` ascend."""
    kept: list[int] = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if kept and end <= ends[kept[-1]] and (start, end) != (starts[kept[-1]], starts[kept[-1]]):
            continue  # inside the one before
        if kept and start == starts[kept[-1]] and end > ends[kept[-1]]:
            kept.pop()  # the one before is inside this one
        kept.append(number)
    return kept


def _of_one_process(trace: Trace, marks: _Marks) -> tuple[_Marks, list[Note]]:
    """The labels of the process that has them; a stray one or two beside many have a damaged process id."""
    lanes = trace.lanes.lanes
    processes = [lanes[trace.columns.lane[row]].process for row, _ in marks]
    counts = Counter(processes).most_common()
    if len(counts) == 1:
        return marks, []
    stray = len(marks) - counts[0][1]
    damaged = all(type(process) is not type(counts[0][0]) for process, _ in counts[1:])  # null, 1.5, a text
    if stray <= _STRAY_SHARE * len(marks) or (damaged and stray < counts[0][1]):
        kept = [mark for mark, process in zip(marks, processes, strict=True) if process == counts[0][0]]
        return kept, [
            Note("warning", "stray_labels", "Labels of other processes than the steps' were left out.", stray)
        ]
    listed = ", ".join(str(process) for process in sorted(set(processes), key=str))
    raise MergedTraceError(
        trace.name,
        f"Steps of {len(counts)} processes share this file ({listed}); mixing them would give wrong times.",
        "Give the trace of one rank (the engine writes one file per rank before merging).",
    )


def _end_of_what_it_ran(trace: Trace, row: int, following: int | None) -> int:
    """A label without a duration ends with the last op or launch that began in its tile on its process."""
    columns = trace.columns
    process = trace.lanes.process_codes()
    rows = trace.rows(Role.HOST_OP, Role.LAUNCH)
    start = int(columns.start_ns[row])
    inside = (columns.start_ns[rows] >= start) & (process[columns.lane[rows]] == process[columns.lane[row]])
    if following is not None:
        inside &= columns.start_ns[rows] < following
    ran = rows[inside]
    if not len(ran):
        return start
    return int((columns.start_ns[ran] + np.maximum(columns.duration_ns[ran], 0)).max())


def _device_candidate(trace: Trace, family: str, marks: _Marks) -> Candidate:
    """Labels on the device's tracks: the same one on several streams at once is one step."""
    columns = trace.columns
    merged: list[tuple[int, int, int, StepAnnotation]] = []
    for row, annotation in marks:
        start = int(columns.start_ns[row])
        end = start + max(int(columns.duration_ns[row]), 0)
        if merged and merged[-1][3].text == annotation.text and start < merged[-1][2]:
            before = merged.pop()
            merged.append((before[0], before[1], max(before[2], end), annotation))
        else:
            merged.append((row, start, end, annotation))
    return _tiled(f"device_annotation:{family}", merged, on_device=True)


def _tiled(detector: str, spans: list[tuple[int, int, int, StepAnnotation]], *, on_device: bool) -> Candidate:
    """Gap-free tiles: each reaches to the next start, the last one as far as a typical one would."""
    starts = [start for _, start, _, _ in spans]
    typical = int(median_of(np.diff(starts))) if len(starts) > 1 else 0
    tile_ends = [*starts[1:], max(spans[-1][2], starts[-1] + typical)]
    overlapping = sum(end > following for (_, _, end, _), following in zip(spans, starts[1:], strict=False))
    boundaries = tuple(
        StepBoundary(row, start, end, max(tile_end, start), annotation)
        for (row, start, end, annotation), tile_end in zip(spans, tile_ends, strict=True)
    )
    return Candidate(detector, boundaries, on_device=on_device, overlapping=overlapping)
