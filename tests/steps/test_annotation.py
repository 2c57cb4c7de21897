"""Do step labels of every engine become the right values, and does nothing else pass for one?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_infer.errors import UsageError
from tracelens_infer.notes import Note
from tracelens_infer.steps import annotation as module
from tracelens_infer.steps.annotation import (
    AttentionLoad,
    PhaseLoad,
    StepAnnotation,
    StepFormat,
    format_notes,
    is_graph_capture,
    parse_annotation,
    register_format,
    registered_formats,
    vllm_text,
)
from tracelens_infer.steps.formats import BUILT_IN

NO_REQUESTS = PhaseLoad(0, 0, 0, 0, 0)

BUILT_IN_NAMES = [fmt.name for fmt in BUILT_IN]


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts with nothing registered, and leaves nothing behind."""
    monkeypatch.setattr(module, "_registry", module._Registry())


def load(context: PhaseLoad = NO_REQUESTS, generation: PhaseLoad = NO_REQUESTS) -> AttentionLoad:
    return AttentionLoad(context, generation)


SGLANG_MIXED = (
    "step[MIXED bs=5 c=2 g=3 c_sq=6144 c_sk=7144 c_sqsq=20971520 c_sqsk=23019520 g_sq=3 g_sk=6144 g_sqsq=3 g_sqsk=6144]"
)
SGLANG_MIXED_SHUFFLED = (
    "step[MIXED g_sqsk=6144 g_sqsq=3 g=3 bs=5 c_sqsk=23019520 c_sqsq=20971520 c_sk=7144 new=1 c_sq=6144 c=2"
    " g_sk=6144 g_sq=3]"
)

