"""The rest of a step: products, experts, collectives, and what a whole step can be at best. Worked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tracelens_infer.roofline.attention import Ranks
from tracelens_infer.roofline.attention_costs import AttentionCosts, AttentionSetting
from tracelens_infer.roofline.hardware import Bandwidth, Figure, HardwareSpec, load_hardware, with_overrides
from tracelens_infer.roofline.linear import FloatArray, PartCost, Spread, linear_parts, touched_experts
from tracelens_infer.roofline.model import ModelShape
from tracelens_infer.roofline.model_config import load_model
from tracelens_infer.roofline.whole_step import WholeSteps, whole_steps
from tracelens_infer.steps.analyze import StepAnalysis, analyze_steps

ONE = Spread(Ranks())


def column(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float64)


def parts_of(name: str, tokens: float, rows: float, spread: Spread = ONE) -> dict[str, PartCost]:
    found: dict[str, PartCost] = {}
    for part in linear_parts(load_model(name), column(tokens), column(rows), column(rows), spread):
        if part.name in found:
            before = found[part.name]
            part = PartCost(
                part.name,
                before.times + part.times,
                part.dtype,
                before.flops + part.flops,
                before.bytes_low + part.bytes_low,
                before.bytes + part.bytes,
                before.link_bytes + part.link_bytes,
            )
        found[part.name] = part
    return found


def test_a_decode_step_of_llama_8b() -> None:
    """64 requests: qkv 4096 x 6144, output 4096 x 4096, MLP 3 x 4096 x 14336, 32 layers, lm_head 4096 x 128256."""
    parts = parts_of("Llama-3.1-8B", 64, 64)
    assert parts["qkv"].flops.tolist() == [32 * 2 * 64 * 4096 * 6144]
    assert parts["attention_output"].flops.tolist() == [32 * 2 * 64 * 4096 * 4096]
    assert parts["mlp_up"].flops.tolist() == [32 * 2 * 64 * 4096 * 28_672]
    assert parts["mlp_down"].flops.tolist() == [32 * 2 * 64 * 14_336 * 4096]
    assert parts["lm_head"].flops.tolist() == [2 * 64 * 4096 * 128_256]
    assert parts["qkv"].bytes.tolist() == [32 * 2 * (4096 * 6144 + 64 * (4096 + 6144))]
    assert parts["kv_write"].bytes.tolist() == [32 * 64 * 2 * 8 * 128 * 2]
    assert parts["norms"].bytes.tolist() == [32 * 2 * 4 * 64 * 4096 * 2]


def test_a_prefill_samples_one_row() -> None:
    """2,048 tokens of one prompt: 2 FLOP a weight and token, and one row of logits."""
    parts = parts_of("Llama-3.1-8B", 2048, 1)
    layer = 4096 * (6144 + 4096 + 3 * 14_336)
    products = ("qkv", "attention_output", "mlp_up", "mlp_down")
    assert sum(float(parts[name].flops[0]) for name in products) == 32 * 2 * 2048 * layer
    assert parts["lm_head"].flops.tolist() == [2 * 4096 * 128_256]


@pytest.mark.parametrize(
    ("tokens", "low", "expected", "high"),
    [(0, 0, 0, 0), (1, 2, 2, 2), (2, 2, 8 * (1 - 0.75**2), 4), (4, 2, 8 * (1 - 0.75**4), 8), (1000, 2, 8, 8)],
)
def test_experts_that_tokens_visit(tokens: float, low: float, expected: float, high: float) -> None:
    """Of 8, two each, as in Mixtral."""
    found = touched_experts(column(tokens), 8, 2)
    assert [float(one[0]) for one in found] == [low, pytest.approx(expected), high]


def test_experts_of_mixtral() -> None:
    """4 tokens, two of 8 experts each, 3 x 4096 x 14336: 5.47 experts to be expected, two at least."""
    experts = parts_of("Mixtral-8x7B", 4, 4)["experts"]
    weights = 3 * 4096 * 14_336 * 2
    assert experts.flops.tolist() == [32 * 2 * 4 * 2 * 3 * 4096 * 14_336]
    assert experts.bytes_low.tolist() == [32 * 2 * weights]
    expected = 8 * (1 - 0.75**4)
    assert experts.bytes[0] == pytest.approx(32 * (expected * weights + 8 * (2 * 4096 + 3 * 14_336) * 2))


def test_experts_of_deepseek_v3() -> None:
    """58 of 61 layers have 256 experts of 2,048, eight a token, and one that all visit; fp8."""
    parts = parts_of("DeepSeek-V3", 128, 128)
    assert parts["experts"].times == 58
    assert parts["experts"].flops.tolist() == [58 * 2 * 128 * 8 * 3 * 7168 * 2048]
    assert parts["shared_experts_up"].flops.tolist() == [58 * 2 * 128 * 7168 * 4096]
    assert parts["query_up"].flops.tolist() == [61 * 2 * 128 * 1536 * 128 * 192]
    assert parts["kv_down"].flops.tolist() == [61 * 2 * 128 * 7168 * 576]


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Llama-3.1-8B", 8.03),
        ("Llama-3.1-70B", 70.55),
        ("Qwen3-8B", 8.19),
        ("Mixtral-8x7B", 46.7),
        ("DeepSeek-V3", 671.0),
    ],
)
def test_two_flops_a_weight_add_up_to_the_published_size(name: str, billions: float) -> None:
    """A token multiplies each weight once, but for experts that it does not visit and the embedding, looked up."""
    model = load_model(name)
    parts = parts_of(name, 1, 1)
    weights = sum(float(part.flops[0]) for part in parts.values()) / 2
    for part in [parts["experts"]] if "experts" in parts else []:
        moe = next(layer.mlp for layer in model.layers if hasattr(layer.mlp, "experts"))
        weights += float(part.flops[0]) / 2 * (moe.experts / moe.experts_per_token - 1)  # type: ignore[union-attr]
    if not model.tied_embeddings:
        weights += model.hidden * model.vocab
    assert weights / 1e9 == pytest.approx(billions, rel=0.01)


def test_all_reduces_over_eight_ranks() -> None:
    """Two a layer: 2 x 7/8 of 64 x 8192 values of two bytes each, 80 layers."""
    parts = parts_of("Llama-3.1-70B", 64, 64, Spread(Ranks(tensor_parallel=8)))
    assert parts["all_reduce"].link_bytes.tolist() == [80 * 2 * 2 * 7 / 8 * 64 * 8192 * 2]
    assert parts["qkv"].flops.tolist() == [80 * 2 * 64 * 8192 * (8 * 128 + 2 * 128)]
    assert parts["mlp_down"].flops.tolist() == [80 * 2 * 64 * 3584 * 8192]


def test_a_step_without_tokens_costs_nothing() -> None:
    for part in parts_of("Mixtral-8x7B", 0, 0).values():
        assert part.flops.tolist() == part.bytes.tolist() == part.link_bytes.tolist() == [0]


def spec(tflops: float, bandwidth: float) -> HardwareSpec:
    found = with_overrides(None, tflops, bandwidth)
    assert found is not None
    return found


def whole(analysis: StepAnalysis, model: ModelShape, hardware: HardwareSpec, setting: AttentionSetting) -> WholeSteps:
    steps = analysis.steps.steps
    return whole_steps(steps, model, hardware, AttentionCosts(steps, setting), Spread(setting.ranks))


def test_bounds_of_a_decode_step_by_hand(shared_traces: Path) -> None:
    """g's steps of 8 decodes as if Qwen3-8B had run them, at 1,000 TFLOP/s and 50 GB/s: reading weights bounds."""
    analysis = analyze_steps(shared_traces / "vllm_cpu/g_dense_detailed_shapes_stack_10steps.pt.trace.json.gz")
    model = load_model("Qwen3-8B")
    found = whole(analysis, model, spec(1000.0, 50.0), AttentionSetting())
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12_288
    outputs = 36 * (6144 + 4096 + 2 * 12_288 + 4096) + 151_936
    inputs = 36 * (4096 + 4096 + 4096 + 12_288) + 4096
    weights = 36 * layer + 4096 * 151_936
    kv_tokens = 538  # of the first step
    attention = 36 * (8 * 32 * 256 + kv_tokens * 8 * 256)
    expected = 2 * (weights + 8 * (inputs + outputs) + attention) / 50  # bytes at 50 bytes a nanosecond
    assert found.bound_ns[0] == pytest.approx(expected, rel=1e-9)
    assert set(found.bound_by) == {"memory"}
    assert (found.serial_ns >= found.bound_ns).all()


def test_more_parts_make_no_bound_shorter(shared_traces: Path) -> None:
    analysis = analyze_steps(shared_traces / "tracelens/sglang_mi300x_qwen3_8b_prefill.json.gz")
    found = whole(analysis, load_model("Qwen3-8B"), load_hardware("MI300X"), AttentionSetting())
    assert found.bound_by == ("compute",)
    assert 0 < found.bound_ns[0] <= found.serial_ns[0] <= found.measured_ns[0]


def test_unknown_rates_are_named(shared_traces: Path) -> None:
    analysis = analyze_steps(shared_traces / "vllm_cpu/g_dense_detailed_shapes_stack_10steps.pt.trace.json.gz")
    setting = AttentionSetting(ranks=Ranks(tensor_parallel=2))
    only_reading = HardwareSpec("reader", "", (), Bandwidth(Figure(50.0, "made up", "user")))
    found = whole(analysis, load_model("Qwen3-8B"), only_reading, setting)
    assert [note.code for note in found.notes] == ["peak_unknown", "link_unknown"]
    assert np.isfinite(found.bound_ns).all()
