"""``tracelens plan``: when to profile a benchmark, for how long, and the flags for each engine."""

from __future__ import annotations

from typing import get_args

import click

from tracelens_infer.cli.options import (
    WORKLOAD_SECTIONS,
    SectionedCommand,
    WorkloadOption,
    common_options,
    json_option,
    workload_from,
    workload_options,
)
from tracelens_infer.cli.terminal import Terminal, pass_terminal

__all__ = ["plan_command"]


_SECTIONS = {**WORKLOAD_SECTIONS, "The profile": ("min_iters", "max_iters", "engine")}


@click.command("plan", cls=SectionedCommand, sections=_SECTIONS)
@workload_options(required=True)
@click.option("--min-iters", type=int, default=32, show_default=True, metavar="STEPS", help="Shortest profile.")
@click.option("--max-iters", type=int, default=512, show_default=True, metavar="STEPS", help="Longest profile.")
@click.option(
    "--engine",
    type=click.Choice(["vllm", "sglang", "all"]),
    metavar="NAME",
    help="Flags for all versions and modes of vllm, sglang or all.  [default: the newest of each]",
)
@json_option
@common_options
@pass_terminal
def plan_command(
    terminal: Terminal, /, min_iters: int, max_iters: int, engine: str | None, as_json: bool, **options: WorkloadOption
) -> None:
    """Say when to profile a benchmark and for how long.

    CONC, OSL and R are those of the benchmark. The steady state of such a run is known beforehand: the plan names
    the steps to profile, what they will hold, and the flags for vLLM and SGLang.
    """
    from tracelens_infer.report.plan_text import plan_lines
    from tracelens_infer.steps.plan import make_plan
    from tracelens_infer.steps.profiler_recipes import Engine

    plan = make_plan(workload_from(options), min_iters, max_iters)
    terminal.notes(plan.notes, informative=True)
    if as_json:
        data = plan.to_dict()
        if engine in get_args(Engine):
            data["profilers"] = [recipe for recipe in data["profilers"] if recipe["family"] == engine]
        terminal.data(data)
    else:
        terminal.lines(plan_lines(plan, engine))
