"""How things are called in texts for people."""

from __future__ import annotations

import pytest

from tracelens_infer.report.wording import (
    LINE_WIDTH,
    detector_text,
    engine_text,
    folded,
    kind_text,
    kinds_text,
    note_text,
    plural,
    row_lines,
    time_text,
    together,
)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1_234_567, "1,234,567 steps")]
)
def test_counts(count: int, text: str) -> None:
    assert plural(count, "step") == text


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0.0 us"),
        (0.04, "0.0 us"),
        (1.25, "1.2 us"),
        (999.9, "999.9 us"),
        (1000, "1.00 ms"),
        (14_600, "14.60 ms"),
        (999_994, "999.99 ms"),
        (1e6, "1.00 s"),
        (5_081_328, "5.08 s"),
        (7.2e9, "7,200.00 s"),
        (-2500, "-2.50 ms"),
    ],
)
def test_times(microseconds: float, text: str) -> None:
    assert time_text(microseconds) == text


@pytest.mark.parametrize(
    ("detector", "text"),
    [
        ("annotation:vllm", "vLLM labels"),
        ("annotation:sglang", "SGLang labels"),
        ("annotation:atom", "ATOM labels"),
        ("annotation:diffusion", "diffusion labels"),
        ("annotation:profiler", "ProfilerStep labels"),
        ("annotation:tick", "tick labels"),
        ("device_annotation:vllm", "vLLM labels on the device's streams"),
        ("family:iteration #", "labels like iteration #"),
        ("call_tree:engine/core.py: run_step", "the call tree (engine/core.py: run_step)"),
        ("top_level:aten::embedding", "the op aten::embedding"),
        ("device_sequence:embedding_kernel", "the sequence of kernels (embedding_kernel)"),
        ("bookends:family:step #", "labels like step # and what runs around them"),
        ("crystal ball", "crystal ball"),
    ],
)
def test_detectors(detector: str, text: str) -> None:
    assert detector_text(detector) == text


def test_engines_and_kinds() -> None:
    assert [engine_text(name) for name in ("vllm", "sglang", "mine")] == ["vLLM", "SGLang", "mine"]
    assert kind_text("prefill_decode") == "prefill-decode"
    assert kind_text("unknown") == "of unknown kind"
    lines = folded(kinds_text({"prefill_decode": 3, "decode_only": 1200, "empty": 3}), "")
    assert lines == ["1,200 decode-only, 3 prefill-decode, 3 empty"]


@pytest.mark.parametrize(
    ("text", "count", "offset", "expected"),
    [
        ("Odd.", None, None, "Odd."),
        ("Odd.", 1, None, "Odd."),
        ("Odd.", 0, None, "Odd. [0]"),
        ("Odd.", 1200, 34567, "Odd. [1,200] (first at byte 34,567)"),
        ("Of 1,200 odd.", 1200, None, "Of 1,200 odd."),
    ],
)
def test_notes(text: str, count: int | None, offset: int | None, expected: str) -> None:
    assert note_text(text, count, offset) == expected


def test_rows_are_folded_under_their_value() -> None:
    lines = row_lines("devices", " ".join(["word"] * 30))
    assert lines[0].startswith("  devices         word")
    assert len(lines) == 3
    assert all(line.startswith(" " * 18 + "word") for line in lines[1:])
    assert max(map(len, lines)) <= LINE_WIDTH
    assert row_lines("devices", "") == ["  devices"]


def test_paths_and_what_belongs_together_are_not_cut() -> None:
    path = "/a-long/path-with-hyphens/" + "x" * LINE_WIDTH
    assert folded(f"see {path}", "  ") == ["  see", f"  {path}"]
    counts = ", ".join(together(f"name {number}") for number in range(30))
    for line in folded(counts, "  "):
        assert line.strip().startswith("name ")
        assert len(line) <= LINE_WIDTH
