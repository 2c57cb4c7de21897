"""Options that several commands share, under the names that the serving benchmarks use for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import click

from tracelens_infer.cli.config import config_option
from tracelens_infer.cli.terminal import Terminal
from tracelens_infer.errors import UsageError

__all__ = [
    "EQUAL_LENGTHS",
    "WORKLOAD_SECTIONS",
    "SectionedCommand",
    "WorkloadOption",
    "byte_size",
    "common_options",
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


class SectionedCommand(click.Command):
    """A command whose help lists its options under headings; those without one come last.

    ``sections`` maps a heading to the names of parameters.
    """

    def __init__(self, *args: Any, sections: Mapping[str, tuple[str, ...]], **settings: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **settings)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        listed = {name for names in self.sections.values() for name in names}
        records: dict[str, tuple[str, str]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None and parameter.name is not None:
                records[parameter.name] = record
        rest = tuple(name for name in records if name not in listed)
        for title, names in {**self.sections, "Other options": rest}.items():
            rows = [records[name] for name in names if name in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


WORKLOAD_SECTIONS = {
    "The benchmark": ("concurrency", "output_tokens", "length_ratio", "range_ratio_style", "num_prompts"),
    "More about it": ("prompt_tokens", "cached_tokens", "chunk_size", "data_parallel", "pipeline_stages"),
}


def workload_options(*, required: bool) -> Callable[[_Command], _Command]:
    """--CONC, --OSL, --R and what else describes a benchmark run; see :func:`workload_from`."""
    options = [
        click.option(
            "--CONC",
            "--concurrency",
            "concurrency",
            type=int,
            required=required,
            metavar="N",
            help="Requests that run at once.",
        ),
        click.option(
            "--OSL",
            "--output-len",
            "output_tokens",
            type=int,
            required=required,
            metavar="TOKENS",
            help="Longest output.",
        ),
        click.option(
            "--R",
            "--range-ratio",
            "length_ratio",
            type=float,
            metavar="RATIO",
            help="Spread of the output lengths; without it all are equal.",
        ),
        click.option(
            "--range-ratio-style",
            type=click.Choice(["document", "vllm"]),
            default="document",
            show_default=True,
            metavar="STYLE",
            help="document: R * OSL to OSL (SGLang, older vLLM). "
            "vllm: OSL * (1 - R) to OSL * (1 + R) (vLLM since 2025).",
        ),
        click.option("--num-prompts", type=int, metavar="N", help="Requests in the run.  [default: 10 * CONC]"),
        click.option("--isl", "--input-len", "prompt_tokens", type=int, metavar="TOKENS", help="Prompt length."),
        click.option(
            "--cached-tokens",
            type=int,
            default=0,
            show_default=True,
            metavar="TOKENS",
            help="Part of a prompt that the prefix cache holds.",
        ),
        click.option(
            "--chunk-size",
            type=int,
            metavar="TOKENS",
            help="Token budget of a step (max_num_batched_tokens, chunked_prefill_size).",
        ),
        click.option(
            "--dp", "data_parallel", type=int, default=1, show_default=True, metavar="N", help="Data-parallel ranks."
        ),
        click.option(
            "--pp", "pipeline_stages", type=int, default=1, show_default=True, metavar="N", help="Pipeline stages."
        ),
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
        left_out = {"range_ratio_style": "document", "cached_tokens": 0, "data_parallel": 1, "pipeline_stages": 1}
        if any(value not in (None, left_out.get(name)) for name, value in given.items()):
            raise UsageError(
                "--R, --num-prompts, --isl, --chunk-size, --cached-tokens, --dp, --pp",
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


def byte_size(context: click.Context, parameter: click.Parameter, value: str | int | None) -> int | None:
    """Read 500M, 32G or a plain number of bytes."""
    if value is None:
        return None
    found = _SIZE.fullmatch(str(value).strip())
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


def _set_on_terminal(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and parameter.name is not None:
        setattr(context.ensure_object(Terminal), parameter.name, True)


def common_options(command: _Command) -> _Command:
    """-q, -v and --config, which may stand before a command's name or after it."""
    for option in (
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            expose_value=False,
            callback=_set_on_terminal,
            help="Show informative notes, and tracebacks of bugs.",
        ),
        click.option(
            "-q",
            "--quiet",
            is_flag=True,
            expose_value=False,
            callback=_set_on_terminal,
            help="Show nothing but results and errors.",
        ),
        config_option,
    ):
        command = option(command)
    return command
