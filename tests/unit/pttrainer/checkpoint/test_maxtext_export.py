"""Exports for MaxText: its names, and the same model after its way back to Hugging Face's files."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file, save_file
from tests.builders.peers.models import CASES, write_checkpoint

from pttrainer.checkpoint import maxtext_export
from pttrainer.checkpoint.maxtext_layout import weights
from pttrainer.checkpoint.model_export import TokenizerFiles
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models import Model, ModelConfig, Params, from_hf
from pttrainer.models.weights.load_weights import load

MODELS: dict[str, dict[str, Any]] = {
    **{name: CASES[name] for name in ("llama-3.1", "mistral", "qwen-2.5", "qwen-3", "gemma-3")},
    "gemma-2": CASES["gemma-2"] | {"query_pre_attn_scalar": CASES["gemma-2"]["head_dim"]},
}
TOKENS = np.arange(3, 30)[None]


class Source(NamedTuple):
    """A weight of Hugging Face's, or those that one of MaxText's stacks."""

    pattern: str
    layers: tuple[int, ...] = ()


@cache
def names() -> Mapping[str, Mapping[str, Source]]:
    """By model and layout: MaxText's names of its own mapping, and where each weight comes from."""
    read: dict[str, dict[str, Source]] = {}
    for line in (Path(__file__).parent / "maxtext_names.txt").read_text().splitlines()[1:]:
        if line.startswith("["):
            own = read[line.strip("[]")] = {}
            continue
        name, pattern, *layers = line.split()
        own[name] = Source(pattern, tuple(int(layer) for layer in layers[0].split(",")) if layers else ())
    return read


def loaded(directory: Path, raw: dict[str, Any]) -> tuple[Model, Params]:
    model = Model(from_hf(raw))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = model.abstract()
    return model, load(model.config, directory, abstract, jax.tree.map(lambda _: here, abstract))


def logits(model: Model, params: Params) -> np.ndarray:
    positions = np.arange(TOKENS.shape[1])[None]
    return np.asarray(model.logits(params, model.forward(params, TOKENS, positions, np.ones_like(TOKENS))))


def back(config: ModelConfig, name: str, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A weight of MaxText's as Hugging Face's, by what its forward pass leaves out."""
    is_gemma = config.family.startswith("gemma")
    if name.endswith("norm-scale") or "norm_" in name:
        return value - 1 if is_gemma else value
    if name == "token_embedder-embedding":
        factor = {"gemma2": config.d_model**0.5, "gemma3_text": 6.46875}.get(config.family, 1.0)  # of 42, in bfloat16
        return value[: shape[0]] / np.float32(factor)
    if "query-kernel" in name and config.family in ("llama", "mistral", "gemma2"):
        value = value * np.float32(config.head_dim**0.5)
    if config.family == "llama" and ("query" in name or "key" in name):
        value = np.concatenate([value[..., ::2], value[..., 1::2]], axis=-1)
    return value.reshape(shape[::-1]).T


@pytest.mark.parametrize("layout", ["scanned", "unscanned"])
@pytest.mark.parametrize("case", MODELS)
def test_the_checkpoint_has_maxtexts_names_and_is_the_same_model(case: str, layout: str, tmp_path: Path) -> None:
    raw = MODELS[case]
    model, params = loaded(write_checkpoint(tmp_path / "hf", raw), raw)
    tokenizer_files = TokenizerFiles(byte_tokenizer(), None)
    scan = layout == "scanned"
    maxtext_export.export(tmp_path / "mt", model, params, tokenizer_files, jax.device_get, scan=scan)
    with ocp.PyTreeCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "mt" / "0" / "items")
    leaves = jax.tree_util.tree_flatten_with_path(restored["params"]["params"])[0]
    values = {"-".join(key.key for key in path): np.asarray(value) for path, value in leaves}
    expected = names()[f"{case} {layout}"]
    assert values.keys() == expected.keys()
    original = load_file(tmp_path / "hf" / "model.safetensors")
    returned: dict[str, np.ndarray] = {}
    for name, (pattern, layers) in expected.items():
        own = {pattern: values[name]}
        if layers:
            assert values[name].shape[1] == len(layers)
            own = {pattern.format(layer): np.take(values[name], n, axis=1) for n, layer in enumerate(layers)}
        for tensor, value in own.items():
            returned[tensor] = np.ascontiguousarray(back(model.config, name, value, original[tensor].shape))
    assert returned.keys() == original.keys()
    for tensor, value in returned.items():
        np.testing.assert_allclose(value, original[tensor], rtol=1e-6, atol=1e-6, err_msg=tensor)
    if scan:
        (tmp_path / "back").mkdir()
        save_file(returned, tmp_path / "back" / "model.safetensors")
        _, same = loaded(tmp_path / "back", raw)
        np.testing.assert_allclose(logits(model, same), logits(model, params), rtol=1e-4, atol=1e-4)
    assert {file.name for file in (tmp_path / "mt").iterdir()} == {"0", "tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (CASES["gemma-2"], "gemma2 with 4 layers and attention scaled by 0.2041; accepted: an even number, and 0.3162"),
        (CASES["qwen-3-moe"], "qwen3_moe: accepted: llama, mistral, qwen2, qwen3, gemma2, gemma3_text"),
        (CASES["llama-biases-mqa"], "llama with attention.o_bias, which MaxText's has not"),
    ],
)
def test_what_maxtext_has_otherwise_is_refused(raw: dict[str, Any], message: str) -> None:
    model = Model(from_hf(raw))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), model.abstract())
    with pytest.raises(ConfigError, match=message):
        list(weights(model.config, params, np.asarray, scan=True))