# PhaseLoad's order: requests, query_tokens, kv_tokens, query_kv, query_query.
LABELS: list[tuple[str, str, AttentionLoad | None, int | None, str | None, int | None]] = [
    # text, format, load, padded_batch, mode, batch_size
    (
        "execute_6147_context_2(sq6144sk7144sqsq20971520sqsk23019520)_generation_3(sq3sk6144sqsq3sqsk6144)",
        "vllm-detailed",
        load(PhaseLoad(2, 6144, 7144, 23019520, 20971520), PhaseLoad(3, 3, 6144, 6144, 3)),
        None,
        None,
        5,
    ),
    (
        "execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_0(sq0sk0sqsq0sqsk0)",
        "vllm-detailed",
        load(),
        None,
        None,
        0,
    ),
    (
        "execute_context_2(6144)_generation_3(3)",
        "vllm-native",
        load(PhaseLoad(2, 6144), PhaseLoad(3, 3)),
        None,
        None,
        5,
    ),
    ("execute_context_0(0)_generation_64(64)", "vllm-native", load(generation=PhaseLoad(64, 64)), None, None, 64),
    ("execute_context_0(0)_generation_0(0)", "vllm-native", load(), None, None, 0),
    (
        "execute_context_1(888_788544)_generation_0(0)",
        "vllm-native-pair",
        load(PhaseLoad(1, 888)),
        None,
        None,
        1,
    ),
    ("execute_new_2_cached_62", "vllm-new-cached", load(PhaseLoad(2), PhaseLoad(62)), None, None, 64),
    ("execute_new_0_cached_64", "vllm-new-cached", load(generation=PhaseLoad(64)), None, None, 64),
    ("step[EXTEND bs=2 toks=14721]", "sglang-native", load(PhaseLoad(2, 14721)), None, "EXTEND", 2),
    ("step[EXTEND bs=4 toks=16384]", "sglang-native", load(PhaseLoad(4, 16384)), None, "EXTEND", 4),
    ("step[EXTEND bs=3]", "sglang-native", load(PhaseLoad(3)), None, "EXTEND", 3),
    ("step[DECODE bs=64]", "sglang-native", load(generation=PhaseLoad(64, 64)), None, "DECODE", 64),
    ("step[VERIFY bs=8]", "sglang-native", load(generation=PhaseLoad(8)), None, "VERIFY", 8),
    ("step[TARGET_VERIFY bs=8 toks=32]", "sglang-native", load(generation=PhaseLoad(8, 32)), None, "TARGET_VERIFY", 8),
    ("step[DRAFT bs=8]", "sglang-native", load(generation=PhaseLoad(8)), None, "DRAFT", 8),
    ("step[VERIFY bs=8 g_sq=32]", "sglang-native", load(generation=PhaseLoad(8, 32)), None, "VERIFY", 8),
    ("step[MIXED bs=62]", "sglang-native", None, None, "MIXED", 62),
    ("step[MIXED bs=62 toks=900]", "sglang-native", None, None, "MIXED", 62),
    ("step[MIXED bs=5 c=2 g=3]", "sglang-native", load(PhaseLoad(2), PhaseLoad(3)), None, "MIXED", 5),
    ("step[MIXED bs=5 toks=9 c=2 g=3]", "sglang-native", load(PhaseLoad(2), PhaseLoad(3)), None, "MIXED", 5),
    ("step[DECODE bs=4 c=1 g=3]", "sglang-native", load(PhaseLoad(1), PhaseLoad(3)), None, "DECODE", 4),
    ("step[IDLE bs=0]", "sglang-native", load(), None, "IDLE", 0),
    ("step[SOMETHING_NEW bs=7]", "sglang-native", None, None, "SOMETHING_NEW", 7),
    ("step[DECODE rid=a,b bs=64 dp=[0, 1]]", "sglang-native", load(generation=PhaseLoad(64, 64)), None, "DECODE", 64),
    (
        "step[EXTEND bs=2 toks=14721 c_sq=14721 c_sqsq=108745533 c_sqsk=108745533 c_sk=14721]",
        "sglang-detailed",
        load(PhaseLoad(2, 14721, 14721, 108745533, 108745533)),
        None,
        "EXTEND",
        2,
    ),
    (
        "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]",
        "sglang-detailed",
        load(generation=PhaseLoad(64, 128, 131072, 262144, 256)),
        None,
        "DECODE",
        64,
    ),
    (
        SGLANG_MIXED,
        "sglang-detailed",
        load(PhaseLoad(2, 6144, 7144, 23019520, 20971520), PhaseLoad(3, 3, 6144, 6144, 3)),
        None,
        "MIXED",
        5,
    ),
    (
        SGLANG_MIXED_SHUFFLED,
        "sglang-detailed",
        load(PhaseLoad(2, 6144, 7144, 23019520, 20971520), PhaseLoad(3, 3, 6144, 6144, 3)),
        None,
        "MIXED",
        5,
    ),
    (
        "step[MIXED bs=5 c=2 g=3 c_sq=6144 c_sk=7144 c_sqsq=20971520 c_sqsk=23019520]",
        "sglang-native",
        load(PhaseLoad(2, 6144, 7144, 23019520, 20971520), PhaseLoad(3)),
        None,
        "MIXED",
        5,
    ),
    ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", "atom", load(PhaseLoad(2, 14721)), None, "prefill", 2),
    ("prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3]", "atom", load(PhaseLoad(6, 17408)), None, "prefill", 6),
    (
        "prefill[bs=2 tok=14721 ctx=[7803, 6918] sqsq=108745533 sqsk=108745533 sk=14721]",
        "atom",
        load(PhaseLoad(2, 14721, 14721, 108745533, 108745533)),
        None,
        "prefill",
        2,
    ),
    ("prefill[bs=5 tok=99 d=3]", "atom", load(PhaseLoad(2), PhaseLoad(3)), None, "prefill", 5),
    ("decode[bs=64 tok=64 d=64]", "atom", load(generation=PhaseLoad(64, 64)), None, "decode", 64),
    ("decode[bs=64]", "atom", load(generation=PhaseLoad(64)), None, "decode", 64),
    (
        "decode[bs=117/128 tok=117 d=117 sqsq=117 sqsk=239616 sk=239616]",
        "atom",
        load(generation=PhaseLoad(117, 117, 239616, 239616, 117)),
        128,
        "decode",
        117,
    ),
    ("decode[bs=32 tok=128 d=32 spec=3]", "atom", load(generation=PhaseLoad(32, 128)), None, "decode", 32),
    (
        "decode[bs=128 tok=384 p=2 d=126 sqsq=132612 sqsk=1114112 sk=258048 tbo=1]",
        "atom",
        load(PhaseLoad(2), PhaseLoad(126)),
        None,
        "decode",
        128,
    ),
    (
        "decode[bs=4 tok=4 p=0 d=4 sqsq=4 sqsk=40 sk=40]",
        "atom",
        load(generation=PhaseLoad(4, 4, 40, 40, 4)),
        None,
        "decode",
        4,
    ),
    ("execute_diffusion_1_1024x1024", "diffusion", None, None, None, 1),
    ("ProfilerStep#3", "profiler-step", None, None, None, None),
    ("ProfilerStep*", "profiler-step", None, None, None, None),
]

