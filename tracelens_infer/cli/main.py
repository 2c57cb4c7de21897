"""``tracelens``: the command group, and what becomes of errors."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any

import click

from tracelens_infer.cli.options import common_options
from tracelens_infer.cli.terminal import Terminal
from tracelens_infer.errors import TracelensError, UsageError

__all__ = ["cli", "main", "run"]

BUG_EXIT_CODE = 1
SIGNAL_EXIT_CODE = 128  # plus the signal's number, as shells count

# Command -> the module that holds it and its name there: imported when it is used.
_COMMANDS = {
    "info": ("tracelens_infer.cli.info", "info_command"),
    "plan": ("tracelens_infer.cli.plan", "plan_command"),
    "split": ("tracelens_infer.cli.split", "split_command"),
    "roofline": ("tracelens_infer.cli.roofline", "roofline_command"),
}


class _LateCommands(click.Group):
    """A group whose commands are imported when they are looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        from importlib import import_module

        module, name = _COMMANDS[cmd_name]
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.command(cls=_LateCommands, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@common_options
@click.version_option(package_name="tracelens-infer", prog_name="tracelens")
@click.pass_context
def cli(context: click.Context) -> None:
    """Find the steps of an LLM server in a PyTorch-profiler trace, and its steady state.

    Exit codes: 0 ok, 1 a bug, 2 usage, 3 the input cannot be read, 4 nothing found or too little explained.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(UsageError.exit_code)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    The process lives for one command: collecting cycles and freeing columns one by one at the end would only cost time
    (a tenth of a second in 200 MB).
    """
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here multiplies matrices; numpy loads 30 ms faster
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup a hang-up is ignored, and stays so
            signal.signal(number, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that the terminal's encoding lacks
    exit_code = run(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, or never open
            continue
    os._exit(exit_code)


def _terminate(number: int, frame: FrameType | None) -> None:
    """End as after Ctrl-C: what was written in part is removed on the way out."""
    raise SystemExit(SIGNAL_EXIT_CODE + number)


def run(arguments: list[str]) -> int:
    """Run the command line and return its exit code; whatever goes wrong is told on stderr."""
    try:
        outcome: Any = cli.main(arguments, prog_name="tracelens", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # a reader that went away, or a full disk, is noticed here
    except SystemExit as end:
        return _ended(end)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return SIGNAL_EXIT_CODE + signal.SIGINT
    except click.ClickException as error:
        outcome = _as_usage_error(error)
    except TracelensError as error:
        outcome = error
    except BrokenPipeError:
        return _reader_went_away()
    except OSError as error:
        reason = f"{error.strerror or error}."
        outcome = UsageError(str(error.filename or "standard output"), reason, "See that it can be read or written.")
    except Exception as error:  # noqa: BLE001 - the last resort: a bug ends in three lines, not in a traceback
        return _bug(error, verbose=not {"-v", "--verbose"}.isdisjoint(arguments))
    if isinstance(outcome, TracelensError):
        Terminal().error(outcome)
        return outcome.exit_code
    return outcome if isinstance(outcome, int) else 0


def _ended(end: SystemExit) -> int:
    """A signal's exit code. 1 is click's for a pipe that broke: nothing else in it ends the process here."""
    if end.code == 1:
        return _reader_went_away()
    return end.code if isinstance(end.code, int) else 0


def _reader_went_away() -> int:
    """``tracelens info ... | head`` has what it wanted. Nothing may be written any more, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _as_usage_error(error: click.ClickException) -> UsageError:
    """What click refuses, in the form of every other error: the thing, the reason, the next action."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tracelens"
    thing, reason = command, error.format_message()
    if isinstance(error, click.BadParameter) and error.param is not None and context is not None:
        is_option = isinstance(error.param, click.Option)
        thing = f"{command} {' / '.join(error.param.opts) if is_option else error.param.metavar}"
        missing = isinstance(error, click.MissingParameter)
        reason = "It is missing." if missing else error.message
    reason += "" if reason.endswith((".", "?")) else "."
    return UsageError(thing, reason, f"{command} --help lists what can be given.")


def _bug(error: Exception, *, verbose: bool) -> int:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno}"  # noqa: PTH119 - a name, not a path
    reason = f"{type(error).__name__} at {where}: {error}"
    Terminal().error(TracelensError("This is a bug in tracelens.", reason, "Please report it; -v shows the traceback."))
    if verbose:
        traceback.print_exception(error)
    return BUG_EXIT_CODE
