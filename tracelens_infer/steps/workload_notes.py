"""What the figures of CONC, OSL and R have to tell: one function a note, so that each text stands in one place."""

from __future__ import annotations

from tracelens_infer.notes import Note

__all__ = [
    "completions_in_one_burst",
    "delay_raised_to_ramp_up",
    "local_mix_busy",
    "local_mix_far",
    "max_iters_clamped",
    "mix_fraction_capped",
    "number_text",
    "one_data_parallel_rank",
    "pipeline_micro_batches",
    "prefill_bound",
    "profile_below_steps_needed",
    "prompt_is_chunked",
]


def number_text(value: float) -> str:
    """A number for people: thousands apart, one decimal where it is not whole."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


def mix_fraction_capped(completions_per_step: float, mean_output_tokens: float, concurrency: float) -> Note:
    """Requests are so short that more than one finishes a step."""
    return Note(
        "warning",
        "mix_fraction_capped",
        f"{completions_per_step:.3g} requests finish a step (mean output {number_text(mean_output_tokens)}"
        f" tokens, CONC {number_text(concurrency)}): the mix fraction is capped at 1, and"
        " decode-only steps at 0.",
    )


def prefill_bound(arriving_tokens: float, budget_tokens: float, concurrency: float) -> Note:
    """More prompt tokens arrive than steps can take."""
    return Note(
        "warning",
        "prefill_bound",
        f"Bound by prefill: {arriving_tokens:,.0f} prompt tokens arrive a step and the budget leaves room for"
        f" {budget_tokens:,.0f}, so the engine never reaches CONC = {number_text(concurrency)}.",
    )


def prompt_is_chunked(chunks: int) -> Note:
    """A prefill takes more than one step."""
    return Note(
        "info",
        "prompt_is_chunked",
        f"A prompt is computed in {chunks:,} chunks: figures that take one step a prefill are too low, and requests end"
        " later than their outputs alone say.",
    )


def local_mix_busy(share: float, busiest: float) -> Note:
    """Prompts take so much of the steps that where they queue is chance."""
    return Note(
        "warning",
        "local_mix_withheld",
        f"Prompts take {100 * share:.0f} % of the room that steps leave for them. Above {100 * busiest:.0f} % chance"
        " decides where they queue: the share of profiled steps with a prefill is withheld (raise --chunk-size, or"
        " lower CONC).",
    )


def local_mix_far(end_step: int, last_step: int) -> Note:
    """The profile is too far from the start to follow the run up to it."""
    return Note(
        "warning",
        "local_mix_withheld",
        f"The profile ends at step {end_step:,}, and chunked prompts are followed up to step {last_step:,} only: the"
        " share of profiled steps with a prefill is withheld.",
    )


def one_data_parallel_rank(ranks: int, concurrency: float) -> Note:
    """Ranks share the requests."""
    return Note(
        "info",
        "one_data_parallel_rank",
        f"Step figures are those of one of {ranks} data-parallel ranks, with CONC / DP = {number_text(concurrency)}"
        " requests.",
    )


def pipeline_micro_batches(stages: int, requests: float) -> Note:
    """A step of the formulas is several forwards of a stage."""
    return Note(
        "info",
        "pipeline_micro_batches",
        "Steps are counted as tokens of a request; a stage runs one forward a micro-batch of about"
        f" {number_text(requests)} requests, so a profiler that counts forwards needs {stages}"
        " times delay_iters and max_iters.",
    )


def max_iters_clamped(wanted_steps: float, max_iters: int) -> Note:
    """A limit changed the length of the profile."""
    return Note(
        "info",
        "max_iters_clamped",
        f"16 * longest output / CONC asks for {wanted_steps:,.0f} steps to profile; limited to {max_iters:,}"
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


def completions_in_one_burst(first_step: float, last_step: float, max_iters: int) -> Note:
    """Outputs are so alike that the analytic window is shorter than a profile."""
    window = number_text(first_step)
    if last_step - first_step >= 1:
        window += f" to {number_text(last_step)}"
    return Note(
        "warning",
        "completions_in_one_burst",
        f"Outputs are of nearly equal length, so requests that start together finish together: the {max_iters:,}"
        f" profiled steps reach beyond the analytic window (step {window}) and hold one burst of prefills among plain"
        " decode steps, no typical mix. Run the benchmark with lengths that differ (such as R = 0.8), or let requests"
        " arrive one by one (a request rate) and judge the steps by the stationary mix.",
    )
