"""The figures of a benchmark, each beside the bound it has to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tests.benchmarks.processes import Cost

Costs = Mapping[str, Sequence[Cost]]  # name of a process -> its cost in each round

HEADINGS = ("figure", "measured", "bound", "", "wall s", "cpu s", "peak MB")


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: a number out of the costs, how it is written, and the most it may be (None for no bound).

    ``process`` is the one whose costs stand beside it.
    """

    name: str
    value: float
    unit: str
    bound: float | None
    process: Sequence[Cost]

    @property
    def is_over(self) -> bool:
        """Is the bound passed?"""
        return self.bound is not None and self.value > self.bound

    def cells(self) -> tuple[str, ...]:
        """The row as texts."""
        bound = "-" if self.bound is None else self._written(self.bound)
        verdict = "" if self.bound is None else "over" if self.is_over else "ok"
        wall, cpu, peak = (median(getattr(cost, name) for cost in self.process) for name in Cost.__slots__)
        return self.name, self._written(self.value), bound, verdict, f"{wall:.2f}", f"{cpu:.2f}", f"{peak:.0f}"

    def _written(self, value: float) -> str:
        return f"{value:.0f} MB" if self.unit == "MB" else f"{value:.2f} {self.unit}"


def against(costs: Costs, process: str, floor: str) -> float:
    """How many times the floor's time does a process take? The median of the rounds, each compared within itself."""
    return _paired(costs[process], costs[floor], lambda cost: cost.wall_s)


def peak(costs: Costs, process: str) -> float:
    """The most memory a process held, in MB; the median of the rounds."""
    return median(cost.peak_mb for cost in costs[process])


def seconds(costs: Costs, process: str) -> float:
    """Time of a process; the median of the rounds."""
    return median(cost.wall_s for cost in costs[process])


def growth(costs: Costs, small: tuple[str, float], large: tuple[str, float]) -> float:
    """Time per MB of the ``large`` input over that of the ``small`` one: each a process and its input's size."""
    return _paired(costs[large[0]], costs[small[0]], lambda cost: cost.wall_s) * small[1] / large[1]


def _paired(costs: Sequence[Cost], base: Sequence[Cost], value: Callable[[Cost], float]) -> float:
    return median(value(one) / value(other) for one, other in zip(costs, base, strict=True))


def table(figures: Sequence[Figure]) -> list[str]:
    """The rows as lines; numbers to the right."""
    rows = [HEADINGS, *(figure.cells() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in (0, 3) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
