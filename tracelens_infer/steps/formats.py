"""The built-in grammars of step labels: one small parser each, for vLLM, SGLang, ATOM, diffusion and the profiler."""

from __future__ import annotations

import re

from tracelens_infer.steps.annotation import (
    MAX_DIGITS,
    PROFILER_RANK,
    AttentionLoad,
    PhaseLoad,
    StepAnnotation,
    StepFormat,
)

__all__ = [
    "BUILT_IN",
    "parse_atom",
    "parse_diffusion",
    "parse_profiler_step",
    "parse_sglang_detailed",
    "parse_sglang_native",
    "parse_vllm_detailed",
    "parse_vllm_native",
    "parse_vllm_native_pair",
    "parse_vllm_new_cached",
]

NO_REQUESTS = PhaseLoad(0, 0, 0, 0, 0)  # nothing runs, so every sum is known to be zero

_N = rf"([0-9]{{1,{MAX_DIGITS}}})"

# ATOM cuts long lists: ctx=[4096, 4096, 4096]...+3
_KEY, _VALUE = r"[A-Za-z_][A-Za-z0-9_]*", r"(?:\[[0-9, ]*\](?:\.\.\.\+[0-9]+)?|[^\s\[\]=]+)"
_PAIR = re.compile(rf"({_KEY})=({_VALUE})")
_COUNT = re.compile(rf"{_N}(?:/{_N})?")

_VLLM_SUMS = rf"\(sq{_N}sk{_N}sqsq{_N}sqsk{_N}\)"
_VLLM_DETAILED = re.compile(rf"execute_{_N}_context_{_N}{_VLLM_SUMS}_generation_{_N}{_VLLM_SUMS}")
_VLLM_NATIVE = re.compile(rf"execute_context_{_N}\({_N}\)_generation_{_N}\({_N}\)")
_VLLM_NATIVE_PAIR = re.compile(rf"execute_context_{_N}\({_N}_{_N}\)_generation_{_N}\({_N}\)")
_VLLM_NEW_CACHED = re.compile(rf"execute_new_{_N}_cached_{_N}")
_SGLANG = re.compile(rf"step\[([A-Z][A-Z0-9_]*)((?: {_KEY}={_VALUE})+)\]")
_ATOM = re.compile(rf"(prefill|decode)\[({_KEY}={_VALUE}(?: {_KEY}={_VALUE})*)\]")
_DIFFUSION = re.compile(rf"execute_diffusion_{_N}_{_N}x{_N}")
_PROFILER_STEP = re.compile(r"ProfilerStep(?:#[0-9]+|\*)")

_SGLANG_COUNTS = frozenset(
    {"bs", "toks", "c", "g", "c_sq", "c_sk", "c_sqsq", "c_sqsk", "g_sq", "g_sk", "g_sqsq", "g_sqsk"}
)
_SGLANG_CONTEXT_MODES = frozenset({"EXTEND", "SPLIT_PREFILL"})
# DRAFT_EXTEND follows a verify step; after a prefill the draft model runs under the mode EXTEND.
_SGLANG_GENERATION_MODES = frozenset({"DECODE", "VERIFY", "TARGET_VERIFY", "DRAFT", "DRAFT_EXTEND", "DRAFT_EXTEND_V2"})
_ATOM_COUNTS = frozenset({"bs", "tok", "p", "d", "sk", "sqsq", "sqsk"})


def parse_vllm_detailed(text: str) -> StepAnnotation | None:
    """What does ``execute_T_context_N(sq…sk…sqsq…sqsk…)_generation_N(…)`` say?"""
    match = _VLLM_DETAILED.fullmatch(text)
    if match is None:
        return None
    # The leading total is the sum of both sq; the grammar writes sqsq before sqsk, PhaseLoad has them turned.
    _, c, c_sq, c_sk, c_sqsq, c_sqsk, g, g_sq, g_sk, g_sqsq, g_sqsk = map(int, match.groups())
    context, generation = PhaseLoad(c, c_sq, c_sk, c_sqsk, c_sqsq), PhaseLoad(g, g_sq, g_sk, g_sqsk, g_sqsq)
    return _vllm("vllm-detailed", text, context, generation)


