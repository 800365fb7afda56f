"""Frozen parts: which weights a pattern means, and that nothing moves them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.peers.image_models import RAW
from tests.builders.peers.models import CASES
from tests.builders.trainer import steps as build

from ptapi.spec import Optimizer, Training
from pttrainer.errors import ConfigError
from pttrainer.models import from_hf, preset
from pttrainer.train_step.optimizer import freeze, freeze_patterns, transformation

TINY = preset("tiny")
UNTIED = from_hf(CASES["qwen-3"])


def frozen(tree: Any) -> dict[str, Any]:
    """What is held, by path; layers as lists."""
    masks = {}
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(x, np.ndarray) or x:
            masks[".".join(key.key for key in path)] = x.tolist() if isinstance(x, np.ndarray) else True
    return masks


def test_words_name_parts_of_the_model() -> None:
    assert frozen(freeze.frozen_mask(["embeddings", "head"], UNTIED)) == {"embedding": True, "head": True}
    norms = frozen(freeze.frozen_mask(["norms"], UNTIED))
    assert norms.keys() == {"norm.scale", "layers.attention_norm.scale", "layers.mlp_norm.scale",
                            "layers.attention.q_norm.scale", "layers.attention.k_norm.scale"}  # fmt: skip
    assert set(norms.values()) == {True}


def test_layers_are_held_by_number_and_all_of_them_whole() -> None:
    some = frozen(freeze.frozen_mask(["layers.0-1"], UNTIED))
    assert "embedding" not in some
    assert some["layers.mlp.up"] == [True, True, False]
    mixed = frozen(freeze.frozen_mask(["layers.3-5"], from_hf(CASES["qwen-3-moe-mixed"])))
    assert mixed["layers_1.mlp.router"] is True  # 3 and 5 of 3, 5
    assert mixed["layers_2.mlp.up"] == [True, False]  # 4 of 4, 6
    assert frozen(freeze.frozen_mask(["layers.1"], UNTIED))["layers.mlp.up"] == [False, True, False]
    assert frozen(freeze.frozen_mask(["layers.0-2"], UNTIED))["layers.mlp.up"] is True


def test_patterns_are_globs_over_hugging_faces_names() -> None:
    masks = frozen(freeze.frozen_mask(["model.layers.[02].self_attn.*_proj.weight"], UNTIED))
    assert masks == {f"layers.attention.{name}": [True, False, True] for name in "qkvo"}
    experts = frozen(freeze.frozen_mask(["*.experts.*"], from_hf(CASES["qwen-3-moe"])))
    assert experts == {f"layers.mlp.{name}": True for name in ("gate", "up", "down")}


@pytest.mark.parametrize(
    ("patterns", "config", "words"),
    [
        (["model.layer.0.*"], TINY, "freeze: model.layer.0.*: matches no weight; accepted: embeddings, head, norms, "),
        (["model.layer.0.*"], TINY, "model.layers.0.mlp.up_proj.weight"),
        (["embeddings", "layers.2-9"], TINY,
         "layers.2-9: matches no weight; accepted: embeddings, head, norms, layers.0"),
        (["head"], TINY, "matches no weight (the head is the embedding here)"),
        (["embeddings", "*"], TINY, "[embeddings, *]: freezes every weight"),
    ],
)  # fmt: skip
def test_a_pattern_that_means_nothing_is_refused_with_the_names_there_are(
    patterns: list[str], config: Any, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        freeze.frozen_mask(patterns, config)
    assert words in str(caught.value)


def test_the_numbers_that_may_move_are_counted() -> None:
    params = {"a": jnp.ones((6, 4)), "q": jnp.ones((4, 5, 5))}
    assert freeze.trainable_count(params, None) == 24 + 100
    assert freeze.trainable_count(params, {"a": True, "q": np.array([True, False, False, False])}) == 75


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon", "lion"])
def test_what_is_held_has_no_state_and_does_not_decay_whatever_the_rule(name: str) -> None:
    of = {"a": True, "layers": {"q": np.array([True, False]), "k": False}}
    axes = {"a": ("vocab", "embed"), "layers": dict.fromkeys("qk", ("layer", "embed", "heads"))}
    params = {"a": jnp.ones((6, 4)), "layers": {"q": jnp.ones((2, 4, 4)), "k": -jnp.ones((2, 4, 4))}}
    spec = Optimizer(name=name, weight_decay=0.5)  # type: ignore[arg-type]
    rule = transformation.build(spec, lambda _: 0.1, axes, frozen_mask=of)
    state = rule.init(params)
    assert "['a']" not in " ".join(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state))
    change, _ = rule.update(jax.tree.map(jnp.ones_like, params), state, params)
    np.testing.assert_array_equal(change["a"], 0.0)
    np.testing.assert_array_equal(change["layers"]["q"][0], 0.0)
    assert float(jnp.abs(change["layers"]["q"][1]).min()) > 0
    assert float(jnp.abs(change["layers"]["k"]).min()) > 0


def test_steps_move_the_rest_and_the_gradient_norm_is_that_of_the_rest() -> None:
    training = Training(freeze=["embeddings", "layers.0"], optimizer=Optimizer(weight_decay=0.1))
    run, free = build.steps(training), build.steps(Training())
    before, batch = run.host().params, build.batch()
    norm, whole = run(batch)["grad_norm"], free(batch)["grad_norm"]
    run(batch)
    after = run.host().params
    np.testing.assert_array_equal(after["embedding"], before["embedding"])
    for name in ("up", "down"):
        np.testing.assert_array_equal(after["layers"]["mlp"][name][0], before["layers"]["mlp"][name][0])
        assert np.abs(after["layers"]["mlp"][name][1] - before["layers"]["mlp"][name][1]).min() >= 0
        assert np.abs(after["layers"]["mlp"][name][1] - before["layers"]["mlp"][name][1]).max() > 1e-3
    assert 0 < norm < whole


@pytest.mark.parametrize(
    ("trained", "held"), [("frozen", {"tower", "projector"}), ("projector", {"tower"}), ("all", set())]
)
def test_of_a_vision_part_only_what_the_job_says_is_trained(trained: Any, held: set[str]) -> None:
    config = from_hf(RAW, images=True)
    patterns = freeze_patterns.patterns_of(Training(vision=trained), config)
    mask = frozen(freeze.frozen_mask(patterns, config)) if patterns else {}
    of_projector = {"vision.token_norm.scale", "vision.projection"}
    assert all(path.startswith("vision.") for path in mask)
    assert {"projector" if path in of_projector else "tower" for path in mask} == held
