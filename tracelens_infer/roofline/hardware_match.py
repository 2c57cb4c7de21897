"""On which hardware was a trace recorded? By the name that the profiler gives, else by the device's size."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracelens_infer.notes import Note
from tracelens_infer.roofline.hardware import Figure, Grade, HardwareSpec, shipped_hardware

__all__ = ["Match", "match_hardware"]

_GB = 1e9
_MEMORY_SLACK = 0.12
"""A program sees less than the datasheet's memory (ECC, firmware), or GiB where that says GB."""
_OTHER_BOARDS = frozenset({"nvl", "pcie", "laptop", "d", "max", "40gb"})
"""Words that tell boards with other rates apart: a spec whose own name lacks one does not stand for them."""
_WHOLE_SHARE = 0.98  # of the multiprocessors; fewer, and it is a partition


@dataclass(frozen=True, slots=True)
class Match:
    """A device's spec, None where no roof is known, and what there is to say about it."""

    spec: HardwareSpec | None
    notes: tuple[Note, ...] = ()


def match_hardware(name: str, num_sms: int | None = None, memory_bytes: int | None = None) -> Match:
    """Which GPU is a device of this name, or, where it has none, of this size? Never a guess: None where none fits.

    A partition of a GPU (MIG) is known by having fewer multiprocessors than it, and scaled by their number.
    """
    found = _by_name(name) if name.strip() else _by_size(num_sms, memory_bytes)
    if found is None:
        what = f"The device {name!r}" if name.strip() else "A device without a name"
        advice = "--hardware, or --peak-tflops and --peak-bandwidth, give one"
        text = f"{what} is none that is known, so no roof is known; {advice}."
        return Match(None, (Note("warning", "no_roof_known", text),))
    notes = []
    if not name.strip():
        text = f"The trace names no device: of its size ({num_sms} multiprocessors) is {found.name}."
        notes.append(Note("info", "hardware_by_size", text))
    if num_sms and found.num_sms and num_sms < _WHOLE_SHARE * found.num_sms and "MIG" in name.upper().split():
        share = num_sms / found.num_sms
        part = f"{num_sms} of {found.num_sms} multiprocessors"
        text = f"A part of {found.name}, {part}: its peaks are scaled by {share:.2f}."
        notes.append(Note("warning", "hardware_partition", text))
        found = _scaled(found, share)
    return Match(found, tuple(notes))


def _by_name(name: str) -> HardwareSpec | None:
    """The spec with the longest of its aliases in the name: "H100 PCIe" before "H100"."""
    folded = " ".join(name.casefold().replace("-", " ").replace("_", " ").split())
    best: tuple[int, HardwareSpec] | None = None
    for spec in shipped_hardware():
        for alias in spec.aliases:
            wanted = " ".join(alias.casefold().replace("-", " ").split())
            other = _OTHER_BOARDS & set(folded.split()) - set(wanted.split())
            if f" {wanted} " in f" {folded} " and not other and (best is None or len(wanted) > best[0]):
                best = (len(wanted), spec)
    return best[1] if best is not None else None


def _by_size(num_sms: int | None, memory_bytes: int | None) -> HardwareSpec | None:
    """The only spec with as many multiprocessors and about as much memory."""
    if not num_sms or not memory_bytes:
        return None
    fits = [
        spec
        for spec in shipped_hardware()
        if spec.num_sms == num_sms
        and spec.memory_gb is not None
        and abs(memory_bytes / _GB - spec.memory_gb.value) <= _MEMORY_SLACK * spec.memory_gb.value
    ]
    return fits[0] if len(fits) == 1 else None


def _scaled(spec: HardwareSpec, share: float) -> HardwareSpec:
    def part(figure: Figure | None) -> Figure | None:
        if figure is None:
            return None
        return Figure(figure.value * share, f"{share:.3f} of: {figure.source}", Grade.DERIVED)

    return replace(
        spec,
        name=f"{spec.name} ({share:.0%})",
        peaks=tuple(
            replace(peak, datasheet=part(peak.datasheet), achievable=part(peak.achievable)) for peak in spec.peaks
        ),
        bandwidth=part(spec.bandwidth),
        achievable_bandwidth=part(spec.achievable_bandwidth),
    )