NEAR_MISSES = [
    "",
    "gpu_model_runner: forward",
    "execute_model",
    "gpu_model_runner.execute_model",
    "nccl:all_reduce",
    "## forward ##",
    "capture_128_decode",
    "execute_",
    "execute_context_2(6144)_generation_3",
    "execute_context_2(6144)_generation_3(3) ",
    " execute_context_2(6144)_generation_3(3)",
    "execute_context_2(6144)_generation_3(3)\n",
    "execute_context_2(6144)_generation_3(3)_postprocess",
    "execute_context_-1(6144)_generation_3(3)",
    "execute_context_1(888_788544_1)_generation_0(0)",
    "execute_context_٣(6144)_generation_3(3)",
    "execute_6147_context_2(sq6144sk7144sqsq20971520)_generation_3(sq3sk6144sqsq3)",
    "execute_6147_context_2(sk7144sq6144sqsq20971520sqsk23019520)_generation_3(sq3sk6144sqsq3sqsk6144)",
    "xexecute_0_context_0(sq0sk0sqsq0sqsk0)_generation_0(sq0sk0sqsq0sqsk0)",
    "execute_new_2",
    "execute_new_2_cached_",
    "step[3]",
    "step[EXTEND]",
    "step[EXTEND toks=14721]",
    "step[EXTEND bs=]",
    "step[EXTEND bs=two]",
    "step[EXTEND bs=2 toks=1.5]",
    "step[EXTEND bs=2 toks=14721",
    "step[EXTEND bs=2] forward",
    "step[extend bs=2]",
    "step[MIXED bs=5 g_sq=x]",
    "prefill",
    "prefill[tok=14721]",
    "prefill[bs=2 tok=14721 ctx=[7803, 6918]",
    "prefill[bs=2 d=3]",
    "decode[bs=117/128/256]",
    "decode[bs=2 p=3]",
    "decode[]",
    "decode[bs=64] forward",
    "execute_diffusion_1_1024",
    "execute_diffusion_1_1024x1024x3",
    "ProfilerStep",
    "ProfilerStep#",
    "ProfilerStep#3 warmup",
]


@pytest.mark.parametrize(("text", "name", "values", "padded_batch", "mode", "batch_size"), LABELS)
def test_a_label_says_exactly_this(
    text: str, name: str, values: AttentionLoad | None, padded_batch: int | None, mode: str | None, batch_size: int
) -> None:
    assert parse_annotation(text) == StepAnnotation(name, values, padded_batch, text, mode, batch_size)


@pytest.mark.parametrize("text", NEAR_MISSES)
def test_what_is_not_a_whole_label_does_not_match(text: str) -> None:
    assert parse_annotation(text) is None


@pytest.mark.parametrize(("text", "name"), [(label[0], label[1]) for label in LABELS])
def test_has_aggregates_promises_all_four_sums(text: str, name: str) -> None:
    fmt = next(fmt for fmt in registered_formats() if fmt.name == name)
    annotation = parse_annotation(text)
    assert annotation is not None
    if fmt.has_aggregates:
        assert annotation.load is not None
        assert annotation.load.has_sums


@pytest.mark.parametrize(
    ("text", "has_context", "has_generation", "requests"),
    [
        ("step[MIXED bs=62]", True, True, 62),
        ("step[EXTEND bs=2 toks=14721]", True, False, 2),
        ("execute_context_2(6144)_generation_3(3)", True, True, 5),
        ("decode[bs=128 tok=384 p=2 d=126]", True, True, 128),
        ("decode[bs=64 tok=64 d=64]", False, True, 64),
        ("execute_context_0(0)_generation_0(0)", False, False, 0),
        ("step[SOMETHING_NEW bs=7]", None, None, 7),
        ("execute_diffusion_1_1024x1024", None, None, 1),
        ("ProfilerStep#3", None, None, None),
    ],
)
def test_a_label_says_which_phases_are_in_the_step(
    text: str, has_context: bool | None, has_generation: bool | None, requests: int | None
) -> None:
    annotation = parse_annotation(text)
    assert annotation is not None
    assert (annotation.has_context, annotation.has_generation) == (has_context, has_generation)
    assert annotation.requests == requests


