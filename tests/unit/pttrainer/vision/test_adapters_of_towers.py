"""Adapters on towers and their projectors: of every kind, on which matrices, and what they compute and learn."""

import dataclasses
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.peers import gemma4_images, image_models, llama4_images, mistral_images, qwen_images

from ptapi.spec import Training
from pttrainer.checkpoint.model_export import BaseModelRef, ExportWriter, TokenizerFiles, export_adapters
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, from_hf
from pttrainer.models.attention import kv_cache
from pttrainer.models.layers.decoder import merged
from pttrainer.models.loading.model_spec import structure_of
from pttrainer.models.loading.peft_adapters import open_initial_adapters
from pttrainer.models.lora import adapters
from pttrainer.models.lora.adapters import Adapters
from pttrainer.runtime.io.directory import Directory

RAW: dict[str, dict[str, Any]] = {
    "gemma-3": image_models.RAW,
    "gemma-4": gemma4_images.MODELS.cases["gemma-4"],
    "llama-4": llama4_images.MODELS.cases["llama-4"],
    "mistral-3": mistral_images.MODELS.cases["mistral-3"],
    "qwen-3-vl": qwen_images.MODELS.cases["qwen-3-vl"],
}
"""A model of each kind of tower."""
GATED = {"q", "k", "v", "o", "gate", "up", "down"}
PLAIN = GATED - {"gate"}
LAYERS = {"gemma-3": PLAIN, "gemma-4": GATED, "llama-4": PLAIN, "mistral-3": GATED, "qwen-3-vl": PLAIN}
PROJECTORS = {
    "gemma-3": {"projection"},
    "gemma-4": {"projection"},
    "llama-4": {"merge", "inner", "projection"},
    "mistral-3": {"merge", "inner", "outer"},
    "qwen-3-vl": {f"{part}.{name}" for part in ("merger", "deep_0", "deep_1") for name in ("up", "down")},
}


def structure(case: str, **lora: Any) -> Model:
    config = from_hf(RAW[case], images=True)
    training = Training(lora={"rank": 3, "alpha": 4, "targets": "attention"} | lora, vision="lora")
    return Model.from_structure(structure_of(config, training, "cpu"))


def numbers(path: Any, x: Any) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(jax.tree_util.keystr(path).encode()))
    return (0.2 * rng.standard_normal(x.shape)).astype(x.dtype)


@lru_cache
def with_params(case: str) -> tuple[Model, Any]:
    """Adapters on all matrices of the tower, on those of attention in the decoder, none of them fresh."""
    model = structure(case)
    of_tower = adapters.vision_matrices(model.config, "all-linear")
    assert model.adapters is not None
    model = dataclasses.replace(model, adapters=dataclasses.replace(model.adapters, vision=of_tower))
    params = jax.tree_util.tree_map_with_path(numbers, model.abstract())
    return model, jax.tree.map(jnp.asarray, params)


def pixels(case: str) -> jax.Array:
    if case == "gemma-3":
        return jnp.asarray(image_models.pixels(3, 2))
    of = {"gemma-4": gemma4_images, "llama-4": llama4_images, "mistral-3": mistral_images, "qwen-3-vl": qwen_images}
    tokens, pictures = of[case].MODELS.examples[0]
    arrays = of[case].MODELS.images_of(tokens[None], [pictures]).pixels_BMSSC
    return jnp.asarray(arrays[0])


def adapted_places(model: Model) -> set[str]:
    """Places in the tower of the matrices with adapters."""
    trained = [path for path in model.trained_weights if path[0] == "vision"]
    return {".".join(path[1:-1]).removesuffix("_lora") for path in trained}


@pytest.mark.parametrize("case", RAW)
def test_targets_are_those_of_the_layers_and_with_all_linear_the_projector_s(case: str) -> None:
    of_layers = {f"layers.{name}" for name in LAYERS[case]}
    assert adapted_places(with_params(case)[0]) == of_layers | PROJECTORS[case]
    assert adapted_places(structure(case)) == {f"layers.{name}" for name in adapters.ATTENTION}


def test_without_vision_lora_adapters_are_on_the_decoder_alone() -> None:
    config = from_hf(RAW["mistral-3"], images=True)
    plain = Model.from_structure(structure_of(config, Training(lora={}), "cpu"))
    assert adapted_places(plain) == set()
    assert adapted_places(structure("mistral-3", targets="mlp")) == {"layers.gate", "layers.up", "layers.down"}


