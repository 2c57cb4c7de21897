"""Iterations with two labels: an overlap loop that labels each twice, and speculative decoding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.make_trace import TraceMaker, Work, vllm
from tracelens_infer.steps.step import StepKind

DECODE = vllm(generation=8)


def starts(maker: TraceMaker, folder: Path) -> list[float]:
    return [step.host_start_ns / 1000 for step in maker.analyze(folder).steps.steps]


@pytest.mark.parametrize("cut", [0, 1])
def test_two_equal_labels_of_which_one_launches_are_one_step(cut: int, tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(6):
        if number or not cut:  # the recording may begin between the two
            maker.step(DECODE, 100 * number, 20)
        maker.step(DECODE, 100 * number + 30, 20, Work(100 * number + 35, 100 * number + 40, 10))
    expected = [100.0 * number for number in range(6)]
    assert starts(maker, tmp_path) == ([30.0, *expected[1:]] if cut else expected)
    steps = maker.analyze(tmp_path).steps.steps
    assert [step.kernels for step in steps] == [1] * 6
    assert steps[1].host_end_ns == 150_000


def test_two_equal_labels_that_both_launch_are_two_steps(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([DECODE] * 6)
    assert len(starts(maker, tmp_path)) == 6


def test_two_labels_of_which_one_launches_are_two_steps_where_they_differ(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(6):
        maker.step(vllm(0, 0), 100 * number, 20)
        maker.step(DECODE, 100 * number + 30, 20, Work(100 * number + 35, 100 * number + 40, 10))
    assert len(starts(maker, tmp_path)) == 12


def test_a_draft_its_verification_and_its_extension_are_one_step(tmp_path: Path) -> None:
    maker = TraceMaker()
    labels = (
        "step[DRAFT bs=4]",
        "step[TARGET_VERIFY bs=4 g_sq=16 g_sqsq=64 g_sqsk=8192 g_sk=2048]",
        "step[DRAFT_EXTEND bs=4]",
    )
    for number in range(4):
        for part, label in enumerate(labels):
            begin = 100 * number + 30 * part
            maker.step(label, begin, 20, Work(begin + 2, begin + 5, 10))
    steps = maker.analyze(tmp_path).steps.steps
    assert [step.host_start_ns / 1000 for step in steps] == [0, 100, 200, 300]
    assert {(step.kind, step.generation_requests, step.kernels) for step in steps} == {(StepKind.DECODE_ONLY, 4, 3)}
    assert {step.load.generation.query_tokens for step in steps if step.load} == {16}


def test_a_verification_without_a_draft_is_a_step_of_its_own(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps(["step[TARGET_VERIFY bs=4]", "step[EXTEND bs=1 toks=64]", "step[DRAFT bs=4]"])
    assert len(starts(maker, tmp_path)) == 3
