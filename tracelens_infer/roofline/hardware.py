"""How fast can a GPU compute, read its memory and talk to its neighbours, and who says so?"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from tracelens_infer.errors import InputError, UsageError

__all__ = [
    "ANY_DTYPE",
    "Bandwidth",
    "Figure",
    "Grade",
    "HardwareSpec",
    "Peak",
    "known_hardware",
    "load_hardware",
    "with_overrides",
]

Grade = Literal["vendor", "secondary", "derived", "measured", "user"]

ANY_DTYPE = "any"
"""The dtype of a peak that holds whatever is multiplied, as --peak-tflops gives one."""

_TERA = 10**12
_GIGA = 10**9
_SPECS_FOLDER = "hardware_specs"
_NEAREST = 5

# Where a sheet gives one figure for both 16-bit formats, its file names one of them.
_SIBLING = {"bf16": "fp16", "fp16": "bf16"}
# The storage formats whose values are multiplied in a format of another name.
_MULTIPLIED_AS = {"mxfp4": "fp4", "nvfp4": "fp4", "mxfp8": "fp8"}


@dataclass(frozen=True, slots=True)
class Figure:
    """What is a number, and who says so? ``grade``: how near to the vendor's own word ``source`` is."""

    value: float
    source: str
    grade: Grade


@dataclass(frozen=True, slots=True)
class Peak:
    """How fast does a GPU multiply one format, dense, in TFLOP/s? By the datasheet, and as fast as was ever reached.

    Of measured hardware and of a user's own figures there is no datasheet: ``datasheet`` holds that roof, and the
    figure's grade says what it is.
    """

    dtype: str
    datasheet: Figure | None
    achievable: Figure | None = None


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """How fast is a GPU's memory, in GB/s? By the datasheet, and as fast as was ever reached."""

    datasheet: Figure | None
    achievable: Figure | None = None


@dataclass(frozen=True, slots=True)
class HardwareSpec:
    """What does the roof of one device look like? Of one process's device: of an MI250X, one of its two dies.

    Attributes:
        peaks: dense TFLOP/s, a dtype each.
        bandwidth: of the memory, in GB/s.
        memory_gb: as it is sold; 192 are the 206e9 bytes that a program sees.
        num_sms: multiprocessors (AMD: compute units).
        link_gbps: to other GPUs, ONE WAY, all links of the GPU together, in GB/s. Datasheets print both directions.
        remark: what contradicts itself in the sources.
        device_names: what a profiler calls the device, without the vendor's name.
    """

    name: str
    vendor: str
    peaks: tuple[Peak, ...]
    bandwidth: Bandwidth
    memory_gb: Figure | None = None
    num_sms: int | None = None
    link_gbps: Figure | None = None
    remark: str = ""
    device_names: tuple[str, ...] = ()

    def peak_flops(self, dtype: str, achievable: bool = False) -> float | None:
        """How many FLOP/s can be done in this multiply dtype? None where nobody is known to have said.

        Of bf16 and fp16 one stands for both where the sheet names only one; mxfp4 and nvfp4 multiply in "fp4".
        """
        peak = self._peak(_MULTIPLIED_AS.get(dtype, dtype))
        figure = None if peak is None else peak.achievable if achievable else peak.datasheet
        return None if figure is None else figure.value * _TERA

    def bandwidth_bytes(self, achievable: bool = False) -> float | None:
        """How many bytes a second can be read from memory? None where nobody is known to have said."""
        figure = self.bandwidth.achievable if achievable else self.bandwidth.datasheet
        return None if figure is None else figure.value * _GIGA

    def link_bytes(self) -> float | None:
        """How many bytes a second can be sent to other GPUs? None where nobody is known to have said."""
        return None if self.link_gbps is None else self.link_gbps.value * _GIGA

    def ridge(self, dtype: str) -> float | None:
        """From how many FLOP a byte on does computing, and not reading, bound? By the datasheet; None where unknown."""
        peak, bandwidth = self.peak_flops(dtype), self.bandwidth_bytes()
        return None if peak is None or not bandwidth else peak / bandwidth

    def _peak(self, dtype: str) -> Peak | None:
        by_dtype = {peak.dtype: peak for peak in self.peaks}
        for wanted in (dtype, _SIBLING.get(dtype, dtype), ANY_DTYPE):
            if wanted in by_dtype:
                return by_dtype[wanted]
        return None


@cache
def known_hardware() -> tuple[HardwareSpec, ...]:
    """Which GPUs come with the package? One TOML file each, in the order of their names."""
    folder = resources.files(__package__) / _SPECS_FOLDER
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda entry: entry.name)
    return tuple(_parsed(entry.read_text("utf-8"), entry.name) for entry in files)


