"""What a command loads: libraries that take long to import stay out of those that do not need them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOADED = """
import sys
from tracelens_infer.cli.main import run
code = run(sys.argv[1:])
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
raise SystemExit(code)
"""
HEAVY = {"pandas", "scipy", "networkx", "plotly", "rich", "torch", "matplotlib"}


def loaded(folder: Path, *arguments: str) -> set[str]:
    """Run a command and return the packages that are loaded when it has ended."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, cwd=folder, check=True
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.fixture
def sample(sample_traces: Path) -> str:
    return str(sample_traces / "vllm_cpu_mixed_60steps.json.gz")


@pytest.mark.parametrize(
    "options",
    [
        ["--CONC", "8", "--OSL", "128", "--R", "0.5"],
        ["--find-steady-state", "--iterations", "3:6", "--store-single-iteration", "--divide-phases", "--json"],
    ],
)
def test_split_loads_neither_pandas_nor_scipy_nor_networkx(options: list[str], sample: str, tmp_path: Path) -> None:
    found = loaded(tmp_path, "split", sample, "-o", "out", *options)
    assert (tmp_path / "out" / "steps.parquet").is_file()
    assert {"numpy", "pyarrow", "msgspec", "tracelens_infer"} <= found
    assert found & HEAVY == set()


def test_info_loads_no_tables(sample: str, tmp_path: Path) -> None:
    found = loaded(tmp_path, "info", sample)
    assert "numpy" in found
    assert found & (HEAVY | {"pyarrow"}) == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["split", "--help"], ["info", "--help"]])
def test_help_loads_next_to_nothing(arguments: list[str], tmp_path: Path) -> None:
    found = loaded(tmp_path, *arguments)
    assert {"click", "tracelens_infer"} <= found
    assert found & (HEAVY | {"numpy", "pyarrow", "msgspec", "orjson", "isal"}) == set()


def test_the_package_itself_loads_nothing(tmp_path: Path) -> None:
    code = "import sys, tracelens_infer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert set(done.stdout.split()) & (HEAVY | {"click", "numpy", "msgspec"}) == set()
