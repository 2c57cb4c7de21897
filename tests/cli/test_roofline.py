"""tracelens roofline: what it prints, writes, and refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

LABEL = "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)"


ODD = {
    "_name_or_path": "half \ud800",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "layer_types": ["bogus", "bogus"],
}


@pytest.fixture
def decode(sample_traces: Path) -> str:
    return str(sample_traces / "vllm_cpu_decode_10steps.json.gz")


def test_a_trace_beside_a_roof_of_the_users(tracelens: Command, decode: str) -> None:
    ran = tracelens("roofline", decode, "--peak-tflops", "1", "--peak-bandwidth", "50")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "Model:    unknown (4 layers, 8/2 heads of 64 a rank, from op shapes)"
    assert lines[1] == "Hardware: custom: bf16 1 TFLOP/s and 0.05 TB/s at most"
    assert any(line.startswith("  decode-only, decode, full") and "memory" in line for line in lines)
    assert "attention is taken as the op shapes tell it" in ran.err


def test_json_holds_what_is_shown(tracelens: Command, decode: str) -> None:
    ran = tracelens("roofline", decode, "--peak-tflops", "1", "--peak-bandwidth", "50", "--json")
    found = json.loads(ran.out)
    (row,) = found["attention"]
    assert (row["kind"], row["phase"], row["group"], row["layers"]) == ("decode_only", "generation", "full", 4)
    assert 0 < row["pct_peak"] < 100
    shares = {name: share for name, share in found["time_shares"]["decode_only"].items() if name != "collective_hidden"}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
    assert found["whole_step"] == {}


def test_what_a_step_waits_for(tracelens: Command, decode: str) -> None:
    found = json.loads(tracelens("roofline", decode, "--json").out)
    (path,) = found["critical_path"]
    parts = sum(path[f"{name}_us"] for name in ("host", "launch", "device", "collective", "unknown"))
    assert parts == pytest.approx(path["length_us"])
    assert path["bound_by"] == "host"
    found = json.loads(tracelens("roofline", decode, "--step", "3", "--json").out)
    assert [path["step"] for path in found["critical_path"]] == [3]
    shown = tracelens("roofline", decode, "--step", "3").out
    assert "bound by host (host " in shown
    assert "  decode-only step 3 of " in shown
    assert tracelens("roofline", decode, "--step", "10").code == 2


def test_a_figure_is_a_file_that_needs_no_network(tracelens: Command, decode: str, tmp_path: Path) -> None:
    path = tmp_path / "roof.html"
    arguments = ["roofline", decode, "--peak-tflops", "1", "--peak-bandwidth", "50", "--figure", str(path)]
    assert tracelens(*arguments).code == 0
    text = path.read_text(encoding="utf-8")
    assert "decode-only, decode, full" in text.replace("\\u002c", ",")
    assert "ridge 20 FLOP" in text
    assert '<script src="http' not in text
    assert tracelens(*arguments).code == 2
    assert tracelens(*arguments, "--force").code == 0


def test_notes_say_only_what_is_missing(tracelens: Command, decode: str) -> None:
    assert "no roof is known" in tracelens("roofline", decode).err
    assert "no roof is known" not in tracelens("roofline", decode, "--peak-tflops", "1", "--peak-bandwidth", "50").err


def test_tables_are_written_and_replaced_only_by_force(tracelens: Command, decode: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["roofline", decode, "--model", "Qwen3-8B", "--gpu", "H100-SXM", "-o", str(out)]
    assert tracelens(*arguments).code == 0
    names = ["attention.csv", "attention.parquet", "roofline.json", "steps.csv", "steps.parquet"]
    assert sorted(path.name for path in out.iterdir()) == names
    with (out / "steps.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert all(0 < float(row["bound_us"]) <= float(row["serial_us"]) for row in rows)
    assert tracelens(*arguments).code == 2
    assert tracelens(*arguments, "--force").code == 0


def test_a_label_needs_no_trace(tracelens: Command) -> None:
    """The figures of facts about gpt-oss: 902,529,024 FLOPs, 113,340,416 bytes, 7.96 FLOP a byte."""
    ran = tracelens("roofline", "--annotation", LABEL, "--model", "gpt-oss-20b", "--gpu", "MI300X", "--json")
    full = next(row for row in json.loads(ran.out)["attention"] if row["group"] == "full")
    assert (full["flops"], full["bytes"], full["layers"]) == (902_529_024, 113_340_416, 12)
    assert full["attainable_us"] == pytest.approx(113_340_416 / 5.3e6)
    shown = tracelens("roofline", "--annotation", LABEL, "--model", "gpt-oss-20b", "--gpu", "MI300X").out
    assert "  generation, 12 x full: 0.903 GFLOP, 113.340 MB, 7.96 FLOP/B" in shown.splitlines()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "No trace was given."),
        (["--annotation", LABEL], "A label does not tell the model."),
        (["--annotation", "hello", "--model", "Qwen3-8B"], "It is no step's label."),
        (["--annotation", "ProfilerStep#3", "--model", "Qwen3-8B"], "It does not tell the sums over requests."),
        (["--annotation", LABEL, "--model", "Qwen3-8B", "x.json"], "A trace was given, too."),
        (["x.json", "--gpu", "H1000"], "No such GPU is known."),
        (["x.json", "--model", "Lama"], None),
        (["x.json", "--tp", "0"], None),
        (["x.json", "--peak-tflops", "-1"], None),
        (["x.json", "--peak-tflops", "nan", "--peak-bandwidth", "5"], "A roof lies above zero."),
        ([LABEL, "--gpu", "H200", "--peak-tflops", "inf"], "A roof lies above zero."),
        (["x.json", "--kv-dtype", "fp99"], None),
        (["x.json", "--tp", "8", "--attention-dp", "3"], None),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], reason: str | None, tracelens: Command) -> None:
    ran = tracelens("roofline", *arguments)
    assert ran.code == 2
    if reason is not None:
        assert reason in ran.err


def test_layers_of_an_unknown_kind_have_times_only(tracelens: Command, sample_traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(ODD))
    sample = str(sample_traces / "vllm_cpu_decode_10steps.json.gz")
    ran = tracelens("roofline", sample, "--model", str(path), "--gpu", "H200", "--json")
    assert ran.code == 0
    assert {row["tflops"] for row in json.loads(ran.out)["attention"]} == {None}


def test_a_label_without_tokens_reads_nothing(tracelens: Command) -> None:
    label = "execute_1_context_1(sq0sk0sqsq0sqsk0)_generation_0(sq0sk0sqsq0sqsk0)"
    ran = tracelens("roofline", "--annotation", label, "--model", "Qwen3-8B", "--gpu", "MI300X")
    assert ran.code == 0
    assert "nothing to read" in ran.out
