"""--config FILE.toml: defaults for options, a table a command, keys named as its options. Flags win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tracelens_infer.errors import UsageError

__all__ = ["config_option"]


def _load_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make a TOML file's values the defaults of the group's commands, or of the one command it is given to."""
    if path is None:
        return
    group = context.command
    if isinstance(group, click.Group):
        context.default_map = {**(context.default_map or {}), **_tables(path, context, group)}
        return
    parent = context.find_root()
    if isinstance(parent.command, click.Group):
        tables = _tables(path, parent, parent.command)
    else:  # the command runs on its own
        tables = {name: _defaults(path, name, table, group) for name, table in _read(path).items()}
    context.default_map = {**(context.default_map or {}), **tables.get(group.name or "", {})}


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(str(path), f"The configuration cannot be read: {reason}.", "Check the path.") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # TOMLDecodeError is a ValueError, and so are numbers too long to read
        raise UsageError(str(path), f"The configuration is no TOML: {error}.", "Mend it, or leave it out.") from error


def _tables(path: Path, context: click.Context, group: click.Group) -> dict[str, Any]:
    return {name: _defaults(path, name, table, group.get_command(context, name)) for name, table in _read(path).items()}


def _defaults(path: Path, name: str, table: object, command: click.Command | None) -> dict[str, Any]:
    """A table's values by parameter name. Raises UsageError for a table or a key that is none."""
    if command is None or not isinstance(table, dict):
        raise UsageError(str(path), f"[{name}] is no command.", "Name a table after a command, for example [split].")
    options = {
        spelled.lstrip("-"): (option, spelled in option.secondary_opts)
        for option in command.params
        if isinstance(option, click.Option) and option.expose_value
        for spelled in (*option.opts, *option.secondary_opts)
    }
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        thing = f"{path}, [{name}] {key}"
        spelled = key.lstrip("-").replace("_", "-")
        if spelled not in options:
            raise UsageError(thing, "There is no option of this name.", f"tracelens {name} --help lists the options.")
        option, negated = options[spelled]
        if isinstance(value, (dict, list)):
            raise UsageError(thing, "An option has one value, no list or table.", "Write a number, a text or a truth.")
        if option.is_flag and not isinstance(value, bool):
            raise UsageError(thing, "This option is on or off.", "Write true or false.")
        if not option.is_flag and isinstance(value, bool):
            raise UsageError(thing, "This option has a value.", "Write a number or a text.")
        if str(option.name) in defaults:
            raise UsageError(thing, "The same option stands above under another name.", "Write it once.")
        defaults[str(option.name)] = not value if negated else value if isinstance(value, bool) else str(value)
    return defaults


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_load_config,
    metavar="FILE.toml",
    help="Defaults: one table per command, such as [split], keys named like its options. Flags win.",
)
