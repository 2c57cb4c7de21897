"""Peak rates: what the files say, which GPU a name means, and what a user's own figures replace."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_infer.errors import InputError, UsageError
from tracelens_infer.roofline.hardware import (
    Bandwidth,
    Figure,
    HardwareSpec,
    Peak,
    known_hardware,
    load_hardware,
    with_overrides,
)
from tracelens_infer.roofline.hardware_match import match_hardware
from tracelens_infer.roofline.hardware_toml import hardware_toml
from tracelens_infer.trace.reader import read_trace

H100_BYTES = 85_045_018_624
MI300X_BYTES = 206_141_652_992

# name, bf16, fp8, fp4 in TFLOP/s, bandwidth in GB/s, memory in GB, link one way in GB/s
FIGURES = [
    ("A100-SXM-80GB", 312, None, None, 2039, 80, 300),
    ("A100-PCIe-80GB", 312, None, None, 1935, 80, None),
    ("H100-SXM", 989, 1979, None, 3350, 80, 450),
    ("H100-PCIe", 756.5, 1513, None, 2000, 80, None),
    ("H200", 989.4, 1978.9, None, 4800, 141, 450),
    ("H20", 148, 296, None, 4000, 96, None),
    ("B200", 2250, 4500, 9000, 8000, 180, 900),
    ("GB200", 2500, 5000, 10000, 8000, 186, 900),
    ("B300", 2250, 4500, 14000, 7700, 270, 900),
    ("GB300", 2500, 5000, 15000, 8000, 279, 900),
    ("L40S", 362, 733, None, 864, 48, None),
    ("L4", 121, 242.5, None, 300, 24, None),
    ("A10", 125, None, None, 600, 24, None),
    ("RTX-4090", 165, 330, None, 1008, 24, None),
    ("RTX-6000-Ada", 364, 728, None, None, 48, None),
    ("MI210", 181, None, None, 1600, 64, None),
    ("MI250-GCD", 181, None, None, 1600, 64, None),
    ("MI250X-GCD", 191.5, None, None, 1638, 64, None),
    ("MI300X", 1307.4, 2614.9, None, 5300, 192, 448),
    ("MI325X", 1307, 2615, None, 6000, 256, None),
    ("MI350X", 2300, 4600, 9200, 8000, 288, None),
    ("MI355X", 2516.6, 5033, 10066, 8000, 288, None),
    ("Gaudi3", 1835, 1835, None, 3700, 128, None),
]


def value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value


def scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


@pytest.mark.parametrize(("name", "bf16", "fp8", "fp4", "bandwidth", "memory", "link"), FIGURES)
def test_each_gpu_has_the_figures_that_were_collected(
    name: str,
    bf16: float,
    fp8: float | None,
    fp4: float | None,
    bandwidth: float | None,
    memory: float,
    link: float | None,
) -> None:
    spec = load_hardware(name)
    assert spec.name == name
    assert spec.peak_flops("bf16") == bf16 * 1e12
    assert spec.peak_flops("fp16") == bf16 * 1e12
    assert spec.peak_flops("fp8") == scaled(fp8, 1e12)
    assert spec.peak_flops("fp4") == scaled(fp4, 1e12)
    assert spec.bandwidth_bytes() == scaled(bandwidth, 1e9)
    assert value(spec.memory_gb) == memory
    assert value(spec.link_gbps) == link


def test_no_gpu_of_the_table_goes_untested() -> None:
    assert {spec.name for spec in known_hardware()} == {row[0] for row in FIGURES}


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("MI300X", "fp16", 654),
        ("MI300X", "bf16", 708),
        ("MI300X", "fp8", 1273),
        ("MI325X", "fp16", 794),
        ("MI325X", "bf16", 843),
        ("MI325X", "fp8", 1519),
    ],
)
def test_what_can_be_achieved_is_known_for_two_gpus(name: str, dtype: str, tflops: float) -> None:
    assert load_hardware(name).peak_flops(dtype, achievable=True) == tflops * 1e12


def test_what_nobody_has_measured_is_unknown_and_not_the_datasheet() -> None:
    spec = load_hardware("H100-SXM")
    assert spec.peak_flops("bf16", achievable=True) is None
    assert spec.bandwidth_bytes(achievable=True) is None


def test_formats_that_the_sheet_does_not_name_have_no_peak() -> None:
    spec = load_hardware("H100-SXM")
    assert spec.peak_flops("fp4") is None
    assert spec.ridge("fp4") is None


@pytest.mark.parametrize("dtype", ["mxfp4", "nvfp4", "fp4"])
def test_both_storage_formats_of_four_bits_multiply_as_fp4(dtype: str) -> None:
    assert load_hardware("B200").peak_flops(dtype) == 9000e12


def test_the_ridge_is_the_peak_over_the_bandwidth() -> None:
    # 1,307.4e12 FLOP/s / 5,300e9 B/s = 246.679... FLOP a byte
    assert load_hardware("MI300X").ridge("bf16") == pytest.approx(246.679, abs=0.001)


def test_every_figure_names_a_source_and_no_peak_lies_below_what_was_achieved() -> None:
    for spec in known_hardware():
        figures = [spec.bandwidth.datasheet, spec.bandwidth.achievable, spec.memory_gb, spec.link_gbps]
        for peak in spec.peaks:
            figures += [peak.datasheet, peak.achievable]
            if peak.datasheet is not None and peak.achievable is not None:
                assert peak.achievable.value < peak.datasheet.value
        assert all(figure.source for figure in figures if figure is not None)


@pytest.mark.parametrize("name", ["mi300x", "MI300X", "mi-300-x", "Mi_300 x"])
def test_names_are_found_without_regard_to_case_and_dashes(name: str) -> None:
    assert load_hardware(name).name == "MI300X"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as error:
        load_hardware("h100")
    assert "H100-SXM" in error.value.action
    assert "H100-PCIe" in error.value.action
    with pytest.raises(UsageError) as error:
        load_hardware("M300X")
    assert "MI300X" in error.value.action


def test_a_file_is_read_like_those_of_the_package(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(hardware_toml(load_hardware("MI300X")), "utf-8")
    assert load_hardware(str(path)) == load_hardware("MI300X")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = 'x'\n", "vendor"),
        ("name = \n", "understood"),
        ("name = 'x'\nvendor = 'y'\n[peak_tflops.bf16]\ndatasheet = { value = 1, grade = 'vendor' }\n", "source"),
        (
            "name = 'x'\nvendor = 'y'\n[peak_tflops.bf16]\ndatasheet = { value = 1, source = 'z', grade = 'rumour' }\n",
            "rumour",
        ),
        (
            "name = 'x'\nvendor = 'y'\n[peak_tflops.bf16]\ndatasheet = { value = -1, source = 'z', grade = 'user' }\n",
            "-1",
        ),
        (
            "name = 'x'\nvendor = 'y'\n[peak_tflops.bf16]\nsparse = { value = 1, source = 'z', grade = 'user' }\n",
            "sparse",
        ),
        ("name = 'x'\nvendor = 'y'\npeak_tflops = 7\n", "understood"),
    ],
)
def test_a_file_with_a_figure_that_nobody_vouches_for_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError, match=reason):
        load_hardware(str(path))


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load_hardware(str(tmp_path / "none.toml"))


figures = st.builds(
    Figure,
    st.floats(1e-6, 1e9),
    st.text(st.characters(blacklist_categories=["Cs"]), min_size=1).map(lambda text: f"page {text}".strip()),
    st.sampled_from(["vendor", "measured", "user"]),
)


@given(
    figures, st.none() | figures, st.none() | figures, st.none() | st.integers(1, 10**4), st.sampled_from(["AMD", ""])
)
def test_whatever_is_written_is_read_again(
    one: Figure, two: Figure | None, three: Figure | None, sms: int | None, vendor: str
) -> None:
    spec = HardwareSpec(
        "some GPU", vendor, (Peak("bf16", one, two),), Bandwidth(one, two), three, sms, three, 'a "b" \\c'
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.toml"
        path.write_bytes(hardware_toml(spec).encode())
        assert load_hardware(str(path)) == spec


# ------------------------------------------------------------------------------------------------- which GPU is it?


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("nvidia h100 80gb hbm3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("AMD Instinct MI210", "MI210"),
        ("AMD Instinct MI250", "MI250-GCD"),
        ("AMD Instinct MI250X", "MI250X-GCD"),
        ("AMD Instinct MI250X/MI250", "MI250X-GCD"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI355X", "MI355X"),
    ],
)
def test_the_names_that_torch_reports_are_known(device: str, name: str) -> None:
    match = match_hardware(device)
    assert match.spec == load_hardware(name)
    assert match.notes == ()


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100-PG509-200",
        "NVIDIA A10G",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA H800",
        "NVIDIA H20-3e",
        "NVIDIA GH200 480GB",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA L40",
        "Tesla V100-SXM2-32GB",
        "AMD Instinct MI300A",
        "Some accelerator",
        "NVIDIA",
    ],
)
def test_a_variant_that_is_not_in_the_table_has_no_roof_instead_of_a_guessed_one(device: str) -> None:
    match = match_hardware(device, 132, H100_BYTES)
    assert match.spec is None
    assert [note.code for note in match.notes] == ["no_roof_known"]


@given(st.text())
def test_any_name_gets_a_spec_or_a_note(device: str) -> None:
    match = match_hardware(device)
    assert match.spec is not None or match.notes[0].code == "no_roof_known"


@pytest.mark.parametrize(
    ("sms", "memory", "name"),
    [
        (304, MI300X_BYTES, "MI300X"),
        (132, H100_BYTES, "H100-SXM"),
        (132, 150_109_880_320, "H200"),
        (304, 274_861_129_728, "MI325X"),
    ],
)
def test_a_device_without_a_name_is_told_by_its_size(sms: int, memory: int, name: str) -> None:
    match = match_hardware("", sms, memory)
    assert match.spec == load_hardware(name)
    assert [note.code for note in match.notes] == ["hardware_by_size"]


@pytest.mark.parametrize(
    ("sms", "memory"),
    [(None, None), (304, None), (None, MI300X_BYTES), (1, 1), (142, 48 * 2**30), (132, 96 * 2**30)],
    ids=["nothing", "no memory", "no SMs", "no such", "L40S or RTX 6000 Ada", "between H100 and H200"],
)
def test_a_size_that_is_not_one_gpus_alone_has_no_roof(sms: int | None, memory: int | None) -> None:
    match = match_hardware(" ", sms, memory)
    assert match.spec is None
    assert [note.code for note in match.notes] == ["no_roof_known"]


def test_a_partition_has_its_share_of_the_roof() -> None:
    match = match_hardware("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 66, 42 * 10**9)
    assert match.spec is not None
    assert match.spec.peak_flops("bf16") == pytest.approx(989e12 / 2)
    assert match.spec.bandwidth_bytes() == pytest.approx(3350e9 / 2)
    assert match.spec.num_sms == 66
    assert match.spec.link_gbps is None
    assert [note.code for note in match.notes] == ["hardware_partition"]
    assert match.spec.ridge("bf16") == pytest.approx(load_hardware("H100-SXM").ridge("bf16"))


def test_one_die_of_an_mi300x_is_an_eighth_of_it() -> None:
    match = match_hardware("AMD Instinct MI300X VF", 38, MI300X_BYTES // 8)
    assert match.spec is not None
    assert match.spec.peak_flops("fp16", achievable=True) == pytest.approx(654e12 / 8)


@pytest.mark.parametrize(
    ("device", "sms", "memory"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),
        ("NVIDIA H100 PCIe", 132, H100_BYTES),
        ("NVIDIA H20", 78, 150_109_880_320),
        ("AMD Instinct MI300X", 304, 64 * 10**9),
    ],
    ids=["a partition of unknown share", "more SMs than the GPU has", "141 GB instead of 96", "less memory"],
)
def test_a_device_that_contradicts_its_name_has_no_roof(device: str, sms: int | None, memory: int | None) -> None:
    assert match_hardware(device, sms, memory).spec is None


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("tracelens/vllm_mi300x_decode_graph.json.gz", "MI300X"),
        ("tracelens/vllm_mi300x_mixed_piecewise.json.gz", "MI300X"),
        ("tracelens/sglang_mi300x_qwen3_8b_prefill.json.gz", "MI300X"),
    ],
)
def test_real_traces_tell_their_gpu(shared_traces: Path, file: str, name: str) -> None:
    device = read_trace(shared_traces / file).metadata.devices[0]
    assert match_hardware(device.name, device.num_sms, device.memory_bytes).spec == load_hardware(name)


# ------------------------------------------------------------------------------------------------- a user's figures


def test_a_users_peak_holds_for_every_dtype_and_leaves_the_bandwidth() -> None:
    spec = with_overrides(load_hardware("MI300X"), peak_tflops=1000)
    assert spec is not None
    assert [spec.peak_flops(dtype) for dtype in ("bf16", "fp8", "fp32")] == [1000e12] * 3
    assert spec.peak_flops("bf16", achievable=True) is None
    assert spec.bandwidth_bytes() == 5300e9
    assert spec.peaks[0].datasheet == Figure(1000.0, "--peak-tflops", "user")


def test_a_users_bandwidth_leaves_the_peaks() -> None:
    spec = with_overrides(load_hardware("MI300X"), peak_bandwidth=4000)
    assert spec is not None
    assert spec.bandwidth_bytes() == 4000e9
    assert spec.peak_flops("fp8") == 2614.9e12


def test_both_figures_make_a_roof_of_their_own() -> None:
    spec = with_overrides(None, 1.0, 50.0)
    assert spec is not None
    assert (spec.peak_flops("fp32"), spec.bandwidth_bytes(), spec.ridge("bf16")) == (1e12, 50e9, 20.0)


def test_no_figure_changes_nothing() -> None:
    assert with_overrides(None) is None
    assert with_overrides(load_hardware("L4")) == load_hardware("L4")


@pytest.mark.parametrize(
    ("tflops", "bandwidth"),
    [(1.0, None), (None, 1.0), (0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (1.0, float("inf"))],
)
def test_half_a_roof_and_impossible_figures_are_refused(tflops: float | None, bandwidth: float | None) -> None:
    with pytest.raises(UsageError):
        with_overrides(None, tflops, bandwidth)
