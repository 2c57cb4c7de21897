"""``tracelens info``: what is in a trace, on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracelens_infer.cli.options import common_options, json_option, max_bytes_option
from tracelens_infer.cli.terminal import Terminal, pass_terminal
from tracelens_infer.cli.traces import GivenTraces

if TYPE_CHECKING:
    from tracelens_infer.trace.reader import Progress

__all__ = ["info_command"]


@click.command("info", short_help="Say what is in a trace, and what is missing or damaged.")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@max_bytes_option
@json_option
@common_options
@pass_terminal
def info_command(terminal: Terminal, /, traces: tuple[str, ...], max_bytes: int | None, as_json: bool) -> None:
    """Say what is in a trace: engine, rank, devices, steps, what is missing, what is damaged.

    TRACE is a file (.json, .gz, .zip, .zst, told by content), a glob, a directory of rank files, or - for stdin.
    """
    from tracelens_infer.report.info import describe_trace, rank_notes
    from tracelens_infer.report.info_text import info_lines
    from tracelens_infer.trace.source import DEFAULT_MAX_BYTES

    found: list[dict[str, Any]] = []

    def describe(_: Path, file: Path, name: str, progress: Progress | None) -> None:
        found.append(describe_trace(file, name=name, max_bytes=max_bytes or DEFAULT_MAX_BYTES, progress=progress))
        if not as_json:
            terminal.lines(info_lines(found[-1]))

    given = GivenTraces(terminal, traces, max_bytes)
    given.each(describe)
    if as_json:
        terminal.data(found if given.are_several else found[0])
    terminal.notes(rank_notes(found))
    given.end()
