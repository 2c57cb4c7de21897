"""What kind of work is a kernel or an op, by its name? One table of patterns, and times by family."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np

from tracelens_infer.trace.columns import BoolArray, Int64Array, RowArray, Trace
from tracelens_infer.trace.reader import event_names

__all__ = [
    "FAMILY_RULES",
    "FamilyRule",
    "FamilyTime",
    "FamilyTimes",
    "KernelFamily",
    "NamedRows",
    "family_of",
    "family_times",
    "is_wrapper",
    "named_rows",
]


class KernelFamily(StrEnum):
    """What kind of work does a kernel (where no device was recorded: an op) do?"""

    ATTENTION = "attention"
    ATTENTION_COMBINE = "attention_combine"  # merges partial results of attention
    ATTENTION_INDEX = "attention_index"  # picks the tokens that sparse attention reads
    LINEAR_ATTENTION = "linear_attention"  # linear attention and state-space layers, several kernels a layer
    GEMM = "gemm"
    MOE = "moe"  # routing, the experts' matrices, and their sum
    NORM = "norm"
    ACTIVATION = "activation"
    ROTARY = "rotary"
    KV_WRITE = "kv_write"
    EMBEDDING = "embedding"  # rows looked up by index
    SAMPLING = "sampling"
    QUANTISE = "quantise"
    COLLECTIVE = "collective"
    COPY = "copy"  # memcpy, memset, and kernels that move, cast or fill without arithmetic
    CONVOLUTION = "convolution"
    ELEMENTWISE = "elementwise"  # pointwise arithmetic, and reductions that no other family claims
    OPTIMIZER = "optimizer"
    METADATA = "metadata"  # positions, slots and schedules of a step; on the host views and allocations
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FamilyRule:
    """Which names belong to a family? ``pattern`` is searched for, in either case; ``seen`` says whose kernels."""

    pattern: str
    family: KernelFamily
    seen: str


def _rules(*rows: tuple[str, KernelFamily, str]) -> tuple[FamilyRule, ...]:
    return tuple(FamilyRule(*row) for row in rows)


_F = KernelFamily

# The first row that matches wins, so what has a narrower meaning stands above what its name contains: caches are
# written by kernels called attention, partial results are reduced by kernels called attention or gemm, experts are
# multiplied by kernels called gemm, and a compiler names a fused kernel by everything in it.
FAMILY_RULES: tuple[FamilyRule, ...] = _rules(
    (r"^mem(cpy|set)\b", _F.COPY, "Kineto: Memcpy HtoD, Memset (Device)"),
    # -- between devices
    (r"nccl|rccl|^c10d::|^record_param_comms", _F.COLLECTIVE, "NCCL, RCCL, torch.distributed"),
    (r"cross_device_reduce|quick_?reduce|outplace_all_?reduce|custom_ar\b", _F.COLLECTIVE, "vLLM, SGLang, aiter"),
    (r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast_kernel", _F.COLLECTIVE, "FlashInfer, TRT-LLM"),
    (r"deep_ep|nvshmem|rocshmem|multimem|symm_mem|mori::", _F.COLLECTIVE, "DeepEP, PyTorch symmetric memory, MORI"),
    # -- on the host: views and allocations
    (r"^aten::(_unsafe_|_reshape_)?(view|alias)(_as|_copy)?$|^aten::(reshape|flatten|unflatten)$", _F.METADATA, "ATen"),
    (r"^aten::(new_)?empty(_like|_strided)?$|^aten::(as_strided|set|resize|resize_as)_?$", _F.METADATA, "ATen"),
    (r"^aten::(un)?squeeze_?$|^aten::(slice|narrow|select|chunk|unbind|split\w*|tensor_split)$", _F.METADATA, "ATen"),
    (r"^aten::(t|transpose|permute|numpy_T|expand|expand_as|broadcast_tensors|movedim)_?$", _F.METADATA, "ATen"),
    (r"^(aten::)?detach_?$|^aten::(lift_fresh|resolve_conj|resolve_neg|conj|result_type)$", _F.METADATA, "ATen"),
    (r"^aten::(item|_local_scalar_dense|is_nonzero)$|^aten::(un)?flatten_dense_tensors$", _F.METADATA, "ATen"),
    (r"\b(View|T|Transpose|Permute|Expand|Slice|Select|Split|Unsqueeze|Squeeze)Backward\d*$", _F.METADATA, "autograd"),
    # -- what is written to the cache
    (r"reshape_and_cache|concat_and_cache|store_(kv_?)?cache|set_(mla_)?kv_buffer|kv_cache_update|append_?(paged_)?kv",
     _F.KV_WRITE, "vLLM, SGLang, FlashInfer, CK"),
    (r"cache_kernel|write_kv|kv_?cache_?(write|store)|quant_and_cache|rope_\w*cache\b", _F.KV_WRITE, "aiter, TRT-LLM"),
    (r"gather_\w*cache|swap_blocks|copy_(paged_)?blocks|transfer_kv", _F.COPY, "vLLM, SGLang: cached tokens moved"),
    # -- what prepares a step
    (r"scheduler_metadata|get_mla_metadata|prepare_varlen|slot_mapping|compute_position|create_\w*(kv|page)_ind",
     _F.METADATA, "vLLM, SGLang, FlashAttention, FlashMLA"),
    (r"future_token_ids|req_to_token|block_table|prepare_(pos|inputs|eagle|next|prefill|decode)|seq_?lens?_kernel",
     _F.METADATA, "SGLang, vLLM"),
    # -- attention without a cache of tokens
    (r"gated_delta|delta_rule|fused_recurrent|lightning_attn|linear_attn|(?<![a-z])kda_|rwkv|wkv\d",
     _F.LINEAR_ATTENTION, "FLA in vLLM, SGLang"),
    (r"chunk_(scan|state|fwd|gla|scaled|local|cumsum|bwd)|recompute_w_u|solve_tril|merge_16x16",
     _F.LINEAR_ATTENTION, "FLA and Mamba-2 in vLLM, SGLang"),
    (r"selective_(scan|state)|mamba|causal_conv1d|\bssd_|_bmm_chunk|state_passing", _F.LINEAR_ATTENTION, "Mamba"),
    # -- attention: what merges its parts, what picks its tokens, itself
    (r"reduce_segments|merge_(attn_)?states?|merge_?states?_?kernel|correct_attn_cp", _F.ATTENTION_COMBINE,
     "vLLM unified and cascade attention, FlashInfer"),
    (r"_fwd_(grouped_)?kernel_stage2|decode_(attention_)?\w*stage2|mla_\w*reduce|pa_\w*reduce", _F.ATTENTION_COMBINE,
     "Triton decode attention (vLLM, SGLang), aiter"),
    (r"paged_attention_\w*reduce|(attn|attention|mla)\w*_(reduce|combine|merge)", _F.ATTENTION_COMBINE, "vLLM ROCm"),
    (r"flash\w*combine|FlashAttnFwdCombine|SplitKVCombine|mla_combine|fmha\w{0,12}reduc", _F.ATTENTION_COMBINE,
     "FlashAttention 2 and 3, CK, FlashMLA, CUTLASS"),
    (r"mqa_logits|indexer|sparse_index|topk_transform", _F.ATTENTION_INDEX, "DeepSeek sparse attention"),
    (r"flash_?(fwd|bwd|attn|attention|mla|infer\w*(prefill|decode))|FlashAttn", _F.ATTENTION, "FlashAttention, MLA"),
    (r"fmha|flash_\w*splitkv|(Batch|Single)(Decode|Prefill)With|BatchMLA|PODWithKV", _F.ATTENTION,
     "CUTLASS, cuDNN, CK, TRT-LLM, FlashInfer"),
    (r"unified_(mla_)?attention|paged_attention|cpu_attention|context_attention|scaled_dot_product|sdpa", _F.ATTENTION,
     "vLLM (Triton, ROCm, CPU), ATen"),
    (r"^_fwd_kernel(_stage1|_aligned|_int8kv)?$|_fwd_grouped_kernel_stage1|_attn_fwd", _F.ATTENTION,
     "Triton attention in vLLM, SGLang"),
    (r"mla_(decode|prefill|fwd|a\d+w\d+|dec_|pfl_)|decode_mla|mha_(fwd|bwd|varlen|batch)|::mha_|\bmmha|masked_multihead",
     _F.ATTENTION, "aiter, FlashMLA, TRT-LLM"),
    (r"(?<![a-z])pa_(bf16|fp16|fp8|i8|decode|prefill|fwd|ragged|mqa|sparse)|(?<![a-z])xqa|kernel_mha", _F.ATTENTION,
     "aiter, TRT-LLM"),
    (r"sparse_mla|sparse_prefill|sparse_decode|(?<![a-z])[dn]sa_", _F.ATTENTION, "DeepSeek sparse attention"),
    (r"attention(?!\w*norm)|attn(?!\w*norm)", _F.ATTENTION, "whatever else is called so"),
    # -- experts, before the gemms that they are
    (r"fused_moe|moe_(align|sum|forward|sort|gemm|fused)|fused_?moe|(?<![a-z])moe(?![a-z])|ck_moe|fmoe", _F.MOE,
     "vLLM, SGLang, aiter, CUTLASS"),
    (r"topk_?(softmax|sigmoid|gating)|grouped_?topk|expert|MoeSorting|routing_?(main|indices|renorm)", _F.MOE,
     "vLLM, SGLang, TRT-LLM"),
    (r"_matmul_ogs|_p_matmul|_combined_routing|^_topk_(forward|backward)|bitmatrix|_finalize_matmul|_routing_", _F.MOE,
     "gpt-oss by triton_kernels"),
    (r"grouped_?gemm|GroupProblemShape|m_grouped|GroupedGemm", _F.MOE, "CUTLASS, DeepGEMM, CK"),
    # -- convolutions, before the gemms that they are called
    (r"scudnn|cask_cudnn|winograd|im2col|(implicit|explicit)_convolve|[dw]grad|igemm_(fwd|bwd|wrw)_", _F.CONVOLUTION,
     "cuDNN, MIOpen"),
    (r"bwd_weight|bwd_data|grouped_conv|(?<![a-z])conv(olution)?(\d?d)?(?![a-z])|ConvolutionBackward|ConvBackward",
     _F.CONVOLUTION, "CK, ATen"),
    (r"cudnn_convolution|miopen_convolution|CudnnConvolution|xmma_fprop", _F.CONVOLUTION, "ATen, cuDNN"),
    # -- matrices
    (r"^Cijk_|^Custom_Cijk|hipblaslt|rocblas|^nvjet|cublas|xmma_gemm|xmma_\w*gemm", _F.GEMM, "hipBLASLt, cuBLAS"),
    (r"gemm|gemv|splitk|stream_?k|\bdot_kernel", _F.GEMM, "CUTLASS, CK, Triton, DeepGEMM, cuBLAS"),
    (r"^aten::(_?addmm\w*|mm|bmm|baddbmm|addbmm|mv|dot|linear|matmul|einsum|_scaled_mm|_int_mm)$", _F.GEMM, "ATen"),
    (r"\b(Addmm|Mm|Bmm|Linear)Backward\d*$", _F.GEMM, "autograd"),
    (r"onednn_(scaled_)?mm|packed_linear|scaled_mm|matmul|_mm_kernel|(?<![a-z])mm_(fp|bf|int)", _F.GEMM, "vLLM"),
    (r"marlin|machete|(?<![a-z])awq|gptq|wvSplitK|LLMM1|triton_tem_|exllama|_linear_kernel|lora_(shrink|expand)",
     _F.GEMM, "vLLM quantised, ROCm and LoRA kernels, Inductor templates"),
    # -- what lies between
    (r"rms_?norm|layer_?norm|group_?norm|l2_?norm|batch_?norm|\bbn_(fw|bw)|norm(?!al)", _F.NORM,
     "vLLM, SGLang, aiter, CK, cuDNN, ATen, Inductor"),
    (r"^triton_(red|per|poi)_fused_\w*mean\w*(rsqrt|pow)|^triton_(red|per|poi)_fused_\w*(rsqrt|pow)\w*mean", _F.NORM,
     "Inductor: an RMS norm by its parts"),
    (r"rotary|(?<![a-z])m?rope|rope(?![a-z])|apply\w*rope|^triton_\w+_fused_\w*(cos\w*sin|sin\w*cos)", _F.ROTARY,
     "vLLM, SGLang, TRT-LLM, Inductor"),
    (r"silu|swiglu|gelu|act_and_mul|activation|relu|threshold_(kernel|backward)?|sigmoid|aten::tanh", _F.ACTIVATION,
     "vLLM, SGLang, ATen, Inductor"),
    (r"quant|to_mxfp|downcast_to_mx|upcast_from_mx|per_token_(group|cast)|to_fp8|fp8_cast|(?<![a-z])cvt_f", _F.QUANTISE,
     "vLLM, SGLang, aiter, TRT-LLM"),
    (r"embedding|vocab_parallel|index_?select|vectorized_gather_kernel", _F.EMBEDDING, "ATen, vLLM"),
    (r"(?<!up)(?<!down)sampl(e|ing)|arg_?max|gumbel|multinomial|top_?k|top_?p\b|min_p\b|penalt|rejection", _F.SAMPLING,
     "vLLM, SGLang, FlashInfer, ATen"),
    (r"softmax|logits|distribution_|exponential_|random_?\b|randint|uniform_|radix_?sort|bitonic|_sort", _F.SAMPLING,
     "ATen, cub"),
    (r"optimizer|multi_tensor_apply|_foreach_|fused_adam|adamw?(?![a-z])|\bsgd\b", _F.OPTIMIZER, "torch.optim"),
    # -- fused by a compiler: copies only where nothing else is in the name
    (r"^triton_(poi|red|per)_fused_(_?(to_copy|clone|copy_?|cat|constant_pad_nd|view|slice|transpose|split)_?)+\d*$",
     _F.COPY, "Inductor"),
    (r"^triton_(poi|red|per|for)_fused", _F.ELEMENTWISE, "Inductor"),
    # -- bytes that move
    (r"copy|CatArray|transpose|FillFunctor|nchwToNhwc|nhwcToNchw|constant_pad|SubTensorOp", _F.COPY, "ATen, MIOpen"),
    (r"^aten::(to|_to_copy|contiguous|clone|cat|_cat|stack|fill_?|zero_?|zeros\w*|ones\w*|full\w*|pad|repeat\w*|roll)$",
     _F.COPY, "ATen"),
    (r"memset|memcpy|zero_kernel|fill_kernel|DataLoader", _F.COPY, "TRT-LLM, vLLM, torch.utils.data"),
    # -- the rest that is arithmetic
    (r"elementwise|BinaryFunctor|UnaryFunctor|reduce_kernel|pool|loss|criterion|scalePackedTensor", _F.ELEMENTWISE,
     "ATen, cuDNN"),
    (r"rocprim|hipcub|(?<![a-z])cub::|thrust|_scan\b|scan_kernel|arange|index_|gather|scatter|where", _F.ELEMENTWISE,
     "rocPRIM, cub, ATen"),
    (r"^aten::\w+$|Backward\d*$|AccumulateGrad|reducer::", _F.ELEMENTWISE, "ATen and autograd, whatever is left"),
)  # fmt: skip

_COMPILED = tuple((re.compile(rule.pattern, re.IGNORECASE), rule.family) for rule in FAMILY_RULES)
_WRAPPER = re.compile(
    r"^vllm::unified_(mla_)?attention|^sglang_profiler::|^autograd::engine::|^ProfilerStep|Optimizer\.(step|zero_grad)#"
)
_KNOWN_NAMES = 65_536  # a trace has hundreds of names; Inductor numbers its kernels


@lru_cache(maxsize=_KNOWN_NAMES)
def family_of(name: str) -> KernelFamily:
    """What kind of work does a kernel or op of this name do? UNKNOWN where no row of :data:`FAMILY_RULES` matches."""
    for pattern, family in _COMPILED:
        if pattern.search(name):
            return family
    return KernelFamily.UNKNOWN


def is_wrapper(name: str) -> bool:
    """Does an op of this name only call others, which are known better by their own names?

    An engine's custom op around attention writes to the cache, too, in some versions; autograd's nodes run anything.
    """
    return _WRAPPER.search(name) is not None


@dataclass(frozen=True, slots=True)
class NamedRows:
    """What are some rows of a trace called, and what kind of work are they? Few names, each told once.

    Attributes:
        row: rows of the trace, in the order asked for.
        name: int64, position in ``names`` and in ``families``; one a row.
    """

    row: RowArray
    name: Int64Array
    names: tuple[str, ...]
    families: tuple[KernelFamily, ...]

    def is_any(self, *families: KernelFamily) -> BoolArray:
        """Which rows belong to one of these families? bool, one a row."""
        wanted = np.array([family in families for family in self.families], dtype=np.bool_)
        return wanted[self.name] if len(self.row) else np.zeros(0, dtype=np.bool_)

    def matches(self, pattern: re.Pattern[str]) -> BoolArray:
        """In which rows' names is this pattern found? bool, one a row; each name is searched once."""
        found = np.array([pattern.search(name) is not None for name in self.names], dtype=np.bool_)
        return found[self.name] if len(self.row) else np.zeros(0, dtype=np.bool_)

    def of(self, rows: RowArray) -> NamedRows:
        """The same for some of these rows, in their order; each has to be among them."""
        order = np.argsort(self.row, kind="stable")
        place = order[np.searchsorted(self.row, rows, sorter=order)]
        return NamedRows(rows, self.name[place], self.names, self.families)


