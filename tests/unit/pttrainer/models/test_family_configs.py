"""`config.json` of every family: read, written and read again; and what is refused, with what is different."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from tests.builders.peers.inference import load_model
from tests.builders.peers.models import CASES, write_checkpoint

from pttrainer.errors import ConfigError
from pttrainer.models import from_hf, to_hf
from pttrainer.models.families import FAMILIES
from pttrainer.models.layers import linear
from pttrainer.models.shapes.parameters import ParamSpec


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_read_as_the_same_model(name: str) -> None:
    config = from_hf(CASES[name])
    assert from_hf(to_hf(config)) == replace(config, prediction_layers=0)


def test_every_family_has_a_case() -> None:
    assert {from_hf(raw).family for raw in CASES.values()} == set(FAMILIES)


def test_the_text_part_of_mistral_3_is_the_model_that_it_nests() -> None:
    whole = {"model_type": "mistral3", "vision_config": {"model_type": "pixtral"}, "spatial_merge_size": 2}
    for name, image_id in (("ministral-3", 10), ("mistral", 7)):
        nested = {**whole, "text_config": CASES[name], **({"image_token_index": 7} if image_id == 7 else {})}
        assert from_hf(nested) == replace(from_hf(CASES[name]), image_token_id=image_id)
    with pytest.raises(ConfigError, match="text_config model_type: 'llama': not supported; accepted: mistral, minis"):
        from_hf({**whole, "text_config": CASES["llama-3.0"]})


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("smollm-3", {"use_sliding_window": True, "sliding_window": 9, "layer_types": ["sliding_attention"] * 4},
         "layer_types: .*accepted: sliding_attention for the layers without rotary embedding"),
        ("smollm-3", {"no_rope_layers": [1, 0]}, r"no_rope_layers: \[1, 0\]: .*at least 4 of them"),
        ("olmo-3", {"rope_theta": 1e6}, "rope_theta: 1000000.0: not supported; accepted: 500000.0"),
        ("phi-4", {"rope_scaling": {"type": "longrope"}}, "type: 'longrope': not supported; accepted: default"),
        ("glm-4.5", {"n_group": 3}, "n_group: 3: accepted: a divisor of the 8 experts"),
        ("glm-4.5", {"first_k_dense_replace": 3}, "first_k_dense_replace: 3: .*less than num_hidden_layers"),
        ("glm-4.5", {"topk_group": 1}, "num_experts_per_tok: 3: more than the experts of 1 groups; .* at most 2"),
    ],
)  # fmt: skip
def test_what_a_family_cannot_compute_is_refused(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_hf(CASES[name] | changed)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"model_type": "qwen9", "layer_types": ["linear_attention", "full_attention"], "mamba_d_state": 64},
         "'qwen9': not supported: has layers of kind linear_attention, state-space layers, which no family here has; "
         "accepted: deepseek_v3, deepseek_v32, gemma2, .*; hint: qwen"),
        ({"model_type": "bert", "text_config": {"layer_norm_eps": 1e-12}}, "has layer norms in place of RMS norms"),
        ({"model_type": "yi"}, "'yi': not supported; accepted: deepseek_v3, .*; hint: docs/guides/add-a-model.md"),
    ],
)  # fmt: skip
def test_an_unknown_family_is_refused_with_what_is_different_and_those_there_are(
    raw: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        from_hf(raw)


def test_layers_that_predict_further_tokens_are_left_in_the_file(tmp_path: Path) -> None:
    """As released: GLM 4.5's one layer behind the last. A second one is none that config.json knows."""
    directory = write_checkpoint(tmp_path, CASES["glm-4.5"])
    tensors, further = load_file(directory / "model.safetensors"), np.zeros((4, 4), np.float32)
    save_file(tensors | {"model.layers.3.eh_proj.weight": further}, directory / "model.safetensors", {"format": "pt"})
    _, params = load_model(directory)
    np.testing.assert_array_equal(params["embedding"], tensors["model.embed_tokens.weight"])
    save_file(tensors | {"model.layers.4.eh_proj.weight": further}, directory / "model.safetensors")
    with pytest.raises(ConfigError, match=r"extra model\.layers\.4\.eh_proj\.weight"):
        load_model(directory)


def test_random_weights_are_those_of_the_keys_that_flax_draws() -> None:
    spec, ours, flax = ParamSpec((3, 2), ("a", "b")), nnx.Rngs(5), nnx.Rngs(5)
    for _ in range(3):
        wanted = jax.random.truncated_normal(flax.params(), -3.0, 3.0, (3, 2))
        np.testing.assert_array_equal(linear.weight(ours, spec, 1.0)[...], wanted)
