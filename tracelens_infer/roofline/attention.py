"""What does one layer's attention cost, in FLOPs and bytes? Arithmetic only, from a step's sums or its requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens_infer.roofline.attention_pricing import Pricing
from tracelens_infer.roofline.attention_types import (
    AttentionCost,
    AttentionForm,
    ChunkSource,
    Phase,
    Precision,
    Ranks,
)
from tracelens_infer.roofline.attention_work import (
    Bounds,
    Int64Array,
    PhaseColumns,
    Values,
    work_of_requests,
    work_of_sums,
)
from tracelens_infer.roofline.model import AttentionKind, AttentionShape
from tracelens_infer.steps.annotation import PhaseLoad

__all__ = [
    "AttentionCost",
    "AttentionForm",
    "Bounds",
    "ChunkSource",
    "Phase",
    "PhaseColumns",
    "Precision",
    "Ranks",
    "attention_cost",
    "attention_cost_columns",
    "attention_cost_of_requests",
    "cached_elements_per_token",
]


def attention_cost(
    load: PhaseLoad,
    shape: AttentionShape,
    phase: Phase,
    *,
    precision: Precision | None = None,
    ranks: Ranks | None = None,
    causal: bool = True,
    shared_prefix_tokens: int = 0,
    mla_form: AttentionForm | None = None,
) -> AttentionCost[int] | None:
    """What does one layer's attention of these requests cost? None where the sums or the layer's kind are unknown.

    Formulas: sections "Attention" of the inference-analysis document and docs/roofline.md. Integers of any size.

    Args:
        load: sums over the phase's requests, each of at least one query token.
        shape: the layer of the whole model.
        phase: whose sums these are.
        precision: how operands are stored; bf16 by default.
        ranks: how attention is spread; one rank by default.
        causal: False for attention without a mask (encoders, kernel benchmarks); for full attention only.
        shared_prefix_tokens: tokens that all requests have in common, read once in the lower bound of the bytes.
        mla_form: MLA_ABSORBED or MLA_NOT_ABSORBED; by default generation and sparse attention are absorbed, and
            context where that takes fewer FLOPs (few query tokens on a long context).

    Raises:
        UsageError: no mask on a layer that has one, a window or latent that is not told, a form that is none of MLA.
    """
    if not load.has_sums or shape.kind is AttentionKind.UNKNOWN:
        return None
    pricing = Pricing(shape, phase, precision or Precision(), ranks or Ranks(), causal, mla_form)
    work = work_of_sums(load, shape, causal=causal, shared_prefix=shared_prefix_tokens, kv_ranks=pricing.kv_ranks)
    return pricing.cost(work, _single)


def attention_cost_columns(
    loads: PhaseColumns,
    shape: AttentionShape,
    phase: Phase,
    *,
    precision: Precision | None = None,
    ranks: Ranks | None = None,
    causal: bool = True,
    shared_prefix_tokens: int = 0,
    mla_form: AttentionForm | None = None,
) -> AttentionCost[Int64Array] | None:
    """What does one layer's attention cost in each of many steps? As :func:`attention_cost`, one row a step.

    Raises UsageError, besides, where a figure would not fit int64: with 32 heads of 128, at SUM N_Q N_KV of 5e14 in a
    step; with DeepSeek-V3's 128 heads, at 3e13.
    """
    if shape.kind is AttentionKind.UNKNOWN:
        return None
    pricing = Pricing(shape, phase, precision or Precision(), ranks or Ranks(), causal, mla_form)
    pricing.refuse_overflow(loads)
    work = work_of_sums(loads, shape, causal=causal, shared_prefix=shared_prefix_tokens, kv_ranks=pricing.kv_ranks)
    return pricing.cost(work, _column)


def attention_cost_of_requests(
    requests: Sequence[tuple[int, int]],
    shape: AttentionShape,
    phase: Phase,
    *,
    precision: Precision | None = None,
    ranks: Ranks | None = None,
    causal: bool = True,
    shared_prefix_tokens: int = 0,
    mla_form: AttentionForm | None = None,
) -> AttentionCost[int] | None:
    """What does one layer's attention of these requests, each (N_Q, N_KV), cost? As :func:`attention_cost`.

    Windows and chunks are exact here. Raises UsageError, besides, where N_Q is not 1 to N_KV.
    """
    if shape.kind is AttentionKind.UNKNOWN:
        return None
    pricing = Pricing(shape, phase, precision or Precision(), ranks or Ranks(), causal, mla_form)
    work = work_of_requests(
        requests, shape, causal=causal, shared_prefix=shared_prefix_tokens, kv_ranks=pricing.kv_ranks
    )
    return pricing.cost(work, _single)


def cached_elements_per_token(shape: AttentionShape, ranks: Ranks | None = None) -> int:
    """How many elements does a token add to this layer's KV cache on a rank? What an indexer caches is not among them.

    0 where the layer caches no tokens of its own: linear attention, and layers that share another's keys and values.
    """
    if shape.kind in (AttentionKind.LINEAR, AttentionKind.UNKNOWN) or shape.shares_kv_with is not None:
        return 0
    if shape.latent is not None:
        return shape.latent.kv_rank + shape.latent.rope
    return (ranks or Ranks()).kv_heads(shape.kv_heads) * (shape.d_qk + shape.d_v)


def _single(values: Values) -> int:
    return int(values[0])


def _column(values: Values) -> Int64Array:
    return values.astype(np.int64, copy=False)
