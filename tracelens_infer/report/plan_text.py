"""A plan as lines of text for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from tracelens_infer.report.wording import LINE_WIDTH, folded, together
from tracelens_infer.steps.plan import COMPLETION_RANGES, Plan, ProfilerRecipe
from tracelens_infer.steps.profiler_recipes import newest_recipes
from tracelens_infer.steps.workload import Workload
from tracelens_infer.steps.workload_notes import number_text

__all__ = ["plan_lines", "range_lines"]

WRITING_STALLS = "Writing a trace stalls the engine, for minutes if it is long: take latency figures from another run."
OTHER_RECIPES = "Other versions and modes: --engine vllm, --engine sglang or --engine all."

_BETWEEN_OPTIONS = re.compile(r" (?=-[Hd] )")  # where a curl command may be broken

Row = tuple[str, str, str]  # what, value with its unit, how it comes about


def plan_lines(plan: Plan, engine: str | None = None) -> list[str]:
    """What does a plan say, for reading? The output lengths as understood, the figures, then the flags to copy.

    ``engine`` chooses the flags: ``vllm``, ``sglang``, ``all``, or None for each engine's newest version only. No line
    is longer than 80 characters, unless a word in it is.
    """
    sections = {
        "Run": list(_run_rows(plan)),
        "Steps with a prefill": list(_mix_rows(plan)),
        "When to profile": list(_profile_rows(plan)),
    }
    name_width = max(len(row[0]) for rows in sections.values() for row in rows)
    value_width = max(len(row[1]) for rows in sections.values() for row in rows)
    lines = range_lines(plan.workload)
    for title, rows in sections.items():
        lines += ["", title]
        for name, value, why in rows:
            lines += folded(why, f"  {name:<{name_width}}  {value:>{value_width}}  ")
    lines += ["", *_completion_lines(plan)]
    for recipe in _chosen(plan, engine):
        lines += ["", *_recipe_lines(recipe)]
    if engine is None:
        lines += ["", OTHER_RECIPES]
    return [*lines, "", *textwrap.wrap(WRITING_STALLS, LINE_WIDTH)]


def _chosen(plan: Plan, engine: str | None) -> Sequence[ProfilerRecipe]:
    if engine is None:
        return newest_recipes(plan.recipes)
    return [recipe for recipe in plan.recipes if engine in ("all", recipe.family)]


def range_lines(work: Workload) -> list[str]:
    """Which output lengths do CONC, OSL and R mean, as they were understood?"""
    lengths = f"{number_text(work.shortest_output_tokens)} to {number_text(work.longest_output_tokens)} tokens"
    meaning = f"{work.range_ratio_style} style, R = {work.length_ratio:g}"
    if work.range_ratio_style == "vllm":
        meaning += f"; in document style {together(f'R = {work.interpreted_ratio:.4g}')}"
    return folded(f"{lengths} ({meaning})", "Output lengths: ")


def _conc(work: Workload) -> str:
    return "CONC" if work.data_parallel == 1 else "(CONC / DP)"


def _run_rows(plan: Plan) -> Iterator[Row]:
    work, conc = plan.workload, _conc(plan.workload)
    if work.data_parallel > 1:
        yield "CONC of a rank", f"{number_text(work.rank_concurrency)} requests", "CONC / DP"
    else:
        yield "concurrency", f"{work.concurrency:,} requests", "CONC"
    if work.pipeline_stages > 1:
        yield "in a micro-batch", f"{number_text(work.requests_per_step)} requests", f"about {conc} / PP"
    yield "prompts", f"{work.prompts:,} requests", "NUM_PROMPTS"
    mean = "OSL, the middle of the lengths" if work.range_ratio_style == "vllm" else "OSL * (1 + R) / 2"
    yield "mean output", f"{number_text(work.mean_output_tokens)} tokens", mean
    yield "finished a step", f"{work.completions_per_step:.5f} requests", f"lambda = {conc} / mean output"
    yield "total steps", f"{number_text(work.total_steps)} steps", "NUM_PROMPTS * mean / CONC; no ramp-up, no tail"
    yield "prefill-decode steps", f"{number_text(work.prefill_decode_steps)} steps", "one a prompt"
    yield "decode-only steps", f"{number_text(work.decode_only_steps)} steps", f"NUM_PROMPTS * (mean - {conc}) / CONC"
    yield "ramp-up", f"{work.ramp_up_steps:,} steps", conc.strip("()")
    yield "steps needed", f"{work.steps_needed:,} steps", "to expect one prefill among them"
    if work.chunks_per_request is not None and work.prefill_budget_tokens is not None:
        yield "room for prefills", f"{number_text(work.prefill_budget_tokens)} tokens", f"a step: C - {conc}"
        yield "chunks a prompt", f"{work.chunks_per_request:,}", f"ceil((ISL - cached) / (C - {conc}))"


def _mix_rows(plan: Plan) -> Iterator[Row]:
    work, conc = plan.workload, _conc(plan.workload)
    yield "each its own step", _percent(work.mix_fraction_document), "lambda: no two prefills share a step"
    yield "batched", _percent(work.mix_fraction_batched), "1 - exp(-lambda): prefills that meet share a step"
    if work.mix_fraction_chunked is not None:
        yield "chunked", _percent(work.mix_fraction_chunked), "lambda * chunks"
    exclusive = f"{conc} / ({conc} + mean - 1): no step mixes, as SGLang does"
    yield "exclusive", _percent(work.mix_fraction_exclusive), exclusive
    if plan.mix is None:
        yield "in the profile", "withheld", "chunks queue: see the warning"
        return
    where = "at that place in the run, where completions bunch"
    yield "in the profile", _percent(plan.mix.fraction), f"{where} and chunks queue" if work.is_chunked else where
    mixed = f"{plan.mix.prefill_decode_steps:.1f} of {plan.mix.steps:,} steps"
    yield "", mixed, f"{plan.mixed_steps_stationary:.1f} if prefills were spread evenly"


def _profile_rows(plan: Plan) -> Iterator[Row]:
    work = plan.workload
    longest = "OSL * (1 + R)" if work.range_ratio_style == "vllm" else "OSL"
    first, last = plan.completion_ranges[-1]
    yield "analytic window", _span(first, last, " to "), "steps {} to {}".format(*_range_formula(work, "5"))
    yield "delay_iters", f"{plan.profile.delay_iters:,} steps", "5 * mean - max_iters / 2"
    yield "max_iters", f"{plan.profile.max_iters:,} steps", f"16 * {longest} / {_conc(work)}, within limits"
    yield "profiled", f"{plan.profile.first_step:,} to {plan.profile.end_step:,}", "steps, the last not included"


def _range_formula(work: Workload, k: str) -> tuple[str, str]:
    """The ends of the k-th completion range, in the style that the ratio was given in."""
    if work.range_ratio_style == "vllm":
        return f"{k} * OSL * (1 - R)", f"{k} * OSL * (1 + R)"
    return f"{k} * R * OSL", f"{k} * OSL"


def _completion_lines(plan: Plan) -> Iterator[str]:
    first, last = _range_formula(plan.workload, "k")
    yield f"Steps in which requests end: {first} to {last}, k = 1 to {COMPLETION_RANGES}"
    yield from folded(", ".join(_span(*steps, "-") for steps in plan.completion_ranges), "  ")


def _span(first: int, last: int, between: str) -> str:
    return f"{first:,}" if first == last else f"{first:,}{between}{last:,}"


def _recipe_lines(recipe: ProfilerRecipe) -> Iterator[str]:
    yield recipe.engine
    for variable in recipe.environment:
        yield f"  export {variable}"
    if recipe.server_flags:
        yield "  add to the server's command line:"
        yield from (f"    {flag} \\" for flag in recipe.server_flags[:-1])
        yield f"    {recipe.server_flags[-1]}"
    for command in recipe.commands:
        yield from _command_lines(command, "  ")
    for remark in recipe.remarks:
        if remark.startswith("curl "):
            yield from _command_lines(remark, "  # ")
        else:
            yield from textwrap.wrap(remark, LINE_WIDTH, initial_indent="  # ", subsequent_indent="  # ")


def _command_lines(command: str, indent: str) -> Iterator[str]:
    """A command to copy, broken before its options where it is too long for one line."""
    if len(indent + command) <= LINE_WIDTH:
        yield indent + command
        return
    first, *rest = _BETWEEN_OPTIONS.split(command)
    parts = [indent + first, *(f"{indent}  {part}" for part in rest)]
    yield from (f"{part} \\" for part in parts[:-1])
    yield parts[-1]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"
