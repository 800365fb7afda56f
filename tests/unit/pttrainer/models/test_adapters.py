"""LoRA: what is trained, what stays, and that adapters are the low-rank change of the weights they claim to be."""

import dataclasses
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.trainer.preflight import spec
from tests.unit.pttrainer.train_step.test_step import Likelihood, one_per_row, single

from ptapi.spec import ModelSpec, Optimizer, Training
from ptapi.spec.training import Lora
from pttrainer.checkpoint.model_export import BaseModelRef, ExportWriter, TokenizerFiles, export, export_adapters
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models import Model, Params, preset
from pttrainer.models.config import Experts, ModelConfig
from pttrainer.models.loading import model_loader
from pttrainer.models.loading.model_spec import structure_of
from pttrainer.models.lora import adapters
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.quantization.quantize import Stack
from pttrainer.models.weights.safetensors_file import read_header
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.runtime.io.directory import Directory
from pttrainer.train_step.optimizer import transformation
from pttrainer.train_step.program import Program
from pttrainer.train_step.step import train_step

ALL = adapters.ATTENTION + adapters.MLP
PLAIN = Model(preset("tiny"))
MODEL = dataclasses.replace(PLAIN, adapters=Adapters(4, 8.0, ALL))


def fresh_adapters(model: Model) -> Params:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    where = jax.tree.map(lambda _: here, model.trained(model.abstract()))
    return jax.device_get(model.init_adapters(where, seed=0))


@lru_cache
def fresh() -> Params:
    return MODEL.join_params(jax.device_get(jax.jit(PLAIN.init)(jax.random.key(0))), fresh_adapters(MODEL))


@lru_cache
def grown() -> Params:
    """Adapters whose B is no longer zero."""

    def one(path: Any, x: Any) -> Any:
        random = np.random.default_rng(len(jax.tree_util.keystr(path)))
        return (0.1 * random.standard_normal(x.shape)).astype(np.float32)

    trained = jax.tree_util.tree_map_with_path(one, MODEL.trained(fresh()))
    return MODEL.join_params(MODEL.frozen(fresh()), trained)


def logits(model: Model, params: Params) -> np.ndarray:
    batch = one_per_row()

    @jax.jit
    def compute(params: Params) -> jax.Array:
        return model.logits(params, model.forward(params, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT))

    with jax.default_matmul_precision("highest"):
        return np.asarray(compute(params))


