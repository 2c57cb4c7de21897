"""Phases without annotations: against real ones that were hidden, against synthetic ones, and where little is told."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.loops import Loop, serving
from tests.steps.phase_agreement import (
    GENERATOR,
    REAL,
    SYNTHETIC,
    Agreement,
    agreement,
    agreement_table,
    generator,
    synthesize,
    without_shapes,
)
from tracelens_infer.errors import UsageError
from tracelens_infer.steps.analyze import steps_of
from tracelens_infer.steps.attention_ops import Serves, attention_size
from tracelens_infer.steps.batch_sizes import UNTOLD, BatchSizes, TokensFrom
from tracelens_infer.steps.candidates import Candidate, StepBoundary
from tracelens_infer.steps.llm_inference import infer_llm
from tracelens_infer.steps.phases import PhaseGuess, phases_of
from tracelens_infer.steps.prefill_evidence import Evidence, StepSignature, padded_size, prefills_of
from tracelens_infer.steps.step import Confidence, StepKind
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.launches import link_device_work
from tracelens_infer.trace.reader import read_trace

REQUIRED = 0.99
PREFILLS = (StepKind.PREFILL_ONLY, StepKind.PREFILL_DECODE)
needs_generator = pytest.mark.skipif(not GENERATOR.is_file(), reason="the generator of large traces is not there")


def check(found: Agreement, required: float = REQUIRED) -> None:
    assert found.share >= required, f"{found.share:.1%}: {found.differing[:10]}"


# -- real traces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
def test_hidden_annotations_of_real_traces_are_found_again(shared_traces: Path, name: str) -> None:
    found = agreement(shared_traces / REAL[name])
    check(found, 1.0)
    for step, guess in zip(found.steps, found.guesses, strict=True):
        load = step.load
        assert load is not None
        assert guess.tokens == (load.context.query_tokens or 0) + (load.generation.query_tokens or 0)
        assert guess.requests == step.requests
        assert guess.load is not None
        assert guess.load.context.requests + guess.load.generation.requests == step.requests
        if step.kind is not StepKind.PREFILL_DECODE:
            assert guess.load.context.requests == step.context_requests
        # In a step of both phases as many contexts as can be proved: never more than there are.
        assert min(step.context_requests, 1) <= guess.load.context.requests <= step.context_requests
        for ours, truth in ((guess.load.context, load.context), (guess.load.generation, load.generation)):
            for known in ("query_tokens", "kv_tokens", "query_kv", "query_query"):
                told, annotated = getattr(ours, known), getattr(truth, known)
                assert told is None or annotated is None or told == annotated, known


def test_empty_steps_run_nothing(shared_traces: Path) -> None:
    found = agreement(shared_traces / REAL["a"])
    empty = [step.index for step, guess in zip(found.steps, found.guesses, strict=True) if guess.kind is StepKind.EMPTY]
    assert empty == [33, 47, 58, 106]


def late(trace: Trace, candidate: Candidate) -> Candidate:
    """Each step's boundary after its first attention op, so that this one falls into the tile before."""
    from tracelens_infer.trace.arguments import op_shapes
    from tracelens_infer.trace.columns import Role

    starts: list[int] = []
    for batch in op_shapes(trace, trace.rows(Role.HOST_OP)):
        named = [batch.names[name] == "_C::cpu_attention_with_kv_cache" for name in batch.name]
        starts += trace.columns.start_ns[batch.rows[np.array(named)]].tolist()
    ops = np.sort(np.array(starts))
    begin = np.array([boundary.start_ns for boundary in candidate.boundaries])
    moved = ops[np.searchsorted(ops, begin)] + 1
    ends = [*moved[1:].tolist(), candidate.boundaries[-1].tile_end_ns]
    boundaries = tuple(
        replace(boundary, start_ns=start, tile_end_ns=end)
        for boundary, start, end in zip(candidate.boundaries, moved.tolist(), ends, strict=True)
    )
    return replace(candidate, boundaries=boundaries)


def test_what_bleeds_into_the_tile_before_does_not_change_it(shared_traces: Path) -> None:
    check(agreement(shared_traces / REAL["c2"], move=late), 1.0)


@pytest.mark.parametrize(
    ("file", "kinds", "tokens", "requests", "confidence"),
    [
        ("vllm_mi300x_decode_graph", (StepKind.DECODE_ONLY,), 32, 32, Confidence.MEDIUM),
        # Whether decodes ride along is not told where no other step is.
        ("vllm_mi300x_mixed_piecewise", PREFILLS, 8192, 46, Confidence.MEDIUM),
        ("sglang_mi300x_qwen3_8b_prefill", (StepKind.PREFILL_ONLY,), 15360, 15, Confidence.HIGH),
    ],
)
def test_single_steps_of_other_engines(
    shared_traces: Path, file: str, kinds: tuple[StepKind, ...], tokens: int, requests: int, confidence: Confidence
) -> None:
    (guess,) = agreement(shared_traces / "tracelens" / f"{file}.json.gz").guesses
    assert guess.kind in kinds
    assert (guess.tokens, guess.requests, guess.confidence) == (tokens, requests, confidence)


