"""Workload: what a benchmark's CONC, OSL and R say about its steps, in closed form.

Every formula is written out with a worked example in docs/formulas.md, "Workload and the expected mix".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from tracelens_infer.errors import UsageError
from tracelens_infer.notes import Note

__all__ = ["LocalMix", "ProfileWindow", "RangeRatioStyle", "Workload"]

RangeRatioStyle = Literal["document", "vllm"]

PROMPTS_PER_SLOT = 10  # what benchmarks run by habit: NUM_PROMPTS = 10 * CONC
WINDOW_GENERATION = 5  # the completion range to profile: far from ramp-up, and as far from the tail of ten
MIXED_STEPS_WANTED = 16  # prefill-decode steps a profile should hold, were they spread evenly
SHORTEST_PROFILE_STEPS = 32  # fewer steps say nothing about a mix
LONGEST_PROFILE_STEPS = 512  # more steps make a trace that viewers refuse and that stalls the engine for minutes
LARGEST_COUNT = 10**9  # beyond any benchmark; keeps the arithmetic exact in a double
ROUNDING = 1e-9  # relative error of a double that must not push a quotient to the next whole number
DENSITY_REACH = 8.0  # standard deviations after which a completion range adds less than 1e-14 of its requests
GENERATIONS_AT_MOST = 1 << 14  # completion ranges summed for one step: a thousand a standard deviation
CELLS_AT_ONCE = 1 << 20  # steps times completion ranges held in memory together: 8 MiB an array

# Whole numbers: field, its option, the smallest value that means something. The optional ones may be None.
_COUNTS = (
    ("concurrency", "--CONC", 1),
    ("output_tokens", "--OSL", 1),
    ("num_prompts", "--num-prompts", 1),
    ("prompt_tokens", "--isl", 1),
    ("cached_tokens", "--cached-tokens", 0),
    ("chunk_size", "--chunk-size", 1),
    ("data_parallel", "--dp", 1),
    ("pipeline_stages", "--pp", 1),
)
_OPTIONAL = frozenset({"num_prompts", "prompt_tokens", "chunk_size"})

FloatArray = npt.NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class Workload:
    """What do a benchmark's parameters say about the steps of a run?

    A closed-loop run is meant: CONC requests start together, and each one that finishes is replaced at once. All
    step figures are those of one data-parallel rank. Formulas: docs/formulas.md.

    Attributes:
        concurrency: CONC, requests that run at once, over all data-parallel ranks.
        output_tokens: OSL; the longest output in document style, the middle of the range in vllm style.
        length_ratio: R in document style (lengths from R * OSL to OSL), r in vllm style (OSL * (1 - r) to
            OSL * (1 + r)).
        num_prompts: NUM_PROMPTS, requests in the run over all ranks; None for 10 * CONC.
        prompt_tokens: ISL; None where unknown.
        cached_tokens: how many of a prompt's tokens the prefix cache holds.
        chunk_size: C, the token budget of a step (chunked prefill); None where unknown.
        range_ratio_style: which of the two meanings ``length_ratio`` has.
        data_parallel: engines that share the requests.
        pipeline_stages: pipeline stages of an engine, each with a micro-batch of its own.

    Raises:
        UsageError: a value is no number, not whole where it must be, or out of range.
    """

    concurrency: int
    output_tokens: int
    length_ratio: float = 1.0
    num_prompts: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    chunk_size: int | None = None
    range_ratio_style: RangeRatioStyle = "document"
    data_parallel: int = 1
    pipeline_stages: int = 1

    def __post_init__(self) -> None:
        """Refuse values that no benchmark can have."""
        for name, option, smallest in _COUNTS:
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                _check_count(f"{name} ({option})", value, smallest)
        _check_ratio(self.length_ratio, self.range_ratio_style)
        self._check_together()

    def _check_together(self) -> None:
        if self.data_parallel > self.concurrency:
            thing, value = "data_parallel (--dp)", self.data_parallel
            reason = f"is more than CONC = {self.concurrency}, so some ranks would never hold a request"
            action = "pass the CONC of all ranks together, at least one request a rank"
        elif self.cached_tokens and self.prompt_tokens is None:
            thing, value = "cached_tokens (--cached-tokens)", self.cached_tokens
            reason, action = "means nothing without the length of a prompt", "pass --isl too"
        elif self.prompt_tokens is not None and self.cached_tokens > self.prompt_tokens:
            thing, value = "cached_tokens (--cached-tokens)", self.cached_tokens
            reason = f"is more than the {self.prompt_tokens} tokens of a prompt"
            action = f"pass at most {self.prompt_tokens}"
        elif self.chunk_size is not None and self.chunk_size <= self.rank_concurrency:
            thing, value = "chunk_size (--chunk-size)", self.chunk_size
            reason = f"leaves no token for a prefill beside {self.rank_concurrency:g} decodes"
            action = f"pass a budget above {self.rank_concurrency:g} tokens, or a smaller CONC"
        else:
            return
        raise UsageError(f"{thing}: {value}", reason, action)

    # Output lengths

    @property
    def shortest_output_tokens(self) -> float:
        """How many tokens does the shortest output have? R * OSL, or OSL * (1 - r) in vllm style."""
        if self.range_ratio_style == "vllm":
            return self.output_tokens * (1 - self.length_ratio)
        return self.output_tokens * self.length_ratio

    @property
    def longest_output_tokens(self) -> float:
        """How many tokens does the longest output have? OSL, or OSL * (1 + r) in vllm style."""
        if self.range_ratio_style == "vllm":
            return self.output_tokens * (1 + self.length_ratio)
        return float(self.output_tokens)

    @property
    def interpreted_ratio(self) -> float:
        """Which R, in document style, gives the same lengths? R itself, or (1 - r) / (1 + r)."""
        if self.range_ratio_style == "vllm":
            return (1 - self.length_ratio) / (1 + self.length_ratio)
        return float(self.length_ratio)

    @property
    def mean_output_tokens(self) -> float:
        """How many tokens, and so steps, does a request take on average? OSL * (1 + R) / 2."""
        return (self.shortest_output_tokens + self.longest_output_tokens) / 2

    # Requests of one rank

    @property
    def prompts(self) -> int:
        """How many requests does the run have, over all ranks?"""
        return PROMPTS_PER_SLOT * self.concurrency if self.num_prompts is None else self.num_prompts

    @property
    def rank_prompts(self) -> float:
        """How many requests does one data-parallel rank serve? NUM_PROMPTS / DP."""
        return self.prompts / self.data_parallel

    @property
    def rank_concurrency(self) -> float:
        """How many requests does one data-parallel rank run at once? CONC / DP."""
        return self.concurrency / self.data_parallel

    @property
    def requests_per_step(self) -> float:
        """How many requests should a full step show? CONC / DP, or about CONC / DP / PP with pipeline stages.

        At least 1: a step with fewer is no step.
        """
        return max(1.0, self.rank_concurrency / self.pipeline_stages)

    # Steps of the whole run

    @property
    def completions_per_step(self) -> float:
        """How many requests finish, and so start, in a step on average? lambda = CONC / mean output."""
        return self.rank_concurrency / self.mean_output_tokens

    @property
    def total_steps(self) -> float:
        """How many steps does the run take? NUM_PROMPTS * mean output / CONC.

        Leaves out ramp-up and tail, which add about 5 % to a run of ten prompts a slot.
        """
        return self.prompts * self.mean_output_tokens / self.concurrency

    @property
    def prefill_decode_steps(self) -> float:
        """How many steps of the run hold a prefill, by the document's count? One a request: NUM_PROMPTS."""
        return self.rank_prompts

    @property
    def decode_only_steps(self) -> float:
        """How many steps hold decodes only, by the document? max(0, NUM_PROMPTS * (mean output - CONC) / CONC)."""
        return max(0.0, self.prompts * (self.mean_output_tokens - self.rank_concurrency) / self.concurrency)

    @property
    def steps_needed(self) -> int:
        """How many steps must a window have to expect one prefill in it? ceil(1 / mix fraction)."""
        return _ceil(1 / self.mix_fraction_document)

    @property
    def ramp_up_steps(self) -> int:
        """How many steps at the start are ramp-up? CONC, as if every request needed a prefill step of its own."""
        return _ceil(self.rank_concurrency)

    # Expected share of steps with a prefill, stationary

    @property
    def mix_fraction_document(self) -> float:
        """Which share of steps holds a prefill where each prefill has a step of its own? lambda, at most 1.

        The document's mix fraction; ``notes`` says when the cap bites.
        """
        return min(1.0, self.completions_per_step)

    @property
    def mix_fraction_batched(self) -> float:
        """Which share of steps holds a prefill where prefills that meet share a step? 1 - exp(-lambda)."""
        return -math.expm1(-self.completions_per_step)

    @property
    def mix_fraction_chunked(self) -> float | None:
        """Which share of steps holds a prefill where prompts are cut in n chunks? min(1, lambda * n).

        None unless ISL and the chunk size are known.
        """
        chunks = self.chunks_per_request
        return None if chunks is None else min(1.0, self.completions_per_step * chunks)

    @property
    def mix_fraction_exclusive(self) -> float:
        """Which share of steps is a prefill where none is mixed with decodes? CONC / (CONC + mean output - 1).

        A request's first token comes from its prefill step; its other tokens take mean - 1 decode steps.
        """
        return min(1.0, self.rank_concurrency / self.exclusive_cycle_steps)

    @property
    def exclusive_cycle_steps(self) -> float:
        """How many steps does a request take where prefills stop the decodes? CONC + mean output - 1.

        Its own mean - 1 decode steps, and the prefill steps of the CONC requests that start meanwhile.
        """
        return self.rank_concurrency + max(0.0, self.mean_output_tokens - 1)

    # Prefill work

    @property
    def uncached_prompt_tokens(self) -> int | None:
        """How many tokens of a prompt must be computed? ISL - h, at least one (the last is always computed)."""
        return None if self.prompt_tokens is None else max(1, self.prompt_tokens - self.cached_tokens)

    @property
    def prefill_budget_tokens(self) -> float | None:
        """How many tokens does a full step leave for prefills? C - CONC."""
        return None if self.chunk_size is None else self.chunk_size - self.rank_concurrency

    @property
    def chunks_per_request(self) -> int | None:
        """In how many chunks is a prompt computed? ceil((ISL - h) / (C - CONC)); None where ISL or C is unknown."""
        if self.uncached_prompt_tokens is None or self.prefill_budget_tokens is None:
            return None
        return _ceil(self.uncached_prompt_tokens / self.prefill_budget_tokens)

    @property
    def is_prefill_bound(self) -> bool | None:
        """Do more prompt tokens arrive than steps can take? lambda * (ISL - h) > C - CONC; None where unknown.

        Such an engine never reaches CONC requests: the decodes wait for prefills that do not keep up.
        """
        if self.uncached_prompt_tokens is None or self.prefill_budget_tokens is None:
            return None
        return self.completions_per_step * self.uncached_prompt_tokens > self.prefill_budget_tokens * (1 + ROUNDING)

    # Where in the run

    def completion_range_steps(self, generation: int) -> tuple[float, float]:
        """Between which steps does the k-th group of CONC requests finish? [k * R * OSL, k * OSL].

        Raises:
            UsageError: ``generation`` (k) is not a whole number of at least 1.
        """
        _check_count("generation", generation, 1)
        return generation * self.shortest_output_tokens, generation * self.longest_output_tokens

    @property
    def analytic_window_steps(self) -> tuple[float, float]:
        """Between which steps does profiling pay most? The fifth completion range, [5 * R * OSL, 5 * OSL]."""
        return self.completion_range_steps(WINDOW_GENERATION)

    def is_in_analytic_window(self, first_step: int, end_step: int) -> bool:
        """Do the steps [first_step, end_step) lie in the analytic window, so that ``local_mix`` judges them?"""
        first, last = self.analytic_window_steps
        return first <= first_step < end_step <= last

    def profile_window(
        self, shortest_steps: int = SHORTEST_PROFILE_STEPS, longest_steps: int = LONGEST_PROFILE_STEPS
    ) -> ProfileWindow:
        """When should the profiler start, and for how long?

        max_iters = 16 * OSL / CONC, within [max(shortest, steps needed), longest]; where the limits cross, the
        longest wins. delay_iters = (1 + R) / 2 * 5 * OSL - max_iters / 2, but not before the ramp-up ends. Both are
        rounded to whole steps.

        Raises:
            UsageError: a limit is no whole number of at least 1, or the shortest is above the longest.
        """
        _check_count("shortest_steps (--min-iters)", shortest_steps, 1)
        _check_count("longest_steps (--max-iters)", longest_steps, 1)
        if shortest_steps > longest_steps:
            raise UsageError(
                f"shortest_steps (--min-iters): {shortest_steps}",
                f"is more than the longest profile allowed, {longest_steps} steps",
                "pass a smaller --min-iters or a larger --max-iters",
            )
        wanted = MIXED_STEPS_WANTED * self.longest_output_tokens / self.rank_concurrency
        max_iters = min(longest_steps, max(shortest_steps, self.steps_needed, round(wanted)))
        centred = WINDOW_GENERATION * self.mean_output_tokens - max_iters / 2
        delay_iters = max(round(centred), self.ramp_up_steps)
        notes = (*self._length_notes(wanted, max_iters), *self._delay_notes(centred, delay_iters))
        return ProfileWindow(delay_iters, max_iters, wanted, notes)

    def _length_notes(self, wanted: float, max_iters: int) -> Iterator[Note]:
        if max_iters != round(wanted):
            yield Note(
                "info",
                "max_iters_clamped",
                f"16 * OSL / CONC asks for {wanted:,.0f} steps to profile; limited to {max_iters:,}"
                " (--min-iters and --max-iters move the limits).",
            )
        if max_iters < self.steps_needed:
            yield Note(
                "warning",
                "profile_below_steps_needed",
                f"{max_iters:,} profiled steps are fewer than the {self.steps_needed:,} that one prefill takes on"
                " average: the profile may hold no prefill (raise --max-iters).",
            )

    def _delay_notes(self, centred: float, delay_iters: int) -> Iterator[Note]:
        if delay_iters > round(centred):
            yield Note(
                "info",
                "delay_raised_to_ramp_up",
                f"A profile around the fifth completion range would start at step {centred:,.0f}; delayed to step"
                f" {delay_iters:,}, the end of the ramp-up.",
            )

    # Expected mix, local

    def local_mix(self, first_step: int, end_step: int) -> LocalMix:
        """How many of the steps [first_step, end_step) of a run that began together should hold a prefill?

        Requests that start together finish together, so completions bunch: around step k * mean with variance
        k * ((1 - R) * OSL)^2 / 12 + CONC^2 / 12 (the output lengths, and the ramp-up's own spread). A step holds a
        prefill with probability 1 - exp(-completions expected in it). The prefills of the ramp-up itself are not
        counted, and the run is taken as endless. For one request at a time, all of equal length, the peak is narrower
        than a step and completions come out up to 39 % high.

        Raises:
            UsageError: the range is empty, or starts before step 0.
        """
        _check_count("first_step", first_step, 0)
        _check_count("end_step", end_step, 1)
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

    def _completions_in(self, steps: FloatArray) -> FloatArray:
        """Expected completions in each of the ascending ``steps``: sum over k of CONC * normal density."""
        first, last = self._generations_near(float(steps[0]))[0], self._generations_near(float(steps[-1]))[1]
        # Thousands of ranges overlap only where one is far wider than the next is away: every n-th then stands for n.
        stride = 1 + (last - first) // GENERATIONS_AT_MOST
        generation = np.arange(first, last + 1, stride) + (stride - 1) / 2
        variance = generation * self._length_variance + self._ramp_variance
        distance = steps[:, np.newaxis] - generation * self.mean_output_tokens
        density = np.exp(-0.5 * distance**2 / variance) / np.sqrt(2 * np.pi * variance)
        result: FloatArray = self.rank_concurrency * stride * density.sum(axis=1)
        return result

    def _generations_near(self, step: float) -> tuple[int, int]:
        """First and last k whose completions reach ``step``: the roots of (k * mean - step)^2 = reach^2 * variance."""
        mean, reach = self.mean_output_tokens, DENSITY_REACH**2
        half = mean * step + reach * self._length_variance / 2
        root = math.sqrt(max(0.0, half**2 - mean**2 * (step**2 - reach * self._ramp_variance)))
        return max(1, math.floor((half - root) / mean**2)), max(1, math.ceil((half + root) / mean**2))

    def _step_blocks(self, first_step: int, end_step: int) -> Iterator[FloatArray]:
        nearest, farthest = self._generations_near(first_step)[0], self._generations_near(end_step)[1]
        size = CELLS_AT_ONCE // min(farthest - nearest + 1, GENERATIONS_AT_MOST)
        for start in range(first_step, end_step, size):
            yield np.arange(start, min(start + size, end_step), dtype=np.float64)

    @property
    def _length_variance(self) -> float:
        return (self.longest_output_tokens - self.shortest_output_tokens) ** 2 / 12

    @property
    def _ramp_variance(self) -> float:
        return self.rank_concurrency**2 / 12

    # What to know about the figures

    @property
    def notes(self) -> tuple[Note, ...]:
        """What limits the figures: caps that bite, prompts in chunks, a bound by prefill, ranks and stages."""
        return (*self._mix_notes(), *self._prefill_notes(), *self._parallel_notes())

    def _mix_notes(self) -> Iterator[Note]:
        if self.completions_per_step > 1 + ROUNDING:
            yield Note(
                "warning",
                "mix_fraction_capped",
                f"{self.completions_per_step:.3g} requests finish a step (mean output {self.mean_output_tokens:,g}"
                f" tokens, CONC {self.rank_concurrency:g}): the mix fraction is capped at 1, and"
                " decode-only steps at 0.",
            )

    def _prefill_notes(self) -> Iterator[Note]:
        if self.is_prefill_bound:
            arriving = self.completions_per_step * (self.uncached_prompt_tokens or 0)
            yield Note(
                "warning",
                "prefill_bound",
                f"Bound by prefill: {arriving:,.0f} prompt tokens arrive a step and the budget leaves room for"
                f" {self.prefill_budget_tokens:,.0f}, so the engine never reaches CONC = {self.rank_concurrency:g}.",
            )
        if self.chunks_per_request is not None and self.chunks_per_request > 1:
            yield Note(
                "info",
                "prompt_is_chunked",
                f"A prompt is computed in {self.chunks_per_request:,} chunks: figures that take one step a prefill"
                " (all but the chunked one) are too low.",
            )

    def _parallel_notes(self) -> Iterator[Note]:
        if self.data_parallel > 1:
            yield Note(
                "info",
                "one_data_parallel_rank",
                f"Step figures are those of one of {self.data_parallel} data-parallel ranks, with CONC / DP ="
                f" {self.rank_concurrency:g} requests.",
            )
        if self.pipeline_stages > 1:
            yield Note(
                "info",
                "pipeline_micro_batches",
                f"Steps are counted as tokens of a request; a stage runs one forward a micro-batch of about"
                f" {self.requests_per_step:g} requests, so a profiler that counts forwards needs {self.pipeline_stages}"
                " times delay_iters and max_iters.",
            )


