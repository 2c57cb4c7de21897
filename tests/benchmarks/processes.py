"""What does a process cost? Measured from outside, the whole of it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB on Linux


@dataclass(frozen=True, slots=True)
class Cost:
    """Time from start to end, processor time of all threads, and the most memory held at once."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def environment() -> dict[str, str]:
    """The variables of a measured process: it uses the bytecode that lies ready, and finds the project."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": str(ROOT)}


def run(arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end; raises RuntimeError with what it said, where it fails.

    A process begins with the peak of the one that starts it, so this one has to stay small: it loads no numpy.
    """
    begun = time.perf_counter()
    process = subprocess.Popen(
        arguments, env=variables or environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)  # it is waited for already
    process.stderr.close()
    if process.returncode:
        said = told.decode(errors="replace")
        raise RuntimeError(f"{shlex.join(arguments)} ended with {process.returncode}:\n{said}")
    return Cost(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * MAXRSS_UNIT / 1e6)


def compile_bytecode() -> None:
    """Write the bytecode of everything that is measured, as an installation does."""
    folders = [str(ROOT / name) for name in ("tracelens_infer", "tests/benchmarks")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], env=environment(), check=True)
