"""Kinds of steps and why, decodes that stand still, and how an engine mixes its phases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.make_trace import vllm
from tracelens_infer.steps.annotation import StepAnnotation, parse_annotation
from tracelens_infer.steps.classify import (
    MAX_SPECULATIVE_TOKENS,
    classify,
    engine_mode,
    speculates,
    stalled_decodes,
)
from tracelens_infer.steps.step import EngineMode, StepKind

DECODE_ONLY, PREFILL_DECODE, PREFILL_ONLY = StepKind.DECODE_ONLY, StepKind.PREFILL_DECODE, StepKind.PREFILL_ONLY
EMPTY, RECOMPUTE, UNKNOWN, DUMMY = StepKind.EMPTY, StepKind.RECOMPUTE, StepKind.UNKNOWN, StepKind.DUMMY


def parsed(text: str) -> StepAnnotation:
    annotation = parse_annotation(text)
    assert annotation is not None, text
    return annotation


def vllm_decodes(requests: int, tokens: int, squares: int) -> str:
    sums = f"sq{tokens}sk{500 * requests}sqsq{squares}sqsk{500 * tokens}"
    return f"execute_{tokens}_context_0(sq0sk0sqsq0sqsk0)_generation_{requests}({sums})"


@pytest.mark.parametrize(
    ("text", "kind", "kind_from"),
    [
        (vllm(0, 8), DECODE_ONLY, "vllm-detailed"),
        (vllm(2, 8), PREFILL_DECODE, "vllm-detailed"),
        (vllm(2, 0), PREFILL_ONLY, "vllm-detailed"),
        (vllm(0, 0), EMPTY, "vllm-detailed"),
        ("execute_context_2(6144)_generation_3(3)", PREFILL_DECODE, "vllm-native"),
        ("execute_context_1(888_788544)_generation_0(0)", PREFILL_ONLY, "vllm-native-pair"),
        ("execute_context_0(0)_generation_0(0)", EMPTY, "vllm-native"),
        ("execute_new_0_cached_3", DECODE_ONLY, "vllm-new-cached"),
        ("step[EXTEND bs=2 toks=14721]", PREFILL_ONLY, "sglang-native"),
        ("step[DECODE bs=64]", DECODE_ONLY, "sglang-native"),
        ("step[DECODE bs=0]", EMPTY, "sglang-native"),
        ("step[MIXED bs=62]", PREFILL_DECODE, "sglang-native"),
        ("step[IDLE bs=0]", EMPTY, "sglang-native"),
        ("step[SOMETHING bs=4]", UNKNOWN, "sglang-native tells no phases"),
        ("step[VERIFY bs=4 toks=16]", DECODE_ONLY, "sglang-native"),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", PREFILL_ONLY, "atom"),
        ("decode[bs=64 tok=64 d=64]", DECODE_ONLY, "atom"),
        ("decode[bs=128 tok=384 p=2 d=126 sqsq=132612 sqsk=1114112 sk=258048 tbo=1]", PREFILL_DECODE, "atom"),
        ("execute_diffusion_1_1024x1024", UNKNOWN, "diffusion tells no phases"),
        ("ProfilerStep#3", UNKNOWN, "profiler-step tells no phases"),
    ],
)
@pytest.mark.parametrize("speculative", [True, False])
def test_the_label_tells_the_kind(text: str, kind: StepKind, kind_from: str, speculative: bool) -> None:
    told = classify(parsed(text), speculative=speculative or "VERIFY" in text)
    assert told == (kind, kind_from)


MOST = 1 + MAX_SPECULATIVE_TOKENS


@pytest.mark.parametrize(
    ("requests", "tokens", "squares", "plain", "speculating"),
    [
        (8, 8, 8, DECODE_ONLY, DECODE_ONLY),
        (8, 9, 11, RECOMPUTE, DECODE_ONLY),  # one request brings two tokens
        (8, 32, 128, RECOMPUTE, DECODE_ONLY),  # four each: three drafted
        (2, 2 * MOST, 2 * MOST**2, RECOMPUTE, DECODE_ONLY),  # as many as any engine drafts
        (2, 2 * MOST + 1, 700, RECOMPUTE, RECOMPUTE),
        (8, 107, 7 + 100**2, RECOMPUTE, RECOMPUTE),  # seven decodes and one resumed: the squares tell
        (64, 163, 63 + 100**2, RECOMPUTE, RECOMPUTE),
        (8, 32, 17 * 32, RECOMPUTE, DECODE_ONLY),  # 17 tokens are drafted at most, so the squares cannot be more
        (8, 32, 17 * 32 + 1, RECOMPUTE, RECOMPUTE),
    ],
)
def test_a_decode_with_too_many_query_tokens_recomputes(
    requests: int, tokens: int, squares: int, plain: StepKind, speculating: StepKind
) -> None:
    annotation = parsed(vllm_decodes(requests, tokens, squares))
    for speculative, kind in ((False, plain), (True, speculating)):
        told, kind_from = classify(annotation, speculative=speculative)
        assert told is kind
        assert kind_from == (
            "vllm-detailed: too many query tokens for decodes" if kind is RECOMPUTE else annotation.format
        )


def test_a_resumed_request_beside_a_prefill_leaves_the_kind_as_it_is() -> None:
    text = vllm_decodes(8, 107, 7 + 100**2).replace(
        "context_0(sq0sk0sqsq0sqsk0)", "context_1(sq64sk64sqsq4096sqsk4096)"
    )
    assert classify(parsed(text), speculative=False)[0] is PREFILL_DECODE


PLAIN, DRAFTED, NO_TOKENS = vllm_decodes(8, 8, 8), vllm_decodes(8, 32, 128), "execute_new_0_cached_3"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], False),
        ([PLAIN] * 10, False),
        ([PLAIN] * 9 + [DRAFTED], False),  # one in ten: a resumed request
        ([PLAIN] * 8 + [DRAFTED] * 2, True),
        ([DRAFTED], True),
        ([vllm(1, 0)] * 10 + [DRAFTED], True),  # prefills do not count
        ([NO_TOKENS] * 10 + [DRAFTED], True),  # nor do labels without tokens
        (["ProfilerStep#1"], False),
        (["step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]"], True),
    ],
)
def test_an_engine_speculates_in_most_steps_or_never(texts: list[str], expected: bool) -> None:
    assert speculates([parsed(text) for text in texts]) is expected
    assert speculates([None, *(parsed(text) for text in texts), None]) is expected


@pytest.mark.parametrize(
    ("phases", "stalled"),
    [
        # Each step as (requests that prefill, requests that decode).
        ([], []),
        ([(2, 0)], [0]),
        ([(0, 8)], [0]),
        ([(0, 8), (0, 8)], [0, 0]),
        ([(2, 0), (0, 2)], [0, 0]),  # nobody decoded before
        ([(0, 8), (2, 0)], [0, 0]),  # nobody decodes after
        ([(0, 8), (2, 0), (0, 10)], [0, 8, 0]),
        ([(0, 8), (2, 0), (0, 9)], [0, 7, 0]),  # one of the eight had finished
        ([(0, 8), (2, 0), (0, 2)], [0, 0, 0]),  # all of them had
        ([(0, 8), (2, 0), (0, 1)], [0, 0, 0]),
        ([(0, 8), (1, 0), (1, 0), (0, 10)], [0, 8, 8, 0]),  # consecutive prefill steps
        ([(0, 8), (1, 0), (1, 0), (0, 9)], [0, 7, 7, 0]),  # two came, so one of the eight had finished
        ([(0, 8), (1, 0), (2, 0), (4, 0), (0, 15)], [0, 8, 8, 8, 0]),
        ([(0, 8), (1, 0), (0, 9), (1, 0), (0, 10)], [0, 8, 0, 9, 0]),
        ([(0, 8), (0, 0), (2, 0), (0, 0), (0, 10)], [0, 0, 8, 0, 0]),  # steps in which nothing runs do not count
        ([(0, 8), (2, 8), (0, 10)], [0, 0, 0]),  # mixed: they decode in it
        ([(0, 8), (2, 3), (0, 10)], [0, 5, 0]),  # the budget left five of them out
        ([(0, 8), (1, 7), (0, 8)], [0, 0, 0]),  # one finished, one came
    ],
)
def test_stalled_decodes_run_before_and_after_but_not_in_a_step(
    phases: list[tuple[int, int]], stalled: list[int]
) -> None:
    assert stalled_decodes([c for c, _ in phases], [g for _, g in phases]) == stalled


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40))))
def test_no_more_stand_still_than_decoded_before_or_decode_after(phases: list[tuple[int, int]]) -> None:
    found = stalled_decodes([c for c, _ in phases], [g for _, g in phases])
    assert len(found) == len(phases)
    for index, (stalled, (context, generation)) in enumerate(zip(found, phases, strict=True)):
        before = next((g for _, g in phases[:index][::-1] if g), 0)
        after = next((g for _, g in phases[index + 1 :] if g), 0)
        assert 0 <= stalled <= max(0, min(before, after) - generation)
        assert stalled == 0 or context


@pytest.mark.parametrize(
    ("kinds", "stalled", "mode"),
    [
        ([], [], EngineMode.UNKNOWN),
        ([DECODE_ONLY] * 3, [0] * 3, EngineMode.UNKNOWN),
        ([PREFILL_ONLY, DECODE_ONLY], [0, 0], EngineMode.UNKNOWN),  # a mixed engine's ramp-up looks the same
        ([DECODE_ONLY, PREFILL_ONLY, DECODE_ONLY], [0, 8, 0], EngineMode.EXCLUSIVE),
        ([PREFILL_ONLY, DECODE_ONLY, PREFILL_DECODE], [0, 0, 0], EngineMode.MIXED),
        ([DECODE_ONLY, PREFILL_ONLY, PREFILL_DECODE], [0, 8, 0], EngineMode.MIXED),
        ([UNKNOWN] * 3, [0] * 3, EngineMode.UNKNOWN),
    ],
)
def test_engine_mode(kinds: list[StepKind], stalled: list[int], mode: EngineMode) -> None:
    assert engine_mode(kinds, stalled) is mode
