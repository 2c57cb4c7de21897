"""Which call repeats on the thread that drives the steps? For traces with stacks."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tracelens_infer.steps.call_tree import CallTree
from tracelens_infer.steps.candidates import Candidate, StepBoundary
from tracelens_infer.steps.periodicity import LEAST_REPEATS, Period, find_period, symbol_codes
from tracelens_infer.trace.columns import BoolArray, Int64Array, Role, Trace
from tracelens_infer.trace.reader import event_names

__all__ = ["HIGH_SHARE", "LEAST_WORK", "call_tree_candidates", "folded", "tiled"]

LEAST_WORK = 4
"""A step runs more pieces of device work than this (ops, without a device); one kernel over and over is no step."""

HIGH_SHARE = 0.95
"""From here on a repeat explains its caller, and there is no need to look below it."""

_EXAMINED_SHARE = 0.1  # calls with less of the trace's work cannot hold most of the steps
_WRAPPER_SHARE = 0.98  # a call that hands on this much of its work only wraps another
_UNWRAPPED = 0.05  # of the calls may do something of their own (an idle step does)
_WRAPPERS = 8  # decorators and dispatchers between a loop and what differs: five were seen in vLLM
_FEW_CALLS = 6  # fewer calls that wrap different things show no order: two of each kind are the least that does
_REGION_SHARE = 0.5  # less of the work than this in the repeats, and they are a detail

_MODULE = "nn.Module: "
"""torch names the forward of a module like this: what repeats inside of one is its layers."""

_LINE = re.compile(r"\(\d+\): ")  # of the line being executed in one call, of the function in the next
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_DIGITS = re.compile(r"\d+")

_OPEN_NS = 10_000  # between one open call's beginning and the next one's; four microseconds at most were seen
_PROFILER = "torch/profiler/profiler.py"  # the innermost of them: the call that started the recording

_IDLE_FACTOR = 2.0
"""The wait before a repeat's true beginning is longer than those inside of it; twice, before it overrules the order."""


def folded(name: str) -> str:
    """A name without what differs between two calls of the same thing: lines, addresses and numbers."""
    return _DIGITS.sub("#", _ADDRESS.sub("#", _LINE.sub(": ", name)))


@dataclass(frozen=True, slots=True)
class _Level:
    """The calls directly below one call, and what each of them wraps."""

    parent: int
    calls: Int64Array
    chains: list[Int64Array]


def call_tree_candidates(trace: Trace, tree: CallTree) -> list[Candidate]:
    """Which calls repeat below which one, from the top? Stops at one whose repeats explain their caller."""
    if not len(tree) or not tree.total_ns:
        return []
    levels = _levels(trace, tree)
    rows = np.concatenate([tree.row[chain] for level in levels for chain in level.chains] or [tree.row[:0]])
    parents = np.array(
        sorted({p for level in levels for p in _ancestors(tree, level.parent)} | set(_open_calls(tree))), dtype=np.int64
    )
    names = {
        row: folded(name) for row, name in event_names(trace, np.unique(np.append(rows, tree.row[parents]))).items()
    }
    found = []
    for level in levels:
        candidate = _candidate_of(tree, level, names)
        if candidate is None:
            continue
        found.append(candidate)
        if not candidate.rejected and candidate.span_share >= HIGH_SHARE:
            break
    return found


def _levels(trace: Trace, tree: CallTree) -> list[_Level]:
    """The calls to examine, outermost first: each with most of its calls that bring about work."""
    heavy = np.flatnonzero(tree.weight_ns >= _EXAMINED_SHARE * tree.total_ns)
    heavy = heavy[np.argsort(tree.depth[heavy], kind="stable")]
    bearing = np.flatnonzero(tree.weight_ns > 0)
    bearing = bearing[np.argsort(tree.parent[bearing], kind="stable")]
    first = np.searchsorted(tree.parent[bearing], np.append(-1, heavy))
    last = np.searchsorted(tree.parent[bearing], np.append(-1, heavy), side="right")
    favourite = _heaviest_child(tree, bearing)
    is_frame = trace.lanes.roles[trace.columns.lane[tree.row]] == Role.PYTHON
    levels = []
    for parent, begin, end in zip([-1, *heavy.tolist()], first.tolist(), last.tolist(), strict=True):
        calls = bearing[begin:end]
        # Ops and labels among themselves are layers, or a trace without stacks: detect_top_level.py looks at those.
        if is_frame[calls].sum() >= max(LEAST_REPEATS, len(calls) / 2):
            levels.append(_Level(parent, calls, _chains(tree, calls, favourite)))
    return levels


def _heaviest_child(tree: CallTree, bearing: Int64Array) -> Int64Array:
    """Of each call the one it wraps, -1 where it does more than that. ``bearing`` is sorted by parent."""
    inner = bearing[tree.parent[bearing] >= 0]
    favourite = np.full(len(tree), -1)
    wrapped = tree.weight_ns[inner] >= _WRAPPER_SHARE * tree.weight_ns[tree.parent[inner]]
    favourite[tree.parent[inner[wrapped]]] = inner[wrapped]
    return favourite


