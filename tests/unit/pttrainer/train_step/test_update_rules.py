"""Each update rule against its paper's formula, written out in numpy, matrix by matrix; and where its state lives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.peers.models import CASES
from tests.builders.trainer import steps as build

from ptapi.spec import Optimizer, Training
from ptapi.spec.training import Lora
from pttrainer.models import Model, from_hf, preset
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step.optimizer import state_sharding, transformation

RATE = 0.1
AXES = {
    "embedding": ("vocab", "embed"),
    "layers": {
        "q": ("layer", "embed", "heads"),
        "q_bias": ("layer", "heads"),
        "up": ("layer", "expert", "embed", "mlp"),
        "norm": {"scale": ("layer", "embed")},
        "router": ("layer", "embed", None),
    },
}
IN, OUT = 130, 136  # Adafactor factors matrices from 128 on


def tree(seed: int) -> Any:
    """Weights or gradients; layers differ in size, so that one that is shared over them shows."""
    random = np.random.default_rng(seed)
    shapes = {
        "embedding": (150, IN),
        "layers": {"q": (2, IN, OUT), "q_bias": (2, OUT), "up": (2, 2, OUT, IN), "norm": {"scale": (2, IN)},
                   "router": (2, IN, 4)},
    }  # fmt: skip

    def one(path: Any, shape: tuple[int, ...]) -> np.ndarray:
        x = random.standard_normal(shape).astype(np.float32)
        return (
            x * np.array([1.0, 30.0], np.float32).reshape(-1, *(1,) * (len(shape) - 1))
            if path[0].key != "embedding"
            else x
        )

    return jax.tree_util.tree_map_with_path(one, shapes, is_leaf=lambda x: isinstance(x, tuple))


def moved(spec: Optimizer, gradients: list[Any], weights: Any) -> Any:
    """Weights after a step per gradient, at a constant rate and without clipping."""
    rule = transformation.build(spec.model_copy(update={"max_grad_norm": 1e6}), lambda _: RATE, AXES)
    params = jax.tree.map(jnp.asarray, weights)
    state = rule.init(params)
    for gradient in gradients:
        change, state = jax.jit(rule.update)(jax.tree.map(jnp.asarray, gradient), state, params)
        params = jax.tree.map(jnp.add, params, change)
    return jax.device_get(params)


def adamw(w: np.ndarray, gradients: list[np.ndarray], decay: float = 0.0) -> np.ndarray:
    m = v = np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        w = w - RATE * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8) + decay * w)
    return w


def lion(w: np.ndarray, gradients: list[np.ndarray], decay: float = 0.0) -> np.ndarray:
    m = np.zeros_like(w)
    for g in gradients:
        w = w - RATE * (np.sign(0.9 * m + 0.1 * g) + decay * w)
        m = 0.99 * m + 0.01 * g
    return w


def adafactor(w: np.ndarray, gradients: list[np.ndarray], decay: float = 0.0) -> np.ndarray:
    """Algorithm 4 of the paper without relative step; one matrix or vector."""
    row, column, v = np.zeros(w.shape[0]), np.zeros(w.shape[-1]), np.zeros(w.shape)
    for t, g in enumerate(gradients, start=1):
        g = g.astype(np.float64)
        keep = 1.0 - t**-0.8
        if w.ndim == 2 and min(w.shape) >= 128:
            row = keep * row + (1 - keep) * (g * g).mean(axis=1)
            column = keep * column + (1 - keep) * (g * g).mean(axis=0)
            update = g / np.sqrt(np.outer(row, column) / row.mean())
        else:
            v = keep * v + (1 - keep) * g * g
            update = g / np.sqrt(v)
        update /= max(1.0, np.sqrt((update**2).mean()))
        w = w - RATE * (update + decay * w)
    return w


def orthogonal(x: np.ndarray) -> np.ndarray:
    """Five Newton-Schulz steps with the authors' coefficients."""
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def muon(w: np.ndarray, gradients: list[np.ndarray], decay: float = 0.0) -> np.ndarray:
    """One matrix: Nesterov momentum of bias-corrected means, orthogonalised, at AdamW's size."""
    m = np.zeros(w.shape)
    for t, g in enumerate(gradients, start=1):
        m = 0.95 * m + 0.05 * g
        ahead = 0.95 * m / (1 - 0.95 ** (t + 1)) + 0.05 * g / (1 - 0.95**t)
        wide = ahead if w.shape[0] <= w.shape[1] else ahead.T
        update = orthogonal(wide) if w.shape[0] <= w.shape[1] else orthogonal(wide).T
        w = w - RATE * (0.2 * np.sqrt(max(w.shape)) * update + decay * w)
    return w


def each(rule: Any, stacked: int, w: np.ndarray, gradients: list[np.ndarray], decay: float) -> np.ndarray:
    """The rule on every matrix of a stack."""
    if stacked == 0:
        return np.asarray(rule(w, gradients, decay))
    return np.stack([each(rule, stacked - 1, w[i], [g[i] for g in gradients], decay) for i in range(len(w))])


