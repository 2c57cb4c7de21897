"""ModelShape: the sizes of a model that decide how many FLOPs and bytes a step costs, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tracelens_infer.notes import Note

__all__ = [
    "AttentionKind",
    "AttentionShape",
    "LatentShape",
    "LayerGroup",
    "LayerShape",
    "LinearStateShape",
    "MlpShape",
    "ModelShape",
    "MoeShape",
]


class AttentionKind(StrEnum):
    """Which of the cached tokens does a layer's query attend to?"""

    FULL = "full"
    WINDOW = "window"  # the last W tokens, its own among them
    CHUNKED = "chunked"  # those of its own chunk of W tokens, up to itself
    SPARSE_TOPK = "sparse_topk"  # the K that an indexer picks
    LINEAR = "linear"  # none: a state of fixed size stands for the past (linear attention, SSM)
    UNKNOWN = "unknown"  # not told: left out of sums


@dataclass(frozen=True, slots=True)
class LatentShape:
    """How does multi-head latent attention (MLA) split a head, and what does it cache?

    A cached token is ``kv_rank + rope`` elements, once for all heads. Not absorbed, a query-key head has
    ``nope + rope`` elements and a value head ``d_v``.

    Attributes:
        kv_rank: elements of the compressed keys and values (512 for DeepSeek-V3).
        rope: elements of the key that carry the position, shared by all heads (64).
        nope: elements of each head's key without position (128).
        d_v: elements of each head's value (128).
        q_rank: elements of the compressed query; None where queries are projected directly.
    """

    kv_rank: int
    rope: int
    nope: int
    d_v: int
    q_rank: int | None


@dataclass(frozen=True, slots=True)
class LinearStateShape:
    """How large is the state that a linear-attention (or SSM) layer reads and writes once a request?

    The state is ``value_heads * d_k * d_v`` elements; a causal convolution before it keeps the last
    ``conv_kernel - 1`` inputs of the query, key and value channels.
    """

    key_heads: int
    value_heads: int
    d_k: int
    d_v: int
    conv_kernel: int


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What does one layer's attention look like, for the whole model (not a rank's share of it)?

    Attributes:
        kind: which cached tokens a query attends to.
        query_heads, kv_heads: heads of the queries, and of the cached keys and values. MLA: kv_heads equals
            query_heads, and ``latent`` tells what is cached.
        d_qk, d_v: elements of a head's query and key, and of its value.
        window_tokens: the window of WINDOW, the chunk of CHUNKED.
        topk_tokens, indexer_heads, indexer_dim: of SPARSE_TOPK.
        latent: of MLA.
        state: of LINEAR.
        shares_kv_with: the layer whose cached keys and values this one reads instead of its own.
    """

    kind: AttentionKind
    query_heads: int
    kv_heads: int
    d_qk: int
    d_v: int
    window_tokens: int | None = None
    topk_tokens: int | None = None
    indexer_heads: int | None = None
    indexer_dim: int | None = None
    latent: LatentShape | None = None
    state: LinearStateShape | None = None
    shares_kv_with: int | None = None


@dataclass(frozen=True, slots=True)
class MlpShape:
    """How large is a dense feed-forward block? Three matrices where it is gated, else two."""

    intermediate: int
    gated: bool = True


@dataclass(frozen=True, slots=True)
class MoeShape:
    """How large is a mixture of experts?

    Attributes:
        experts, experts_per_token: routed experts, and how many of them a token visits.
        intermediate: width of one routed expert.
        shared_intermediate: width of all experts together that every token visits; 0 without.
        gated: three matrices an expert, else two.
    """

    experts: int
    experts_per_token: int
    intermediate: int
    shared_intermediate: int = 0
    gated: bool = True


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What does one layer consist of? ``mlp`` is None where it has no feed-forward block, or none is told."""

    attention: AttentionShape
    mlp: MlpShape | MoeShape | None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Which layers have the same attention? Their cost is computed once and counted ``len(layers)`` times."""

    attention: AttentionShape
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """How large is a model, layer by layer?

    Attributes:
        name, source: what it is called, and where the figures come from.
        hidden, vocab: width of the residual stream, and entries of the vocabulary.
        layers: in order; layers of a draft model are not among them.
        weight_dtype: how weights are stored. This and the other dtypes are names of roofline.dtypes.
        kv_dtype: how the KV cache is stored; the activations' dtype unless told otherwise.
        activation_dtype: what the layers pass on.
        moe_dtype: how experts' weights are stored, where that differs from the other weights; else None.
        draft_layers: layers that predict further tokens (MTP), counted apart.
        tied_embeddings: whether the output layer reuses the embedding.
        notes: what was missing or assumed.
    """

    name: str
    source: str
    hidden: int
    vocab: int
    layers: tuple[LayerShape, ...]
    weight_dtype: str
    kv_dtype: str
    activation_dtype: str
    moe_dtype: str | None
    draft_layers: int = 0
    tied_embeddings: bool = False
    notes: tuple[Note, ...] = ()

    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """Which layers have equal attention? In order of first appearance."""
        members: dict[AttentionShape, list[int]] = {}
        for index, layer in enumerate(self.layers):
            members.setdefault(layer.attention, []).append(index)
        return tuple(LayerGroup(attention, tuple(layers)) for attention, layers in members.items())
