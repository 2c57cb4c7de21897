"""What the sums tell and what the requests tell agree, for whatever requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tracelens_infer.roofline.attention import (
    AttentionCost,
    Bounds,
    ChunkSource,
    Phase,
    PhaseColumns,
    Precision,
    Ranks,
    attention_cost,
    attention_cost_columns,
    attention_cost_of_requests,
)
from tracelens_infer.roofline.model import AttentionKind, AttentionShape, LatentShape, LinearStateShape
from tracelens_infer.steps.annotation import PhaseLoad

Requests = list[tuple[int, int]]

LATENT = LatentShape(kv_rank=32, rope=4, nope=8, d_v=8, q_rank=None)
STATE = LinearStateShape(key_heads=2, value_heads=4, d_k=8, d_v=8, conv_kernel=4)


def sums(requests: Requests) -> PhaseLoad:
    return PhaseLoad(
        len(requests),
        sum(query for query, _ in requests),
        sum(kv for _, kv in requests),
        sum(query * kv for query, kv in requests),
        sum(query * query for query, _ in requests),
    )


request = st.tuples(st.integers(1, 40), st.integers(0, 90)).map(lambda pair: (pair[0], pair[0] + pair[1]))
decode = st.tuples(st.just(1), st.integers(1, 90))
verify = st.tuples(st.just(3), st.integers(3, 90))
prompt = st.integers(1, 60).map(lambda tokens: (tokens, tokens))
uneven = st.one_of(prompt, st.tuples(st.just(1), st.integers(60, 90)))  # few tokens have all that is cached
some_requests = st.one_of(*(st.lists(kind, max_size=6) for kind in (request, decode, verify, prompt, uneven)))
sizes = st.integers(1, 40)
MASKED = (AttentionKind.WINDOW, AttentionKind.CHUNKED, AttentionKind.SPARSE_TOPK)


def masked(kind: AttentionKind, size: int) -> AttentionShape:
    if kind is AttentionKind.SPARSE_TOPK:
        return AttentionShape(kind, 8, 8, 12, 8, None, size, indexer_heads=2, indexer_dim=4, latent=LATENT)
    return AttentionShape(kind, 8, 2, 16, 8, window_tokens=size)


shapes = st.one_of(
    st.just(AttentionShape(AttentionKind.FULL, 8, 2, 16, 8)),
    st.just(AttentionShape(AttentionKind.FULL, 8, 8, 12, 8, latent=LATENT)),
    st.just(AttentionShape(AttentionKind.LINEAR, 4, 2, 8, 8, state=STATE)),
    st.builds(masked, st.sampled_from(MASKED), sizes),
)
precisions = st.builds(
    Precision, st.just("bf16"), st.sampled_from(["bf16", "fp8", "nvfp4"]), st.sampled_from(ChunkSource)
)
rank_choices = st.sampled_from([Ranks(), Ranks(4), Ranks(8, 4), Ranks(4, 1, 2)])


def within(inner: Bounds[int], outer: Bounds[int]) -> bool:
    return outer.low <= inner.low <= inner.high <= outer.high


# Bounds that hold for most requests and not for all need many examples to show.
@settings(max_examples=1000)
@example([(1, 91), (39, 39)], masked(AttentionKind.WINDOW, 40), Phase.CONTEXT, Precision(), Ranks(), 0)
@example([(1, 1), (1, 7)], masked(AttentionKind.WINDOW, 6), Phase.CONTEXT, Precision(), Ranks(), 0)
@example([(1, 10), (1, 10)], masked(AttentionKind.SPARSE_TOPK, 20), Phase.GENERATION, Precision(), Ranks(), 9)
@example([(3, 40), (3, 5)], masked(AttentionKind.CHUNKED, 8), Phase.GENERATION, Precision(), Ranks(8, 4), 12)
@given(some_requests, shapes, st.sampled_from(Phase), precisions, rank_choices, st.integers(0, 60))
def test_the_requests_figures_lie_within_the_bounds_that_the_sums_tell(
    requests: Requests, shape: AttentionShape, phase: Phase, precision: Precision, ranks: Ranks, prefix: int
) -> None:
    told = attention_cost(sums(requests), shape, phase, precision=precision, ranks=ranks, shared_prefix_tokens=prefix)
    listed = attention_cost_of_requests(
        requests, shape, phase, precision=precision, ranks=ranks, shared_prefix_tokens=prefix
    )
    assert told is not None
    assert listed is not None
    for name in ("pairs", "kv_read_tokens", "flops", "bytes"):
        assert within(getattr(listed, name), getattr(told, name)), name
    assert listed.document_flops == told.document_flops
    assert listed.document_bytes == told.document_bytes
    assert listed.form == told.form


@given(st.lists(request, max_size=6), st.sampled_from(Phase), precisions, st.sampled_from([Ranks(), Ranks(4)]))
def test_without_a_mask_of_its_own_a_layer_costs_the_same_by_sums_and_by_requests(
    requests: Requests, phase: Phase, precision: Precision, ranks: Ranks
) -> None:
    for shape in (
        AttentionShape(AttentionKind.FULL, 8, 2, 16, 8),
        AttentionShape(AttentionKind.FULL, 8, 8, 12, 8, latent=LATENT),
    ):
        told = attention_cost(sums(requests), shape, phase, precision=precision, ranks=ranks)
        assert told == attention_cost_of_requests(requests, shape, phase, precision=precision, ranks=ranks)


@given(request, sizes, st.sampled_from([AttentionKind.WINDOW, AttentionKind.CHUNKED]))
def test_one_request_is_exact_for_windows_and_chunks(one: tuple[int, int], size: int, kind: AttentionKind) -> None:
    shape = AttentionShape(kind, 8, 2, 16, 8, window_tokens=size)
    told = attention_cost(sums([one]), shape, Phase.CONTEXT)
    assert told is not None
    assert told.exact
    assert told == attention_cost_of_requests([one], shape, Phase.CONTEXT)


@given(request, sizes)
def test_pairs_are_those_that_a_mask_drawn_position_by_position_leaves(one: tuple[int, int], size: int) -> None:
    query, kv = one
    masks: dict[AttentionKind, Callable[[int, int], bool]] = {
        AttentionKind.FULL: lambda row, column: column <= row,
        AttentionKind.WINDOW: lambda row, column: row - size < column <= row,
        AttentionKind.CHUNKED: lambda row, column: column <= row and column // size == row // size,
    }
    for kind, mask in masks.items():
        drawn = [[mask(row, column) for column in range(kv)] for row in range(kv - query, kv)]
        cost = attention_cost_of_requests([one], AttentionShape(kind, 1, 1, 1, 1, window_tokens=size), Phase.CONTEXT)
        assert cost is not None
        assert cost.pairs.low == cost.pairs.high == sum(map(sum, drawn))
        assert cost.kv_read_tokens.low == sum(map(any, zip(*drawn, strict=True)))


@given(st.lists(some_requests, min_size=1, max_size=5), shapes, st.sampled_from(Phase), precisions, rank_choices)
def test_a_column_of_steps_costs_what_its_steps_cost(
    steps: list[Requests], shape: AttentionShape, phase: Phase, precision: Precision, ranks: Ranks
) -> None:
    loads = [sums(requests) for requests in steps]
    column = attention_cost_columns(
        PhaseColumns.of(loads), shape, phase, precision=precision, ranks=ranks, shared_prefix_tokens=7
    )
    assert column is not None
    for row, load in enumerate(loads):
        single = attention_cost(load, shape, phase, precision=precision, ranks=ranks, shared_prefix_tokens=7)
        assert single is not None
        for field in fields(AttentionCost):
            whole, part = getattr(column, field.name), getattr(single, field.name)
            if isinstance(whole, Bounds):
                assert whole.low.dtype == whole.high.dtype == np.int64
                assert (int(whole.low[row]), int(whole.high[row])) == (part.low, part.high)
            elif isinstance(whole, np.ndarray):
                assert whole.dtype == np.int64
                assert int(whole[row]) == part


@pytest.mark.parametrize("kind", [AttentionKind.WINDOW, AttentionKind.CHUNKED])
@given(requests=some_requests, size=sizes)
def test_a_masked_layer_never_costs_more_than_a_full_one(kind: AttentionKind, requests: Requests, size: int) -> None:
    masked = attention_cost(sums(requests), AttentionShape(kind, 8, 2, 16, 8, window_tokens=size), Phase.GENERATION)
    full = attention_cost(sums(requests), AttentionShape(AttentionKind.FULL, 8, 2, 16, 8), Phase.GENERATION)
    assert masked is not None
    assert full is not None
    assert masked.flops.low <= masked.flops.high <= full.flops.high
    assert masked.bytes.low <= masked.bytes.high <= full.bytes.high
