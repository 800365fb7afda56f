"""Checkpoints that hold the matrices of all experts in one tensor, as Qwen 3.5 and Qwen3-VL are released."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.builders.peers.inference import load_model
from tests.builders.peers.models import CASES, tensors, write_checkpoint

from pttrainer.errors import ConfigError

RAW = CASES["qwen-3.5-moe"]


def write_packed(directory: Path, raw: dict[str, Any] = RAW, *, without: str = "", as_products: bool = False) -> Path:
    """Gate and up of all experts as one tensor, and down as another. as_products: as [in, out]."""
    of, experts = tensors(raw), range(raw["num_experts"])
    stored = {name: tensor for name, tensor in of.items() if ".mlp.experts." not in name}
    for layer in range(raw["num_hidden_layers"]):
        base = f"model.layers.{layer}.mlp.experts."
        each = [[of[f"{base}{e}.{name}_proj.weight"] for name in ("gate", "up", "down")] for e in experts]
        stored[f"{base}gate_up_proj"] = np.stack([np.concatenate([gate, up]) for gate, up, _ in each])
        stored[f"{base}down_proj"] = np.stack([down for _, _, down in each])
    if as_products:
        stored |= {name: x.swapaxes(1, 2).copy() for name, x in stored.items() if ".mlp.experts." in name}
    stored.pop(without, None)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(raw))
    save_file(stored, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.mark.parametrize("as_products", [False, True], ids=["out-in", "in-out"])
@pytest.mark.parametrize("size", [19, 21, 42], ids=["neither-square", "gate-up-square", "down-square"])
def test_packed_experts_are_read_as_the_same_model(tmp_path: Path, size: int, as_products: bool) -> None:
    """transformers itself writes Qwen3-VL's either way, so shapes say which; one of the two is never square."""
    raw = RAW | {"moe_intermediate_size": size, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    _, packed = load_model(write_packed(tmp_path / "packed", raw, as_products=as_products))
    _, apart = load_model(write_checkpoint(tmp_path / "apart", raw))
    jax.tree.map(np.testing.assert_array_equal, packed, apart)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing model\.layers\.1\.mlp\.experts\.down_proj"):
        load_model(write_packed(tmp_path / "packed", without="model.layers.1.mlp.experts.down_proj"))
