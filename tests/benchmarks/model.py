"""What does a forward of a dense decoder run: host ops, Python frames, kernels? Named as in profiles of vLLM."""

from __future__ import annotations

from typing import NamedTuple

HIDDEN, QKV, FFN, VOCABULARY, PAGES = 4096, 6144, 12288, 151_936, 48_000


class HostOp(NamedTuple):
    """An op, with the arguments that a profiler writes as they stand in the JSON."""

    name: str
    args: str


class Kernel(NamedTuple):
    """A kernel: us at few tokens, us for each 1,000 tokens, registers, threads of a block."""

    name: str
    base_us: float
    us_per_kilotoken: float
    registers: int
    threads: int


_FLASH = (
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<128>, cute::C<128>, cute::C<128> >, 128, "
    "cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, false, false, true, true, true, true, false>, "
    "flash::CollectiveEpilogueFwd<cute::tuple<cute::C<128>, cute::C<128>, cute::C<128> >, cutlass::bfloat16_t, 256, "
    "true, false>, flash::VarlenDynamicPersistentTileScheduler<128, 256, 128, false, true> > > >("
    "flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, "
    "cute::C<1>, cute::C<1> >, cute::tuple<cute::C<128>, cute::C<128>, cute::C<128> >, 128, cutlass::bfloat16_t, "
    "float, cutlass::arch::Sm90, true, false> > >::Params)"
)
_NORM = (
    "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*, c10::BFloat16 "
    "const*, float, int, int)"
)
_ROPE = (
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*, "
    "c10::BFloat16 const*, int, long, long, long, int, int, int)"
)
_PAGES = (
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>"
    "(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, long const*, long, long, int)"
)
_GATE = (
    "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 "
    "const&)), true>(c10::BFloat16*, c10::BFloat16 const*, int)"
)
_LAYER = (
    Kernel(_NORM, 2.0, 6.0, 32, 1024),
    Kernel("nvjet_tst_64x144_64x16_2x1_v_bz_coopA_TNT", 9.5, 64.0, 168, 384),
    Kernel(_ROPE, 1.8, 7.0, 28, 512),
    Kernel(_PAGES, 2.1, 5.0, 24, 512),
    Kernel(_FLASH, 15.0, 42.0, 168, 384),
    Kernel("nvjet_tst_64x64_64x8_2x1_v_bz_coopA_TNT", 6.0, 45.0, 168, 384),
    Kernel(_NORM, 2.0, 6.0, 32, 1024),
    Kernel("nvjet_tst_128x224_64x8_2x1_v_bz_coopA_TNT", 25.0, 228.0, 168, 384),
    Kernel(_GATE, 3.2, 31.0, 24, 1024),
)
_EMBED = Kernel(
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)", 1.7, 4.0, 24, 256
)
_TAIL = (
    Kernel("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", 95.0, 0.0, 168, 384),
    Kernel(
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int,"
        " long, 4, 4> >(at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4>)",
        11.0,
        0.0,
        40,
        512,
    ),
)

# Calls from the outermost to the innermost, one chain after another within a step.
_CALLS = (
    "vllm/v1/worker/gpu_model_runner.py(%d): execute_model",
    "torch/utils/_contextlib.py(%d): decorate_context",
    "vllm/v1/worker/gpu_model_runner.py(%d): _prepare_inputs",
    "vllm/v1/worker/block_table.py(%d): commit_block_table",
    "torch/nn/modules/module.py(%d): _call_impl",
    "vllm/v1/attention/backends/flash_attn.py(%d): build",
    "torch/_ops.py(%d): __call__",
    "<built-in method copy_ of Tensor object at 0x7f31c0%06x>",
    "vllm/compilation/cuda_graph.py(%d): __call__",
    "vllm/forward_context.py(%d): get_forward_context",
    "vllm/v1/sample/sampler.py(%d): forward",
    "<built-in method item of Tensor object at 0x7f31c2%06x>",
)
CALL_DEPTH = 8


def kernels(layers: int) -> tuple[Kernel, ...]:
    """Which kernels does a forward run, in order?"""
    return (_EMBED, *_LAYER * layers, *_TAIL)


