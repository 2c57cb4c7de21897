"""analyze_roofline(): how far are attention and the whole step from what the hardware allows?"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.roofline.attention_costs import AttentionCosts, AttentionSetting
from tracelens_infer.roofline.attention_kernels import attention_calls
from tracelens_infer.roofline.attention_points import AttentionPoints, attention_points
from tracelens_infer.roofline.hardware import HardwareSpec
from tracelens_infer.roofline.hardware_match import match_hardware
from tracelens_infer.roofline.linear import Spread
from tracelens_infer.roofline.measured_attention import AttentionCalls
from tracelens_infer.roofline.model import ModelShape
from tracelens_infer.roofline.model_from_shapes import ObservedShape, observed_shape, shape_notes
from tracelens_infer.roofline.observed_model import UNTOLD, observed_model
from tracelens_infer.roofline.step_split import StepSplit, step_split
from tracelens_infer.roofline.whole_step import WholeSteps, whole_steps
from tracelens_infer.steps.analyze import StepAnalysis
from tracelens_infer.steps.kernel_families import NamedRows, named_rows
from tracelens_infer.trace.columns import TraceMetadata

__all__ = ["Roofline", "RooflineSetting", "analyze_roofline", "hardware_of"]


_UNKNOWN_SHARE = 0.02  # on every trace that was looked at it was less


@dataclass(frozen=True, slots=True)
class RooflineSetting:
    """What no trace tells: how attention was run, and over how many ranks the experts are spread."""

    attention: AttentionSetting = field(default_factory=AttentionSetting)
    expert_parallel: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Roofline:
    """How far are the steps of a trace from the roof? One rank's.

    Attributes:
        model: None where no model was given and the trace tells none: times only.
        hardware: None where no roof is known: rates, but no percentages.
        observed: what op shapes tell about the model.
        calls: every measured main kernel of attention.
        points: attention beside its roof; None without a model.
        split: where each step's time goes.
        whole: bounds of whole steps; None without a model or a roof.
        notes: what is missing, contradicts itself, or cannot be.
    """

    analysis: StepAnalysis
    model: ModelShape | None
    hardware: HardwareSpec | None
    setting: RooflineSetting
    observed: ObservedShape
    calls: AttentionCalls
    points: AttentionPoints | None
    split: StepSplit
    whole: WholeSteps | None
    notes: tuple[Note, ...]


def hardware_of(metadata: TraceMetadata) -> tuple[HardwareSpec | None, tuple[Note, ...]]:
    """On which hardware was a trace recorded? By the device's name, else by its size; None where no roof is known."""
    if not metadata.devices:
        advice = "--hardware, or --peak-tflops and --peak-bandwidth, give one"
        text = f"The trace names no device, so no roof is known; {advice}."
        return None, (Note("warning", "no_roof_known", text),)
    device = metadata.devices[0]
    match = match_hardware(device.name, device.num_sms, device.memory_bytes)
    return match.spec, match.notes


def analyze_roofline(
    analysis: StepAnalysis,
    model: ModelShape | None,
    hardware: HardwareSpec | None,
    setting: RooflineSetting | None = None,
    notes_before: tuple[Note, ...] = (),
) -> Roofline:
    """How far are attention and the whole step from what the hardware allows, step by step?

    From the aggregates in the annotations alone. ``model`` is the whole model, ``setting`` says how it is spread; times
    are those of the rank that was recorded. ``notes_before`` go before its own. Reads names, and the shapes of a few
    steps, from the file again.
    """
    setting = setting or RooflineSetting()
    named = _names_of_steps(analysis)
    observed = observed_shape(analysis.trace, analysis.steps)
    given = model is not None
    if model is None:
        model = observed_model(observed, setting.attention.ranks)
    calls = attention_calls(analysis, model=model, named=named)
    split = step_split(analysis, named)
    points, whole = None, None
    notes = [*notes_before, *observed.notes, *calls.notes]
    if model is None:
        text = "No model was given: times are shown, but not what had to be computed and read. --model names one."
        notes.append(Note("warning", "model_unknown", text))
    else:
        notes += [*model.notes, *(shape_notes(observed, model, setting.attention.ranks) if given else ())]
        costs = AttentionCosts(analysis.steps.steps, setting.attention)
        points = attention_points(calls, analysis.steps.steps, model, costs)
        notes += points.notes
        if hardware is not None:
            notes += _impossible(points, hardware)
            if model.hidden != UNTOLD:
                spread = Spread(setting.attention.ranks, setting.expert_parallel)
                whole = whole_steps(analysis.steps.steps, model, hardware, costs, spread)
                notes += [*whole.notes, *_faster_than_bound(whole, hardware)]
    unknown = float(split.unknown_ns.sum() / max(int(split.family_ns.sum()), 1))
    if unknown > _UNKNOWN_SHARE:
        text = f"Kernels of unknown kind take {unknown:.0%} of the time; they count as other."
        notes.append(Note("warning", "kernels_of_unknown_kind", text))
    return Roofline(analysis, model, hardware, setting, observed, calls, points, split, whole, tuple(notes))


def _names_of_steps(analysis: StepAnalysis) -> NamedRows | None:
    """What is the device work of the steps called? Read once for all who ask; None without a device."""
    if not len(analysis.work.row):
        return None
    return named_rows(analysis.trace, analysis.work.row[(analysis.step_work.step >= 0) & analysis.work.timed])


def _impossible(points: AttentionPoints, hardware: HardwareSpec) -> list[Note]:
    notes = []
    beyond = int(points.is_above_roof(hardware).sum())
    if beyond:
        text = (
            f"{beyond:,} of {len(points):,} attention points lie above the roof of {hardware.name}, even by the least "
            "that must be computed and read: the model, the hardware or the trace is not what it is taken for."
        )
        notes.append(Note("error", "above_the_roof", text, beyond))
    shared = int((points.is_above_roof(hardware, low=False) & ~points.is_above_roof(hardware)).sum())
    if shared:
        text = (
            f"{shared:,} of {len(points):,} attention points are faster than if every request read its own keys and "
            "values: they share some, or a cache holds them."
        )
        notes.append(Note("info", "kv_shared_or_cached", text, shared))
    return notes


def _faster_than_bound(whole: WholeSteps, hardware: HardwareSpec) -> list[Note]:
    with np.errstate(invalid="ignore"):
        faster = int((whole.measured_ns < whole.bound_ns * (1 - _ROUNDING)).sum())
    if not faster:
        return []
    text = (
        f"{faster:,} steps are faster than {hardware.name} can compute or read them: the model, the hardware, or how "
        "the model is spread is not what it is taken for."
    )
    return [Note("error", "faster_than_bound", text, faster)]


_ROUNDING = 1e-6
