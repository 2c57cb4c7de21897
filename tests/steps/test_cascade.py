"""Iterations without labels: real and synthetic traces without markers, loops among decoys, and where none are."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.loops import (
    Loop,
    accumulating,
    diffusion,
    evaluating,
    generating,
    kernels_only,
    noise,
    serving,
    training,
    uneven,
)
from tests.strip_markers import REAL, SYNTHETIC, chosen_of, compare, make_big_trace, strip_markers, synthetic
from tracelens_infer.steps.candidates import Candidate, Grade
from tracelens_infer.steps.cascade import find_by_cascade
from tracelens_infer.trace.columns import Role
from tracelens_infer.trace.launches import link_device_work
from tracelens_infer.trace.reader import read_trace

SINGLE_STEPS = (
    "tracelens/vllm_mi300x_decode_graph.json.gz",
    "tracelens/vllm_mi300x_mixed_piecewise.json.gz",
    "tracelens/sglang_mi300x_qwen3_8b_prefill.json.gz",
    "tracelens/hf_h100_qwen1.5_0.5b.json.gz",
    "hta/cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "hta/critical_path_cuda_event_sync_multi_stream__event_sync_trace.json.gz",
)

# Every step fills the budget, none only decodes, and the attention op tells a constant: nothing shows the decodes.
KINDS_UNTOLD = {"equal_lengths"}

KINDS = [(stacks, device) for stacks in (False, True) for device in (False, True)]


def mixed(steps: int, share: float = 0.2, seed: int = 0) -> list[bool]:
    """Say which steps hold a prefill."""
    chance = random.Random(seed)
    return [chance.random() < share for _ in range(steps)]


def cascade(loop: Loop, folder: Path) -> list[Candidate]:
    trace = loop.read(folder)
    return find_by_cascade(trace, link_device_work(trace))


def assert_found(loop: Loop, candidates: list[Candidate], *, tolerance_us: float = 5) -> Candidate:
    """Check that the chosen candidate has the loop's iterations and no others."""
    chosen = chosen_of(candidates)
    assert chosen is not None, [(one.detector, one.rejected) for one in candidates]
    assert chosen.grade is Grade.SPLITTABLE
    assert candidates.index(chosen) == 0
    assert all(one.rejected for one in candidates[1:])
    inner = [b.start_ns / 1000 for b in chosen.boundaries if b.row >= 0]
    assert len(inner) == len(loop.starts)
    assert np.abs(np.array(inner) - np.array(loop.starts)).max() <= tolerance_us
    for one, following in pairwise(chosen.boundaries):
        assert one.tile_end_ns == following.start_ns
    return chosen


# -- real and synthetic traces ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
def test_real_traces_without_their_markers(shared_traces: Path, name: str) -> None:
    result = compare(shared_traces / name)
    assert result.marked == REAL[name]
    assert result.roots_agree, result.row
    assert result.boundaries_agree, result.row
    assert result.kinds_agree, result.row


@pytest.mark.parametrize("name", SYNTHETIC)
def test_synthetic_traces_without_their_markers(shared_traces: Path, tmp_path: Path, name: str) -> None:
    result = compare(synthetic(shared_traces.parent / "tools", name, tmp_path))
    assert result.roots_agree, result.row
    assert result.boundaries_agree, result.row
    assert result.kinds_agree is (name not in KINDS_UNTOLD), result.row


def test_the_trace_that_never_had_markers(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "vllm_cpu/d_dense_noannotation_stripped_from_g_stack.pt.trace.json.gz")
    chosen = chosen_of(find_by_cascade(trace, link_device_work(trace)))
    assert chosen is not None
    assert len(chosen.boundaries) == 10
    assert chosen.grade is Grade.SPLITTABLE
    assert chosen.detector.startswith("call_tree:")


@pytest.mark.parametrize("name", SINGLE_STEPS)
def test_a_single_step_is_not_split_into_its_layers(shared_traces: Path, name: str) -> None:
    trace, _ = strip_markers(read_trace(shared_traces / name))
    for candidate in find_by_cascade(trace, link_device_work(trace)):
        assert candidate.rejected
        assert candidate.grade is Grade.NOT_SPLITTABLE


@pytest.mark.parametrize("name", [name for name in REAL if "c2_" in name or "g_" in name or "w0_" in name])
@pytest.mark.parametrize(("steps", "found"), [(1, 0), (2, 0), (3, 3), (5, 5)])
def test_few_steps_without_stacks(shared_traces: Path, name: str, steps: int, found: int) -> None:
    """Two steps repeat their layers, but themselves not often enough: neither is taken for iterations."""
    trace, marks = strip_markers(read_trace(shared_traces / name))
    starts = trace.columns.start_ns
    python = np.isin(trace.lanes.roles[trace.columns.lane], [int(Role.PYTHON)])
    outside = python | (starts < starts[marks[0]]) | (starts >= starts[marks[steps]])
    cut = replace(trace, dropped=np.union1d(trace.dropped, np.flatnonzero(outside)))
    chosen = chosen_of(find_by_cascade(cut, link_device_work(cut)))
    assert (len(chosen.boundaries) if chosen else 0) == found


