"""What can be priced without a model's config: attention of the size that the trace's op shapes tell."""

from __future__ import annotations

from tracelens_infer.notes import Note
from tracelens_infer.roofline.attention_types import Ranks
from tracelens_infer.roofline.model import AttentionKind, AttentionShape, LayerShape, ModelShape
from tracelens_infer.roofline.model_from_shapes import ObservedShape

__all__ = ["UNTOLD", "observed_model"]

UNTOLD = 0
"""Hidden size and vocabulary of a model whose op shapes tell its attention only: the rest of a step has no price."""


def observed_model(observed: ObservedShape, ranks: Ranks) -> ModelShape | None:
    """The model's attention as the trace shows it; None unless heads, head sizes and layers are all told.

    Shapes are those of one rank, so heads are multiplied by the ranks again. No shape tells a window: full attention
    is assumed, and the note says so.
    """
    sizes = (observed.query_heads, observed.kv_heads, observed.d_qk, observed.d_v, observed.layers)
    if None in sizes:
        return None
    query_heads, kv_heads, d_qk, d_v, layers = (size for size in sizes if size is not None)
    spread = ranks.head_ranks
    shape = AttentionShape(AttentionKind.FULL, query_heads * spread, kv_heads * spread, d_qk, d_v)
    text = "No model was given: attention is taken as the op shapes tell it, full and without a window, in bf16."
    return ModelShape(
        name=f"unknown ({layers} layers, {query_heads}/{kv_heads} heads of {d_qk} a rank, from op shapes)",
        source=observed.op or "op shapes",
        hidden=UNTOLD,
        vocab=UNTOLD,
        layers=(LayerShape(shape, None),) * layers,
        weight_dtype="bf16",
        kv_dtype="bf16",
        activation_dtype="bf16",
        moe_dtype=None,
        notes=(Note("warning", "attention_from_op_shapes", text),),
    )
