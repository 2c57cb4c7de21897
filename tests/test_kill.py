"""A split that is ended, at whatever moment, leaves either a whole output or none."""

from __future__ import annotations

import csv
import gzip
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

SHARES = (0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1)
"""Of the time that a whole run took: when to end one. Where that was slow by chance, the late ones come too late."""
ENOUGH = 2
KILLS = 20
SEED = 20_260_921

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(sample_traces: Path) -> Path:
    return sample_traces / "vllm_cpu_mixed_60steps.json.gz"


def command(source: Path, *more: str) -> list[str]:
    """Ask for every kind of output, so that writing takes its time."""
    everything = ["--find-steady-state", "--iterations", "10:50", "--store-single-iteration", "--divide-phases"]
    return [sys.executable, "-m", "tracelens_infer", "split", str(source), "-o", "out", *everything, *more]


def run_to_the_end(source: Path, folder: Path, *more: str) -> float:
    """Split without being disturbed; returns how long that took."""
    begun = time.monotonic()
    subprocess.run(command(source, *more), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


@pytest.fixture(autouse=True)
def hang_ups_count() -> Iterator[None]:
    """Let SIGHUP end what is started here: under nohup it is ignored, and children inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def end_after(seconds: float, number: int, source: Path, folder: Path, *more: str) -> int:
    """Split, and send a signal after so many seconds; returns the exit code."""
    with subprocess.Popen(
        command(source, *more),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        time.sleep(seconds)
        process.send_signal(number)
        assert process.stderr is not None
        said = process.stderr.read()
    assert "Traceback" not in said
    return process.returncode


def assert_whole(out: Path) -> None:
    """See that the manifest is there, and everything it lists, readable."""
    manifest = json.loads((out / "split.json").read_text())
    listed = {output["file"] for output in manifest["outputs"]} | {"split.json", *manifest["tables"]}
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == listed
    for output in manifest["outputs"]:
        events = orjson.loads(gzip.decompress((out / output["file"]).read_bytes()))["traceEvents"]
        assert sum(event["ph"] != "M" for event in events) == output["events"]
    assert pq.read_table(out / "steps.parquet").num_rows == manifest["steps"]
    with (out / "steps.csv").open(encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == manifest["steps"] + 1


def moments(whole: float, count: int, seed: int) -> Iterator[float]:
    """Spread random moments over the whole run, one in each of ``count`` equal parts, in random order."""
    chance = random.Random(seed)
    parts = list(range(count))
    chance.shuffle(parts)
    for part in parts:
        yield (part + chance.random()) / count * whole * 1.05


def test_twenty_kills_leave_a_whole_output_or_none(source: Path, tmp_path: Path) -> None:
    whole = run_to_the_end(source, tmp_path)
    out = tmp_path / "out"
    assert_whole(out)
    outcomes = set()
    for number, seconds in enumerate(moments(whole, KILLS, SEED)):
        folder = tmp_path / str(number)
        folder.mkdir()
        code = end_after(seconds, signal.SIGKILL, source, folder)
        assert code in (0, -signal.SIGKILL)
        present = (folder / "out").exists()
        if present:
            assert_whole(folder / "out")
        assert present or code
        outcomes.add(present)
        left = [path.name for path in folder.iterdir() if path.name != "out"]
        assert all(name.startswith(".out.partial-") for name in left)
    assert False in outcomes


def test_kills_while_an_output_is_replaced_leave_the_old_or_the_new_one(source: Path, tmp_path: Path) -> None:
    whole = run_to_the_end(source, tmp_path)
    out = tmp_path / "out"
    for seconds in moments(whole, KILLS // 4, SEED + 1):
        code = end_after(seconds, signal.SIGKILL, source, tmp_path, "--force")
        assert code in (0, -signal.SIGKILL)
        if out.exists():
            assert_whole(out)
        else:  # between the two renames; the next run finds the old one
            assert any(path.name.startswith(".out.replaced-") for path in tmp_path.iterdir())
    run_to_the_end(source, tmp_path, "--force")
    assert_whole(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_next_run_removes_what_a_killed_one_left(source: Path, tmp_path: Path) -> None:
    whole = run_to_the_end(source, tmp_path)
    (tmp_path / "out").rename(tmp_path / "before")
    left: list[str] = []
    for share in SHARES:
        if not end_after(share * whole, signal.SIGKILL, source, tmp_path):
            (tmp_path / "out").rename(tmp_path / f"done {share}")
        left += [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")]
        if left:
            break
    assert left, "none of the kills came while the output was written"
    run_to_the_end(source, tmp_path, "--force")
    assert_whole(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_that_can_be_caught_leaves_nothing_behind(
    number: signal.Signals, exit_code: int, source: Path, tmp_path: Path
) -> None:
    whole = run_to_the_end(source, tmp_path)
    (tmp_path / "out").rename(tmp_path / "before")
    codes: list[int] = []
    for share in SHARES:
        code = end_after(share * whole, number, source, tmp_path)
        codes.append(code)
        if code == 0:  # it was done
            (tmp_path / "out").rename(tmp_path / f"done {share}")
        assert code in (0, exit_code, -number)  # the last: it came before the program could handle it
        assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []
        if codes.count(exit_code) == ENOUGH:
            break
    assert exit_code in codes
