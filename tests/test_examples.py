"""Every example runs as a user runs it, from any folder, and prints what it is about."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SAYS = {
    "own_engine_label": ["found by annotation:tick", "tick p=1 d=2: prefill_decode, 3 requests"],
    "steady_state": ["60 steps, at most 9 requests", "mixed: steps", "steady_decode_only.json.gz"],
    "step_times": ["decode_only             8", "prefill_decode          9", "host times"],
}


def run(name: str, *arguments: str, folder: Path) -> str:
    """Run an example in a folder of its own and return what it prints."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example(name: str, tmp_path: Path) -> None:
    said = run(name, folder=tmp_path)
    assert [text for text in SAYS[name] if text not in said] == []
    assert list(tmp_path.iterdir()) == []


def test_an_example_takes_a_trace_and_a_folder(tmp_path: Path, sample_traces: Path) -> None:
    trace = sample_traces / "vllm_cpu_decode_10steps.json.gz"
    assert "decode_only" in run("step_times", str(trace), folder=tmp_path)
    run("steady_state", str(trace), "out", folder=tmp_path)
    assert (tmp_path / "out" / "split.json").is_file()


@pytest.mark.parametrize("name", ["step_times", "steady_state"])
def test_an_example_says_in_three_lines_why_a_trace_cannot_be_read(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "missing.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 3
    assert done.stderr.startswith("missing.json\n")
