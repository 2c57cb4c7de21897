"""How is a HardwareSpec written so that --hardware reads it again?"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tracelens_infer.roofline.hardware import Figure, HardwareSpec

__all__ = ["hardware_toml"]


def hardware_toml(spec: HardwareSpec) -> str:
    """What does the TOML file of this hardware look like? load_hardware() of it gives an equal spec back."""
    return "\n".join(_lines(spec)) + "\n"


def _lines(spec: HardwareSpec) -> Iterator[str]:
    yield f"name = {_quoted(spec.name)}"
    yield f"vendor = {_quoted(spec.vendor)}"
    yield f"device_names = [{', '.join(_quoted(name) for name in spec.device_names)}]"
    if spec.num_sms is not None:
        yield f"num_sms = {spec.num_sms}"
    yield from _named("memory_gb", spec.memory_gb)
    yield from _named("link_one_way_gb_per_s", spec.link_gbps)
    if spec.remark:
        yield f"remark = {_quoted(spec.remark)}"
    if spec.bandwidth.datasheet is not None or spec.bandwidth.achievable is not None:
        yield from ("", "[bandwidth_gb_per_s]")
        yield from _named("datasheet", spec.bandwidth.datasheet)
        yield from _named("achievable", spec.bandwidth.achievable)
    yield from () if spec.peaks else ("", "[peak_tflops]")
    for peak in spec.peaks:
        yield from ("", f"[peak_tflops.{peak.dtype}]")
        yield from _named("datasheet", peak.datasheet)
        yield from _named("achievable", peak.achievable)


def _named(key: str, figure: Figure | None) -> Iterator[str]:
    if figure is not None:
        value = repr(float(figure.value))
        yield f'{key} = {{ value = {value}, grade = "{figure.grade}", source = {_quoted(figure.source)} }}'


def _quoted(text: str) -> str:
    # Of JSON's escapes TOML knows all but the halves of a surrogate pair, so letters beyond ASCII stay as they are.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
