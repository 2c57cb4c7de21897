"""The traces that are measured: made on first use, kept in build/bench."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.processes import ROOT, environment

SOURCES = ("make_trace.py", "closed_loop.py", "model.py")  # what a trace of our own depends on
BENCHMARKS = Path(__file__).resolve().parent
WHOLE_RUN_PROMPTS = 640  # ten for each of 64 slots, as benchmarks send by habit: 200 MB with steps of this size
WHOLE_RUN = ("--osl", "256", "--layers", "8", "--frames", "60")
WHOLE_RUN_LEAST_PROMPTS = 256  # fewer leave no plateau


@dataclass(frozen=True, slots=True)
class Input:
    """A trace, its size, and the steps it should be found to hold (None where its maker does not tell)."""

    path: Path
    megabytes: float
    steps_by_kind: dict[str, int] | None

    def read_once(self) -> None:
        """Bring the file into the system's cache, so that no measured process waits for a disk."""
        with self.path.open("rb") as file:
            while file.read(1 << 20):
                pass


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes traces in a folder, by our own generator or by another script with the same options.

    ``sized_options`` and ``run_options`` are the generator's, for the two kinds of trace.
    """

    folder: Path
    generator: Path | None = None
    sized_options: tuple[str, ...] = ()
    run_options: tuple[str, ...] = WHOLE_RUN
    least_prompts: int = WHOLE_RUN_LEAST_PROMPTS

    def sized(self, megabytes: float) -> Input:
        """A trace of this size, from the middle of a run."""
        return self._made(f"{megabytes:g}mb", ["--mb", f"{megabytes:g}", *self.sized_options])

    def whole_run(self, megabytes: float) -> Input:
        """A run of about this size from its first request to its last: ramp-up, plateau, ramp-down."""
        prompts = max(self.least_prompts, round(WHOLE_RUN_PROMPTS * megabytes / 200))
        return self._made(f"run{prompts}", ["--prompts", str(prompts), *self.run_options])

    def _made(self, name: str, options: list[str]) -> Input:
        sources = [self.generator] if self.generator else [BENCHMARKS / source for source in SOURCES]
        digest = hashlib.sha256(json.dumps(options).encode())
        for source in sources:
            digest.update(source.read_bytes())
        path = self.folder / f"{name}-{digest.hexdigest()[:10]}.json.gz"
        facts = path.with_suffix(".facts")
        if not facts.is_file():
            print(f"making {path.name}", file=sys.stderr)
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}")
            made = self._by_script(partial, options) if self.generator else _by_own_generator(partial, options)
            partial.replace(path)
            facts.write_text(json.dumps(made), encoding="utf-8")
        told = json.loads(facts.read_text(encoding="utf-8"))
        return Input(path, told["bytes"] / 1e6, told.get("steps_by_kind"))

    def _by_script(self, path: Path, options: Sequence[str]) -> dict[str, object]:
        """A script that writes OUT and, asked by --gz, OUT.gz."""
        plain = path.with_suffix("")
        translated = ["--py" if option == "--frames" else option for option in options]
        start = ["--start", "cold"] if "--prompts" in options else []
        command = [sys.executable, str(self.generator), str(plain), *translated, *start, "--gz", "1"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        size = plain.stat().st_size
        plain.unlink()
        return {"bytes": size}


def _by_own_generator(path: Path, options: Sequence[str]) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.benchmarks.make_trace", str(path), *options]
    done = subprocess.run(command, env=environment(), cwd=ROOT, check=True, stdout=subprocess.PIPE)
    made: dict[str, object] = json.loads(done.stdout)
    return made
