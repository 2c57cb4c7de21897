"""``tracelens info``: what is in a trace, on one screen."""

from __future__ import annotations

from typing import Any

import click

from tracelens_infer.cli.options import common_options, json_option, max_bytes_option
from tracelens_infer.cli.terminal import Terminal, pass_terminal
from tracelens_infer.errors import TracelensError

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
    from tracelens_infer.trace.source import DEFAULT_MAX_BYTES, find_traces, local_file

    found: list[dict[str, Any]] = []
    first_error: TracelensError | None = None
    files = list(dict.fromkeys(path for name in traces for path in find_traces(name)))
    for path in files:
        name = click.format_filename(path)
        try:
            with local_file(path) as file, terminal.reading(name) as progress:
                info = describe_trace(file, name=name, max_bytes=max_bytes or DEFAULT_MAX_BYTES, progress=progress)
        except TracelensError as error:
            if len(files) == 1:
                raise
            terminal.error(error)
            first_error = first_error or error
            continue
        found.append(info)
        if not as_json:
            terminal.lines(info_lines(info))
    if as_json:
        terminal.data(found if len(files) > 1 else found[0])
    terminal.notes(rank_notes(found))
    if first_error is not None:
        raise click.exceptions.Exit(first_error.exit_code)
