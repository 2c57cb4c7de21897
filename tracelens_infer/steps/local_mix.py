"""The local mix: how many of a range of steps should hold a prefill, where a run's requests began together.

Written out with worked examples in docs/formulas.md, "Expected mix, local" and "Expected mix, local, in chunks".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from tracelens_infer.errors import UsageError
from tracelens_infer.steps.whole_numbers import check_count, round_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BUSIEST_SHARE", "LAST_STEP", "ChunkedRun", "CompletionWaves", "LocalMix"]

DENSITY_REACH = 8.0  # standard deviations after which a wave adds less than 1e-14 of its requests
WAVES_AT_MOST = 1 << 14  # waves summed for one step: a thousand a standard deviation
CELLS_AT_ONCE = 1 << 20  # steps times waves held in memory together: 8 MiB an array
BUSIEST_SHARE = 0.7  # share of the steps' room that prompts may take: above, chance decides where they queue
LAST_STEP = 1 << 18  # steps followed one by one: under a second
STEPS_AT_ONCE = 1 << 12  # a run is followed this far or a multiple, so that nearby windows share the work


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
        _check_range(first_step, end_step)
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


@dataclass(frozen=True, slots=True)
class ChunkedRun:
    """In which steps are prompts computed that take several steps each?

    The run is followed step by step as a flow: what the budget leaves beside the decodes goes to the waiting prompt
    tokens, in turn. A request decodes once its prompt is done, and the next prompt waits when it has finished.

    Attributes:
        requests: requests that run at once.
        shortest_steps: tokens, and so decode steps, of the shortest output.
        longest_steps: those of the longest.
        prompt_tokens: tokens to compute for a prompt.
        budget_tokens: tokens that a step computes, decodes included.
    """

    requests: float
    shortest_steps: int
    longest_steps: int
    prompt_tokens: int
    budget_tokens: int

    @property
    def chunk_steps(self) -> int:
        """How many steps does a prompt take that meets no other?"""
        return round_up(self._prompt_steps)

    @property
    def busy_share(self) -> float:
        """Which share of the steps' room do prompts take, over the whole run?"""
        return self.requests * self._prompt_steps / ((self.shortest_steps + self.longest_steps) / 2)

    @property
    def delay_steps(self) -> int:
        """How long after the flow has served a prompt is the real one done, on average?

        The steps that a prompt takes, less the first, and the wait for others that it meets by chance: that of a queue
        with random arrivals and fixed service, chunks * share / (2 * (1 - share)), taken as one prompt at most. Outputs
        of equal length leave nothing to chance.
        """
        chunks, share = self.chunk_steps, self.busy_share
        spread = self.longest_steps - self.shortest_steps >= chunks
        wait = chunks * min(1.0, share / (2 * (1 - share))) if spread and share < 1 else 0.0
        return chunks - 1 + round(wait)

    def local_mix(self, first_step: int, end_step: int) -> LocalMix | None:
        """How many of the steps [first_step, end_step) should hold a prefill?

        None where that cannot be said: prompts take more than ``BUSIEST_SHARE`` of the room, or the range ends after
        step ``LAST_STEP``.

        Raises:
            UsageError: the range is empty, or starts before step 0.
        """
        _check_range(first_step, end_step)
        if self.busy_share > BUSIEST_SHARE or end_step > LAST_STEP:
            return None
        followed, finished = _follow(self, -(-end_step // STEPS_AT_ONCE) * STEPS_AT_ONCE)
        return LocalMix(
            first_step,
            end_step,
            followed[end_step] - followed[first_step],
            finished[end_step] - finished[first_step],
        )

    def chance_of_prefill(self, served_share: float, room_tokens: float) -> float:
        """How likely does a step hold a prefill whose room is taken by that share?

        A prompt alone takes whole steps, so a little work occupies more of them than it fills; prompts that queue fill
        them.
        """
        in_room = self.prompt_tokens / room_tokens
        alone = round_up(in_room) / in_room
        return served_share * (1 + (alone - 1) * (1 - served_share))

    @property
    def _prompt_steps(self) -> float:
        return self.prompt_tokens / (self.budget_tokens - self.requests)


@lru_cache(maxsize=8)
def _follow(run: ChunkedRun, steps: int) -> tuple[list[float], list[float]]:
    """Follow a run: before each step, how many steps held a prefill, and how many requests have finished?"""
    delay, lengths = run.delay_steps, run.longest_steps - run.shortest_steps + 1
    waiting, decoding, finished_before = run.requests * run.prompt_tokens, 0.0, 0.0
    started, finished, prefills = [0.0] * (delay + 1), [], []  # started[i]: first tokens out before step i
    sums = list(accumulate(started, initial=0.0))  # of started[0] to started[i - 1]
    for step in range(steps):
        room = run.budget_tokens - decoding
        served = min(waiting, room)
        prefills.append(run.chance_of_prefill(served / room, room))
        started.append(started[-1] + served / run.prompt_tokens)
        sums.append(sums[-1] + started[-1])
        # A request of L tokens whose first one comes out of step i is done with step i + L - 1.
        last, before = max(0, step + 3 - run.shortest_steps), max(0, step + 3 - run.shortest_steps - lengths)
        done = (sums[last] - sums[before]) / lengths
        decoding = max(0.0, started[step + 1] - done)
        waiting += (done - finished_before) * run.prompt_tokens - served
        finished.append(done)
        finished_before = done
    return list(accumulate(prefills, initial=0.0)), [0.0, *finished]


def _check_range(first_step: int, end_step: int) -> None:
    check_count("first_step", first_step, 0)
    check_count("end_step", end_step, 1)
    if end_step <= first_step:
        raise UsageError(f"steps [{first_step}, {end_step})", "hold no step", "pass an end step after the first step")
