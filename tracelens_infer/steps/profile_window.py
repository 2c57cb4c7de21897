"""The profile window: at which step of a run should the profiler start, and for how many steps?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracelens_infer.errors import UsageError
from tracelens_infer.notes import Note
from tracelens_infer.steps import workload_notes
from tracelens_infer.steps.whole_numbers import ROUNDING, check_count

__all__ = ["LONGEST_PROFILE_STEPS", "SHORTEST_PROFILE_STEPS", "ProfileWindow", "centred_delay", "place_profile"]

SHORTEST_PROFILE_STEPS = 32  # fewer steps say nothing about a mix
LONGEST_PROFILE_STEPS = 512  # more steps make a trace that viewers refuse and that stalls the engine for minutes


@dataclass(frozen=True, slots=True)
class ProfileWindow:
    """When should the profiler start, and for how many steps?

    Attributes:
        delay_iters: steps to let pass before the profiler starts.
        max_iters: steps to profile.
        unclamped_max_iters: what the formula asks for before the limits, in steps.
        notes: which limits changed the formula's figures.
    """

    delay_iters: int
    max_iters: int
    unclamped_max_iters: float
    notes: tuple[Note, ...] = ()

    @property
    def first_step(self) -> int:
        """Which step is profiled first, counted from the start of the run?"""
        return self.delay_iters

    @property
    def end_step(self) -> int:
        """Which step is the first one that is not profiled any more?"""
        return self.delay_iters + self.max_iters


def centred_delay(centre_step: float, max_iters: int, earliest_step: int) -> int:
    """Before which step must ``max_iters`` steps start to have this centre? Not before ``earliest_step``."""
    return max(round(centre_step - max_iters / 2), earliest_step)


def place_profile(
    *,
    wanted_steps: float,
    centre_step: float,
    steps_needed: int,
    ramp_up_steps: int,
    window_steps: tuple[float, float],
    shortest_steps: int,
    longest_steps: int,
) -> ProfileWindow:
    """Which steps to profile: about ``wanted_steps`` of them around ``centre_step``, within the limits?

    The length is within [max(shortest, needed), longest]; where the limits cross, the longest wins. The start is not
    before the ramp-up ends. Both are rounded to whole steps. A Note tells of a profile that is longer than
    ``window_steps``, the first and last step of the analytic window.

    Raises:
        UsageError: a limit is no whole number of at least 1, or the shortest is above the longest.
    """
    check_count("shortest_steps (--min-iters)", shortest_steps, 1)
    check_count("longest_steps (--max-iters)", longest_steps, 1)
    if shortest_steps > longest_steps:
        raise UsageError(
            f"shortest_steps (--min-iters): {shortest_steps}",
            f"is more than the longest profile allowed, {longest_steps} steps",
            "pass a smaller --min-iters or a larger --max-iters",
        )
    max_iters = min(longest_steps, max(shortest_steps, steps_needed, round(wanted_steps)))
    delay_iters = centred_delay(centre_step, max_iters, ramp_up_steps)
    notes = (
        *_length_notes(wanted_steps, max_iters, steps_needed),
        *_delay_notes(centre_step - max_iters / 2, delay_iters),
        *(_window_notes(window_steps, max_iters) if ramp_up_steps > 1 else ()),  # one request is no burst
    )
    return ProfileWindow(delay_iters, max_iters, wanted_steps, notes)


def _length_notes(wanted_steps: float, max_iters: int, steps_needed: int) -> Iterator[Note]:
    if max_iters != round(wanted_steps):
        yield workload_notes.max_iters_clamped(wanted_steps, max_iters)
    if max_iters < steps_needed:
        yield workload_notes.profile_below_steps_needed(max_iters, steps_needed)


def _delay_notes(centred_start: float, delay_iters: int) -> Iterator[Note]:
    if delay_iters > round(centred_start):
        yield workload_notes.delay_raised_to_ramp_up(centred_start, delay_iters)


def _window_notes(window_steps: tuple[float, float], max_iters: int) -> Iterator[Note]:
    first, last = window_steps
    if last - first < max_iters * (1 - ROUNDING):
        yield workload_notes.completions_in_one_burst(first, last, max_iters)