def _chains(tree: CallTree, calls: Int64Array, favourite: Int64Array) -> list[Int64Array]:
    """The calls; what each wraps; and so on, as long as nearly all of them wrap one."""
    chains = [calls]
    while len(chains) <= _WRAPPERS:
        following = favourite[chains[-1]]
        if (following < 0).mean() > _UNWRAPPED:
            break
        chains.append(np.where(following < 0, chains[-1], following))
    return chains


def _ancestors(tree: CallTree, position: int) -> list[int]:
    found = []
    while position >= 0:
        found.append(position)
        position = int(tree.parent[position])
    return found


def _candidate_of(tree: CallTree, level: _Level, names: dict[int, str]) -> Candidate | None:
    """The repeats among one level's calls: the longest wrapping that tells them apart and still repeats."""
    codes = np.zeros(len(level.calls), dtype=np.int64)
    best: Period | None = None
    for chain in level.chains:
        texts = [names[row] for row in tree.row[chain].tolist()]
        codes = symbol_codes([f"{code}/{text}" for code, text in zip(codes.tolist(), texts, strict=True)])
        period = find_period(codes)
        if period is not None and (best is None or len(period.starts) < len(best.starts)):
            best = period
    if best is None:
        return None
    if best.length == 1 and len(best.starts) < _FEW_CALLS and len(np.unique(codes[best.starts])) > 1:
        return None  # some calls of one dispatcher, of which it calls several kinds in a step
    starts = _rotated(tree, level.calls, best)
    label = names[int(tree.row[level.calls[starts[0]]])]
    return _bounded(tree, level, label, starts, best, names)


def _rotated(tree: CallTree, calls: Int64Array, period: Period) -> Int64Array:
    """The repeats, begun after the longest wait within them instead of wherever the recording began."""
    if period.length == 1:
        return period.starts
    idle = np.append(0, tree.start_ns[calls[1:]] - tree.end_ns[calls[:-1]])
    waits = []
    for shift in range(period.length):
        at = period.starts + shift
        at = at[(at > 0) & (at < period.last)]
        waits.append(float(np.median(idle[at])) if len(at) else 0.0)
    shift = int(np.argmax(waits))
    if not shift or waits[shift] < _IDLE_FACTOR * max(waits[0], 1.0):
        return period.starts
    shifted = period.starts + shift
    shifted = shifted[shifted < period.last]
    before = shifted[0] - period.length
    return np.append(before, shifted) if before >= 0 else shifted


def _bounded(
    tree: CallTree, level: _Level, label: str, starts: Int64Array, period: Period, names: dict[int, str]
) -> Candidate | None:
    """The candidate of these repeats, and what speaks against it."""
    ends = np.append(starts[1:], min(period.last, len(level.calls)))
    weight = np.append(0, np.cumsum(tree.weight_ns[level.calls]))
    kernels = np.append(0, np.cumsum(tree.kernels[level.calls]))
    in_repeats = int(weight[ends[-1]] - weight[starts[0]])
    if in_repeats < _REGION_SHARE * tree.total_ns:
        return None
    spans = np.array([tree.end_ns[level.calls[max(end - 1, start)]] for start, end in zip(starts, ends, strict=True)])
    at = level.calls[starts]
    begins = tree.start_ns[at].copy()
    begins[0] = _once_recording(tree, int(at[0]), names)
    boundaries = tiled(tree.row[at], begins, spans)
    rejected = ""
    if any(names[int(tree.row[one])].startswith(_MODULE) for one in _ancestors(tree, level.parent)):
        rejected = "repeats inside the forward of a module: its layers"
    elif float(np.median(kernels[ends] - kernels[starts])) < LEAST_WORK:
        rejected = f"fewer than {LEAST_WORK} pieces of work in a repeat"
    share = in_repeats / tree.total_ns
    return Candidate(f"call_tree:{label}", boundaries, span_share=share, rejected=rejected)


def _open_calls(tree: CallTree) -> list[int]:
    """Which calls were open when the recording started, outermost first? The writer lists them one after the other."""
    position = 0
    found = [position]
    while position + 1 < len(tree) and tree.parent[position + 1] == position:
        position += 1
        if tree.start_ns[position] - tree.start_ns[position - 1] > _OPEN_NS:
            break
        found.append(position)
    return found


def _once_recording(tree: CallTree, call: int, names: dict[int, str]) -> int:
    """When does a call begin, apart from the profiler's own start? That was seen to take 1.4 ms of a decode step."""
    starter = next((one for one in _open_calls(tree) if _PROFILER in names[int(tree.row[one])]), -1)
    within = call <= starter < tree.past[call]
    return int(tree.end_ns[starter] if within else tree.start_ns[call])


def tiled(
    row: Int64Array, start: Int64Array, end: Int64Array, keep: BoolArray | None = None
) -> tuple[StepBoundary, ...]:
    """Boundaries without gaps: each tile reaches to the next start, the last one as far as a typical one would."""
    if keep is not None:
        row, start, end = row[keep], start[keep], end[keep]
    typical = int(np.median(np.diff(start))) if len(start) > 1 else 0
    tile_end = np.append(start[1:], max(int(end[-1]), int(start[-1]) + typical))
    return tuple(
        StepBoundary(*values, None)
        for values in zip(row.tolist(), start.tolist(), end.tolist(), tile_end.tolist(), strict=True)
    )
