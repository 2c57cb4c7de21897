"""Configs, specs and labels that cannot be: refused with a reason, and priced nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracelens_infer.errors import InputError
from tracelens_infer.roofline.hardware import load_hardware
from tracelens_infer.roofline.model_config import model_from_config

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"head_dim": -1},
        {"head_dim": [16, -1]},
        {"head_dim": None, "hidden_size": 1},
        {"num_key_value_heads": -8},
        {"num_attention_heads": 2**63},
        {"head_dim": 10**30},
        {"hidden_size": 10**400},
        {"vocab_size": 10**330},
        {"num_hidden_layers": 10**30},
        {"num_hidden_layers": 10**6},
        {"intermediate_size": -9},
        {"sliding_window": -5, "use_sliding_window": True, "max_window_layers": 0},
        {"attention_chunk_size": -8},
        {"kv_lora_rank": -4},
        {"num_nextn_predict_layers": -3},
        {"num_experts": 8, "num_experts_per_tok": 99, "moe_intermediate_size": 10},
    ],
    ids=str,
)
def test_a_config_with_impossible_sizes_is_refused(wrong: dict[str, Any]) -> None:
    assert model_from_config(LLAMA).hidden == 64
    with pytest.raises(InputError):
        model_from_config(LLAMA | wrong)


@pytest.mark.parametrize(
    "line",
    [
        "num_sms = inf",
        "num_sms = 0",
        "num_sms = 1.7",
        "num_sms = true",
        'memory_gb = { value = true, source = "s", grade = "user" }',
        'memory_gb = { value = "3350", source = "s", grade = "user" }',
        f'memory_gb = {{ value = {"9" * 400}, source = "s", grade = "user" }}',
        "x = " + "[" * 100_000,
    ],
    ids=lambda line: line[:40],
)
def test_a_spec_with_impossible_figures_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(f'name = "X"\nvendor = "Y"\n{line}\n[peak_tflops]\n')
    with pytest.raises(InputError):
        load_hardware(str(path))
