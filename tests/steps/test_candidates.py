"""Which labels mark a step: nested families, engine scopes, streams, processes, spans and tiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.make_trace import DECODE, DEVICE, EXTEND, HOST, STREAM, TraceMaker, Work, vllm, vllm_native
from tracelens_infer.errors import MergedTraceError, NothingFoundError
from tracelens_infer.steps.candidates import Candidate, annotation_candidates, label_families
from tracelens_infer.steps.formats import BUILT_IN

SUMS = "step[EXTEND bs=2 toks=512 c_sq=512 c_sqsq=131072 c_sqsk=131072 c_sk=512]"

# Literal labels, one a grammar at least, and the family whose steps they are.
LABELS = {
    "execute_6147_context_2(sq6144sk7144sqsq20971520sqsk23019520)_generation_3(sq3sk6144sqsq3sqsk6144)": "vllm",
    "execute_context_2(6144)_generation_3(3)": "vllm",
    "execute_context_1(888_788544)_generation_0(0)": "vllm",
    "execute_new_2_cached_3": "vllm",
    "step[EXTEND bs=2 toks=14721]": "sglang",
    "step[DECODE bs=64]": "sglang",
    "step[MIXED bs=62]": "sglang",
    SUMS: "sglang",
    "prefill[bs=2 tok=14721 ctx=[7803, 6918]]": "atom",
    "decode[bs=117/128 tok=117 d=117 sqsq=117 sqsk=239616 sk=239616]": "atom",
    "execute_diffusion_1_1024x1024": "diffusion",
    "ProfilerStep#12": "profiler",
}


def candidates(maker: TraceMaker, folder: Path) -> dict[str, Candidate]:
    return {found.detector: found for found in annotation_candidates(maker.read(folder))}


def spans(candidate: Candidate) -> list[tuple[float, float, float]]:
    """List start, end and tile end of each boundary in us."""
    return [(b.start_ns / 1000, b.end_ns / 1000, b.tile_end_ns / 1000) for b in candidate.boundaries]


@pytest.mark.parametrize(("label", "family"), LABELS.items())
def test_each_grammar_marks_steps_of_its_family(label: str, family: str, tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([label] * 3)
    found = candidates(maker, tmp_path)
    assert list(found) == [f"annotation:{family}"]
    assert spans(found[f"annotation:{family}"]) == [(0, 80, 100), (100, 180, 200), (200, 280, 300)]
    assert [b.annotation.text for b in found[f"annotation:{family}"].boundaries if b.annotation] == [label] * 3


def test_every_family_has_a_label_in_the_table() -> None:
    assert {fmt.family for fmt in BUILT_IN} == set(LABELS.values())


@pytest.mark.parametrize(
    "scope",
    [
        "gpu_model_runner: forward",
        "gpu_model_runner: sample",
        "schedule: allocate_slots",
        "step",
        "step[DECODE bs=64] forward",
        "my step[DECODE bs=64]",
        "execute_model",
        "execute_context_2(6144)",
        "capture_128_decode",
        "capture_8_prefill_mixed",
        "ProfilerStep",
        "CompiledFxGraph 0",
    ],
)
def test_scopes_inside_a_step_never_count(scope: str, tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(3):
        maker.label(DECODE, 100 * number, 80)
        maker.label(scope, 100 * number + 10, 20)
        maker.label(scope, 100 * number + 40, 20)
    found = candidates(maker, tmp_path)
    assert list(found) == ["annotation:sglang"]
    assert [start for start, *_ in spans(found["annotation:sglang"])] == [0, 100, 200]


def test_labels_that_a_scope_is_called_on_an_operator_or_a_frame_do_not_count(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op(DECODE, 0, 10)
    maker.frame(DECODE, 20, 10)
    assert candidates(maker, tmp_path) == {}


def test_nested_families_are_one_candidate_each(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(2):
        maker.label(vllm_native(generation=8), 100 * number, 80)
        maker.label(DECODE, 100 * number + 10, 60)
    found = candidates(maker, tmp_path)
    assert spans(found["annotation:vllm"]) == [(0, 80, 100), (100, 180, 200)]
    assert spans(found["annotation:sglang"]) == [(10, 70, 110), (110, 170, 210)]


@pytest.mark.parametrize(
    ("inner", "kept"),
    [
        ([(10, 20)], [(0, 80)]),
        ([(10, 20), (40, 40)], [(0, 80)]),
        ([(0, 20)], [(0, 80)]),  # begins with the outer one
        ([(60, 20)], [(0, 80)]),  # ends with it
        ([(10, 60), (20, 30)], [(0, 80)]),  # two levels
        ([(0, 80)], [(0, 80)]),  # the same scope opened twice
        ([(70, 30)], [(0, 80), (70, 100)]),  # overlaps, is not inside
        ([(80, 20)], [(0, 80), (80, 100)]),  # follows at once
    ],
)
@pytest.mark.parametrize("outer_first", [True, False])
def test_labels_of_one_family_inside_each_other_count_once(
    inner: list[tuple[float, float]], kept: list[tuple[float, float]], outer_first: bool, tmp_path: Path
) -> None:
    maker = TraceMaker()
    for start, duration in [(0, 80), *inner] if outer_first else [*inner, (0, 80)]:
        maker.label(DECODE, start, duration)
    found = candidates(maker, tmp_path)["annotation:sglang"]
    assert [(start, end) for start, end, _ in spans(found)] == kept


def test_grammars_of_one_family_may_take_turns(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([EXTEND, SUMS, DECODE])
    found = candidates(maker, tmp_path)
    assert list(found) == ["annotation:sglang"]
    assert [b.annotation.format for b in found["annotation:sglang"].boundaries if b.annotation] == [
        "sglang-native",
        "sglang-detailed",
        "sglang-native",
    ]


@pytest.mark.parametrize(
    ("labels", "has_aggregates"),
    [
        ([vllm(1, 7), vllm(0, 8)], True),
        ([vllm(1, 7), vllm_native(0, 8)], False),
        ([vllm_native(1, 7)], False),
        ([SUMS, SUMS], True),
        (["ProfilerStep#0"], False),
    ],
)
def test_aggregates_are_there_where_every_label_tells_them(
    labels: list[str], has_aggregates: bool, tmp_path: Path
) -> None:
    maker = TraceMaker()
    maker.steps(labels)
    (found,) = candidates(maker, tmp_path).values()
    assert found.has_aggregates is has_aggregates


@pytest.mark.parametrize(
    ("labels", "tiles", "overlapping"),
    [
        ([(0, 10)], [10], 0),
        ([(0, 10), (100, 10)], [100, 200], 0),  # the last tile is as long as the one before it
        ([(0, 10), (100, 10), (120, 10), (220, 10)], [100, 120, 220, 320], 0),  # median of 100, 20, 100
        ([(0, 10), (100, 500)], [100, 600], 0),  # its own end is later
        ([(0, 140), (100, 50)], [100, 200], 1),  # runs into the next one
        ([(0, 100), (100, 50)], [100, 200], 0),  # only touches it
        ([(0, 150), (100, 150), (200, 150)], [100, 200, 350], 2),
    ],
)
def test_tiles_reach_from_start_to_start(
    labels: list[tuple[float, float]], tiles: list[float], overlapping: int, tmp_path: Path
) -> None:
    maker = TraceMaker()
    for number, (start, duration) in enumerate(labels):
        maker.label(f"ProfilerStep#{number}", start, duration)
    found = candidates(maker, tmp_path)["annotation:profiler"]
    assert spans(found) == [
        (start, start + duration, tile) for (start, duration), tile in zip(labels, tiles, strict=True)
    ]
    assert found.overlapping == overlapping


def test_labels_out_of_order_in_the_file_are_put_in_order_of_time(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in (2, 0, 1):
        maker.label(f"step[DECODE bs={number + 1}]", 100 * number, 80)
    found = candidates(maker, tmp_path)["annotation:sglang"]
    assert [b.annotation.batch_size for b in found.boundaries if b.annotation] == [1, 2, 3]
    assert [b.row for b in found.boundaries] == [1, 2, 0]


# -- labels on the device's tracks -----------------------------------------------------------------------------------


def test_a_label_drawn_on_several_streams_is_one_step(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(3):
        for stream, shift in ((7, 0), (20, 5), (24, 9)):
            maker.device_label(DECODE, 100 * number + shift, 60, stream=stream)
    found = candidates(maker, tmp_path)
    assert list(found) == ["device_annotation:sglang"]
    candidate = found["device_annotation:sglang"]
    assert candidate.on_device
    assert spans(candidate) == [(0, 69, 100), (100, 169, 200), (200, 269, 300)]
    assert candidate.overlapping == 0


def test_equal_device_labels_one_after_the_other_are_several_steps(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.device_label(DECODE, 0, 50)
    maker.device_label(DECODE, 50, 50)
    maker.device_label(EXTEND, 80, 50, stream=20)
    assert len(candidates(maker, tmp_path)["device_annotation:sglang"].boundaries) == 3


def test_device_labels_are_not_used_where_the_host_has_labels(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 2)
    maker.device_label(DECODE, 50, 50)
    maker.device_label("execute_context_0(0)_generation_8(8)", 150, 50)
    found = candidates(maker, tmp_path)
    assert list(found) == ["annotation:sglang"]
    assert len(found["annotation:sglang"].boundaries) == 2


# -- processes -------------------------------------------------------------------------------------------------------


def test_steps_of_two_processes_are_refused_and_named(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label(DECODE, 0, 80)
    maker.label(DECODE, 50, 80, process=HOST + 1)
    with pytest.raises(MergedTraceError) as refused:
        candidates(maker, tmp_path)
    assert refused.value.reason.startswith("Steps of 2 processes share this file (100, 101)")


def test_steps_of_one_process_may_lie_on_several_threads(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label(DECODE, 0, 80, thread=1)
    maker.label(DECODE, 100, 80, thread=2)
    assert len(candidates(maker, tmp_path)["annotation:sglang"].boundaries) == 2


# -- labels without a duration ---------------------------------------------------------------------------------------


def unfinished(following: bool) -> TraceMaker:
    """Make a step without a duration, what it ran, and what others did."""
    maker = TraceMaker()
    maker.label(DECODE, 0, None)
    maker.op("aten::mm", 1, 20)
    maker.work(Work(launch=30, start=40, duration=5))  # the launch ends at 32
    maker.op("aten::mm", 5, 200, process=HOST + 1)
    maker.frame("engine.py(1): step", 0, 300)
    if following:
        maker.label(DECODE, 100, 80)
        maker.op("aten::mm", 110, 20)
    return maker


@pytest.mark.parametrize(("following", "tile"), [(True, 100), (False, 32)])
def test_a_label_without_a_duration_ends_with_the_last_op_or_launch_of_its_process(
    following: bool, tile: float, tmp_path: Path
) -> None:
    found = candidates(unfinished(following), tmp_path)["annotation:sglang"]
    assert spans(found)[0] == (0, 32, tile)


def test_an_op_that_outlasts_the_last_launch_ends_it(tmp_path: Path) -> None:
    maker = unfinished(following=True)
    maker.op("aten::copy_", 2, 70)
    assert spans(candidates(maker, tmp_path)["annotation:sglang"])[0] == (0, 72, 100)


def test_a_label_without_a_duration_that_ran_nothing_lasts_no_time(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.label(DECODE, 0, None)
    maker.label(DECODE, 100, 80)
    assert spans(candidates(maker, tmp_path)["annotation:sglang"]) == [(0, 0, 100), (100, 180, 200)]


def test_a_label_without_a_start_marks_nothing(tmp_path: Path) -> None:
    maker = TraceMaker()
    del maker.label(DECODE, 0, 80)["ts"]
    maker.label(DECODE, 100, 80)
    assert [start for start, *_ in spans(candidates(maker, tmp_path)["annotation:sglang"])] == [100]


# -- families seen ---------------------------------------------------------------------------------------------------


def test_families_are_labels_without_their_digits_most_frequent_first(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(12):
        maker.label(f"iteration {number} of 1024", 10 * number, 5)
    maker.label("warmup", 500, 5)
    assert label_families(maker.read(tmp_path)) == [("iteration # of #", 12), ("warmup", 1)]


def test_unknown_labels_only_are_named(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(12):
        maker.label(f"iteration {number}", 10 * number, 5)
    maker.label("warmup", 500, 5)
    with pytest.raises(NothingFoundError) as nothing:
        maker.analyze(tmp_path)
    assert nothing.value.exit_code == 4
    assert "one of a step: iteration # (12), warmup (1)." in nothing.value.reason


def test_the_builder_draws_kernels_and_labels_on_one_track(tmp_path: Path) -> None:
    """The builder writes what the reader sees: one lane for the device's kernels, one for its labels."""
    maker = TraceMaker()
    maker.device_label(DECODE, 0, 10)
    maker.kernel(1, 2)
    lanes = maker.read(tmp_path).lanes.lanes
    assert {(lane.process, lane.thread) for lane in lanes} == {(DEVICE, STREAM)}