# -- loops among decoys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stacks", "device"), KINDS)
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("cycle", [True, False])
def test_steps_of_an_engine(tmp_path: Path, stacks: bool, device: bool, graphs: bool, cycle: bool) -> None:
    prefills = [number % 8 == 0 for number in range(64)] if cycle else mixed(60)
    loop = serving(prefills, graphs=graphs, stacks=stacks, device=device)
    chosen = assert_found(loop, cascade(loop, tmp_path))
    assert chosen.detector == ("call_tree:engine/core.py: step" if stacks else "top_level:aten::copy_")


@pytest.mark.parametrize(("stacks", "device"), KINDS)
def test_labels_of_layers_and_collectives_do_not_win(tmp_path: Path, stacks: bool, device: bool) -> None:
    loop = serving(mixed(60), graphs=False, compiled=True, collectives=True, stacks=stacks, device=device)
    candidates = cascade(loop, tmp_path)
    assert_found(loop, candidates)
    reasons = {one.detector: one.rejected for one in candidates}
    assert reasons["family:nccl:all_reduce"] == "collectives"
    layer = next(reason for name, reason in reasons.items() if "CompiledFxGraph" in name)
    assert layer.startswith("repeats 6 times in an iteration of ")


@pytest.mark.parametrize(("stacks", "device"), KINDS)
def test_scopes_within_a_step_do_not_win(tmp_path: Path, stacks: bool, device: bool) -> None:
    loop = serving(mixed(60), scopes=True, stacks=stacks, device=device)
    candidates = cascade(loop, tmp_path)
    assert not assert_found(loop, candidates).detector.startswith("family:")
    reasons = {one.detector: one.rejected for one in candidates}
    assert reasons["family:gpu_model_runner: forward"].startswith("is a scope within an iteration of ")


@pytest.mark.parametrize(("stacks", "device"), KINDS)
def test_labels_of_an_unknown_family_around_the_steps_win(tmp_path: Path, stacks: bool, device: bool) -> None:
    loop = serving(mixed(60), label="iteration", scopes=True, compiled=True, stacks=stacks, device=device)
    assert assert_found(loop, cascade(loop, tmp_path)).detector == "family:iteration #"


@pytest.mark.parametrize(("stacks", "device"), KINDS)
@pytest.mark.parametrize("layers", [4, 36])
@pytest.mark.parametrize("prefill", [True, False])
def test_one_step_is_none(tmp_path: Path, stacks: bool, device: bool, layers: int, prefill: bool) -> None:
    loop = serving([prefill], layers=layers, compiled=True, collectives=True, stacks=stacks, device=device)
    assert chosen_of(cascade(loop, tmp_path)) is None


@pytest.mark.parametrize(("stacks", "device"), KINDS)
def test_training(tmp_path: Path, stacks: bool, device: bool) -> None:
    loop = training(6, stacks=stacks, device=device)
    assert_found(loop, cascade(loop, tmp_path))


def phases(text: str) -> list[bool]:
    """Read P for a step with a prefill and D for one without."""
    return [letter == "P" for letter in text]


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize(
    "prefills",
    [phases(text) for text in ("PD" * 5, "PD" * 20, "PDD" * 4, "PDDDD" * 10, "PPPDDDDDDD", "D" * 10, "P" * 10)]
    + [mixed(steps, share, seed) for steps in (10, 20, 80) for share in (0.1, 0.5) for seed in (1, 2, 3)],
    ids=lambda prefills: "".join("DP"[one] for one in prefills)[:16] + f"_{len(prefills)}",
)
def test_prefills_and_decodes_that_go_through_different_calls(
    tmp_path: Path, prefills: list[bool], graphs: bool
) -> None:
    """A step is the call above them, in whatever order they come."""
    loop = serving(prefills, graphs=graphs, layers=3, stacks=True, phase_frames=True)
    assert assert_found(loop, cascade(loop, tmp_path)).detector == "call_tree:engine/core.py: step"


@pytest.mark.parametrize("frames", [30, 40, 200])
@pytest.mark.parametrize("steps", [3, 4, 5, 6, 7, 9, 10, 12])
def test_few_steps_with_stacks(shared_traces: Path, tmp_path: Path, steps: int, frames: int) -> None:
    """Of ten steps all ten are found, also the first and the last one."""
    path = make_big_trace(shared_traces.parent / "tools", f"--steps {steps} --layers 3 --py {frames}", tmp_path)
    trace, marks = strip_markers(read_trace(path))
    chosen = chosen_of(find_by_cascade(trace, link_device_work(trace)))
    assert chosen is not None
    assert len(chosen.boundaries) == len(marks) == steps
    assert chosen.detector == "call_tree:vllm/v#/engine/core.py: step"


@pytest.mark.parametrize("layers", [2, 3, 8])
def test_two_eager_steps_without_stacks_are_none(shared_traces: Path, tmp_path: Path, layers: int) -> None:
    options = f"--steps 2 --layers {layers} --no-stack --no-graph"
    trace, _ = strip_markers(read_trace(make_big_trace(shared_traces.parent / "tools", options, tmp_path)))
    assert chosen_of(find_by_cascade(trace, link_device_work(trace))) is None


