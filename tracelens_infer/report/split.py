"""split_trace(): a trace -> its steady state, phases and steps as small traces and tables, with one manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import orjson

from tracelens_infer.errors import LowCoverageError, UsageError
from tracelens_infer.notes import Note
from tracelens_infer.report.manifest import MANIFEST, manifest_of, steady_notes
from tracelens_infer.report.output_folder import output_folder
from tracelens_infer.report.split_plan import Output, SplitOptions, plan_outputs
from tracelens_infer.report.tables import write_csv, write_parquet
from tracelens_infer.report.wording import detector_text
from tracelens_infer.steps.analyze import StepAnalysis, analyze_steps
from tracelens_infer.steps.candidates import Grade
from tracelens_infer.steps.coverage import LEAST_INSIDE_SPANS
from tracelens_infer.steps.members import members_of, retention
from tracelens_infer.steps.steady_window import SteadyState, find_steady_state
from tracelens_infer.steps.table import steps_table
from tracelens_infer.steps.workload import Workload
from tracelens_infer.trace.reader import Progress
from tracelens_infer.trace.writer import TraceOutput, write_traces

__all__ = ["SplitResult", "split_trace"]


@dataclass(frozen=True, slots=True)
class SplitResult:
    """What was split, into what; ``manifest`` is the content of split.json."""

    folder: Path
    analysis: StepAnalysis
    steady_state: SteadyState | None
    outputs: tuple[Output, ...]
    manifest: dict[str, Any]
    workload: Workload | None = None

    @property
    def notes(self) -> tuple[Note, ...]:
        """Every note, from reading to the choice of windows."""
        return (*self.analysis.notes, *steady_notes(self.steady_state))


def split_trace(
    path: str | PathLike[str],
    folder: str | PathLike[str],
    options: SplitOptions | None = None,
    *,
    name: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> SplitResult:
    """Find the steps of ``path`` and write what ``options`` ask for into ``folder``, whole or not at all.

    Raises InputError, NothingFoundError (LowCoverageError for steps that explain too little), UsageError and
    OutputExistsError.
    """
    folder = Path(folder)
    options = options or SplitOptions()
    if Path(path).resolve().is_relative_to(folder.resolve()):
        raise UsageError(str(folder), "The trace itself lies in the output folder.", "Name another folder with -o.")
    with output_folder(folder, force=force, marker=MANIFEST) as partial:
        analysis = analyze_steps(
            path,
            name=name,
            max_bytes=options.max_bytes,
            progress=progress,
            llm_inference=options.llm_inference,
            max_num_seq=options.max_num_seq,
        )
        _refuse_low_coverage(analysis, allow_degraded=options.allow_degraded)
        steady_state = _steady_state(analysis, options)
        outputs = tuple(plan_outputs(analysis.steps.steps, steady_state, options))
        outputs, manifest = _write(partial, analysis, steady_state, outputs, options)
    return SplitResult(folder, analysis, steady_state, outputs, manifest, options.workload)


def _steady_state(analysis: StepAnalysis, options: SplitOptions) -> SteadyState | None:
    if not options.wants_steady_state:
        return None
    return find_steady_state(
        analysis.steps, options.workload, num_steps=options.num_steps, trace_starts_at=options.trace_starts_at
    )


def _refuse_low_coverage(analysis: StepAnalysis, *, allow_degraded: bool) -> None:
    chosen = analysis.iterations.chosen
    if chosen.grade is Grade.SPLITTABLE or (chosen.grade is Grade.DEGRADED and allow_degraded):
        return
    what = "device" if analysis.steps.has_device_work else "host op"
    share = (
        f"The steps found ({detector_text(chosen.detector)}) explain only {chosen.explained_share:.1%} of the"
        f" {what} time between the first and the last."
    )
    if chosen.inside_spans < LEAST_INSIDE_SPANS:
        share = (
            f"Only {chosen.inside_spans:.1%} of the {what} work is asked for within the"
            f" {detector_text(chosen.detector)}: they seem to mark something else."
        )
    degraded = chosen.grade is Grade.DEGRADED
    action = "Accept them with --allow-degraded." if degraded else "See what is there with: tracelens info"
    raise LowCoverageError(analysis.trace.name, share, action)


def _write(
    folder: Path,
    analysis: StepAnalysis,
    steady_state: SteadyState | None,
    outputs: Sequence[Output],
    options: SplitOptions,
) -> tuple[tuple[Output, ...], dict[str, Any]]:
    trace = analysis.trace
    members = members_of(trace, analysis.work, analysis.step_work, gap_fill=options.gap_fill)
    for parent in {(folder / output.file).parent for output in outputs}:
        parent.mkdir(exist_ok=True)
    written = write_traces(
        trace,
        [
            TraceOutput(folder / output.file, members.rows_of(output.first, output.last, enclosing=output.enclosing))
            for output in outputs
        ],
    )
    outputs = tuple(replace(output, events=events) for output, events in zip(outputs, written.events, strict=True))
    kept = retention(len(trace.columns), analysis.work, analysis.step_work, members)
    table = steps_table(analysis.steps.steps, trace.extent_ns[0])
    write_csv(table, folder / "steps.csv")
    write_parquet(table, folder / "steps.parquet")
    manifest = manifest_of(analysis, steady_state, outputs, options, written, kept)
    text = orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
    (folder / MANIFEST).write_bytes(text)
    return outputs, orjson.loads(text)  # lists and texts, whatever they were before
