"""Figures of public kernels, real annotations and hand calculations, as integers."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tracelens_infer.errors import UsageError
from tracelens_infer.roofline.attention import (
    AttentionCost,
    AttentionForm,
    ChunkSource,
    Phase,
    PhaseColumns,
    Precision,
    Ranks,
    attention_cost,
    attention_cost_columns,
    attention_cost_of_requests,
    cached_elements_per_token,
)
from tracelens_infer.roofline.model import AttentionKind, AttentionShape, LatentShape, LinearStateShape
from tracelens_infer.steps.annotation import PhaseLoad, parse_annotation

QWEN3_8B = AttentionShape(AttentionKind.FULL, 32, 8, 128, 128)
GPT_OSS_FULL = AttentionShape(AttentionKind.FULL, 64, 8, 64, 64)
GPT_OSS_WINDOW = AttentionShape(AttentionKind.WINDOW, 64, 8, 64, 64, window_tokens=128)
DEEPSEEK_LATENT = LatentShape(kv_rank=512, rope=64, nope=128, d_v=128, q_rank=1536)
DEEPSEEK = AttentionShape(AttentionKind.FULL, 128, 128, 192, 128, latent=DEEPSEEK_LATENT)
FP8 = Precision("fp8", "fp8")


def load_of(*requests: tuple[int, int]) -> PhaseLoad:
    return PhaseLoad(
        len(requests),
        sum(query for query, _ in requests),
        sum(kv for _, kv in requests),
        sum(query * kv for query, kv in requests),
        sum(query * query for query, _ in requests),
    )


def cost_of(load: PhaseLoad, shape: AttentionShape, phase: Phase, **options: object) -> AttentionCost[int]:
    cost = attention_cost(load, shape, phase, **options)  # type: ignore[arg-type]
    assert cost is not None
    return cost


def labelled(text: str, phase: Phase) -> PhaseLoad:
    annotation = parse_annotation(text)
    assert annotation is not None
    assert annotation.load is not None
    return annotation.load.context if phase is Phase.CONTEXT else annotation.load.generation


NOTHING = "(sq0sk0sqsq0sqsk0)"


@pytest.mark.parametrize(
    ("text", "shape", "flops", "moved", "intensity"),
    [
        (
            f"execute_32_context_0{NOTHING}_generation_32(sq32sk32785sqsq32sqsk32785)",
            QWEN3_8B,
            537_149_440,
            134_811_648,
            3.98444,
        ),
        (
            f"execute_15360_context_15(sq15360sk15360sqsq15728640sqsk15728640)_generation_0{NOTHING}",
            QWEN3_8B,
            128_849_018_880,
            314_572_800,
            409.600,
        ),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            GPT_OSS_FULL,
            65_010_180_096,
            222_115_840,
            292.686,
        ),
        (
            f"execute_32_context_0{NOTHING}_generation_32(sq32sk55086sqsq32sqsk55086)",
            GPT_OSS_FULL,
            902_529_024,
            113_340_416,
            7.96299,
        ),
    ],
)
def test_the_documents_formula_gives_the_published_figures_of_real_labels(
    text: str, shape: AttentionShape, flops: int, moved: int, intensity: float
) -> None:
    costs = [cost_of(labelled(text, phase), shape, phase) for phase in Phase]
    document_flops = sum(cost.document_flops or 0 for cost in costs)
    document_bytes = sum(cost.document_bytes or 0 for cost in costs)
    assert (document_flops, document_bytes) == (flops, moved)
    assert document_flops / document_bytes == pytest.approx(intensity, rel=2e-6)
    # Ours: decodes of one token agree, a context has half a diagonal more, N_Q / 2 pairs.
    context = labelled(text, Phase.CONTEXT)
    diagonal = (context.query_tokens or 0) * shape.query_heads * (shape.d_qk + shape.d_v)
    assert sum(cost.flops.low for cost in costs) == flops + diagonal
    assert sum(cost.bytes.low for cost in costs) == sum(cost.bytes.high for cost in costs) == moved
    assert all(cost.exact for cost in costs)


@pytest.mark.parametrize(
    ("tokens", "moved", "microseconds", "gigabytes"),
    [(128, 33_816_576, 27.6, 1225), (2000, 524_550_144, 292, 1796), (4000, 1_048_838_144, 567, 1850)],
)
def test_a_multi_head_decode_moves_the_bytes_of_the_flash_attention_benchmark(
    tokens: int, moved: int, microseconds: float, gigabytes: int
) -> None:
    cost = cost_of(load_of(*[(1, tokens)] * 16), AttentionShape(AttentionKind.FULL, 32, 32, 128, 128), Phase.GENERATION)
    assert (cost.document_bytes, cost.bytes.low, cost.bytes.high) == (moved, moved, moved)
    assert round(moved / microseconds / 1e3) == gigabytes


def test_grouped_queries_read_keys_and_values_of_the_kv_heads_only() -> None:
    many = cost_of(load_of((1, 1000)), AttentionShape(AttentionKind.FULL, 32, 32, 128, 128), Phase.GENERATION)
    grouped = cost_of(load_of((1, 1000)), QWEN3_8B, Phase.GENERATION)
    single = cost_of(load_of((1, 1000)), AttentionShape(AttentionKind.FULL, 32, 1, 128, 128), Phase.GENERATION)
    queries_and_output = 32 * 256 * 2
    assert [cost.bytes.low - queries_and_output for cost in (many, grouped, single)] == [
        1000 * heads * 256 * 2 for heads in (32, 8, 1)
    ]
    assert many.flops == grouped.flops == single.flops


def test_head_sizes_of_keys_and_values_are_told_apart() -> None:
    cost = cost_of(load_of((2, 10)), AttentionShape(AttentionKind.FULL, 4, 2, 192, 128), Phase.GENERATION)
    assert cost.flops.low == 2 * 19 * 4 * (192 + 128)  # 9 + 10 pairs
    assert cost.bytes.low == (2 * 4 * (192 + 128) + 10 * 2 * (192 + 128)) * 2


# batch 128 at 4,096 tokens: published times and rates of the kernel
@pytest.mark.parametrize(
    ("query", "heads", "milliseconds", "tflops", "gigabytes"),
    [(1, 16, 0.215, 85, 2826), (2, 16, 0.218, 168, 2811), (1, 64, 0.223, 328, 2789)],
)
def test_flash_mla_on_the_h100_runs_at_its_published_rates(
    query: int, heads: int, milliseconds: float, tflops: float, gigabytes: float
) -> None:
    shape = AttentionShape(AttentionKind.FULL, heads, heads, 192, 128, latent=DEEPSEEK_LATENT)
    cost = cost_of(load_of(*[(query, 4096)] * 128), shape, Phase.GENERATION)
    assert cost.form is AttentionForm.MLA_ABSORBED
    assert cost.flops.low / milliseconds / 1e9 == pytest.approx(tflops, rel=0.01)
    assert cost.bytes.low / milliseconds / 1e6 == pytest.approx(gigabytes, rel=0.01)


def test_flash_mla_on_the_h20_runs_at_its_published_rates_to_the_digit() -> None:
    shape = AttentionShape(AttentionKind.FULL, 16, 16, 192, 128, latent=DEEPSEEK_LATENT)
    cost = cost_of(load_of(*[(1, 4096)] * 128), shape, Phase.GENERATION)
    assert cost.flops.low == 128 * 4096 * 16 * 2 * (576 + 512) == 18_253_611_008
    assert cost.bytes.low == 128 * 4096 * 576 * 2 + 128 * 16 * (576 + 512) * 2 == 608_436_224
    assert round(cost.flops.low / 0.601e-3 / 1e12) == 30
    assert round(cost.bytes.low / 0.601e-3 / 1e9) == 1012


def test_flash_attention_3_forward_has_the_flops_of_unmasked_attention() -> None:
    shape = AttentionShape(AttentionKind.FULL, 16, 16, 128, 128)
    giga = []
    for tokens in (512, 1024, 2048, 4096, 8192, 16384):
        load = load_of(*[(tokens, tokens)] * (16384 // tokens))
        cost = cost_of(load, shape, Phase.CONTEXT, causal=False)
        assert cost.flops.low == cost.flops.high == 4 * 16384 * tokens * 16 * 128
        giga.append(round(cost.flops.low / 1e9, 1))
    assert giga == [68.7, 137.4, 274.9, 549.8, 1099.5, 2199.0]
    rates = (467, 565, 625, 638, 646, 648)
    milliseconds = [round(flops / rate, 3) for flops, rate in zip(giga, rates, strict=True)]
    assert milliseconds == pytest.approx([0.147, 0.243, 0.440, 0.862, 1.702, 3.394], abs=1e-3)


def test_a_windowed_prefill_has_a_sixteenth_of_the_causal_pairs() -> None:
    load = load_of((32768, 32768))
    full = cost_of(load, QWEN3_8B, Phase.CONTEXT)
    windowed = cost_of(load, AttentionShape(AttentionKind.WINDOW, 32, 8, 128, 128, 1024), Phase.CONTEXT)
    assert full.pairs.low == full.pairs.high == 536_887_296
    assert windowed.pairs.low == windowed.pairs.high == 33_030_656
    assert full.flops.low / windowed.flops.low == pytest.approx(16.25, abs=0.005)
    assert windowed.document_flops == full.document_flops


def test_a_chunk_local_prefill_attends_within_its_chunks() -> None:
    shape = AttentionShape(AttentionKind.CHUNKED, 40, 8, 128, 128, window_tokens=8192)
    cost = cost_of(load_of((32768, 32768)), shape, Phase.CONTEXT)
    assert cost.pairs.low == cost.pairs.high == 4 * 8192 * 8193 // 2
    decode = cost_of(load_of((1, 8193)), shape, Phase.GENERATION)  # the first token of the second chunk
    assert (decode.pairs.high, decode.kv_read_tokens.high) == (1, 1)


def test_a_deepseek_chunk_is_not_absorbed_and_projects_its_cached_latent() -> None:
    load = load_of((8192, 40960))
    cost = cost_of(load, DEEPSEEK, Phase.CONTEXT)
    pairs = 8192 * 40960 - 8192 * 8191 // 2
    assert cost.form is AttentionForm.MLA_NOT_ABSORBED
    assert cost.up_projection_flops == 2 * 32768 * 512 * 128 * 256
    assert cost.flops.low == cost.flops.high == 2 * pairs * 128 * 320 + cost.up_projection_flops
    assert round((cost.flops.low - cost.up_projection_flops) / 1e12, 1) == 24.7
    assert round(cost.up_projection_flops / 1e12, 1) == 1.1
    absorbed = cost_of(load, DEEPSEEK, Phase.CONTEXT, mla_form=AttentionForm.MLA_ABSORBED)
    assert round(absorbed.flops.low / 1e12, 1) == 84.1
    assert absorbed.up_projection_flops == 0
    # From the latent alone (and queries and output) to all heads' keys and values, written and read again.
    queries_and_output = 8192 * 128 * 320 * 2
    assert cost.bytes.low == queries_and_output + 40960 * 576 * 2
    assert cost.bytes.high == cost.bytes.low + (2 * 32768 + 8192) * 128 * 320 * 2
    assert cost.chunk_source is ChunkSource.FRESH


def test_few_query_tokens_on_a_long_latent_are_absorbed() -> None:
    assert cost_of(load_of((1, 1000)), DEEPSEEK, Phase.CONTEXT).form is AttentionForm.MLA_ABSORBED
    assert cost_of(load_of((1000, 1000)), DEEPSEEK, Phase.CONTEXT).form is AttentionForm.MLA_NOT_ABSORBED


def test_a_column_of_contexts_takes_each_steps_own_form() -> None:
    columns = PhaseColumns.of([load_of((1, 1000)), load_of((8192, 40960))])
    cost = attention_cost_columns(columns, DEEPSEEK, Phase.CONTEXT)
    assert cost is not None
    assert cost.form is AttentionForm.MLA_BY_STEP
    assert cost.absorbed.tolist() == [1, 0]


def test_a_verify_step_of_speculative_tokens_has_its_exact_pairs() -> None:
    cost = cost_of(load_of(*[(4, 1000)] * 32), QWEN3_8B, Phase.GENERATION)
    assert cost.pairs.low == cost.pairs.high == 127_808
    assert cost.flops.low == 127_808 * 2 * 32 * 256
    assert cost.document_flops == 128_000 * 2 * 32 * 256


def test_a_one_token_tail_of_a_prefill_has_all_its_pairs() -> None:
    cost = cost_of(load_of((1, 1000)), QWEN3_8B, Phase.CONTEXT)
    assert cost.pairs.low == 1000
    assert cost.document_flops == 2 * 32 * 256 * 1000 - 32 * 256  # as if it were 999.5


def test_windowed_layers_of_a_decode_read_no_more_than_their_window() -> None:
    load = PhaseLoad(32, 32, 55086, 55086, 32)
    cost = cost_of(load, GPT_OSS_WINDOW, Phase.GENERATION)
    queries_and_output = 32 * 64 * 128 * 2
    assert cost.bytes.high == 32 * 128 * 8 * 128 * 2 + queries_and_output
    assert cost.bytes.high / 13.48e-6 < 5.3e12 < (cost.document_bytes or 0) / 13.48e-6
    # The least: one request has the whole context, the others one token each.
    assert cost.bytes.low == (31 + 128) * 8 * 128 * 2 + queries_and_output
    assert not cost.exact
    exact = attention_cost_of_requests([(1, 1721)] * 14 + [(1, 1722)] * 18, GPT_OSS_WINDOW, Phase.GENERATION)
    assert exact is not None
    assert exact.exact
    assert exact.bytes.high == cost.bytes.high


def test_the_rates_of_the_real_decode_step_are_those_that_were_worked_out() -> None:
    cost = cost_of(PhaseLoad(32, 32, 55086, 55086, 32), GPT_OSS_FULL, Phase.GENERATION)
    rates = [round(cost.bytes.low / (microseconds * 1e-6) / 1e12, 3) for microseconds in (41.16 + 5.72, 41.16, 13.48)]
    assert rates == [2.418, 2.754, 8.408]  # with the reduce kernel, without it, and a windowed layer charged in full


def test_equal_prompts_without_cached_tokens_are_exact_for_a_window() -> None:
    cost = cost_of(load_of(*[(1024, 1024)] * 15), GPT_OSS_WINDOW, Phase.CONTEXT)
    assert cost.pairs.low == cost.pairs.high == 15 * (128 * 129 // 2 + (1024 - 128) * 128)


def test_requests_that_fit_in_the_window_are_exact() -> None:
    cost = cost_of(load_of((1, 30), (2, 40), (1, 20)), GPT_OSS_WINDOW, Phase.GENERATION)
    assert cost.pairs.low == cost.pairs.high == 30 + 39 + 40 + 20
    assert cost.kv_read_tokens.low == cost.kv_read_tokens.high == 90


def test_a_sparse_layer_attends_to_its_top_k_and_scores_all_with_the_indexer() -> None:
    shape = AttentionShape(
        AttentionKind.SPARSE_TOPK,
        128,
        128,
        192,
        128,
        topk_tokens=2048,
        indexer_heads=64,
        indexer_dim=128,
        latent=DEEPSEEK_LATENT,
    )
    cost = attention_cost_of_requests([(1, 32768), (1, 1000)], shape, Phase.GENERATION)
    assert cost is not None
    assert cost.form is AttentionForm.MLA_ABSORBED
    assert cost.pairs.low == 2048 + 1000
    assert cost.kv_read_tokens.low == cost.kv_read_tokens.high == 2048 + 1000
    assert cost.indexer_flops == 2 * 33768 * 64 * 128
    assert cost.indexer_bytes == 33768 * 128 + 2 * 64 * 128 * 2  # cached keys in fp8, queries in bf16
    assert cost.flops.low == 2 * 3048 * 128 * (576 + 512) + cost.indexer_flops
    assert cost.bytes.low == 3048 * 576 * 2 + 2 * 128 * (576 + 512) * 2 + cost.indexer_bytes
    context = attention_cost_of_requests([(100, 32768)], shape, Phase.CONTEXT)
    assert context is not None
    assert context.form is AttentionForm.MLA_ABSORBED
    assert (context.kv_read_tokens.low, context.kv_read_tokens.high) == (2048, 32768)


def test_a_linear_layer_reads_and_writes_its_state_once_a_request() -> None:
    state = LinearStateShape(key_heads=16, value_heads=32, d_k=128, d_v=128, conv_kernel=4)
    shape = AttentionShape(AttentionKind.LINEAR, 32, 16, 128, 128, state=state)
    channels = 2 * 16 * 128 + 32 * 128
    short = cost_of(load_of((1, 100), (1, 100)), shape, Phase.GENERATION)
    long = cost_of(load_of((1, 90_000), (1, 100)), shape, Phase.GENERATION)
    each = 32 * 128 * 128
    assert short.flops.low == 2 * (4 * each + 2 * 4 * channels)
    assert short.flops.high == 2 * (6 * each + 2 * 4 * channels)
    assert short.bytes.high == 2 * 2 * (each + 3 * channels) * 2 + 2 * (channels + 32 * 128) * 2
    assert short.flops == long.flops
    assert short.bytes == long.bytes
    assert short.document_flops is None
    assert short.document_bytes is None
    wide = cost_of(load_of((1, 100), (1, 100)), shape, Phase.GENERATION, precision=Precision(state_dtype="fp32"))
    assert wide.bytes.high - short.bytes.high == 2 * 2 * each * 2
    fresh = cost_of(load_of((64, 64)), shape, Phase.CONTEXT)  # nothing to read yet
    assert fresh.bytes.low == fresh.bytes.high == (each + 3 * channels) * 2 + 64 * (channels + 32 * 128) * 2


def test_a_layer_that_shares_keys_and_values_reads_them_and_caches_none() -> None:
    sharing = AttentionShape(AttentionKind.FULL, 32, 8, 128, 128, shares_kv_with=3)
    assert (
        cost_of(load_of((1, 500)), sharing, Phase.GENERATION).bytes
        == cost_of(load_of((1, 500)), QWEN3_8B, Phase.GENERATION).bytes
    )
    assert cached_elements_per_token(sharing) == 0
    assert cached_elements_per_token(QWEN3_8B) == 8 * 256
    assert cached_elements_per_token(QWEN3_8B, Ranks(tensor_parallel=16)) == 256
    assert cached_elements_per_token(DEEPSEEK, Ranks(tensor_parallel=8)) == 576


def test_a_shared_prefix_is_read_once_in_the_lower_bound() -> None:
    load = load_of(*[(1, 1032)] * 12)
    cost = cost_of(load, QWEN3_8B, Phase.GENERATION, shared_prefix_tokens=1000)
    queries_and_output = 12 * 32 * 256 * 2
    assert cost.bytes.low == (1000 + 12 * 32) * 8 * 256 * 2 + queries_and_output
    assert cost.bytes.high == cost.document_bytes == 12 * 1032 * 8 * 256 * 2 + queries_and_output
    listed = attention_cost_of_requests([(1, 1032)] * 12, QWEN3_8B, Phase.GENERATION, shared_prefix_tokens=1000)
    assert listed is not None
    assert listed.bytes == cost.bytes


def test_a_window_reads_what_is_left_of_a_shared_prefix() -> None:
    # A request's window of 128 begins at its token 64, so 36 tokens of the prefix lie in it.
    listed = attention_cost_of_requests([(1, 192)] * 3, GPT_OSS_WINDOW, Phase.GENERATION, shared_prefix_tokens=100)
    assert listed is not None
    assert (listed.kv_read_tokens.low, listed.kv_read_tokens.high) == (36 + 3 * 92, 3 * 128)


def test_an_fp8_cache_is_read_at_a_byte_an_element_with_queries_at_two() -> None:
    load = load_of((512, 2048))
    cache = cost_of(load, QWEN3_8B, Phase.CONTEXT, precision=Precision("bf16", "fp8"))
    fresh = cost_of(load, QWEN3_8B, Phase.CONTEXT, precision=Precision("bf16", "fp8", chunk_source=ChunkSource.FRESH))
    queries_and_output = 512 * 32 * 256 * 2
    assert cache.bytes.low == queries_and_output + 2048 * 8 * 256
    assert fresh.bytes.low == queries_and_output + 1536 * 8 * 256 + 512 * 8 * 256 * 2
    assert (cache.chunk_source, fresh.chunk_source) == (ChunkSource.CACHE, ChunkSource.FRESH)
    assert cache.multiply_dtype == "bf16"
    assert cost_of(load, QWEN3_8B, Phase.CONTEXT, precision=FP8).multiply_dtype == "fp8"
    decode = cost_of(
        load_of((1, 100)), QWEN3_8B, Phase.GENERATION, precision=Precision("bf16", "fp8", ChunkSource.FRESH)
    )
    assert decode.chunk_source is None
    assert decode.bytes.low == 32 * 256 * 2 + 100 * 8 * 256


def test_four_kv_heads_on_eight_ranks_are_one_a_rank() -> None:
    shape = AttentionShape(AttentionKind.FULL, 64, 4, 128, 128)
    whole = cost_of(load_of((1, 1000)), shape, Phase.GENERATION)
    rank = cost_of(load_of((1, 1000)), shape, Phase.GENERATION, ranks=Ranks(tensor_parallel=8))
    assert rank.bytes.low == 8 * 256 * 2 + 1000 * 1 * 256 * 2
    assert rank.flops.low * 8 == whole.flops.low


def test_the_latent_is_whole_on_every_rank() -> None:
    cost = cost_of(load_of((1, 1000)), DEEPSEEK, Phase.GENERATION, ranks=Ranks(tensor_parallel=8))
    assert cost.bytes.low == 16 * (576 + 512) * 2 + 1000 * 576 * 2
    assert cost.flops.low == 2 * 1000 * 16 * (576 + 512)


def test_decode_context_parallelism_divides_the_tokens_read() -> None:
    ranks = Ranks(tensor_parallel=8, decode_context_parallel=4)
    cost = cost_of(load_of((1, 1000), (1, 3000)), DEEPSEEK, Phase.GENERATION, ranks=ranks)
    assert cost.kv_read_tokens.low == 1000
    assert (
        cost.flops
        == cost_of(load_of((1, 1000), (1, 3000)), DEEPSEEK, Phase.GENERATION, ranks=Ranks(tensor_parallel=8)).flops
    )
    listed = attention_cost_of_requests([(1, 1001), (1, 3000)], DEEPSEEK, Phase.GENERATION, ranks=ranks)
    assert listed is not None
    assert listed.kv_read_tokens.low == listed.kv_read_tokens.high == 251 + 750
    context = cost_of(load_of((10, 1000)), DEEPSEEK, Phase.CONTEXT, ranks=ranks)
    assert context.kv_read_tokens.low == 1000


def test_attention_data_parallelism_divides_requests_and_not_heads() -> None:
    load = load_of(*[(1, 1000)] * 16)
    whole = cost_of(load, QWEN3_8B, Phase.GENERATION)
    for ranks in (Ranks(tensor_parallel=8, attention_data_parallel=8), Ranks(attention_data_parallel=8)):
        rank = cost_of(load, QWEN3_8B, Phase.GENERATION, ranks=ranks)
        assert rank.bytes.low == 2 * 32 * 256 * 2 + 2 * 1000 * 8 * 256 * 2
        assert rank.flops.low * 8 == whole.flops.low
    halves = Ranks(tensor_parallel=8, attention_data_parallel=4)
    assert cost_of(load, QWEN3_8B, Phase.GENERATION, ranks=halves).bytes.low == 4 * (16 * 256 + 1000 * 4 * 256) * 2


def test_what_is_not_known_has_no_cost() -> None:
    unknown = AttentionShape(AttentionKind.UNKNOWN, 32, 8, 128, 128)
    assert attention_cost(load_of((1, 10)), unknown, Phase.GENERATION) is None
    assert attention_cost_of_requests([(1, 10)], unknown, Phase.GENERATION) is None
    assert attention_cost_columns(PhaseColumns.of([load_of((1, 10))]), unknown, Phase.GENERATION) is None
    assert attention_cost(PhaseLoad(3, 3), QWEN3_8B, Phase.GENERATION) is None
    assert cached_elements_per_token(unknown) == 0


def test_no_requests_cost_nothing() -> None:
    for shape in (QWEN3_8B, GPT_OSS_WINDOW, DEEPSEEK):
        cost = cost_of(PhaseLoad(), shape, Phase.GENERATION, shared_prefix_tokens=10)
        assert (cost.flops.high, cost.bytes.high, cost.bytes.low) == (0, 0, 0)


@pytest.mark.parametrize(
    ("shape", "options", "thing"),
    [
        (GPT_OSS_WINDOW, {"causal": False}, "window attention"),
        (AttentionShape(AttentionKind.WINDOW, 8, 8, 64, 64), {}, "window attention"),
        (AttentionShape(AttentionKind.SPARSE_TOPK, 8, 8, 64, 64), {}, "sparse_topk attention"),
        (AttentionShape(AttentionKind.LINEAR, 8, 8, 64, 64), {}, "linear attention"),
        (QWEN3_8B, {"mla_form": AttentionForm.MLA_ABSORBED}, "form mla_absorbed"),
        (DEEPSEEK, {"mla_form": AttentionForm.STANDARD}, "form standard"),
    ],
)
def test_contradictions_are_refused(shape: AttentionShape, options: dict[str, object], thing: str) -> None:
    with pytest.raises(UsageError) as caught:
        cost_of(load_of((1, 10)), shape, Phase.GENERATION, **options)
    assert caught.value.thing == thing


@pytest.mark.parametrize("ranks", [(0, 1, 1), (8, 1, 3)])
def test_ranks_that_cannot_be_are_refused(ranks: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError):
        Ranks(*ranks)


def test_requests_with_fewer_kv_than_query_tokens_are_refused() -> None:
    with pytest.raises(UsageError, match="N_Q has to be"):
        attention_cost_of_requests([(5, 4)], QWEN3_8B, Phase.CONTEXT)


def test_a_column_needs_all_sums() -> None:
    with pytest.raises(UsageError):
        PhaseColumns.of([PhaseLoad(1, 1)])


def test_one_load_may_be_of_any_size_and_a_column_says_its_limit() -> None:
    huge = PhaseLoad(1, 10**9, 10**12, 10**21, 10**18)
    assert cost_of(huge, DEEPSEEK, Phase.GENERATION).document_flops == 2 * 10**21 * 128 * 320
    fits = PhaseColumns.of([PhaseLoad(1000, 10**4, 10**9, 3 * 10**13, 10**8)])
    assert attention_cost_columns(fits, DEEPSEEK, Phase.GENERATION) is not None
    with pytest.raises(UsageError, match="64 bits"):
        attention_cost_columns(
            PhaseColumns.of([PhaseLoad(1000, 10**4, 10**9, 10**14, 10**8)]), DEEPSEEK, Phase.GENERATION
        )


def test_ten_thousand_steps_cost_a_fraction_of_a_second() -> None:
    rows = 10_000
    rng = np.random.default_rng(0)
    requests = rng.integers(1, 512, rows)
    query = requests + rng.integers(0, 8192, rows)
    kv = query + rng.integers(0, 10**6, rows)
    columns = PhaseColumns(requests, query, kv, query * 1000, np.maximum(query, query * query // requests))
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for shape in (QWEN3_8B, GPT_OSS_WINDOW, DEEPSEEK):
            for phase in Phase:
                assert attention_cost_columns(columns, shape, phase) is not None
        best = min(best, time.perf_counter() - start)
    assert best < 0.5  # measured: 0.01 s on one core
