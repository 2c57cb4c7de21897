"""What does a step cost beside attention? Projections, feed-forward, experts, norms, output layer, collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens_infer.roofline.attention import Ranks, cached_elements_per_token
from tracelens_infer.roofline.dtypes import multiply_dtype, storage_bits
from tracelens_infer.roofline.model import (
    AttentionKind,
    AttentionShape,
    LayerShape,
    MlpShape,
    ModelShape,
    MoeShape,
)

__all__ = ["PartCost", "Spread", "linear_parts", "touched_experts"]

FloatArray: TypeAlias = npt.NDArray[np.float64]

_BITS = 8
_GATED, _PLAIN = 3, 2  # matrices of a feed-forward block
_NORMS = 2  # a layer
_NORM_PASSES = 4  # the residual and the block's output in, the sum and its norm out
_ALL_REDUCES = 2  # a layer: after attention and after the feed-forward block
_THERE_AND_BACK = 2


@dataclass(frozen=True, slots=True)
class Spread:
    """Over how many ranks is a model spread? ``ranks``: attention and dense layers; ``expert_parallel``: experts."""

    ranks: Ranks
    expert_parallel: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class PartCost:
    """What does one part of a step cost on one rank, all of its layers together? float64 columns, one row a step.

    Exact up to 2^53; a step's FLOPs are far from needing its last digit.

    Attributes:
        name: qkv, attention_output, mlp, experts, lm_head ...
        times: layers that have the part: they run one after the other.
        dtype: of the multiplication.
        flops: multiplications and additions.
        bytes_low: the least that must be read and written: of experts only those that one token visits.
        bytes: what is to be expected.
        link_bytes: sent to other ranks.
    """

    name: str
    times: int
    dtype: str
    flops: FloatArray
    bytes_low: FloatArray
    bytes: FloatArray
    link_bytes: FloatArray


def touched_experts(tokens: FloatArray, experts: int, visited: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How many distinct experts do so many tokens visit? At least, to be expected, at most; all 0 without tokens.

    docs/roofline.md: [k, min(E, k T)], and E (1 - (1 - k/E)^T) where tokens choose independently.
    """
    some = tokens > 0
    expected = experts * (1 - (1 - visited / experts) ** tokens)
    return np.where(some, visited, 0.0), np.where(some, expected, 0.0), np.minimum(experts, visited * tokens)