STACK = {"embedding": 0, "q": 1, "q_bias": 1, "up": 2, "scale": 1, "router": 1}
BY_MUON = ("q", "up")


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", ["adamw", "lion", "adafactor", "muon"])
def test_three_steps_are_those_of_the_paper_on_every_matrix_by_itself(name: str, decay: float) -> None:
    weights, gradients = tree(0), [tree(seed) for seed in (1, 2, 3)]
    after = moved(Optimizer(name=name, weight_decay=decay), gradients, weights)  # type: ignore[arg-type]
    for path, got in jax.tree_util.tree_leaves_with_path(after):
        leaf = path[-1].key
        of = [_at(g, path) for g in gradients]
        rule = {"adamw": adamw, "lion": lion, "adafactor": adafactor, "muon": muon}[name]
        if name == "muon" and leaf not in BY_MUON:
            rule = adamw
        wanted = each(rule, STACK[leaf], _at(weights, path), of, 0.0 if leaf == "scale" else decay)
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5, err_msg=jax.tree_util.keystr(path))


def _at(tree: Any, path: Any) -> np.ndarray:
    for key in path:
        tree = tree[key.key]
    return np.asarray(tree)


def test_numbers_of_the_spec_take_the_place_of_the_rules_own() -> None:
    weights, gradients = tree(0), [tree(1), tree(2)]
    after = moved(Optimizer(name="lion", beta1=0.0, beta2=0.0), gradients, weights)
    wanted = weights["embedding"] - RATE * sum(np.sign(g["embedding"]) for g in gradients)
    np.testing.assert_allclose(after["embedding"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "usual"), [("adamw", 2e-5), ("adafactor", 2e-5), ("muon", 2e-5), ("lion", 2e-6)])
def test_each_rule_has_its_usual_learning_rate(name: str, usual: float) -> None:
    training = Training(optimizer=Optimizer(name=name))  # type: ignore[arg-type]
    assert transformation.peak_rate(training, "sft") == pytest.approx(usual)
    assert transformation.peak_rate(training.model_copy(update={"lora": Lora()}), "sft") == pytest.approx(10 * usual)


def layout_of(name: str, model: Model, shape: tuple[int, int, int, int]) -> dict[str, tuple[Any, Any]]:
    """Path of every array of a rule's state to its shape and partition."""
    mesh = sharding.make_mesh(shape)
    rule = transformation.build(Optimizer(name=name), lambda _: RATE, model.logical_axes())  # type: ignore[arg-type]
    where = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes = jax.eval_shape(rule.init, model.abstract())
    places = state_sharding.shardings(shapes, model.abstract(), where, whole)
    leaves = zip(jax.tree_util.tree_leaves_with_path(shapes), jax.tree.leaves(places), strict=True)
    return {jax.tree_util.keystr(path): (x.shape, tuple(place.spec)) for (path, x), place in leaves}


WIDTH = ("fsdp", "expert", "sequence")
"""What splits a model's width."""


def test_state_is_split_as_its_weights_and_rows_and_columns_keep_the_axes_they_have() -> None:
    model = Model(preset("bench-13m"))
    adam = layout_of("adamw", model, (1, 4, 2, 1))
    assert adam["[1][0].nu['layers']['mlp']['up']"] == ((6, 384, 1024), (None, WIDTH, "tensor"))
    muon_ = layout_of("muon", model, (1, 4, 2, 1))
    (momentum,) = [at for path, at in muon_.items() if ".mu" in path and "['down']" in path]
    assert momentum == ((6, 1024, 384), (None, "tensor", WIDTH))
    factored = layout_of("adafactor", model, (1, 4, 2, 1))
    layouts = {kind: {path.rsplit("['", 1)[1]: at for path, at in factored.items() if f".{kind}[" in path}
             for kind in ("v_row", "v_col")}  # fmt: skip
    assert layouts["v_row"]["up']"] == ((6, 384), (None, WIDTH))
    assert layouts["v_col"]["up']"] == ((6, 1024), (None, "tensor"))
    assert layouts["v_row"]["down']"] == ((6, 384), (None, WIDTH))  # rows are those of the smaller side
    assert layouts["v_col"]["down']"] == ((6, 1024), (None, "tensor"))
    assert layouts["v_row"]["embedding']"] == ((384,), (WIDTH,))
    assert layouts["v_row"]["scale']"][1] == ()


@pytest.mark.parametrize("case", ["gpt-oss", "deepseek-v3", "gemma-3", "llama-biases-mqa"])
@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_every_family_has_a_state_for_every_weight(case: str, name: str) -> None:
    model = Model(from_hf(CASES[case]))
    rule = transformation.build(Optimizer(name=name), lambda _: RATE, model.logical_axes())  # type: ignore[arg-type]
    step = jax.eval_shape(lambda p: rule.update(p, rule.init(p), p)[0], model.abstract())
    assert jax.tree.map(jnp.shape, step) == jax.tree.map(jnp.shape, model.abstract())


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_eight_devices_take_the_steps_of_one(name: str) -> None:
    training = Training(optimizer=Optimizer(name=name))  # type: ignore[arg-type]
    batch = build.batch()
    one, eight = build.steps(training), build.steps(training, (2, 2, 2, 1))
    for _ in range(2):
        first, other = one(batch), eight(batch)
    assert other["loss"] == pytest.approx(first["loss"], rel=1e-4)
    up = eight.state.params["layers"]["mlp"]["up"]
    assert up.addressable_shards[0].data.shape == (2, 32, 64)
    np.testing.assert_allclose(jax.device_get(up), one.host().params["layers"]["mlp"]["up"], atol=2e-3)
