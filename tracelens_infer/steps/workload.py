"""Workload: what a benchmark's CONC, OSL and R say about its steps, in closed form.

Every formula is written out with a worked example in docs/formulas.md, "Workload and the expected mix".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tracelens_infer.errors import UsageError
from tracelens_infer.notes import Note
from tracelens_infer.steps import workload_notes
from tracelens_infer.steps.local_mix import BUSIEST_SHARE, LAST_STEP, ChunkedRun, CompletionWaves, LocalMix
from tracelens_infer.steps.profile_window import (
    LONGEST_PROFILE_STEPS,
    SHORTEST_PROFILE_STEPS,
    ProfileWindow,
    place_profile,
)
from tracelens_infer.steps.whole_numbers import ROUNDING, check_count, round_up
from tracelens_infer.steps.workload_checks import COUNTS, RangeRatioStyle, check_counts, check_ratio
from tracelens_infer.steps.workload_notes import number_text

__all__ = ["RangeRatioStyle", "Workload"]

PROMPTS_PER_SLOT = 10  # what benchmarks run by habit: NUM_PROMPTS = 10 * CONC
WINDOW_WAVE = 5  # the completion range to profile: far from ramp-up, and as far from the tail of ten
MIXED_STEPS_WANTED = 16  # prefill-decode steps a profile should hold, were they spread evenly


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
        check_counts({name: getattr(self, name) for name in COUNTS})
        check_ratio(self.length_ratio, self.range_ratio_style)
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
            reason = f"leaves no token for a prefill beside {number_text(self.rank_concurrency)} decodes"
            action = f"pass a budget above {number_text(self.rank_concurrency)} tokens, or a smaller CONC"
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
        """How many steps of the run hold a prefill, each in a step of its own? One a request: NUM_PROMPTS."""
        return self.rank_prompts

    @property
    def decode_only_steps(self) -> float:
        """How many steps hold decodes only then? max(0, NUM_PROMPTS * (mean output - CONC) / CONC)."""
        return max(0.0, self.prompts * (self.mean_output_tokens - self.rank_concurrency) / self.concurrency)

    @property
    def steps_needed(self) -> int:
        """How many steps must a window have to expect one prefill in it? ceil(1 / mix fraction)."""
        return round_up(1 / self.mix_fraction_document)

    @property
    def ramp_up_steps(self) -> int:
        """How many steps at the start are ramp-up? CONC, as if every request needed a prefill step of its own."""
        return round_up(self.rank_concurrency)

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
        return round_up(self.uncached_prompt_tokens / self.prefill_budget_tokens)

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
        check_count("generation", generation, 1)
        return generation * self.shortest_output_tokens, generation * self.longest_output_tokens

    @property
    def analytic_window_steps(self) -> tuple[float, float]:
        """Between which steps does profiling pay most? The fifth completion range, [5 * R * OSL, 5 * OSL]."""
        return self.completion_range_steps(WINDOW_WAVE)

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
        return place_profile(
            wanted_steps=MIXED_STEPS_WANTED * self.longest_output_tokens / self.rank_concurrency,
            centre_step=WINDOW_WAVE * self.mean_output_tokens,
            steps_needed=self.steps_needed,
            ramp_up_steps=self.ramp_up_steps,
            window_steps=self.analytic_window_steps,
            shortest_steps=shortest_steps,
            longest_steps=longest_steps,
        )

    # Expected mix, local

    def local_mix(self, first_step: int, end_step: int) -> LocalMix:
        """How many of the steps [first_step, end_step) of a run that began together should hold a prefill?

        Requests that start together finish together, so completions bunch: around step k * mean with variance
        k * ((1 - R) * OSL)^2 / 12 + CONC^2 / 12 (the output lengths, and the ramp-up's own spread). The prefills of
        the ramp-up itself are not counted, and the run is taken as endless. For one request at a time, all of equal
        length, the peak is narrower than a step and completions come out up to 39 % high.

        Raises:
            UsageError: the range is empty, or starts before step 0.
        """
        waves = CompletionWaves(
            requests=self.rank_concurrency,
            mean_tokens=self.mean_output_tokens,
            length_variance=(self.longest_output_tokens - self.shortest_output_tokens) ** 2 / 12,
            ramp_variance=self.rank_concurrency**2 / 12,
        )
        return waves.local_mix(first_step, end_step)

    @property
    def is_chunked(self) -> bool:
        """Does a prompt take more than one step, as far as is known?"""
        return (self.chunks_per_request or 1) > 1

    def local_mix_chunked(self, first_step: int, end_step: int) -> LocalMix | None:
        """How many of these steps should hold a prefill where prompts take several steps each, and queue for them?

        The same as ``local_mix`` where a prompt takes one step, or ISL or the chunk size is unknown. None where it
        cannot be said, because prompts take nearly all of the room or the steps are too far from the start:
        ``why_no_local_mix`` tells which.

        Raises:
            UsageError: the range is empty, or starts before step 0.
        """
        run = self._chunked_run
        return self.local_mix(first_step, end_step) if run is None else run.local_mix(first_step, end_step)

    def why_no_local_mix(self, first_step: int, end_step: int) -> Note | None:
        """Why does ``local_mix_chunked`` not say anything about these steps? None where it does."""
        run = self._chunked_run
        if run is None or run.local_mix(first_step, end_step) is not None:
            return None
        if run.busy_share > BUSIEST_SHARE:
            return workload_notes.local_mix_busy(run.busy_share, BUSIEST_SHARE)
        return workload_notes.local_mix_far(end_step, LAST_STEP)

    @property
    def _chunked_run(self) -> ChunkedRun | None:
        if self.uncached_prompt_tokens is None or self.chunk_size is None or not self.is_chunked:
            return None
        return ChunkedRun(
            requests=self.rank_concurrency,
            shortest_steps=max(1, round(self.shortest_output_tokens)),
            longest_steps=max(1, round(self.longest_output_tokens)),
            prompt_tokens=self.uncached_prompt_tokens,
            budget_tokens=self.chunk_size,
        )

    # What to know about the figures

    @property
    def notes(self) -> tuple[Note, ...]:
        """What limits the figures: caps that bite, prompts in chunks, a bound by prefill, ranks and stages."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[Note]:
        concurrency = self.rank_concurrency
        if self.completions_per_step > 1 + ROUNDING:
            yield workload_notes.mix_fraction_capped(self.completions_per_step, self.mean_output_tokens, concurrency)
        if self.is_prefill_bound:
            arriving = self.completions_per_step * (self.uncached_prompt_tokens or 0)
            yield workload_notes.prefill_bound(arriving, self.prefill_budget_tokens or 0, concurrency)
        if self.chunks_per_request is not None and self.chunks_per_request > 1:
            yield workload_notes.prompt_is_chunked(self.chunks_per_request)
        if self.data_parallel > 1:
            yield workload_notes.one_data_parallel_rank(self.data_parallel, concurrency)
        if self.pipeline_stages > 1:
            yield workload_notes.pipeline_micro_batches(self.pipeline_stages, self.requests_per_step)
