"""Regions: which stretches of a trace run near its peak number of requests, and what is ramp-up and ramp-down?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from tracelens_infer.steps.annotation import AttentionLoad
from tracelens_infer.steps.step import Step, StepKind
from tracelens_infer.trace.columns import BoolArray, Int64Array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray: TypeAlias = NDArray[np.float64]
else:  # as in trace.columns: numpy.typing takes 15 ms to import
    FloatArray = np.ndarray

__all__ = [
    "KINDS",
    "FloatArray",
    "Limit",
    "LoadColumns",
    "Plateau",
    "Range",
    "find_limit",
    "find_plateau",
    "longest",
    "near_peak_margin",
    "runs_of",
]

Range = tuple[int, int]
Limit = Literal["arrival rate", "KV space", "prefill", "too few steps", "unknown"]

KINDS = tuple(StepKind)
UNTOLD = -1  # stands for None in integer columns: the annotation does not tell

OPEN_AFTER_STEPS = 5  # a region opens after more near-peak steps than this: fewer may be a coincidence of arrivals
DIP_STEPS = 5  # a region survives this many steps below: a finished request's place is refilled within a few steps
NEAR_PEAK_SHARES = (0.1, 0.2)  # how far below the peak is near; the second where the first opens no region
NEAR_PEAK_REQUESTS = 1  # at small batches one request is more than either share, and a finishing one is no dip
PASSING_SHARE = 0.05  # of the busy steps: what fewer reach passes, such as one more request injected for its chunks
BUSY_SHARE = 0.5  # of the peak: below it a trace is ramping, idle or warming up
# A climb and fall at constant rate, the shape without a plateau, spends 20-40 % of its busy steps near its peak.
PLATEAU_SHARE = 0.5
PREFILL_BOUND_SHARE = 0.9  # of the busy steps: prefills that nearly every step carries leave no room to admit more
KV_LEVEL_SHARE = 0.95  # of the most KV tokens seen: a cache counts as full from here, for pages are filled partly

_NEUTRAL = (StepKind.EMPTY, StepKind.DUMMY, StepKind.UNKNOWN)
_PREFILL = (StepKind.PREFILL_DECODE, StepKind.PREFILL_ONLY)
_DECODE = (StepKind.DECODE_ONLY, StepKind.PREFILL_DECODE, StepKind.RECOMPUTE)
_NO_LOAD = AttentionLoad()


@dataclass(frozen=True, slots=True, eq=False)
class LoadColumns:
    """What do the steps carry, as one array a question, so that no rule below walks over the steps?

    All have one entry a step. ``requests`` counts those present: running in the step, or standing still in it
    because an exclusive engine prefills. Token columns hold -1 where the annotation does not tell.
    """

    kinds: Int64Array  # position in KINDS
    ran: BoolArray  # ran requests
    sized: BoolArray  # ran requests, and says how many
    prefill: BoolArray
    cache_hit: BoolArray  # a prefill of one new token a request: the prefix cache held the rest
    decode: BoolArray
    decode_only: BoolArray
    requests: Int64Array
    context_requests: Int64Array
    generation_requests: Int64Array
    context_tokens: Int64Array
    generation_kv: Int64Array
    all_kv: Int64Array

    @classmethod
    def of(cls, steps: Sequence[Step]) -> LoadColumns:
        """Which columns do these steps make?"""
        position = {kind: i for i, kind in enumerate(KINDS)}
        kinds = _ints((position[kind] for kind in map(attrgetter("kind"), steps)), len(steps))
        loads = [load or _NO_LOAD for load in map(attrgetter("load"), steps)]
        told = np.fromiter((load is not _NO_LOAD for load in loads), np.bool_, len(steps))
        context = _column(loads, "context.requests")
        generation = _column(loads, "generation.requests")
        tokens = _column(loads, "context.query_tokens")
        context_kv, generation_kv = _column(loads, "context.kv_tokens"), _column(loads, "generation.kv_tokens")
        ran, prefill = ~_is(kinds, _NEUTRAL), _is(kinds, _PREFILL)
        untold_kv = ((context > 0) & (context_kv == UNTOLD)) | ((generation > 0) & (generation_kv == UNTOLD))
        return cls(
            kinds=kinds,
            ran=ran,
            sized=ran & told,
            prefill=prefill,
            cache_hit=prefill & told & (tokens != UNTOLD) & (tokens <= context),
            decode=_is(kinds, _DECODE),
            decode_only=_is(kinds, (StepKind.DECODE_ONLY,)),
            requests=context + generation + _column(steps, "stalled_decodes"),
            context_requests=context,
            generation_requests=generation,
            context_tokens=tokens,
            generation_kv=generation_kv,
            all_kv=np.where(untold_kv, UNTOLD, np.maximum(context_kv, 0) + np.maximum(generation_kv, 0)),
        )


@dataclass(frozen=True, slots=True)
class Plateau:
    """Where does concurrency stay near its peak?

    Attributes:
        peak: the highest number of requests that lasts, so that no single step makes it.
        regions: half-open ranges of steps near the peak; where none opened, the one from first to last such step.
        opened: whether ``regions`` opened by themselves.
        reached: whether the trace stays near its peak, rather than passing through.
        ramp_up: the steps before the first region, where the trace holds the run's start.
        ramp_down: the steps after the last region, where the trace holds the run's end.
    """

    peak: int
    regions: tuple[Range, ...]
    opened: bool
    reached: bool
    ramp_up: Range | None
    ramp_down: Range | None


def longest(spans: Iterable[Range]) -> Range:
    """Which of the spans holds most steps, the first of several?"""
    return max(spans, key=lambda span: span[1] - span[0])


def runs_of(mask: BoolArray) -> tuple[Int64Array, Int64Array]:
    """Where does each run of true entries start and end (half-open)?"""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return edges[::2], edges[1::2]


def near_peak_margin(peak: float, share: float = NEAR_PEAK_SHARES[0]) -> float:
    """By how many requests may a step be off the peak and still count as near it?"""
    return max(NEAR_PEAK_REQUESTS, share * peak)


def find_plateau(columns: LoadColumns) -> Plateau:
    """Which regions run near the trace's peak, and what leads to and from them? Needs a step with a known load."""
    at = np.flatnonzero(columns.sized)  # regions are sought among these, so that idle steps neither open nor close
    requests = columns.requests[at]
    peak = _lasting_peak(requests)
    for share in NEAR_PEAK_SHARES:
        near = requests >= peak - near_peak_margin(peak, share)
        starts, ends = _near_regions(near)
        if starts.size:
            break
    opened = bool(starts.size)
    if not opened:
        positions = np.flatnonzero(near)
        starts, ends = positions[:1], positions[-1:] + 1
    busy = np.count_nonzero(requests >= BUSY_SHARE * peak)
    reached = opened and bool(np.count_nonzero(near) >= PLATEAU_SHARE * busy)
    regions = [(int(first), int(last) + 1) for first, last in zip(at[starts], at[ends - 1], strict=True)]
    begins, decoding_from = _begins_in_trace(columns, peak)
    if begins and regions[0][0] < decoding_from < regions[0][1]:
        regions[0] = (decoding_from, regions[0][1])  # the prompts of the start, admitted at once, are ramp-up too
    up = (int(at[0]), regions[0][0]) if begins else None
    down = (regions[-1][1], int(at[-1]) + 1) if _ends_in_trace(columns, peak) else None
    return Plateau(peak, tuple(regions), opened, reached, _unless_empty(up), _unless_empty(down))