def named_rows(trace: Trace, rows: RowArray) -> NamedRows:
    """What are these rows called, and which family is each? The file is read once, and only where the rows lie."""
    found = event_names(trace, np.unique(rows))
    numbers: dict[str, int] = {}
    name = np.array([numbers.setdefault(found[row], len(numbers)) for row in rows.tolist()], dtype=np.int64)
    return NamedRows(rows, name, tuple(numbers), tuple(map(family_of, numbers)))


@dataclass(frozen=True, slots=True)
class FamilyTime:
    """How long did all work of one family take, and how many kernels (ops) was it?"""

    family: KernelFamily
    duration_ns: int
    events: int


@dataclass(frozen=True, slots=True)
class FamilyTimes:
    """Which families took the time? A sum over kernels: those that overlap count twice.

    ``times`` holds the families that occur, the longest first; ``unknown_names`` those that no rule knows, likewise.
    """

    times: tuple[FamilyTime, ...]
    total_ns: int
    unknown_names: tuple[tuple[str, int], ...]

    def share(self, family: KernelFamily) -> float:
        """Which part of the time did a family take? 0 to 1."""
        taken = sum(time.duration_ns for time in self.times if time.family is family)
        return taken / self.total_ns if self.total_ns else 0.0

    @property
    def unknown_share(self) -> float:
        """Which part of the time went to kernels that no rule knows? 0 to 1."""
        return self.share(KernelFamily.UNKNOWN)


def family_times(named: NamedRows, duration_ns: Int64Array) -> FamilyTimes:
    """How long did each family take? ``duration_ns`` has one entry a row of ``named``."""
    by_name = np.zeros(len(named.names), dtype=np.int64)
    np.add.at(by_name, named.name, duration_ns)
    events = np.bincount(named.name, minlength=len(named.names))
    sums: dict[KernelFamily, tuple[int, int]] = {}
    for family, taken, count in zip(named.families, by_name.tolist(), events.tolist(), strict=True):
        before = sums.get(family, (0, 0))
        sums[family] = (before[0] + taken, before[1] + count)
    times = [FamilyTime(family, taken, count) for family, (taken, count) in sums.items() if count]
    unknown = [
        (name, taken)
        for name, family, taken in zip(named.names, named.families, by_name.tolist(), strict=True)
        if family is KernelFamily.UNKNOWN
    ]
    return FamilyTimes(
        tuple(sorted(times, key=lambda time: -time.duration_ns)),
        int(by_name.sum()),
        tuple(sorted(unknown, key=lambda pair: -pair[1])),
    )
