"""Which traces does a split write? From what was asked for to ranges of steps and file names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracelens_infer.errors import NothingFoundError, UsageError
from tracelens_infer.steps.steady_window import SteadyState
from tracelens_infer.steps.step import Step, StepKind
from tracelens_infer.steps.workload import Workload
from tracelens_infer.trace.source import DEFAULT_MAX_BYTES

__all__ = ["Output", "SplitOptions", "parse_range", "plan_outputs"]

# The folder names are those that users of other splitters know.
_PHASE_FOLDERS = {
    StepKind.PREFILL_DECODE: "prefilldecodemix",
    StepKind.PREFILL_ONLY: "prefilldecodemix",
    StepKind.DECODE_ONLY: "decode_only",
    StepKind.RECOMPUTE: "decode_only",
}
_OTHER_FOLDER = "other"
_RANGE = re.compile(r"(\d{0,9}):(\d{0,9})|(\d{1,9})|all")
_DIGITS = 4  # so that files sort in order of time


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """What is wanted of a split?

    Attributes:
        workload: CONC, OSL and R of the benchmark, which guide the choice of the steady state.
        num_steps: steps a steady-state window should hold; 32 by default.
        trace_starts_at: step of the run with which a delayed capture begins.
        steady_state: write the steady-state windows; also done where nothing else is asked for.
        iterations: ``A:B`` (half-open), ``N`` or ``all``: the steps to write as one trace, or to take single ones from.
        single_iterations: write each step as a trace of its own.
        divide_phases: write each step into the folder of its phase.
        gap_fill: a step owns everything up to the next one's start, not only its labelled span.
        allow_degraded: accept steps that explain 75 to 95 % of the device's time.
        llm_inference: treat an unlabelled trace as one of LLM inference, whether an engine is seen in it or not.
        max_num_seq: most requests that the engine runs at once; tells prefills of an unlabelled trace.
        max_bytes: largest uncompressed input.
    """

    workload: Workload | None = None
    num_steps: int | None = None
    trace_starts_at: int | None = None
    steady_state: bool = False
    iterations: str | None = None
    single_iterations: bool = False
    divide_phases: bool = False
    gap_fill: bool = True
    allow_degraded: bool = False
    llm_inference: bool = False
    max_num_seq: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        """Refuse a range that is none before anything is read."""
        if self.iterations is None:
            return
        found = _RANGE.fullmatch(self.iterations.strip())
        backwards = found is not None and found[1] and found[2] and int(found[1]) >= int(found[2])
        if found is None or backwards:
            raise UsageError(
                f"--iterations {self.iterations}",
                "It holds no step: B is not included." if backwards else "This is no range of steps.",
                "Write A:B (steps A to B-1), N or all.",
            )

    @property
    def wants_steady_state(self) -> bool:
        """Is the steady state asked for, or nothing else?"""
        return self.steady_state or not (self.iterations or self.single_iterations or self.divide_phases)


@dataclass(frozen=True, slots=True)
class Output:
    """One trace that a split writes: steps [first, last) into ``file``, a path below the output folder.

    ``enclosing`` adds the frames around the range; ``events`` is how many events were written, without metadata.
    """

    file: str
    role: str
    first: int
    last: int
    composition: Mapping[StepKind, int]
    enclosing: bool = False
    events: int = 0


def plan_outputs(steps: Sequence[Step], steady_state: SteadyState | None, options: SplitOptions) -> Iterator[Output]:
    """Every trace to write, the steady state first. Raises NothingFoundError for steps that are not there."""

    def output(file: str, role: str, first: int, last: int, *, enclosing: bool = False) -> Output:
        composition = dict(Counter(step.kind for step in steps[first:last]))
        return Output(file, role, first, last, composition, enclosing)

    for window in steady_state.windows if steady_state is not None else ():
        yield output(f"steady_{window.kind}.json.gz", f"steady_{window.kind}", window.first, window.last)
    first, last = parse_range(options.iterations or "all", len(steps))
    if options.iterations and not options.single_iterations:
        yield output(f"iterations_{first}-{last}.json.gz", "iterations", first, last, enclosing=True)
    for number in range(first, last):
        name = f"{number:0{_DIGITS}}.json.gz"
        if options.single_iterations:
            yield output(f"iterations/{name}", "iteration", number, number + 1)
        if options.divide_phases:
            phase = _PHASE_FOLDERS.get(steps[number].kind, _OTHER_FOLDER)
            yield output(f"{phase}/{name}", phase, number, number + 1)


def parse_range(text: str, count: int) -> tuple[int, int]:
    """Which of ``count`` steps does ``A:B`` (half-open), ``N`` or ``all`` name? Raises NothingFoundError for none."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    if found[3]:
        first, last = int(found[3]), int(found[3]) + 1
    else:
        first = int(found[1]) if found[1] else 0
        last = int(found[2]) if found[2] else count
    if not 0 <= first < last <= count:
        raise NothingFoundError(
            f"--iterations {text}", f"The trace has steps 0 to {count - 1:,}.", "Choose a range within them."
        )
    return first, last