def find_limit(columns: LoadColumns, plateau: Plateau, prefill_bound: bool = False) -> Limit:
    """What holds concurrency down, as far as the steps tell? ``prefill_bound``: the workload says so already.

    A waiting request with room in the batch and in the KV cache is admitted at the next step. So decode-only steps
    below both the trace's peak and its fullest cache had nobody waiting.
    """
    sized = columns.sized
    if np.count_nonzero(sized) <= OPEN_AFTER_STEPS:
        return "too few steps"
    busy = sized & (columns.requests >= BUSY_SHARE * plateau.peak)
    if prefill_bound or _share(columns.prefill, busy) >= PREFILL_BOUND_SHARE:
        return "prefill"
    if np.any(columns.kinds == KINDS.index(StepKind.RECOMPUTE)):
        return "KV space"  # preempted to make room
    kv_told = not np.any(columns.all_kv[sized] == UNTOLD)
    full = columns.all_kv >= KV_LEVEL_SHARE * max(int(columns.all_kv.max()), 1)
    if kv_told and _share(full, busy) >= PLATEAU_SHARE:
        return "KV space"
    below = sized & (columns.requests < plateau.peak - near_peak_margin(plateau.peak))
    nobody_waits = ~columns.prefill & ~full if kv_told else np.zeros_like(sized)
    if _share(nobody_waits, below) > PLATEAU_SHARE or _idles_between(columns):
        return "arrival rate"
    return "unknown"


