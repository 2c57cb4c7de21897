"""The command line as a function of its arguments, and small traces to call it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.make_trace import TraceMaker, vllm
from tracelens_infer.cli.main import run


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code, and both streams."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


Command = Callable[..., Outcome]


@pytest.fixture
def tracelens(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments: str | Path) -> Outcome:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err or "-v" in arguments
        return Outcome(code, captured.out, captured.err)

    return command


def steps_of_kinds(header: Mapping[str, object] | None = None, *, device: bool = True, cycles: int = 4) -> TraceMaker:
    """Make nine decode steps and one with a prefill, several times."""
    maker = TraceMaker(header)
    maker.steps((vllm(*load) for load in [*[(0, 8)] * 9, (1, 7)] * cycles), device=device)
    return maker


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of 40 steps."""
    return steps_of_kinds().write(tmp_path, "run.json.gz")


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """A folder with ranks 0, 2 and 3 of 5; the last was cut short."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank, cycles in ((0, 4), (2, 4), (3, 1)):
        header = {"distributedInfo": {"rank": rank, "world_size": 5}}
        steps_of_kinds(header, cycles=cycles).write(folder, f"rank{rank}.json.gz")
    return folder
