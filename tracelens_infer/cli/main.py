"""``tracelens``: the command group, and what becomes of errors."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from typing import Any

import click

from tracelens_infer.cli.options import config_option
from tracelens_infer.cli.terminal import Terminal
from tracelens_infer.errors import TracelensError

__all__ = ["cli", "main"]

BUG_EXIT_CODE = 1
INTERRUPTED_EXIT_CODE = 130

# Command -> the module that holds it and its name there: imported when it is used.
_COMMANDS = {
    "info": ("tracelens_infer.cli.info", "info_command"),
    "plan": ("tracelens_infer.cli.plan", "plan_command"),
    "split": ("tracelens_infer.cli.split", "split_command"),
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


@click.command(cls=_LateCommands, context_settings={"help_option_names": ["-h", "--help"]})
@config_option
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Show informative notes, and tracebacks of bugs.")
@click.version_option(package_name="tracelens-infer", prog_name="tracelens")
@click.pass_context
def cli(context: click.Context, quiet: bool, verbose: bool) -> None:
    """Find the steps of an LLM server in a PyTorch-profiler trace, and its steady state.

    Exit codes: 0 ok, 1 a bug, 2 usage, 3 the input cannot be read, 4 nothing found or too little explained.
    """
    context.obj = Terminal(quiet=quiet, verbose=verbose)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    The process lives for one command: collecting cycles and freeing columns one by one at the end would only cost time
    (a tenth of a second in 200 MB).
    """
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here multiplies matrices; numpy loads 30 ms faster
    exit_code = _run(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _run(arguments: list[str] | None) -> int:
    try:
        outcome: Any = cli.main(arguments, prog_name="tracelens", standalone_mode=False)
        sys.stdout.flush()  # a reader that went away is noticed here
    except TracelensError as error:
        Terminal().error(error)
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED_EXIT_CODE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        # The reader went away (`tracelens info ... | head`): keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the last resort: a bug ends in one line, not in a traceback
        return _bug(error)
    return outcome if isinstance(outcome, int) else 0


def _bug(error: Exception) -> int:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno}"  # noqa: PTH119 - a name, not a path
    reason = f"{type(error).__name__} at {where}: {error}"
    Terminal().error(TracelensError("This is a bug in tracelens.", reason, "Please report it; -v shows the traceback."))
    if "-v" in sys.argv or "--verbose" in sys.argv:
        traceback.print_exception(error)
    return BUG_EXIT_CODE
