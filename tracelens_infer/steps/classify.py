"""What kind of step is it? From the annotation, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens_infer.steps.annotation import StepAnnotation
from tracelens_infer.steps.step import EngineMode, StepKind

__all__ = ["MAX_SPECULATIVE_TOKENS", "classify", "engine_mode", "speculates", "stalled_decodes"]

MAX_SPECULATIVE_TOKENS = 16
"""No engine drafts more tokens a step; a decode with more query tokens re-computes a preempted request."""
_SPECULATING_SHARE = 0.1
"""An engine that speculates does so in most steps; resumed requests are rare."""


def speculates(annotations: Sequence[StepAnnotation | None]) -> bool:
    """Do decodes of this trace bring more than one query token as a rule?"""
    told = several = 0
    for annotation in annotations:
        load = annotation.load if annotation is not None else None
        if load is None or not load.generation.requests or load.generation.query_tokens is None:
            continue
        told += 1
        several += load.generation.query_tokens > load.generation.requests
    return several > _SPECULATING_SHARE * told


def classify(annotation: StepAnnotation, *, speculative: bool) -> tuple[StepKind, str]:
    """Which kind is the step, and what says so? ``speculative`` as :func:`speculates` tells of the whole trace."""
    has_context, has_generation = annotation.has_context, annotation.has_generation
    if has_context is None or has_generation is None:
        return StepKind.UNKNOWN, f"{annotation.format} tells no phases"
    if has_context:
        return (StepKind.PREFILL_DECODE if has_generation else StepKind.PREFILL_ONLY), annotation.format
    if not has_generation:
        return StepKind.EMPTY, annotation.format
    if _recomputes(annotation, speculative=speculative):
        return StepKind.RECOMPUTE, f"{annotation.format}: too many query tokens for decodes"
    return StepKind.DECODE_ONLY, annotation.format


def _recomputes(annotation: StepAnnotation, *, speculative: bool) -> bool:
    load = annotation.load
    if load is None or load.generation.query_tokens is None:
        return False
    tokens, requests, squares = load.generation.query_tokens, load.generation.requests, load.generation.query_query
    if tokens > requests and not speculative:
        return True
    # If every request had at most N tokens, the sum of squares would be at most N times the sum.
    most = 1 + MAX_SPECULATIVE_TOKENS
    return tokens > most * requests or (squares is not None and squares > most * tokens)


def stalled_decodes(context: Sequence[int], generation: Sequence[int]) -> list[int]:
    """How many requests decode before and after each step, but not in it?

    At least ``min(before, after - prefilled here) - decoded here``: a request that is prefilled now decodes after it,
    and did not before. Steps in which nothing runs stall nobody.
    """
    contexts, generations = np.array(context, dtype=np.int64), np.array(generation, dtype=np.int64)
    stalled = np.zeros(len(contexts), dtype=np.int64)
    decoding = np.flatnonzero(generations > 0)
    if not len(decoding):
        return [0] * len(contexts)
    prefilled = np.append(0, np.cumsum(contexts))
    here = np.flatnonzero(contexts > 0)
    before = np.searchsorted(decoding, here) - 1
    after = np.searchsorted(decoding, here, side="right")
    inner = (before >= 0) & (after < len(decoding))
    here, before, after = here[inner], decoding[before[inner]], decoding[after[inner]]
    joined = prefilled[after] - prefilled[before + 1]
    still = np.minimum(generations[before], np.maximum(generations[after] - joined, 0))
    stalled[here] = np.maximum(still - generations[here], 0)
    return [int(value) for value in stalled]


def engine_mode(kinds: Sequence[StepKind], stalled: Sequence[int]) -> EngineMode:
    """Do prefills share a step with decodes, or do the decodes stand still meanwhile?"""
    if StepKind.PREFILL_DECODE in kinds:
        return EngineMode.MIXED
    if any(kind is StepKind.PREFILL_ONLY and count for kind, count in zip(kinds, stalled, strict=True)):
        return EngineMode.EXCLUSIVE
    return EngineMode.UNKNOWN
