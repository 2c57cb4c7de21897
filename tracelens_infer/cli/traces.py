"""The traces a command is given: what goes wrong with one of several does not keep it from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracelens_infer.cli.terminal import Terminal
from tracelens_infer.errors import TracelensError

if TYPE_CHECKING:
    from tracelens_infer.trace.reader import Progress

__all__ = ["GivenTraces"]


class GivenTraces:
    """The files that names, globs, directories and ``-`` stand for, each once."""

    def __init__(self, terminal: Terminal, names: Sequence[str], max_bytes: int | None) -> None:
        from tracelens_infer.trace.source import DEFAULT_MAX_BYTES, find_traces

        self._terminal = terminal
        self._max_bytes = max_bytes or DEFAULT_MAX_BYTES
        self._exit_code = 0
        self._alone = len(names) == 1
        found: dict[Path, None] = {}
        for name in names:
            self._try(lambda name=name: found.update(dict.fromkeys(find_traces(name))))  # type: ignore[misc]
        self.files = list(found)
        self._alone = len(self.files) == 1 and not self._exit_code

    @property
    def are_several(self) -> bool:
        """Was more than one trace asked for?"""
        return not self._alone

    def each(self, use: Callable[[Path, Path, str, Progress | None], None]) -> None:
        """Call ``use`` with each path, a file that holds it, the name to show, and a callback for progress.

        Raises TracelensError where there is only one trace; of several the error is shown and the next one is used.
        """
        for path in self.files:
            self._try(lambda path=path: self._use(path, use))  # type: ignore[misc]

    def end(self) -> None:
        """End the command with the exit code of the first error, if there was any."""
        if self._exit_code:
            raise click.exceptions.Exit(self._exit_code)

    def _use(self, path: Path, use: Callable[[Path, Path, str, Progress | None], None]) -> None:
        from tracelens_infer.trace.source import local_file

        name = click.format_filename(path)
        with local_file(path, self._max_bytes) as file, self._terminal.reading(name) as progress:
            use(path, file, name, progress)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except TracelensError as error:
            if self._alone:
                raise
            self._terminal.error(error)
            self._exit_code = self._exit_code or error.exit_code
