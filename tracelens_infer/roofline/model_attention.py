"""Which attention does each layer of a config.json have: kind, heads, head sizes, window, latent, state?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracelens_infer.notes import Note
from tracelens_infer.roofline.model import AttentionKind, AttentionShape, LatentShape, LinearStateShape
from tracelens_infer.roofline.model_fields import ConfigFields

__all__ = ["layer_attention"]

# layer_types (transformers), layers_block_type (Jamba, Bamba, Zamba), and the letters of pattern texts.
_KIND_OF_NAME = {
    "full_attention": AttentionKind.FULL,
    "attention": AttentionKind.FULL,
    "global": AttentionKind.FULL,
    "g": AttentionKind.FULL,
    "sliding_attention": AttentionKind.WINDOW,
    "sliding_window": AttentionKind.WINDOW,
    "local": AttentionKind.WINDOW,
    "l": AttentionKind.WINDOW,
    "chunked_attention": AttentionKind.CHUNKED,
    "linear_attention": AttentionKind.LINEAR,
    "mamba": AttentionKind.LINEAR,
    "mamba2": AttentionKind.LINEAR,
}

# Gemma 2's and gpt-oss' classes alternate window and full layers without a field that says so.
_PATTERN_OF_TYPE = {"gemma2": 2, "gpt_oss": 2}
_LLAMA4_NOPE_INTERVAL = 4  # Llama 4's class: every fourth layer has no rotary positions and sees everything

_QUERY_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "num_query_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")


@dataclass(frozen=True, slots=True)
class _Heads:
    query: list[int]
    kv: list[int]
    d_qk: list[int]
    d_v: list[int]


def layer_attention(fields: ConfigFields, layers: int, hidden: int) -> tuple[list[AttentionShape], list[Note]]:
    """What is each layer's attention, and what had to be assumed?

    Raises InputError where the heads are not told or a list does not fit the number of layers.
    """
    notes: list[Note] = []
    kinds, windows = _kinds(fields, layers), _windows(fields, layers)
    latent = _latent(fields)
    heads = _heads(fields, layers, hidden, kinds, latent, notes)
    shapes = []
    for i, kind in enumerate(kinds):
        if kind in (AttentionKind.WINDOW, AttentionKind.CHUNKED) and windows[i] is None:
            kind = AttentionKind.UNKNOWN
        base = AttentionShape(kind, heads.query[i], heads.kv[i], heads.d_qk[i], heads.d_v[i])
        shapes.append(_completed(base, fields, windows[i], latent))
    unknown = sum(shape.kind is AttentionKind.UNKNOWN for shape in shapes)
    if unknown:
        text = f"The attention of {unknown} of {layers} layers is of no known kind, so they are left out of sums."
        notes.append(Note("warning", "layer_kind_unknown", text, unknown))
    return _sharing(fields, shapes), notes


def _kinds(fields: ConfigFields, layers: int) -> list[AttentionKind]:
    """By the first of the ways that configs tell it: names, an interval, chunks, an indexer, windows."""
    numbers = range(layers)
    names = fields.texts("layer_types", "layers_block_type", "attention_types")
    if names is not None:
        if len(names) < layers:
            raise fields.error(f"It names the types of {len(names)} layers, but has {layers}.")
        kinds = [_KIND_OF_NAME.get(name.lower(), AttentionKind.UNKNOWN) for name in names[:layers]]
        return [_sparse_if_indexed(fields, kind) for kind in kinds]
    every = fields.whole("full_attention_interval")
    if every:
        return [AttentionKind.LINEAR if (i + 1) % every else AttentionKind.FULL for i in numbers]
    types = fields.wholes("attn_type_list")  # MiniMax: 0 is lightning attention, whose state is not told
    if types and len(types) >= layers:
        return [AttentionKind.FULL if types[i] == 1 else AttentionKind.UNKNOWN for i in numbers]
    if fields.text("hybrid_override_pattern") is not None:  # Nemotron-H: blocks of one kind each, not layers
        return [AttentionKind.UNKNOWN] * layers
    if fields.has("attention_chunk_size"):
        return _chunked(fields, layers)
    if fields.has("index_topk"):
        return [AttentionKind.SPARSE_TOPK] * layers
    return _windowed(fields, layers)


def _sparse_if_indexed(fields: ConfigFields, kind: AttentionKind) -> AttentionKind:
    return AttentionKind.SPARSE_TOPK if kind is AttentionKind.FULL and fields.has("index_topk") else kind


def _chunked(fields: ConfigFields, layers: int) -> list[AttentionKind]:
    rotary = fields.wholes("no_rope_layers")  # Llama 4: 1 where a layer has rotary positions, and then its chunk only
    if not rotary:
        every = fields.whole("no_rope_layer_interval") or _LLAMA4_NOPE_INTERVAL
        rotary = [int((i + 1) % every != 0) for i in range(layers)]
    if len(rotary) < layers:
        raise fields.error(f"Its no_rope_layers has {len(rotary)} entries for {layers} layers.")
    return [AttentionKind.CHUNKED if flag else AttentionKind.FULL for flag in rotary[:layers]]


def _windowed(fields: ConfigFields, layers: int) -> list[AttentionKind]:
    full, window = AttentionKind.FULL, AttentionKind.WINDOW
    per_layer = fields.each(layers, "sliding_window", "sliding_window_size", "window_size")
    if fields.flag("use_sliding_window") is False or not any(per_layer):
        return [full] * layers
    letters = fields.text("sliding_window_pattern")
    if letters:
        known = [_KIND_OF_NAME.get(letter.lower(), AttentionKind.UNKNOWN) for letter in letters]
        return [known[i % len(known)] for i in range(layers)]
    marks = fields.wholes("hybrid_layer_pattern")  # MiMo: 1 marks a windowed layer
    if marks and len(marks) >= layers:
        return [window if marks[i] else full for i in range(layers)]
    every = fields.whole("sliding_window_pattern", "_sliding_window_pattern")
    every = every or _PATTERN_OF_TYPE.get(fields.text("model_type") or "")
    if every:
        return [window if (i + 1) % every else full for i in range(layers)]
    first = fields.whole("max_window_layers") if fields.flag("use_sliding_window") else None
    return [window if size and i >= (first or 0) else full for i, size in enumerate(per_layer)]


def _windows(fields: ConfigFields, layers: int) -> list[int | None]:
    chunk = fields.whole("attention_chunk_size")
    if chunk:
        return [chunk] * layers
    return [size or None for size in fields.each(layers, "sliding_window", "sliding_window_size", "window_size")]


def _latent(fields: ConfigFields) -> LatentShape | None:
    rank = fields.whole("kv_lora_rank")
    if not rank:
        return None
    rope, nope = fields.required("qk_rope_head_dim"), fields.required("qk_nope_head_dim")
    return LatentShape(rank, rope, nope, fields.required("v_head_dim"), fields.whole("q_lora_rank"))


def _heads(
    fields: ConfigFields,
    layers: int,
    hidden: int,
    kinds: list[AttentionKind],
    latent: LatentShape | None,
    notes: list[Note],
) -> _Heads:
    query = [_positive(fields, value, _QUERY_HEADS[0]) for value in fields.each(layers, *_QUERY_HEADS)]
    if latent is not None:
        sizes = [latent.nope + latent.rope] * layers
        return _Heads(query, query, sizes, [latent.d_v] * layers)
    kv_told = fields.each(layers, *_KV_HEADS)
    if fields.flag("multi_query") and not fields.has(*_KV_HEADS):
        kv_told = [1] * layers
    if None in kv_told and set(kinds) != {AttentionKind.LINEAR}:
        text = "The config does not tell the number of KV heads; as many as query heads are assumed."
        notes.append(Note("warning", "kv_heads_assumed", text))
    sizes_told = fields.each(layers, "head_dim", "kv_channels", "attention_head_size")
    if None in sizes_told:
        text = "The config has no head_dim; hidden size / query heads is assumed."
        notes.append(Note("info", "head_dim_assumed", text))
    sizes = [told or hidden // heads for told, heads in zip(sizes_told, query, strict=True)]
    values = [told or size for told, size in zip(fields.each(layers, "v_head_dim"), sizes, strict=True)]
    heads = _Heads(query, [told or q for told, q in zip(kv_told, query, strict=True)], sizes, values)
    return _by_kind(fields, kinds, heads)


def _by_kind(fields: ConfigFields, kinds: list[AttentionKind], heads: _Heads) -> _Heads:
    """Some models give their windowed (MiMo) or their full layers (Gemma 4) heads of other sizes."""
    prefixes = {
        AttentionKind.WINDOW: ("swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads"),
        AttentionKind.FULL: ("global_head_dim", "global_head_dim", "", "num_global_key_value_heads"),
    }
    for i, kind in enumerate(kinds):
        if kind in prefixes:
            size, value, query, kv = (fields.whole(key) for key in prefixes[kind])
            heads.d_qk[i], heads.d_v[i] = size or heads.d_qk[i], value or heads.d_v[i]
            heads.query[i], heads.kv[i] = query or heads.query[i], kv or heads.kv[i]
    return heads


def _positive(fields: ConfigFields, value: int | None, key: str) -> int:
    if value is None or value <= 0:
        raise fields.error(f"Its {key} is not told for every layer.")
    return value


def _completed(
    shape: AttentionShape, fields: ConfigFields, window: int | None, latent: LatentShape | None
) -> AttentionShape:
    if shape.kind is AttentionKind.LINEAR:
        state = _state(fields)
        if state is None:
            return replace(shape, kind=AttentionKind.UNKNOWN)
        return AttentionShape(shape.kind, state.value_heads, state.key_heads, state.d_k, state.d_v, state=state)
    if shape.kind in (AttentionKind.WINDOW, AttentionKind.CHUNKED):
        shape = replace(shape, window_tokens=window)
    elif shape.kind is AttentionKind.SPARSE_TOPK:
        heads, dim = fields.whole("index_n_heads"), fields.whole("index_head_dim")
        topk = fields.required("index_topk")
        shape = replace(shape, topk_tokens=topk, indexer_heads=heads, indexer_dim=dim)
    return replace(shape, latent=latent)


def _state(fields: ConfigFields) -> LinearStateShape | None:
    """The state of gated delta nets (Qwen3-Next), or of Mamba 2, where groups play the key heads' part."""
    values = fields.whole("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads")
    keys = fields.whole("linear_num_key_heads", "mamba_n_groups", "n_groups")
    d_k = fields.whole("linear_key_head_dim", "mamba_d_state", "ssm_state_size")
    d_v = fields.whole("linear_value_head_dim", "mamba_d_head", "mamba_head_dim")
    kernel = fields.whole("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel")
    if values is None or keys is None or d_k is None or d_v is None or kernel is None:
        return None
    return LinearStateShape(keys, values, d_k, d_v, kernel)


def _sharing(fields: ConfigFields, shapes: list[AttentionShape]) -> list[AttentionShape]:
    """Layers that read another's keys and values: the last ones of Gemma 3n, all but each group's first with CLA."""
    shared = fields.whole("num_kv_shared_layers") or 0
    factor = (fields.whole("cla_share_factor") or 1) if fields.flag("use_cla") else 1
    owners = len(shapes) - shared
    result = list(shapes)
    for i, shape in enumerate(shapes):
        if i >= owners:
            same = [j for j in range(owners) if shapes[j].kind is shape.kind]
            result[i] = replace(shape, shares_kv_with=same[-1]) if same else shape
        elif factor > 1 and i % factor:
            result[i] = replace(shape, shares_kv_with=i - i % factor)
    return result
