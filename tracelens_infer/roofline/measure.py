"""What does the machine at hand reach? Micro-benchmarks of it -> a HardwareSpec whose figures are measured."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from tracelens_infer.errors import UsageError
from tracelens_infer.roofline.hardware import Bandwidth, Figure, HardwareSpec, Peak

__all__ = ["measure_hardware"]

_TERA = 10**12
_GIGA = 10**9
_GIB = 2**30

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Square matrices: small ones stay in a CPU's caches, large ones fill every unit of a GPU.
_MATMUL_SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}
# Beyond any cache in use (a server CPU's last level has up to about 500 MB for all its cores, an MI300X 256 MB).
_BUFFER_BYTES = {"cpu": 640 * 2**20, "cuda": 2 * 2**30}
_MAX_SHARE_OF_MEMORY = 0.1  # of what is free, a buffer; three are needed
_GROWTH = 8  # the next size, twice as large, takes eight times as long
_BANDWIDTH_SHARE = 0.3  # of the time
_MAX_RUNS = 1000  # of one setting
_MIN_SECONDS, _MAX_SECONDS = 0.1, 600.0


@dataclass(frozen=True, slots=True)
class _Device:
    """The device that is measured, and how to wait for it. ``torch`` is the module, which may be missing here."""

    kind: Literal["cpu", "cuda"]
    wait: Callable[[], None]
    torch: Any


def measure_hardware(device: Literal["cpu", "cuda"] = "cpu", seconds: float = 5.0) -> HardwareSpec:
    """How fast does this machine multiply and read its memory? The best that was seen in about so many seconds.

    Matrix products of fp32, bf16 and fp16 in a few sizes (TFLOP/s; a format that the device does not multiply is left
    out), and copy and triad over buffers beyond the caches (GB/s). What was measured is both what can be achieved and
    the roof: no datasheet is known. "cuda" is ROCm's name, too. No setting is begun after ``seconds``, but each runs
    once in any case. Raises UsageError where torch or the device is missing.
    """
    if not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        reason = f"A measurement takes {_MIN_SECONDS} to {_MAX_SECONDS:.0f} seconds."
        raise UsageError(f"seconds {seconds}", reason, "Choose within.")
    try:
        torch: Any = import_module("torch")
    except ImportError as error:
        action = "Install it: pip install 'tracelens-infer[torch]'."
        raise UsageError("measuring hardware", "torch is not installed.", action) from error
    if device not in _MATMUL_SIZES:
        raise UsageError(f"device {device}", "Only cpu and cuda can be measured.", "Choose one of them.")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda", "torch sees no GPU.", "Measure cpu, or install torch for your GPU.")
    at_hand = _Device(device, torch.cuda.synchronize if device == "cuda" else _nothing, torch)
    with torch.inference_mode():
        bandwidth = _bandwidth(at_hand, seconds * _BANDWIDTH_SHARE)
        budget = seconds * (1 - _BANDWIDTH_SHARE) / len(_DTYPES)
        peaks = [_peak(at_hand, dtype, budget) for dtype in _DTYPES]
    name, sms, memory = _identity(at_hand)
    return HardwareSpec(
        name=f"{name} (measured)",
        vendor="",
        peaks=tuple(peak for peak in peaks if peak is not None),
        bandwidth=Bandwidth(bandwidth, bandwidth),
        memory_gb=memory,
        num_sms=sms,
        remark="Measured, not a datasheet: the roof is the best rate that these benchmarks reached.",
    )


def _nothing() -> None:
    """A CPU's work is done when the call returns."""


def _identity(at_hand: _Device) -> tuple[str, int | None, Figure | None]:
    torch = at_hand.torch
    if at_hand.kind == "cpu":
        return f"{platform.processor() or platform.machine() or 'CPU'}, {torch.get_num_threads()} threads", None, None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    memory = Figure(properties.total_memory / _GIB, "torch's device properties, in GiB", "measured")
    return properties.name or "GPU", properties.multi_processor_count, memory


def _best_seconds(at_hand: _Device, work: Callable[[], object], budget: float) -> float:
    """The shortest run within a budget of seconds. The first run warms up and decides nothing unless time is out."""
    begin = time.perf_counter()
    best = float("inf")
    for run in range(_MAX_RUNS):
        at_hand.wait()
        start = time.perf_counter()
        work()
        at_hand.wait()
        end = time.perf_counter()
        best = end - start if run == 1 else min(best, end - start)
        if end - begin > budget:
            break
    return best


def _peak(at_hand: _Device, dtype: str, budget: float) -> Peak | None:
    torch = at_hand.torch
    kind = getattr(torch, _DTYPES[dtype])
    best = 0.0
    best_size = 0
    sizes = _MATMUL_SIZES[at_hand.kind]
    begin = time.perf_counter()
    for index, size in enumerate(sizes):
        left = budget - (time.perf_counter() - begin)
        if index and left <= 0:
            break
        try:
            taken = _matmul_seconds(at_hand, size, kind, left / (len(sizes) - index))
        except RuntimeError:
            # torch says "not implemented for 'Half'" so: this device does not multiply the format, or not this large.
            break
        rate = 2 * size**3 / taken / _TERA
        if rate > best:
            best, best_size = rate, size
        if _GROWTH * taken > budget:
            break
    if not best_size:
        return None
    figure = Figure(best, f"matmul of {best_size} x {best_size}, torch {torch.__version__}", "measured")
    return Peak(dtype, figure, figure)


def _matmul_seconds(at_hand: _Device, size: int, kind: object, budget: float) -> float:
    torch = at_hand.torch
    one = torch.randn(size, size, device=at_hand.kind).to(kind)
    out = torch.empty_like(one)
    return _best_seconds(at_hand, lambda: torch.mm(one, one, out=out), budget)


def _bandwidth(at_hand: _Device, budget: float) -> Figure:
    torch = at_hand.torch
    elements = _buffer_bytes(at_hand) // 4
    one, two, three = (torch.ones(elements, dtype=torch.float32, device=at_hand.kind) for _ in range(3))
    moved = elements * 4
    copied = 2 * moved / _best_seconds(at_hand, lambda: two.copy_(one), budget / 2)
    added = 3 * moved / _best_seconds(at_hand, lambda: torch.add(one, two, alpha=2.0, out=three), budget / 2)
    kind = "copy" if copied >= added else "triad"
    source = f"{kind} of buffers of {moved / 2**20:.0f} MiB, torch {torch.__version__}"
    return Figure(max(copied, added) / _GIGA, source, "measured")


def _buffer_bytes(at_hand: _Device) -> int:
    torch = at_hand.torch
    wanted = _BUFFER_BYTES[at_hand.kind]
    if at_hand.kind == "cuda":
        return min(wanted, int(torch.cuda.mem_get_info()[0] * _MAX_SHARE_OF_MEMORY))
    return min(wanted, int(_free_memory_bytes() * _MAX_SHARE_OF_MEMORY))


def _free_memory_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, AttributeError, OSError):
        return 4 * _GIB  # not told by this system; no machine that serves a model has less