def test_traces_that_are_no_llms(shared_traces: Path) -> None:
    for file in ("tracelens/ddp_mi300x_resnet.json.gz", "kineto/w0_old.json.gz"):
        trace = read_trace(shared_traces / file)
        assert not infer_llm(replace(trace, labels={}))


@pytest.mark.parametrize("file", [REAL["c2"], "vllm_cpu/d_dense_noannotation_stripped_from_g_stack.pt.trace.json.gz"])
def test_an_engine_is_seen_without_its_labels(shared_traces: Path, file: str) -> None:
    trace = read_trace(shared_traces / file)
    hidden = replace(trace, labels={}, metadata_texts=(), metadata=replace(trace.metadata, engine=None))
    assert infer_llm(hidden)


# -- synthetic traces --------------------------------------------------------------------------------------------


@needs_generator
@pytest.mark.parametrize("name", SYNTHETIC)
def test_synthetic_traces(tmp_path: Path, name: str) -> None:
    check(agreement(synthesize(tmp_path / "trace.json", SYNTHETIC[name], exact=True)))


@needs_generator
@pytest.mark.parametrize("name", [name for name in SYNTHETIC if name != "budget of 1.5 batches, eager"])
def test_vectors_of_fixed_length_are_no_requests(tmp_path: Path, name: str) -> None:
    check(agreement(synthesize(tmp_path / "trace.json", SYNTHETIC[name])))


@needs_generator
def test_a_budget_near_the_batch_needs_the_requests(tmp_path: Path) -> None:
    """Known limit: without requests 48 tokens beside 32 are no other level; --max-num-seq says what is."""
    path = synthesize(tmp_path / "trace.json", SYNTHETIC["budget of 1.5 batches, eager"])
    assert agreement(path).share < REQUIRED
    check(agreement(path, max_num_seq=32))


@needs_generator
@pytest.mark.parametrize("name", [name for name in SYNTHETIC if "eager" not in name])
def test_graphs_without_shapes_are_told_by_their_signature(tmp_path: Path, name: str) -> None:
    found = agreement(without_shapes(synthesize(tmp_path / "trace.json", SYNTHETIC[name])))
    check(found)
    assert {guess.confidence for guess in found.guesses} == {Confidence.LOW}
    assert all(guess.tokens is None for guess in found.guesses)


@needs_generator
def test_equal_launches_and_times_are_unknown_without_shapes(tmp_path: Path) -> None:
    found = agreement(without_shapes(synthesize(tmp_path / "t.json", SYNTHETIC["chunks of 128, eager"])))
    assert {(guess.kind, guess.confidence) for guess in found.guesses} == {(StepKind.UNKNOWN, Confidence.UNKNOWN)}


