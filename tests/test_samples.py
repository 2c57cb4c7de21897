"""The shipped samples hold what their README says, and the script that cuts them copies text verbatim."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from traces import make_samples

LOAD = re.compile(r"context_(\d+)\(sq(\d+)sk(\d+).*_generation_(\d+)\(sq\d+sk(\d+)")


def read_text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def step_loads(trace: dict[str, Any]) -> list[tuple[int, int, int, int, int]]:
    """Return context requests, query and KV tokens, generation requests and KV tokens of each step, in time order."""
    labels = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    labels.sort(key=lambda event: float(event["ts"]))
    matches = [match for event in labels if (match := LOAD.search(event["name"]))]
    return [(int(match[1]), int(match[2]), int(match[3]), int(match[4]), int(match[5])) for match in matches]


def test_mixed_sample_is_as_described(sample_traces: Path) -> None:
    trace = json.loads(read_text(sample_traces / "vllm_cpu_mixed_60steps.json.gz"))
    steps = step_loads(trace)
    assert len(trace["traceEvents"]) == 63_376
    assert len(steps) == 60
    prefills = [index for index, step in enumerate(steps) if step[0]]
    assert prefills == [0, 6, 26, *range(33, 40)]
    assert [steps[index][1] for index in prefills] == [64] * 3 + [504] * 6 + [48]
    assert (steps[33][2], steps[39][2]) == (1024 + 504, 4096)
    assert {context + generation for context, _, _, generation, _ in steps[33:40]} == {9}
    assert {generation for *_, generation, _ in steps[40:]} == {8}
    assert trace["vllm_version"] == "0.32.0"
    assert sum(event["ph"] == "M" for event in trace["traceEvents"]) == 8


def test_decode_sample_is_as_described(sample_traces: Path) -> None:
    trace = json.loads(read_text(sample_traces / "vllm_cpu_decode_10steps.json.gz"))
    assert len(trace["traceEvents"]) == 45_036
    assert sum(event.get("cat") == "python_function" for event in trace["traceEvents"]) == 34_475
    assert step_loads(trace) == [(0, 0, 0, 8, kv_tokens) for kv_tokens in range(538, 611, 8)]


def test_samples_are_small_enough_to_ship(sample_traces: Path) -> None:
    assert sum(path.stat().st_size for path in sample_traces.iterdir() if path.is_file()) < 3_000_000


HEADER = '{"schemaVersion": 1,\n "traceEvents": [\n  '
FOOTER = '\n ], "traceName": "small"}\n'


def event(name: str, ts: float, cat: str = "cpu_op") -> str:
    return f'{{"ph": "X", "cat": "{cat}",  "name": "{name}", "ts": {ts}, "dur": 1.50}}'


METADATA = '{"name":"process_name","ph":"M","args":{"name":"worker"}}'
STEPS = [event(f"execute_1_context_0()_generation_{n}()", 10.0 * n, "user_annotation") for n in range(4)]
OPS = [event(f"op{n}", 10.0 * n + 2) for n in range(4)]
BEFORE = event("before", -1)
RECORDING = event("PyTorch Profiler (0)", -5, "Trace")


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        (slice(1, 3), [*STEPS[1:3], METADATA, *OPS[1:3], RECORDING]),
        (slice(0, None), [*STEPS, METADATA, *OPS, RECORDING]),
        (slice(3, 4), [*STEPS[3:], METADATA, *OPS[3:], RECORDING]),
    ],
)
def test_cut_keeps_the_text_of_the_chosen_steps(steps: slice, kept: list[str]) -> None:
    whole = [*STEPS, METADATA, BEFORE, *OPS, RECORDING]
    assert make_samples.cut(HEADER + ",\n  ".join(whole) + FOOTER, steps) == HEADER + ",\n  ".join(kept) + FOOTER


def test_the_same_text_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.gz", tmp_path / "second.gz"
    make_samples.write_gzip(first, "text")
    make_samples.write_gzip(second, "text")
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[3:8] == bytes(5)  # neither flags, so no file name, nor a time stamp


@pytest.mark.slow
def test_mixed_sample_is_made_from_the_whole_recording(shared_traces: Path, sample_traces: Path) -> None:
    whole = read_text(shared_traces / "vllm_cpu" / "c2_dense_detailed_shapes_nostack_steadywindow.pt.trace.json.gz")
    sample = read_text(sample_traces / "vllm_cpu_mixed_60steps.json.gz")
    assert make_samples.cut(whole, slice(112, 172)) == sample