def parse_vllm_native(text: str) -> StepAnnotation | None:
    """What does ``execute_context_N(tokens)_generation_N(tokens)`` say?"""
    match = _VLLM_NATIVE.fullmatch(text)
    if match is None:
        return None
    contexts, context_tokens, generations, generation_tokens = map(int, match.groups())
    return _vllm("vllm-native", text, _phase(contexts, context_tokens), _phase(generations, generation_tokens))


def parse_vllm_native_pair(text: str) -> StepAnnotation | None:
    """What does ``execute_context_1(888_788544)_generation_0(0)`` say?

    The pair's first number is the query tokens. vLLM documents no meaning for the second, so it stays out of the load.
    """
    match = _VLLM_NATIVE_PAIR.fullmatch(text)
    if match is None:
        return None
    contexts, context_tokens, _, generations, generation_tokens = map(int, match.groups())
    return _vllm("vllm-native-pair", text, _phase(contexts, context_tokens), _phase(generations, generation_tokens))


def parse_vllm_new_cached(text: str) -> StepAnnotation | None:
    """What does ``execute_new_N_cached_N``, vLLM's oldest grammar, say?

    It tells requests that are scheduled for the first time from those that ran before. They are taken for context and
    generation, though a later chunk of a long prompt is among the cached ones too: such a step looks like a decode.
    """
    match = _VLLM_NEW_CACHED.fullmatch(text)
    if match is None:
        return None
    new, cached = map(int, match.groups())
    return _vllm("vllm-new-cached", text, _phase(new), _phase(cached))


def parse_sglang_detailed(text: str) -> StepAnnotation | None:
    """What does ``step[MODE bs=… c_sq=… g_sq=…]`` say, where it tells all four sums of each phase it has?"""
    if "_sq" not in text:  # spares native labels the parse that the next format makes
        return None
    annotation = _sglang("sglang-detailed", text)
    return annotation if annotation and annotation.load and annotation.load.has_sums else None


def parse_sglang_native(text: str) -> StepAnnotation | None:
    """What does ``step[MODE bs=… toks=…]`` say?

    EXTEND is context; DECODE, VERIFY and DRAFT are generation. MIXED means that both are in the step but not how many
    of each, so its load is None and ``batch_size`` holds the requests of both; so do modes that are not known.
    """
    return _sglang("sglang-native", text)


def parse_atom(text: str) -> StepAnnotation | None:
    """What does ``prefill[…]`` or ``decode[…]``, ATOM's grammar, say?

    ``decode[… p=2 d=126 …]`` is a decode step with prefills in it. Its sums are those of both phases together, so
    each phase's own stay None.
    """
    match = _ATOM.fullmatch(text)
    counts = None if match is None else _counts(match[2], _ATOM_COUNTS)
    if match is None or counts is None or "bs" not in counts:
        return None
    mode, batch = match[1], counts["bs"]
    if mode == "prefill":
        generations = counts.get("d", 0)
        contexts = counts.get("p", batch - generations)
    else:
        contexts = counts.get("p", 0)
        generations = counts.get("d", batch - contexts)
    if contexts < 0 or generations < 0:
        return None
    if contexts and generations:
        load = AttentionLoad(PhaseLoad(contexts), PhaseLoad(generations))
    else:
        sums = (counts.get("tok"), counts.get("sk"), counts.get("sqsk"), counts.get("sqsq"))
        load = AttentionLoad(_phase(contexts, *sums), _phase(generations, *sums))
    return StepAnnotation("atom", load, counts.get("bs/"), text, mode, batch)


def parse_diffusion(text: str) -> StepAnnotation | None:
    """What does ``execute_diffusion_BATCH_WIDTHxHEIGHT`` say? A denoising step has neither context nor generation."""
    match = _DIFFUSION.fullmatch(text)
    return None if match is None else StepAnnotation("diffusion", None, None, text, None, int(match[1]))


