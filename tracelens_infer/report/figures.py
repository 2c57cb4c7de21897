"""Figures of results, as plotly draws them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_infer.errors import UsageError
from tracelens_infer.report.roofline_tables import group_text
from tracelens_infer.report.wording import kind_text
from tracelens_infer.roofline.attention_points import AttentionPoints
from tracelens_infer.roofline.hardware import HardwareSpec
from tracelens_infer.roofline.measured_attention import SERVES
from tracelens_infer.roofline.roofline import Roofline

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["roofline_figure", "write_figure"]

_TERA = 1e12
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
_ROOF, _ACHIEVABLE = "#222222", "#888888"
_DECADES = 0.5  # on both sides of the points and the ridge
_DRAWN = 5000  # points a cloud; more make the file large and show nothing new
_PHASES = {"both": "", "context": ", prefill", "generation": ", decode"}


def roofline_figure(roofline: Roofline) -> go.Figure | None:
    """How far from the roof is attention? Points of each kind of step, phase and layer group under the roof.

    Both axes are logarithmic: FLOP a byte, and TFLOP/s. A point stands for a group's layers in one step, by the upper
    bounds of FLOPs and bytes. None where there is no point to draw.
    """
    import plotly.graph_objects as go

    points = roofline.points
    if points is None or not np.isfinite(points.intensity).any():
        return None
    figure = go.Figure(layout=_layout(roofline))
    for trace in _clouds(roofline, points):
        figure.add_trace(trace)
    if roofline.hardware is not None:
        for trace in _roofs(points, roofline.hardware):
            figure.add_trace(trace)
    return figure


def write_figure(figure: go.Figure | None, path: Path, *, force: bool) -> None:
    """Write a figure as an HTML file that needs no network.

    Raises UsageError where the file is there and ``force`` is not given, and where there is nothing to draw.
    """
    if figure is None:
        raise UsageError(str(path), "There is no attention whose work is known: nothing to draw.", "See the notes.")
    if path.exists() and not force:
        raise UsageError(str(path), "There is a file of this name.", "Replace it with --force, or name another one.")
    try:
        path.write_text(figure.to_html(include_plotlyjs=True, full_html=True), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            str(path), f"It cannot be written: {error.strerror or error}.", "Name another file."
        ) from error


def _layout(roofline: Roofline) -> dict[str, Any]:
    model = roofline.model.name if roofline.model is not None else "unknown model"
    hardware = f" on {roofline.hardware.name}" if roofline.hardware is not None else ""
    return {
        "title": {"text": f"Attention of {model}{hardware}"},
        "xaxis": {"title": {"text": "FLOP/B"}, "type": "log"},
        "yaxis": {"title": {"text": "TFLOP/s"}, "type": "log"},
        "template": "plotly_white",
        "legend": {"orientation": "h", "y": -0.2},
    }


def _clouds(roofline: Roofline, points: AttentionPoints) -> Iterator[go.Scatter]:
    import plotly.graph_objects as go

    steps = roofline.analysis.steps.steps
    kinds = np.array([step.kind.value for step in steps])[points.step]
    rates, intensity = points.rate(points.flops.high) / _TERA, points.intensity
    drawable = np.isfinite(rates) & np.isfinite(intensity) & (rates > 0)
    number = 0
    for kind in dict.fromkeys(kinds.tolist()):
        for serves, group in np.unique(np.stack([points.serves, points.group])[:, kinds == kind], axis=1).T.tolist():
            at = np.flatnonzero((kinds == kind) & (points.serves == serves) & (points.group == group) & drawable)
            if not len(at):
                continue
            at = at[:: -(-len(at) // _DRAWN)]
            name = (
                f"{kind_text(kind)}{_PHASES[SERVES[serves].value]}, {group_text(roofline.calls, roofline.model, group)}"
            )
            yield go.Scatter(
                x=intensity[at].tolist(),
                y=rates[at].tolist(),
                mode="markers",
                name=name,
                text=[f"step {steps[place].index}" for place in points.step[at].tolist()],
                marker={"size": 7, "opacity": 0.6, "color": _COLOURS[number % len(_COLOURS)]},
            )
            number += 1


def _roofs(points: AttentionPoints, hardware: HardwareSpec) -> Iterator[go.Scatter]:
    """The datasheet's roof of each number format, and below it what was measured where a source has that."""
    import plotly.graph_objects as go

    bandwidth = hardware.bandwidth_bytes()
    if bandwidth is None:
        return
    intensity = points.intensity[np.isfinite(points.intensity) & (points.intensity > 0)]
    for dtype in points.dtypes:
        for achievable, colour in ((False, _ROOF), (True, _ACHIEVABLE)):
            peak = hardware.peak_flops(dtype, achievable=achievable)
            if peak is None:
                continue
            ridge = peak / bandwidth
            low = min(float(intensity.min()), ridge) / 10**_DECADES
            high = max(float(intensity.max()), ridge) * 10**_DECADES
            yield go.Scatter(
                x=[low, ridge, high],
                y=[low * bandwidth / _TERA, peak / _TERA, peak / _TERA],
                mode="lines",
                name=f"{dtype} {'achievable' if achievable else 'datasheet'}, ridge {ridge:,.0f} FLOP/B",
                line={"color": colour, "dash": "dash" if achievable else "solid", "width": 2},
            )
