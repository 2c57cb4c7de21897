"""The command line as a whole: exit codes, errors, streams, signals of the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, steps_of_kinds
from tests.make_trace import TraceMaker
from tracelens_infer import errors
from tracelens_infer.cli.main import _COMMANDS
from tracelens_infer.cli.terminal import Terminal
from tracelens_infer.notes import Note
from tracelens_infer.report import info

MODULE = [sys.executable, "-m", "tracelens_infer"]


def unmarked(folder: Path) -> Path:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    return maker.write(folder, "unmarked.json")


def two_processes(folder: Path) -> Path:
    maker = steps_of_kinds()
    maker.label("step[DECODE bs=8]", 5, 10, process=7)
    maker.label("execute_context_0(0)_generation_1(1)", 5, 10, process=8)
    return maker.write(folder, "merged.json")


def no_trace(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("dear diary")
    return path


# Arguments, made in a folder -> exit code and the three lines of the error.
FAILURES: dict[str, tuple[Callable[[Path], list[object]], int, list[str]]] = {
    "no such command": (
        lambda _: ["slice"],
        2,
        ["error: tracelens", "No such command 'slice'.", "tracelens --help lists what can be given."],
    ),
    "no such option": (
        lambda _: ["split", "--frce", "x"],
        2,
        [
            "error: tracelens split",
            "No such option '--frce'. Did you mean '--force'?",
            "tracelens split --help lists what can be given.",
        ],
    ),
    "no trace": (
        lambda _: ["split"],
        2,
        ["error: tracelens split TRACE...", "It is missing.", "tracelens split --help lists what can be given."],
    ),
    "a required option": (
        lambda _: ["plan", "--CONC", "8"],
        2,
        [
            "error: tracelens plan --OSL / --output-len",
            "It is missing.",
            "tracelens plan --help lists what can be given.",
        ],
    ),
    "no number": (
        lambda _: ["split", "x", "--num-steps", "many"],
        2,
        [
            "error: tracelens split --num-steps",
            "'many' is not a valid integer range.",
            "tracelens split --help lists what can be given.",
        ],
    ),
    "one thing too many": (
        lambda _: ["plan", "--CONC", "8", "--OSL", "9", "x"],
        2,
        [
            "error: tracelens plan",
            "Got unexpected extra argument (x).",
            "tracelens plan --help lists what can be given.",
        ],
    ),
    "half a workload": (
        lambda _: ["split", "x", "--CONC", "8"],
        2,
        ["error: --CONC, --OSL", "Only one of the two is given.", "Give both, or neither."],
    ),
    "no range": (
        lambda _: ["split", "x", "-i", "1-5"],
        2,
        ["error: --iterations 1-5", "This is no range of steps.", "Write A:B (steps A to B-1), N or all."],
    ),
    "no size": (
        lambda _: ["info", "x", "--max-bytes", "lots"],
        2,
        [
            "error: tracelens info --max-bytes",
            "'lots' is no size; write 500M, 32G or a number of bytes.",
            "tracelens info --help lists what can be given.",
        ],
    ),
    "no file": (
        lambda _: ["split", "none.json"],
        3,
        ["error: none.json", "There is no such file.", "Check the path; quote a glob if the shell expands it."],
    ),
    "no JSON": (
        lambda folder: ["info", no_trace(folder)],
        3,
        [
            "error: {folder}/notes.txt",
            "It is no Chrome-trace JSON: it begins with b'dear diary'.",
            "Name a trace that torch.profiler (or an engine's /stop_profile) wrote.",
        ],
    ),
    "an empty folder": (
        lambda folder: ["info", folder],
        3,
        [
            "error: {folder}",
            "The directory holds no .json, .json.gz, .zip or .zst file.",
            "Name a directory of trace files.",
        ],
    ),
    "too large": (
        lambda folder: ["split", unmarked(folder), "--max-bytes", "20"],
        3,
        [
            "error: {folder}/unmarked.json",
            "It unpacks to more than the limit of 20 bytes.",
            "If the size is genuine, raise the limit with --max-bytes.",
        ],
    ),
    "two processes": (
        lambda folder: ["split", two_processes(folder)],
        3,
        [
            "error: {folder}/merged.json",
            "Steps of 2 processes share this file (100, 8); mixing them would give wrong times.",
            "Give the trace of one rank (the engine writes one file per rank before merging).",
        ],
    ),
    "no such step": (
        lambda folder: ["split", steps_of_kinds().write(folder), "-i", "40"],
        4,
        ["error: --iterations 40", "The trace has steps 0 to 39.", "Choose a range within them."],
    ),
}


@pytest.mark.parametrize(("arguments", "code", "lines"), FAILURES.values(), ids=FAILURES.keys())
@pytest.mark.parametrize("flags", [[], ["-q"]])
def test_an_error_is_a_thing_a_reason_and_an_action_a_line_each(
    arguments: Callable[[Path], list[object]],
    code: int,
    lines: list[str],
    flags: list[str],
    tracelens: Command,
    tmp_path: Path,
) -> None:
    outcome = tracelens(*flags, *map(str, arguments(tmp_path)))
    thing, reason, action = (line.replace("{folder}", str(tmp_path)) for line in lines)
    assert outcome.lines == [thing, f"  {reason}", f"  {action}"]
    assert (outcome.code, outcome.out) == (code, "")
    assert [path.name for path in tmp_path.iterdir() if "split" in path.name] == []


def test_every_exit_code_of_the_errors_is_produced_here() -> None:
    codes = {getattr(errors, name).exit_code for name in errors.__all__}
    assert codes == {1} | {code for _, code, _ in FAILURES.values()} | {4}


def test_done_is_0(tracelens: Command, trace: Path) -> None:
    assert tracelens("info", trace).code == 0
    assert tracelens("split", trace).code == 0


def test_a_bug_ends_with_1_and_in_a_few_lines(tracelens: Command, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by\nnought")

    monkeypatch.setattr(info, "read_trace", broken)
    outcome = tracelens("info", trace)
    assert (outcome.code, outcome.out) == (1, "")
    thing, reason, action = outcome.lines
    assert thing == "error: This is a bug in tracelens."
    assert re.fullmatch(r"  ZeroDivisionError at test_main.py:\d+: by nought", reason)
    assert action == "  Please report it; -v shows the traceback."
    for arguments in (["-v", "info", str(trace)], ["info", str(trace), "-v"]):
        assert "in broken" in tracelens(*arguments).err


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], *([name, "--help"] for name in _COMMANDS)])
def test_help_fits_a_terminal_of_80_columns(arguments: list[str], tracelens: Command) -> None:
    outcome = tracelens(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Usage: tracelens")
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_without_a_command_the_help_is_shown(tracelens: Command) -> None:
    outcome = tracelens()
    assert (outcome.code, outcome.out) == (2, "")
    assert "Commands:" in outcome.err


def test_the_help_of_the_group_names_each_command_whole(tracelens: Command) -> None:
    text = tracelens("--help").out
    assert set(re.findall(r"^  (\w+)  ", text, re.MULTILINE)) == set(_COMMANDS)
    assert "..." not in text.partition("Commands:")[2]


def test_version(tracelens: Command) -> None:
    assert re.fullmatch(r"tracelens, version \d+\.\d+\.\d+\n", tracelens("--version").out)


# -- how much is said ------------------------------------------------------------------------------------------------


def cpu_only(folder: Path) -> Path:
    """A trace about which there is an informative note and a warning."""
    maker = steps_of_kinds(device=False)
    maker.events.append(dict(maker.events[-1]))
    return maker.write(folder, "cpu.json")


@pytest.mark.parametrize(
    ("before", "after", "levels"),
    [
        ([], [], ["warning"]),
        (["-q"], [], []),
        ([], ["-q"], []),
        ([], ["--quiet"], []),
        (["-v"], [], ["info", "warning"]),
        ([], ["--verbose"], ["info", "warning"]),
        (["-v"], ["-q"], []),
    ],
)
def test_notes_are_shown_by_level(
    before: list[str], after: list[str], levels: list[str], tracelens: Command, tmp_path: Path
) -> None:
    outcome = tracelens(*before, "split", cpu_only(tmp_path), *after)
    assert outcome.code == 0
    assert sorted({line.partition(":")[0] for line in outcome.lines}) == levels
    assert outcome.out.startswith(str(tmp_path / "cpu.json"))


def test_errors_among_the_notes_are_shown_even_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(quiet=True).notes([Note("error", "x", "Bad.", 3, 17), Note("warning", "y", "Odd.")])
    assert capsys.readouterr().err == "error: Bad. [3] (first at byte 17)\n"


@pytest.mark.parametrize(
    ("note", "line"),
    [
        (Note("warning", "x", "Odd."), "warning: Odd."),
        (Note("warning", "x", "Odd.", 1), "warning: Odd."),
        (Note("warning", "x", "Odd.", 1200), "warning: Odd. [1,200]"),
        (Note("warning", "x", "Of 1,200 some are odd.", 1200), "warning: Of 1,200 some are odd."),
        (Note("warning", "x", "Odd.", 1, 0), "warning: Odd. (first at byte 0)"),
    ],
)
def test_a_note_is_one_line(note: Note, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().notes([note])
    Terminal().notes([note], about="rank0.json")
    level, _, text = line.partition(" ")
    assert capsys.readouterr().err == f"{line}\n{level} rank0.json: {text}\n"


@pytest.mark.parametrize("command", ["info", "split"])
def test_with_json_stdout_is_data_only(command: str, tracelens: Command, tmp_path: Path) -> None:
    outcome = tracelens("-v", command, cpu_only(tmp_path), "--json")
    data: dict[str, Any] = json.loads(outcome.out)
    assert data["schema_version"] == 1
    assert data["steps"] == 40


# -- streams ---------------------------------------------------------------------------------------------------------


def test_a_reader_that_goes_away_is_no_error(trace: Path, tmp_path: Path) -> None:
    command = [*MODULE, "info", str(trace), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(), said) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_under_stdout_is_told_in_words(trace: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [*MODULE, "info", str(trace)], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[:2] == ["error: standard output", "  No space left on device."]


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_reason_to_fail(closed: int, trace: Path, tmp_path: Path) -> None:
    command = f'exec "$@" {closed}>&-'
    done = subprocess.run(
        ["sh", "-c", command, "sh", *MODULE, "split", str(trace), "-o", "out"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "split.json").is_file()


def test_names_that_the_terminal_lacks_letters_for_are_shown(trace: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/r\xff\xc3\xa9.json.gz"
    trace.rename(os.fsdecode(odd))
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    for flags in ([b"info"], [b"info", b"--json"], [b"split"], [b"split", b"--force", b"--json"]):
        done = subprocess.run([*MODULE, *flags, odd], capture_output=True, cwd=tmp_path, env=environment, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"/r\\ufffd\xe9.json.gz" in done.stdout
    assert os.path.isdir(os.fsencode(tmp_path) + b"/r\xff\xc3\xa9_split")  # noqa: PTH112 - bytes


def on_a_terminal(arguments: list[str], **environment: str) -> str:
    """Return what a command writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*MODULE, *arguments],
        stdout=theirs,
        stderr=theirs,
        env={name: value for name, value in os.environ.items() if name != "NO_COLOR"} | environment,
    ) as process:
        os.close(theirs)
        written = bytearray()
        try:
            while part := os.read(ours, 1 << 16):
                written += part
        except OSError:  # the other end is closed
            pass
        process.wait()
    os.close(ours)
    return written.decode()


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)]
)
def test_colours_are_for_terminals_whose_user_wants_them(
    environment: dict[str, str], coloured: bool, trace: Path
) -> None:
    for arguments in (["info", str(trace)], ["info", "none.json"]):
        assert ("\x1b[" in on_a_terminal(arguments, **environment)) is coloured


def test_no_colours_without_a_terminal(tracelens: Command, trace: Path) -> None:
    assert "\x1b" not in tracelens("info", trace).out
    assert "\x1b" not in tracelens("info", "none.json").err


# -- progress --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_terminal", "quiet", "seconds", "shown"),
    [(True, False, 3.0, True), (True, False, 0.5, False), (False, False, 3.0, False), (True, True, 3.0, False)],
)
def test_progress_is_shown_on_terminals_after_a_second(
    is_terminal: bool,
    quiet: bool,
    seconds: float,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    clock = iter([0.0, *(seconds + 0.1 * number for number in range(10))])
    monkeypatch.setattr("tracelens_infer.cli.terminal.time.monotonic", lambda: next(clock))
    with Terminal(quiet=quiet).reading("big.json") as progress:
        for number in range(5):
            if progress is not None:
                progress(number * 50_000_000)
    err = capsys.readouterr().err
    # Of five calls a tenth of a second apart, every other one refreshes the line; at the end it goes.
    assert err.count("reading big.json") == (2 if shown else 0)
    assert "reading big.json: 0 MB" in err if shown else err == ""
    assert not shown or err.endswith("\r\x1b[K")