@needs_generator
@pytest.mark.parametrize("options", ["--steps 40 --no-graph", "--steps 40 --chunk 512 --conc 4"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_trace_of_prefills_only(tmp_path: Path, options: str, *, exact: bool) -> None:
    tool = generator()
    cut = tool.Scheduler.step

    def prefills(self: Any) -> Any:  # noqa: ANN401 - the tool is untyped
        """Requests leave when their prompt is done, as on a prefill instance."""
        for i, request in enumerate(self.reqs):
            if request[0] >= self.isl:
                self.reqs[i] = self.new()
                self.reqs[i][0] = self.rng.randrange(self.isl // 2)  # a cached prefix: prompts of several lengths
        return cut(self)

    tool.Scheduler.step = prefills
    found = agreement(synthesize(tmp_path / "trace.json", options, exact=exact, tool=tool))
    assert {step.kind for step in found.steps} == {StepKind.PREFILL_ONLY}
    check(found, 1.0)


@needs_generator
@pytest.mark.parametrize("options", ["--steps 40 --osl 1000000", "--steps 40 --osl 1000000 --no-graph"])
def test_a_trace_of_decodes_only(tmp_path: Path, options: str) -> None:
    found = agreement(synthesize(tmp_path / "trace.json", options))
    assert {step.kind for step in found.steps} == {StepKind.DECODE_ONLY}
    check(found, 1.0)
    assert {guess.requests for guess in found.guesses} == {64}


# -- ops and evidence --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shapes", "tokens", "requests", "serves"),
    [
        ("_C::cpu_attention_with_kv_cache", ((72, 8, 64), (9, 2), (9, 2), (72, 8, 64), (10,), (9,)), 72, 9, "both"),
        ("vllm::unified_attention_with_output", ((72, 8, 64), (72, 2, 64)), 72, None, "both"),
        ("_vllm_fa3_C::fwd", ((64, 8, 64), (), (), (), (), (), (), (65,)), 64, 64, "both"),
        ("aiter::mha_batch_prefill", ((150, 32, 128), (9, 8, 128), (9, 8, 128), (16,), (16,)), 150, 15, "context"),
        ("sgl_kernel::fwd_kvcache_mla", ((16, 2, 64, 576), (9, 64, 1, 656), (), (16,)), 32, 16, "generation"),
        ("aten::scaled_dot_product_attention", ((4, 16, 559, 64),), 2236, 4, "both"),
        ("other::flash_attention", ((40, 8, 64), (9, 16, 8, 64), (6,), (5,)), 40, 5, "both"),
        ("other::paged_attn", ((40, 8, 64), (40, 8, 64)), 40, None, "both"),
    ],
)
def test_attention_ops_tell_tokens_and_requests(
    name: str, shapes: tuple[tuple[int, ...], ...], tokens: int, requests: int | None, serves: str
) -> None:
    size = attention_size(name, shapes)
    assert size is not None
    assert (size.tokens, size.requests, size.serves) == (tokens, requests, Serves(serves))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("_C::cpu_attn_reshape_and_cache", ((8, 2, 64), (8, 2, 64))),
        ("aten::_flash_attention_forward", ((16, 559, 16, 64),)),
        ("aten::mm", ((8, 4), (4, 8))),
        ("_C::cpu_attention_with_kv_cache", ()),
        ("_C::cpu_attention_with_kv_cache", ((), (8,))),
    ],
)
def test_other_ops_are_no_attention(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert attention_size(name, shapes) is None


def test_padded_sizes() -> None:
    requests = np.array([1, 2, 3, 5, 8, 37, 256, 257, 300])
    assert padded_size(requests).tolist() == [1, 2, 4, 8, 8, 40, 256, 272, 304]


def sizes_of(tokens: list[int], requests: list[int] | None = None, rows: list[int] | None = None) -> BatchSizes:
    untold = [UNTOLD] * len(tokens)
    told = np.array(requests or untold)
    return BatchSizes(
        tokens=np.array(tokens),
        requests=told,
        logit_rows=np.array(rows or untold),
        context_tokens=np.array(untold),
        generation_tokens=np.array(untold),
        padded=told == UNTOLD,
        tokens_from=(TokensFrom.ATTENTION if requests else TokensFrom.MODAL,) * len(tokens),
        ops=np.full(len(tokens), 100),
    )


def carries(sizes: BatchSizes, max_num_seq: int | None = None) -> list[int]:
    count = len(sizes.tokens)
    signature = StepSignature(np.full(count, 100), np.zeros(count, np.bool_), np.full(count, 10), False)
    found: list[int] = prefills_of(sizes, signature, max_num_seq).carries.tolist()
    return found


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([64, 64, 1087, 64, 63, 63, 1086, 64], [0, 0, 1, 0, 0, 0, 1, 0]),
        ([64, 1087, 64, 2110, 64, 8192, 64, 64], [0, 1, 0, 1, 0, 1, 0, 0]),  # several lengths
        ([8, 8, 256, 256, 57, 8, 8, 256, 53, 8, 8, 256, 60, 8], [0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0]),
        ([60, 1000, *[60] * 9, 1000, *[58] * 9, 40, 12, 3, 1, 1], [0, 1, *[0] * 9, 1, *[0] * 14]),  # drained
        ([300, 8192, 700, 4000, 8192, 512, 8192, 1500], [1] * 8),
        ([8192] * 5, [1] * 5),
        ([64, 64, 63, 63, 60], [0] * 5),
    ],
)
def test_levels_of_tokens(tokens: list[int], expected: list[int]) -> None:
    assert carries(sizes_of(tokens)) == expected


def test_max_num_seq_is_the_level_where_it_is_given() -> None:
    assert carries(sizes_of([100, 150, 100]), 128) == [0, 1, 0]


def test_padding_is_no_prefill() -> None:
    assert carries(sizes_of([40, 40, 552], rows=[37, 38, 38])) == [0, 0, 1]


def test_drafts_are_no_prefill() -> None:
    tokens, requests = [4 * n for n in (64, 63, 62, 64)], [64, 63, 62, 64]
    assert carries(sizes_of(tokens, requests)) == [0] * 4
    assert carries(sizes_of([*tokens, 1200], [*requests, 65])) == [0, 0, 0, 0, 1]


