"""Which phase is each step in, where no annotation tells? From op shapes, else from what the device ran."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens_infer.steps.annotation import AttentionLoad, PhaseLoad
from tracelens_infer.steps.batch_sizes import UNTOLD, BatchSizes, TokensFrom, batch_sizes
from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.prefill_evidence import Evidence, Prefills, StepSignature, prefills_of
from tracelens_infer.steps.regions import runs_of
from tracelens_infer.steps.step import Confidence, StepKind
from tracelens_infer.trace.columns import Int64Array, Trace
from tracelens_infer.trace.launches import DeviceWork

__all__ = ["PhaseGuess", "phases_of"]

_BUSY_SHARE = 0.5
"""Of the peak: a trace that begins below it begins with the run, before anything decodes; and so does one that begins
with as many prefills as fill this share of the places."""
_PROMPTS_SHARE = 0.9  # of the tokens of the steps that fill every place: the rest are decodes beside them
_EXCLUSIVE_SHARE = 0.5
"""Prefill steps of an engine that does not mix hold new requests only: as a rule far fewer than decode beside them."""
_FEWEST_TO_COMPARE = 3
_GATHERED = 2  # prompts of a prefill instance differ, but not those of a third of a trace from another's by so much
_GATHERED_REQUESTS = 8  # of one or two requests twice as many are soon there


@dataclass(frozen=True, slots=True)
class PhaseGuess:
    """What did a step without an annotation do?

    Attributes:
        kind: never DUMMY or RECOMPUTE, which look like the others.
        load: requests by phase; sums over tokens where they are certain. In a step of both phases the context requests
            are at least as many as told, and the generation requests the rest. None where even the requests are
            unknown.
        tokens: query tokens of both phases; None where nothing tells.
        requests: requests of both phases; None where no op tells them.
        confidence: how far to trust ``kind``.
        source: what told, as text.
    """

    kind: StepKind
    load: AttentionLoad | None
    tokens: int | None
    requests: int | None
    confidence: Confidence
    source: str


def phases_of(
    trace: Trace, work: DeviceWork, candidate: Candidate, *, max_num_seq: int | None = None
) -> list[PhaseGuess]:
    """Which phase is each of a candidate's steps in? One guess a boundary; annotations are not looked at.

    ``max_num_seq`` (--max-num-seq) is the most requests that the engine runs at once: with more tokens than that a
    step carries a prefill. Reads the trace's host ops again.
    """
    sizes = batch_sizes(trace, candidate)
    prefills = prefills_of(sizes, StepSignature.of(work, candidate, sizes), max_num_seq)
    kinds = _kinds(sizes, prefills)
    loads = _Loads(sizes, prefills, kinds)
    first_decode = kinds.index(StepKind.DECODE_ONLY) if StepKind.DECODE_ONLY in kinds else len(kinds)
    return [
        PhaseGuess(
            kind,
            loads.load(i),
            loads.tokens(i),
            loads.requests(i),
            _confidence(sizes, prefills, i, opening=kind is StepKind.PREFILL_ONLY and i < first_decode),
            _source(i, sizes, prefills, loads.requests(i)),
        )
        for i, kind in enumerate(kinds)
    ]


def _source(i: int, sizes: BatchSizes, prefills: Prefills, requests: int | None) -> str:
    if sizes.tokens[i] == UNTOLD:
        return str(prefills.evidence[i])
    told = f"{sizes.tokens_from[i]}, {int(sizes.tokens[i]):,} tokens"
    if requests is not None:
        told += f" of {requests:,} requests"
    return f"{told}: {prefills.evidence[i]}"


def _confidence(sizes: BatchSizes, prefills: Prefills, i: int, *, opening: bool) -> Confidence:
    """How sure is step i? ``opening``: prefills with no decode-only step before: none decodes beside, we assume."""
    evidence, tokens_from = prefills.evidence[i], sizes.tokens_from[i]
    if evidence is Evidence.NONE:
        return Confidence.UNKNOWN
    if evidence is Evidence.IDLE:
        return Confidence.MEDIUM
    if tokens_from is TokensFrom.NOTHING:
        return Confidence.LOW
    if evidence is Evidence.PHASE_OPS:
        return Confidence.HIGH
    told = tokens_from is TokensFrom.ATTENTION and evidence is Evidence.REQUESTS and prefills.confirmed
    return Confidence.HIGH if told and not opening else Confidence.MEDIUM


# -- kinds -------------------------------------------------------------------------------------------------------


def _kinds(sizes: BatchSizes, prefills: Prefills) -> list[StepKind]:
    """Prefills alone or beside decodes? Requests whose prefill is done decode in every step of an engine that mixes."""
    carries = prefills.carries
    mixes = not _is_exclusive(sizes, prefills) and (bool((carries == 0).any()) or _gathers(prefills.requests))
    opening = _Opening.of(sizes.tokens, prefills)
    decoding = not opening.cold
    done = 0  # tokens prefilled since nothing was decoding
    kinds = []
    for i, carried in enumerate(carries.tolist()):
        if prefills.evidence[i] is Evidence.IDLE:
            kinds.append(StepKind.EMPTY)
            decoding, done = False, 0
        elif carried == UNTOLD:
            kinds.append(StepKind.UNKNOWN)
        elif not carried:
            kinds.append(StepKind.DECODE_ONLY)
            decoding = True
        else:
            alone = not mixes or not decoding or opening.leaves_one(i)
            kinds.append(StepKind.PREFILL_ONLY if alone else StepKind.PREFILL_DECODE)
            if sizes.generation_tokens[i] != UNTOLD:
                kinds[-1] = StepKind.PREFILL_DECODE
            done += int(sizes.tokens[i])
            decoding = decoding or opening.completes(i, done)
    return kinds


@dataclass(frozen=True, slots=True, eq=False)
class _Opening:
    """When do the first requests begin to decode, in a trace (or after a pause) that begins with prefills?

    ``cold``: nothing decodes when the trace begins. ``prompt``: tokens of the shortest prompt seen, None if none is.
    ``requests``: those of each step; UNTOLD also where they never vary, as in a buffer's length. ``decoding``: the
    decode-only steps.
    """

    cold: bool
    prompt: int | None
    budget: int
    tokens: Int64Array
    requests: Int64Array
    decoding: Int64Array

    @classmethod
    def of(cls, tokens: Int64Array, prefills: Prefills) -> _Opening:
        carries, requests = prefills.carries, prefills.requests
        told = requests[requests != UNTOLD]
        if not len(told) or told.min() == told.max() > 1:
            requests = np.full(len(requests), UNTOLD)
        starts, ends = runs_of(carries == 1)
        prompts = [
            int((tokens[start:end] - tokens[start - 1]).sum())
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            if start > 0 and carries[start - 1] == 0 and end < len(carries)
        ]
        prompt = min(prompts, default=None)
        cold = False
        if len(starts) and not (carries[: starts[0]] == 0).any():
            opening = int(tokens[starts[0] : ends[0]].sum())
            places = max(int(tokens[carries == 0].max(initial=1)), 1)
            if requests[starts[0]] != UNTOLD:
                cold = bool(requests[starts[0]] < _BUSY_SHARE * requests.max())
            elif prompt is not None:
                most = max(prompts) if len(prompts) >= _FEWEST_TO_COMPARE else opening + 1
                cold = opening >= min(_BUSY_SHARE * places * prompt, most)
            else:  # a run of prefills fills places; a single one need not
                cold = bool(ends[0] - starts[0] > 1)
            if cold:  # later runs may hold several prompts each
                prompt = min(int(_PROMPTS_SHARE * opening / places), prompt or opening)
        return cls(cold, prompt, int(tokens.max(initial=0)), tokens, requests, np.flatnonzero(carries == 0))

    def leaves_one(self, i: int) -> bool:
        """Does step i run a single request: by its shapes, or since the next decode-only step does?"""
        if self.requests[i] != UNTOLD:
            return bool(self.requests[i] == 1)
        at = np.searchsorted(self.decoding, i)
        return bool(at < len(self.decoding) and self.tokens[self.decoding[at]] == 1)

    def completes(self, i: int, done: int) -> bool:
        """Has a first request been prefilled whole after step i, ``done`` tokens after the pause?

        Where the step was not cut at the budget all of its requests are; of several at most the last one is not.
        """
        if self.requests[i] > 1 or self.tokens[i] < self.budget or self.prompt is None:
            return True
        return done >= self.prompt


def _gathers(requests: Int64Array) -> bool:
    """Do requests become far more in the course of the trace? Then those that are prefilled stay to decode."""
    known = requests[requests != UNTOLD]
    third = len(known) // 3
    if third < _FEWEST_TO_COMPARE:
        return False
    first, last = np.median(known[:third]), np.median(known[-third:])
    return bool(last >= _GATHERED * first and last - first >= _GATHERED_REQUESTS)


def _is_exclusive(sizes: BatchSizes, prefills: Prefills) -> bool:
    """Does the engine prefill and decode in separate steps?"""
    if (sizes.context_tokens != UNTOLD).any():
        return not ((sizes.context_tokens != UNTOLD) & (sizes.generation_tokens != UNTOLD)).any()
    known = prefills.requests != UNTOLD
    of_prefills = prefills.requests[known & (prefills.carries == 1)]
    of_decodes = prefills.requests[known & (prefills.carries == 0)]
    if min(len(of_prefills), len(of_decodes)) < _FEWEST_TO_COMPARE:
        return False
    return bool(np.median(of_prefills) < _EXCLUSIVE_SHARE * np.median(of_decodes))


# -- loads -------------------------------------------------------------------------------------------------------

_NOTHING = PhaseLoad(0, 0, 0, 0, 0)


class _Loads:
    """How many requests and tokens does each step bring, as far as they are known?"""

    def __init__(self, sizes: BatchSizes, prefills: Prefills, kinds: list[StepKind]) -> None:
        self._tokens, self._requests = sizes.tokens, prefills.requests
        self._per_decode = prefills.decode_tokens
        self._kinds = kinds
        self._baseline = self._decode_baseline()

    def tokens(self, i: int) -> int | None:
        """How many query tokens does step i run? None where nothing tells."""
        if self._kinds[i] is StepKind.EMPTY:
            return 0
        return int(self._tokens[i]) if self._tokens[i] != UNTOLD else None

    def requests(self, i: int) -> int | None:
        """How many requests run in step i? None where no op tells."""
        if self._kinds[i] is StepKind.EMPTY:
            return 0
        if self._requests[i] != UNTOLD:
            return int(self._requests[i])
        if self._kinds[i] is StepKind.DECODE_ONLY and self._tokens[i] != UNTOLD:
            return int(self._tokens[i]) // self._per_decode
        return None

    def load(self, i: int) -> AttentionLoad | None:
        """What is known of step i's requests, by phase?"""
        kind, requests = self._kinds[i], self.requests(i)
        tokens = int(self._tokens[i]) if self._tokens[i] != UNTOLD else None
        if kind is StepKind.EMPTY:
            return AttentionLoad(_NOTHING, _NOTHING)
        if kind is StepKind.DECODE_ONLY and requests:
            decodes = PhaseLoad(requests, requests * self._per_decode, None, None, requests * self._per_decode**2)
            return AttentionLoad(_NOTHING, decodes)
        if kind is StepKind.PREFILL_ONLY:
            squares = tokens**2 if tokens is not None and requests == 1 else None
            return AttentionLoad(PhaseLoad(requests or 1, tokens, None, None, squares), _NOTHING)
        if kind is StepKind.PREFILL_DECODE:
            return self._of_both(i, requests)
        return None

    def _of_both(self, i: int, requests: int | None) -> AttentionLoad | None:
        """At least those that were not there before are new, and at least one is; the rest decodes."""
        context = 1
        if requests is None:
            requests = int(self._baseline[i])
        elif i > 0 and self._requests[i - 1] != UNTOLD:
            context = max(1, requests - int(self._requests[i - 1]))
        if requests < 1:
            return None
        return AttentionLoad(PhaseLoad(context), PhaseLoad(max(requests - context, 1)))

    def _decode_baseline(self) -> Int64Array:
        """Requests of the nearest decode-only step, the next one first: those of a prefill step decode in it."""
        count = len(self._kinds)
        decoding = np.array(
            [i for i in range(count) if self._kinds[i] is StepKind.DECODE_ONLY and self.requests(i)], dtype=np.int64
        )
        if not len(decoding):
            return np.zeros(count, dtype=np.int64)
        level = np.array([self.requests(int(i)) for i in decoding], dtype=np.int64)
        at = np.minimum(np.searchsorted(decoding, np.arange(count)), len(decoding) - 1)
        return level[at]
