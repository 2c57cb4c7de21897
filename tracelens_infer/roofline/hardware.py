"""HardwareSpec: what a GPU can compute, read and send at most, each figure with its source."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

from tracelens_infer.errors import UsageError

__all__ = ["Figure", "Grade", "HardwareSpec", "Peak", "load_hardware", "shipped_hardware", "with_overrides"]

_TERA, _GIGA = 1e12, 1e9
_SAME_UNITS = {"fp16": "bf16", "bf16": "fp16"}
"""Both run at one rate on every GPU that is listed; where a file gives only one of them, it holds for the other."""
ANY_DTYPE = "any"  # a peak that the user gives holds for whatever is multiplied
_NEAREST = 3


class Grade(StrEnum):
    """How far can a figure be trusted?"""

    VENDOR = "vendor"  # a page of the vendor was read
    SECONDARY = "secondary"  # a page that quotes it
    DERIVED = "derived"  # computed from units and clocks
    MEASURED = "measured"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, where it is from, and how far to trust it."""

    value: float
    source: str
    grade: Grade


@dataclass(frozen=True, slots=True)
class Peak:
    """How fast are products of one number format? Dense TFLOP/s: by the datasheet, and what kernels reach."""

    dtype: str
    datasheet: Figure | None
    achievable: Figure | None = None


@dataclass(frozen=True, slots=True)
class HardwareSpec:
    """What can one device (as a process sees it) do at most? None for what no source tells.

    Attributes:
        name, vendor: as people call it.
        peaks: a format each.
        bandwidth, achievable_bandwidth: of its memory, GB/s.
        memory_gb: size of its memory.
        num_sms: multiprocessors (AMD: compute units).
        link: to other devices, GB/s in one direction.
        aliases: texts of which a profiler's device name holds one.
        remark: where sources contradict each other.
    """

    name: str
    vendor: str
    peaks: tuple[Peak, ...]
    bandwidth: Figure | None
    achievable_bandwidth: Figure | None = None
    memory_gb: Figure | None = None
    num_sms: int | None = None
    link: Figure | None = None
    aliases: tuple[str, ...] = ()
    remark: str = ""

    def peak_flops(self, dtype: str, *, achievable: bool = False) -> float | None:
        """How many FLOP/s of this format? ``achievable`` falls back on the datasheet where nothing was measured."""
        by_dtype = {peak.dtype: peak for peak in self.peaks}
        peak = by_dtype.get(dtype) or by_dtype.get(_SAME_UNITS.get(dtype, "")) or by_dtype.get(ANY_DTYPE)
        if peak is None:
            return None
        figure = peak.achievable if achievable and peak.achievable is not None else peak.datasheet
        return figure.value * _TERA if figure is not None else None

    def bandwidth_bytes(self, *, achievable: bool = False) -> float | None:
        """How many bytes a second can it read? ``achievable`` falls back on the datasheet."""
        figure = self.achievable_bandwidth if achievable and self.achievable_bandwidth is not None else self.bandwidth
        return figure.value * _GIGA if figure is not None else None

    @property
    def link_bytes(self) -> float | None:
        """How many bytes a second can it send to other devices?"""
        return self.link.value * _GIGA if self.link is not None else None

    def ridge(self, dtype: str) -> float | None:
        """From how many FLOP a byte on does computing bound it, not reading?"""
        peak, bandwidth = self.peak_flops(dtype), self.bandwidth_bytes()
        return peak / bandwidth if peak is not None and bandwidth else None


def shipped_hardware() -> tuple[HardwareSpec, ...]:
    """Which GPUs are known? In order of name."""
    folder = resources.files("tracelens_infer.roofline") / "hardware_specs"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(_spec(tomllib.loads(file.read_text(encoding="utf-8")), file.name) for file in files)


def load_hardware(name: str) -> HardwareSpec:
    """The spec of a GPU by name, without regard to case, or out of a TOML file.

    Raises UsageError where there is neither, naming what comes nearest, and where the file is no spec.
    """
    path = Path(name)
    if path.suffix.lower() == ".toml":
        try:
            return _spec(tomllib.loads(path.read_text(encoding="utf-8")), name)
        except OSError as error:
            raise UsageError(name, f"It cannot be read: {error.strerror or error}.", "Name a spec in TOML.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(name, f"It is no TOML: {error}.", "See docs/roofline.md for the keys.") from error
    known = {spec.name.casefold(): spec for spec in shipped_hardware()}
    wanted = name.casefold().strip()
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=_NEAREST, cutoff=0.4) or sorted(known)
    names = ", ".join(known[one].name for one in near)
    raise UsageError(f"--hardware {name}", "No GPU of this name is known.", f"Known are: {names}; or name a TOML file.")


def with_overrides(
    spec: HardwareSpec | None, peak_tflops: float | None, peak_bandwidth: float | None
) -> HardwareSpec | None:
    """The spec with the peak (TFLOP/s, any format) and bandwidth (GB/s) that the user gives; also from them alone."""
    for option, value in (("--peak-tflops", peak_tflops), ("--peak-bandwidth", peak_bandwidth)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"{option} {value}", "It is no rate.", "Give a number above 0.")
    if peak_tflops is None and peak_bandwidth is None:
        return spec
    spec = spec or HardwareSpec("given by the user", "", (), None)
    if peak_tflops is not None:
        spec = replace(spec, peaks=(Peak(ANY_DTYPE, Figure(peak_tflops, "--peak-tflops", Grade.USER)),))
    if peak_bandwidth is not None:
        figure = Figure(peak_bandwidth, "--peak-bandwidth", Grade.USER)
        spec = replace(spec, bandwidth=figure, achievable_bandwidth=None)
    return spec


def _spec(values: Mapping[str, Any], where: str) -> HardwareSpec:
    try:
        return HardwareSpec(
            name=str(values["name"]),
            vendor=str(values.get("vendor", "")),
            peaks=tuple(_peaks(values.get("peak_tflops", {}))),
            bandwidth=_figure(values.get("bandwidth_gb_per_s")),
            achievable_bandwidth=_figure(values.get("achievable_bandwidth_gb_per_s")),
            memory_gb=_figure(values.get("memory_gb")),
            num_sms=values.get("num_sms"),
            link=_figure(values.get("link_gb_per_s_one_way")),
            aliases=tuple(values.get("device_names", ())),
            remark=str(values.get("remark", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"It is no spec of a GPU: {type(error).__name__} {error}."
        raise UsageError(where, reason, "See docs/roofline.md for the keys.") from error


def _peaks(values: Mapping[str, Any]) -> Iterator[Peak]:
    for dtype, entry in values.items():
        yield Peak(dtype, _figure(entry.get("datasheet")), _figure(entry.get("achievable")))


def _figure(entry: Any) -> Figure | None:  # noqa: ANN401 - TOML
    if entry is None:
        return None
    value = float(entry["value"])
    if not value > 0:
        raise ValueError(f"{value} is no rate")
    return Figure(value, str(entry["source"]), Grade(entry["grade"]))
