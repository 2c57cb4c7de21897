"""How far is each step's attention from the roof? Measured times beside FLOPs and bytes, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens_infer.notes import Note
from tracelens_infer.roofline.attention import Bounds, Phase
from tracelens_infer.roofline.attention_costs import AttentionCosts
from tracelens_infer.roofline.hardware import HardwareSpec
from tracelens_infer.roofline.measured_attention import SERVES, AttentionCalls, AttentionGroup
from tracelens_infer.roofline.model import AttentionKind, AttentionShape, ModelShape
from tracelens_infer.steps.attention_ops import Serves
from tracelens_infer.steps.step import Step
from tracelens_infer.trace.columns import BoolArray, Int64Array

__all__ = ["AttentionPoints", "attention_points"]

FloatArray: TypeAlias = npt.NDArray[np.float64]

_PHASES = {Serves.BOTH: (Phase.CONTEXT, Phase.GENERATION), Serves.CONTEXT: (Phase.CONTEXT,)} | {
    Serves.GENERATION: (Phase.GENERATION,)
}
_NS = 1e9
_PERCENT = 100.0
_ROUNDING = 1e-6  # of a percentage: what only arithmetic puts above the roof is not above it


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPoints:
    """Measured attention beside what it had to compute and to read, on the rank that was recorded. Columns.

    Figures are sums over ``layers``. A row whose ``known`` is False has measured times only.

    Attributes:
        step: the step's place among all steps.
        serves: whose attention it is; numbers ``measured_attention.SERVES``. A kernel for both phases is one row.
        group: number of the layer group; -1 where groups could not be told apart.
        layers, calls: layers, and main kernels.
        measured_ns: main kernels and what merges their parts.
        flops, bytes: bounds; equal where exact.
        document_flops, document_bytes: by the TraceLens document's formulas, which know no window and no latent.
        known: the annotation tells the sums that the formulas need, and the model the layers.
        dtype: whose peak counts; one a row, a position in ``dtypes``.
    """

    step: Int64Array
    serves: Int64Array
    group: Int64Array
    layers: Int64Array
    calls: Int64Array
    measured_ns: Int64Array
    flops: Bounds[Int64Array]
    bytes: Bounds[Int64Array]
    document_flops: Int64Array
    document_bytes: Int64Array
    known: BoolArray
    dtype: Int64Array
    dtypes: tuple[str, ...]
    notes: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    def rate(self, amount: Int64Array) -> FloatArray:
        """How much of something a second? NaN where it is not known, or nothing was measured."""
        valid = self.known & (self.measured_ns > 0)
        rate = np.full(len(self), np.nan)
        rate[valid] = amount[valid] / self.measured_ns[valid] * _NS
        return rate

    @property
    def intensity(self) -> FloatArray:
        """FLOP a byte, by the upper bounds. NaN where unknown."""
        valid = self.known & (self.bytes.high > 0)
        intensity = np.full(len(self), np.nan)
        intensity[valid] = self.flops.high[valid] / self.bytes.high[valid]
        return intensity

    def peak(self, hardware: HardwareSpec, *, achievable: bool = False) -> FloatArray:
        """Each row's peak in FLOP/s. NaN where the hardware's is not known.

        ``achievable``: as fast as was ever measured; by the datasheet where no source has that.
        """
        peaks = [
            (hardware.peak_flops(dtype, achievable=True) if achievable else None) or hardware.peak_flops(dtype)
            for dtype in self.dtypes
        ]
        found = np.array([np.nan if peak is None else peak for peak in peaks], dtype=np.float64)
        return found[self.dtype] if self.dtypes else np.full(len(self), np.nan)

    def attainable_ns(self, hardware: HardwareSpec, *, low: bool = False, achievable: bool = False) -> FloatArray:
        """How long must this attention take at least? The longer of computing and reading, by upper (lower) bounds."""
        bandwidth = (hardware.bandwidth_bytes(achievable=True) if achievable else None) or hardware.bandwidth_bytes()
        flops, read = (self.flops.low, self.bytes.low) if low else (self.flops.high, self.bytes.high)
        computing = flops / self.peak(hardware, achievable=achievable) * _NS
        reading = read / bandwidth * _NS if bandwidth else np.full(len(self), np.nan)
        return np.where(self.known, np.maximum(computing, reading), np.nan)

    def percent(self, hardware: HardwareSpec, *, low: bool = False, achievable: bool = False) -> FloatArray:
        """Which percentage of the roof was reached? Above 100 by the lower bounds, something is wrong."""
        attainable = self.attainable_ns(hardware, low=low, achievable=achievable)
        measured = np.where(self.measured_ns > 0, self.measured_ns, np.nan)
        return np.asarray(_PERCENT * attainable / measured)

    def is_compute_bound(self, hardware: HardwareSpec) -> BoolArray:
        """Does the datasheet's peak bound it, rather than the bandwidth?"""
        bandwidth = hardware.bandwidth_bytes() or np.nan
        with np.errstate(invalid="ignore"):
            return np.asarray(self.intensity >= self.peak(hardware) / bandwidth)

    def is_above_roof(self, hardware: HardwareSpec, *, low: bool = True) -> BoolArray:
        """Which rows are faster than the datasheet allows, by the lower (upper) bounds?"""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.percent(hardware, low=low) > _PERCENT * (1 + _ROUNDING))


