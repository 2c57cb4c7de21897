"""How well do phases from shapes agree with annotations that were hidden? Cases, comparison and table.

``python -m tests.steps.phase_agreement`` prints the table of docs/detection.md; it needs the large real traces.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.conftest import PROJECT_ROOT
from tracelens_infer.steps.build import build_steps
from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.iterations import find_iterations
from tracelens_infer.steps.phases import PhaseGuess, phases_of
from tracelens_infer.steps.step import Step
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.launches import link_device_work
from tracelens_infer.trace.reader import read_trace

GENERATOR = PROJECT_ROOT.parent / "shared" / "tools" / "make_big_trace.py"
SMALL = "--layers 3 --py 4"  # fewer layers and frames than a model has: the phases do not depend on them

REAL = {
    "a": "vllm_cpu/a_dense_detailed_shapes_stack.pt.trace.json.gz",
    "b": "vllm_cpu/b_dense_native_shapes_stack_pollframes_removed.pt.trace.json.gz",
    "c2": "vllm_cpu/c2_dense_detailed_shapes_nostack_steadywindow.pt.trace.json.gz",
    "g": "vllm_cpu/g_dense_detailed_shapes_stack_10steps.pt.trace.json.gz",
}
SYNTHETIC = {
    "graphs": "--steps 120",
    "graphs, no stacks": "--steps 120 --no-stack",
    "eager": "--steps 120 --no-graph",
    "40 layers": "--steps 60 --layers 40 --osl 200",
    "chunks of 512": "--steps 120 --chunk 512",
    "chunks of 128, eager": "--steps 120 --chunk 128 --no-graph",
    "cold start": "--steps 120 --start cold",
    "cold start, eager": "--steps 120 --start cold --no-graph",
    "cold start, chunks of 256": "--steps 120 --start cold --chunk 256 --conc 16 --isl 512",
    "cold start, chunks of 512, eager": "--steps 120 --start cold --chunk 512 --conc 16 --no-graph",
    "drained": "--conc 16 --isl 256 --osl 48 --prompts 48 --start cold",
    "drained, eager": "--conc 16 --isl 256 --osl 48 --prompts 48 --start cold --no-graph",
    "drained, chunks of 256, eager": "--conc 8 --isl 512 --osl 40 --prompts 24 --chunk 256 --start cold --no-graph",
    "one request at a time, eager": "--steps 120 --conc 1 --isl 600 --osl 30 --no-graph",
    "256 requests": "--steps 120 --conc 256 --isl 300 --osl 400",
    "prompts of 30,000 tokens": "--steps 120 --conc 32 --isl 30000 --chunk 2048 --osl 500",
    "budget of 1.5 batches, eager": "--steps 120 --conc 32 --chunk 48 --isl 40 --osl 60 --no-graph",
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """The annotation's steps beside what was guessed without it."""

    name: str
    steps: tuple[Step, ...]
    guesses: tuple[PhaseGuess, ...]

    @property
    def share(self) -> float:
        """For which share of the steps are the kinds equal?"""
        equal = sum(step.kind is guess.kind for step, guess in zip(self.steps, self.guesses, strict=True))
        return equal / len(self.steps)

    @property
    def differing(self) -> list[str]:
        """Which steps differ?"""
        return [
            f"step {step.index}: {step.kind} guessed as {guess.kind} ({guess.source})"
            for step, guess in zip(self.steps, self.guesses, strict=True)
            if step.kind is not guess.kind
        ]


def agreement(
    path: Path, name: str = "", *, move: Callable[[Trace, Candidate], Candidate] | None = None, **options: int
) -> Agreement:
    """Compare the kinds of a trace's steps. ``move`` shifts the boundaries as a detector might."""
    trace = read_trace(path)
    work = link_device_work(trace)
    steps, step_work = build_steps(find_iterations(trace, work).chosen, work)
    hidden = replace(trace, labels={}, metadata=replace(trace.metadata, engine=None))
    bare = tuple(replace(boundary, row=-1, annotation=None) for boundary in step_work.candidate.boundaries)
    candidate = replace(step_work.candidate, detector="call_tree", boundaries=bare)
    if move is not None:
        candidate = move(trace, candidate)
    return Agreement(name, steps.steps, tuple(phases_of(hidden, work, candidate, **options)))


