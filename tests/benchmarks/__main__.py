"""``python -m tests.benchmarks``: time and memory against their bounds, in one table; ends with 1 over a bound."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.figures import Costs, Figure, against, growth, peak, seconds, table
from tests.benchmarks.inputs import Input, Maker
from tests.benchmarks.processes import ROOT, Cost, compile_bytecode, run
from tests.benchmarks.results import check_split

SMALL_MB, LARGE_MB, RUNS = 200.0, 1000.0, 5  # the bounds are made for these sizes
QUICK = (40.0, 200.0, 2)
FOLDER = ROOT / "build" / "bench"

# Bounds. Times are multiples of the floor, which reads the same file within the same round.
INGEST_TIMES = 1.5
SPLIT_SMALL_TIMES, SPLIT_LARGE_TIMES = 2.0, 1.8  # start-up weighs less in the large one
SPLIT_SMALL_MB, SPLIT_LARGE_MB = 200.0, 320.0
GROWTH = 1.15  # time per MB may rise a little: columns of 1 GB leave the processor's caches
HELP_S = 0.3


class Bench:
    """The processes to measure, round after round, and what each cost."""

    def __init__(self, small: Input, large: Input, whole_run: Input, scratch: Path) -> None:
        self.small, self.large, self.whole_run, self.scratch = small, large, whole_run, scratch
        split = ("split", "--CONC", "64", "--R", "0.8", "--OSL")
        self.commands = {
            "floor small": _program("floor", small),
            "ingest small": _program("ingest", small),
            "split small": _tracelens(*split, "1024", str(small.path), "-o", str(scratch / "small")),
            "singles small": _tracelens(
                *("split", "--store-single-iteration", str(small.path), "-o", str(scratch / "singles"))
            ),
            "floor run": _program("floor", whole_run),
            "split run": _tracelens(*split, "256", str(whole_run.path), "-o", str(scratch / "run")),
            "floor large": _program("floor", large),
            "ingest large": _program("ingest", large),
            "split large": _tracelens(*split, "1024", str(large.path), "-o", str(scratch / "large")),
            "help": _tracelens("--help"),
        }

    def measure(self, rounds: int) -> Costs:
        """Run every process once a round, one after another. The outputs of the first round are checked."""
        for traced in (self.small, self.large, self.whole_run):
            traced.read_once()
        costs: dict[str, list[Cost]] = {name: [] for name in self.commands}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            try:
                for name, command in self.commands.items():
                    costs[name].append(run(command))
                if not number:
                    self._check()
            finally:
                shutil.rmtree(self.scratch, ignore_errors=True)
        return costs

    def _check(self) -> None:
        check_split(self.scratch / "small", self.small.steps_by_kind)
        check_split(self.scratch / "large", self.large.steps_by_kind)
        check_split(self.scratch / "run", self.whole_run.steps_by_kind, whole_run=True)
        check_split(self.scratch / "singles", self.small.steps_by_kind, singles=True)

    def figures(self, costs: Costs) -> list[Figure]:
        """Every row of the table."""
        small, large = f"{self.small.megabytes:.0f} MB", f"{self.large.megabytes:.0f} MB"
        run_size = f"{self.whole_run.megabytes:.0f} MB"

        def times(name: str, process: str, floor: str, bound: float | None) -> Figure:
            return Figure(f"{name}, time / floor", against(costs, process, floor), "x", bound, costs[process])

        def memory(name: str, process: str, bound: float | None) -> Figure:
            return Figure(f"{name}, peak memory", peak(costs, process), "MB", bound, costs[process])

        def linear(process: str) -> Figure:
            ends = (f"{process} small", self.small.megabytes), (f"{process} large", self.large.megabytes)
            name = f"{process}, time per MB: {large} / {small}"
            return Figure(name, growth(costs, *ends), "x", GROWTH, costs[f"{process} large"])

        return [
            Figure(f"floor {small}", seconds(costs, "floor small"), "s", None, costs["floor small"]),
            times(f"ingest {small}", "ingest small", "floor small", INGEST_TIMES),
            times(f"split {small}", "split small", "floor small", SPLIT_SMALL_TIMES),
            memory(f"split {small}", "split small", SPLIT_SMALL_MB),
            Figure(f"floor {large}", seconds(costs, "floor large"), "s", None, costs["floor large"]),
            times(f"ingest {large}", "ingest large", "floor large", INGEST_TIMES),
            times(f"split {large}", "split large", "floor large", SPLIT_LARGE_TIMES),
            memory(f"split {large}", "split large", SPLIT_LARGE_MB),
            linear("ingest"),
            linear("split"),
            times(f"split of a whole run, {run_size}", "split run", "floor run", SPLIT_SMALL_TIMES),
            memory(f"split of a whole run, {run_size}", "split run", SPLIT_SMALL_MB),
            times(f"split --store-single-iteration {small}", "singles small", "floor small", None),
            memory(f"split --store-single-iteration {small}", "singles small", None),
            Figure("--help", seconds(costs, "help"), "s", HELP_S, costs["help"]),
        ]


def _program(name: str, traced: Input) -> list[str]:
    return [sys.executable, "-m", f"tests.benchmarks.{name}", str(traced.path)]


def _tracelens(*arguments: str) -> list[str]:
    # A new folder each round: --force would time the removal of the old one.
    return [sys.executable, "-m", "tracelens_infer", *arguments]


def options_from(arguments: list[str] | None) -> argparse.Namespace:
    """Read the options; --quick sets those that are not given."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--mb", type=float, help=f"size of the small trace  [default: {SMALL_MB:g}]")
    parser.add_argument("--large-mb", type=float, help=f"size of the large trace  [default: {LARGE_MB:g}]")
    parser.add_argument("--runs", type=int, help=f"rounds; figures are medians  [default: {RUNS}]")
    parser.add_argument("--quick", action="store_true", help="a first look: {:g} and {:g} MB, {} rounds".format(*QUICK))
    parser.add_argument("--generator", type=Path, help="script that makes the traces, instead of our own")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where traces are kept  [default: build/bench]")
    options = parser.parse_args(arguments)
    defaults = QUICK if options.quick else (SMALL_MB, LARGE_MB, RUNS)
    for name, value in zip(("mb", "large_mb", "runs"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table; 1 where a bound is passed, at the sizes that the bounds are made for."""
    options = options_from(arguments)
    maker = Maker(options.folder, options.generator)
    small, large, whole_run = maker.sized(options.mb), maker.sized(options.large_mb), maker.whole_run(options.mb)
    compile_bytecode()
    bench = Bench(small, large, whole_run, options.folder / f"out-{os.getpid()}")
    load = os.getloadavg()[0]
    figures = bench.figures(bench.measure(options.runs))
    print(
        f"{options.runs} rounds, medians; Python {platform.python_version()} on {platform.machine()},"
        f" {os.cpu_count()} cores, load {load:.1f} at the start"
    )
    return report(figures, judged=(options.mb, options.large_mb) == (SMALL_MB, LARGE_MB))


def report(figures: Sequence[Figure], *, judged: bool) -> int:
    """Print the table; 1 where a bound is passed and ``judged`` says that the bounds are meant for these sizes."""
    print()
    print("\n".join(table(figures)))
    over = [figure.name for figure in figures if figure.is_over]
    if not judged:
        print(f"\nThe bounds are made for {SMALL_MB:g} and {LARGE_MB:g} MB; at other sizes they decide nothing.")
    elif over:
        print(f"\nOver the bound: {', '.join(over)}.")
    return 1 if over and judged else 0


if __name__ == "__main__":
    raise SystemExit(main())
