"""An output folder that is there whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from tracelens_infer.errors import OutputExistsError, UsageError

__all__ = ["output_folder"]

_PARTIAL = ".partial-"
_REPLACED = ".replaced-"
_TOKEN = re.compile(r"[0-9a-f]{8}")
_OWNED = ".made-by-tracelens"  # in every folder that may be removed: a name alone proves nothing
_ATTEMPTS = 8


@contextlib.contextmanager
def output_folder(path: Path, *, force: bool, marker: str) -> Iterator[Path]:
    """A folder to fill, which becomes ``path`` in one rename when the block ends without an error.

    An existing folder is replaced only with ``force``, and only if an earlier run made it and nothing was put into it
    since: ``marker`` is a file that lists what belongs to it. A link to a folder is followed. Whatever ends the block
    otherwise, nothing of it stays behind; what a killed run left behind goes first.

    Raises:
        OutputExistsError: the folder is there, or something else of that name; nothing was written.
        UsageError: it cannot be made or written.
    """
    path = path.resolve() if path.is_dir() else Path(os.path.abspath(path))  # noqa: PTH100 - a dead link is refused
    _refuse_to_overwrite(path, force=force, marker=marker)
    _remove_leftovers(path)
    _refuse_to_overwrite(path, force=force, marker=marker)  # an output that was being replaced may be back
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
        (partial / _OWNED).unlink()
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
    foreign = _not_listed(path, marker)
    if foreign:
        listed = ", ".join(foreign[:3]) + (" ..." if len(foreign) > 3 else "")
        raise OutputExistsError(
            str(path), f"The folder holds what is not ours: {listed}.", "Move it, or name another folder with -o."
        )


def _not_listed(path: Path, marker: str) -> list[str]:
    """Which files below the folder does the list in its marker not name? All of them, if that is no such list."""
    files = {str(entry.relative_to(path)) for entry in path.rglob("*") if entry.is_symlink() or not entry.is_dir()}
    try:
        manifest = json.loads((path / marker).read_bytes())
        named = {output["file"] for output in manifest["outputs"]} | set(manifest["tables"]) | {marker}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        named = set()
    return sorted(files - named)


def _new_folder(path: Path, infix: str) -> tuple[Path, int]:
    """A new folder beside ``path``, and the lock by which other runs tell that its owner lives."""
    for _ in range(_ATTEMPTS):
        folder = path.with_name(f".{path.name}{infix}{secrets.token_hex(4)}")
        folder.mkdir()
        try:
            lock = _locked(folder, wait=True)
        except FileNotFoundError:
            continue  # another run took it for a leftover before it was locked
        try:
            (folder / _OWNED).touch()
        except FileNotFoundError:
            os.close(lock)
            continue
        return folder, lock
    raise FileNotFoundError(errno.ENOENT, "it is removed by other runs again and again")


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
        (path / _OWNED).touch()
        path.rename(replaced)
        try:
            partial.rename(path)
        except OSError:
            replaced.rename(path)
            (path / _OWNED).unlink()
            raise
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        os.close(lock)


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
                    (path / _OWNED).unlink()
                else:
                    shutil.rmtree(leftover, ignore_errors=True)
            finally:
                os.close(lock)


def _beside(path: Path, infix: str) -> list[Path]:
    beginning = f".{path.name}{infix}"
    try:
        return [
            entry
            for entry in path.parent.iterdir()
            if entry.name.startswith(beginning)
            and _TOKEN.fullmatch(entry.name.removeprefix(beginning))
            and not entry.is_symlink()
            and ((entry / _OWNED).is_file() or _is_empty(entry))
        ]
    except OSError:
        return []  # whatever is wrong with the parent is told when the folder is made


def _is_empty(folder: Path) -> bool:
    """A run that was killed right after it made its folder."""
    return folder.is_dir() and not any(folder.iterdir())
