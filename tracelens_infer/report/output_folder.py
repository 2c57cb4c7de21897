"""An output folder that is there whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import os
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
    Raises OutputExistsError, before anything is written, where that is not so.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link that is to be replaced
    _refuse_to_overwrite(path, force=force, marker=marker)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        partial = path.with_name(f".{path.name}{_PARTIAL}{os.getpid()}")
        partial.mkdir()
    except OSError as error:
        raise UsageError(
            str(path), f"The output folder cannot be made: {error.strerror}.", "Name another one with -o."
        ) from error
    try:
        yield partial
        _put_in_place(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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


def _put_in_place(partial: Path, path: Path) -> None:
    if not path.exists() or not any(path.iterdir()):
        partial.rename(path)
        return
    replaced = path.with_name(f".{path.name}{_REPLACED}{os.getpid()}")
    path.rename(replaced)
    try:
        partial.rename(path)
    except OSError:
        replaced.rename(path)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _remove_leftovers(path: Path) -> None:
    """Folders of runs that were killed: their process is gone. A replaced one comes back if nothing took its place."""
    for infix in (_REPLACED, _PARTIAL):
        for leftover in path.parent.glob(f".{path.name}{infix}*"):
            number = leftover.name.rpartition("-")[2]
            if not number.isdigit() or _is_running(int(number)):
                continue
            if infix == _REPLACED and not path.exists():
                leftover.rename(path)
            else:
                shutil.rmtree(leftover, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