def _lasting_peak(requests: Int64Array) -> int:
    """Which number of requests is the highest that lasts: that as many steps reach as open a region, and more?

    More than a small share of the busy steps has to reach it. What is busy is told by the best that consecutive
    steps hold, which no spike can raise.
    """
    together = min(OPEN_AFTER_STEPS + 1, (requests.size + 1) // 2)
    held = int(np.lib.stride_tricks.sliding_window_view(requests, together).min(axis=1).max())
    busy = int(np.count_nonzero(requests >= BUSY_SHARE * held))
    rank = requests.size - max(together, math.ceil(PASSING_SHARE * busy))
    return int(np.partition(requests, rank)[rank])


def _near_regions(near: BoolArray) -> tuple[Int64Array, Int64Array]:
    """Where do regions open, after enough near-peak steps, and close, after a dip that is too long?"""
    starts, ends = runs_of(near)
    breaks = starts[1:] - ends[:-1] > DIP_STEPS
    block = np.concatenate(([0], np.cumsum(breaks)))[: starts.size]
    block_ends = ends[np.append(np.flatnonzero(breaks), starts.size - 1)] if starts.size else ends
    opens = ends - starts > OPEN_AFTER_STEPS
    blocks, first = np.unique(block[opens], return_index=True)
    return starts[opens][first], block_ends[blocks]


def _begins_in_trace(columns: LoadColumns, peak: int) -> tuple[bool, int]:
    """Does the trace hold the run's start, and at which step does decoding begin?

    It does where every request of the first decoding step was prefilled in the trace (in a trace that begins in the
    middle they come from nowhere), or where few decode then, as on a decode instance that is filling up.
    """
    decoding = np.flatnonzero(columns.sized & columns.decode)
    if not decoding.size:
        return False, 0
    first = int(decoding[0])
    prefilled = int(columns.context_requests[:first].sum())
    begins = columns.generation_requests[first] <= prefilled or columns.requests[first] <= BUSY_SHARE * peak
    return bool(begins), first


def _ends_in_trace(columns: LoadColumns, peak: int) -> bool:
    """Does the trace hold the run's end: do few requests run in the last step that decodes?"""
    decoding = np.flatnonzero(columns.sized & columns.decode)
    return bool(decoding.size) and bool(columns.requests[decoding[-1]] <= BUSY_SHARE * peak)


def _idles_between(columns: LoadColumns) -> bool:
    """Did the engine have nothing to run at some point between two steps that ran requests?"""
    at = np.flatnonzero(columns.sized)
    return bool(np.any(columns.kinds[at[0] : at[-1]] == KINDS.index(StepKind.EMPTY)))


def _share(mask: BoolArray, among: BoolArray) -> float:
    return int(np.count_nonzero(mask & among)) / max(int(np.count_nonzero(among)), 1)


def _unless_empty(span: Range | None) -> Range | None:
    return span if span and span[0] < span[1] else None


def _is(kinds: Int64Array, wanted: tuple[StepKind, ...]) -> BoolArray:
    table = np.array([kind in wanted for kind in KINDS])
    return np.asarray(table[kinds], dtype=np.bool_)


def _ints(values: Iterable[int], count: int) -> Int64Array:
    return np.fromiter(values, np.int64, count)


def _column(rows: Sequence[object], name: str) -> Int64Array:
    return _ints((UNTOLD if value is None else value for value in map(attrgetter(name), rows)), len(rows))
