"""Sizes of the model by the op shapes of real traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tracelens_infer.roofline.attention import Ranks
from tracelens_infer.roofline.model_config import load_model, model_from_config
from tracelens_infer.roofline.model_from_shapes import ObservedShape, observed_shape, shape_notes
from tracelens_infer.steps.analyze import analyze_steps

CPU_OP = "_C::cpu_attention_with_kv_cache"


def observed(path: Path) -> ObservedShape:
    analysis = analyze_steps(path)
    return observed_shape(analysis.trace, analysis.steps)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("vllm_cpu/g_dense_detailed_shapes_stack_10steps.pt.trace.json.gz", ObservedShape(8, 2, 64, 64, 4, CPU_OP)),
        (
            "vllm_cpu/c2_dense_detailed_shapes_nostack_steadywindow.pt.trace.json.gz",
            ObservedShape(8, 2, 64, 64, 4, CPU_OP),
        ),
        (
            "vllm_cpu/d_dense_noannotation_stripped_from_g_stack.pt.trace.json.gz",
            ObservedShape(8, 2, 64, 64, 4, CPU_OP),
        ),
        (
            "tracelens/sglang_mi300x_qwen3_8b_prefill.json.gz",
            ObservedShape(32, 8, 128, 128, 36, "aiter::mha_batch_prefill"),
        ),
        (
            "tracelens/vllm_mi300x_mixed_piecewise.json.gz",
            ObservedShape(64, 8, 64, 64, 24, "vllm::unified_attention_with_output"),
        ),
        (
            "tracelens/hf_h100_qwen1.5_0.5b.json.gz",
            ObservedShape(16, 16, 64, 64, 24, "aten::scaled_dot_product_attention"),
        ),
        ("tracelens/vllm_mi300x_decode_graph.json.gz", ObservedShape()),  # replayed from a graph: no ops
    ],
)
def test_attention_ops_tell_heads_head_sizes_and_layers(
    shared_traces: Path, file: str, expected: ObservedShape
) -> None:
    assert observed(shared_traces / file) == expected


def op(start: int, name: str, *dims: list[int]) -> dict[str, object]:
    args = {"Input Dims": list(dims)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": 5, "args": args}


def test_heads_of_several_sizes_are_a_note_and_the_calls_of_a_step_are_its_layers(tmp_path: Path) -> None:
    wide, narrow = ([2, 8, 64], [2, 2, 64], [2, 2, 64]), ([2, 4, 32], [2, 1, 32], [2, 1, 32])
    events: list[dict[str, object]] = []
    for step in range(4):
        label = f"execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk{20 + step}sqsq2sqsk{20 + step})"
        host = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": step * 100, "dur": 90, "name": label}
        events.append(host)
        for layer, dims in enumerate((wide, wide, narrow)):
            events.append(op(step * 100 + layer * 20 + 1, "vllm::unified_attention_with_output", *dims, dims[0]))
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    seen = observed(file)
    assert (seen.query_heads, seen.kv_heads, seen.d_qk, seen.d_v, seen.layers) == (8, 2, 64, 64, 3)
    assert [(note.code, note.count) for note in seen.notes] == [("layers_of_several_sizes", 2)]


def test_a_trace_and_its_model_agree(shared_traces: Path) -> None:
    sglang = observed(shared_traces / "tracelens/sglang_mi300x_qwen3_8b_prefill.json.gz")
    assert shape_notes(sglang, load_model("Qwen3-8B")) == ()
    mixed = observed(shared_traces / "tracelens/vllm_mi300x_mixed_piecewise.json.gz")
    assert shape_notes(mixed, load_model("gpt-oss-20b")) == ()
    notes = shape_notes(mixed, load_model("gpt-oss-120b"))
    assert [note.text for note in notes] == [
        "Layers with attention: 24 by the op shapes (vllm::unified_attention_with_output), 36 by gpt-oss-120b."
    ]


def test_each_size_that_differs_is_told() -> None:
    seen = ObservedShape(8, 2, 64, 64, 4, CPU_OP)
    notes = shape_notes(seen, load_model("Qwen3-8B"))
    assert {(note.level, note.code) for note in notes} == {("warning", "model_contradicts_trace")}
    assert [note.text.partition(":")[0] for note in notes] == [
        "Query heads a rank",
        "KV heads a rank",
        "Head size of queries and keys",
        "Head size of values",
        "Layers with attention",
    ]


def test_the_heads_are_those_of_a_rank() -> None:
    seen = ObservedShape(8, 1, 128, 128, 94, "op")
    model = load_model("Qwen3-235B-A22B")
    assert shape_notes(seen, model, Ranks(tensor_parallel=8)) == ()
    assert len(shape_notes(seen, model)) == 2


def test_what_the_trace_does_not_tell_contradicts_nothing() -> None:
    assert shape_notes(ObservedShape(), load_model("Qwen3-8B")) == ()
    assert shape_notes(replace(ObservedShape(), layers=36), load_model("Qwen3-8B")) == ()


def test_layers_of_linear_attention_are_not_counted() -> None:
    seen = ObservedShape(16, 2, 256, 256, 12, "op")
    assert shape_notes(seen, load_model("Qwen3-Next-80B-A3B")) == ()


def test_a_latents_heads_are_not_compared_with_what_is_cached() -> None:
    assert shape_notes(ObservedShape(128, None, None, None, 61, "op"), load_model("DeepSeek-V3")) == ()


def test_a_size_that_any_layer_has_agrees() -> None:
    model = model_from_config(
        {
            "hidden_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": [8, 4],
            "num_key_value_heads": [2, 1],
            "head_dim": 64,
            "intermediate_size": 768,
            "vocab_size": 4096,
        }
    )
    assert shape_notes(ObservedShape(4, 1, 64, 64, 2, "op"), model) == ()