def linear_parts(
    model: ModelShape, tokens: FloatArray, rows_low: FloatArray, rows: FloatArray, spread: Spread
) -> tuple[PartCost, ...]:
    """What does the rest of a step cost?

    ``tokens`` are the step's query tokens, ``rows`` (at least ``rows_low``) those that the output layer computes.

    Weights are read once a step, whatever the tokens; a step without tokens costs nothing.
    """
    builder = _Builder(model, np.asarray(tokens, dtype=np.float64), spread)
    parts = [builder.moved("embedding", 1, 2 * builder.tokens * model.hidden * builder.activation_bytes)]
    for layer, times in Counter(model.layers).items():
        parts += builder.layer(layer, times)
    parts.append(builder.product("lm_head", 1, model.hidden, -(-model.vocab // builder.tensor), rows, rows_low))
    if builder.tensor > 1:
        gathered = (builder.tensor - 1) / builder.tensor * rows * model.vocab * builder.activation_bytes
        parts.append(builder.sent("logits_all_gather", 1, gathered))
    return tuple(parts)


class _Builder:
    """One model's parts for one column of tokens."""

    def __init__(self, model: ModelShape, tokens: FloatArray, spread: Spread) -> None:
        self.model, self.tokens, self.spread = model, tokens, spread
        self.tensor = spread.ranks.tensor_parallel
        self.heads = spread.ranks.head_ranks
        self.activation_bytes = float(storage_bits(model.activation_dtype)) / _BITS
        self.runs = (tokens > 0).astype(np.float64)

    def layer(self, layer: LayerShape, times: int) -> Iterator[PartCost]:
        """The parts of layers of one shape."""
        hidden = self.model.hidden
        passes = _NORMS * _NORM_PASSES * self.tokens * hidden * self.activation_bytes
        yield self.moved("norms", times, passes)
        yield from self._projections(layer.attention, times)
        kv_bytes = float(storage_bits(self.model.kv_dtype)) / _BITS
        cached = cached_elements_per_token(layer.attention, self.spread.ranks)
        yield self.moved("kv_write", times, self.tokens * cached * kv_bytes)
        if isinstance(layer.mlp, MoeShape):
            yield from self._experts(layer.mlp, times)
        elif isinstance(layer.mlp, MlpShape):
            yield from self._mlp("mlp", times, layer.mlp.intermediate, gated=layer.mlp.gated)
        if self.tensor > 1:
            reduced = _ALL_REDUCES * 2 * (self.tensor - 1) / self.tensor * self.tokens * hidden * self.activation_bytes
            yield self.sent("all_reduce", times, reduced)

    def _projections(self, shape: AttentionShape, times: int) -> Iterator[PartCost]:
        hidden, ranks = self.model.hidden, self.spread.ranks
        if shape.kind is AttentionKind.LINEAR and shape.state is not None:
            state = shape.state
            keys, values = state.key_heads * state.d_k, state.value_heads * state.d_v
            width = 2 * keys + 2 * values + 2 * state.value_heads  # q, k, v, the output's gate, and two gates a head
            yield self.product("linear_attention_input", times, hidden, -(-width // self.heads))
            yield self.product("attention_output", times, -(-values // self.heads), hidden)
            return
        heads = ranks.query_heads(shape.query_heads)
        if shape.latent is not None:
            latent = shape.latent
            query = heads * (latent.nope + latent.rope)
            if latent.q_rank is not None:
                yield self.product("query_down", times, hidden, latent.q_rank)
                yield self.product("query_up", times, latent.q_rank, query)
            else:
                yield self.product("query", times, hidden, query)
            yield self.product("kv_down", times, hidden, latent.kv_rank + latent.rope)
            yield self.product("kv_up", times, latent.kv_rank, heads * (latent.nope + latent.d_v))
            yield self.product("attention_output", times, heads * latent.d_v, hidden)
            return
        kv_heads = 0 if shape.shares_kv_with is not None else ranks.kv_heads(shape.kv_heads)
        yield self.product("qkv", times, hidden, heads * shape.d_qk + kv_heads * (shape.d_qk + shape.d_v))
        yield self.product("attention_output", times, heads * shape.d_v, hidden)

    def _mlp(self, name: str, times: int, intermediate: int, *, gated: bool) -> Iterator[PartCost]:
        width = -(-intermediate // self.tensor)
        yield self.product(f"{name}_up", times, self.model.hidden, (2 if gated else 1) * width)
        yield self.product(f"{name}_down", times, width, self.model.hidden)

    def _experts(self, moe: MoeShape, times: int) -> Iterator[PartCost]:
        hidden, model, parallel = self.model.hidden, self.model, self.spread.expert_parallel
        yield self.product("router", times, hidden, moe.experts)
        width = moe.intermediate if parallel > 1 else -(-moe.intermediate // self.tensor)
        matrices = _GATED if moe.gated else _PLAIN
        dtype = model.moe_dtype or model.weight_dtype
        weights = matrices * hidden * width * float(storage_bits(dtype)) / _BITS
        low, expected, _ = touched_experts(self.tokens, moe.experts, moe.experts_per_token)
        visits = self.tokens * moe.experts_per_token / parallel
        moved = visits * (2 * hidden + matrices * width) * self.activation_bytes
        flops = 2 * visits * matrices * hidden * width
        nothing = np.zeros_like(flops)
        multiplied = multiply_dtype(model.activation_dtype, dtype)
        # Tokens may all visit experts of other ranks.
        least = low // parallel * weights
        yield PartCost(
            "experts",
            times,
            multiplied,
            times * flops,
            times * least,
            times * (expected / parallel * weights + moved),
            nothing,
        )
        if moe.shared_intermediate:
            yield from self._mlp("shared_experts", times, moe.shared_intermediate, gated=moe.gated)
        if parallel > 1:
            each_way = visits * parallel * hidden * self.activation_bytes * (parallel - 1) / parallel / parallel
            yield self.sent("all_to_all", times, _THERE_AND_BACK * each_way)

    def product(
        self,
        name: str,
        times: int,
        inputs: int,
        outputs: int,
        rows: FloatArray | None = None,
        rows_low: FloatArray | None = None,
    ) -> PartCost:
        """A product with a weight of ``inputs`` times ``outputs``; rows are the tokens unless told otherwise."""
        rows = self.tokens if rows is None else rows
        rows_low = rows if rows_low is None else rows_low
        weights = inputs * outputs * float(storage_bits(self.model.weight_dtype)) / _BITS
        moved = (inputs + outputs) * self.activation_bytes
        dtype = multiply_dtype(self.model.activation_dtype, self.model.weight_dtype)
        return PartCost(
            name,
            times,
            dtype,
            times * 2.0 * rows_low * inputs * outputs,
            times * ((rows_low > 0) * weights + rows_low * moved),
            times * ((rows > 0) * weights + rows * moved),
            np.zeros_like(rows, dtype=np.float64),
        )

    def moved(self, name: str, times: int, moved: FloatArray) -> PartCost:
        """A part that reads and writes, and computes next to nothing. Fused or cached it may move nothing at all."""
        nothing = np.zeros_like(moved)
        return PartCost(name, times, self.model.activation_dtype, nothing, nothing, times * moved, nothing)

    def sent(self, name: str, times: int, sent: FloatArray) -> PartCost:
        """A part that sends to other ranks."""
        nothing = np.zeros_like(sent)
        return PartCost(name, times, self.model.activation_dtype, nothing, nothing, nothing, times * sent)
