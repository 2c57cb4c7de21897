"""What attention is costed by (phase, number formats, ranks), and the type of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from tracelens_infer.errors import UsageError
from tracelens_infer.roofline.attention_work import Bounds
from tracelens_infer.roofline.dtypes import multiply_dtype
from tracelens_infer.roofline.model import AttentionKind

__all__ = ["AttentionCost", "AttentionForm", "ChunkSource", "Phase", "Precision", "Ranks"]

N = TypeVar("N")


class Phase(StrEnum):
    """Do the requests prefill or decode?"""

    CONTEXT = "context"
    GENERATION = "generation"


class AttentionForm(StrEnum):
    """By which algorithm is the cost counted?"""

    STANDARD = "standard"
    MLA_ABSORBED = "mla_absorbed"  # queries are projected to the latent, which is read as it is cached
    MLA_NOT_ABSORBED = "mla_not_absorbed"  # the cached latent is projected up to every head's keys and values
    MLA_BY_STEP = "mla_by_step"  # columns whose rows differ: see AttentionCost.absorbed
    LINEAR_STATE = "linear_state"


class ChunkSource(StrEnum):
    """Where does a context kernel read the keys and values of the current chunk?"""

    CACHE = "cache"  # written to the KV cache first and read from there, at the KV dtype
    FRESH = "fresh"  # as the projections leave them, at the query dtype


@dataclass(frozen=True, slots=True)
class Precision:
    """How are the operands stored?

    Attributes:
        query_dtype: of queries and, unless ``output_dtype`` says otherwise, the output.
        kv_dtype: of the KV cache.
        chunk_source: where a context kernel reads the current chunk. MLA that is not absorbed always reads it fresh,
            sparse attention always from the cache.
        output_dtype: of the output, where it differs (fp8 queries with a bf16 output).
        state_dtype: of a linear-attention layer's state; engines may keep it wider than the activations.
        indexer_dtype: of the keys that a top-k indexer has cached (fp8 in DeepSeek-V3.2's kernels).
    """

    query_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    chunk_source: ChunkSource = ChunkSource.CACHE
    output_dtype: str | None = None
    state_dtype: str | None = None
    indexer_dtype: str = "fp8"

    @property
    def multiply_dtype(self) -> str:
        """Whose peak rate counts? fp8 only where queries and KV cache both are fp8."""
        return multiply_dtype(self.query_dtype, self.kv_dtype)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Over how many ranks is attention spread, and how?

    Attributes:
        tensor_parallel: ranks that share a layer. Each has H_Q / TP query heads and max(1, H_KV // TP) KV heads; an MLA
            latent is whole on every rank.
        decode_context_parallel: ranks among these that share the context of a decoding request, token by token: each
            reads its part of SUM(N_KV). The FLOPs of a rank stay, as it computes its peers' heads on its part; the
            exchange of queries and outputs is a collective. Context phases are not affected.
        attention_data_parallel: groups among these that have requests of their own, whole heads (SGLang's and
            TensorRT-LLM's attention DP): the load is that of all groups and the cost the mean of one group's ranks.
            Leave it at 1, and give ``tensor_parallel`` without these groups, for loads that a rank's own label tells.
    """

    tensor_parallel: int = 1
    decode_context_parallel: int = 1
    attention_data_parallel: int = 1

    def __post_init__(self) -> None:
        sizes = (self.tensor_parallel, self.decode_context_parallel, self.attention_data_parallel)
        if min(sizes) < 1:
            raise UsageError("ranks", "A number of ranks is less than 1.", "Give 1 for what is not spread.")
        groups = self.attention_data_parallel
        if self.tensor_parallel > 1 and self.tensor_parallel % groups:
            reason = f"{self.tensor_parallel} ranks do not divide into {groups} groups with requests of their own."
            raise UsageError("ranks", reason, "Give a tensor_parallel that is a multiple of attention_data_parallel.")

    @property
    def head_ranks(self) -> int:
        """Over how many ranks are the heads of one request spread?"""
        return max(1, self.tensor_parallel // self.attention_data_parallel)

    def query_heads(self, heads: int) -> int:
        """How many of so many query heads does a rank have?"""
        return -(-heads // self.head_ranks)

    def kv_heads(self, heads: int) -> int:
        """How many of so many KV heads does a rank have? With fewer heads than ranks each rank has one."""
        return max(1, heads // self.head_ranks)


@dataclass(frozen=True, slots=True)
class AttentionCost(Generic[N]):
    """What does one layer's attention of one phase cost on one rank? N is int, or an int64 array of one row a step.

    Attributes:
        phase, kind, form: what was counted, and by which algorithm.
        absorbed: 1 where the MLA is absorbed, else 0.
        document_flops, document_bytes: the formulas of the TraceLens document as printed, without window or latent;
            None for a linear-attention layer, which has no N_KV.
        flops: multiplications and additions of the unmasked pairs, exact causal ones. Holds the two parts below.
        up_projection_flops: of these, the projection of the cached latent to keys and values.
        indexer_flops: of these, the scores of a top-k indexer.
        bytes: queries, output, and cached keys and values read. The lower bound reads a shared prefix once; the upper
            bound once a request. MLA that is not absorbed: from the latent alone to keys and values that are
            written and read again.
        indexer_bytes: of these, the indexer's; the upper bound's figure.
        pairs: query-key pairs of all requests, before ranks.
        kv_read_tokens: cached tokens read on a rank; the current ones are among them.
        chunk_source: where the current chunk's keys and values are read; None in generation, which reads the cache.
        multiply_dtype: whose peak rate to compare with.
    """

    phase: Phase
    kind: AttentionKind
    form: AttentionForm
    absorbed: N
    document_flops: N | None
    document_bytes: N | None
    flops: Bounds[N]
    bytes: Bounds[N]
    up_projection_flops: N
    indexer_flops: N
    indexer_bytes: N
    pairs: Bounds[N]
    kv_read_tokens: Bounds[N]
    chunk_source: ChunkSource | None
    multiply_dtype: str

    @property
    def exact(self) -> bool:
        """Are FLOPs and bytes single figures rather than bounds?"""
        return self.flops.exact and self.bytes.exact
