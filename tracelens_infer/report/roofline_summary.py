"""A roofline in few numbers, as plain values: the content of ``tracelens roofline --json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens_infer import __version__
from tracelens_infer.notes import Note
from tracelens_infer.report.manifest import note_dict, trace_dict
from tracelens_infer.report.roofline_tables import group_text
from tracelens_infer.roofline.attention_points import AttentionPoints
from tracelens_infer.roofline.measured_attention import SERVES
from tracelens_infer.roofline.roofline import Roofline
from tracelens_infer.roofline.step_split import Part
from tracelens_infer.steps.critical_path import CriticalPath, median_step
from tracelens_infer.steps.step import Step, StepKind

__all__ = ["SCHEMA_VERSION", "notes_of", "roofline_dict", "typical_steps"]

SCHEMA_VERSION = 1
_TERA = 1e12


def typical_steps(steps: Sequence[Step]) -> list[int]:
    """Which step is the median of each kind that runs something? For the critical path."""
    kinds = dict.fromkeys(step.kind for step in steps if step.kind not in (StepKind.EMPTY, StepKind.DUMMY))
    found = [median_step(steps, kind) for kind in kinds]
    return [index for index in found if index is not None]


def roofline_dict(roofline: Roofline, paths: Sequence[CriticalPath] = ()) -> dict[str, Any]:
    """How far are attention and the steps from the roof? Medians over the steps of a kind, shares of their time.

    ``paths`` are the critical paths of some of its steps.
    """
    analysis = roofline.analysis
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        **trace_dict(analysis.trace),
        "model": _model(roofline),
        "hardware": _hardware(roofline),
        "steps": len(analysis.steps.steps),
        "layers_with_attention": roofline.calls.layers,
        "layers_grouped_by": roofline.calls.grouped_by.value if roofline.calls.grouped_by else None,
        "attention": _attention(roofline),
        "time_shares": _shares(roofline),
        "whole_step": _whole(roofline),
        "critical_path": [_path(roofline, path) for path in paths],
        "notes": [note_dict(note) for note in notes_of(roofline, paths)],
    }


def notes_of(roofline: Roofline, paths: Sequence[CriticalPath] = ()) -> tuple[Note, ...]:
    """What there is to say about a trace, its roofline, and the critical paths of some of its steps."""
    return (*roofline.analysis.notes, *roofline.notes, *(note for path in paths for note in path.notes))


def _path(roofline: Roofline, path: CriticalPath) -> dict[str, Any]:
    """What bounds one step, and what takes most of that."""
    return {
        "step": path.step,
        "kind": roofline.analysis.steps.steps[path.step].kind.value,
        "bound_by": path.bound_by.value,
        "found_by": path.source.value,
        "duration_us": roofline.analysis.steps.steps[path.step].duration_ns / 1000,
        "length_us": path.length_ns / 1000,
        "host_us": path.host_ns / 1000,
        "launch_us": path.launch_ns / 1000,
        "device_us": path.device_ns / 1000,
        "collective_us": path.collective_ns / 1000,
        "unknown_us": path.unknown_ns / 1000,
        "contributors": [
            {"name": one.name, "bound": one.bound.value, "duration_us": one.duration_ns / 1000, "share": one.share}
            for one in path.contributors
        ],
    }


def _model(roofline: Roofline) -> dict[str, Any] | None:
    model, observed = roofline.model, roofline.observed
    shapes = {
        "query_heads": observed.query_heads,
        "kv_heads": observed.kv_heads,
        "d_qk": observed.d_qk,
        "d_v": observed.d_v,
        "layers": observed.layers,
    }
    if model is None:
        return {"name": None, "observed_in_trace": shapes}
    return {"name": model.name, "source": model.source, "layers": len(model.layers), "observed_in_trace": shapes}


def _hardware(roofline: Roofline) -> dict[str, Any] | None:
    hardware = roofline.hardware
    if hardware is None:
        return None
    dtypes = roofline.points.dtypes if roofline.points is not None else ()
    peaks = {}
    for dtype in dtypes:
        datasheet, achievable = hardware.peak_flops(dtype), hardware.peak_flops(dtype, achievable=True)
        peaks[dtype] = {
            "datasheet_tflops": None if datasheet is None else datasheet / _TERA,
            "achievable_tflops": None if achievable is None else achievable / _TERA,
        }
    bandwidth = hardware.bandwidth_bytes()
    return {"name": hardware.name, "peaks": peaks, "tb_per_s": None if bandwidth is None else bandwidth / _TERA}


def _attention(roofline: Roofline) -> list[dict[str, Any]]:
    points = roofline.points
    if points is None or not len(points):
        return []
    kinds = np.array([step.kind.value for step in roofline.analysis.steps.steps])[points.step]
    found = []
    for kind in dict.fromkeys(kinds.tolist()):
        for serves, group in np.unique(np.stack([points.serves, points.group])[:, kinds == kind], axis=1).T.tolist():
            rows = (kinds == kind) & (points.serves == serves) & (points.group == group)
            found.append(_row(roofline, points, kind, int(serves), int(group), rows))
    return found


def _row(
    roofline: Roofline, points: AttentionPoints, kind: str, serves: int, group: int, rows: np.ndarray[Any, Any]
) -> dict[str, Any]:
    hardware = roofline.hardware
    per_layer = points.measured_ns[rows] / np.maximum(points.layers[rows], 1) / 1000
    row = {
        "kind": kind,
        "phase": SERVES[serves].value,
        "group": group_text(roofline.calls, roofline.model, group),
        "points": int(rows.sum()),
        "layers": _median(points.layers[rows]),
        "layer_us": _median(per_layer),
        "tflops_low": _median(points.rate(points.flops.low)[rows] / _TERA),
        "tflops": _median(points.rate(points.flops.high)[rows] / _TERA),
        "tb_per_s_low": _median(points.rate(points.bytes.low)[rows] / _TERA),
        "tb_per_s": _median(points.rate(points.bytes.high)[rows] / _TERA),
        "document_tb_per_s": _median(points.rate(points.document_bytes)[rows] / _TERA),
        "intensity_flop_per_byte": _median(points.intensity[rows]),
        "ridge_flop_per_byte": None,
        "bound_by": None,
        "pct_peak_low": None,
        "pct_peak": None,
        "pct_achievable": None,
        "above_the_roof": None,
    }
    if hardware is not None:
        percent = points.percent(hardware)[rows]
        told = bool(np.isfinite(percent).any())
        compute = float(points.is_compute_bound(hardware)[rows].mean()) >= 0.5
        row |= {
            "ridge_flop_per_byte": _median(points.peak(hardware)[rows] / (hardware.bandwidth_bytes() or np.nan)),
            "bound_by": ("compute" if compute else "memory") if told else None,
            "pct_peak_low": _median(points.percent(hardware, low=True)[rows]),
            "pct_peak": _median(percent),
            "pct_achievable": _median(points.percent(hardware, achievable=True)[rows]),
            "above_the_roof": int(points.is_above_roof(hardware)[rows].sum()),
        }
    return row


def _shares(roofline: Roofline) -> dict[str, dict[str, float]]:
    """Of each kind of step: the parts' shares of their time together, and that of collectives hidden behind others."""
    split, steps = roofline.split, roofline.analysis.steps.steps
    kinds = np.array([step.kind.value for step in steps])
    found = {}
    for kind in dict.fromkeys(kinds.tolist()):
        own = kinds == kind
        total = max(int(split.total_ns[own].sum()), 1)
        parts = {part.value: int(split.part_ns(part)[own].sum()) / total for part in Part}
        found[kind] = parts | {"collective_hidden": int(split.hidden_collective_ns[own].sum()) / total}
    return found


def _whole(roofline: Roofline) -> dict[str, dict[str, Any]]:
    whole, steps = roofline.whole, roofline.analysis.steps.steps
    if whole is None:
        return {}
    kinds = np.array([step.kind.value for step in steps])
    found = {}
    for kind in dict.fromkeys(kinds.tolist()):
        own = (kinds == kind) & np.isfinite(whole.bound_ns)
        if not own.any():
            continue
        measured = np.where(whole.measured_ns[own] > 0, whole.measured_ns[own], np.nan)
        bound_by = [whole.bound_by[at] for at in np.flatnonzero(own).tolist()]
        found[kind] = {
            "steps": int(own.sum()),
            "measured_us": _median(measured / 1000),
            "serial_us": _median(whole.serial_ns[own] / 1000),
            "bound_us": _median(whole.bound_ns[own] / 1000),
            "bound_by": max(set(bound_by), key=bound_by.count),
            "pct_serial": _median(100 * whole.serial_ns[own] / measured),
            "pct_bound": _median(100 * whole.bound_ns[own] / measured),
        }
    return found


def _median(values: Any) -> float | None:  # noqa: ANN401 - arrays of any numbers
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    return float(np.median(finite)) if len(finite) else None