def load_hardware(name_or_path: str) -> HardwareSpec:
    """Which hardware does ``--hardware`` mean? The name of a known GPU, or the path of a TOML file like theirs.

    Neither letters' case nor spaces, dashes and underscores matter in a name. Raises UsageError with the nearest names
    where there is no such GPU, and InputError where the file cannot be read as a spec.
    """
    path = Path(name_or_path)
    if path.suffix.lower() == ".toml":
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(name_or_path, f"The file cannot be read: {error}.", "Check the path.") from error
        return _parsed(text, name_or_path)
    wanted = _plain(name_or_path)
    for spec in known_hardware():
        if wanted in {_plain(spec.name), *(_plain(name) for name in spec.device_names)}:
            return spec
    names = {_plain(spec.name): spec.name for spec in known_hardware()}
    starts = [plain for plain in names if wanted and plain.startswith(wanted)]
    near = dict.fromkeys([*starts, *difflib.get_close_matches(wanted, names, _NEAREST, cutoff=0.5)])
    offered = ", ".join(names[plain] for plain in near or names)
    action = f"{'The nearest are' if near else 'Known are'} {offered}; or give the path of a .toml file."
    raise UsageError(f"--hardware {name_or_path}", "No such GPU is known.", action)


def with_overrides(
    spec: HardwareSpec | None, peak_tflops: float | None = None, peak_bandwidth: float | None = None
) -> HardwareSpec | None:
    """What is the roof once a user's own figures (dense TFLOP/s, GB/s) take the place of the known ones?

    A peak holds for every dtype. The achievable figure of what is replaced goes with it: it belongs to the old roof.
    Without a ``spec`` both figures are needed; without any figure ``spec`` comes back as it is, None included.
    Raises UsageError where one of both is missing or a figure is not above zero.
    """
    for option, value in (("--peak-tflops", peak_tflops), ("--peak-bandwidth", peak_bandwidth)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{option} {value}", "A roof lies above zero.", "Give a positive number.")
    if peak_tflops is None and peak_bandwidth is None:
        return spec
    if spec is None:
        if peak_tflops is None or peak_bandwidth is None:
            missing = "--peak-tflops" if peak_tflops is None else "--peak-bandwidth"
            raise UsageError(
                missing, "The hardware is not known, so a roof needs both figures.", f"Give {missing}, too."
            )
        spec = HardwareSpec("custom", "", (), Bandwidth(None))
    if peak_tflops is not None:
        figure = Figure(float(peak_tflops), "--peak-tflops", "user")
        spec = replace(spec, peaks=(Peak(ANY_DTYPE, figure),))
    if peak_bandwidth is not None:
        spec = replace(spec, bandwidth=Bandwidth(Figure(float(peak_bandwidth), "--peak-bandwidth", "user")))
    return spec


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _parsed(text: str, source: str) -> HardwareSpec:
    try:
        table = tomllib.loads(text)
        return HardwareSpec(
            name=_text(table, "name"),
            vendor=str(table["vendor"]),
            peaks=tuple(Peak(dtype, *_pair(peak)) for dtype, peak in table["peak_tflops"].items()),
            bandwidth=Bandwidth(*_pair(table["bandwidth_gb_per_s"]))
            if "bandwidth_gb_per_s" in table
            else Bandwidth(None),
            memory_gb=_figure(table.get("memory_gb")),
            num_sms=_count(table.get("num_sms")),
            link_gbps=_figure(table.get("link_one_way_gb_per_s")),
            remark=str(table.get("remark", "")).strip(),
            device_names=tuple(str(name) for name in table.get("device_names", ())),
        )
    except KeyError as error:
        raise InputError(source, f"The hardware spec has no {error.args[0]}.", _LIKE) from error
    except (tomllib.TOMLDecodeError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(source, f"The hardware spec cannot be understood: {error}.", _LIKE) from error


_LIKE = "Write it like the files in tracelens_infer/roofline/hardware_specs."


def _count(value: Any) -> int | None:  # noqa: ANN401 - TOML
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError(f"num_sms is {value!r}, not a number of multiprocessors")


def _pair(table: Mapping[str, Any]) -> tuple[Figure | None, Figure | None]:
    """The figures of the datasheet and of what can be achieved; at least one of them has to be there."""
    unknown = sorted(set(table) - {"datasheet", "achievable"})
    if unknown or not table:
        raise ValueError(f"figures are called datasheet and achievable, not {', '.join(unknown) or 'nothing'}")
    return _figure(table.get("datasheet")), _figure(table.get("achievable"))


def _figure(table: Mapping[str, Any] | None) -> Figure | None:
    """A number is read only with its source: one that nobody vouches for is no roof."""
    if table is None:
        return None
    if isinstance(table["value"], (bool, str)):
        raise TypeError(f"{table['value']!r} is no number")
    value, source, grade = float(table["value"]), _text(table, "source"), _text(table, "grade")
    if not 0 < value < float("inf"):
        raise ValueError(f"{value} is no rate or size")
    if grade not in get_args(Grade):
        raise ValueError(f"grade {grade} is none of {', '.join(get_args(Grade))}")
    return Figure(value, source, grade)  # type: ignore[arg-type]  # one of the names of Grade, as was looked at


def _text(table: Mapping[str, Any], key: str) -> str:
    text = str(table[key]).strip()
    if not text:
        raise ValueError(f"{key} is empty")
    return text