@pytest.mark.parametrize(("stacks", "device"), KINDS)
@pytest.mark.parametrize(("steps", "micro_batches"), [(3, 4), (5, 2), (20, 8)])
def test_a_training_step_ends_with_its_optimizer(
    tmp_path: Path, stacks: bool, device: bool, steps: int, micro_batches: int
) -> None:
    loop = accumulating(steps, micro_batches, stacks=stacks, device=device)
    found = cascade(loop, tmp_path)
    assert_found(loop, found)


@pytest.mark.parametrize(("steps", "micro_batches"), [(3, 4), (20, 8)])
def test_micro_batches_are_disputed_where_only_calls_show_the_longer_steps(
    tmp_path: Path, steps: int, micro_batches: int
) -> None:
    found = cascade(accumulating(steps, micro_batches, label=False, stacks=True), tmp_path)
    chosen = chosen_of(found)
    assert chosen is not None
    assert chosen.grade is Grade.DEGRADED
    assert chosen.disputed == (
        f"{steps} longer iterations may hold {micro_batches} of them each, and work between them"
    )


@pytest.mark.parametrize(("stacks", "device"), KINDS)
@pytest.mark.parametrize(("steps", "every", "batches"), [(60, 10, 2), (60, 5, 5), (60, 10, 10)])
def test_an_evaluation_now_and_then_ends_no_iteration_of_its_own(
    tmp_path: Path, stacks: bool, device: bool, steps: int, every: int, batches: int
) -> None:
    """Sixty steps of training, whatever runs between them: not six stretches from one evaluation to the next."""
    chosen = chosen_of(cascade(evaluating(steps, every, batches, stacks=stacks, device=device), tmp_path))
    assert chosen is not None
    assert steps <= len([boundary for boundary in chosen.boundaries if boundary.row >= 0]) <= steps + steps // every


@pytest.mark.parametrize(("steps", "every"), [(20, 9), (20, 3), (60, 7), (200, 10)])
def test_calls_and_ops_that_name_other_iterations_dispute_the_answer(tmp_path: Path, steps: int, every: int) -> None:
    """A model of two layers whose decodes are replayed: its prefills look like iterations, the calls like others."""
    loop = serving([number % every == 0 for number in range(steps)], layers=2, stacks=True)
    chosen = chosen_of(cascade(loop, tmp_path))
    assert chosen is not None
    assert chosen.grade is Grade.DEGRADED
    assert chosen.disputed.endswith(f"and the calls {steps}")


@pytest.mark.parametrize(("stacks", "device"), KINDS)
@pytest.mark.parametrize(("calls", "tokens"), [(1, 20), (2, 20), (5, 5), (5, 20)])
def test_a_call_that_generates_a_text_is_no_step(
    tmp_path: Path, stacks: bool, device: bool, calls: int, tokens: int
) -> None:
    loop = generating(calls, tokens, stacks=stacks, device=device)
    assert_found(loop, cascade(loop, tmp_path))


@pytest.mark.parametrize(("stacks", "device"), KINDS)
@pytest.mark.parametrize("steps", [4, 10, 40])
def test_very_uneven_steps(tmp_path: Path, stacks: bool, device: bool, steps: int) -> None:
    loop = uneven(steps, stacks=stacks, device=device)
    assert_found(loop, cascade(loop, tmp_path))


@pytest.mark.parametrize(("stacks", "device"), KINDS)
def test_denoising_between_a_long_encode_and_decode(tmp_path: Path, stacks: bool, device: bool) -> None:
    loop = diffusion(4, stacks=stacks, device=device)
    candidates = cascade(loop, tmp_path)
    chosen = assert_found(loop, candidates)
    assert chosen.detector.startswith("bookends:")
    assert [boundary.row < 0 for boundary in chosen.boundaries] == [True, False, False, False, False, True]
    assert "bookends:" in candidates[1].rejected


@pytest.mark.parametrize("prefills", [mixed(60), [False] * 20], ids=["mixed", "decode"])
def test_kernels_alone(tmp_path: Path, prefills: list[bool]) -> None:
    loop = kernels_only(prefills)
    chosen = assert_found(loop, cascade(loop, tmp_path))
    assert chosen.on_device
    assert chosen.detector == "device_sequence:Memcpy HtoD"


def test_kernels_of_one_step_alone(tmp_path: Path) -> None:
    assert chosen_of(cascade(kernels_only([True]), tmp_path)) is None


@pytest.mark.parametrize("device", [True, False])
@pytest.mark.parametrize("size", [60, 300, 3000])
@pytest.mark.parametrize("seed", range(3))
def test_noise_has_no_iterations(tmp_path: Path, device: bool, size: int, seed: int) -> None:
    assert chosen_of(cascade(noise(size, device=device, seed=seed), tmp_path)) is None


def test_an_empty_trace_has_no_candidates(tmp_path: Path) -> None:
    assert cascade(Loop(), tmp_path) == []
