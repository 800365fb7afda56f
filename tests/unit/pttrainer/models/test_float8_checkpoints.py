"""Checkpoints in 8-bit floats with a scale for each block of 128 x 128, as DeepSeek releases them."""

import json
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.builders.peers.inference import load_model
from tests.builders.peers.models import CASES, tensors

from pttrainer.errors import ConfigError
from pttrainer.models import from_hf

STORAGE = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
RAW = {**CASES["deepseek-v3"], "hidden_size": 150, "intermediate_size": 270, "quantization_config": STORAGE}


def scaled(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, a scale for each block, and the numbers that both stand for."""
    rows, columns = (np.arange(size) // 128 for size in matrix.shape)
    scales = np.zeros((rows[-1] + 1, columns[-1] + 1), np.float32)
    np.maximum.at(scales, (rows[:, None], columns[None]), np.abs(matrix) / 448)
    whole = scales[rows][:, columns]
    codes = (matrix / whole).astype(ml_dtypes.float8_e4m3fn)
    return codes, scales, codes.astype(np.float32) * whole


def write(directory: Path, leave_out: str = "") -> dict[str, np.ndarray]:
    """A checkpoint whose matrices in the layers are 8-bit floats; the numbers it stands for."""
    stands_for, stored = tensors(RAW), {}
    for name, matrix in stands_for.items():
        if name.endswith("_proj.weight"):
            stored[name], stored[f"{name}_scale_inv"], stands_for[name] = scaled(matrix)
        else:
            stored[name] = matrix
    stored.pop(leave_out, None)
    (directory / "config.json").write_text(json.dumps(RAW))
    save_file(stored, directory / "model.safetensors", {"format": "pt"})
    return stands_for


def test_blocks_are_read_as_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir()
    stands_for = write(tmp_path / "blocks")
    (tmp_path / "whole").mkdir()
    whole = {key: value for key, value in RAW.items() if key != "quantization_config"}
    (tmp_path / "whole" / "config.json").write_text(json.dumps(whole))
    save_file(stands_for, tmp_path / "whole" / "model.safetensors", {"format": "pt"})
    read, wanted = load_model(tmp_path / "blocks")[1], load_model(tmp_path / "whole")[1]
    jax.tree.map(np.testing.assert_array_equal, read, wanted)


def test_codes_without_their_scales_are_refused(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    write(tmp_path, leave_out=f"{name}_scale_inv")
    with pytest.raises(ConfigError, match=f"{name}: 8-bit floats need {name}_scale_inv"):
        load_model(tmp_path)


@pytest.mark.parametrize("changed", [{"quant_method": "gptq"}, {"weight_block_size": [64, 64]}, {"bits": 4}])
def test_other_ways_of_storing_weights_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"config.json quantization_config {next(iter(changed))}: .*not supported"):
        from_hf({**RAW, "quantization_config": {**STORAGE, **changed}})