def attention_points(
    calls: AttentionCalls, steps: Sequence[Step], model: ModelShape, costs: AttentionCosts
) -> AttentionPoints:
    """What did each group of layers have to compute and to read in each step, and how long did that take?

    ``costs`` are those of the same steps.
    """
    times = calls.group_times()
    groups = {group.number: group for group in calls.groups}
    known = costs.told[times.step] if len(times) else np.zeros(0, dtype=np.bool_)
    flops, read = np.zeros((2, len(times)), dtype=np.int64), np.zeros((2, len(times)), dtype=np.int64)
    document = np.zeros((2, len(times)), dtype=np.int64)
    layers, dtype = np.zeros(len(times), dtype=np.int64), np.zeros(len(times), dtype=np.int64)
    dtypes: dict[str, int] = {}
    unpriced: set[AttentionKind] = set()
    for serves, group in np.unique(np.stack([times.serves, times.group]), axis=1).T.tolist():
        at = (times.serves == serves) & (times.group == group)
        shapes = _shapes(groups.get(group), model)
        layers[at] = sum(shapes.values())
        for shape, many in shapes.items():
            for phase in _PHASES[SERVES[serves]]:
                cost = costs.of(shape, phase)
                if cost is None:
                    known &= ~at
                    unpriced.add(shape.kind)
                    continue
                rows = times.step[at]
                for total, figure in (
                    (flops[0], cost.flops.low),
                    (flops[1], cost.flops.high),
                    (read[0], cost.bytes.low),
                    (read[1], cost.bytes.high),
                    (document[0], cost.document_flops),
                    (document[1], cost.document_bytes),
                ):
                    if figure is not None:
                        total[at] += many * figure[rows]
                dtype[at] = dtypes.setdefault(cost.multiply_dtype, len(dtypes))
    return AttentionPoints(
        times.step,
        times.serves,
        times.group,
        layers,
        times.calls,
        times.duration_ns,
        Bounds(flops[0], flops[1]),
        Bounds(read[0], read[1]),
        document[0],
        document[1],
        known,
        dtype,
        tuple(dtypes),
        _notes(steps, costs.told, unpriced),
    )


def _shapes(group: AttentionGroup | None, model: ModelShape) -> dict[AttentionShape, int]:
    """Which layers of the model are a group's, and how many of each? All that attend, where groups are not told."""
    places = group.model_layers if group is not None and group.model_layers else range(len(model.layers))
    found: dict[AttentionShape, int] = {}
    for place in places:
        shape = model.layers[place].attention
        if shape.kind is not AttentionKind.LINEAR:
            found[shape] = found.get(shape, 0) + 1
    return found


def _notes(steps: Sequence[Step], told: BoolArray, unpriced: set[AttentionKind]) -> tuple[Note, ...]:
    notes = []
    missing = int((~told).sum())
    if missing:
        text = f"{missing:,} of {len(steps):,} steps have no sums of tokens: what their attention had to do is unknown."
        notes.append(Note("warning", "attention_sums_missing", text, missing))
    if unpriced:
        kinds = ", ".join(sorted(kind.value for kind in unpriced))
        text = f"Layers whose attention is of a kind that is not priced ({kinds}) have measured times only."
        notes.append(Note("warning", "attention_not_priced", text, len(unpriced)))
    return tuple(notes)
