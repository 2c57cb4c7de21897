"""analyze_steps(): a trace file -> its steps, the stages of trace/ and steps/ in a row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracelens_infer.notes import Note
from tracelens_infer.steps.build import StepWork, build_steps
from tracelens_infer.steps.iterations import Iterations, find_iterations
from tracelens_infer.steps.step import Steps
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.launches import DeviceWork, link_device_work
from tracelens_infer.trace.reader import Progress, read_trace
from tracelens_infer.trace.source import DEFAULT_MAX_BYTES

__all__ = ["StepAnalysis", "analyze_steps", "steps_of"]


@dataclass(frozen=True, slots=True)
class StepAnalysis:
    """A trace, its device work, and its steps."""

    trace: Trace
    work: DeviceWork
    iterations: Iterations
    steps: Steps
    step_work: StepWork

    @property
    def notes(self) -> tuple[Note, ...]:
        """Every note of these stages, in order."""
        return (*self.trace.notes, *self.work.notes, *self.iterations.notes, *self.steps.notes)


def analyze_steps(
    path: Path, *, name: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None
) -> StepAnalysis:
    """What are the steps of this trace?

    ``name``, ``max_bytes`` and ``progress`` are those of :func:`tracelens_infer.trace.reader.read_trace`.
    Raises InputError where it cannot be read and NothingFoundError where it holds no steps.
    """
    return steps_of(read_trace(path, name=name, max_bytes=max_bytes, progress=progress))


def steps_of(trace: Trace) -> StepAnalysis:
    """What are the steps of a trace that is in memory? Raises NothingFoundError and MergedTraceError."""
    work = link_device_work(trace)
    iterations = find_iterations(trace, work)
    steps, step_work = build_steps(iterations.chosen, work)
    return StepAnalysis(trace, work, iterations, steps, step_work)
