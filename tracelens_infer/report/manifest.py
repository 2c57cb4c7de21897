"""split.json: what a split found, how sure it is, what it wrote, and every note."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from tracelens_infer import __version__
from tracelens_infer.notes import Note
from tracelens_infer.report.split_plan import Output, SplitOptions
from tracelens_infer.report.step_times import durations_us, median_us
from tracelens_infer.steps.analyze import StepAnalysis
from tracelens_infer.steps.candidates import Candidate, Grade
from tracelens_infer.steps.members import Retention
from tracelens_infer.steps.steady_window import SteadyState, SteadyWindow
from tracelens_infer.steps.step import Step, StepKind
from tracelens_infer.steps.workload import Workload
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.writer import WrittenTraces

__all__ = ["MANIFEST", "SCHEMA_VERSION", "analysis_dict", "manifest_of", "note_dict", "steady_notes", "trace_dict"]

MANIFEST = "split.json"
SCHEMA_VERSION = 1
_LISTED_REPAIRS = 20


def manifest_of(
    analysis: StepAnalysis,
    steady_state: SteadyState | None,
    outputs: Sequence[Output],
    options: SplitOptions,
    written: WrittenTraces,
    kept: Retention,
) -> dict[str, Any]:
    """The content of split.json. Times are microseconds since the trace's first event, which ``time_base`` places."""
    degraded = analysis.iterations.chosen.grade is Grade.DEGRADED
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "status": "degraded" if degraded else "ok",
        **analysis_dict(analysis),
        "options": _options(options),
        "retention": {**asdict(kept), "share": kept.share},
        "steady_state": None if steady_state is None else _steady_state(steady_state),
        "outputs": [_output(output, analysis.steps.steps) for output in outputs],
        "tables": ["steps.csv", "steps.parquet"],
        "repaired_events": {"count": written.repaired, "first_originals": list(written.originals)},
    }
    manifest["notes"] = [note_dict(note) for note in (*analysis.notes, *steady_notes(steady_state))]
    return manifest


def analysis_dict(analysis: StepAnalysis) -> dict[str, Any]:
    """What was found in a trace, as plain values: the part that ``info`` shows, too."""
    chosen, steps = analysis.iterations.chosen, analysis.steps
    return {
        **trace_dict(analysis.trace),
        "detector": chosen.detector,
        "grade": chosen.grade,
        "explained_share": chosen.explained_share,
        "span_share": chosen.span_share,
        "steps": len(steps.steps),
        "steps_by_kind": dict(Counter(step.kind.value for step in steps.steps)),
        "steps_by_graph": dict(Counter(step.graph.value for step in steps.steps)),
        "durations_us": durations_us(steps.steps),
        "engine_mode": steps.engine_mode,
        "step_times": "device" if steps.has_device_work else "host",
        "device_events": {
            "count": len(analysis.work.row),
            "linked": int(analysis.work.linked.sum()),
            "in_steps": int((analysis.step_work.step >= 0).sum()),
        },
        "rejected_candidates": [_candidate(other) for other in analysis.iterations.rejected],
    }


def trace_dict(trace: Trace) -> dict[str, Any]:
    """A trace's origin and what its profiler recorded, as plain values."""
    first_ns, last_ns = trace.extent_ns
    metadata = asdict(trace.metadata)
    base_time_ns = metadata.pop("base_time_ns")
    return {
        "source": {
            "name": _encodable(trace.name),
            "uncompressed_bytes": trace.size_bytes,
            "events": trace.event_count,
            **metadata,
        },
        "has_device_events": trace.has_device_events,
        "time_base": {
            "first_event_us": first_ns / 1000,
            "first_event_unix_ns": base_time_ns + first_ns,
            "base_time_ns": base_time_ns,
            "extent_us": (last_ns - first_ns) / 1000,
        },
        "clipped_durations": [
            {"row": row, "recorded_us": clipped.recorded_ns / 1000, "clipped_us": clipped.clipped_ns / 1000}
            for row, clipped in islice(trace.clipped.items(), _LISTED_REPAIRS)
        ],
    }


def _encodable(name: str) -> str:
    """A file's name as JSON can hold it: bytes that are no UTF-8 are replaced."""
    return name.encode("utf-8", "replace").decode()


def note_dict(note: Note) -> dict[str, Any]:
    """A note without the fields it leaves open."""
    return {key: value for key, value in asdict(note).items() if value is not None}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "detector": candidate.detector,
        "steps": len(candidate.boundaries),
        "explained_share": candidate.explained_share,
        "span_share": candidate.span_share,
        "grade": candidate.grade,
        "rejected": candidate.rejected,
    }


def _options(options: SplitOptions) -> dict[str, Any]:
    return {
        "workload": None if options.workload is None else _workload(options.workload),
        "num_steps": options.num_steps,
        "trace_starts_at": options.trace_starts_at,
        "iterations": options.iterations,
        "single_iterations": options.single_iterations,
        "divide_phases": options.divide_phases,
        "gap_fill": options.gap_fill,
        "allow_degraded": options.allow_degraded,
        "llm_inference": options.llm_inference,
        "max_num_seq": options.max_num_seq,
    }


def _workload(workload: Workload) -> dict[str, Any]:
    return asdict(workload)


def _steady_state(state: SteadyState) -> dict[str, Any]:
    return {
        "peak_requests": state.peak_requests,
        "plateau": state.plateau,
        "limit": state.limit,
        "regions": state.regions,
        "region": state.region,
        "region_from": state.region_from,
        "ramp_up": state.ramp_up,
        "ramp_down": state.ramp_down,
        "windows": [_window(window) for window in state.windows],
    }


def _window(window: SteadyWindow) -> dict[str, Any]:
    values = asdict(window)
    values["composition"] = _counts(window.composition)
    values["notes"] = [note_dict(note) for note in window.notes]
    return values


def _output(output: Output, steps: Sequence[Step]) -> dict[str, Any]:
    return {
        "file": output.file,
        "role": output.role,
        "first": output.first,
        "last": output.last,
        "events": output.events,
        "composition": _counts(output.composition),
        "median_duration_us": median_us(steps[output.first : output.last]),
    }


def _counts(composition: Mapping[StepKind, int]) -> dict[str, int]:
    return {kind.value: count for kind, count in composition.items()}


def steady_notes(state: SteadyState | None) -> Iterable[Note]:
    """Every note of the choice of windows."""
    if state is None:
        return ()
    return (*state.notes, *(note for window in state.windows for note in window.notes))