def generator() -> ModuleType:
    """The tool that writes synthetic traces, freshly loaded so that it may be changed."""
    spec = importlib.util.spec_from_file_location("make_big_trace", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def synthesize(path: Path, options: str, *, exact: bool = False, tool: ModuleType | None = None) -> Path:
    """Write one synthetic trace. ``exact``: attention ops get vectors of the step's requests, not of fixed length."""
    tool = tool or generator()
    if exact:
        _tell_requests(tool)
    parser = argparse.ArgumentParser()
    for flag, default in (("steps", 100), ("conc", 64), ("isl", 1024), ("osl", 1024), ("chunk", 8192), ("layers", 20)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    for flag, default in (("py", 200), ("gz", 0), ("seed", 0)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--ratio", type=float, default=0.8)
    parser.add_argument("--start", default="warm")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--no-stack", action="store_true")
    args = parser.parse_args(f"{SMALL} {options}".split())
    args.mb = None
    tool.__dict__["print"] = lambda *_: None
    tool.generate(str(path), args)
    return path


def _tell_requests(tool: Any) -> None:  # noqa: ANN401 - the tool is untyped
    """The tool's attention ops and output layer have room for 64 requests; a real engine's have the step's own."""
    step, ops_of, requests = tool.Scheduler.step, tool.ops_of, [0]

    def counted(self: Any) -> Any:  # noqa: ANN401
        context, generation = step(self)
        requests[0] = len(context) + len(generation)
        return context, generation

    def sized(layers: int, tokens: int, prefill: bool) -> list[tuple[str, ...]]:
        count = requests[0]
        return [
            (op, dims.replace("[65], [64], [64, 512]", f"[{count + 1}], [{count}], [{count}, 512]"), *rest)
            for op, dims, *rest in ops_of(layers, tokens, prefill)
        ]

    tool.Scheduler.step = counted
    tool.ops_of = sized


def without_shapes(path: Path) -> Path:
    """The same trace as a profiler without record_shapes writes it."""
    bare = path.with_name(f"bare_{path.name}")
    text = path.read_text()
    bare.write_text(re.sub(r'"Concrete Inputs": .*?, "Input Dims": .*?, "Ev Idx"', '"Ev Idx"', text))
    return bare


def agreement_table(found: list[Agreement]) -> str:
    """The comparison as a Markdown table."""
    lines = [
        "| trace | steps | same kind | tokens told | requests told | confidence |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        tokens = sum(guess.tokens is not None for guess in one.guesses)
        requests = sum(guess.requests is not None for guess in one.guesses)
        counted = Counter(str(guess.confidence) for guess in one.guesses)
        confidence = ", ".join(f"{count} {name}" for name, count in counted.most_common())
        lines.append(f"| {one.name} | {len(one.steps)} | {one.share:.1%} | {tokens} | {requests} | {confidence} |")
    return "\n".join(lines)


def every_agreement(shared_traces: Path, folder: Path) -> list[Agreement]:
    """Every case of the table."""
    found = [agreement(shared_traces / file, name) for name, file in REAL.items()]
    for exact in (True, False):
        for number, (name, options) in enumerate(SYNTHETIC.items()):
            path = synthesize(folder / f"{number}_{exact}.json", options, exact=exact)
            found.append(agreement(path, name if exact else f"{name}; vectors of fixed length"))
            if exact:
                found.append(agreement(without_shapes(path), f"{name}; no shapes"))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        table = agreement_table(every_agreement(PROJECT_ROOT.parent / "shared" / "traces", Path(temporary)))
    sys.stdout.write(table + "\n")
