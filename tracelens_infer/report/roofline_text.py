"""``tracelens roofline`` for people: attention, where the time goes, whole steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracelens_infer.report.wording import folded, kind_text
from tracelens_infer.roofline.step_split import Part

__all__ = ["roofline_lines"]

_ATTENTION = ("step", "layers", "time/layer", "TFLOP/s", "TB/s", "FLOP/B", "bound by", "of peak", "achievable")
_SHARES = {
    Part.ATTENTION: "attention",
    Part.GEMM: "gemm",
    Part.MOE: "moe",
    Part.OTHER: "other",
    Part.COPIES: "copies",
    Part.COLLECTIVE: "coll.+wait",
    Part.IDLE: "idle",
}
_WHOLE = ("step", "steps", "measured", "serial", "bound", "bound by", "serial/meas.", "bound/meas.")
_CONTRIBUTORS = 3  # of the path, for people; --json has more
_SMALL = 0.1
_NAME = 80  # letters of a kernel's name
_PHASE = {"both": "", "context": ", prefill", "generation": ", decode"}


def roofline_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a roofline (a dict of :func:`roofline_dict`), for a terminal of 100 columns or more."""
    yield from _header(found)
    if found["attention"]:
        yield ""
        yield "Attention of a layer, medians over the steps of a kind (its main kernel and what merges its parts):"
        yield from _table(_ATTENTION, [_attention_cells(row) for row in found["attention"]])
    yield ""
    yield "Where the time of the steps goes:"
    heads = ("step", *_SHARES.values())
    rows = [
        (kind_text(kind), *(f"{shares[part.value]:.1%}" for part in _SHARES))
        for kind, shares in found["time_shares"].items()
    ]
    yield from _table(heads, rows)
    if found["whole_step"]:
        yield ""
        yield "Whole steps at the datasheet's rates, medians (serial: part after part; bound: nothing can be faster):"
        yield from _table(_WHOLE, [_whole_cells(kind, row) for kind, row in found["whole_step"].items()])
    if found["critical_path"]:
        yield ""
        yield "What a step waits for (its critical path; the median step of a kind, unless --step names one):"
        for path in found["critical_path"]:
            yield from _path_lines(path)


def _path_lines(path: Mapping[str, Any]) -> Iterator[str]:
    parts = ", ".join(
        f"{name} {_us(path[f'{name}_us'])}"
        for name in ("host", "launch", "device", "collective", "unknown")
        if path[f"{name}_us"]
    )
    label = f"{kind_text(path['kind'])} step {path['step']:,} of {_us(path['duration_us'])}"
    yield f"  {label}: bound by {path['bound_by']} ({parts})"
    for one in path["contributors"][:_CONTRIBUTORS]:
        name = one["name"] if len(one["name"]) <= _NAME else f"{one['name'][: _NAME - 3]}..."
        yield f"    {one['share']:6.1%}  {name}"


def _header(found: Mapping[str, Any]) -> Iterator[str]:
    model, hardware = found["model"], found["hardware"]
    name = (model or {}).get("name") or "unknown"
    yield from folded(f"{name}", "Model:    ")
    if hardware is None:
        yield "Hardware: no roof known"
        return
    peaks = ", ".join(
        f"{dtype} {peak['datasheet_tflops']:,.0f} TFLOP/s"
        for dtype, peak in hardware["peaks"].items()
        if peak["datasheet_tflops"] is not None
    )
    bandwidth = f"{hardware['tb_per_s']:.2f} TB/s" if hardware["tb_per_s"] is not None else "bandwidth unknown"
    by_size = any(note["code"] == "hardware_by_size" for note in found["notes"])
    name = f"{hardware['name']} (told by its size: the trace does not name it)" if by_size else hardware["name"]
    yield from folded(f"{name}: {peaks or 'peak unknown'} and {bandwidth} at most", "Hardware: ")


def _attention_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    label = f"{kind_text(row['kind'])}{_PHASE[row['phase']]}"
    if row["group"] != "all":
        label += f", {row['group']}"
    return (
        label,
        _number(row["layers"], ".0f"),
        _us(row["layer_us"]),
        _rate_range(row["tflops_low"], row["tflops"]),
        _rate_range(row["tb_per_s_low"], row["tb_per_s"]),
        _number(row["intensity_flop_per_byte"], ",.1f"),
        row["bound_by"] or "-",
        _range(row["pct_peak_low"], row["pct_peak"], ".1f", "%"),
        _number(row["pct_achievable"], ".1f", "%"),
    )


def _whole_cells(kind: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        kind_text(kind),
        f"{row['steps']:,}",
        _us(row["measured_us"]),
        _us(row["serial_us"]),
        _us(row["bound_us"]),
        row["bound_by"],
        _number(row["pct_serial"], ".1f", "%"),
        _number(row["pct_bound"], ".1f", "%"),
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(len(line[place]) for line in (heads, *rows)) for place in range(len(heads))]
    for line in (heads, *rows):
        cells = [
            cell.ljust(width) if not place else cell.rjust(width) for place, (cell, width) in _placed(line, widths)
        ]
        yield f"  {'  '.join(cells)}".rstrip()


def _placed(line: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[int, tuple[str, int]]]:
    return iter(enumerate(zip(line, widths, strict=True)))


def _us(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:,.2f} ms" if value >= 1000 else f"{value:,.1f} us"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _rate(value: float | None) -> str:
    """Three digits behind the point, or two that count where there are none before it: a CPU reads 0.0042 TB/s."""
    if value is None:
        return "-"
    return f"{value:,.3f}" if value >= _SMALL else f"{value:.2g}"


def _rate_range(low: float | None, high: float | None) -> str:
    first, last = _rate(low), _rate(high)
    return last if first == last or low is None else f"{first}-{last}"


def _range(low: float | None, high: float | None, form: str, unit: str = "") -> str:
    """One number where both are the same as written, else both."""
    first, last = _number(low, form), _number(high, form)
    if high is None:
        return last
    return f"{last}{unit}" if first == last or low is None else f"{first}-{last}{unit}"
