"""Traces without their step markers, the cascade's answer, and how far it lies from the markers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tracelens_infer.errors import NothingFoundError
from tracelens_infer.steps.analyze import steps_of
from tracelens_infer.steps.annotation import parse_annotation
from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.trace.columns import Int64Array, Role, Trace
from tracelens_infer.trace.reader import event_names, read_trace


@dataclass(frozen=True)
class Comparison:
    """What the markers say and what the cascade found. Distances are shares of the marked step's duration."""

    name: str
    detector: str
    marked: int
    zero_token: int
    roots: int
    median: float
    within: float
    against: str
    kinds: float

    @property
    def roots_agree(self) -> bool:
        """Is every step found that runs something, and nothing else?"""
        return self.marked - self.zero_token <= self.roots <= self.marked

    @property
    def boundaries_agree(self) -> bool:
        """Are they where the issue wants them?"""
        return self.median < 0.02 and self.within >= 0.95

    @property
    def kinds_agree(self) -> bool:
        """Does every step, give or take one in a hundred, do what its label said?"""
        return self.kinds >= 0.99

    @property
    def row(self) -> str:
        """The comparison as a row of the table in docs/detection.md."""
        found = "yes" if self.roots_agree and self.boundaries_agree and self.kinds_agree else "NO"
        return (
            f"| {self.name} | `{self.detector}` | {self.marked} ({self.zero_token}) | {self.roots} "
            f"| {self.median:.2%} | {self.within:.1%} | {self.against} | {self.kinds:.1%} | {found} |"
        )