def test_18_digits_are_read_and_absurd_lengths_refused() -> None:
    largest = 10**18 - 1
    annotation = parse_annotation(f"execute_context_1({largest})_generation_0(0)")
    assert annotation is not None
    assert annotation.load == load(PhaseLoad(1, largest))
    for digits in (19, 5_000, 200_000):
        long = "9" * digits
        sums = f"(sq{long}sk1sqsq1sqsk1)"
        for text in (
            f"execute_context_1({long})_generation_0(0)",
            f"execute_context_1(1_{long})_generation_0(0)",
            f"execute_{long}_context_1{sums}_generation_1{sums}",
            f"execute_new_{long}_cached_1",
            f"step[DECODE bs={long}]",
            f"decode[bs=1/{long}]",
            f"execute_diffusion_{long}_1x1",
        ):
            assert parse_annotation(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("capture_128_decode", True),
        ("capture_1_mixed", True),
        ("capture_decode", False),
        ("capture_128_", False),
        ("recapture_128_decode", False),
        ("capture_128_decode!", False),
        ("step[DECODE bs=64]", False),
    ],
)
def test_a_graph_capture_is_told_from_a_step(text: str, expected: bool) -> None:
    assert is_graph_capture(text) is expected


# vLLM's text and back


def phases() -> st.SearchStrategy[PhaseLoad]:
    number = st.integers(0, 10**18 - 1)
    half = st.integers(0, 10**18 // 2 - 1)  # the label also holds the sum of both phases' query tokens
    return st.builds(PhaseLoad, number, half, number, number, number)


@given(context=phases(), generation=phases())
def test_vllm_text_reads_back_as_the_same_load(context: PhaseLoad, generation: PhaseLoad) -> None:
    values = AttentionLoad(context, generation)
    text = vllm_text(values)
    batch_size = context.requests + generation.requests
    assert parse_annotation(text) == StepAnnotation("vllm-detailed", values, None, text, None, batch_size)


def test_vllm_text_writes_the_documented_label() -> None:
    text, _, values, *_ = LABELS[0]
    assert values is not None
    assert vllm_text(values) == text


def test_vllm_text_writes_zeros_for_a_phase_without_requests() -> None:
    assert vllm_text(AttentionLoad()) == "execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_0(sq0sk0sqsq0sqsk0)"


@pytest.mark.parametrize(
    ("values", "thing"),
    [
        (load(PhaseLoad(1, 5)), "context load"),
        (load(generation=PhaseLoad(1, 5, 5, 25, None)), "generation load"),
        (load(PhaseLoad(1, -5, 5, 25, 25)), "context load"),
        (load(PhaseLoad(1, 5, 5, 10**18, 25)), "context load"),
        (load(PhaseLoad(1, 10**18 - 1, 5, 5, 5), PhaseLoad(1, 1, 5, 5, 5)), "load"),
    ],
)
def test_vllm_text_refuses_what_it_could_not_read_back(values: AttentionLoad, thing: str) -> None:
    with pytest.raises(UsageError) as caught:
        vllm_text(values)
    assert caught.value.thing == thing


# The registry


def made_up(name: str, text: str = "made up") -> StepFormat:
    def parse(candidate: str) -> StepAnnotation | None:
        return StepAnnotation(name, None, None, candidate) if candidate == text else None

    return StepFormat(name, parse)


def names() -> list[str]:
    return [fmt.name for fmt in registered_formats()]


def test_the_built_in_formats_are_there_from_the_start() -> None:
    assert registered_formats() == BUILT_IN


def test_every_built_in_format_has_a_label_above() -> None:
    assert set(BUILT_IN_NAMES) - {name for _, name, *_ in LABELS} == set()


def test_only_the_profilers_own_steps_rank_behind_the_engines() -> None:
    assert [fmt.name for fmt in BUILT_IN if fmt.rank > module.ENGINE_RANK] == ["profiler-step"]
    assert [fmt.rank for fmt in BUILT_IN] == sorted(fmt.rank for fmt in BUILT_IN), "an engine's goes before it"


def test_variants_of_one_grammar_share_a_family() -> None:
    assert [made_up(name).family for name in ("mine", "mine-detailed", "mine-of-old")] == ["mine"] * 3
    families = {fmt.family for fmt in BUILT_IN}
    assert {"vllm", "sglang", "atom", "diffusion", "profiler"} <= families


@pytest.mark.parametrize("family", dict.fromkeys(fmt.family for fmt in BUILT_IN))
def test_formats_of_a_family_stand_together_and_those_with_sums_first(family: str) -> None:
    places = [place for place, fmt in enumerate(BUILT_IN) if fmt.family == family]
    assert places == list(range(places[0], places[-1] + 1))
    with_sums = [BUILT_IN[place].has_aggregates for place in places]
    assert with_sums == sorted(with_sums, reverse=True)


def test_a_new_format_goes_to_the_end_and_is_used() -> None:
    assert parse_annotation("made up") is None
    register_format(made_up("mine"))
    assert names() == [*BUILT_IN_NAMES, "mine"]
    assert parse_annotation("made up") == StepAnnotation("mine", None, None, "made up")


def test_a_new_format_only_sees_texts_with_its_prefixes() -> None:
    seen = []

    def parse(text: str) -> None:
        seen.append(text)

    register_format(StepFormat("mine", parse, prefixes=("iter ", "step[")))
    for text in ("iter 1", "step[unheard of]", "other", "decode[unheard of]"):
        parse_annotation(text)
    assert seen == ["iter 1", "step[unheard of]"]


@pytest.mark.parametrize("anchor", [BUILT_IN_NAMES[0], "atom", BUILT_IN_NAMES[-1]])
@pytest.mark.parametrize("side", ["before", "after"])
def test_before_and_after_place_a_format(side: str, anchor: str) -> None:
    register_format(made_up("mine"), **{side: anchor})
    place = BUILT_IN_NAMES.index(anchor) + (side == "after")
    assert names() == [*BUILT_IN_NAMES[:place], "mine", *BUILT_IN_NAMES[place:]]


def test_the_first_format_that_matches_wins() -> None:
    register_format(made_up("loser", "step[DECODE bs=1]"), after="sglang-native")
    register_format(made_up("winner", "step[DECODE bs=1]"), before="sglang-detailed")
    annotation = parse_annotation("step[DECODE bs=1]")
    assert annotation is not None
    assert annotation.format == "winner"


@pytest.mark.parametrize(
    ("name", "anchors", "reason"),
    [
        ("atom", {}, "registered already"),
        ("mine", {"before": "nothing"}, "no format nothing"),
        ("mine", {"after": "nothing"}, "no format nothing"),
        ("mine", {"after": ""}, "no format"),
        ("mine", {"before": "atom", "after": "atom"}, "before and after"),
    ],
)
def test_a_format_that_cannot_be_placed_is_refused(name: str, anchors: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        register_format(made_up(name), **anchors)
    assert caught.value.thing == f"step format {name}"
    assert names() == BUILT_IN_NAMES


def test_a_mistaken_format_leaves_the_registry_as_it_was() -> None:
    register_format(made_up("mine"))
    with pytest.raises(UsageError):
        register_format(made_up("mine", "other"))
    assert names() == [*BUILT_IN_NAMES, "mine"]
    assert parse_annotation("other") is None


# Plug-ins


class FakeEntryPoint:
    def __init__(self, name: str, load: Callable[[], object]) -> None:
        self.name = name
        self.value = f"{name}_package:formats"
        self.load = load


def install(monkeypatch: pytest.MonkeyPatch, *entry_points: FakeEntryPoint) -> list[str]:
    """Pretend these are installed; the list returned fills with the groups that are asked for."""
    asked: list[str] = []

    def fake(*, group: str) -> tuple[FakeEntryPoint, ...]:
        asked.append(group)
        return entry_points

    monkeypatch.setattr(metadata, "entry_points", fake)
    monkeypatch.setattr(module, "_plugins_may_exist", lambda: True)
    return asked


def generated() -> Iterator[StepFormat]:
    yield made_up("generated-1")
    yield made_up("generated-2")


def several() -> Iterable[StepFormat]:
    return [made_up("listed-1"), made_up("listed-2")]


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [
        (made_up("plain"), ["plain"]),
        (lambda: made_up("made"), ["made"]),
        (several, ["listed-1", "listed-2"]),
        (generated, ["generated-1", "generated-2"]),
        ((made_up("in-a-tuple"),), ["in-a-tuple"]),
        (lambda: (), []),
    ],
)
def test_an_entry_point_adds_its_formats(monkeypatch: pytest.MonkeyPatch, loaded: object, expected: list[str]) -> None:
    install(monkeypatch, FakeEntryPoint("plugin", lambda: loaded))
    assert names() == [*BUILT_IN_NAMES, *expected]
    assert format_notes() == ()
    assert (parse_annotation("made up") is not None) == bool(expected)


def test_entry_points_are_asked_for_once_and_only_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = install(monkeypatch)
    assert asked == []
    parse_annotation("ProfilerStep#1")
    registered_formats()
    format_notes()
    register_format(made_up("mine"))
    assert asked == ["tracelens_infer.step_formats"]


def test_an_entry_point_may_place_its_format_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def place_it() -> tuple[StepFormat, ...]:
        register_format(made_up("placed"), before="atom")
        return ()

    install(monkeypatch, FakeEntryPoint("plugin", lambda: place_it))
    place = BUILT_IN_NAMES.index("atom")
    assert names() == [*BUILT_IN_NAMES[:place], "placed", *BUILT_IN_NAMES[place:]]


def cannot_be_imported() -> object:
    raise ImportError("no module\nnamed this")


def breaks_when_called() -> object:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("load_it", "reason"),
    [
        (cannot_be_imported, "ImportError: no module named this"),
        (lambda: breaks_when_called, "ZeroDivisionError:"),
        (lambda: 3, "TypeError: expected a StepFormat, or a callable that returns StepFormats, not int"),
        (lambda: "text", "TypeError: expected a StepFormat, or a callable that returns StepFormats, not str"),
        (lambda: made_up("atom"), "UsageError: step format atom A format of this name is registered already."),
    ],
)
def test_a_broken_entry_point_becomes_a_note_and_the_others_work(
    monkeypatch: pytest.MonkeyPatch, load_it: Callable[[], object], reason: str
) -> None:
    install(monkeypatch, FakeEntryPoint("bad", load_it), FakeEntryPoint("good", lambda: made_up("good")))
    assert names() == [*BUILT_IN_NAMES, "good"]
    (note,) = format_notes()
    assert (note.level, note.code) == ("warning", "step_format_plugin_failed")
    assert note.text.startswith(f"The step format plug-in bad (bad_package:formats) is left out: {reason}")
    assert isinstance(note, Note)
    assert parse_annotation("ProfilerStep#1") is not None


@pytest.mark.parametrize("first", ["annotation", "formats"])
def test_either_module_may_be_imported_first(first: str) -> None:
    code = (
        f"import tracelens_infer.steps.{first}, tracelens_infer.steps.annotation as a; "
        "assert a.parse_annotation('step[DECODE bs=1]').format == 'sglang-native'"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PLUGIN = """
from tracelens_infer.steps.annotation import StepAnnotation, StepFormat

def parse(text):
    return StepAnnotation("ticking", None, None, text) if text.startswith("tick ") else None

FORMAT = StepFormat("ticking", parse, prefixes=("tick ",))
"""


@pytest.mark.parametrize("group", ["tracelens_infer.step_formats", "console_scripts"])
def test_an_installed_plug_in_is_found(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution as pip leaves it: no mock stands between its files and the label."""
    (tmp_path / "ticking_plugin.py").write_text(PLUGIN)
    info = tmp_path / "ticking_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ticking-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nticking = ticking_plugin:FORMAT\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = parse_annotation("tick 7")
    assert (found is not None and found.format) == (group == "tracelens_infer.step_formats" and "ticking")
