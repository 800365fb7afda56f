"""Checkpoints in MXFP4, as gpt-oss is released: 4-bit floats, and a power of two for each 32 of them."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.builders.peers.inference import load_model
from tests.builders.peers.models import CASES, tensors

from pttrainer.errors import ConfigError

STORAGE = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
RAW = {**CASES["gpt-oss"], "hidden_size": 64, "intermediate_size": 96}
GATE_UP = "model.layers.1.mlp.experts.gate_up_proj"
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def packed(shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks and scales of matrices [E, I, O] at random, and the numbers that both stand for, one by one."""
    experts, inputs, outputs = shape
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (experts, outputs, inputs // 32, 16), dtype=np.uint8)
    scales = random.integers(115, 128, (experts, outputs, inputs // 32), dtype=np.uint8)
    numbers = np.zeros(shape, np.float32)
    for e, o, n, b in np.ndindex(blocks.shape):
        for half, code in enumerate((blocks[e, o, n, b] & 15, blocks[e, o, n, b] >> 4)):
            sign = -1.0 if code & 8 else 1.0
            numbers[e, 32 * n + 2 * b + half, o] = sign * MAGNITUDES[code & 7] * 2.0 ** (int(scales[e, o, n]) - 127)
    return blocks, scales, numbers


def write(directory: Path, *, without: str = "", whole: bool = False) -> None:
    """A checkpoint whose experts are 4-bit floats, or with the numbers that they stand for."""
    stored = tensors(RAW)
    for seed, name in enumerate([name for name in stored if name.endswith(("gate_up_proj", "experts.down_proj"))]):
        blocks, scales, numbers = packed(stored.pop(name).shape, seed)
        stored |= {name: numbers} if whole else {f"{name}_blocks": blocks, f"{name}_scales": scales}
    stored.pop(without, None)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(RAW if whole else {**RAW, "quantization_config": STORAGE}))
    save_file(stored, directory / "model.safetensors", {"format": "pt"})


def test_blocks_are_read_as_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    write(tmp_path / "blocks")
    write(tmp_path / "whole", whole=True)
    read, wanted = load_model(tmp_path / "blocks")[1], load_model(tmp_path / "whole")[1]
    jax.tree.map(np.testing.assert_array_equal, read, wanted)


def test_blocks_without_their_scales_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "blocks", without=f"{GATE_UP}_scales")
    with pytest.raises(ConfigError, match=f"{GATE_UP}_blocks: 4-bit floats .* need {GATE_UP}_scales.*there is none"):
        load_model(tmp_path / "blocks")


def test_a_half_of_a_pair_is_named_where_the_other_one_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "blocks", without=f"{GATE_UP}_blocks")
    with pytest.raises(ConfigError, match=f"missing {GATE_UP} .*extra {GATE_UP}_scales"):
        load_model(tmp_path / "blocks")
