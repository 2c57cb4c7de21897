"""``tracelens split``: the steady state, phases and steps of a trace as small traces and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tracelens_infer.cli.options import json_option, max_bytes_option, workload_from, workload_options
from tracelens_infer.cli.terminal import Terminal, pass_terminal

__all__ = ["split_command"]


@click.command("split")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@workload_options(required=False)
@click.option("--num-steps", type=click.IntRange(min=1), help="Steps in a steady-state window.  [default: 32]")
@click.option(
    "--trace-starts-at", type=click.IntRange(min=0), metavar="STEP", help="Step of the run the trace begins with."
)
@click.option(
    "--find-steady-state", "steady_state", is_flag=True, help="Write the steady state beside what else is asked for."
)
@click.option("-i", "--iterations", metavar="A:B", help="Write steps A to B-1 as one trace (or N, or all).")
@click.option(
    "--store-single-iteration", "single_iterations", is_flag=True, help="Write each step as a trace of its own."
)
@click.option("--divide-phases", is_flag=True, help="Write each step into the folder of its phase.")
@click.option(
    "--gap-fill/--no-gap-fill", default=True, help="Count what lies between two steps to the first.  [default: on]"
)
@click.option("--allow-degraded", is_flag=True, help="Accept steps that explain only 75 to 95 % of the device's time.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Output folder.  [default: TRACE's name + _split]"
)
@click.option("--force", is_flag=True, help="Replace the output of an earlier run.")
@max_bytes_option
@json_option
@pass_terminal
def split_command(
    terminal: Terminal,
    /,
    traces: tuple[str, ...],
    output: Path | None,
    force: bool,
    as_json: bool,
    max_bytes: int | None,
    **options: Any,  # noqa: ANN401 - the fields of Workload and of SplitOptions
) -> None:
    """Cut a serving trace into its steady state, its phases or its steps.

    With no other choice, the steady state: a window with the everyday mix of steps, one of decode-only steps, one of
    steps with a prefill. CONC, OSL and R of the benchmark guide the choice. TRACE is a file (.json, .gz, .zip, .zst,
    told by content), a glob, a directory of rank files, or - for stdin.
    """
    from tracelens_infer.report.split import split_trace
    from tracelens_infer.report.split_plan import SplitOptions
    from tracelens_infer.report.split_text import split_lines
    from tracelens_infer.trace.source import find_traces, local_file, trace_stem

    workload = workload_from(options)
    if max_bytes is not None:
        options["max_bytes"] = max_bytes
    wanted = SplitOptions(workload=workload, **options)
    files = [path for name in traces for path in find_traces(name)]
    manifests = []
    for path in files:
        folder = output or Path(f"{trace_stem(path)}_split")
        if len(files) > 1 and output is not None:
            folder = output / trace_stem(path)
        with local_file(path) as file, terminal.reading(str(path)) as progress:
            result = split_trace(file, folder, wanted, name=str(path), force=force, progress=progress)
        terminal.notes(result.notes)
        manifests.append(result.manifest)
        if not as_json:
            terminal.lines(split_lines(result))
    if as_json:
        terminal.data(manifests if len(files) > 1 else manifests[0])
