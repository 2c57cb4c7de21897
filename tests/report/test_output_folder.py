"""An output folder is there whole or not at all, replaces only what is ours, and cleans up after killed runs."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens_infer.errors import OutputExistsError, UsageError
from tracelens_infer.report.output_folder import output_folder

MARKER = "split.json"


def fill(path: Path, text: str = "new", *, force: bool = False) -> None:
    with output_folder(path, force=force, marker=MARKER) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "part").write_text(text)
        (partial / MARKER).write_text(manifest(text))


def manifest(text: str) -> str:
    return json.dumps({"outputs": [{"file": "sub/part"}], "tables": [], "text": text})


def content(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


NEW = {"sub/part": "new", MARKER: manifest("new")}
OLD = {"sub/part": "old", MARKER: manifest("old")}


@pytest.mark.parametrize("name", ["out", "deep/er/out", "out[1]*?", "ünïcode 空"])
def test_the_folder_appears_when_the_block_ends(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with output_folder(path, force=False, marker=MARKER) as partial:
        (partial / MARKER).write_text("x")
        assert not path.exists()
    assert content(path) == {MARKER: "x"}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_its_mode_is_that_of_any_new_folder(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    fill(tmp_path / "out")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "out")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt(), SystemExit(143), OSError("disk")])
@pytest.mark.parametrize("name", ["out", "deep/er/out"])
def test_nothing_stays_behind_of_a_block_that_fails(error: BaseException, name: str, tmp_path: Path) -> None:
    def write_in_part() -> None:
        with output_folder(tmp_path / name, force=False, marker=MARKER) as partial:
            (partial / "part").write_text("x")
            raise error

    with pytest.raises(UsageError if isinstance(error, OSError) else type(error)):
        write_in_part()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_in_words(tmp_path: Path) -> None:
    def write() -> None:
        with output_folder(tmp_path / "out", force=False, marker=MARKER):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UsageError) as full:
        write()
    assert full.value.reason == "The output cannot be written: No space left on device."


# -- what is there already -------------------------------------------------------------------------------------------


def ours(path: Path) -> None:
    fill(path, "old")


def someone_elses(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("old")


def a_file(path: Path) -> None:
    path.write_text("old")


def a_link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def empty(path: Path) -> None:
    path.mkdir()


def a_link_to_ours(path: Path) -> None:
    ours(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


def a_link_to_an_empty_one(path: Path) -> None:
    empty(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("make", [ours, someone_elses, a_file, a_link_to_nowhere, a_link_to_ours])
def test_nothing_is_overwritten_without_force(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "out"
    make(path)
    before = content(tmp_path)
    with pytest.raises(OutputExistsError) as exists:
        fill(path)
    assert exists.value.exit_code == 2
    assert exists.value.thing in (str(path), str(path.resolve()))
    assert content(tmp_path) == before


@pytest.mark.parametrize("make", [someone_elses, a_file, a_link_to_nowhere])
def test_force_never_replaces_what_is_not_ours(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "out"
    make(path)
    before = content(tmp_path)
    with pytest.raises(OutputExistsError) as exists:
        fill(path, force=True)
    assert exists.value.action == "Name another folder with -o."
    assert content(tmp_path) == before


@pytest.mark.parametrize("make", [ours, empty])
def test_force_replaces_ours_whole(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "out"
    make(path)
    fill(path, force=True)
    assert content(path) == NEW
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("make", [empty, a_link_to_an_empty_one])
def test_an_empty_folder_is_taken_without_force(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "out"
    make(path)
    fill(path)
    assert content(path) == NEW


def test_a_link_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    a_link_to_ours(path)
    fill(path, force=True)
    assert path.is_symlink()
    assert content(tmp_path / "elsewhere") == NEW
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["elsewhere", "out"]


def add_a_note(path: Path) -> None:
    (path / "NOTES.md").write_text("precious")


def add_a_link(path: Path) -> None:
    (path / "sub" / "link").symlink_to(path)


def empty_the_list(path: Path) -> None:
    (path / MARKER).write_text("{}")


def break_the_list(path: Path) -> None:
    (path / MARKER).write_text("[" * 100_000)


@pytest.mark.parametrize("change", [add_a_note, add_a_link, empty_the_list, break_the_list])
def test_force_never_removes_what_was_put_into_ours(change: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "out"
    ours(path)
    change(path)
    before = content(tmp_path)
    with pytest.raises(OutputExistsError) as exists:
        fill(path, force=True)
    assert exists.value.reason.startswith("The folder holds what is not ours: ")
    assert content(tmp_path) == before


def test_the_old_output_stays_where_the_new_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "out"
    ours(path)

    def fail() -> None:
        with output_folder(path, force=True, marker=MARKER):
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        fail()
    assert content(path) == OLD
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_the_old_output_comes_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    ours(path)
    rename = Path.rename

    def refuse_the_new_one(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new_one)
    with pytest.raises(UsageError):
        fill(path, force=True)
    assert content(path) == OLD
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UsageError) as refused:
            fill(tmp_path / "out")
    finally:
        tmp_path.chmod(0o700)
    assert refused.value.reason == "The output folder cannot be made: Permission denied."


@pytest.mark.parametrize("name", ["out", "deep/out"])
def test_a_file_among_the_parents_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError) as refused:
        fill(tmp_path / "file" / name)
    assert refused.value.reason == "The output folder cannot be made: one of the folders in its path is a file."
    assert refused.value.exit_code == 2


# -- what killed runs leave ------------------------------------------------------------------------------------------

KILLED = """
import os, sys
from pathlib import Path
from tracelens_infer.report.output_folder import output_folder
with output_folder(Path(sys.argv[1]), force=False, marker="split.json") as partial:
    (partial / "part").write_text("half")
    os.kill(os.getpid(), 9)
