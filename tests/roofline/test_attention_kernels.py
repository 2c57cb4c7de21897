"""Which kernels are a step's attention, which layer and group each is, and how long each layer took."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.make_trace import TraceMaker, vllm
from tracelens_infer.roofline.attention_kernels import SERVES, AttentionCalls, GroupedBy, attention_calls
from tracelens_infer.roofline.model import AttentionKind, AttentionShape, LayerShape, ModelShape
from tracelens_infer.steps.analyze import StepAnalysis, analyze_steps
from tracelens_infer.steps.attention_ops import Serves
from tracelens_infer.steps.kernel_families import named_rows

FULL = AttentionShape(AttentionKind.FULL, 64, 8, 64, 64)
WINDOW = replace(FULL, kind=AttentionKind.WINDOW, window_tokens=128)
LINEAR = replace(FULL, kind=AttentionKind.LINEAR)

SGLANG = "tracelens/sglang_mi300x_qwen3_8b_prefill.json.gz"
DECODE = "tracelens/vllm_mi300x_decode_graph.json.gz"
MIXED = "tracelens/vllm_mi300x_mixed_piecewise.json.gz"


def model(*shapes: AttentionShape, draft_layers: int = 0) -> ModelShape:
    layers = tuple(LayerShape(shape, None) for shape in shapes)
    return ModelShape("made", "test", 64, 64, layers, "bf16", "bf16", "bf16", None, draft_layers=draft_layers)


GPT_OSS = model(*[WINDOW, FULL] * 12)  # 24 layers, the first one windowed


def analyzed(folder: Path, *steps: tuple[str, list[tuple[str, float]]]) -> StepAnalysis:
    """Make steps, each a label and its kernels in order of launch, and find them."""
    maker = TraceMaker()
    for number, (label, kernels) in enumerate(steps):
        begin = number * 10_000
        maker.label(label, begin, 5_000)
        at = begin + 5_000.0
        for place, (name, lasts) in enumerate(kernels):
            correlation = number * 1_000 + place + 1
            maker.span("cuda_runtime", "cudaLaunchKernel", begin + 10 + 5 * place, 2, correlation=correlation)
            maker.kernel(at, lasts, correlation=correlation, name=name)
            at += lasts + 1
    return maker.analyze(folder)


def serves(calls: AttentionCalls) -> list[Serves]:
    return [SERVES[number] for number in calls.serves.tolist()]


# -- layers, and what belongs to them


def test_a_merge_belongs_to_the_kernel_before_it_and_other_kernels_to_none(tmp_path: Path) -> None:
    layer = [("sgemm", 30.0), ("kernel_unified_attention_3d", 20.0), ("reduce_segments", 4.0), ("rms_norm", 3.0)]
    calls = attention_calls(analyzed(tmp_path, (vllm(0, 4), layer * 3), (vllm(0, 4), layer * 3)))
    assert calls.step.tolist() == [0, 0, 0, 1, 1, 1]
    assert calls.layer.tolist() == [0, 1, 2, 0, 1, 2]
    assert calls.layers == 3
    assert calls.main_ns.tolist() == [20_000] * 6
    assert calls.combine_ns.tolist() == [4_000] * 6
    assert calls.duration_ns.tolist() == [24_000] * 6
    assert calls.names == ("kernel_unified_attention_3d",)
    assert calls.of_step(1) == slice(3, 6)
    assert calls.on_device
    assert calls.notes == ()


def test_the_indexer_of_sparse_attention_belongs_to_the_kernel_after_it(tmp_path: Path) -> None:
    layer = [
        ("fp8_paged_mqa_logits", 5.0),
        ("flash_fwd_splitkv_mla_kernel", 20.0),
        ("flash_fwd_mla_combine_kernel", 2.0),
    ]
    calls = attention_calls(analyzed(tmp_path, (vllm(0, 4), layer * 2)))
    assert calls.combine_ns.tolist() == [7_000, 7_000]


def test_a_merge_without_attention_in_its_step_is_left_out_with_a_note(tmp_path: Path) -> None:
    step = (vllm(0, 4), [("kernel_unified_attention_3d", 20.0)] * 2)
    calls = attention_calls(analyzed(tmp_path, step, (vllm(0, 4), [("reduce_segments", 4.0), *step[1]])))
    assert calls.combine_ns.tolist() == [0] * 4
    assert [(note.code, note.count) for note in calls.notes] == [("combine_without_attention", 1)]


def test_layers_follow_the_order_of_launches_not_of_starts(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label(vllm(0, 4), 0, 100)
    for place, (start, lasts) in enumerate([(50.0, 30.0), (200.0, 10.0)]):
        maker.span("cuda_runtime", "cudaLaunchKernel", 10 + 5 * (1 - place), 2, correlation=place + 1)
        maker.kernel(start, lasts, correlation=place + 1, name="flash_fwd_kernel", stream=7 + place)
    calls = attention_calls(maker.analyze(tmp_path))
    assert calls.main_ns.tolist() == [10_000, 30_000]


def test_steps_without_attention_and_traces_without_any_have_no_calls(tmp_path: Path) -> None:
    calls = attention_calls(analyzed(tmp_path, (vllm(0, 4), [("sgemm", 5.0)])))
    assert len(calls) == len(calls.group_times()) == 0
    assert (calls.layers, calls.grouped_by, calls.groups) == (None, None, ())
    assert calls.linear_ns.tolist() == [0]


def test_linear_attention_is_summed_by_step_beside_the_layers(tmp_path: Path) -> None:
    linear = [("_causal_conv1d_update_kernel", 2.0), ("fused_recurrent_gated_delta_rule_fwd_kernel", 6.0)]
    analysis = analyzed(tmp_path, (vllm(0, 4), [*linear * 3, ("kernel_unified_attention_2d", 20.0)] * 2))
    calls = attention_calls(analysis, model=model(*[LINEAR, LINEAR, LINEAR, FULL] * 2))
    assert calls.linear_ns.tolist() == [48_000]
    assert (calls.layers, calls.layer.tolist(), calls.notes) == (2, [0, 1], ())
    assert [(group.kind, group.layers, group.model_layers) for group in calls.groups] == [
        (AttentionKind.FULL, (0, 1), (3, 7))
    ]


# -- phases


def test_kernels_of_two_names_tell_the_phases_of_a_mixed_step_apart(tmp_path: Path) -> None:
    layer = [("BatchPrefillWithPagedKVCacheKernel", 50.0), ("BatchDecodeWithPagedKVCacheKernel", 10.0),
             ("VariableLengthMergeStatesKernel", 1.0)]  # fmt: skip
    calls = attention_calls(analyzed(tmp_path, (vllm(1, 4), layer * 3)))
    assert serves(calls) == [Serves.CONTEXT, Serves.GENERATION] * 3
    assert calls.layer.tolist() == [0, 0, 1, 1, 2, 2]
    times = calls.group_times()
    assert [(SERVES[serve], spent) for serve, spent in zip(times.serves, times.duration_ns, strict=True)] == [
        (Serves.CONTEXT, 150_000),
        (Serves.GENERATION, 33_000),
    ]


@pytest.mark.parametrize(
    ("label", "name", "expected"),
    [
        (vllm(1, 4), "kernel_unified_attention_2d", Serves.BOTH),
        (vllm(0, 4), "kernel_unified_attention_2d", Serves.GENERATION),
        (vllm(2, 0), "kernel_unified_attention_2d", Serves.CONTEXT),
        (vllm(1, 4), "BatchPrefillWithPagedKVCacheKernel", Serves.BOTH),  # one kernel for both phases
        (vllm(0, 4), "BatchPrefillWithPagedKVCacheKernel", Serves.GENERATION),
        ("ProfilerStep#1", "BatchDecodeWithPagedKVCacheKernel", Serves.GENERATION),  # only the name tells
        ("ProfilerStep#1", "_fwd_kernel", Serves.CONTEXT),
        ("ProfilerStep#1", "flash_fwd_splitkv_kernel", Serves.BOTH),
    ],
)
def test_what_a_step_runs_decides_over_the_names_of_kernels(
    tmp_path: Path, label: str, name: str, expected: Serves
) -> None:
    assert serves(attention_calls(analyzed(tmp_path, (label, [(name, 5.0)] * 2)))) == [expected] * 2


# -- groups of layers


def test_names_tell_groups_apart_in_every_step_of_the_trace(tmp_path: Path) -> None:
    decode = [("kernel_unified_attention_2d", 5.0), ("kernel_unified_attention_3d", 9.0)] * 3
    prefill = [("kernel_unified_attention_2d", 100.0)] * 6  # one kernel for all layers: says nothing
    calls = attention_calls(analyzed(tmp_path, (vllm(0, 4), decode), (vllm(1, 4), prefill), (vllm(0, 4), decode)))
    assert calls.grouped_by is GroupedBy.KERNEL_NAME
    assert calls.group.tolist() == [1, 0] * 9  # the longer one is group 0
    assert [group.layers for group in calls.groups] == [(1, 3, 5), (0, 2, 4)]
    assert [group.kind for group in calls.groups] == [None, None]


def test_the_models_order_tells_groups_apart_where_names_do_not(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, (vllm(1, 4), [("kernel_unified_attention_2d", 20.0)] * 4))
    calls = attention_calls(analysis, model=model(WINDOW, FULL, WINDOW, FULL))
    assert calls.grouped_by is GroupedBy.LAYER_ORDER
    assert [(group.kind, group.layers) for group in calls.groups] == [
        (AttentionKind.WINDOW, (0, 2)),
        (AttentionKind.FULL, (1, 3)),
    ]


def test_names_that_contradict_the_model_are_noted_and_the_model_counts(tmp_path: Path) -> None:
    names = ["kernel_unified_attention_2d"] * 2 + ["kernel_unified_attention_3d"] * 2
    analysis = analyzed(tmp_path, (vllm(0, 4), [(name, 20.0) for name in names]))
    calls = attention_calls(analysis, model=model(WINDOW, FULL, WINDOW, FULL))
    assert calls.grouped_by is GroupedBy.LAYER_ORDER
    assert calls.group.tolist() == [0, 1, 0, 1]
    assert [note.code for note in calls.notes] == ["attention_groups_disagree"]


@pytest.mark.parametrize(
    ("times", "groups"),
    [
        ([10.0, 22.0, 10.5, 23.0], [1, 0, 1, 0]),  # 22 is 2.1 times 10.5
        ([10.0, 14.0, 10.5, 14.5], None),  # 1.33: no clear gap
        ([10.0, 10.2, 10.1, 40.0], None),  # one slow layer is no group
        ([10.0, 19.0, 40.0] * 2, None),  # three kinds: 40 is 2.1 times 19, but 19 is 1.9 times 10
        ([10.0, 14.0, 25.0, 36.0], None),  # nor are these alike in themselves: 1.79, but 1.4 and 1.44
        ([10.0, 20.0], None),
    ],
)
def test_time_tells_groups_apart_only_with_a_clear_gap(
    tmp_path: Path, times: list[float], groups: list[int] | None
) -> None:
    kernels = [("kernel_unified_attention_2d", lasts) for lasts in times]
    calls = attention_calls(analyzed(tmp_path, (vllm(1, 4), kernels)))
    assert calls.grouped_by is (GroupedBy.TIME if groups else None)
    assert calls.group.tolist() == (groups or [0] * len(times))


def test_steps_with_another_number_of_kernels_are_not_told_apart(tmp_path: Path) -> None:
    kernel = ("flash_fwd_kernel", 20.0)
    analysis = analyzed(tmp_path, (vllm(0, 4), [kernel] * 4), (vllm(0, 4), [kernel] * 3), (vllm(0, 4), [kernel] * 4))
    calls = attention_calls(analysis)
    assert (calls.layers, calls.group.tolist()) == (4, [0] * 4 + [-1] * 3 + [0] * 4)
    assert [(note.code, note.count) for note in calls.notes] == [("attention_calls_unlike_layers", 1)]
    calls = attention_calls(analysis, model=model(FULL, FULL, FULL, FULL))
    assert (calls.layers, calls.group.tolist()) == (4, [0] * 4 + [-1] * 3 + [0] * 4)


def test_several_kernels_a_layer_in_a_row_are_chunks_of_it(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, (vllm(1, 0), [("flash_fwd_kernel", 20.0)] * 6))
    calls = attention_calls(analysis, model=model(WINDOW, FULL, WINDOW))
    assert calls.layer.tolist() == [0, 0, 1, 1, 2, 2]
    assert calls.group.tolist() == [0, 0, 1, 1, 0, 0]


def test_the_layers_of_a_draft_model_are_counted_apart(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, (vllm(0, 4), [("flash_fwd_kernel", 20.0)] * 4 + [("flash_fwd_kernel", 5.0)] * 2))
    calls = attention_calls(analysis, model=model(FULL, FULL, FULL, FULL, draft_layers=1))
    assert calls.draft.tolist() == [False] * 4 + [True] * 2
    assert calls.group.tolist() == [0] * 4 + [-1] * 2
    assert calls.group_times().duration_ns.tolist() == [80_000]
    assert calls.draft_ns().tolist() == [10_000]
    assert calls.notes == ()


def test_a_model_of_linear_layers_alone_has_no_layers_with_attention(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, (vllm(0, 4), [("flash_fwd_kernel", 20.0)] * 2))
    calls = attention_calls(analysis, model=model(LINEAR, LINEAR))
    assert calls.group.tolist() == [-1, -1]
    assert [note.code for note in calls.notes] == ["attention_calls_unlike_layers"]


# -- without a device


def test_without_a_device_the_outermost_ops_count_less_what_they_write_to_the_cache(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(2):
        at = number * 1_000
        maker.label(vllm(0, 4), at, 900)
        for layer in range(3):
            begin = at + 100 + 200 * layer
            maker.op("vllm::unified_attention_with_output", begin, 100)
            maker.op("_C::cpu_attn_reshape_and_cache", begin + 1, 15)
            maker.op("_C::cpu_attention_with_kv_cache", begin + 20, 70)
    calls = attention_calls(maker.analyze(tmp_path))
    assert not calls.on_device
    assert calls.step.tolist() == [0, 0, 0, 1, 1, 1]
    assert calls.main_ns.tolist() == [85_000] * 6
    assert calls.names == ("vllm::unified_attention_with_output",)


def test_ops_that_only_launch_are_not_taken_for_attention(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label(vllm(0, 4), 0, 900)
    maker.op("aten::scaled_dot_product_attention", 10, 20)
    maker.kernel(500, 200, name="flash_fwd_kernel")  # of an unknown launch
    calls = attention_calls(maker.analyze(tmp_path))
    assert len(calls) == 0
    assert [note.code for note in calls.notes] == ["attention_unattributed"]


# -- real traces


def test_sglang_prefill_has_36_layers_in_20075_us(shared_traces: Path) -> None:
    calls = attention_calls(analyze_steps(shared_traces / SGLANG))
    assert (len(calls), calls.layers, set(serves(calls))) == (36, 36, {Serves.CONTEXT})
    assert round(int(calls.duration_ns.sum()) / 1e3) == 20_075
    assert not calls.combine_ns.any()
    assert calls.grouped_by is None


@pytest.mark.parametrize("known", [None, GPT_OSS])
def test_gpt_oss_decode_has_12_full_and_12_windowed_layers(shared_traces: Path, known: ModelShape | None) -> None:
    calls = attention_calls(analyze_steps(shared_traces / DECODE), model=known)
    assert (len(calls), calls.layers, set(serves(calls))) == (24, 24, {Serves.GENERATION})
    assert calls.grouped_by is GroupedBy.KERNEL_NAME
    full = next(group for group in calls.groups if group.names == ("kernel_unified_attention_3d",))
    window = next(group for group in calls.groups if group.names == ("kernel_unified_attention_2d",))
    assert full.layers == tuple(range(1, 24, 2))
    assert window.layers == tuple(range(0, 24, 2))
    if known is not None:
        assert (window.kind, full.kind) == (AttentionKind.WINDOW, AttentionKind.FULL)
    times = calls.group_times()
    mean = {
        group: (round(main / count / 1e3, 2), round(combine / count / 1e3, 2), round((main + combine) / count / 1e3, 2))
        for group, count, main, combine in zip(times.group, times.calls, times.main_ns, times.combine_ns, strict=True)
    }
    assert mean == {full.number: (41.16, 5.72, 46.88), window.number: (13.48, 0.0, 13.48)}


@pytest.mark.parametrize(("known", "source"), [(None, GroupedBy.TIME), (GPT_OSS, GroupedBy.LAYER_ORDER)])
def test_gpt_oss_mixed_step_tells_both_groups_apart(
    shared_traces: Path, known: ModelShape | None, source: GroupedBy
) -> None:
    calls = attention_calls(analyze_steps(shared_traces / MIXED), model=known)
    assert (calls.layers, calls.grouped_by, set(serves(calls))) == (24, source, {Serves.BOTH})
    assert sorted(group.layers for group in calls.groups) == [tuple(range(0, 24, 2)), tuple(range(1, 24, 2))]
    times = calls.group_times()
    assert sorted((times.duration_ns / times.calls / 1e3).round().tolist()) == [132, 297]


def test_each_step_of_the_cpu_engine_has_four_layers(shared_traces: Path) -> None:
    name = "vllm_cpu/c2_dense_detailed_shapes_nostack_steadywindow.pt.trace.json.gz"
    calls = attention_calls(analyze_steps(shared_traces / name))
    assert not calls.on_device
    assert np.bincount(calls.step, minlength=200).tolist() == [4] * 200
    assert (calls.layers, calls.grouped_by, calls.notes) == (4, None, ())


def test_ten_thousand_steps_cost_a_fraction_of_a_second(tmp_path: Path) -> None:
    steps, layers = 10_000, 4
    maker = TraceMaker()
    for number in range(steps):
        begin = number * 100
        maker.label("step[DECODE bs=8]", begin, 90)
        maker.span("cuda_runtime", "cudaGraphLaunch", begin + 5, 2, correlation=number + 1)
        for layer in range(layers):
            name = "kernel_unified_attention_2d" if layer % 2 else "kernel_unified_attention_3d"
            maker.kernel(begin + 20 + 15 * layer, 10, correlation=number + 1, name=name)
            maker.kernel(begin + 31 + 15 * layer, 2, correlation=number + 1, name="reduce_segments")
    analysis = maker.analyze(tmp_path)
    work = analysis.work
    named = named_rows(analysis.trace, work.row)
    began = time.perf_counter()
    calls = attention_calls(analysis, named=named)
    times = calls.group_times()
    took = time.perf_counter() - began
    assert (len(calls), len(times), calls.grouped_by) == (steps * layers, 2 * steps, GroupedBy.KERNEL_NAME)
    assert took < 1
