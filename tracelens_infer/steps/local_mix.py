"""The local mix: how many of a range of steps should hold a prefill, where a run's requests began together.

The formula is written out with a worked example in docs/formulas.md, "Expected mix, local".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_infer.errors import UsageError
from tracelens_infer.steps.whole_numbers import check_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CompletionWaves", "LocalMix"]

DENSITY_REACH = 8.0  # standard deviations after which a wave adds less than 1e-14 of its requests
WAVES_AT_MOST = 1 << 14  # waves summed for one step: a thousand a standard deviation
CELLS_AT_ONCE = 1 << 20  # steps times waves held in memory together: 8 MiB an array


@dataclass(frozen=True, slots=True)
class LocalMix:
    """How many of the steps [first_step, end_step) are expected to hold a prefill?

    Attributes:
        first_step: first step of the range, counted from the start of the run.
        end_step: first step after the range.
        prefill_decode_steps: expected number of steps with a prefill where prefills that meet share a step.
        completions: expected number of requests that finish, and so of prefills that follow; the expected number
            of steps with a prefill where each has one of its own.
    """

    first_step: int
    end_step: int
    prefill_decode_steps: float
    completions: float

    @property
    def steps(self) -> int:
        """How many steps does the range hold?"""
        return self.end_step - self.first_step

    @property
    def fraction(self) -> float:
        """Which share of the steps is expected to hold a prefill, where prefills that meet share a step?"""
        return self.prefill_decode_steps / self.steps


@dataclass(frozen=True, slots=True)
class CompletionWaves:
    """In which steps do requests finish that began together?

    Wave k, the k-th requests of all slots, finishes around step k * ``mean_tokens``, with variance
    k * ``length_variance`` + ``ramp_variance``.

    Attributes:
        requests: requests in a wave: as many as run at once.
        mean_tokens: mean output of a request, in tokens and so in steps.
        length_variance: variance of the outputs, in steps squared.
        ramp_variance: variance of the requests' starts, in steps squared.
    """

    requests: float
    mean_tokens: float
    length_variance: float
    ramp_variance: float

    def local_mix(self, first_step: int, end_step: int) -> LocalMix:
        """How many of the steps [first_step, end_step) should hold a prefill?

        A step does with probability 1 - exp(-completions expected in it).

        Raises:
            UsageError: the range is empty, or starts before step 0.
        """
        check_count("first_step", first_step, 0)
        check_count("end_step", end_step, 1)
        if end_step <= first_step:
            raise UsageError(
                f"steps [{first_step}, {end_step})", "hold no step", "pass an end step after the first step"
            )
        expected = 0.0
        completions = 0.0
        for steps in self._step_blocks(first_step, end_step):
            per_step = self._completions_in(steps)
            completions += float(per_step.sum())
            expected += float(-np.expm1(-per_step).sum())
        return LocalMix(first_step, end_step, expected, completions)

    def _completions_in(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected completions in each of the ascending ``steps``: sum over the waves of requests * normal density."""
        first, last = self._waves_near(float(steps[0]))[0], self._waves_near(float(steps[-1]))[1]
        # Thousands of waves overlap only where one is far wider than the next is away: every n-th then stands for n.
        stride = 1 + (last - first) // WAVES_AT_MOST
        wave = np.arange(first, last + 1, stride) + (stride - 1) / 2
        variance = wave * self.length_variance + self.ramp_variance
        distance = steps[:, np.newaxis] - wave * self.mean_tokens
        density = np.exp(-0.5 * distance**2 / variance) / np.sqrt(2 * np.pi * variance)
        result: NDArray[np.float64] = self.requests * stride * density.sum(axis=1)
        return result

    def _waves_near(self, step: float) -> tuple[int, int]:
        """First and last wave that reaches ``step``: the roots of (k * mean - step)^2 = reach^2 * variance."""
        mean, reach = self.mean_tokens, DENSITY_REACH**2
        half = mean * step + reach * self.length_variance / 2
        root = math.sqrt(max(0.0, half**2 - mean**2 * (step**2 - reach * self.ramp_variance)))
        return max(1, math.floor((half - root) / mean**2)), max(1, math.ceil((half + root) / mean**2))

    def _step_blocks(self, first_step: int, end_step: int) -> Iterator[NDArray[np.float64]]:
        nearest, farthest = self._waves_near(first_step)[0], self._waves_near(end_step)[1]
        size = CELLS_AT_ONCE // min(farthest - nearest + 1, WAVES_AT_MOST)
        for start in range(first_step, end_step, size):
            yield np.arange(start, min(start + size, end_step), dtype=np.float64)
