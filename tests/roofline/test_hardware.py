"""GPUs: figures with sources, names as profilers write them, sizes of nameless devices, and what users give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens_infer.errors import UsageError
from tracelens_infer.roofline.hardware import (
    Figure,
    Grade,
    HardwareSpec,
    load_hardware,
    shipped_hardware,
    with_overrides,
)
from tracelens_infer.roofline.hardware_match import match_hardware


def figures(spec: HardwareSpec) -> list[Figure]:
    found = [spec.bandwidth, spec.achievable_bandwidth, spec.memory_gb, spec.link]
    for peak in spec.peaks:
        found += [peak.datasheet, peak.achievable]
    return [figure for figure in found if figure is not None]


@pytest.mark.parametrize("spec", shipped_hardware(), ids=lambda spec: spec.name)
def test_every_figure_has_a_source(spec: HardwareSpec) -> None:
    assert all(figure.source.strip() for figure in figures(spec))
    assert spec.bandwidth is not None
    assert spec.peak_flops("bf16") is not None
    assert all(
        (spec.peak_flops(peak.dtype, achievable=True) or 0) <= (spec.peak_flops(peak.dtype) or 0) for peak in spec.peaks
    )
    assert all(match_hardware(f"{spec.vendor} {alias}").spec == spec for alias in spec.aliases)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI250X/MI250", "MI250X-GCD"),
        ("amd instinct mi355x", "MI355X"),
    ],
)
def test_names_as_profilers_write_them(name: str, spec: str) -> None:
    match = match_hardware(name)
    assert match.spec is not None
    assert match.spec.name == spec
    assert match.notes == ()


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GB300",
        "Tesla V100-SXM2-16GB",
        "gpu",
    ],
)
def test_a_board_that_is_not_listed_has_no_roof(name: str) -> None:
    match = match_hardware(name, 132, 85 * 10**9)
    assert match.spec is None
    assert [note.code for note in match.notes] == ["no_roof_known"]


@pytest.mark.parametrize(
    ("sms", "memory", "spec"),
    [
        (304, 206_141_652_992, "MI300X"),  # as the MI300X traces tell it
        (304, 274_000_000_000, "MI325X"),
        (132, 85_000_000_000, "H100-SXM"),
        (142, 48_000_000_000, None),  # L40S and RTX 6000 Ada
        (304, 20_000_000_000, None),
        (None, 206_141_652_992, None),
        (304, None, None),
    ],
)
def test_a_device_without_a_name_is_told_by_its_size(sms: int | None, memory: int | None, spec: str | None) -> None:
    match = match_hardware("", sms, memory)
    assert (match.spec.name if match.spec else None) == spec
    assert [note.code for note in match.notes] == ["hardware_by_size" if spec else "no_roof_known"]


def test_a_partition_is_scaled() -> None:
    """A seventh or so: 16 of 132 multiprocessors."""
    match = match_hardware("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 10 * 10**9)
    assert match.spec is not None
    assert match.spec.peak_flops("bf16") == pytest.approx(989e12 * 16 / 132)
    assert match.spec.bandwidth_bytes() == pytest.approx(3350e9 * 16 / 132)
    assert [note.code for note in match.notes] == ["hardware_partition"]


def test_figures_of_an_mi300x() -> None:
    spec = load_hardware("mi300x")
    assert spec.peak_flops("bf16") == 1307.4e12
    assert spec.peak_flops("bf16", achievable=True) == 708e12
    assert spec.peak_flops("fp16", achievable=True) == 654e12
    assert spec.peak_flops("fp4") is None
    assert spec.bandwidth_bytes() == spec.bandwidth_bytes(achievable=True) == 5300e9
    assert spec.ridge("bf16") == pytest.approx(246.68, abs=0.01)


def test_a_format_that_runs_at_the_rate_of_another() -> None:
    assert load_hardware("H100-SXM").peak_flops("fp16") == 989e12


@pytest.mark.parametrize(("name", "near"), [("H100", "H100-SXM"), ("mi300", "MI300X"), ("zzz", "MI300X")])
def test_an_unknown_name_is_told_what_is_known(name: str, near: str) -> None:
    with pytest.raises(UsageError) as unknown:
        load_hardware(name)
    assert near in unknown.value.action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = ", "It is no TOML"),
        ('vendor = "x"', "It is no spec of a GPU"),
        ('name = "x"\nbandwidth_gb_per_s = 3', "It is no spec of a GPU"),
        ('name = "x"\nbandwidth_gb_per_s = { value = -3, source = "s", grade = "user" }', "It is no spec of a GPU"),
        ('name = "x"\nbandwidth_gb_per_s = { value = 3, source = "s", grade = "guess" }', "It is no spec of a GPU"),
        ('name = "x"\npeak_tflops = 3', "It is no spec of a GPU"),
    ],
)
def test_a_file_that_is_no_spec_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        load_hardware(str(path))
    assert refused.value.reason.startswith(reason)


def test_a_spec_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(
        'name = "Mine"\nbandwidth_gb_per_s = { value = 900, source = "own", grade = "measured" }\n'
        'link_gb_per_s_one_way = { value = 50, source = "own", grade = "measured" }\n'
        '[peak_tflops.bf16]\ndatasheet = { value = 100, source = "own", grade = "measured" }\n'
    )
    spec = load_hardware(str(path))
    assert (spec.name, spec.peak_flops("bf16"), spec.bandwidth_bytes(), spec.link_bytes) == ("Mine", 1e14, 9e11, 5e10)


def test_what_a_user_gives_stands_for_every_format() -> None:
    spec = with_overrides(None, 1.0, 50.0)
    assert spec is not None
    assert [spec.peak_flops(dtype) for dtype in ("bf16", "fp8", "fp32")] == [1e12] * 3
    assert spec.bandwidth_bytes() == 50e9
    assert {figure.grade for figure in figures(spec)} == {Grade.USER}
    assert with_overrides(None, None, None) is None
    only = with_overrides(load_hardware("MI300X"), None, 4000.0)
    assert only is not None
    assert (only.peak_flops("fp8"), only.bandwidth_bytes(achievable=True)) == (2614.9e12, 4000e9)
