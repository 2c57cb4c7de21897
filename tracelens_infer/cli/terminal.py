"""The only module that prints. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from tracelens_infer.errors import TracelensError
from tracelens_infer.notes import Note

__all__ = ["Terminal", "pass_terminal"]

_LEVEL_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
_SHOWN_FROM = {"quiet": {"error"}, "normal": {"error", "warning"}, "verbose": {"error", "warning", "info"}}
_QUIET_SECONDS = 1.0  # a progress line that flashes by is noise
_REFRESH_SECONDS = 0.2


class Terminal:
    """Where a command's words go, and how many of them the user wants."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self._colour: bool | None = False if os.environ.get("NO_COLOR") else None

    def data(self, value: dict[str, Any] | list[Any]) -> None:
        """Print a result as JSON on stdout."""
        import orjson

        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

    def lines(self, lines: Iterable[str]) -> None:
        """Print a result for people on stdout. A line that is not indented is a heading."""
        for line in lines:
            heading = bool(line) and not line.startswith(" ")
            shown = _printable(line)
            click.echo(click.style(shown, bold=True) if heading else shown, color=self._colour)

    def notes(self, notes: Iterable[Note], *, informative: bool = False, about: str = "") -> None:
        """Show notes on stderr: warnings as a rule, informative ones with --verbose, errors even when quiet.

        ``about`` names the trace where there are several.
        """
        from tracelens_infer.report.wording import note_text

        shown = _SHOWN_FROM["quiet" if self.quiet else "verbose" if self.verbose or informative else "normal"]
        for note in notes:
            if note.level in shown:
                level = click.style(f"{note.level}:", fg=_LEVEL_COLOURS[note.level])
                text = _printable(note_text(note.text, note.count, note.first_offset_bytes))
                click.echo(f"{level} {about and f'{about}: '}{text}", err=True, color=self._colour)

    def error(self, error: TracelensError) -> None:
        """Show what went wrong: the thing, the reason, the next action, a line each."""
        lines = [_printable(" ".join(part.split())) for part in (error.thing, error.reason, error.action)]
        click.echo(f"{click.style('error:', fg='red')} {lines[0]}", err=True, color=self._colour)
        for line in lines[1:]:
            click.echo(f"  {line}", err=True, color=self._colour)

    @contextmanager
    def reading(self, name: str) -> Iterator[Callable[[int], None] | None]:
        """A callback for the bytes read so far; shows them on a terminal once a second has passed."""
        if self.quiet or sys.stderr is None or not sys.stderr.isatty():
            yield None
            return
        begun = last = time.monotonic()
        shown = False

        def progress(total_bytes: int) -> None:
            nonlocal last, shown
            now = time.monotonic()
            if now - begun > _QUIET_SECONDS and now - last > _REFRESH_SECONDS:
                click.echo(f"\r\x1b[Kreading {name}: {total_bytes / 1e6:,.0f} MB", err=True, nl=False)
                last, shown = now, True

        try:
            yield progress
        finally:
            if shown:
                click.echo("\r\x1b[K", err=True, nl=False)


def _printable(text: str) -> str:
    """What a trace or a file name brings along must not steer the terminal."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


pass_terminal = click.make_pass_decorator(Terminal, ensure=True)