def _ceil(value: float) -> int:
    """The next whole number, ignoring the rounding error of ``value``."""
    return math.ceil(value * (1 - ROUNDING))


def _check_count(thing: str, value: object, smallest: int) -> None:
    if not isinstance(value, bool) and isinstance(value, Integral) and smallest <= int(value) <= LARGEST_COUNT:
        return
    reason = f"is not a whole number from {smallest} to {LARGEST_COUNT:,}"
    raise UsageError(f"{thing}: {value}", reason, "pass one in that range")


def _check_ratio(value: object, style: str) -> None:
    if style not in get_args(RangeRatioStyle):
        thing = f"range_ratio_style (--range-ratio-style): {style}"
        raise UsageError(thing, "is not a known style", "pass document or vllm")
    if not isinstance(value, bool) and isinstance(value, Real):
        ratio = float(value)
        if 0 <= ratio < 1 or (ratio == 1 and style == "document"):
            return
    if style == "vllm":
        reason = "is not in [0, 1)"
        action = "pass r of [OSL * (1 - r), OSL * (1 + r)]: 0 for outputs of equal length"
    else:
        reason = "is not in [0, 1]"
        action = "pass R of [R * OSL, OSL]: 1 for outputs of equal length"
    raise UsageError(f"length_ratio (--R): {value}", reason, action)
