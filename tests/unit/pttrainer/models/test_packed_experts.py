"""Checkpoints that hold the matrices of all experts in one tensor, as Qwen 3.5 is released."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.builders.peers.inference import load_model
from tests.builders.peers.models import CASES, tensors, write_checkpoint

from pttrainer.errors import ConfigError

RAW = CASES["qwen-3.5-moe"]


def write_packed(directory: Path, *, without: str = "") -> Path:
    """Gate and up of all experts as one tensor, and down as another."""
    of, experts = tensors(RAW), range(RAW["num_experts"])
    stored = {name: tensor for name, tensor in of.items() if ".mlp.experts." not in name}
    for layer in range(RAW["num_hidden_layers"]):
        base = f"model.layers.{layer}.mlp.experts."
        each = [[of[f"{base}{e}.{name}_proj.weight"] for name in ("gate", "up", "down")] for e in experts]
        stored[f"{base}gate_up_proj"] = np.stack([np.concatenate([gate, up]) for gate, up, _ in each])
        stored[f"{base}down_proj"] = np.stack([down for _, _, down in each])
    stored.pop(without, None)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(RAW))
    save_file(stored, directory / "model.safetensors", {"format": "pt"})
    return directory


def test_packed_experts_are_read_as_the_same_model(tmp_path: Path) -> None:
    _, packed = load_model(write_packed(tmp_path / "packed"))
    _, apart = load_model(write_checkpoint(tmp_path / "apart", RAW))
    jax.tree.map(np.testing.assert_array_equal, packed, apart)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing model\.layers\.1\.mlp\.experts\.down_proj"):
        load_model(write_packed(tmp_path / "packed", without="model.layers.1.mlp.experts.down_proj"))