def test_a_budget_that_is_a_multiple_of_the_requests_is_no_draft() -> None:
    assert carries(sizes_of([64, 256, 256, 256, 64], [64] * 5)) == [0, 1, 1, 1, 0]
    assert carries(sizes_of([256, 256, 256], [64] * 3, [64] * 3)) == [1] * 3


# -- little told -------------------------------------------------------------------------------------------------


def phases(folder: Path, events: list[dict[str, Any]], boundaries: list[tuple[int, int]]) -> list[PhaseGuess]:
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    trace = read_trace(path)
    candidate = Candidate("call_tree", tuple(StepBoundary(-1, start, end, end, None) for start, end in boundaries))
    return phases_of(trace, link_device_work(trace), candidate)


def test_an_exclusive_engine_prefills_alone(tmp_path: Path) -> None:
    """Decodes replay a graph, so that only the output layer is seen of them; prefills run new requests only."""
    events = []
    for step in range(20):
        prefill = step % 5 == 2
        requests, tokens = (2, 600) if prefill else (30, 30)
        shapes = [("aten::linear", [[tokens, 64], [64, 64]])] * 4 if prefill else []
        shapes += [("aten::embedding", [[5000, 64], [tokens]]), ("aten::linear", [[requests, 64], [5000, 64]])]
        events += [
            {
                "ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1,
                "ts": step * 100 + i, "dur": 1, "args": {"Input Dims": dims},
            }
            for i, (name, dims) in enumerate(shapes)
        ]  # fmt: skip
    found = phases(tmp_path, events, [(step * 100_000, step * 100_000 + 100_000) for step in range(20)])
    expected = [StepKind.PREFILL_ONLY if step % 5 == 2 else StepKind.DECODE_ONLY for step in range(20)]
    assert [guess.kind for guess in found] == expected
    assert {(guess.tokens, guess.requests) for guess in found} == {(600, 2), (30, 30)}
    assert {guess.confidence for guess in found} == {Confidence.MEDIUM}


def test_nothing_to_tell_by(tmp_path: Path) -> None:
    found = phases(tmp_path, [], [(0, 10), (10, 20)])
    assert [guess.kind for guess in found] == [StepKind.EMPTY] * 2


def test_no_boundaries(tmp_path: Path) -> None:
    assert phases(tmp_path, [], []) == []


def test_the_source_names_tokens_and_requests(shared_traces: Path) -> None:
    guess = agreement(shared_traces / REAL["g"]).guesses[0]
    assert guess.source == f"{TokensFrom.ATTENTION}, 8 tokens of 8 requests: {Evidence.REQUESTS}"


def test_the_table_counts_steps(shared_traces: Path) -> None:
    table = agreement_table([agreement(shared_traces / REAL["g"], "g")])
    assert table.splitlines()[-1] == "| g | 10 | 100.0% | 10 | 10 | 10 high |"


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "8", 10**30])
def test_max_num_seq_is_a_count(wrong: object, tmp_path: Path) -> None:
    trace = serving([True, False, False, False], stacks=True).read(tmp_path)
    with pytest.raises(UsageError) as refused:
        steps_of(trace, max_num_seq=wrong)  # type: ignore[arg-type]
    assert refused.value.thing == f"max_num_seq: {wrong}"


def greedy(rows: int, tokens: int, steps: int = 6) -> Loop:
    """Make steps of an unknown engine whose sampling picks a token for each of ``rows``."""
    loop = Loop(stacks=True)
    for _ in range(steps):
        loop.rest(100)
        begin = loop.now
        for name, dims in (
            ("aten::embedding", [[32000, 64], [tokens]]),
            *[("my::attention", [[tokens, 8, 64], [tokens, 8, 64]]), ("aten::mm", [[tokens, 64], [64, 64]])] * 4,
            ("aten::argmax", [[rows, 32000]]),
        ):
            loop.op(name, ("kernel", 5.0))
            loop.events[-3]["args"] = {"Input Dims": dims}
        loop.framed("engine.py(1): step", begin)
    loop.framed("engine.py(9): loop", 990)
    return loop


@pytest.mark.parametrize(("rows", "kind"), [(64, StepKind.PREFILL_ONLY), (600, StepKind.DECODE_ONLY)])
def test_fewer_tokens_are_picked_than_computed_where_prompts_are_prefilled(
    tmp_path: Path, rows: int, kind: StepKind
) -> None:
    """Six steps of 600 tokens each, nothing but the rows of argmax to tell 64 prompts from 600 decodes."""
    found = steps_of(greedy(rows, 600).read(tmp_path), llm_inference=True).steps.steps
    assert {step.kind for step in found} == {kind}
