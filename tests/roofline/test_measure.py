"""Measuring the machine at hand: rates that are possible, in bounded time, with their grade."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tracelens_infer.errors import UsageError
from tracelens_infer.roofline.hardware import load_hardware
from tracelens_infer.roofline.hardware_toml import hardware_toml
from tracelens_infer.roofline.measure import measure_hardware

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: the extra [torch]"
)
SECONDS = 1.0
# Importing torch, filling buffers, and the one run that each setting gets in any case, on a busy machine.
SLACK_SECONDS = 30.0


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError) as error:
        measure_hardware()
    assert "[torch]" in error.value.action


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), 1e9])
def test_a_measurement_has_a_sensible_length(seconds: float) -> None:
    with pytest.raises(UsageError):
        measure_hardware(seconds=seconds)


@needs_torch
def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UsageError):
        measure_hardware(cast("Any", "tpu"))


@needs_torch
def test_a_cpu_is_measured_in_bounded_time_and_its_spec_is_read_again(tmp_path: Path) -> None:
    begin = time.monotonic()
    spec = measure_hardware("cpu", SECONDS)
    assert time.monotonic() - begin < SECONDS + SLACK_SECONDS
    peak, bandwidth = spec.peak_flops("fp32"), spec.bandwidth_bytes()
    assert peak is not None
    assert bandwidth is not None
    # A CPU of this century, in FLOP/s and B/s.
    assert 1e9 < peak < 1e15
    assert 1e8 < bandwidth < 1e13
    assert spec.peak_flops("fp32", achievable=True) == peak
    assert {peak.datasheet.grade for peak in spec.peaks if peak.datasheet is not None} == {"measured"}
    path = tmp_path / "here.toml"
    path.write_text(hardware_toml(spec), "utf-8")
    assert load_hardware(str(path)) == spec
