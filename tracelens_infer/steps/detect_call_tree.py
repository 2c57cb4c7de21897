"""Which call repeats on the thread that drives the steps? For traces with stacks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracelens_infer.steps.call_tree import CallTree
from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.folding import folded
from tracelens_infer.steps.landmarks import AGREEMENT, Landmarks
from tracelens_infer.steps.periodicity import LEAST_REPEATS, Period, find_period, symbol_codes
from tracelens_infer.steps.tiles import tiled
from tracelens_infer.trace.columns import Int64Array, Role, Trace
from tracelens_infer.trace.reader import event_names

__all__ = ["HIGH_SHARE", "LEAST_WORK", "call_tree_candidates"]

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


_OPEN_NS = 10_000  # between one open call's beginning and the next one's; four microseconds at most were seen
_PROFILER = "torch/profiler/profiler.py"  # the innermost of them: the call that started the recording

_MORE_SHARE = 0.01  # of the work: an optimizer takes that, and the hand-over from one batch to the next does not
_SEVERAL = 2  # iterations in a call: it generates a text, or is a cycle
_IDLE_FACTOR = 2.0
"""The wait before a repeat's true beginning is longer than those inside of it; twice, before it overrules the order."""


@dataclass(frozen=True, slots=True)
class _Level:
    """The calls directly below one call, and what each of them wraps."""

    parent: int
    calls: Int64Array
    chains: list[Int64Array]


def call_tree_candidates(trace: Trace, tree: CallTree, landmarks: Landmarks | None = None) -> list[Candidate]:
    """Which calls repeat below which one, from the top? Stops at one whose repeats explain their caller.

    ``landmarks``, where there are any, decide which of several readings of one level is the right one (is a call an
    iteration, or are several calls one?), and refuse a level none of whose readings fits.
    """
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
        candidate = _best_reading(tree, level, _readings(tree, level, names), landmarks)
        if candidate is None:
            continue
        found.append(candidate)
        if not candidate.rejected and candidate.span_share >= HIGH_SHARE:
            break
    return found


def _best_reading(
    tree: CallTree, level: _Level, readings: list[Candidate], landmarks: Landmarks | None
) -> Candidate | None:
    """The reading that the landmarks fit best; without landmarks the first one, of the fewest iterations."""
    if landmarks is None or not readings:
        return readings[0] if readings else None
    fits = [landmarks.agreement(reading) for reading in readings]
    at = max(range(len(fits)), key=lambda number: (not readings[number].rejected, fits[number].share))
    chosen, fit = readings[at], fits[at]
    if chosen.rejected or fit.share >= AGREEMENT:
        return chosen
    count, disputed = len(chosen.boundaries), ""
    if fit.held >= _SEVERAL:
        reason = f"each holds {fit.held:.0f} iterations, by the ops that recur once in each"
        if _does_more(tree, level, landmarks, count):
            disputed = f"{count} longer iterations may hold {fit.held:.0f} of them each, and work between them"
    else:
        reason = f"{count} calls, where the ops show {fit.iterations} iterations"
        if chosen.span_share >= HIGH_SHARE:  # both explain all of the work
            disputed = f"the ops show {fit.iterations} iterations, and the calls {count}"
    return replace(chosen, rejected=reason, disputed="" if landmarks.proven else disputed)


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


def _does_more(tree: CallTree, level: _Level, landmarks: Landmarks, repeats: int) -> bool:
    """Does a repeat hold calls of one iteration each, and one of something else, as micro-batches and an optimizer?"""
    held = np.histogram(landmarks.times_ns, np.append(tree.start_ns[level.calls], tree.end_ns[level.calls[-1]]))[0]
    weight = tree.weight_ns[level.calls]
    more = held == 0
    share = float(weight[more].sum() / max(int(weight.sum()), 1))
    one_each = int((held == 1).sum()) >= AGREEMENT * len(landmarks.times_ns)
    return one_each and int(more.sum()) >= repeats - 1 and share >= _MORE_SHARE


def _readings(tree: CallTree, level: _Level, names: dict[int, str]) -> list[Candidate]:
    """The ways in which one level's calls repeat, by what they wrap, those of the fewest iterations first."""
    codes = np.zeros(len(level.calls), dtype=np.int64)
    periods: list[tuple[Period, Int64Array]] = []
    for chain in level.chains:
        texts = [names[row] for row in tree.row[chain].tolist()]
        codes = symbol_codes([f"{code}/{text}" for code, text in zip(codes.tolist(), texts, strict=True)])
        period = find_period(codes)
        if period is not None and not any(np.array_equal(period.starts, known.starts) for known, _ in periods):
            periods.append((period, codes))
    periods.sort(key=lambda one: len(one[0].starts))
    found = []
    for period, told in periods:
        starts = _rotated(tree, level.calls, period)
        label = names[int(tree.row[level.calls[starts[0]]])]
        reading = _bounded(tree, level, label, starts, period, names)
        if reading is not None:
            found.append(replace(reading, rejected=reading.rejected or _ambiguity(period, told)))
    return found


def _ambiguity(period: Period, codes: Int64Array) -> str:
    """Why may the repeats be something else than iterations, as far as the calls tell? Empty: they may not."""
    if period.length == 1 and len(period.starts) < _FEW_CALLS and len(np.unique(codes[period.starts])) > 1:
        return "a few calls of one dispatcher that calls several kinds of things"
    return ""


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
