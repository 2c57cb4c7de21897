"""``tracelens roofline``: how far attention and the whole step are from what the hardware allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tracelens_infer.cli.options import SectionedCommand, common_options, json_option, max_bytes_option
from tracelens_infer.cli.terminal import Terminal, pass_terminal
from tracelens_infer.cli.traces import GivenTraces
from tracelens_infer.errors import UsageError

if TYPE_CHECKING:
    from tracelens_infer.roofline.hardware import HardwareSpec
    from tracelens_infer.roofline.model import ModelShape
    from tracelens_infer.roofline.roofline import RooflineSetting
    from tracelens_infer.trace.reader import Progress

__all__ = ["roofline_command"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

MOST = 10**6  # ranks

_SECTIONS = {
    "The model and the hardware": ("model", "hardware", "peak_tflops", "peak_bandwidth"),
    "How it was run": (
        "query_dtype",
        "kv_dtype",
        "tensor_parallel",
        "decode_context_parallel",
        "attention_data_parallel",
        "expert_parallel",
        "shared_prefix_tokens",
    ),
    "What to look at": ("step",),
    "Instead of a trace": ("annotation",),
    "Traces without labels": ("llm_inference", "max_num_seq"),
    "Where to": ("output", "figure", "force", "as_json"),
}


def _ranks(name: str, meaning: str) -> Callable[[_Command], _Command]:
    return click.option(
        f"--{name}",
        meaning,
        type=click.IntRange(1, MOST),
        default=1,
        metavar="N",
        help=f"Ranks of {meaning.replace('_parallel', ' parallelism').replace('_', ' ')}.  [default: 1]",
    )


@click.command("roofline", cls=SectionedCommand, sections=_SECTIONS, short_help="Say how far from the roof steps are.")
@click.argument("traces", nargs=-1, metavar="[TRACE...]")
@click.option("--model", metavar="NAME|FILE", help="A model's name (Llama-3.1-8B ...) or its config.json.")
@click.option("--hardware", "--gpu", "hardware", metavar="NAME|FILE", help="A GPU's name, or a spec in TOML.")
@click.option("--peak-tflops", type=click.FloatRange(0, min_open=True), metavar="X", help="Its peak, dense TFLOP/s.")
@click.option("--peak-bandwidth", type=click.FloatRange(0, min_open=True), metavar="X", help="Its bandwidth, GB/s.")
@click.option("--query-dtype", metavar="NAME", help="Format of queries, as bf16 or fp8.  [default: the model's]")
@click.option("--kv-dtype", metavar="NAME", help="Format of the KV cache.  [default: the model's]")
@_ranks("tp", "tensor_parallel")
@_ranks("dcp", "decode_context_parallel")
@_ranks("attention-dp", "attention_data_parallel")
@_ranks("ep", "expert_parallel")
@click.option(
    "--shared-prefix-tokens",
    type=click.IntRange(0, 10**9),
    default=0,
    metavar="N",
    help="Tokens that all requests have in common.",
)
@click.option(
    "--step",
    type=click.IntRange(0, 10**9),
    metavar="N",
    help="The step whose critical path is shown.  [default: the median of each kind]",
)
@click.option("--annotation", metavar="TEXT", help="A step's label: what it costs, without a trace.")
@click.option("--llm-inference", is_flag=True, help="It is an LLM that runs, though no engine is seen in the trace.")
@click.option(
    "--max-num-seq",
    type=click.IntRange(1, 10**9),
    metavar="N",
    help="Most requests that run at once: more tokens prefill.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Write tables (csv, Parquet) there."
)
@click.option(
    "--figure", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.html", help="Draw the roofline there."
)
@click.option("--force", is_flag=True, help="Replace the output of an earlier run.")
@max_bytes_option
@json_option
@common_options
@pass_terminal
def roofline_command(
    terminal: Terminal,
    /,
    traces: tuple[str, ...],
    model: str | None,
    hardware: str | None,
    peak_tflops: float | None,
    peak_bandwidth: float | None,
    step: int | None,
    annotation: str | None,
    output: Path | None,
    figure: Path | None,
    force: bool,
    as_json: bool,
    max_bytes: int | None,
    llm_inference: bool,
    max_num_seq: int | None,
    **options: Any,  # noqa: ANN401 - how the model was run, see _setting
) -> None:
    """Say how far attention and the whole step are from what the hardware allows, by phase and by layer group.

    From the labels of the steps alone; where a point lies above the roof, what is wrong is said. Without --model the
    attention that op shapes tell is priced; without --hardware the GPU that the trace names is used. TRACE is a file
    (.json, .gz, .zip, .zst, told by content), a glob, a directory of rank files, or - for stdin.
    """
    from tracelens_infer.roofline.hardware import load_hardware, with_overrides
    from tracelens_infer.roofline.model_config import load_model

    shape = load_model(model) if model is not None else None
    setting = _setting(shape, options)
    spec = load_hardware(hardware) if hardware is not None else None
    if spec is not None or (peak_tflops is None) is (peak_bandwidth is None):
        with_overrides(spec, peak_tflops, peak_bandwidth)  # what is wrong with them is told before a trace is read
    if annotation is not None:
        if traces:
            raise UsageError("--annotation", "A trace was given, too.", "Give one of them.")
        spec = with_overrides(spec, peak_tflops, peak_bandwidth)
        _annotation(terminal, annotation, shape, spec, setting, as_json=as_json)
        return
    if not traces:
        raise UsageError("TRACE", "No trace was given.", "Name one, or a step's label with --annotation.")

    from tracelens_infer.report.roofline_output import write_roofline
    from tracelens_infer.report.roofline_summary import notes_of, roofline_dict, typical_steps
    from tracelens_infer.report.roofline_text import roofline_lines
    from tracelens_infer.roofline.roofline import analyze_roofline, hardware_of
    from tracelens_infer.steps.analyze import analyze_steps
    from tracelens_infer.steps.critical_path import critical_path
    from tracelens_infer.trace.source import DEFAULT_MAX_BYTES

    given = GivenTraces(terminal, traces, max_bytes)
    if (output or figure) is not None and given.are_several:
        option, what = ("-o", "one folder") if output is not None else ("--figure", "one file")
        raise UsageError(option, f"Several traces were given, and {what}.", f"Give one trace, or leave {option} away.")
    found: list[dict[str, Any]] = []

    def price(_: Path, file: Path, name: str, progress: Progress | None) -> None:
        analysis = analyze_steps(
            file,
            name=name,
            max_bytes=max_bytes or DEFAULT_MAX_BYTES,
            progress=progress,
            llm_inference=llm_inference,
            max_num_seq=max_num_seq,
        )
        here, unknown = (spec, ()) if spec is not None else hardware_of(analysis.trace.metadata)
        here = with_overrides(here, peak_tflops, peak_bandwidth)
        if here is not None:  # the user's own figures make up for a device that is not known
            unknown = tuple(note for note in unknown if note.code != "no_roof_known")
        roofline = analyze_roofline(analysis, shape, here, setting, unknown)
        steps = [step] if step is not None else typical_steps(analysis.steps.steps)
        paths = [critical_path(analysis, index) for index in steps]
        found.append(roofline_dict(roofline, paths))
        terminal.notes(notes_of(roofline, paths), about=name if given.are_several else "")
        if not as_json:
            terminal.lines(roofline_lines(found[-1]))
        if output is not None:
            write_roofline(roofline, found[-1], output, force=force)
        if figure is not None:
            from tracelens_infer.report.figures import roofline_figure, write_figure

            write_figure(roofline_figure(roofline), figure, force=force)

    given.each(price)
    if as_json:
        terminal.data(found if given.are_several else found[0])
    given.end()


def _setting(model: ModelShape | None, options: dict[str, Any]) -> RooflineSetting:
    """How the model was run: what the options say, else what its config says."""
    from tracelens_infer.roofline.attention import Precision, Ranks
    from tracelens_infer.roofline.attention_costs import AttentionSetting
    from tracelens_infer.roofline.dtypes import dtype_name
    from tracelens_infer.roofline.roofline import RooflineSetting

    query = options["query_dtype"] or (model.activation_dtype if model is not None else "bf16")
    kv = options["kv_dtype"] or (model.kv_dtype if model is not None else query)
    ranks = Ranks(options["tensor_parallel"], options["decode_context_parallel"], options["attention_data_parallel"])
    precision = Precision(dtype_name(query), dtype_name(kv))
    attention = AttentionSetting(precision, ranks, options["shared_prefix_tokens"])
    return RooflineSetting(attention, options["expert_parallel"])


def _annotation(
    terminal: Terminal,
    text: str,
    model: ModelShape | None,
    hardware: HardwareSpec | None,
    setting: RooflineSetting,
    *,
    as_json: bool,
) -> None:
    from tracelens_infer.report.roofline_annotation import annotation_dict, annotation_lines

    if model is None:
        raise UsageError("--annotation", "A label does not tell the model.", "Name it with --model.")
    found = annotation_dict(text, model, hardware, setting.attention)
    if as_json:
        terminal.data(found)
    else:
        terminal.lines(annotation_lines(found))
