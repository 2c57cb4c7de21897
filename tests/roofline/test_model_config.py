"""Sizes from config.json, each family's fields, and the configs that come with the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_infer.errors import InputError, TracelensError, UsageError
from tracelens_infer.roofline.model import (
    AttentionKind,
    AttentionShape,
    LatentShape,
    LinearStateShape,
    MlpShape,
    ModelShape,
    MoeShape,
)
from tracelens_infer.roofline.model_config import load_model, model_from_config, model_from_file, shipped_models

FULL, WINDOW, CHUNKED = AttentionKind.FULL, AttentionKind.WINDOW, AttentionKind.CHUNKED
LINEAR, UNKNOWN = AttentionKind.LINEAR, AttentionKind.UNKNOWN

BASE: dict[str, object] = {
    "hidden_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 4096,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}


def model(**fields: object) -> ModelShape:
    return model_from_config({**BASE, **fields})


def kinds(**fields: object) -> list[AttentionKind]:
    return [layer.attention.kind for layer in model(**fields).layers]


def codes(shape: ModelShape) -> list[str]:
    return [note.code for note in shape.notes]


# ------------------------------------------------------------------------------------------- shipped


def heads_of(shape: ModelShape) -> set[tuple[int, int, int, int]]:
    return {
        (one.query_heads, one.kv_heads, one.d_qk, one.d_v)
        for one in (layer.attention for layer in shape.layers)
        if one.kind is not LINEAR
    }


@pytest.mark.parametrize(
    ("name", "hidden", "layers", "vocab", "heads", "mlp"),
    [
        ("Llama-3.1-8B", 4096, 32, 128256, (32, 8, 128, 128), MlpShape(14336)),
        ("Llama-3.1-70B", 8192, 80, 128256, (64, 8, 128, 128), MlpShape(28672)),
        ("Qwen3-8B", 4096, 36, 151936, (32, 8, 128, 128), MlpShape(12288)),
        ("Qwen3-30B-A3B", 2048, 48, 151936, (32, 4, 128, 128), MoeShape(128, 8, 768)),
        ("Qwen3-Coder-30B-A3B", 2048, 48, 151936, (32, 4, 128, 128), MoeShape(128, 8, 768)),
        ("Qwen3-235B-A22B", 4096, 94, 151936, (64, 4, 128, 128), MoeShape(128, 8, 1536)),
        ("Qwen3-Next-80B-A3B", 2048, 48, 151936, (16, 2, 256, 256), MoeShape(512, 10, 512, 512)),
        ("gpt-oss-20b", 2880, 24, 201088, (64, 8, 64, 64), MoeShape(32, 4, 2880)),
        ("gpt-oss-120b", 2880, 36, 201088, (64, 8, 64, 64), MoeShape(128, 4, 2880)),
        ("Mixtral-8x7B", 4096, 32, 32000, (32, 8, 128, 128), MoeShape(8, 2, 14336)),
        ("DeepSeek-V3", 7168, 61, 129280, (128, 128, 192, 128), MoeShape(256, 8, 2048, 2048)),
    ],
)
def test_a_shipped_config_has_the_published_sizes(
    name: str, hidden: int, layers: int, vocab: int, heads: tuple[int, int, int, int], mlp: MlpShape | MoeShape
) -> None:
    shape = load_model(name)
    assert (shape.name, shape.hidden, len(shape.layers), shape.vocab) == (name, hidden, layers, vocab)
    assert heads_of(shape) == {heads}
    assert shape.layers[-1].mlp == mlp
    assert shape.notes == ()
    assert "Hugging Face" in shape.source
    assert not shape.tied_embeddings


def parameters(shape: ModelShape) -> int:
    """Weights of matrices: what the sizes multiply out to, norms and biases left out."""
    total = 2 * shape.vocab * shape.hidden
    for layer in shape.layers:
        one, latent, state = layer.attention, layer.attention.latent, layer.attention.state
        if latent is not None:
            query = latent.q_rank or 0
            total += shape.hidden * query + query * one.query_heads * one.d_qk
            total += shape.hidden * (latent.kv_rank + latent.rope)
            total += latent.kv_rank * one.query_heads * (latent.nope + latent.d_v)
            total += one.query_heads * latent.d_v * shape.hidden
        elif state is not None:
            total += shape.hidden * (2 * state.key_heads * state.d_k + 3 * state.value_heads * state.d_v)
        else:
            total += shape.hidden * (2 * one.query_heads * one.d_qk + one.kv_heads * (one.d_qk + one.d_v))
        if isinstance(layer.mlp, MoeShape):
            each = layer.mlp.experts * layer.mlp.intermediate + layer.mlp.shared_intermediate
            total += 3 * shape.hidden * each + shape.hidden * layer.mlp.experts
        elif layer.mlp is not None:
            total += 3 * shape.hidden * layer.mlp.intermediate
    return total


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Llama-3.1-8B", 8.03),
        ("Llama-3.1-70B", 70.6),
        ("Qwen3-8B", 8.19),
        ("Qwen3-30B-A3B", 30.5),
        ("Qwen3-Coder-30B-A3B", 30.5),
        ("Qwen3-235B-A22B", 235.1),
        ("Qwen3-Next-80B-A3B", 80),
        ("gpt-oss-20b", 20.9),
        ("gpt-oss-120b", 116.8),
        ("Mixtral-8x7B", 46.7),
        ("DeepSeek-V3", 671),
    ],
)
def test_the_sizes_multiply_out_to_the_published_number_of_parameters(name: str, billions: float) -> None:
    assert parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.01)


def test_the_layers_of_gpt_oss_alternate_between_a_window_and_full_attention() -> None:
    shape = load_model("gpt-oss-20b")
    window, full = shape.layer_groups()
    assert (window.attention.kind, window.attention.window_tokens, window.layers) == (
        WINDOW,
        128,
        tuple(range(0, 24, 2)),
    )
    assert (full.attention.kind, full.attention.window_tokens, full.layers) == (FULL, None, tuple(range(1, 24, 2)))
    assert (shape.weight_dtype, shape.moe_dtype, shape.kv_dtype) == ("bf16", "mxfp4", "bf16")


def test_deepseek_v3_has_a_latent_three_dense_layers_and_a_draft_layer() -> None:
    shape = load_model("DeepSeek-V3")
    assert shape.layers[0].attention.latent == LatentShape(512, 64, 128, 128, 1536)
    assert [layer.mlp for layer in shape.layers[:3]] == [MlpShape(18432)] * 3
    assert isinstance(shape.layers[3].mlp, MoeShape)
    assert (shape.draft_layers, shape.weight_dtype, shape.kv_dtype) == (1, "fp8", "bf16")


def test_every_fourth_layer_of_qwen3_next_attends_and_the_others_keep_a_state() -> None:
    linear, full = load_model("Qwen3-Next-80B-A3B").layer_groups()
    assert full.layers == tuple(range(3, 48, 4))
    assert linear.attention.state == LinearStateShape(16, 32, 128, 128, 4)
    assert len(linear.layers) == 36


def test_the_head_size_of_qwen3_235b_is_not_hidden_by_heads() -> None:
    assert load_model("Qwen3-235B-A22B").layers[0].attention.d_qk == 128 != 4096 // 64


# --------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-70B", "Llama-3.1-70B"),
        ("QWEN3-8b", "Qwen3-8B"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder-30B-A3B"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
        ("deepseek-ai/DeepSeek-V3-0324", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-V3-Base/", "DeepSeek-V3"),
    ],
)
def test_names_match_in_any_case_with_organisation_and_variant(text: str, name: str) -> None:
    assert load_model(text).name == name


@pytest.mark.parametrize(
    "text", ["DeepSeek-V3.2-Exp", "Llama-3.1-8B-Instruct-EAGLE3", "Qwen3-8", "Qwen3-80B", "gpt-oss"]
)
def test_a_similar_name_is_not_taken_for_a_known_one(text: str) -> None:
    with pytest.raises(UsageError):
        load_model(text)


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"one of: Qwen3-8B") as caught:
        load_model("Qwen/Qwen3-9B")
    assert caught.value.thing == "model Qwen/Qwen3-9B"
    with pytest.raises(UsageError, match="gpt-oss-20b"):
        load_model("zzz")


def test_a_name_can_say_how_the_weights_are_stored() -> None:
    shape = load_model("Qwen/Qwen3-8B-FP8")
    assert (shape.weight_dtype, shape.activation_dtype, codes(shape)) == ("fp8", "bf16", ["weight_dtype_by_name"])
    unpacked = load_model("gpt-oss-20b-BF16")
    assert (unpacked.weight_dtype, unpacked.moe_dtype) == ("bf16", None)
    assert load_model("gpt-oss-20b-mxfp4") == load_model("gpt-oss-20b")


def test_all_shipped_names_load_and_have_a_source(project_root: Path) -> None:
    files = sorted((project_root / "tracelens_infer" / "roofline" / "model_configs").glob("*.json"))
    assert [file.stem for file in files] == list(shipped_models())
    for file in files:
        assert load_model(file.stem).layers == load_model(file).layers
        assert json.loads(file.read_text())["_source"]


# --------------------------------------------------------------------------------------------- files


def test_a_config_is_read_from_its_file_or_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(BASE))
    for path in (folder, folder / "config.json", str(folder)):
        shape = load_model(path)
        assert shape.name == "my-model"
        assert shape.source == str(folder / "config.json")
    (folder / "other.json").write_text(json.dumps({**BASE, "_name_or_path": "org/theirs"}))
    assert load_model(folder / "other.json").name == "theirs"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSON"),
        ("[1]", "no JSON object"),
        ("", "no JSON object"),
        ("[" * 100_000, "JSON"),
        ("{}", "num_hidden_layers"),
    ],
)
def test_a_file_that_is_no_config_says_why(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=reason):
        model_from_file(tmp_path)


def test_a_folder_in_the_way_does_not_hide_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen3-8B").mkdir()  # of checkpoints, results or anything else
    monkeypatch.chdir(tmp_path)
    assert len(load_model("Qwen3-8B").layers) == 36


def test_a_path_without_a_config_is_not_taken_for_a_name(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.json"):
        with pytest.raises(InputError):
            load_model(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": None},
        {"hidden_size": "big"},
        {"num_hidden_layers": 0},
        {"num_attention_heads": None},
        {"vocab_size": None},
        {"layer_types": ["full_attention"]},
        {"num_key_value_heads": [1, 2]},
        {"kv_lora_rank": 512},
        {"num_experts": 8, "num_experts_per_tok": None},
    ],
)
def test_a_missing_or_odd_size_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InputError):
        model(**fields)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *BASE,
                "layer_types",
                "sliding_window",
                "quantization_config",
                "num_experts",
                "text_config",
                "moe_layer_freq",
                "sliding_window_pattern",
                "attention_chunk_size",
                "no_rope_layers",
            ]
        ),
        json_values,
    )
)
def test_whatever_a_config_holds_the_answer_is_a_shape_or_an_error_of_ours(fields: dict[str, object]) -> None:
    try:
        shape = model(**fields)
    except TracelensError:
        return
    assert len(shape.layers) == sum(len(group.layers) for group in shape.layer_groups())
    assert all(layer.attention.query_heads > 0 for layer in shape.layers)


# ----------------------------------------------------------------------------------------- head sizes


def test_head_dim_comes_first_and_is_derived_only_where_it_is_not_given() -> None:
    assert model().layers[0].attention.d_qk == 64
    derived = model(head_dim=None)
    assert derived.layers[0].attention.d_qk == 128
    assert codes(derived) == ["head_dim_assumed"]


def test_missing_kv_heads_are_assumed_with_a_warning() -> None:
    shape = model(num_key_value_heads=None)
    assert shape.layers[0].attention.kv_heads == 8
    assert [(note.level, note.code) for note in shape.notes] == [("warning", "kv_heads_assumed")]
    assert model(num_key_value_heads=None, multi_query=True).layers[0].attention.kv_heads == 1


def test_heads_and_windows_can_differ_by_layer() -> None:
    shape = model(
        num_attention_heads=[8, 8, 4, 4, 4, 4],
        num_key_value_heads=[2, 2, 1, 1, 1, 1],
        sliding_window=[None, 256, 512, None, 256, 512],
        intermediate_size=[10, 20, 30, 40, 50, 60],
    )
    told = [(one.query_heads, one.kv_heads, one.window_tokens) for one in (layer.attention for layer in shape.layers)]
    assert told == [(8, 2, None), (8, 2, 256), (4, 1, 512), (4, 1, None), (4, 1, 256), (4, 1, 512)]
    assert [layer.mlp for layer in shape.layers] == [MlpShape(width) for width in (10, 20, 30, 40, 50, 60)]


def test_windowed_and_full_layers_can_have_heads_of_their_own() -> None:
    shape = model(
        num_hidden_layers=2,
        v_head_dim=32,
        sliding_window=128,
        hybrid_layer_pattern=[0, 1],
        swa_num_attention_heads=16,
        swa_num_key_value_heads=4,
        swa_head_dim=96,
        swa_v_head_dim=48,
    )
    assert [layer.attention for layer in shape.layers] == [
        AttentionShape(FULL, 8, 2, 64, 32),
        AttentionShape(WINDOW, 16, 4, 96, 48, window_tokens=128),
    ]
    gemma = model(
        num_hidden_layers=2,
        sliding_window=512,
        layer_types=["sliding_attention", "full_attention"],
        global_head_dim=512,
        num_global_key_value_heads=1,
    )
    assert gemma.layers[1].attention == AttentionShape(FULL, 8, 1, 512, 512)
    assert gemma.layers[0].attention.d_qk == 64


# ---------------------------------------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [FULL] * 6),
        ({"sliding_window": 4096}, [WINDOW] * 6),  # Mistral
        ({"sliding_window": None}, [FULL] * 6),  # Mixtral
        ({"sliding_window": 4096, "use_sliding_window": False}, [FULL] * 6),  # Qwen2
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 4}, [FULL] * 4 + [WINDOW] * 2),
        ({"sliding_window": 512, "sliding_window_pattern": 3}, [WINDOW, WINDOW, FULL] * 2),  # Gemma 3, Cohere 2
        ({"sliding_window": 512, "_sliding_window_pattern": 3}, [WINDOW, WINDOW, FULL] * 2),
        ({"sliding_window": 512, "sliding_window_pattern": "LLG"}, [WINDOW, WINDOW, FULL] * 2),  # EXAONE 4
        ({"sliding_window": 512, "model_type": "gemma2"}, [WINDOW, FULL] * 3),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 3}, [WINDOW, FULL] * 3),
        ({"attention_chunk_size": 8192}, [CHUNKED] * 3 + [FULL] + [CHUNKED] * 2),  # Llama 4
        ({"attention_chunk_size": 8192, "no_rope_layers": [1, 0] * 3}, [CHUNKED, FULL] * 3),
        ({"attention_chunk_size": 8192, "no_rope_layers": [], "no_rope_layer_interval": 2}, [CHUNKED, FULL] * 3),
        ({"index_topk": 2048}, [AttentionKind.SPARSE_TOPK] * 6),
        ({"attn_type_list": [0, 1] * 3}, [UNKNOWN, FULL] * 3),  # MiniMax
        ({"hybrid_override_pattern": "M-M*-E"}, [UNKNOWN] * 6),
        ({"layer_types": ["full_attention", "telepathy"] * 3}, [FULL, UNKNOWN] * 3),
        ({"layer_types": ["sliding_attention"] * 6}, [UNKNOWN] * 6),  # of no told width
        ({"layer_types": ["linear_attention"] * 6}, [UNKNOWN] * 6),  # of no told state
    ],
)
def test_each_familys_fields_tell_the_kind_of_every_layer(
    fields: dict[str, object], expected: list[AttentionKind]
) -> None:
    assert kinds(**fields) == expected


def test_layers_of_no_known_kind_are_counted_in_a_note() -> None:
    (note,) = model(layer_types=["full_attention", "telepathy"] * 3).notes
    assert (note.code, note.count) == ("layer_kind_unknown", 3)


def test_chunk_and_window_sizes_go_with_their_layers() -> None:
    assert {layer.attention.window_tokens for layer in model(attention_chunk_size=8192).layers} == {8192, None}
    assert {layer.attention.window_tokens for layer in model(sliding_window=512).layers} == {512}


def test_a_sparse_layer_has_its_indexer() -> None:
    shape = model(index_topk=2048, index_n_heads=64, index_head_dim=128).layers[0].attention
    assert (shape.topk_tokens, shape.indexer_heads, shape.indexer_dim) == (2048, 64, 128)


def test_a_mamba_layer_has_a_state() -> None:
    shape = model(
        num_hidden_layers=2,
        layers_block_type=["mamba", "attention"],
        mamba_n_heads=128,
        mamba_n_groups=1,
        mamba_d_state=256,
        mamba_d_head=64,
        mamba_d_conv=4,
    )
    assert shape.layers[0].attention.state == LinearStateShape(1, 128, 256, 64, 4)
    assert shape.layers[1].attention == AttentionShape(FULL, 8, 2, 64, 64)


def test_layers_that_share_keys_and_values_name_the_owner() -> None:
    gemma = model(sliding_window=512, layer_types=["sliding_attention", "full_attention"] * 3, num_kv_shared_layers=2)
    assert [layer.attention.shares_kv_with for layer in gemma.layers] == [None] * 4 + [2, 3]
    crossed = model(use_cla=True, cla_share_factor=2)
    assert [layer.attention.shares_kv_with for layer in crossed.layers] == [None, 0, None, 2, None, 4]


def test_a_latent_takes_its_own_head_sizes() -> None:
    shape = model(
        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_key_value_heads=8, head_dim=64
    )
    one = shape.layers[0].attention
    assert (one.d_qk, one.d_v, one.latent) == (192, 128, LatentShape(512, 64, 128, 128, None))


# ----------------------------------------------------------------------------------------- feed-forward


def sparse_layers(**fields: object) -> list[int]:
    shape = model(num_experts=16, num_experts_per_tok=2, moe_intermediate_size=100, **fields)
    return [i for i, layer in enumerate(shape.layers) if isinstance(layer.mlp, MoeShape)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"first_k_dense_replace": 2}, [2, 3, 4, 5]),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, [2, 4]),
        ({"moe_layer_freq": [0, 1, 1, 0, 1, 1]}, [1, 2, 4, 5]),
        ({"mlp_only_layers": [0, 3]}, [1, 2, 4, 5]),
        ({"decoder_sparse_step": 2}, [1, 3, 5]),
        ({"interleave_moe_layer_step": 3}, [2, 5]),
        ({"moe_layers": [1, 4]}, [1, 4]),
        ({"mlp_layer_types": ["dense", "sparse"] * 3}, [1, 3, 5]),
    ],
)
def test_each_familys_fields_tell_which_layers_have_experts(fields: dict[str, object], expected: list[int]) -> None:
    assert sparse_layers(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "moe"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, MoeShape(8, 2, 4096)),  # Mixtral
        ({"num_local_experts": 32, "experts_per_token": 4}, MoeShape(32, 4, 4096)),  # gpt-oss
        (
            {"n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 100, "n_shared_experts": 2},
            MoeShape(64, 6, 100, 200),  # DeepSeek
        ),
        (
            {
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 100,
                "shared_expert_intermediate_size": 400,
            },
            MoeShape(60, 4, 100, 400),  # Qwen2-MoE, Qwen3-Next
        ),
        (
            {"num_local_experts": 16, "num_experts_per_tok": 1, "intermediate_size_mlp": 8192},
            MoeShape(16, 1, 4096, 4096),  # Llama 4
        ),
        ({"num_experts": 16, "num_experts_per_tok": 2, "hidden_act": "relu2"}, MoeShape(16, 2, 4096, 0, gated=False)),
    ],
)
def test_each_familys_experts_are_read(fields: dict[str, object], moe: MoeShape) -> None:
    assert model(**fields).layers[0].mlp == moe


def test_older_models_have_two_matrices_and_names_of_their_own() -> None:
    shape = model_from_config({"model_type": "gpt2", "n_embd": 768, "n_layer": 2, "n_head": 12, "vocab_size": 50257})
    assert shape.layers[0].mlp == MlpShape(3072, gated=False)
    assert shape.layers[0].attention.d_qk == 64


def test_an_untold_feed_forward_block_is_left_out_with_a_note() -> None:
    shape = model(intermediate_size=None)
    assert shape.layers[0].mlp is None
    assert codes(shape) == ["mlp_untold"]


# ----------------------------------------------------------------------------------------------- nesting


def test_the_language_model_of_a_larger_one_is_found() -> None:
    outer = {
        "hidden_size": 1,
        "vision_config": {"hidden_size": 7},
        "tie_word_embeddings": True,
        "quantization_config": {"quant_method": "fp8"},
        "text_config": dict(BASE),
    }
    shape = model_from_config(outer)
    assert (shape.hidden, shape.weight_dtype, shape.tied_embeddings) == (1024, "fp8", True)
    deep = model_from_config({"thinker_config": {"text_config": dict(BASE)}})
    assert deep.hidden == 1024


# -------------------------------------------------------------------------------------------------- dtypes


@pytest.mark.parametrize(
    ("quantization", "weight", "kv"),
    [
        ({"quant_method": "fp8"}, "fp8", "bf16"),
        ({"quant_method": "fbgemm_fp8"}, "fp8", "bf16"),
        ({"quant_method": "awq", "bits": 4}, "int4", "bf16"),
        ({"quant_method": "gptq", "bits": 8}, "int8", "bf16"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, "nvfp4", "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", "bf16"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            "fp8",
            "fp8",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}},
            "int4",
            "bf16",
        ),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {}},
            "nvfp4",
            "bf16",
        ),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8", "bf16"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, "mxfp4", "bf16"),
    ],
)
def test_the_quantization_tells_how_weights_and_kv_cache_are_stored(
    quantization: dict[str, object], weight: str, kv: str
) -> None:
    shape = model(quantization_config=quantization)
    assert (shape.weight_dtype, shape.kv_dtype, shape.activation_dtype) == (weight, kv, "bf16")
    assert shape.notes == ()


def test_an_unknown_quantization_is_a_warning() -> None:
    shape = model(quantization_config={"quant_method": "magic"})
    assert shape.weight_dtype == "bf16"
    assert [(note.level, note.code) for note in shape.notes] == [("warning", "quantization_unknown")]


@pytest.mark.parametrize("fields", [{"torch_dtype": "float16"}, {"torch_dtype": None, "dtype": "float16"}])
def test_the_activations_dtype_is_that_of_the_config(fields: dict[str, object]) -> None:
    shape = model(**fields)
    assert {shape.weight_dtype, shape.kv_dtype, shape.activation_dtype} == {"fp16"}


@pytest.mark.parametrize("dtype", [None, "auto"])
def test_an_untold_dtype_is_assumed_with_a_note(dtype: str | None) -> None:
    shape = model(torch_dtype=dtype)
    assert (shape.activation_dtype, codes(shape)) == ("bf16", ["dtype_assumed"])


def test_draft_layers_are_counted_apart() -> None:
    assert model(num_nextn_predict_layers=1).draft_layers == 1
    assert len(model(num_nextn_predict_layers=1).layers) == 6
