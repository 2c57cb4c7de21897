"""Which ops compute attention in a serving engine, and where do their shapes tell tokens and requests?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from tracelens_infer.trace.arguments import Shapes

__all__ = ["ATTENTION_OPS", "AttentionOp", "AttentionSize", "Serves", "attention_size"]


class Serves(StrEnum):
    """Whose attention does an op compute?"""

    BOTH = "both"  # prefills and decodes in one call
    CONTEXT = "context"  # an engine that has another op for decodes
    GENERATION = "generation"


@dataclass(frozen=True, slots=True)
class AttentionOp:
    """Where does one op's list of shapes tell what it computes?

    Attributes:
        starts: argument that holds where each request's queries start; it has one entry more than requests.
        lengths: argument with one entry a request.
        serves: whose attention it is.
        query_dims: which dimensions of the first argument, multiplied, are the query tokens.
        padded: the tokens may be rounded up to the size of a captured graph.
        exact: the place is documented or was seen; False for places guessed by the shapes' pattern.
    """

    starts: int | None = None
    lengths: int | None = None
    serves: Serves = Serves.BOTH
    query_dims: tuple[int, ...] = (0,)
    padded: bool = False
    exact: bool = True


# Places as seen in traces of vLLM 0.32 (CPU), vLLM and SGLang (ROCm); those of flash attention from its signatures
# (q, k, v, out, starts ... and q, k, v, k_new, v_new, q_v, out, starts ...).
ATTENTION_OPS: dict[str, AttentionOp] = {
    "_C::cpu_attention_with_kv_cache": AttentionOp(starts=4),
    "vllm::flash_attn_varlen": AttentionOp(starts=3),
    "_vllm_fa2_C::varlen_fwd": AttentionOp(starts=4),
    "_vllm_fa3_C::fwd": AttentionOp(starts=7),
    "sgl_kernel::fwd": AttentionOp(starts=7),
    "aiter::mha_varlen_fwd": AttentionOp(starts=3),
    "aiter::fmha_v3_varlen_fwd": AttentionOp(starts=3),
    "aiter::mha_batch_prefill": AttentionOp(starts=3, serves=Serves.CONTEXT),
    "sgl_kernel::fwd_kvcache_mla": AttentionOp(lengths=3, serves=Serves.GENERATION, query_dims=(0, 1)),
    "aten::scaled_dot_product_attention": AttentionOp(lengths=0, query_dims=(0, 2)),  # [batch, heads, sequence, size]
    # Custom ops around one of those above: total tokens only.
    "vllm::unified_attention": AttentionOp(padded=True),
    "vllm::unified_attention_with_output": AttentionOp(padded=True),
    "vllm::unified_mla_attention": AttentionOp(padded=True),
    "vllm::unified_mla_attention_with_output": AttentionOp(padded=True),
}

_LIKE_ATTENTION = re.compile(r"attention|attn|fmha|flash_?mla", re.IGNORECASE)
_NOT_ATTENTION = re.compile(r"^aten::|cache|metadata|norm|backward", re.IGNORECASE)  # cpu_attn_reshape_and_cache ...
_QUERY_RANK = 3  # [tokens, heads, size]


@dataclass(frozen=True, slots=True)
class AttentionSize:
    """How many query tokens and requests does a call of an attention op serve? ``requests`` is None if it is untold."""

    tokens: int
    requests: int | None
    serves: Serves
    padded: bool
    exact: bool


def attention_size(name: str, shapes: Shapes) -> AttentionSize | None:
    """What does this call of an op compute? None where it is no attention, or its shapes do not tell.

    Ops that are not known but called like one are read by pattern: the first argument is the query, and the first two
    vectors that follow one another with lengths n+1 and n, or n+1 twice, are starts and lengths of n requests.
    """
    op = ATTENTION_OPS.get(name)
    if op is None and _LIKE_ATTENTION.search(name) and not _NOT_ATTENTION.search(name):
        op = AttentionOp(starts=_starts_by_pattern(shapes), padded=True, exact=False)
    if op is None or not shapes or len(shapes[0]) < max(*op.query_dims, _QUERY_RANK - 1) + 1:
        return None
    tokens = prod(shapes[0][dim] for dim in op.query_dims)
    requests = None
    if op.starts is not None:
        starts = _size(shapes, op.starts)
        requests = starts - 1 if starts else None
    elif op.lengths is not None:
        requests = _size(shapes, op.lengths)
    return AttentionSize(tokens, requests or None, op.serves, op.padded, op.exact) if tokens else None


def _size(shapes: Shapes, argument: int) -> int | None:
    return shapes[argument][0] if argument < len(shapes) and shapes[argument] else None


def _starts_by_pattern(shapes: Shapes) -> int | None:
    for place in range(1, len(shapes) - 1):
        one, other = shapes[place], shapes[place + 1]
        if len(one) == len(other) == 1 and one[0] > 1 and 0 <= one[0] - other[0] <= 1:
            return place
    return None
