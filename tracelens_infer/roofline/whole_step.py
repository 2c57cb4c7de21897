"""How fast could each step be? Nothing can be faster than ``bound``; ``serial`` is to be expected without overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.roofline.attention import Phase
from tracelens_infer.roofline.attention_costs import AttentionCosts
from tracelens_infer.roofline.hardware import HardwareSpec
from tracelens_infer.roofline.linear import FloatArray, PartCost, Spread, linear_parts
from tracelens_infer.roofline.model import ModelShape
from tracelens_infer.steps.step import Step
from tracelens_infer.trace.columns import RowArray

__all__ = ["WholeSteps", "whole_steps"]

_NS = 1e9
_LIMITS = ("compute", "memory", "link")


@dataclass(frozen=True, slots=True, eq=False)
class WholeSteps:
    """Bounds of whole steps. One row a step; NaN where the label does not tell the step's tokens, or it has none.

    Attributes:
        measured_ns: the step's duration; of an asynchronous engine at least the time that its work took.
        bound_ns: the longest of all computing, all reading, all sending: nothing can be faster.
        serial_ns: each part in turn, at its own roof: to be expected without overlap.
        bound_by: compute, memory or link; empty where unknown.
        parts: what the steps consist of.
        notes: rates that are not known.
    """

    measured_ns: FloatArray
    bound_ns: FloatArray
    serial_ns: FloatArray
    bound_by: tuple[str, ...]
    parts: tuple[PartCost, ...]
    notes: tuple[Note, ...] = ()


def whole_steps(
    steps: Sequence[Step],
    model: ModelShape,
    hardware: HardwareSpec,
    costs: AttentionCosts,
    spread: Spread,
) -> WholeSteps:
    """How fast could each of these steps be on this hardware?

    From the sums in their labels, by docs/roofline.md. ``costs`` are those of the same steps.
    """
    context, generation = costs.loads[Phase.CONTEXT], costs.loads[Phase.GENERATION]
    tokens = (context.query_tokens + generation.query_tokens).astype(np.float64)
    sampled_low = generation.query_tokens.astype(np.float64)  # a prompt's middle chunks sample nothing
    sampled = sampled_low + context.requests
    parts = (
        *_attention_parts(costs, model),
        *linear_parts(model, tokens, sampled_low, sampled, spread),
    )
    known = costs.told & (tokens > 0)
    missing = _missing_rates(parts, hardware)
    bound, limit = _bound(parts, hardware)
    serial = _serial(parts, hardware)
    bound[~known], serial[~known] = np.nan, np.nan
    measured = np.array([max(step.duration_ns, step.device_busy_ns) for step in steps], dtype=np.float64)
    by = tuple(_LIMITS[at] if told else "" for at, told in zip(limit.tolist(), known.tolist(), strict=True))
    return WholeSteps(measured, bound, serial, by, parts, tuple(missing))


def _attention_parts(costs: AttentionCosts, model: ModelShape) -> Iterator[PartCost]:
    """Attention as parts of the step: one a phase and group of layers."""
    for group in model.layer_groups():
        for phase in Phase:
            cost = costs.of(group.attention, phase)
            if cost is None:
                continue  # attention_points says so
            times = len(group.layers)
            nothing = np.zeros(len(costs.told))
            yield PartCost(
                f"attention_{phase.value}",
                times,
                cost.multiply_dtype,
                times * cost.flops.low.astype(np.float64),
                times * cost.bytes.low.astype(np.float64),
                times * cost.bytes.high.astype(np.float64),
                nothing,
            )


def _missing_rates(parts: Sequence[PartCost], hardware: HardwareSpec) -> Iterator[Note]:
    unknown = sorted({part.dtype for part in parts if part.flops.any() and hardware.peak_flops(part.dtype) is None})
    if unknown:
        formats = ", ".join(unknown)
        text = f"The peak of {hardware.name} is not known for {formats}: what computes in it counts as reading only."
        yield Note("warning", "peak_unknown", text)
    if hardware.link_bytes() is None and any(part.link_bytes.any() for part in parts):
        text = f"The links of {hardware.name} are not known: collectives are left out of the bounds."
        yield Note("warning", "link_unknown", text)


def _times(part: PartCost, hardware: HardwareSpec, *, low: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How long does a part compute, read and send, in ns? 0 at an unknown rate."""
    peak, bandwidth, link = hardware.peak_flops(part.dtype), hardware.bandwidth_bytes(), hardware.link_bytes()
    computing = part.flops / peak * _NS if peak else np.zeros_like(part.flops)
    moved = part.bytes_low if low else part.bytes
    reading = moved / bandwidth * _NS if bandwidth else np.zeros_like(moved)
    sending = part.link_bytes / link * _NS if link else np.zeros_like(part.link_bytes)
    return computing, reading, sending


def _bound(parts: Sequence[PartCost], hardware: HardwareSpec) -> tuple[FloatArray, RowArray]:
    totals = np.array([_times(part, hardware, low=True) for part in parts]).sum(axis=0)
    return totals.max(axis=0), totals.argmax(axis=0)


def _serial(parts: Sequence[PartCost], hardware: HardwareSpec) -> FloatArray:
    return np.asarray(sum(np.maximum.reduce(_times(part, hardware, low=False)) for part in parts))