TABLE_HEAD = (
    "| trace | detector | marked (zero-token) | found | median distance | within 5 % | measured against "
    "| kinds equal | reached |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def strip_markers(trace: Trace) -> tuple[Trace, list[int]]:
    """Take the step labels of every known grammar out, on the host and on the device; also return the host's rows."""
    names = dict(trace.labels)
    device_labels = trace.rows(Role.DEVICE_ANNOTATION)
    names.update(event_names(trace, device_labels))
    marks = {row for row, name in names.items() if parse_annotation(name) is not None}
    dropped = np.union1d(trace.dropped, np.array(sorted(marks), dtype=np.intp))
    labels = {row: name for row, name in trace.labels.items() if row not in marks}
    host = sorted(marks & set(trace.labels), key=lambda row: int(trace.columns.start_ns[row]))
    return replace(trace, labels=labels, dropped=dropped), host


def chosen_of(candidates: Sequence[Candidate]) -> Candidate | None:
    """Find the candidate that the cascade prefers, if there is one."""
    return next((candidate for candidate in candidates if not candidate.rejected), None)


def compare(path: Path) -> Comparison:
    """Strip the markers of a trace, run the cascade, and measure."""
    trace = read_trace(path)
    stripped, marks = strip_markers(trace)
    labelled = steps_of(trace).steps.steps
    try:
        analysis = steps_of(stripped)
    except NothingFoundError:
        analysis = None
    marked = trace.columns.start_ns[marks]
    idle = sum(_is_idle(trace.labels[row]) for row in marks)
    step = np.diff(marked)
    step = np.append(step, int(np.median(step)) if len(step) else 1)
    against = "marker"
    if not len(stripped.rows(Role.PYTHON)):
        against = "first op"
        marked, step = _first_ops(stripped, marked, step)
    name = path.name.partition(".")[0]
    if analysis is None:
        return Comparison(name, "none", len(marks), idle, 0, 1.0, 0.0, against, 0.0)
    chosen = analysis.iterations.chosen
    found = np.array([boundary.start_ns for boundary in chosen.boundaries], dtype=np.int64)
    nearest = _nearest(found, marked)
    away = np.abs(found[nearest] - marked) / step
    steps = analysis.steps.steps
    kinds = [steps[at].kind is label.kind for at, label in zip(nearest.tolist(), labelled, strict=False)]
    return Comparison(
        name,
        chosen.detector,
        len(marks),
        idle,
        len(found),
        float(np.median(away)),
        float((away < 0.05).mean()),
        against,
        float(np.mean(kinds)),
    )


def _is_idle(label: str) -> bool:
    annotation = parse_annotation(label)
    load = annotation.load if annotation is not None else None
    return load is not None and not load.context.query_tokens and not load.generation.query_tokens


def _first_ops(trace: Trace, marked: Int64Array, step: Int64Array) -> tuple[Int64Array, Int64Array]:
    # An op's label (Optimizer.zero_grad) is recorded as one of a user is; the step's own are gone.
    ops = np.sort(trace.columns.start_ns[trace.rows(Role.HOST_OP, Role.ANNOTATION)])
    at = np.searchsorted(ops, marked)
    known = at < len(ops)
    return ops[at[known]], step[known]


def _nearest(found: Int64Array, wanted: Int64Array) -> Int64Array:
    after = np.clip(np.searchsorted(found, wanted), 0, len(found) - 1)
    before = np.maximum(after - 1, 0)
    nearest: Int64Array = np.where(np.abs(found[after] - wanted) < np.abs(found[before] - wanted), after, before)
    return nearest


REAL = {
    "vllm_cpu/a_dense_detailed_shapes_stack.pt.trace.json.gz": 107,
    "vllm_cpu/b_dense_native_shapes_stack_pollframes_removed.pt.trace.json.gz": 78,
    "vllm_cpu/c2_dense_detailed_shapes_nostack_steadywindow.pt.trace.json.gz": 200,
    "vllm_cpu/g_dense_detailed_shapes_stack_10steps.pt.trace.json.gz": 10,
    "tracelens/ddp_mi300x_resnet.json.gz": 3,
    "hta/ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": 5,
    "kineto/w0_old.json.gz": 6,
}

SYNTHETIC = {
    "stacks_graphs": "--steps 60 --layers 2 --py 40",
    "stacks_graphs_8_layers": "--steps 60 --layers 8 --py 40",
    "stacks_eager": "--steps 80 --layers 4 --py 40 --no-graph",
    "stacks_chunked": "--steps 80 --layers 4 --py 40 --chunk 256 --isl 1024 --conc 16 --osl 64",
    "stacks_cold": "--steps 100 --layers 4 --py 40 --start cold --conc 16 --osl 64",
    "stacks_drained": "--prompts 24 --layers 4 --py 40 --start cold --conc 8 --osl 32",
    "graphs": "--steps 80 --layers 4 --no-stack",
    "graphs_2_layers": "--steps 80 --layers 2 --no-stack",
    "graphs_1_layer": "--steps 40 --layers 1 --no-stack",
    "eager": "--steps 60 --layers 8 --no-stack --no-graph",
    "eager_chunked": "--steps 120 --layers 2 --no-stack --no-graph --chunk 512 --conc 32",
    "chunked": "--steps 80 --layers 4 --no-stack --chunk 256 --isl 1024 --conc 16 --osl 64",
    "mostly_prefill": "--steps 40 --layers 6 --no-stack --chunk 128 --isl 512 --conc 8 --osl 16",
    "cold": "--steps 100 --layers 4 --no-stack --start cold --conc 16 --osl 64",
    "equal_lengths": "--steps 100 --layers 4 --no-stack --ratio 1.0 --start cold --conc 8 --osl 8 --chunk 1024",
    "drained": "--prompts 24 --layers 4 --no-stack --start cold --conc 8 --osl 32",
}


def synthetic(tools: Path, name: str, folder: Path) -> Path:
    """Write one of the synthetic traces."""
    return make_big_trace(tools, SYNTHETIC[name], folder, name)


def make_big_trace(tools: Path, options: str, folder: Path, name: str = "made") -> Path:
    """Run the generator of large traces."""
    path = folder / f"{name}.json"
    command = [sys.executable, str(tools / "make_big_trace.py"), str(path), *options.split()]
    subprocess.run(command, check=True, capture_output=True)
    return path


def table(traces: Path, folder: Path) -> str:
    """Render the whole comparison as the table of docs/detection.md, failures included."""
    paths = [traces / name for name in REAL]
    paths += [synthetic(traces.parent / "tools", name, folder) for name in SYNTHETIC]
    return "\n".join([TABLE_HEAD, *(compare(path).row for path in paths)])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print(table(Path(sys.argv[1]), Path(made)))
