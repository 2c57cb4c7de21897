"""How many FLOPs and bytes does a layer's attention take for given pairs and tokens? One function a way to compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tracelens_infer.errors import UsageError
from tracelens_infer.roofline.attention_types import (
    AttentionCost,
    AttentionForm,
    ChunkSource,
    Phase,
    Precision,
    Ranks,
)
from tracelens_infer.roofline.attention_work import Bounds, PhaseColumns, Values, Work
from tracelens_infer.roofline.dtypes import dtype_name, storage_bytes
from tracelens_infer.roofline.model import AttentionKind, AttentionShape, LatentShape, LinearStateShape

__all__ = ["Pricing"]

N = TypeVar("N")

# Multiplications and additions of a linear-attention layer for each element of a head's state and each token: the
# update (an outer product) and the readout take 2 each; the delta rule first reads what the state holds for the key.
_PLAIN_STATE_FLOPS = 4
_DELTA_STATE_FLOPS = 6

_INT64_MAX = int(np.iinfo(np.int64).max)
_STORAGE_FACTOR = 256  # more than the numerator of any format's bits (int4: 133/32)


@dataclass(frozen=True, slots=True)
class _Parts:
    """FLOPs and bytes of one way to compute, as columns."""

    flops: Bounds[Values]
    bytes: Bounds[Values]
    up_projection: Values


class Pricing:
    """The layer, its ranks and its number formats: everything but the load."""

    def __init__(
        self,
        shape: AttentionShape,
        phase: Phase,
        precision: Precision,
        ranks: Ranks,
        causal: bool,
        form: AttentionForm | None,
    ) -> None:
        _check(shape, causal, form)
        self.shape, self.phase, self.precision, self.ranks, self.form = shape, phase, precision, ranks, form
        self.kv_ranks = ranks.decode_context_parallel if phase is Phase.GENERATION else 1
        self.query_heads, self.kv_heads = ranks.query_heads(shape.query_heads), ranks.kv_heads(shape.kv_heads)
        self.query_dtype = dtype_name(precision.query_dtype)
        self.output_dtype = dtype_name(precision.output_dtype or precision.query_dtype)
        self.kv_dtype = dtype_name(precision.kv_dtype)
        sparse = shape.kind is AttentionKind.SPARSE_TOPK
        fresh = phase is Phase.CONTEXT and precision.chunk_source is ChunkSource.FRESH and not sparse
        self.chunk_source = ChunkSource.FRESH if fresh else ChunkSource.CACHE

    def cost(self, work: Work, unwrap: Callable[[Values], N]) -> AttentionCost[N]:
        """The cost of this work; ``unwrap`` turns a column into what the caller wants."""
        shape, groups = self.shape, self.ranks.attention_data_parallel
        parts, form, absorbed = self._attention(work)
        linear = shape.kind is AttentionKind.LINEAR
        indexer_flops, indexer_bytes = self._indexer(work)

        def of_rank(values: Values) -> N:
            return unwrap(-(-values // groups))

        def bounds(low: Values, high: Values) -> Bounds[N]:
            return Bounds(of_rank(low), of_rank(high))

        return AttentionCost(
            phase=self.phase,
            kind=shape.kind,
            form=form,
            absorbed=unwrap(absorbed),
            document_flops=None if linear else of_rank(self._document_flops(work)),
            document_bytes=None if linear else of_rank(self._document_bytes(work)),
            flops=bounds(parts.flops.low + indexer_flops, parts.flops.high + indexer_flops),
            bytes=bounds(parts.bytes.low + indexer_bytes.low, parts.bytes.high + indexer_bytes.high),
            up_projection_flops=of_rank(parts.up_projection),
            indexer_flops=of_rank(indexer_flops),
            indexer_bytes=of_rank(indexer_bytes.high),
            pairs=Bounds(unwrap(work.pairs.low), unwrap(work.pairs.high)),
            kv_read_tokens=bounds(work.kv_read.low, work.kv_read.high),
            chunk_source=self._told_source(form),
            multiply_dtype=self.precision.multiply_dtype,
        )

    def _told_source(self, form: AttentionForm) -> ChunkSource | None:
        if self.phase is Phase.GENERATION or form is AttentionForm.LINEAR_STATE:
            return None
        return ChunkSource.FRESH if form is AttentionForm.MLA_NOT_ABSORBED else self.chunk_source

    def _attention(self, work: Work) -> tuple[_Parts, AttentionForm, Values]:
        none = 0 * work.requests
        if self.shape.state is not None and self.shape.kind is AttentionKind.LINEAR:
            return self._linear(work, self.shape.state), AttentionForm.LINEAR_STATE, none
        latent = self.shape.latent
        if latent is None:
            return self._standard(work), AttentionForm.STANDARD, none
        if self.form is AttentionForm.MLA_ABSORBED or (self.form is None and self._always_absorbed):
            return self._absorbed(work, latent), AttentionForm.MLA_ABSORBED, none + 1
        if self.form is AttentionForm.MLA_NOT_ABSORBED:
            return self._not_absorbed(work, latent), AttentionForm.MLA_NOT_ABSORBED, none
        return _cheaper(self._absorbed(work, latent), self._not_absorbed(work, latent))

    @property
    def _always_absorbed(self) -> bool:
        return self.phase is Phase.GENERATION or self.shape.kind is AttentionKind.SPARSE_TOPK

    def _document_flops(self, work: Work) -> Values:
        each = self.query_heads * (self.shape.d_qk + self.shape.d_v)
        triangle = work.query_query * each if self.phase is Phase.CONTEXT else 0
        return 2 * work.query_kv * each - triangle

    def _document_bytes(self, work: Work) -> Values:
        kv = work.kv_tokens * (self.kv_heads * (self.shape.d_qk + self.shape.d_v))
        return self._query_output(work, self.shape.d_qk, self.shape.d_v) + storage_bytes(kv, self.kv_dtype)

    def _query_output(self, work: Work, d_query: int, d_output: int) -> Values:
        query = storage_bytes(work.query_tokens * (self.query_heads * d_query), self.query_dtype)
        return query + storage_bytes(work.query_tokens * (self.query_heads * d_output), self.output_dtype)

    def _pair_flops(self, pairs: Bounds[Values], d_sum: int) -> Bounds[Values]:
        each = 2 * self.query_heads * d_sum
        return Bounds(pairs.low * each, pairs.high * each)

    def _read(self, work: Work, elements: int) -> Bounds[Values]:
        """Bytes of the cached tokens read, so many elements each."""
        read = work.kv_read
        if self.chunk_source is ChunkSource.CACHE:
            return Bounds(_stored(read.low, elements, self.kv_dtype), _stored(read.high, elements, self.kv_dtype))
        fresh = _stored(work.query_tokens, elements, self.query_dtype)
        low, high = read.low - work.query_tokens, read.high - work.query_tokens
        return Bounds(fresh + _stored(low, elements, self.kv_dtype), fresh + _stored(high, elements, self.kv_dtype))

    def _standard(self, work: Work) -> _Parts:
        shape = self.shape
        own = self._query_output(work, shape.d_qk, shape.d_v)
        read = self._read(work, self.kv_heads * (shape.d_qk + shape.d_v))
        flops = self._pair_flops(work.pairs, shape.d_qk + shape.d_v)
        return _Parts(flops, Bounds(own + read.low, own + read.high), 0 * work.requests)

    def _absorbed(self, work: Work, latent: LatentShape) -> _Parts:
        """The latent is key and value at once: read once a token for all heads."""
        key = latent.kv_rank + latent.rope
        own = self._query_output(work, key, latent.kv_rank)
        read = self._read(work, key)
        flops = self._pair_flops(work.pairs, key + latent.kv_rank)
        return _Parts(flops, Bounds(own + read.low, own + read.high), 0 * work.requests)

    def _not_absorbed(self, work: Work, latent: LatentShape) -> _Parts:
        """Keys and values of every head, those of cached tokens projected from the latent first."""
        key = latent.nope + latent.rope
        cached = np.maximum(work.kv_tokens - work.query_tokens, 0)
        up = 2 * cached * (latent.kv_rank * self.query_heads * (latent.nope + latent.d_v))
        pairs = self._pair_flops(work.pairs, key + latent.d_v)
        own = self._query_output(work, key, latent.d_v)
        token, expanded = latent.kv_rank + latent.rope, self.query_heads * (key + latent.d_v)
        least = own + _stored(work.kv_read.low, token, self.kv_dtype)
        written_and_read = _stored(2 * cached + work.query_tokens, expanded, self.query_dtype)
        most = own + _stored(work.kv_read.high, token, self.kv_dtype) + written_and_read
        return _Parts(Bounds(pairs.low + up, pairs.high + up), Bounds(least, most), up)

    def _linear(self, work: Work, state: LinearStateShape) -> _Parts:
        """A state of d_k x d_v a value head, read and written once a request, after a short causal convolution."""
        values, keys = self.ranks.query_heads(state.value_heads), self.ranks.query_heads(state.key_heads)
        channels = 2 * keys * state.d_k + values * state.d_v
        past = max(state.conv_kernel - 1, 0) * channels
        convolution = 2 * state.conv_kernel * channels
        each = values * state.d_k * state.d_v
        tokens = work.query_tokens
        flops = Bounds(
            tokens * (_PLAIN_STATE_FLOPS * each + convolution), tokens * (_DELTA_STATE_FLOPS * each + convolution)
        )
        state_dtype = dtype_name(self.precision.state_dtype or self.query_dtype)
        passed = _stored(tokens, channels, self.query_dtype) + _stored(tokens, values * state.d_v, self.output_dtype)

        def moved(reads: Values) -> Values:
            times = reads + work.requests  # each request writes its state back
            return passed + _stored(times, each, state_dtype) + _stored(times, past, self.query_dtype)

        return _Parts(flops, Bounds(moved(work.state_reads.low), moved(work.state_reads.high)), 0 * work.requests)

    def _indexer(self, work: Work) -> tuple[Values, Bounds[Values]]:
        """Scores of every visible token by small heads of their own, whole on every rank, with one key a token."""
        none = 0 * work.requests
        heads, dim = self.shape.indexer_heads, self.shape.indexer_dim
        if self.shape.kind is not AttentionKind.SPARSE_TOPK or heads is None or dim is None:
            return none, Bounds(none, none)
        dtype = dtype_name(self.precision.indexer_dtype)
        queries = _stored(work.query_tokens, heads * dim, self.query_dtype)
        low, high = (queries + _stored(tokens, dim, dtype) for tokens in (work.kv_whole.low, work.kv_whole.high))
        return 2 * work.causal_pairs * (heads * dim), Bounds(low, high)

    def refuse_overflow(self, loads: PhaseColumns) -> None:
        """Raise where a product of these columns might not fit int64, by figures that are no less than any of them."""
        shape, latent, state = self.shape, self.shape.latent, self.shape.state
        requests, query, kv, query_kv, query_query = (
            int(column.max(initial=0))
            for column in (loads.requests, loads.query_tokens, loads.kv_tokens, loads.query_kv, loads.query_query)
        )
        size = shape.topk_tokens or shape.window_tokens or 1
        widths = [shape.d_qk + shape.d_v] + ([2 * latent.kv_rank + latent.rope] if latent else [])
        per_pair = 2 * (shape.query_heads * max(widths) + (shape.indexer_heads or 0) * (shape.indexer_dim or 0))
        per_token = 4 * per_pair * _STORAGE_FACTOR
        projection = 2 * latent.kv_rank * shape.query_heads * (latent.nope + latent.d_v) if latent else 0
        per_state = state.value_heads * state.d_k * state.d_v * _STORAGE_FACTOR if state else 0
        largest = max(
            max(query_kv, query_query) * per_pair + kv * projection,
            kv * per_token,
            (requests + query) * per_state,
            2 * size * (kv + query + requests * size),
            requests * query_query,
            query * query,
        )
        if largest > _INT64_MAX:
            raise UsageError(
                "attention load",
                "A step's sums are so large that its cost may not fit 64 bits.",
                "Use attention_cost() for such steps, whose integers have no limit.",
            )


def _stored(tokens: Values, elements: int, dtype: str) -> Values:
    return storage_bytes(tokens * elements, dtype)


def _cheaper(absorbed: _Parts, expanded: _Parts) -> tuple[_Parts, AttentionForm, Values]:
    """Row by row the form that takes fewer FLOPs, as engines choose it: absorbed for few queries on a long context."""
    choice = np.asarray(absorbed.flops.high < expanded.flops.high)

    def pick(one: Values, other: Values) -> Values:
        return np.where(choice, one, other)

    parts = _Parts(
        Bounds(pick(absorbed.flops.low, expanded.flops.low), pick(absorbed.flops.high, expanded.flops.high)),
        Bounds(pick(absorbed.bytes.low, expanded.bytes.low), pick(absorbed.bytes.high, expanded.bytes.high)),
        pick(absorbed.up_projection, expanded.up_projection),
    )
    form = AttentionForm.MLA_BY_STEP
    if choice.all():
        form = AttentionForm.MLA_ABSORBED
    elif not choice.any():
        form = AttentionForm.MLA_NOT_ABSORBED
    return parts, form, choice.astype(absorbed.flops.high.dtype) * 1


def _check(shape: AttentionShape, causal: bool, form: AttentionForm | None) -> None:
    if not causal and shape.kind is not AttentionKind.FULL:
        raise UsageError(
            f"{shape.kind} attention", "It has a mask, so it cannot be costed without.", "Leave causal on."
        )
    needed = {
        AttentionKind.WINDOW: shape.window_tokens,
        AttentionKind.CHUNKED: shape.window_tokens,
        AttentionKind.SPARSE_TOPK: shape.topk_tokens,
    }
    if shape.kind in needed and not needed[shape.kind]:
        raise UsageError(f"{shape.kind} attention", "Its size is not told.", "Give window_tokens or topk_tokens.")
    if shape.kind is AttentionKind.LINEAR and shape.state is None:
        raise UsageError("linear attention", "The size of its state is not told.", "Give the shape a LinearStateShape.")
    mla = (AttentionForm.MLA_ABSORBED, AttentionForm.MLA_NOT_ABSORBED)
    if form is not None and (form not in mla or shape.latent is None):
        raise UsageError(
            f"form {form}", "It is no form of this layer.", "Give a form of MLA for a layer with a latent."
        )
