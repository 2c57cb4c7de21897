"""analyze_steps(): a trace file -> its steps, the stages of trace/ and steps/ in a row."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

from tracelens_infer.notes import Note
from tracelens_infer.steps.build import StepWork, build_steps
from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.iterations import Iterations, find_iterations
from tracelens_infer.steps.step import Steps
from tracelens_infer.steps.whole_numbers import check_count
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.launches import DeviceWork, link_device_work
from tracelens_infer.trace.reader import Progress, read_trace
from tracelens_infer.trace.source import DEFAULT_MAX_BYTES

if TYPE_CHECKING:
    from tracelens_infer.steps.phases import PhaseGuess

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
    path: str | PathLike[str],
    *,
    name: str | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Progress | None = None,
    llm_inference: bool = False,
    max_num_seq: int | None = None,
) -> StepAnalysis:
    """What are the steps of this trace?

    ``name``, ``max_bytes`` and ``progress`` are those of :func:`tracelens_infer.trace.reader.read_trace`,
    ``llm_inference`` and ``max_num_seq`` those of :func:`steps_of`.
    Raises InputError where it cannot be read and NothingFoundError where it holds no steps.
    """
    trace = read_trace(path, name=name, max_bytes=max_bytes, progress=progress)
    return steps_of(trace, llm_inference=llm_inference, max_num_seq=max_num_seq)


def steps_of(trace: Trace, *, llm_inference: bool = False, max_num_seq: int | None = None) -> StepAnalysis:
    """What are the steps of a trace that is in memory?

    Where no label tells what a step does and the trace is one of LLM inference (``llm_inference`` says that it is,
    whether an engine is seen or not), phases come from op shapes and kernels; ``max_num_seq`` is the most requests that
    the engine runs at once. Raises NothingFoundError and MergedTraceError, and UsageError where ``max_num_seq`` is no
    whole number of 1 or more.
    """
    if max_num_seq is not None:
        check_count("max_num_seq", max_num_seq, 1)
    work = link_device_work(trace)
    iterations = find_iterations(trace, work)
    guesses = _guesses(trace, work, iterations.chosen, llm_inference=llm_inference, max_num_seq=max_num_seq)
    steps, step_work = build_steps(iterations.chosen, work, guesses)
    return StepAnalysis(trace, work, iterations, steps, step_work)


def _guesses(
    trace: Trace, work: DeviceWork, candidate: Candidate, *, llm_inference: bool, max_num_seq: int | None
) -> list[PhaseGuess] | None:
    """What the steps do, where their labels do not tell; None where they do, or where it is no LLM that runs."""
    labels = [boundary.annotation for boundary in candidate.boundaries]
    if any(label is not None and label.has_context is not None for label in labels):
        return None
    from tracelens_infer.steps.llm_inference import infer_llm  # these two are not needed for most traces
    from tracelens_infer.steps.phases import phases_of

    if not llm_inference and not infer_llm(trace):
        return None
    return phases_of(trace, work, candidate, max_num_seq=max_num_seq)
