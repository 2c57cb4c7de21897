"""Which GPU is it that a trace names, or that has so many multiprocessors and so much memory?"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tracelens_infer.notes import Note
from tracelens_infer.roofline.hardware import Bandwidth, Figure, HardwareSpec, Peak, known_hardware

__all__ = ["Match", "match_hardware"]

_GIB = 2**30  # a GPU's "GB" are 2**30 bytes: an MI300X of "192 GB" reports 206.1e9 bytes
# A driver keeps some for itself and ECC some more (an A10 of 24 shows 22); variants differ by more (80 and 94).
_MEMORY_TOLERANCE = 0.12
# Words that tell nothing about the roof. VF: a virtual function that is the whole GPU; OAM: the module it sits on.
_EMPTY_WORDS = frozenset(
    {"NVIDIA", "AMD", "INSTINCT", "INTEL", "HABANA", "GEFORCE", "TESLA", "CORPORATION", "VF", "OAM"}
)
_PARTITION_WORD = "MIG"
_ADVICE = "--hardware, or --peak-tflops and --peak-bandwidth, give one."


@dataclass(frozen=True, slots=True)
class Match:
    """Which hardware is it? ``spec`` None where no roof is known; ``notes`` say why, or what was assumed."""

    spec: HardwareSpec | None
    notes: tuple[Note, ...] = ()


def match_hardware(name: str, num_sms: int | None = None, memory_bytes: int | None = None) -> Match:
    """Which GPU is it, by the name that torch reports, else by its multiprocessors and its memory in bytes?

    Every word of the name must be accounted for: a variant that is not in the table (another form factor, another
    memory) is unknown, since its roof is another. A device with fewer multiprocessors than the whole GPU is a
    partition of it (MIG, CPX), and its roof their share of the whole.
    """
    if not name.strip():
        return _by_size(num_sms, memory_bytes)
    words = _words(name)
    is_partition = _PARTITION_WORD in words
    if is_partition:
        words = words[: words.index(_PARTITION_WORD)]
    told = frozenset(words) - _EMPTY_WORDS
    for spec in known_hardware():
        if any(told == frozenset(_words(known)) - _EMPTY_WORDS for known in spec.device_names):
            return _checked(spec, name, num_sms, memory_bytes, is_partition)
    return _unknown(f"No peak rates of {name} are known")


def _words(name: str) -> list[str]:
    return re.findall(r"[A-Z0-9]+", name.upper())


def _unknown(reason: str) -> Match:
    return Match(None, (Note("warning", "no_roof_known", f"{reason}, so no roof is known; {_ADVICE}"),))


def _checked(spec: HardwareSpec, name: str, num_sms: int | None, memory_bytes: int | None, is_partition: bool) -> Match:
    """Is it the whole GPU, a partition of it, or another one of the same name?"""
    if spec.num_sms is not None and num_sms is not None and num_sms > 0:
        if num_sms > spec.num_sms:
            return _unknown(f"{name} shows {num_sms} multiprocessors where {spec.name} has {spec.num_sms}")
        if num_sms < spec.num_sms:
            return _partition(spec, num_sms, spec.num_sms)
    if is_partition:
        return _unknown(f"{name} is a partition, and which share of {spec.name} it has is not told")
    if memory_bytes is not None and memory_bytes > 0 and not _same_memory(spec, memory_bytes):
        return _unknown(f"{name} shows {memory_bytes / _GIB:.0f} GiB, which is not the memory of {spec.name}")
    return Match(spec)


def _same_memory(spec: HardwareSpec, memory_bytes: int) -> bool:
    if spec.memory_gb is None:
        return True
    return abs(memory_bytes / _GIB / spec.memory_gb.value - 1) <= _MEMORY_TOLERANCE


def _partition(spec: HardwareSpec, num_sms: int, all_sms: int) -> Match:
    share = num_sms / all_sms
    scaled = replace(
        spec,
        name=f"{spec.name} ({num_sms} of {all_sms} multiprocessors)",
        peaks=tuple(
            Peak(peak.dtype, _share(peak.datasheet, share), _share(peak.achievable, share)) for peak in spec.peaks
        ),
        bandwidth=Bandwidth(_share(spec.bandwidth.datasheet, share), _share(spec.bandwidth.achievable, share)),
        memory_gb=_share(spec.memory_gb, share),
        num_sms=num_sms,
        link_gbps=None,  # whether a partition may use the links, and how many, is not told
    )
    text = (
        f"The device is a partition of {spec.name} with {num_sms} of its {all_sms} multiprocessors; its peak rates and "
        "its bandwidth are taken to be that share of the whole."
    )
    return Match(scaled, (Note("warning", "hardware_partition", text),))


def _share(figure: Figure | None, share: float) -> Figure | None:
    if figure is None:
        return None
    return Figure(figure.value * share, f"{share:.4g} of the whole; {figure.source}", "derived")


def _by_size(num_sms: int | None, memory_bytes: int | None) -> Match:
    if not num_sms or not memory_bytes:
        return _unknown("The device has no name, and its multiprocessors and memory are not told")
    size = f"{num_sms} multiprocessors and {memory_bytes / _GIB:.0f} GiB"
    found = [spec for spec in known_hardware() if spec.num_sms == num_sms and spec.memory_gb is not None]
    found = [spec for spec in found if _same_memory(spec, memory_bytes)]
    if len(found) > 1:
        return _unknown(f"The device has no name, and {size} have {' and '.join(spec.name for spec in found)} alike")
    if not found:
        return _unknown(f"The device has no name, and no GPU in the table has {size}")
    text = f"The device has no name; {size} are those of {found[0].name}, which it is taken for."
    return Match(found[0], (Note("info", "hardware_by_size", text),))
