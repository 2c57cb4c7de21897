"""Which steps carry a prefill? Told by tokens against requests, by levels of tokens, or by what the device ran."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from tracelens_infer.steps.batch_sizes import UNTOLD, BatchSizes
from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.trace.columns import BoolArray, Int64Array
from tracelens_infer.trace.launches import DeviceWork, union_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Evidence", "Prefills", "StepSignature", "padded_size", "prefills_of"]

_LARGEST_BATCH = 1024
"""No engine decodes more requests a step by default; a level of tokens above it is one of prefills."""
_LEVEL_GAP = 2.0  # prefills of one chunk at least double the tokens of a step, as a rule by far
_LEVEL_TOKENS = 8  # among a handful of requests one more is a large factor
_CROSSED_SHARE = 0.5  # a long prompt's last chunk may lie low, so that its next one rises over a higher gap twice
_LEAPS_SHARE = 0.1  # of the prefills: requests that finish together halve a batch now and then
_STEADY_CHANGE = 0.1  # decodes of neighbouring steps differ by the requests that finish
_STEADY_SHARE = 0.8
_MODE_SHARE = 0.3  # prompts of several lengths share no size so often
_USUAL_DRAFT = 5  # engines can draft more, but a budget that is a multiple of the requests is likelier then
_IDLE_KERNELS_SHARE = 0.1  # leftovers of sampling, where nothing is forwarded
_IDLE_OPS_SHARE = 0.2
_REPLAY_KERNELS = 4  # as in the graph modes of steps: library calls were seen to own up to three kernels
_KERNEL_COUNT_GAP = 1.05
"""Forwards of one kind differ in a kernel or two of hundreds; prefills have attention kernels of their own."""
_FEWEST_SIMILAR = 0.5  # the level of decodes holds at least half of the steps where only times are left to tell


class Evidence(StrEnum):
    """What told that a step carries a prefill, or none?"""

    NONE = "nothing"
    PHASE_OPS = "an op for prefills or for decodes"
    REQUESTS = "tokens against requests"
    MAX_NUM_SEQ = "tokens against --max-num-seq"
    CONCURRENCY = "tokens against the most requests seen"
    LEVEL = "levels of tokens"
    GRAPH = "graph replay"
    KERNELS = "number of kernels"
    DURATION = "duration"
    IDLE = "nothing ran"


@dataclass(frozen=True, slots=True, eq=False)
class StepSignature:
    """What ran in each step on the device (on a CPU: how many ops), whatever its shapes.

    ``replays``: one launch owns most of the step's kernels.
    """

    kernels: Int64Array
    replays: BoolArray
    busy_ns: Int64Array
    on_device: bool

    @classmethod
    def of(cls, work: DeviceWork, candidate: Candidate, sizes: BatchSizes) -> StepSignature:
        """Which work belongs to each step? By its launch; where only the device has marks, by its start."""
        count = len(candidate.boundaries)
        owner = step_numbers(candidate, work.start_ns if candidate.on_device else work.launch_ns)
        owned = (owner >= 0) & (work.linked | candidate.on_device)
        if not owned.any():
            tiles = [boundary.tile_end_ns - boundary.start_ns for boundary in candidate.boundaries]
            return cls(sizes.ops, np.zeros(count, dtype=np.bool_), np.array(tiles, dtype=np.int64), False)
        step, timed = owner[owned], owned & work.timed
        kernels = np.bincount(step, minlength=count).astype(np.int64)
        busy = union_ns(work.start_ns[timed], work.end_ns[timed], owner[timed], count)
        calls, size = np.unique(np.stack((step, work.launch[owned].astype(np.int64))), axis=1, return_counts=True)
        largest = np.zeros(count, dtype=np.int64)
        np.maximum.at(largest, calls[0], np.where(calls[1] >= 0, size, 0))
        return cls(kernels, (largest >= _REPLAY_KERNELS) & (2 * largest > kernels), busy, True)

    @property
    def idle(self) -> BoolArray:
        """Which steps ran nothing to speak of?"""
        if not len(self.kernels):
            return np.zeros(0, dtype=np.bool_)
        share = _IDLE_KERNELS_SHARE if self.on_device else _IDLE_OPS_SHARE
        return np.asarray(self.kernels <= share * np.median(self.kernels), dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Prefills:
    """One entry a step.

    Attributes:
        carries: 1 where the step carries a prefill, 0 where it only decodes, -1 where it ran nothing or nobody can say.
        evidence: what told.
        requests: how many requests run, where the attention op or the output layer tell and can be believed.
        decode_tokens: query tokens a request brings to a decode: 1, or more where the engine speculates.
        confirmed: the requests vary, or equal the tokens of a step: no length of a buffer would.
    """

    carries: Int64Array
    evidence: tuple[Evidence, ...]
    requests: Int64Array
    decode_tokens: int
    confirmed: bool


def prefills_of(sizes: BatchSizes, signature: StepSignature, max_num_seq: int | None = None) -> Prefills:
    """Which steps carry a prefill? Each step by the strongest evidence that there is for it."""
    requests = _requests(sizes)
    per_decode = _tokens_a_decode(sizes, requests)
    told = sizes.tokens != UNTOLD
    verdict = _Verdict(len(sizes.tokens))
    verdict.settle(Evidence.IDLE, signature.idle & ~told, np.full(len(told), UNTOLD))
    context, generation = sizes.context_tokens != UNTOLD, sizes.generation_tokens != UNTOLD
    verdict.settle(Evidence.PHASE_OPS, context | generation, context)
    if context.any():  # an engine that prefills apart: what attends elsewhere unseen is a replayed decode
        verdict.settle(Evidence.GRAPH, signature.replays, np.zeros(len(told)))
    else:
        sized = told & (requests != UNTOLD)
        most = per_decode * np.where(sizes.padded, padded_size(requests), requests)
        verdict.settle(Evidence.REQUESTS, sized, sizes.tokens > most)
    if max_num_seq is not None:
        verdict.settle(Evidence.MAX_NUM_SEQ, told, sizes.tokens > per_decode * max_num_seq)
    if _splits_by_graph(signature, sizes.tokens):
        verdict.settle(Evidence.GRAPH, verdict.open, ~signature.replays)
    peak = int(requests.max(initial=UNTOLD))
    if peak > 0 and not context.any():
        verdict.settle(Evidence.CONCURRENCY, told, sizes.tokens > per_decode * padded_size(np.array(peak)))
    verdict.settle(Evidence.LEVEL, told, sizes.tokens > _token_level(sizes.tokens[told & verdict.open]))
    _settle_by_signature(verdict, signature)
    known = requests[requests != UNTOLD]
    confirmed = len(np.unique(known)) > 1 or bool((requests == sizes.tokens)[told].any())
    return Prefills(verdict.carries, tuple(verdict.evidence), requests, per_decode, confirmed)


class _Verdict:
    """The answer so far; a step that is settled stays so."""

    def __init__(self, count: int) -> None:
        self.carries = np.full(count, UNTOLD, dtype=np.int64)
        self.evidence = [Evidence.NONE] * count

    @property
    def open(self) -> BoolArray:
        """Which steps are not settled yet?"""
        return np.array([evidence is Evidence.NONE for evidence in self.evidence], dtype=np.bool_)

    def settle(self, evidence: Evidence, where: BoolArray, carries: NDArray[np.generic]) -> None:
        """Settle the steps ``where`` this evidence is there, unless stronger evidence was."""
        where = where & self.open
        self.carries[where] = carries[where].astype(np.int64)
        for i in np.flatnonzero(where).tolist():
            self.evidence[i] = evidence


def padded_size(requests: Int64Array) -> Int64Array:
    """To which size does an engine pad a batch for its captured graphs? 1, 2, 4, eights to 256, then sixteens."""
    eights, sixteens = -(-requests // 8) * 8, -(-requests // 16) * 16
    small = np.where(requests <= 2, requests, np.where(requests <= 4, 4, eights))
    return np.asarray(np.where(requests <= 256, small, sixteens), dtype=np.int64)


def _requests(sizes: BatchSizes) -> Int64Array:
    """How many requests run in each step? By the attention op, else by the output layer; UNTOLD if not to be believed.

    Vectors of a fixed length are buffers: they hold more entries than a step has tokens. An output layer that
    computes a row for every token of every step does not tell requests.
    """
    tokens, requests, rows = sizes.tokens, sizes.requests, sizes.logit_rows
    told = tokens != UNTOLD
    by_op, by_rows = told & (requests != UNTOLD), told & (rows != UNTOLD)
    if by_op.any():
        largest, smallest = int(requests[by_op].max()), int(requests[by_op].min())
        fewer = (tokens[by_op] < requests[by_op]).any() or (largest == smallest and tokens[told].min() < largest)
        if fewer:
            by_op = np.zeros_like(by_op)
    if by_rows.any() and ((rows > tokens)[by_rows].any() or (rows == tokens)[by_rows].all()):
        by_rows = np.zeros_like(by_rows)
    return np.where(by_op, requests, np.where(by_rows, rows, UNTOLD))


def _tokens_a_decode(sizes: BatchSizes, requests: Int64Array) -> int:
    """How many query tokens does a decode bring, in most of the steps? More than 1 where the engine speculates.

    A budget may be a multiple of the requests, too. So: 1 where a step has no more tokens than there are requests, or
    where the output layer computes fewer rows than tokens (it computes one for each token that is to be verified).
    """
    tokens = sizes.tokens
    sized = (tokens > 0) & (requests > 0)
    if (
        not sized.any()
        or tokens[tokens > 0].min() <= requests[sized].max()
        or (requests == sizes.logit_rows)[sized].any()
    ):
        return 1
    whole = tokens[sized][tokens[sized] % requests[sized] == 0] // requests[sized][tokens[sized] % requests[sized] == 0]
    whole = whole[whole <= 1 + _USUAL_DRAFT]
    usual = int(np.bincount(whole).argmax()) if len(whole) else 1
    return usual if 2 * int((whole == usual).sum()) > int(sized.sum()) else 1


def _splits_by_graph(signature: StepSignature, tokens: Int64Array) -> bool:
    """Do some steps replay one graph, and others not? Where tokens are told, the former must have fewer."""
    replayed, others, told = signature.replays, ~signature.replays & (signature.kernels > 0), tokens != UNTOLD
    if not replayed.any() or not others.any():
        return False
    if not (replayed & told).any() or not (others & told).any():
        return True
    return bool(np.median(tokens[replayed & told]) < np.median(tokens[others & told]))


def _token_level(tokens: Int64Array) -> int:
    """Up to how many tokens is a step one of decodes? 0 where all of them carry prefills.

    Each prefill rises over the gap above the decodes. So: of the gaps that steps rise over about as often as over any,
    the widest. A gap among prefills of several lengths is crossed less often, and so is one among the last decodes
    of a run that drains. Below it sizes must be steady, as those of decodes are: a prompt's last chunk may be small,
    but then the next step has far fewer tokens yet.
    """
    values = np.unique(tokens)
    low, high = values[:-1], values[1:]
    wide = (high >= _LEVEL_GAP * low) & (high - low >= _LEVEL_TOKENS) & (low <= _LARGEST_BATCH)
    low, high = low[wide], high[wide]
    # A step rises over a level where its size is more and the one before it is not.
    before, larger = np.sort(tokens[:-1]), np.sort(np.maximum(tokens[:-1], tokens[1:]))
    rises = np.searchsorted(before, low, side="right") - np.searchsorted(larger, low, side="right")
    often = rises >= _CROSSED_SHARE * rises.max(initial=0)
    for i in np.argsort(-high / np.maximum(low, 1), kind="stable").tolist():
        if (
            often[i]
            and _leaps(tokens, int(low[i])) <= max(1, _LEAPS_SHARE * rises[i])
            and _is_steady(tokens[tokens <= low[i]])
        ):
            return int(low[i])
    if not len(values) or values[0] > _LARGEST_BATCH:
        return 0
    if values[-1] <= _LARGEST_BATCH and _is_steady(tokens):
        return int(values[-1])
    usual, times = np.unique(tokens, return_counts=True)
    mode = int(usual[times.argmax()])
    # Short prompts leave no gap. Full batches decode with one size again and again; so do full budgets, the largest.
    return mode if times.max() >= _MODE_SHARE * len(tokens) and mode < values[-1] and mode <= _LARGEST_BATCH else 0


def _leaps(tokens: Int64Array, level: int) -> int:
    """How often do decodes, if those are up to this level, leap as decodes do not?

    They never double. They halve where a run drains, but not right after a prefill: what precedes the halving there is
    a prompt's small last chunk.
    """
    low, after = tokens[:-1] <= level, tokens[1:]
    doubles = (after <= level) & (after >= _LEVEL_GAP * tokens[:-1]) & (after - tokens[:-1] >= _LEVEL_TOKENS)
    halves = low & (tokens[:-1] >= _LEVEL_GAP * after) & (tokens[:-1] - after >= _LEVEL_TOKENS)
    follows = np.append(False, tokens[:-2] > level)
    return int((doubles | (halves & follows)).sum())


def _is_steady(tokens: Int64Array) -> bool:
    """Do sizes change from one to the next as those of decodes, by the requests that finish?"""
    change = np.abs(np.diff(tokens)) <= np.maximum(_LEVEL_TOKENS, _STEADY_CHANGE * tokens[:-1])
    return not len(change) or float(change.mean()) >= _STEADY_SHARE


def _settle_by_signature(verdict: _Verdict, signature: StepSignature) -> None:
    """What is left has no shapes: told apart by the number of kernels (ops), else by the time they take."""
    left = verdict.open
    if not left.any():
        return
    kernels, busy = signature.kernels[left], signature.busy_ns[left]
    level = _widest_gap(kernels, _KERNEL_COUNT_GAP)
    evidence, heavy = Evidence.KERNELS, kernels > (level or 0)
    if level is not None and np.median(busy[heavy]) < np.median(busy[~heavy]):
        heavy = ~heavy
    if level is None or np.median(busy[heavy]) < _LEVEL_GAP * np.median(busy[~heavy]):
        level = _widest_gap(busy, _LEVEL_GAP)
        evidence, heavy = Evidence.DURATION, busy > (level or 0)
    carries = np.zeros(len(left))
    carries[np.flatnonzero(left)] = heavy if level is not None else 0
    if level is None and not signature.replays[left].all():
        return
    verdict.settle(Evidence.GRAPH if level is None else evidence, left, carries)


def _widest_gap(values: Int64Array, least: float) -> int | None:
    """Below which gap do at least half of the values lie? The widest such; None where no gap is wide enough."""
    ordered = np.sort(np.maximum(values, 1))
    ratio = ordered[1:] / ordered[:-1]
    ratio[: max(int(np.ceil(_FEWEST_SIMILAR * len(ordered))) - 1, 0)] = 0
    if not len(ratio) or ratio.max() < least:
        return None
    return int(ordered[int(ratio.argmax())])
