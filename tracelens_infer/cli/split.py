"""``tracelens split``: the steady state, phases and steps of a trace as small traces and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracelens_infer.cli.options import (
    WORKLOAD_SECTIONS,
    SectionedCommand,
    common_options,
    json_option,
    max_bytes_option,
    workload_from,
    workload_options,
)
from tracelens_infer.cli.terminal import Terminal, pass_terminal
from tracelens_infer.cli.traces import GivenTraces

if TYPE_CHECKING:
    from tracelens_infer.trace.reader import Progress

__all__ = ["split_command"]

MOST = 10**9  # of anything counted here; far beyond any trace, and it fits every number format

_SECTIONS = {
    "Where to": ("output", "force", "as_json"),
    "What to write": (
        "steady_state",
        "num_steps",
        "iterations",
        "single_iterations",
        "divide_phases",
        "gap_fill",
        "trace_starts_at",
        "allow_degraded",
    ),
    "Traces without labels": ("llm_inference", "max_num_seq"),
    **WORKLOAD_SECTIONS,
}


@click.command(
    "split", cls=SectionedCommand, sections=_SECTIONS, short_help="Cut a trace into its steady state, phases or steps."
)
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option(
    "--find-steady-state", "steady_state", is_flag=True, help="The steady state, beside what else is asked for."
)
@click.option(
    "--num-steps", type=click.IntRange(1, MOST), metavar="N", help="Steps in a steady-state window.  [default: 32]"
)
@click.option("-i", "--iterations", metavar="A:B", help="Steps A to B-1 as one trace. N is one step, all is all.")
@click.option(
    "--store-single-iteration",
    "single_iterations",
    is_flag=True,
    help="Each step as a trace of its own; of those that -i names, if given.",
)
@click.option("--divide-phases", is_flag=True, help="Each step in the folder of its phase.")
@click.option(
    "--gap-fill/--no-gap-fill",
    default=True,
    help="What lies between two labelled spans belongs to the first.  [default: yes]",
)
@click.option(
    "--trace-starts-at",
    type=click.IntRange(0, MOST),
    metavar="STEP",
    help="Step of the run with which the trace begins.",
)
@click.option("--allow-degraded", is_flag=True, help="Accept steps that explain only 75 to 95 % of the device's time.")
@click.option("--llm-inference", is_flag=True, help="It is an LLM that runs, though no engine is seen in the trace.")
@click.option(
    "--max-num-seq",
    type=click.IntRange(1, MOST),
    metavar="N",
    help="Most requests that run at once: more tokens prefill.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder to make.  [default: the trace's name + _split]",
)
@click.option("--force", is_flag=True, help="Replace the output of an earlier run.")
@workload_options(required=False)
@max_bytes_option
@json_option
@common_options
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
    from tracelens_infer.report.info import rank_notes
    from tracelens_infer.report.split import split_trace
    from tracelens_infer.report.split_plan import SplitOptions
    from tracelens_infer.report.split_text import split_lines

    workload = workload_from(options)
    if max_bytes is not None:
        options["max_bytes"] = max_bytes
    wanted = SplitOptions(workload=workload, **options)
    given = GivenTraces(terminal, traces, max_bytes)
    folders = dict(zip(given.files, _folders(given.files, output, are_several=given.are_several), strict=True))
    written: list[dict[str, Any]] = []

    def split(path: Path, file: Path, name: str, progress: Progress | None) -> None:
        result = split_trace(file, folders[path], wanted, name=name, force=force, progress=progress)
        terminal.notes(result.notes, about=name if given.are_several else "")
        written.append({"folder": click.format_filename(result.folder), **result.manifest})
        if not as_json:
            terminal.lines(split_lines(result))

    given.each(split)
    if as_json:
        terminal.data(written if given.are_several else written[0])
    terminal.notes(rank_notes(written))
    given.end()


def _folders(files: Sequence[Path], output: Path | None, *, are_several: bool) -> list[Path]:
    """An output folder for each trace, below ``output`` where there are several.

    It is called after the trace; where that makes equal names, after the folders around it, too.
    """
    from tracelens_infer.trace.source import trace_stem

    if output is not None and not are_several:
        return [output]
    places = [path.absolute().parts for path in files]
    names = [trace_stem(path) for path in files]
    for depth in range(2, max(map(len, places), default=0)):
        if len(set(names)) == len(files):
            break
        names = ["_".join(place[1:][-depth:]) for place in places]
    return [Path(f"{name}_split") if output is None else output / name for name in names]