@pytest.mark.parametrize("case", RAW)
def test_weights_and_axes_of_the_table_are_those_of_the_modules(case: str) -> None:
    model, _ = with_params(case)

    def named(tree: Any, is_leaf: Any = None) -> dict[tuple[str, ...], Any]:
        leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
        return {tuple(key.key for key in path): leaf for path, leaf in leaves}

    is_axes = lambda x: isinstance(x, tuple)  # noqa: E731
    assert {path: x.shape for path, x in named(model.abstract()).items()} == {
        path: one.shape for path, one in model.weights.items()
    }
    assert named(model.logical_axes(), is_axes) == {path: one.axes for path, one in model.weights.items()}


@pytest.mark.parametrize("case", RAW)
def test_merged_matrices_compute_the_same_and_every_adapter_learns(case: str) -> None:
    model, params = with_params(case)
    assert model.adapters is not None
    frozen, trained = model.frozen(params), model.trained(params)["vision"]
    inputs = pixels(case)

    def embeddings(model: Model, params: Any) -> jax.Array:
        tower = merged(model, params).vision
        assert tower is not None
        return jnp.concatenate([each.ravel() for each in tower(inputs, "float32")])

    def loss(of_tower: Any) -> tuple[jax.Array, jax.Array]:
        out = embeddings(model, model.join_params(frozen, {**model.trained(params), "vision": of_tower}))
        return jnp.sum(jnp.sin(out)), out

    (_, apart), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(trained)
    whole = jax.tree.map(np.asarray, model.merged(params))
    together = jax.jit(lambda params: embeddings(model.without_adapters, params))(whole)
    without = jax.jit(lambda params: embeddings(model.without_adapters, params))(frozen)
    scale = np.abs(apart).max()
    assert np.abs(apart - together).max() < 1e-4 * scale
    assert np.abs(apart - without).max() > 0.01 * scale
    # Of every layer: a gradient that is zero would be an adapter that nothing reads.
    stacked = jax.tree_util.tree_leaves_with_path(gradients)
    assert {".".join(key.key for key in path[:-1]) for path, _ in stacked} == {
        ".".join((*path.split(".")[:-1], f"{path.split('.')[-1]}_lora")) for path in adapted_places(model)
    }
    for path, x in stacked:
        per_layer = x if path[0].key == "layers" else x[None]
        assert (np.abs(per_layer).max(axis=(1, 2)) > 0).all(), jax.tree_util.keystr(path)


def test_a_prompt_in_the_cache_has_the_hidden_states_of_training() -> None:
    model, params = with_params("mistral-3")
    tokens, pictures = mistral_images.MODELS.examples[0]
    images = mistral_images.MODELS.images_of(tokens[None], [pictures])
    places_BT, ones_BT = np.arange(len(tokens))[None], np.ones((1, len(tokens)), np.int32)
    trained_BTD = jax.jit(model.forward)(params, tokens[None], places_BT, ones_BT, images=images)
    cache = kv_cache.empty(model.config, 1, len(tokens), model.compute_dtype)
    sampled_BTD, _ = jax.jit(model.decode)(model.for_decoding(params), tokens[None], places_BT, cache, images)
    np.testing.assert_allclose(sampled_BTD, trained_BTD, atol=1e-4)


@pytest.mark.parametrize("case", ["gemma-3", "qwen-3-vl"])
def test_an_export_in_peft_s_layout_is_read_back_to_the_bit(case: str, tmp_path: Path) -> None:
    """Of a matrix that is no linear layer there, and of three matrices that are one."""
    model, params = with_params(case)
    trained, words = model.trained(params), TokenizerFiles(byte_tokenizer(), None)
    export_adapters(
        Directory(tmp_path), model, BaseModelRef("hf://org/name"), trained, words, ExportWriter(jax.device_get)
    )
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    again = open_initial_adapters(f"file://{tmp_path}", model, lambda line: None)
    loaded = again.params(model, jax.tree.map(lambda _: here, model.trained(model.abstract())))
    jax.tree.map(np.testing.assert_array_equal, loaded, trained)


def test_peft_s_names_are_those_of_transformers_modules() -> None:
    config = from_hf(RAW["gemma-3"], images=True)
    chosen = Adapters(4, 8.0, adapters.ATTENTION, vision=adapters.vision_matrices(config, "all-linear"))
    stored = {".".join(path): one.name for path, one in adapters.names(config, chosen).items() if path[0] == "vision"}
    start = "base_model.model.model."
    assert stored["vision.layers.o_lora.a"] == (
        f"{start}vision_tower.encoder.layers.{{i}}.self_attn.out_proj.lora_A.weight"
    )
    # A parameter of the projector itself, which PEFT reads the other way round.
    assert stored["vision.projection_lora.a"] == f"{start}multi_modal_projector.lora_B.weight"
    assert adapters.target_parameters(config, chosen) == ["model.multi_modal_projector.mm_input_projection_weight"]
