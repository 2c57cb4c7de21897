"""What does a step with this label cost? The roofline of a text, without a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracelens_infer import __version__
from tracelens_infer.errors import UsageError
from tracelens_infer.report.roofline_tables import attention_text
from tracelens_infer.roofline.attention import AttentionCost, Phase, attention_cost
from tracelens_infer.roofline.attention_costs import AttentionSetting
from tracelens_infer.roofline.hardware import HardwareSpec
from tracelens_infer.roofline.model import LayerGroup, ModelShape
from tracelens_infer.steps.annotation import parse_annotation

__all__ = ["SCHEMA_VERSION", "annotation_dict", "annotation_lines"]

SCHEMA_VERSION = 1
_GIGA, _MEGA, _MICROSECONDS = 1e9, 1e6, 1e6


def annotation_dict(
    text: str, model: ModelShape, hardware: HardwareSpec | None, setting: AttentionSetting
) -> dict[str, Any]:
    """What does the attention of a step with this label have to compute and read, a layer of each group?

    Raises UsageError where the text is no step's label, or does not tell the sums over requests.
    """
    annotation = parse_annotation(text)
    if annotation is None or annotation.load is None or not annotation.load.has_sums:
        reason = "It is no step's label." if annotation is None else "It does not tell the sums over requests."
        raise UsageError(f"--annotation {text!r}", reason, "docs/annotations.md shows labels that do.")
    rows = []
    for group in model.layer_groups():
        for phase in Phase:
            load = getattr(annotation.load, phase.value)
            if not load.requests:
                continue
            cost = attention_cost(
                load,
                group.attention,
                phase,
                precision=setting.precision,
                ranks=setting.ranks,
                shared_prefix_tokens=setting.shared_prefix_tokens,
            )
            if cost is not None:
                rows.append(_row(group, cost, hardware))
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "annotation": text,
        "format": annotation.format,
        "model": model.name,
        "hardware": hardware.name if hardware is not None else None,
        "attention": rows,
    }


def _row(group: LayerGroup, cost: AttentionCost[int], hardware: HardwareSpec | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "phase": cost.phase.value,
        "group": attention_text(group.attention),
        "layers": len(group.layers),
        "form": cost.form.value,
        "flops_low": cost.flops.low,
        "flops": cost.flops.high,
        "bytes_low": cost.bytes.low,
        "bytes": cost.bytes.high,
        "document_flops": cost.document_flops,
        "document_bytes": cost.document_bytes,
        "intensity_flop_per_byte": cost.flops.high / cost.bytes.high if cost.bytes.high else None,
        "attainable_us_low": None,
        "attainable_us": None,
        "bound_by": None,
    }
    peak = hardware.peak_flops(cost.multiply_dtype) if hardware is not None else None
    bandwidth = hardware.bandwidth_bytes() if hardware is not None else None
    if peak is None or bandwidth is None:
        return row
    computing, reading = cost.flops.high / peak, cost.bytes.high / bandwidth
    return row | {
        "attainable_us_low": _MICROSECONDS * max(cost.flops.low / peak, cost.bytes.low / bandwidth),
        "attainable_us": _MICROSECONDS * max(computing, reading),
        "bound_by": "compute" if computing >= reading else "memory",
    }


def annotation_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The lines of :func:`annotation_dict` for a terminal."""
    yield f"{found['model']} on {found['hardware'] or 'unknown hardware'}, a layer of each group, one rank:"
    for row in found["attention"]:
        flops, read = _range(row, "flops", _GIGA, "GFLOP"), _range(row, "bytes", _MEGA, "MB")
        intensity = row["intensity_flop_per_byte"]
        ratio = "nothing to read" if intensity is None else f"{intensity:,.2f} FLOP/B"
        yield f"  {row['phase']}, {row['layers']} x {row['group']}: {flops}, {read}, {ratio}"
        if row["bound_by"] is not None:
            yield f"    at least {_range(row, 'attainable_us', 1.0, 'us')}, bound by {row['bound_by']}"
        if (row["document_flops"], row["document_bytes"]) != (row["flops"], row["bytes"]):
            document = (row["document_flops"], row["document_bytes"])
            if None not in document:
                yield f"    by the document's formula {document[0] / _GIGA:,.3f} GFLOP, {document[1] / _MEGA:,.3f} MB"


def _range(row: Mapping[str, Any], name: str, scale: float, unit: str) -> str:
    low, high = f"{row[f'{name}_low'] / scale:,.3f}", f"{row[name] / scale:,.3f}"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"
