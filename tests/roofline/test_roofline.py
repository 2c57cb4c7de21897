"""Measured attention beside its roof, and where a step's time goes, on real traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tracelens_infer.roofline.attention_costs import AttentionCosts, AttentionSetting
from tracelens_infer.roofline.attention_points import AttentionPoints, attention_points
from tracelens_infer.roofline.hardware import HardwareSpec, load_hardware, with_overrides
from tracelens_infer.roofline.measured_attention import SERVES
from tracelens_infer.roofline.model import AttentionKind
from tracelens_infer.roofline.model_config import load_model
from tracelens_infer.roofline.roofline import Roofline, analyze_roofline, hardware_of
from tracelens_infer.roofline.step_split import Part
from tracelens_infer.steps.analyze import StepAnalysis, analyze_steps
from tracelens_infer.steps.attention_ops import Serves

C2 = "vllm_cpu/c2_dense_detailed_shapes_nostack_steadywindow.pt.trace.json.gz"
DECODE = "tracelens/vllm_mi300x_decode_graph.json.gz"
MIXED = "tracelens/vllm_mi300x_mixed_piecewise.json.gz"
PREFILL = "tracelens/sglang_mi300x_qwen3_8b_prefill.json.gz"
TERA = 1e12


def roofline_of(path: Path, model: str | None, hardware: HardwareSpec | None = None) -> Roofline:
    analysis = analyze_steps(path)
    here = hardware if hardware is not None else hardware_of(analysis.trace.metadata)[0]
    return analyze_roofline(analysis, load_model(model) if model is not None else None, here)


def points_of(roofline: Roofline) -> AttentionPoints:
    assert roofline.points is not None
    return roofline.points


def group_of(roofline: Roofline, kind: AttentionKind) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    number = next(group.number for group in roofline.calls.groups if group.kind is kind)
    return np.asarray(points_of(roofline).group == number)


def test_a_prefill_reaches_the_published_rate(shared_traces: Path) -> None:
    """Qwen3-8B on MI300X: 15 prompts of 1,024 tokens; 128,849,018,880 FLOP a layer by the document's formula."""
    roofline = roofline_of(shared_traces / PREFILL, "Qwen3-8B")
    points, calls = points_of(roofline), roofline.calls
    assert roofline.hardware is not None
    assert roofline.hardware.name == "MI300X"
    assert len(calls) == 36
    assert points.measured_ns.tolist() == [int(calls.duration_ns.sum())]
    assert calls.duration_ns.sum() / 1000 == pytest.approx(20_075, abs=1)
    assert points.document_flops.tolist() == [36 * 128_849_018_880]
    assert points.document_bytes.tolist() == [36 * 314_572_800]
    per_layer = points.document_flops[0] / 36 / calls.duration_ns * 1e9
    assert np.median(per_layer) / TERA == pytest.approx(230.5, rel=0.01)
    assert SERVES[points.serves[0]] is Serves.CONTEXT
    assert points.is_compute_bound(roofline.hardware).tolist() == [True]
    assert points.percent(roofline.hardware)[0] == pytest.approx(100 * 231.3 / 1307.4, rel=0.01)


def test_full_layers_of_a_decode_read_at_the_known_rate(shared_traces: Path) -> None:
    """gpt-oss-20b: 113,340,416 bytes in 41.16 + 5.72 us."""
    roofline = roofline_of(shared_traces / DECODE, "gpt-oss-20b")
    points, full = points_of(roofline), group_of(roofline, AttentionKind.FULL)
    assert points.layers[full].tolist() == [12]
    assert points.bytes.low[full].tolist() == points.bytes.high[full].tolist() == [12 * 113_340_416]
    assert points.flops.high[full].tolist() == [12 * 902_529_024]
    assert points.rate(points.bytes.high)[full][0] / TERA == pytest.approx(2.418, rel=0.01)


def test_windowed_layers_of_a_decode_stay_below_the_roof(shared_traces: Path) -> None:
    """With the full context they would read 8.41 TB/s of 5.3; at most 128 tokens a request are in the window."""
    roofline = roofline_of(shared_traces / DECODE, "gpt-oss-20b")
    points, window = points_of(roofline), group_of(roofline, AttentionKind.WINDOW)
    low, high = points.rate(points.bytes.low)[window][0], points.rate(points.bytes.high)[window][0]
    assert low < high < 5.3 * TERA
    assert points.rate(points.document_bytes)[window][0] / TERA == pytest.approx(8.41, rel=0.01)
    assert not points.is_above_roof(load_hardware("MI300X"), low=False).any()
    assert [note.code for note in roofline.notes if note.level == "error"] == []


