"""ModelShape from a Hugging Face config.json: a file, a mapping, or the name of a config that comes with us."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

from tracelens_infer.errors import InputError, UsageError
from tracelens_infer.notes import Note
from tracelens_infer.roofline.model import AttentionKind, AttentionShape, LayerShape, MlpShape, ModelShape, MoeShape
from tracelens_infer.roofline.model_attention import layer_attention
from tracelens_infer.roofline.model_fields import MOST_LAYERS, ConfigFields
from tracelens_infer.roofline.model_quantization import model_dtypes

__all__ = ["load_model", "model_from_config", "model_from_file", "shipped_models"]

_CONFIG_FILE = "config.json"
_SOURCE_KEY = "_source"
_MAX_CONFIG_BYTES = 64 * 1024 * 1024  # published ones have less than 1 MB; anything near this is no config

# Words after a model's name that do not change its sizes. A date or a version may follow, too.
_SAME_SIZES = frozenset({"instruct", "base", "chat", "it", "thinking", "hf", "preview", "exp"})
# Words that say how the weights of that upload are stored.
_STORED = {
    "fp8": "fp8",
    "awq": "int4",
    "gptq": "int4",
    "int4": "int4",
    "int8": "int8",
    "bf16": "bf16",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
}
_COMPANY = "meta-"  # Meta-Llama-3.1-8B is Llama-3.1-8B

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k")

# Classes whose feed-forward block has two matrices; nearly all others gate with a third.
_UNGATED_TYPES = (
    *("gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "mpt", "falcon", "phi", "starcoder2"),
    *("nemotron", "nemotron_h", "persimmon"),
)


def shipped_models() -> tuple[str, ...]:
    """Which models' configs come with the package?"""
    folder = resources.files("tracelens_infer.roofline") / "model_configs"
    return tuple(sorted(entry.name[: -len(".json")] for entry in folder.iterdir() if entry.name.endswith(".json")))


def load_model(name_or_path: str | Path) -> ModelShape:
    """How large is the model of this name, config.json, or folder that holds one?

    A path that exists is read. A name is one of :func:`shipped_models`, in any case, with or without an organisation
    (``meta-llama/Llama-3.1-8B-Instruct`` is Llama-3.1-8B). Words after it may tell how weights are stored (``-FP8``).

    Raises:
        UsageError: the name is not known; the nearest ones are listed.
        InputError: the file cannot be read, or is no config of a language model.
    """
    path = Path(name_or_path)
    if path.is_file() or (path / _CONFIG_FILE).is_file():
        return model_from_file(path)
    text = str(name_or_path)
    if text.lower().endswith(".json") or (path.is_dir() and path.name != text):
        raise InputError(text, "There is no such config.json.", "Give a config.json, its folder, or a model's name.")
    return _shipped(text)


def model_from_file(path: str | Path) -> ModelShape:
    """How large is the model of this config.json, or of the folder that holds it? Raises InputError."""
    path = Path(path)
    file = path / _CONFIG_FILE if path.is_dir() else path
    try:
        size = file.stat().st_size
        text = file.read_text(encoding="utf-8-sig") if size <= _MAX_CONFIG_BYTES else ""
        config = json.loads(text) if text else None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            str(file), f"It cannot be read as JSON: {error}", "Give a Hugging Face config.json."
        ) from error
    if not isinstance(config, dict):
        raise InputError(str(file), "It holds no JSON object.", "Give a Hugging Face config.json.")
    generic = file.name == _CONFIG_FILE
    return model_from_config(
        config, _told_name(config) or (file.resolve().parent.name if generic else file.stem), str(file)
    )


def _told_name(config: Mapping[str, object]) -> str | None:
    name = config.get("_name_or_path")
    if not isinstance(name, str):
        return None
    return name.encode("utf-8", "replace").decode().rstrip("/").rpartition("/")[2] or None  # no halves of a character


