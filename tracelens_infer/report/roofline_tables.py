"""A roofline as tables: attention points, and whole steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tracelens_infer.roofline.attention_points import AttentionPoints
from tracelens_infer.roofline.measured_attention import SERVES, AttentionCalls
from tracelens_infer.roofline.model import AttentionShape, ModelShape
from tracelens_infer.roofline.roofline import Roofline
from tracelens_infer.roofline.step_split import Part
from tracelens_infer.steps.table import Cell, Kind, Table

__all__ = ["attention_text", "group_text", "points_table", "steps_table"]

_TERA = 1e12
_PERCENT = 100.0

Column = tuple[str, Kind, list[Cell]]


def points_table(roofline: Roofline) -> Table:
    """One row a step, phase and layer group: measured attention beside its roof. Empty columns where unknown."""
    points = roofline.points
    if points is None:
        return _measured_only(roofline)
    columns = [
        *_measured_columns(roofline, points),
        ("layers", "int", _ints(points.layers)),
        ("measured_us", "float", _floats(points.measured_ns / 1000)),
        ("layer_us", "float", _floats(points.measured_ns / 1000 / np.maximum(points.layers, 1))),
        *_work_columns(points),
        ("intensity_flop_per_byte", "float", _floats(points.intensity)),
        *_roof_columns(roofline, points),
    ]
    return _table(columns)


def _measured_columns(roofline: Roofline, points: AttentionPoints) -> list[Column]:
    steps = roofline.analysis.steps.steps
    return [
        ("step", "int", [steps[at].index for at in points.step.tolist()]),
        ("kind", "text", [steps[at].kind.value for at in points.step.tolist()]),
        ("phase", "text", [SERVES[serves].value for serves in points.serves.tolist()]),
        ("group", "text", [group_text(roofline.calls, roofline.model, group) for group in points.group.tolist()]),
        ("calls", "int", _ints(points.calls)),
    ]


def _work_columns(points: AttentionPoints) -> list[Column]:
    amounts = {
        "flops_low": points.flops.low,
        "flops": points.flops.high,
        "bytes_low": points.bytes.low,
        "bytes": points.bytes.high,
        "document_flops": points.document_flops,
        "document_bytes": points.document_bytes,
    }
    rates = {
        "tflops_low": points.flops.low,
        "tflops": points.flops.high,
        "tb_per_s_low": points.bytes.low,
        "tb_per_s": points.bytes.high,
        "document_tb_per_s": points.document_bytes,
    }
    return [
        *((name, "int", _ints(amount, points.known)) for name, amount in amounts.items()),
        *((name, "float", _floats(points.rate(amount) / _TERA)) for name, amount in rates.items()),
    ]


def _roof_columns(roofline: Roofline, points: AttentionPoints) -> list[Column]:
    hardware = roofline.hardware
    empty: list[Cell] = [None] * len(points)
    if hardware is None:
        names: tuple[tuple[str, Kind], ...] = (
            ("ridge_flop_per_byte", "float"),
            ("bound_by", "text"),
            ("pct_peak_low", "float"),
            ("pct_peak", "float"),
            ("pct_achievable", "float"),
            ("verdict", "text"),
        )
        return [(name, kind, empty) for name, kind in names]
    bandwidth = hardware.bandwidth_bytes() or np.nan
    compute = points.is_compute_bound(hardware)
    known = np.isfinite(points.percent(hardware))
    above, beyond = points.is_above_roof(hardware), points.is_above_roof(hardware, low=False)
    return [
        ("ridge_flop_per_byte", "float", _floats(points.peak(hardware) / bandwidth)),
        (
            "bound_by",
            "text",
            [("compute" if by else "memory") if told else None for by, told in zip(compute, known, strict=True)],
        ),
        ("pct_peak_low", "float", _floats(points.percent(hardware, low=True))),
        ("pct_peak", "float", _floats(points.percent(hardware))),
        ("pct_achievable", "float", _floats(points.percent(hardware, achievable=True))),
        (
            "verdict",
            "text",
            [
                "above_the_roof" if no else "kv_shared_or_cached" if high else None
                for no, high in zip(above, beyond, strict=True)
            ],
        ),
    ]


def _measured_only(roofline: Roofline) -> Table:
    """Without a model: times."""
    times, steps = roofline.calls.group_times(), roofline.analysis.steps.steps
    return _table(
        [
            ("step", "int", [steps[at].index for at in times.step.tolist()]),
            ("kind", "text", [steps[at].kind.value for at in times.step.tolist()]),
            ("phase", "text", [SERVES[serves].value for serves in times.serves.tolist()]),
            ("group", "text", [group_text(roofline.calls, None, group) for group in times.group.tolist()]),
            ("calls", "int", _ints(times.calls)),
            ("measured_us", "float", _floats(times.duration_ns / 1000)),
        ]
    )


def steps_table(roofline: Roofline) -> Table:
    """One row a step: where its time goes, and how far it is from its bounds."""
    steps, split, whole = roofline.analysis.steps.steps, roofline.split, roofline.whole
    columns: list[Column] = [
        ("step", "int", [step.index for step in steps]),
        ("kind", "text", [step.kind.value for step in steps]),
        ("duration_us", "float", [step.duration_ns / 1000 for step in steps]),
        *((f"{part.value}_us", "float", _floats(split.part_ns(part) / 1000)) for part in Part),
        ("hidden_collective_us", "float", _floats(split.hidden_collective_ns / 1000)),
        ("unknown_kernels_us", "float", _floats(split.unknown_ns / 1000)),
    ]
    if whole is not None:
        measured = np.where(whole.measured_ns > 0, whole.measured_ns, np.nan)
        columns += [
            ("bound_us", "float", _floats(whole.bound_ns / 1000)),
            ("serial_us", "float", _floats(whole.serial_ns / 1000)),
            ("bound_by", "text", list(whole.bound_by)),
            ("pct_bound", "float", _floats(_PERCENT * whole.bound_ns / measured)),
            ("pct_serial", "float", _floats(_PERCENT * whole.serial_ns / measured)),
        ]
    columns += [
        (f"{family.value}_sum_us", "float", _floats(split.family_ns[:, place] / 1000))
        for place, family in enumerate(split.families)
    ]
    return _table(columns)


def group_text(calls: AttentionCalls, model: ModelShape | None, group: int) -> str:
    """What is this group of layers called? ``full``, ``window 128``, or its number where no model tells."""
    found = next((one for one in calls.groups if one.number == group), None)
    if found is None or found.kind is None or model is None or not found.model_layers:
        return "all" if len(calls.groups) <= 1 else f"group {group}"
    return attention_text(model.layers[found.model_layers[0]].attention)


def attention_text(shape: AttentionShape) -> str:
    """What is attention of this shape called? ``full``, ``window 128``, ``sparse_topk 2048``."""
    tokens = shape.window_tokens or shape.topk_tokens
    return f"{shape.kind.value} {tokens}" if tokens else shape.kind.value


def _table(columns: Iterable[Column]) -> Table:
    names, kinds, cells = zip(*columns, strict=True)
    return Table(names, kinds, cells)


def _ints(values: Any, known: Any = None) -> list[Cell]:  # noqa: ANN401 - arrays of any integers
    cells: list[Cell] = values.tolist()
    return cells if known is None else [cell if told else None for cell, told in zip(cells, known, strict=True)]


def _floats(values: Any) -> list[Cell]:  # noqa: ANN401 - arrays of any numbers
    return [cell if np.isfinite(cell) else None for cell in np.asarray(values, dtype=np.float64).tolist()]
