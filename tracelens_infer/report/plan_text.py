"""A plan as lines of text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens_infer.notes import Note
from tracelens_infer.steps.plan import Plan, ProfilerRecipe

__all__ = ["note_lines", "plan_lines"]

WRITING_STALLS = "Writing a trace stalls the engine, for minutes if it is long: take latency figures from another run."

Row = tuple[str, str, str]  # what, value with its unit, how it comes about


def plan_lines(plan: Plan) -> list[str]:
    """What does a plan say, for reading? The output lengths as understood, the figures, then the flags to copy."""
    sections = {
        "Run": list(_run_rows(plan)),
        "Steps with a prefill": list(_mix_rows(plan)),
        "When to profile": list(_profile_rows(plan)),
    }
    name_width = max(len(row[0]) for rows in sections.values() for row in rows)
    value_width = max(len(row[1]) for rows in sections.values() for row in rows)
    lines = [_range_line(plan)]
    for title, rows in sections.items():
        lines += ["", title]
        lines += [f"  {name:<{name_width}}  {value:>{value_width}}  {why}".rstrip() for name, value, why in rows]
    for recipe in plan.recipes:
        lines += ["", *_recipe_lines(recipe)]
    return [*lines, "", WRITING_STALLS]


def note_lines(notes: tuple[Note, ...]) -> list[str]:
    """What should the reader know? One line a note, its level first."""
    return [f"{note.level}: {note.text}" for note in notes]


def _range_line(plan: Plan) -> str:
    work = plan.workload
    lengths = f"{_number(work.shortest_output_tokens)} to {_number(work.longest_output_tokens)} tokens"
    style = f"range-ratio style: {work.range_ratio_style}"
    if work.range_ratio_style == "vllm":
        meaning = f"r = {work.length_ratio:g}, the document's R = {work.interpreted_ratio:.4g}"
    else:
        meaning = f"R = {work.length_ratio:g}"
    return f"Output lengths: {lengths} ({style}, {meaning})"


def _run_rows(plan: Plan) -> Iterator[Row]:
    work = plan.workload
    if work.data_parallel > 1:
        yield "concurrency of a rank", f"{_number(work.rank_concurrency)} requests", "CONC / DP"
    else:
        yield "concurrency", f"{work.concurrency:,} requests", "CONC"
    if work.pipeline_stages > 1:
        yield "requests in a micro-batch", f"{_number(work.requests_per_step)} requests", "about CONC / DP / PP"
    yield "prompts", f"{work.prompts:,} requests", "NUM_PROMPTS"
    yield "mean output", f"{_number(work.mean_output_tokens)} tokens", "OSL * (1 + R) / 2"
    yield "requests finished a step", f"{work.completions_per_step:.5f}", "lambda = CONC / mean output"
    yield "total steps", f"{_number(work.total_steps)} steps", "NUM_PROMPTS * mean / CONC; no ramp-up, no tail"
    yield "prefill-decode steps", f"{_number(work.prefill_decode_steps)} steps", "one a prompt, by the document"
    yield "decode-only steps", f"{_number(work.decode_only_steps)} steps", "NUM_PROMPTS * (mean - CONC) / CONC"
    yield "ramp-up", f"{work.ramp_up_steps:,} steps", "CONC"
    yield "steps needed", f"{work.steps_needed:,} steps", "to expect one prefill among them"
    if work.chunks_per_request is not None and work.prefill_budget_tokens is not None:
        yield "room for prefills", f"{_number(work.prefill_budget_tokens)} tokens", "a step: C - CONC"
        yield "chunks a prompt", f"{work.chunks_per_request:,}", "ceil((ISL - cached) / (C - CONC))"


def _mix_rows(plan: Plan) -> Iterator[Row]:
    work = plan.workload
    yield "by the document", _percent(work.mix_fraction_document), "lambda; right where each prefill has its own step"
    yield "batched", _percent(work.mix_fraction_batched), "1 - exp(-lambda): prefills that meet share a step"
    if work.mix_fraction_chunked is not None:
        yield "chunked", _percent(work.mix_fraction_chunked), "lambda * chunks"
    yield "exclusive", _percent(work.mix_fraction_exclusive), "CONC / (CONC + mean - 1): no step mixes, as SGLang does"
    yield "in the profile", _percent(plan.mix.fraction), "at that place in the run, where completions bunch"
    mixed = f"{plan.mix.prefill_decode_steps:.1f} of {plan.mix.steps:,} steps"
    yield "", mixed, f"{plan.mixed_steps_stationary:.1f} if prefills were spread evenly"


def _profile_rows(plan: Plan) -> Iterator[Row]:
    first, last = plan.workload.analytic_window_steps
    yield "analytic window", f"{_number(first)} to {_number(last)}", "steps 5 * R * OSL to 5 * OSL"
    yield "delay_iters", f"{plan.profile.delay_iters:,} steps", "(1 + R) / 2 * 5 * OSL - max_iters / 2"
    yield "max_iters", f"{plan.profile.max_iters:,} steps", "16 * OSL / CONC, within limits"
    yield "profiled", f"{plan.profile.first_step:,} to {plan.profile.end_step:,}", "steps, the last not included"


def _recipe_lines(recipe: ProfilerRecipe) -> Iterator[str]:
    yield recipe.engine
    for variable in recipe.environment:
        yield f"  export {variable}"
    if recipe.server_flags:
        yield "  add to the server's command line:"
        yield from (f"    {flag} \\" for flag in recipe.server_flags[:-1])
        yield f"    {recipe.server_flags[-1]}"
    yield from (f"  {command}" for command in recipe.commands)
    yield from (f"  # {remark}" for remark in recipe.remarks)


def _number(value: float) -> str:
    """Thousands apart, one decimal where it is not whole."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"