def parse_profiler_step(text: str) -> StepAnnotation | None:
    """What does ``ProfilerStep#N`` say? Only that the program told the profiler of a step."""
    return StepAnnotation("profiler-step", None, None, text) if _PROFILER_STEP.fullmatch(text) else None


def _phase(
    requests: int,
    query_tokens: int | None = None,
    kv_tokens: int | None = None,
    query_kv: int | None = None,
    query_query: int | None = None,
) -> PhaseLoad:
    if requests == 0:
        return NO_REQUESTS
    return PhaseLoad(requests, query_tokens, kv_tokens, query_kv, query_query)


def _vllm(name: str, text: str, context: PhaseLoad, generation: PhaseLoad) -> StepAnnotation:
    batch_size = context.requests + generation.requests
    return StepAnnotation(name, AttentionLoad(context, generation), None, text, None, batch_size)


def _counts(pairs: str, known: frozenset[str]) -> dict[str, int] | None:
    """The known keys' numbers; of ``bs=117/128`` the second is under ``bs/``. None where one is not a number."""
    counts = {}
    for key, value in _PAIR.findall(pairs):
        if key not in known:
            continue
        match = _COUNT.fullmatch(value)
        if match is None:
            return None
        counts[key] = int(match[1])
        if match[2] is not None:
            counts[f"{key}/"] = int(match[2])
    return counts


def _sglang(name: str, text: str) -> StepAnnotation | None:
    match = _SGLANG.fullmatch(text)
    counts = None if match is None else _counts(match[2], _SGLANG_COUNTS)
    if match is None or counts is None or "bs" not in counts:
        return None
    return StepAnnotation(name, _sglang_load(match[1], counts), counts.get("bs/"), text, match[1], counts["bs"])


def _sglang_load(mode: str, counts: dict[str, int]) -> AttentionLoad | None:
    batch = counts["bs"]
    if "c" in counts and "g" in counts:
        contexts, generations = counts["c"], counts["g"]
    elif mode in _SGLANG_CONTEXT_MODES:
        contexts, generations = batch, 0
    elif mode in _SGLANG_GENERATION_MODES:
        contexts, generations = 0, batch
    elif batch == 0:
        contexts, generations = 0, 0
    else:
        return None
    tokens = None if contexts and generations else counts.get("toks")
    if tokens is None and mode == "DECODE" and not contexts:
        tokens = generations
    return AttentionLoad(_sglang_phase(counts, "c", contexts, tokens), _sglang_phase(counts, "g", generations, tokens))


def _sglang_phase(counts: dict[str, int], phase: str, requests: int, tokens: int | None) -> PhaseLoad:
    sums = (counts.get(f"{phase}_{which}") for which in ("sk", "sqsk", "sqsq"))
    return _phase(requests, counts.get(f"{phase}_sq", tokens), *sums)


BUILT_IN: tuple[StepFormat, ...] = (
    StepFormat("vllm-detailed", parse_vllm_detailed, True, prefixes=tuple(f"execute_{digit}" for digit in range(10))),
    StepFormat("vllm-native", parse_vllm_native, prefixes=("execute_context_",)),
    StepFormat("vllm-native-pair", parse_vllm_native_pair, prefixes=("execute_context_",)),
    StepFormat("vllm-new-cached", parse_vllm_new_cached, prefixes=("execute_new_",)),
    StepFormat("sglang-detailed", parse_sglang_detailed, True, prefixes=("step[",)),
    StepFormat("sglang-native", parse_sglang_native, prefixes=("step[",)),
    StepFormat("atom", parse_atom, prefixes=("prefill[", "decode[")),
    StepFormat("diffusion", parse_diffusion, prefixes=("execute_diffusion_",)),
    StepFormat("profiler-step", parse_profiler_step, rank=PROFILER_RANK, prefixes=("ProfilerStep",)),
)
