"""Options that several commands share, under the names that the serving benchmarks use for them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

from tracelens_infer.errors import UsageError

__all__ = [
    "EQUAL_LENGTHS",
    "WorkloadOption",
    "byte_size",
    "config_option",
    "json_option",
    "max_bytes_option",
    "workload_from",
    "workload_options",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])
WorkloadOption: TypeAlias = int | float | str | None

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
EQUAL_LENGTHS = {"document": 1.0, "vllm": 0.0}  # what an absent --R means in each style


def workload_options(*, required: bool) -> Callable[[_Command], _Command]:
    """--CONC, --OSL, --R and what else describes a benchmark run; see :func:`workload_from`."""
    options = [
        click.option(
            "--CONC", "--concurrency", "concurrency", type=int, required=required, help="Requests that run at once."
        ),
        click.option(
            "--OSL", "--output-len", "output_tokens", type=int, required=required, help="Output length in tokens."
        ),
        click.option(
            "--R",
            "--range-ratio",
            "length_ratio",
            type=float,
            help="Spread of the output lengths; left out, they are equal.",
        ),
        click.option(
            "--range-ratio-style",
            type=click.Choice(["document", "vllm"]),
            default="document",
            show_default=True,
            help="document: R * OSL to OSL (SGLang, older vLLM). "
            "vllm: OSL * (1 - R) to OSL * (1 + R) (vLLM since 2025).",
        ),
        click.option("--num-prompts", type=int, help="Requests in the run.  [default: 10 * CONC]"),
        click.option("--isl", "--input-len", "prompt_tokens", type=int, help="Prompt length in tokens."),
        click.option(
            "--cached-tokens", type=int, default=0, show_default=True, help="Prompt tokens in the prefix cache."
        ),
        click.option(
            "--chunk-size", type=int, help="Token budget of a step (max_num_batched_tokens, chunked_prefill_size)."
        ),
        click.option("--dp", "data_parallel", type=int, default=1, show_default=True, help="Data-parallel ranks."),
        click.option("--pp", "pipeline_stages", type=int, default=1, show_default=True, help="Pipeline stages."),
    ]

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_WORKLOAD_NAMES = (
    "concurrency",
    "output_tokens",
    "length_ratio",
    "range_ratio_style",
    "num_prompts",
    "prompt_tokens",
    "cached_tokens",
    "chunk_size",
    "data_parallel",
    "pipeline_stages",
)


def workload_from(options: dict[str, Any]) -> Any:  # noqa: ANN401 - imported late
    """Take the workload options out of a command's and make a Workload of them; None where none is given.

    Raises UsageError where only one of CONC and OSL is given, and what Workload raises.
    """
    given = {name: options.pop(name) for name in _WORKLOAD_NAMES}
    if given["concurrency"] is None and given["output_tokens"] is None:
        stray = [
            name for name in ("length_ratio", "num_prompts", "prompt_tokens", "chunk_size") if given[name] is not None
        ]
        if stray:
            raise UsageError(
                "--R, --num-prompts, --isl, --chunk-size",
                "They describe a run only together with CONC and OSL.",
                "Give --CONC and --OSL, too.",
            )
        return None
    if given["concurrency"] is None or given["output_tokens"] is None:
        raise UsageError("--CONC, --OSL", "Only one of the two is given.", "Give both, or neither.")
    if given["length_ratio"] is None:
        given["length_ratio"] = EQUAL_LENGTHS[given["range_ratio_style"]]
    from tracelens_infer.steps.workload import Workload

    return Workload(**given)


def byte_size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Read 500M, 32G or a plain number of bytes."""
    if value is None:
        return None
    found = _SIZE.fullmatch(value.strip())
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if size < 1:
        raise click.BadParameter(f"{value!r} is no size; write 500M, 32G or a number of bytes.")
    return size


max_bytes_option = click.option(
    "--max-bytes",
    callback=byte_size,
    help="Refuse an input that unpacks to more.  [default: 32G]",
    metavar="SIZE",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")


def _load_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make a TOML file's values the defaults: a table a command, keys named as its options."""
    if path is None:
        return
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(str(path), f"The configuration cannot be read: {error}.", "Write TOML.") from error
    group = context.command
    assert isinstance(group, click.Group)
    context.default_map = {
        name: _defaults(path, name, table, group.get_command(context, name)) for name, table in tables.items()
    }


def _defaults(path: Path, name: str, table: object, command: click.Command | None) -> dict[str, Any]:
    if command is None or not isinstance(table, dict):
        raise UsageError(str(path), f"[{name}] is no command.", "Name a table after a command, for example [split].")
    names = {
        option.lstrip("-"): parameter.name
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if isinstance(parameter, click.Option)
    }
    unknown = [key for key in table if key.lstrip("-") not in names]
    if unknown:
        raise UsageError(
            str(path), f"[{name}] has no option {unknown[0]!r}.", f"tracelens {name} --help lists its options."
        )
    return {str(names[key.lstrip("-")]): value for key, value in table.items()}


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=_load_config,
    metavar="FILE.toml",
    help="Defaults for options: a table a command, keys named as its options. Flags win.",
)