"""


def kill_one(path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode == -9


@pytest.mark.parametrize("name", ["out", "out[1]*?"])
def test_the_next_run_removes_what_a_killed_one_left(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    kill_one(path)
    kill_one(path)
    (left,) = tmp_path.iterdir()  # the second one removed the first one's
    assert left.name.startswith(f".{name}.partial-")
    fill(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_what_belongs_to_another_output_stays(tmp_path: Path) -> None:
    kill_one(tmp_path / "out2")
    fill(tmp_path / "out")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_folder_of_a_run_that_goes_on_stays(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def run_beside_another() -> None:
        with output_folder(path, force=False, marker=MARKER) as partial:
            other = KILLED.replace("os.kill(os.getpid(), 9)", "")
            subprocess.run([sys.executable, "-c", other, str(path)], check=True)
            assert partial.is_dir()
            assert content(path) == {"part": "half"}

    with pytest.raises(OutputExistsError):  # the other one was faster
        run_beside_another()
    assert content(path) == {"part": "half"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def leave_replaced(path: Path) -> None:
    (path / ".made-by-tracelens").touch()
    path.rename(path.with_name(f".{path.name}.replaced-12345678"))


@pytest.mark.parametrize("name", [".out.partial-mine", ".out.partial-12345678", ".out.replaced-12345678"])
def test_folders_that_only_look_like_leftovers_stay(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "precious").write_text("x")
    fill(tmp_path / "out")
    assert content(tmp_path / name) == {"precious": "x"}


def test_an_old_output_that_waited_comes_back_and_is_not_overwritten_unasked(tmp_path: Path) -> None:
    """A run killed between its two renames leaves the old output under another name, and none under its own."""
    path = tmp_path / "out"
    ours(path)
    leave_replaced(path)
    with pytest.raises(OutputExistsError):
        fill(path)
    assert content(path) == OLD
    fill(path, force=True)
    assert content(path) == NEW
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_an_old_output_whose_place_is_taken_goes(tmp_path: Path) -> None:
    path = tmp_path / "out"
    ours(path)
    leave_replaced(path)
    fill(tmp_path / "other")
    (tmp_path / "other").rename(path)
    fill(path, force=True)
    assert content(path) == NEW
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_without_locks_leftovers_stay_and_outputs_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_one(tmp_path / "out")

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("tracelens_infer.report.output_folder.fcntl.flock", no_locks)
    fill(tmp_path / "out")
    assert content(tmp_path / "out") == NEW
    assert len(list(tmp_path.iterdir())) == 2