def python_calls(count: int) -> list[str]:
    """Names of ``count`` Python frames."""
    return [_CALLS[number % len(_CALLS)] % (60 + number * 7) for number in range(count)]


def host_ops(layers: int, tokens: int, *, eager: bool) -> list[HostOp]:
    """Which ops does the host run for these tokens? With a graph to replay only bookkeeping."""
    ops = [
        _op("aten::copy_", f"[[{tokens}], [{tokens}], []]", ("int", "int", "Scalar"), "[[1], [1], []]"),
        _op(
            "aten::embedding",
            f"[[{VOCABULARY}, {HIDDEN}], [{tokens}]]",
            ("c10::BFloat16", "long int"),
            "[[4096, 1], [1]]",
        ),
    ]
    if eager:
        ops += _eager_layer(tokens) * layers
    else:
        ops += _replay_bookkeeping(tokens) * layers
    return [
        *ops,
        _op(
            "aten::index_select",
            f"[[{tokens}, {HIDDEN}], [], [64]]",
            ("c10::BFloat16", "Scalar", "int"),
            "[[4096, 1], [], [1]]",
        ),
        _matmul(tokens, HIDDEN, VOCABULARY),
        _op(
            "aten::argmax",
            f"[[64, {VOCABULARY}], [], []]",
            ("float", "Scalar", "Scalar"),
            f"[[{VOCABULARY}, 1], [], []]",
        ),
    ]


def _eager_layer(tokens: int) -> list[HostOp]:
    bf16 = "c10::BFloat16"
    pages = f"[{PAGES}, 16, 8, 128]"
    return [
        _op(
            "_C::fused_add_rms_norm",
            f"[[{tokens}, {HIDDEN}], [{tokens}, {HIDDEN}], [{HIDDEN}], []]",
            (bf16,) * 4,
            "[[4096, 1], [4096, 1], [1], []]",
        ),
        _matmul(tokens, HIDDEN, QKV),
        _op(
            "vllm::unified_attention_with_output",
            f"[[{tokens}, 32, 128], [{tokens}, 8, 128], [{tokens}, 8, 128], [{tokens}, 32, 128], []]",
            (bf16, bf16, bf16, bf16, ""),
            "[[6144, 128, 1], [6144, 128, 1], [6144, 128, 1], [4096, 128, 1], []]",
        ),
        _op(
            "_vllm_fa3_C::fwd",
            f"[[{tokens}, 32, 128], {pages}, {pages}, [65], [64], [64, 512]]",
            (bf16, bf16, bf16, "int", "int", "int"),
            "[[6144, 128, 1], [16384, 1024, 128, 1], [16384, 1024, 128, 1], [1], [1], [512, 1]]",
        ),
        _matmul(tokens, HIDDEN, HIDDEN),
        _matmul(tokens, HIDDEN, 2 * FFN),
        _op(
            "_C::silu_and_mul", f"[[{tokens}, {FFN}], [{tokens}, {2 * FFN}]]", (bf16, bf16), "[[12288, 1], [24576, 1]]"
        ),
    ]


def _replay_bookkeeping(tokens: int) -> list[HostOp]:
    return [
        _op(
            "aten::as_strided",
            f"[[{tokens}, 512], [], [], []]",
            ("int", "ScalarList", "ScalarList", "Scalar"),
            "[[512, 1], [], [], []]",
        ),
        _op("aten::select", f"[[{tokens}, 512], [], []]", ("int", "Scalar", "Scalar"), "[[512, 1], [], []]"),
    ]


def _matmul(tokens: int, inner: int, outer: int) -> HostOp:
    bf16 = ("c10::BFloat16", "c10::BFloat16")
    return _op("aten::mm", f"[[{tokens}, {inner}], [{inner}, {outer}]]", bf16, f"[[{inner}, 1], [1, {inner}]]")


def _op(name: str, dims: str, types: tuple[str, ...], strides: str) -> HostOp:
    quoted = ", ".join(f'"{kind}"' for kind in types)
    concrete = ", ".join('""' for _ in types)
    return HostOp(
        name,
        f'"Concrete Inputs": [{concrete}], "Input type": [{quoted}], "Input Strides": {strides}, "Input Dims": {dims}',
    )