def loss_of(model: Model, params: Params) -> jax.Array:
    batch = one_per_row()
    hidden_BTD = model.forward(params, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
    logps_BTV = jax.nn.log_softmax(model.logits(params, hidden_BTD))
    logps_BT = jnp.take_along_axis(logps_BTV, jnp.asarray(batch.targets_BT)[..., None], axis=-1)[..., 0]
    return -jnp.sum(logps_BT * batch.weight_BT)


def test_fresh_adapters_change_nothing() -> None:
    np.testing.assert_array_equal(logits(MODEL, fresh()), logits(PLAIN, MODEL.frozen(fresh()) or {}))


def test_fresh_adapters_are_those_of_peft() -> None:
    first_values = set()
    for path, x in jax.tree_util.tree_leaves_with_path(MODEL.trained(fresh())):
        if path[-1].key == "b":
            assert not x.any()
            continue
        bound = x.shape[1] ** -0.5  # Kaiming with a = √5 is uniform within 1/√in
        assert 0.95 * bound < np.abs(x).max() <= bound
        assert x.std() == pytest.approx(bound / 3**0.5, rel=0.08)
        first_values.add(float(x.flat[0]) / bound)
    assert len(first_values) == len(ALL)  # a key for each


def test_an_array_is_the_same_whatever_else_has_adapters() -> None:
    attention = dataclasses.replace(PLAIN, adapters=Adapters(4, 8.0, adapters.ATTENTION))
    alone = fresh_adapters(attention)
    together = MODEL.trained(fresh())
    np.testing.assert_array_equal(
        alone["layers"]["attention"]["v_lora"]["a"], together["layers"]["attention"]["v_lora"]["a"]
    )
    assert "mlp" not in alone["layers"]


@pytest.mark.parametrize(("is_rank_stabilised", "scale"), [(False, 2.0), (True, 4.0)])
def test_unmerged_logits_are_those_of_the_merged_weights(is_rank_stabilised: bool, scale: float) -> None:
    chosen = Adapters(4, 8.0, ALL, is_rank_stabilised)
    assert chosen.scale == scale
    model = dataclasses.replace(PLAIN, adapters=chosen)
    unmerged = logits(model, grown())
    assert np.abs(unmerged - logits(PLAIN, MODEL.frozen(fresh()) or {})).max() > 1e-2
    np.testing.assert_allclose(unmerged, logits(PLAIN, model.merged(grown())), atol=1e-5)


@pytest.mark.parametrize(
    ("platform", "params", "frozen", "exported"),
    [("tpu", "auto", "bfloat16", "float32"), ("cpu", "auto", "float32", "float32"),
     ("tpu", "float32", "float32", "float32"), ("tpu", "bfloat16", "bfloat16", "bfloat16")],
)  # fmt: skip
def test_frozen_weights_are_kept_as_they_are_read_and_what_is_merged_into_them_is_not_rounded(
    platform: str, params: str, frozen: str, exported: str
) -> None:
    training = Training.model_validate({"lora": {"rank": 4, "alpha": 8.0}, "precision": {"params": params}})
    model = Model.from_structure(structure_of(PLAIN.config, training, platform))
    kept = (
        {str(one.dtype) for one in model.frozen_weights.values()},
        {one.dtype for one in model.trained_weights.values()},
    )
    assert kept == ({frozen}, {"float32"})
    released = jax.tree.map(lambda x: x.astype("bfloat16"), MODEL.frozen(grown()))
    whole = model.join_params(jax.tree.map(lambda x: x.astype(frozen), released), MODEL.trained(grown()))
    read = model.join_params(jax.tree.map(lambda x: x.astype("float32"), released), MODEL.trained(grown()))
    wanted = MODEL.merged(read)
    assert logits(model, whole).tolist() == logits(model, read).tolist()
    jax.tree.map(
        lambda one, of: np.testing.assert_array_equal(one, np.asarray(of).astype(exported)), model.merged(whole), wanted
    )
    assert {str(one.dtype) for one in jax.tree.leaves(model.merged(whole))} == {exported}
    assert isinstance(model.merged(whole)["layers"]["mlp"]["gate"], Stack), "all layers at once may not fit"


def test_full_training_keeps_float32_masters() -> None:
    model = structure_of(PLAIN.config, Training(), "tpu")
    assert {one.dtype for one in model.weights.values()} == {"float32"}


@pytest.mark.parametrize("is_tied", [True, False])
def test_adapters_on_embedding_and_head_are_low_rank_updates_of_the_tables(is_tied: bool) -> None:
    plain = dataclasses.replace(PLAIN, config=dataclasses.replace(PLAIN.config, tied_head=is_tied))
    model = dataclasses.replace(plain, adapters=Adapters(4, 8.0, ALL, embeddings=True))
    weights = jax.device_get(jax.jit(plain.init)(jax.random.key(0)))
    first = fresh_adapters(model)
    tables = [name for name in (adapters.EMBEDDING, adapters.HEAD) if name in first]
    assert tables == [adapters.EMBEDDING] if is_tied else [adapters.EMBEDDING, adapters.HEAD]
    assert not any(np.any(first[name]["a"]) for name in tables)
    assert np.std(first[adapters.EMBEDDING]["b"]) == pytest.approx(1.0, abs=0.1)  # as PEFT's
    np.testing.assert_array_equal(logits(model, model.join_params(weights, first)), logits(plain, weights))

    random = np.random.default_rng(3)
    moved = jax.tree.map(lambda x: (0.1 * random.standard_normal(x.shape)).astype(x.dtype), first)
    params, changed = model.join_params(weights, moved), dict(weights)
    for name, table in zip(tables, ("embedding", "head"), strict=False):
        changed[table] = weights[table] + 2.0 * moved[name]["a"] @ moved[name]["b"]
    without_tables = dataclasses.replace(plain, adapters=Adapters(4, 8.0, ALL))
    by_hand = without_tables.join_params(changed, {"layers": moved["layers"]})
    wanted = logits(without_tables, by_hand)
    np.testing.assert_allclose(logits(model, params), wanted, atol=1e-5)
    np.testing.assert_allclose(logits(plain, model.merged(params)), wanted, atol=1e-5)
    gradient = model.trained(jax.jit(jax.grad(lambda params: loss_of(model, params)))(params))
    assert all(np.abs(gradient[name][part]).max() > 1e-5 for name in tables for part in "ab")


def test_gradients_of_adapters_are_those_of_the_merged_weights_through_the_product() -> None:
    """W' = W + s·A·B, so dA = s·dW'·Bᵀ and dB = s·Aᵀ·dW', where dW' is full fine-tuning's gradient."""
    with jax.default_matmul_precision("highest"):
        of_adapters = MODEL.trained(jax.jit(jax.grad(lambda params: loss_of(MODEL, params)))(grown()))
        of_weights = jax.jit(jax.grad(lambda params: loss_of(PLAIN, params)))(MODEL.merged(grown()))
    for part, names in (("attention", adapters.ATTENTION), ("mlp", adapters.MLP)):
        for name in names:
            adapter, wanted = grown()["layers"][part][f"{name}_lora"], np.asarray(of_weights["layers"][part][name])
            got = of_adapters["layers"][part][f"{name}_lora"]
            of_a = 2.0 * np.einsum("lio,lro->lir", wanted, adapter["b"])
            of_b = 2.0 * np.einsum("lir,lio->lro", adapter["a"], wanted)
            assert np.abs(of_a).max() > 1e-4
            np.testing.assert_allclose(got["a"], of_a, atol=1e-6, rtol=1e-3, err_msg=name)
            np.testing.assert_allclose(got["b"], of_b, atol=1e-6, rtol=1e-3, err_msg=name)


def with_tables() -> Model:
    return dataclasses.replace(MODEL, adapters=Adapters(4, 8.0, ALL, embeddings=True))


@lru_cache
def trained(shape: tuple[int, int, int, int], micro: int | None = None, embeddings: bool = False) -> Any:
    """Losses, adapters, frozen weights before and after, and the optimizer's state of some steps."""
    mesh = sharding.make_mesh(shape) if np.prod(shape) > 1 else single()
    model = with_tables() if embeddings else MODEL
    rate = 0.1 if embeddings else 1.0  # an embedding's adapter begins with numbers of size 1
    updates = transformation.build(Optimizer(eps=1.0), lambda step: rate)
    program = Program(model, Likelihood(), updates, lambda step: rate, micro)  # type: ignore[arg-type]
    layout = program.layout(mesh)
    function = train_step(program, layout)
    with jax.set_mesh(mesh):
        frozen = jax.device_put(MODEL.frozen(fresh()), layout.frozen)
        first = jax.jit(program.new_state, out_shardings=layout.state)
        state, losses = first(fresh_adapters(model)), []
        for _ in range(3):
            state, metrics = function(state, put(mesh, one_per_row()), frozen)
            losses.append(float(metrics["loss"]))
    return losses, jax.device_get(state), jax.device_get(frozen)


def test_training_moves_every_adapter_and_no_weight_and_keeps_moments_of_adapters_only() -> None:
    losses, state, frozen = trained((1, 1, 1, 1))
    assert losses[-1] < losses[0]
    jax.tree.map(np.testing.assert_array_equal, frozen, MODEL.frozen(fresh()))
    before = dict(jax.tree_util.tree_leaves_with_path(MODEL.trained(fresh())))
    after = jax.tree_util.tree_leaves_with_path(state.params)
    assert len(after) == 2 * len(ALL)
    for path, x in after:
        assert (x != before[path]).any(), jax.tree_util.keystr(path)
    numbers = sum(x.size for _, x in after)
    assert sum(x.size for x in jax.tree.leaves(state.optimizer) if x.ndim) == 2 * numbers


@pytest.mark.parametrize(("shape", "micro"), [((2, 2, 2, 1), 4), ((2, 2, 1, 2), None)])
def test_eight_devices_train_adapters_as_one_does(shape: tuple[int, int, int, int], micro: int | None) -> None:
    losses, state, _ = trained(shape, micro)
    wanted_losses, wanted, _ = trained((1, 1, 1, 1))
    np.testing.assert_allclose(losses, wanted_losses, rtol=2e-5)
    jax.tree.map(lambda got, x: np.testing.assert_allclose(got, x, atol=1e-4), state.params, wanted.params)


@pytest.mark.parametrize(("shape", "micro"), [((2, 2, 2, 1), 4)])
def test_eight_devices_train_adapters_of_tables_as_one_does(shape: tuple[int, int, int, int], micro: int) -> None:
    losses, state, _ = trained(shape, micro, embeddings=True)
    wanted_losses, wanted, _ = trained((1, 1, 1, 1), embeddings=True)
    assert wanted_losses[-1] < wanted_losses[0]
    np.testing.assert_allclose(losses, wanted_losses, rtol=2e-5)
    jax.tree.map(lambda got, x: np.testing.assert_allclose(got, x, atol=1e-4), state.params, wanted.params)


@pytest.mark.parametrize("embeddings", [False, True])
def test_the_sampler_uses_the_adapters(embeddings: bool) -> None:
    model = with_tables() if embeddings else MODEL
    random, weights = np.random.default_rng(5), MODEL.frozen(grown()) or {}
    shapes = model.trained(model.abstract())
    moved = jax.tree.map(lambda x: (0.1 * random.standard_normal(x.shape)).astype(x.dtype), shapes)
    loud = model.join_params({**weights, "embedding": 8.0 * weights["embedding"]}, moved)
    prompts, sampling = [Prompt([256, 259, *b"one"], 0)], Sampling(max_new_tokens=12, max_length=64)

    def sampled(model: Model, params: Params) -> Completions:
        return NativeEngine(model, byte_tokenizer()).generate(params, prompts, 2, sampling, Draw(7, 3))

    unmerged, merged = sampled(model, loud), sampled(PLAIN, model.merged(loud))
    np.testing.assert_array_equal(unmerged.tokens_NT, merged.tokens_NT)
    np.testing.assert_allclose(unmerged.logps_NT, merged.logps_NT, atol=1e-4)
    assert (unmerged.tokens_NT != sampled(PLAIN, model.frozen(loud) or {}).tokens_NT).any()


def test_weights_in_bfloat16_have_adapters_in_float32() -> None:
    shapes = dataclasses.replace(MODEL, param_dtype="bfloat16").abstract()
    assert {x.dtype for x in jax.tree.leaves(MODEL.trained(shapes))} == {jnp.dtype("float32")}
    assert {x.dtype for x in jax.tree.leaves(MODEL.frozen(shapes))} == {jnp.dtype("bfloat16")}


def mixture(biased: bool = False) -> ModelConfig:
    experts = Experts(4, 2, 32, biased=biased)
    return dataclasses.replace(preset("tiny"), family="gpt_oss" if biased else "qwen3_moe", experts=experts)


def test_words_mean_in_a_mixture_what_they_mean_in_peft() -> None:
    assert adapters.matrices(mixture(), "all-linear") == (*adapters.ATTENTION, "router", *adapters.MLP)
    assert adapters.matrices(mixture(), "mlp") == adapters.MLP
    assert adapters.matrices(mixture(biased=True), "all-linear") == adapters.ATTENTION
    with pytest.raises(ConfigError, match=r"spec.training.lora.targets: mlp: .* accepted: all-linear, attention"):
        adapters.matrices(mixture(biased=True), "mlp")


def test_adapters_that_peft_would_not_read_are_refused_before_they_are_trained() -> None:
    """PEFT's own conversion takes `gate_proj` and its like for the experts alone."""
    request = {"accelerator": "v5p-128", "batchSize": 64, "sequenceLength": 512}

    def shapes(targets: str, export: str) -> JobShapes:
        of = spec("glm4.5-air", **request, lora={"targets": targets})
        return shapes_of(of.model_copy(update={"export": of.export.model_copy(update={"format": export})}))

    with pytest.raises(ConfigError, match=r"spec\.export\.format: peft: PEFT reads no adapters of the shared expert"):
        shapes("all-linear", "peft")
    assert shapes("all-linear", "safetensors").structure.adapters is not None
    assert shapes("attention", "peft").structure.adapters is not None


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2, 1, 1, 4), (2, 1, 2, 1, 2)])
def test_adapters_of_experts_are_low_rank_updates_of_each_on_any_mesh(shape: tuple[int, ...]) -> None:
    plain = Model(mixture())
    model = dataclasses.replace(plain, adapters=Adapters(4, 8.0, adapters.matrices(plain.config, "all-linear")))
    random, weights = np.random.default_rng(2), jax.device_get(jax.jit(plain.init)(jax.random.key(0)))
    shapes = model.trained(model.abstract())
    assert shapes["layers"]["mlp"]["gate_lora"]["a"].shape == (plain.config.layers, 4, plain.config.d_model, 4)
    trained = jax.tree.map(lambda x: (0.1 * random.standard_normal(x.shape)).astype(x.dtype), shapes)
    params = model.join_params(weights, trained)
    merged = model.merged(params)
    adapter = trained["layers"]["mlp"]["down_lora"]
    of_one = weights["layers"]["mlp"]["down"][1, 3] + 2.0 * adapter["a"][1, 3] @ adapter["b"][1, 3]
    np.testing.assert_allclose(merged["layers"]["mlp"]["down"][1, 3], of_one, atol=1e-6)
    wanted = logits(plain, merged)
    assert np.abs(wanted - logits(plain, weights)).max() > 1e-2
    mesh = sharding.make_mesh(shape) if np.prod(shape) > 1 else single()
    with jax.set_mesh(mesh):
        where = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
        np.testing.assert_allclose(logits(model, jax.device_put(params, where)), wanted, atol=1e-5)


