"""An output folder that is there whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from tracelens_infer.errors import OutputExistsError, UsageError

__all__ = ["output_folder"]

_PARTIAL = ".partial-"
_REPLACED = ".replaced-"


@contextlib.contextmanager
def output_folder(path: Path, *, force: bool, marker: str) -> Iterator[Path]:
    """A folder to fill, which becomes ``path`` in one rename when the block ends without an error.

    An existing folder is replaced only with ``force``, and only if it holds ``marker``: then an earlier run made it.
    Whatever ends the block otherwise, nothing of it stays behind; what a killed run left behind goes first.

    Raises:
        OutputExistsError: the folder is there, or something else of that name; nothing was written.
        UsageError: it cannot be made or written.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link that is to be replaced
    _remove_leftovers(path)
    _refuse_to_overwrite(path, force=force, marker=marker)
    missing = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial, lock = _new_folder(path, _PARTIAL)
    except OSError as error:
        _remove_empty(missing)
        in_the_way = isinstance(error, (FileExistsError, NotADirectoryError))
        reason = "one of the folders in its path is a file" if in_the_way else str(error.strerror or error)
        raise UsageError(
            str(path), f"The output folder cannot be made: {reason}.", "Name another one with -o."
        ) from error
    done = False
    try:
        yield partial
        _refuse_to_overwrite(path, force=force, marker=marker)  # another run may have ended meanwhile
        _put_in_place(partial, path)
        done = True
    except OSError as error:  # what reads the input has its own errors
        raise UsageError(
            str(path),
            f"The output cannot be written: {error.strerror or error}.",
            "Make room for it, or name another folder with -o.",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)
        if not done:
            _remove_empty(missing)


def _refuse_to_overwrite(path: Path, *, force: bool, marker: str) -> None:
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise OutputExistsError(str(path), "There is a file of this name.", "Name another folder with -o.")
    if not any(path.iterdir()):
        return
    if not (path / marker).is_file():
        raise OutputExistsError(
            str(path), f"The folder is not empty and holds no {marker}: it is not ours.", "Name another folder with -o."
        )
    if not force:
        raise OutputExistsError(
            str(path), "The output is there already.", "Replace it with --force, or name another folder with -o."
        )


def _new_folder(path: Path, infix: str) -> tuple[Path, int]:
    """A new folder beside ``path``, and the lock by which other runs tell that its owner lives."""
    while True:
        folder = path.with_name(f".{path.name}{infix}{secrets.token_hex(4)}")
        folder.mkdir()
        lock = _locked(folder, wait=True)
        if folder.is_dir():
            return folder, lock
        os.close(lock)  # another run took it for a leftover before it was locked


def _locked(folder: Path, *, wait: bool) -> int:
    """Lock a folder until the descriptor is closed or its process ends. Raises OSError where that cannot be."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        if not wait:
            os.close(descriptor)
            raise
        # A file system without locks: its leftovers stay, since none of them can be told from a run that goes on.
    return descriptor


def _put_in_place(partial: Path, path: Path) -> None:
    if not os.path.lexists(path):
        partial.rename(path)
        return
    lock = _locked(path, wait=True)  # the old output is no leftover while it waits for the new one
    try:
        replaced = path.with_name(f".{path.name}{_REPLACED}{secrets.token_hex(4)}")
        path.rename(replaced)
        try:
            partial.rename(path)
        except OSError:
            replaced.rename(path)
            raise
        _remove(replaced)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder; of a link to one only the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_empty(folders: list[Path]) -> None:
    """Remove the parents that were made for an output that did not come about, the innermost first."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _remove_leftovers(path: Path) -> None:
    """Remove folders of runs that were killed. A replaced one comes back if nothing took its place."""
    for infix in (_REPLACED, _PARTIAL):
        for leftover in _beside(path, infix):
            try:
                lock = _locked(leftover, wait=False)
            except OSError:
                continue  # its run goes on
            try:
                if infix == _REPLACED and not os.path.lexists(path):
                    leftover.rename(path)
                else:
                    _remove(leftover)
            finally:
                os.close(lock)


def _beside(path: Path, infix: str) -> list[Path]:
    beginning = f".{path.name}{infix}"
    try:
        return [entry for entry in path.parent.iterdir() if entry.name.startswith(beginning)]
    except OSError:
        return []  # whatever is wrong with the parent is told when the folder is made