def test_both_layer_groups_of_a_mixed_step_have_a_point(shared_traces: Path) -> None:
    roofline = roofline_of(shared_traces / MIXED, "gpt-oss-20b")
    points = points_of(roofline)
    per_layer = {
        kind: float(points.measured_ns[group_of(roofline, kind)][0]) / 12_000
        for kind in (AttentionKind.FULL, AttentionKind.WINDOW)
    }
    assert per_layer[AttentionKind.FULL] == pytest.approx(297, abs=1)
    assert per_layer[AttentionKind.WINDOW] == pytest.approx(132, abs=1)
    assert {SERVES[serves] for serves in points.serves.tolist()} == {Serves.BOTH}  # one kernel serves both phases
    full = group_of(roofline, AttentionKind.FULL)
    # By the document's formulas: context and generation together.
    context = 2 * 7_671_310 * 64 * 128 - 7_475_785 * 64 * 128
    generation = 2 * 34_489 * 64 * 128
    assert points.document_flops[full].tolist() == [12 * (context + generation)]


@pytest.fixture(scope="module")
def cpu(shared_traces: Path) -> Roofline:
    return roofline_of(shared_traces / C2, None, with_overrides(None, 1.0, 50.0))


@pytest.mark.parametrize("index", range(145, 152))
def test_cpu_steps_cost_what_a_hand_computes(cpu: Roofline, index: int) -> None:
    """8 query and 2 KV heads of 64, 4 layers, bf16: from the sums of each step's label."""
    points = points_of(cpu)
    at = points.step == index
    load = cpu.analysis.steps.steps[index].load
    assert load is not None
    context, generation = load.context, load.generation
    pairs = (context.query_kv or 0) - ((context.query_query or 0) - (context.query_tokens or 0)) // 2
    pairs += (generation.query_kv or 0) - ((generation.query_query or 0) - (generation.query_tokens or 0)) // 2
    query = (context.query_tokens or 0) + (generation.query_tokens or 0)
    kv = (context.kv_tokens or 0) + (generation.kv_tokens or 0)
    assert points.flops.low[at].tolist() == points.flops.high[at].tolist() == [4 * 2 * pairs * 8 * 128]
    assert points.bytes.high[at].tolist() == [4 * 2 * (query * 8 * 128 + kv * 2 * 128)]


@pytest.mark.parametrize(("name", "model"), [(C2, None), (DECODE, "gpt-oss-20b"), (MIXED, None), (PREFILL, "Qwen3-8B")])
def test_shares_of_a_step_add_up_to_one(shared_traces: Path, name: str, model: str | None) -> None:
    split = roofline_of(shared_traces / name, model).split
    assert np.abs(split.shares.sum(axis=1) - 1).max() < 1e-6
    assert (split.parts_ns >= 0).all()
    assert (split.part_ns(Part.ATTENTION) > 0).any()


def test_a_point_above_the_roof_is_an_error_not_an_efficiency(shared_traces: Path) -> None:
    """On hardware that reads 1 TB/s the full layers' 2.418 TB/s cannot be."""
    roofline = roofline_of(shared_traces / DECODE, "gpt-oss-20b", with_overrides(None, 1307.0, 1000.0))
    note = next(note for note in roofline.notes if note.code == "above_the_roof")
    assert note.level == "error"
    assert note.count == 1
    points = points_of(roofline)
    assert roofline.hardware is not None
    assert points.is_above_roof(roofline.hardware).tolist() == group_of(roofline, AttentionKind.FULL).tolist()


def test_a_point_between_the_bounds_shares_keys_and_values(shared_traces: Path) -> None:
    """1,000 tokens that all 32 requests share are read once in the lower bound."""
    analysis = analyze_steps(shared_traces / DECODE)
    model = load_model("gpt-oss-20b")
    first = analyze_roofline(analysis, model, with_overrides(None, 1307.0, 2000.0))
    setting = AttentionSetting(shared_prefix_tokens=1000)
    points = attention_points(first.calls, analysis.steps.steps, model, AttentionCosts(analysis.steps.steps, setting))
    roof = with_overrides(None, 1307.0, 2000.0)
    assert roof is not None
    full = group_of(first, AttentionKind.FULL)
    assert points.bytes.high[full].tolist() == [12 * 113_340_416]
    assert points.bytes.high[full][0] - points.bytes.low[full][0] == 12 * 31 * 1000 * 2 * 8 * 128
    assert points.is_above_roof(roof, low=False)[full].tolist() == [True]
    assert points.is_above_roof(roof)[full].tolist() == [False]


def test_without_a_model_or_shapes_only_times_are_told(shared_traces: Path) -> None:
    roofline = roofline_of(shared_traces / DECODE, None)
    assert roofline.points is None
    assert "model_unknown" in {note.code for note in roofline.notes}
    assert roofline.calls.duration_ns.sum() > 0


def test_a_model_that_contradicts_the_shapes_is_named(shared_traces: Path) -> None:
    roofline = roofline_of(shared_traces / PREFILL, "Llama-3.1-70B")
    assert "model_contradicts_trace" in {note.code for note in roofline.notes}


def test_steps_without_sums_have_times_only(shared_traces: Path) -> None:
    analysis: StepAnalysis = analyze_steps(
        shared_traces / "vllm_cpu/b_dense_native_shapes_stack_pollframes_removed.pt.trace.json.gz"
    )
    roofline = analyze_roofline(analysis, None, None)
    points = points_of(roofline)
    assert not points.known.any()
    assert np.isnan(points.rate(points.flops.high)).all()
    assert "attention_sums_missing" in {note.code for note in roofline.notes}