def test_dropout_is_refused_where_experts_have_adapters() -> None:
    with pytest.raises(ConfigError, match=r"spec.training.lora.dropout: 0.1: .* accepted: 0, or targets: attention"):
        structure_of(mixture(), Training(lora=Lora(dropout=0.1)), "cpu")
    assert structure_of(mixture(), Training(lora=Lora(dropout=0.1, targets="attention")), "cpu").adapters is not None


def test_a_job_says_which_matrices_and_how_strong() -> None:
    training = Training(lora=Lora(rank=4, alpha=8.0, targets="mlp", rs_lora=True))
    parts = model_loader.load_model(ModelSpec(uri="random://tiny"), training, lambda line: None)
    assert parts.model.adapters == Adapters(4, 8.0, adapters.MLP, True)


def test_adapters_learn_ten_times_as_fast_unless_the_job_says_otherwise() -> None:
    assert transformation.peak_rate(Training(), "sft") == 2e-5
    assert transformation.peak_rate(Training(lora=Lora()), "sft") == pytest.approx(2e-4)
    assert transformation.peak_rate(Training(lora=Lora(), optimizer=Optimizer(learning_rate=0.5)), "sft") == 0.5


@pytest.mark.parametrize("written", ["float32", "bfloat16"])
@pytest.mark.parametrize("chosen", [None, MODEL.adapters])
def test_a_whole_export_is_in_the_format_of_the_masters_with_adapters_or_without(
    written: str, chosen: Adapters | None, tmp_path: Path
) -> None:
    model = dataclasses.replace(MODEL, adapters=chosen, param_dtype=written)
    params = grown() if chosen is not None else MODEL.frozen(grown())
    params = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), params, model.abstract())
    export(Directory(tmp_path), model, params, TokenizerFiles(byte_tokenizer(), None), ExportWriter(jax.device_get))
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == written
    dtypes = {str(tensor.dtype) for tensor in read_header(tmp_path / "model.safetensors").values()}
    assert dtypes == {written}


def test_the_export_has_the_names_and_numbers_of_peft(tmp_path: Path) -> None:
    words, write = TokenizerFiles(byte_tokenizer(), None), ExportWriter(jax.device_get)
    base = BaseModelRef("hf://org/name", "abc")
    export_adapters(Directory(tmp_path), MODEL, base, MODEL.trained(grown()), words, write)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/name", "abc")
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (4, 8, False)
    assert config["target_modules"] == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip
    stored = read_header(tmp_path / "adapter_model.safetensors")
    assert len(stored) == 2 * len(ALL) * MODEL.config.layers
    q = grown()["layers"]["attention"]["q_lora"]
    name = "base_model.model.model.layers.1.self_attn.q_proj"
    np.testing.assert_array_equal(stored[f"{name}.lora_A.weight"].rows(0, 4), q["a"][1].T)
    np.testing.assert_array_equal(stored[f"{name}.lora_B.weight"].rows(0, q["b"].shape[2]), q["b"][1].T)
