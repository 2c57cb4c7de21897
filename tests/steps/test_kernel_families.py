"""Names of kernels and ops to families of work, and how much of real traces' time is left unknown."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.make_trace import TraceMaker
from tracelens_infer.steps.host_ops import host_ops
from tracelens_infer.steps.kernel_families import (
    FAMILY_RULES,
    FamilyTime,
    KernelFamily,
    NamedRows,
    family_of,
    family_times,
    is_wrapper,
    named_rows,
)
from tracelens_infer.trace.columns import Role
from tracelens_infer.trace.launches import link_device_work
from tracelens_infer.trace.reader import read_trace

F = KernelFamily

NAMES = [
    # -- attention, CUDA
    ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, ...>>", F.ATTENTION),
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>", F.ATTENTION),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>", F.ATTENTION),
    ("void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8, ...>>", F.ATTENTION),
    ("void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaFwdKernelTmaWarpspecialized<...>>", F.ATTENTION),
    ("fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP32VarSeqQ128Kv128PersistentContext", F.ATTENTION),
    ("fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_tma_ws_sm90_kernel", F.ATTENTION),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<...>", F.ATTENTION),
    ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<...>", F.ATTENTION),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", F.ATTENTION),
    ("void masked_multihead_attention_kernel<__nv_bfloat16>", F.ATTENTION),
    # -- attention, ROCm, Triton, CPU
    ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_40BlockFmhaBatchPrefill", F.ATTENTION),
    ("_ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelINS_29BlockFmhaPipelineQRKSVSAsync", F.ATTENTION),
    ("aiter::fmha_fwd_hd128_bf16_causal_rtna_group", F.ATTENTION),
    ("mla_a16w16_qh16_m16x4_n16x1_coex0_mask1", F.ATTENTION),
    ("_ZN5aiter38pa_bf16_noquant_gqa8_1tg_4w_uhpr_E", F.ATTENTION),
    ("void paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16, __hip_bfloat16, ...>", F.ATTENTION),
    ("void vllm::paged_attention_v2_kernel<uint16_t, uint16_t, 128, 16, 128, ...>", F.ATTENTION),
    ("kernel_unified_attention_2d", F.ATTENTION),
    ("kernel_unified_attention_3d", F.ATTENTION),
    ("_fwd_kernel", F.ATTENTION),
    ("_fwd_kernel_stage1", F.ATTENTION),
    ("_fwd_grouped_kernel_stage1", F.ATTENTION),
    ("_C::cpu_attention_with_kv_cache", F.ATTENTION),
    ("vllm::unified_attention_with_output", F.ATTENTION),
    ("vllm::unified_mla_attention_with_output", F.ATTENTION),
    ("aten::scaled_dot_product_attention", F.ATTENTION),
    ("aiter::mha_batch_prefill", F.ATTENTION),
    # -- what merges parts of attention
    ("reduce_segments", F.ATTENTION_COMBINE),
    ("_fwd_kernel_stage2", F.ATTENTION_COMBINE),
    ("void flash::flash_fwd_splitkv_combine_kernel<...>", F.ATTENTION_COMBINE),
    ("void flash::flash_fwd_mla_combine_kernel<...>", F.ATTENTION_COMBINE),
    ("void cutlass::device_kernel<flash::FlashAttnFwdCombine<...>>", F.ATTENTION_COMBINE),
    ("_ZN7ck_tile6kentryILi1ENS_28FmhaFwdSplitKVCombineKernelI", F.ATTENTION_COMBINE),
    ("void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, 128, 128, 256, 1>", F.ATTENTION_COMBINE),
    ("void vllm::paged_attention_v2_reduce_kernel<uint16_t, 128, 128, 512>", F.ATTENTION_COMBINE),
    ("void flashinfer::PersistentVariableLengthMergeStatesKernel<8, 16, 8, 4>", F.ATTENTION_COMBINE),
    ("void vllm::merge_attn_states_kernel<__nv_bfloat16, 128>", F.ATTENTION_COMBINE),
    ("void kn_mla_reduce_v1<MlaReduceKernelV1Traits<512, 128, 1>>", F.ATTENTION_COMBINE),
    ("fmhaReductionKernel", F.ATTENTION_COMBINE),
    ("sm90_fp8_paged_mqa_logits", F.ATTENTION_INDEX),
    # -- state instead of a cache
    ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", F.LINEAR_ATTENTION),
    ("_causal_conv1d_update_kernel", F.LINEAR_ATTENTION),
    ("_selective_scan_update_kernel", F.LINEAR_ATTENTION),
    # -- matrices
    ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", F.GEMM),
    ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4", F.GEMM),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn", F.GEMM),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_tn_align8>", F.GEMM),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, ...>", F.GEMM),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true>", F.GEMM),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1", F.GEMM),
    ("_ZN2ck27kernel_gemm_xdl_cshuffle_v3INS_28GridwiseGemm", F.GEMM),
    ("void marlin::Marlin<...>", F.GEMM),
    ("triton_tem_fused_mm_3", F.GEMM),
    ("_w8a8_block_fp8_matmul", F.GEMM),
    ("aten::mm", F.GEMM),
    ("aten::addmm", F.GEMM),
    ("aten::linear", F.GEMM),
    ("_C::onednn_mm", F.GEMM),
    ("_C::weight_packed_linear", F.GEMM),
    # -- experts
    ("fused_moe_kernel", F.MOE),
    ("void vllm::moe::moe_align_block_size_kernel<int>", F.MOE),
    ("void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, 32, int>", F.MOE),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", F.MOE),
    ("_combined_routing_memset", F.MOE),
    ("_topk_forward", F.MOE),
    ("triton_poi_fused_constant_pad_nd_moe_forward_0", F.MOE),
    ("_ZN5aiter50fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E", F.MOE),
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<...>>>", F.MOE),
    ("_C::cpu_fused_moe", F.MOE),
    # -- between them
    ("triton_red_fused_add_rms_norm_mul_0", F.NORM),
    ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1", F.NORM),
    ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>", F.NORM),
    ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256E", F.NORM),
    ("_C::fused_add_rms_norm", F.NORM),
    ("triton_poi_fused_mul_silu_2", F.ACTIVATION),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>", F.ACTIVATION),
    ("_C::silu_and_mul", F.ACTIVATION),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", F.ROTARY),
    ("_C::rotary_embedding", F.ROTARY),
    ("applyMLARopeAndAssignQKVKernel", F.ROTARY),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, ...>", F.KV_WRITE),
    ("void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, ...>", F.KV_WRITE),
    ("_C::cpu_attn_reshape_and_cache", F.KV_WRITE),
    ("vllm::unified_kv_cache_update", F.KV_WRITE),
    ("aten::embedding", F.EMBEDDING),
    ("void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)", F.EMBEDDING),
    ("_C::fused_gumbel_argmax", F.SAMPLING),
    ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>", F.SAMPLING),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float>", F.SAMPLING),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>", F.SAMPLING),
    ("void vllm::scaled_fp8_quant_kernel<c10::BFloat16>", F.QUANTISE),
    ("per_token_group_quant_8bit_kernel", F.QUANTISE),
    # -- between devices, and bytes that move
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", F.COLLECTIVE),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", F.COLLECTIVE),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>", F.COLLECTIVE),
    ("c10d::allreduce_", F.COLLECTIVE),
    ("Memcpy HtoD (Pinned -> Device)", F.COPY),
    ("Memset (Device)", F.COPY),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 4, 64, 64>", F.COPY),
    ("triton_poi_fused__to_copy_1", F.COPY),
    # -- the rest
    ("triton_poi_fused_add_mul_4", F.ELEMENTWISE),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>", F.ELEMENTWISE),
    ("aten::cumsum", F.ELEMENTWISE),
    ("volta_scudnn_128x64_relu_medium_nn_v1", F.CONVOLUTION),
    ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm", F.CONVOLUTION),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>>", F.OPTIMIZER),
    ("get_mla_metadata_kernel", F.METADATA),
    ("_C::compute_slot_mapping_kernel_impl", F.METADATA),
    ("create_flashinfer_kv_indices_triton", F.METADATA),
    ("aten::view", F.METADATA),
    ("aten::transpose", F.METADATA),  # a view on the host; kernels called so move bytes
    ("batched_transpose_32x32_half", F.COPY),
    ("my_kernel", F.UNKNOWN),
    ("", F.UNKNOWN),
]

DEVICE_TRACES = [
    "tracelens/vllm_mi300x_decode_graph.json.gz",
    "tracelens/vllm_mi300x_mixed_piecewise.json.gz",
    "tracelens/sglang_mi300x_qwen3_8b_prefill.json.gz",
    "tracelens/hf_h100_qwen1.5_0.5b.json.gz",
    "tracelens/ddp_mi300x_resnet.json.gz",
    "hta/ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "hta/critical_path_cuda_event_sync_multi_stream__event_sync_trace.json.gz",
    "kineto/w0_old.json.gz",
]
CPU_TRACES = [
    "vllm_cpu/c2_dense_detailed_shapes_nostack_steadywindow.pt.trace.json.gz",
    "vllm_cpu/g_dense_detailed_shapes_stack_10steps.pt.trace.json.gz",
    "vllm_cpu/d_dense_noannotation_stripped_from_g_stack.pt.trace.json.gz",
    "hta/cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
]


@pytest.mark.parametrize(("name", "family"), NAMES)
def test_a_name_tells_its_family(name: str, family: KernelFamily) -> None:
    assert family_of(name) is family


def test_the_table_of_names_is_long_and_covers_every_family() -> None:
    assert len(NAMES) >= 80
    assert {family for _, family in NAMES} == set(KernelFamily)
    assert {rule.family for rule in FAMILY_RULES} == set(KernelFamily) - {F.UNKNOWN}


def test_each_rule_is_a_pattern_with_its_source_and_matches_no_empty_name() -> None:
    for rule in FAMILY_RULES:
        assert re.search(rule.pattern, "", re.IGNORECASE) is None, rule
        assert rule.seen


@given(st.text(max_size=60))
def test_every_text_has_a_family_that_does_not_depend_on_case(name: str) -> None:
    assert family_of(name) in KernelFamily
    if name.isascii():
        assert family_of(name.upper()) is family_of(name.lower())


def test_words_inside_other_words_are_no_sign() -> None:
    assert family_of("get_device_properties") is F.UNKNOWN  # "rope"
    assert family_of("_ZN2ck6TensorENSA_IJLi1EEE") is F.UNKNOWN  # "nsa_" in a mangled template
    assert family_of("upsample_nearest_kernel") is F.UNKNOWN  # "sample"
    assert family_of("aten::normal_") is F.ELEMENTWISE  # "norm"


def test_wrappers_are_ops_that_only_call_others() -> None:
    assert is_wrapper("vllm::unified_attention_with_output")
    assert is_wrapper("autograd::engine::evaluate_function: MmBackward0")
    assert not is_wrapper("vllm::unified_kv_cache_update")
    assert not is_wrapper("aten::linear")


def test_times_are_summed_by_family_and_what_no_rule_knows_is_named() -> None:
    names = ("Memset (Device)", "ampere_sgemm_128x64_nn", "mystery", "volta_sgemm_64x64_nt", "riddle")
    named = NamedRows(np.arange(6), np.array([1, 1, 0, 2, 3, 4]), names, tuple(map(family_of, names)))
    times = family_times(named, np.array([30, 30, 10, 15, 10, 5], dtype=np.int64))
    assert times.times == (FamilyTime(F.GEMM, 70, 3), FamilyTime(F.UNKNOWN, 20, 2), FamilyTime(F.COPY, 10, 1))
    assert times.total_ns == 100
    assert times.share(F.GEMM) == 0.7
    assert times.share(F.NORM) == 0
    assert times.unknown_share == 0.2
    assert times.unknown_names == (("mystery", 15), ("riddle", 5))


def test_nothing_takes_no_time() -> None:
    none = NamedRows(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.int64), (), ())
    times = family_times(none, np.zeros(0, dtype=np.int64))
    assert (times.times, times.total_ns, times.unknown_share) == ((), 0, 0.0)
    assert none.is_any(F.GEMM).tolist() == []


def test_names_are_read_once_and_numbered_in_the_order_asked_for(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number, name in enumerate(("sgemm", "reduce_segments", "sgemm")):
        maker.kernel(10 * number, 5, name=name)
    trace = maker.read(tmp_path)
    named = named_rows(trace, np.array([2, 1, 0, 1]))
    assert named.names == ("sgemm", "reduce_segments")
    assert named.name.tolist() == [0, 1, 0, 1]
    assert named.families == (F.GEMM, F.ATTENTION_COMBINE)
    assert named.is_any(F.GEMM, F.MOE).tolist() == [True, False, True, False]
    assert named.of(np.array([1])).name.tolist() == [1]


# -- ops of the host


def test_an_op_counts_for_the_outermost_known_one_and_wrappers_only_for_the_rest_of_their_time(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op("vllm::unified_attention_with_output", 0, 100)  # 100 - 20 - 70
    maker.op("_C::cpu_attn_reshape_and_cache", 5, 20)
    maker.op("_C::cpu_attention_with_kv_cache", 28, 70)  # with a copy in it
    maker.op("aten::copy_", 30, 10)
    maker.op("aten::linear", 200, 50)  # gemm, whatever it calls
    maker.op("aten::t", 201, 5)
    maker.op("aten::addmm", 210, 30)
    maker.op("my::op", 300, 40)  # unknown, but for the norm in it
    maker.op("_C::rms_norm", 310, 30)
    maker.op("_C::rms_norm", 310, 30, thread=7)
    ops = host_ops(maker.read(tmp_path))
    times = family_times(ops.named, ops.self_ns)
    assert times.total_ns == 220_000
    taken = {time.family: time.duration_ns for time in times.times}
    assert taken == {F.ATTENTION: 80_000, F.KV_WRITE: 20_000, F.GEMM: 50_000, F.NORM: 60_000, F.UNKNOWN: 10_000}
    assert times.unknown_names == (("my::op", 10_000),)
    outermost = ops.outermost(F.ATTENTION)
    assert [ops.named.names[number] for number in ops.named.name[outermost]] == ["vllm::unified_attention_with_output"]


def test_a_trace_without_ops_has_none(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.kernel(0, 5)
    ops = host_ops(maker.read(tmp_path))
    assert len(ops.named.row) == len(ops.outermost(F.ATTENTION)) == 0


# -- real traces


@pytest.mark.parametrize("name", DEVICE_TRACES)
def test_the_device_time_of_a_real_trace_is_known_but_for_two_percent(shared_traces: Path, name: str) -> None:
    trace = read_trace(shared_traces / name)
    work = link_device_work(trace)
    times = family_times(named_rows(trace, work.row), work.end_ns - work.start_ns)
    assert times.total_ns > 0
    assert times.unknown_share < 0.02, times.unknown_names


@pytest.mark.parametrize("name", CPU_TRACES)
def test_the_op_time_of_a_real_trace_is_known_but_for_two_percent(shared_traces: Path, name: str) -> None:
    trace = read_trace(shared_traces / name)
    ops = host_ops(trace)
    times = family_times(ops.named, ops.self_ns)
    assert times.unknown_share < 0.02, times.unknown_names
    start = trace.columns.start_ns[trace.rows(Role.HOST_OP)]
    assert 0 < times.total_ns <= int(ops.end_ns.max() - start.min())


def test_families_of_the_gpt_oss_decode_step_add_up(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / DEVICE_TRACES[0])
    work = link_device_work(trace)
    times = family_times(named_rows(trace, work.row), work.end_ns - work.start_ns)
    shares = {time.family.value: round(100 * times.share(time.family), 1) for time in times.times}
    assert sum(time.duration_ns for time in times.times) == times.total_ns
    assert sum(times.share(time.family) for time in times.times) == pytest.approx(1, abs=1e-6)
    assert (shares["moe"], shares["gemm"], shares["attention"], shares["attention_combine"]) == (72.7, 11.5, 6.1, 0.6)