def model_from_config(config: Mapping[str, object], name: str = "model", source: str = "config") -> ModelShape:
    """How large is the model of this config? Raises InputError where a size is missing or is not what it should be.

    head_dim comes first and is never taken from the hidden size where it is given. What had to be assumed is in notes.
    """
    fields = ConfigFields.of(config, source)
    layers = fields.required("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if layers > MOST_LAYERS:
        raise fields.error(f"It has {layers:,} layers; more than {MOST_LAYERS:,} are none that exists.")
    hidden = fields.required("hidden_size", "n_embd", "d_model")
    attention, notes = layer_attention(fields, layers, hidden)
    blocks = _feed_forward(fields, layers, hidden, notes)
    _refuse_impossible(fields, attention, blocks)
    dtypes = model_dtypes(fields, has_experts=any(isinstance(block, MoeShape) for block in blocks))
    return ModelShape(
        name=name,
        source=fields.text(_SOURCE_KEY) or source,
        hidden=hidden,
        vocab=fields.required("vocab_size"),
        layers=tuple(LayerShape(one, block) for one, block in zip(attention, blocks, strict=True)),
        weight_dtype=dtypes.weight,
        kv_dtype=dtypes.kv,
        activation_dtype=dtypes.activation,
        moe_dtype=dtypes.moe,
        draft_layers=fields.whole("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers") or 0,
        tied_embeddings=fields.flag("tie_word_embeddings") or False,
        notes=(*notes, *dtypes.notes),
    )


def _refuse_impossible(
    fields: ConfigFields, attention: Iterable[AttentionShape], blocks: Iterable[MlpShape | MoeShape | None]
) -> None:
    """Raises InputError for heads without size, and for tokens that visit more experts than there are."""
    for shape in dict.fromkeys(attention):
        sizes = (shape.query_heads, shape.kv_heads, shape.d_qk, shape.d_v)
        if shape.kind is not AttentionKind.UNKNOWN and min(sizes) < 1:
            heads = f"{shape.query_heads} query and {shape.kv_heads} KV heads of {shape.d_qk} and {shape.d_v}"
            raise fields.error(f"Its attention has {heads} elements.")
    for block in dict.fromkeys(blocks):
        if isinstance(block, MoeShape) and not 1 <= block.experts_per_token <= block.experts:
            raise fields.error(f"A token visits {block.experts_per_token} of {block.experts} experts.")


def _feed_forward(
    fields: ConfigFields, layers: int, hidden: int, notes: list[Note]
) -> list[MlpShape | MoeShape | None]:
    gated = fields.text("model_type") not in _UNGATED_TYPES and fields.text("hidden_act", "mlp_hidden_act") != "relu2"
    moe = _moe(fields, gated)
    widths = fields.each(layers, "intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size")
    if fields.text("model_type") == "gpt2" and not fields.has("n_inner"):
        widths = [4 * hidden] * layers  # GPT-2's class
    blocks: list[MlpShape | MoeShape | None] = []
    for i in range(layers):
        if moe is not None and _is_sparse(fields, i):
            blocks.append(moe)
        else:
            width = widths[i]
            blocks.append(MlpShape(width, gated) if width else None)
    untold = blocks.count(None)
    if untold:
        text = f"The config does not tell the feed-forward block of {untold} of {layers} layers: it is left out."
        notes.append(Note("warning", "mlp_untold", text, untold))
    return blocks


def _moe(fields: ConfigFields, gated: bool) -> MoeShape | None:
    experts = fields.whole(*_EXPERTS) or 0
    if experts <= 1:
        return None
    per_token = fields.required(*_EXPERTS_PER_TOKEN)
    width = fields.required("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
    shared = fields.whole("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_intermediate_size")
    if shared is None:
        count = fields.whole("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        # Llama 4's class has one shared expert as wide as a routed one, without a field that says so.
        count = 1 if count is None and fields.has("intermediate_size_mlp") else count
        shared = (count or 0) * width
    return MoeShape(experts, per_token, width, shared, gated)


def _is_sparse(fields: ConfigFields, layer: int) -> bool:
    """Is this layer's feed-forward block a mixture of experts? Each family has fields of its own for dense ones."""
    names = fields.texts("mlp_layer_types")
    if names is not None and layer < len(names):
        return names[layer] == "sparse"
    chosen = fields.wholes("moe_layers")  # Llama 4
    if chosen:
        return layer in chosen
    interleave = fields.whole("interleave_moe_layer_step")
    if interleave:
        return (layer + 1) % interleave == 0
    marks = fields.wholes("moe_layer_freq")  # MiMo: a flag a layer; DeepSeek: a number
    if marks and layer < len(marks):
        return bool(marks[layer])
    if layer < (fields.whole("first_k_dense_replace") or 0) or layer in (fields.wholes("mlp_only_layers") or ()):
        return False
    if layer % (fields.whole("moe_layer_freq") or 1):
        return False
    return (layer + 1) % (fields.whole("decoder_sparse_step") or 1) == 0


def _shipped(text: str) -> ModelShape:
    wanted = text.replace("\\", "/").rstrip("/").rpartition("/")[2].lower().removeprefix(_COMPANY)
    names = {name.lower(): name for name in shipped_models()}
    for key in sorted(names, key=len, reverse=True):
        rest = wanted.removeprefix(key)
        words = rest.removeprefix("-").split("-") if rest.startswith("-") else []
        if wanted == key or (words and all(map(_is_harmless, words))):
            return _as_stored(_read_shipped(names[key]), words)
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    listed = ", ".join(names[key] for key in near) if near else ", ".join(names.values())
    raise UsageError(
        f"model {text}",
        "No config of this name comes with the package, and there is no such file.",
        f"Give the path of its config.json, or one of: {listed}.",
    )


def _is_harmless(word: str) -> bool:
    return word in _SAME_SIZES or word in _STORED or word.removeprefix("v").replace(".", "").isdigit()


def _as_stored(model: ModelShape, words: list[str]) -> ModelShape:
    stored = next((_STORED[word] for word in words if word in _STORED), None)
    if stored is None or stored in (model.moe_dtype, model.weight_dtype if model.moe_dtype is None else None):
        return model
    text = f"By its name the weights of {model.name} are stored as {stored}; the published config has another format."
    note = Note("info", "weight_dtype_by_name", text)
    return replace(model, weight_dtype=stored, moe_dtype=None, notes=(*model.notes, note))


def _read_shipped(name: str) -> ModelShape:
    file = resources.files("tracelens_infer.roofline") / "model_configs" / f"{name}.json"
    return model_from_config(json.loads(file.read_text(encoding="utf-8")), name, f"{name}.json of this package")
