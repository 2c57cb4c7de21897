"""What the figures of CONC, OSL and R have to tell: one function a note, so that each text stands in one place."""

from __future__ import annotations

from tracelens_infer.notes import Note

__all__ = [
    "delay_raised_to_ramp_up",
    "max_iters_clamped",
    "mix_fraction_capped",
    "one_data_parallel_rank",
    "pipeline_micro_batches",
    "prefill_bound",
    "profile_below_steps_needed",
    "prompt_is_chunked",
]


def mix_fraction_capped(completions_per_step: float, mean_output_tokens: float, concurrency: float) -> Note:
    """Requests are so short that more than one finishes a step."""
    return Note(
        "warning",
        "mix_fraction_capped",
        f"{completions_per_step:.3g} requests finish a step (mean output {mean_output_tokens:,g}"
        f" tokens, CONC {concurrency:g}): the mix fraction is capped at 1, and"
        " decode-only steps at 0.",
    )


def prefill_bound(arriving_tokens: float, budget_tokens: float, concurrency: float) -> Note:
    """More prompt tokens arrive than steps can take."""
    return Note(
        "warning",
        "prefill_bound",
        f"Bound by prefill: {arriving_tokens:,.0f} prompt tokens arrive a step and the budget leaves room for"
        f" {budget_tokens:,.0f}, so the engine never reaches CONC = {concurrency:g}.",
    )


def prompt_is_chunked(chunks: int) -> Note:
    """A prefill takes more than one step."""
    return Note(
        "info",
        "prompt_is_chunked",
        f"A prompt is computed in {chunks:,} chunks: figures that take one step a prefill"
        " (all but the chunked one) are too low.",
    )


def one_data_parallel_rank(ranks: int, concurrency: float) -> Note:
    """Ranks share the requests."""
    return Note(
        "info",
        "one_data_parallel_rank",
        f"Step figures are those of one of {ranks} data-parallel ranks, with CONC / DP = {concurrency:g} requests.",
    )


def pipeline_micro_batches(stages: int, requests: float) -> Note:
    """A step of the formulas is several forwards of a stage."""
    return Note(
        "info",
        "pipeline_micro_batches",
        "Steps are counted as tokens of a request; a stage runs one forward a micro-batch of about"
        f" {requests:g} requests, so a profiler that counts forwards needs {stages}"
        " times delay_iters and max_iters.",
    )


def max_iters_clamped(wanted_steps: float, max_iters: int) -> Note:
    """A limit changed the length of the profile."""
    return Note(
        "info",
        "max_iters_clamped",
        f"16 * OSL / CONC asks for {wanted_steps:,.0f} steps to profile; limited to {max_iters:,}"
        " (--min-iters and --max-iters move the limits).",
    )


def profile_below_steps_needed(max_iters: int, steps_needed: int) -> Note:
    """The longest profile allowed is too short for a prefill."""
    return Note(
        "warning",
        "profile_below_steps_needed",
        f"{max_iters:,} profiled steps are fewer than the {steps_needed:,} that one prefill takes on"
        " average: the profile may hold no prefill (raise --max-iters).",
    )


def delay_raised_to_ramp_up(centred_start: float, delay_iters: int) -> Note:
    """The profile would begin before the run is at its concurrency."""
    return Note(
        "info",
        "delay_raised_to_ramp_up",
        f"A profile around the fifth completion range would start at step {centred_start:,.0f}; delayed to step"
        f" {delay_iters:,}, the end of the ramp-up.",
    )
