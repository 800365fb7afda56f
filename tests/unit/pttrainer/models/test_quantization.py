"""QLoRA: what nf4 and int8 store and lose, that a quantised model is the model of the numbers it stands for, and that
neither loading nor training nor decoding ever holds it whole."""

import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.builders.peers.adapters import adapted
from tests.builders.peers.inference import forward, greedy, load_model, plain
from tests.builders.peers.models import CASES, LENGTH, examples, write_checkpoint
from tests.unit.pttrainer.train_step.test_step import Likelihood, one_per_row, single

from ptapi.spec import ModelSpec, Optimizer, Training
from ptapi.spec.training import Lora, Quantization
from pttrainer.checkpoint.model_export import ExportWriter, TokenizerFiles, export
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, Params, preset
from pttrainer.models.loading import model_loader
from pttrainer.models.lora.adapters import ATTENTION, MLP, Adapters
from pttrainer.models.quantization import quantize as quant
from pttrainer.models.quantization.quantize import Format, QuantizationErrors
from pttrainer.models.weights import load_weights as weights_loading
from pttrainer.rollout.engine import Sampling
from pttrainer.rollout.native import row_changes
from pttrainer.rollout.native.decode_loop import Decoding, jitted
from pttrainer.rollout.native.prefill import PaddedPrompts
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.runtime.io.directory import Directory
from pttrainer.train_step.optimizer import transformation
from pttrainer.train_step.program import Program
from pttrainer.train_step.step import train_step

FORMATS: tuple[Format, ...] = ("nf4", "int8")
NORMAL = NormalDist()


def through(kind: Format, matrix: np.ndarray) -> np.ndarray:
    """What is read of what was written."""
    written = jax.jit(partial(quant.quantise, kind))(matrix)
    return np.asarray(jax.jit(partial(quant.dequantise, kind, rows=matrix.shape[-2]))(written))


def relative(kind: Format, matrix: np.ndarray) -> float:
    return float(np.linalg.norm(through(kind, matrix) - matrix) / np.linalg.norm(matrix))


def test_the_16_values_are_the_quantiles_of_the_paper() -> None:
    """Appendix E: 8 quantiles below zero, 9 above with zero among them, from 1 − 0.9677083, scaled to ±1."""
    last = 0.9677083
    below = [-NORMAL.inv_cdf(p) for p in np.linspace(last, 0.5, 8)[:-1]]
    above = [NORMAL.inv_cdf(p) for p in np.linspace(last, 0.5, 9)[:-1]]
    wanted = np.sort([*below, 0.0, *above]) / NORMAL.inv_cdf(last)
    np.testing.assert_allclose(quant.NF4, wanted, atol=1e-6)


def test_what_nf4_can_say_it_says_exactly() -> None:
    """Blocks of equal scale, so that double quantisation has nothing to lose: every value in every place of a byte."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (2, 192, 5))
    codes[:, ::64] = 15  # the largest of each block is its scale
    matrix = (0.25 * np.array(quant.NF4, np.float32))[codes]
    parts = quant.quantise("nf4", jnp.asarray(matrix))
    assert parts["codes"].shape == (2, 3, 32, 5)
    assert parts["codes"].dtype == np.uint8
    np.testing.assert_array_equal(through("nf4", matrix), matrix)
    np.testing.assert_array_equal(np.asarray(parts["codes"][1, 2] >> 4), codes[1, 128:160])
    np.testing.assert_array_equal(np.asarray(parts["codes"][1, 2] & 15), codes[1, 160:])


def test_int8_is_rounded_to_127_steps_of_a_columns_largest() -> None:
    matrix = np.array([[127.0, 0.0, 0.5], [-3.4, 0.0, -1.0], [64.6, 0.0, 0.26]], np.float32)
    wanted = [[127.0, 0.0, 64 / 127], [-3.0, 0.0, -1.0], [65.0, 0.0, 33 / 127]]
    np.testing.assert_allclose(through("int8", matrix), wanted, rtol=1e-6)


def largest_of(count: int) -> Callable[[np.ndarray], np.ndarray]:
    """Density of the largest of so many |normal| numbers."""
    cdf = np.vectorize(lambda m: 2 * NORMAL.cdf(m) - 1)
    return lambda m: count * cdf(m) ** (count - 1) * 2 * np.vectorize(NORMAL.pdf)(m)


def test_nf4_loses_of_normal_weights_what_its_cells_say() -> None:
    """E[(x − q(x))²] by integration over x within ±m and over m, the largest of 64; that one itself is exact."""
    m, x = np.linspace(1.2, 5.0, 77), np.linspace(-1.0, 1.0, 2001)
    nearest = np.array(quant.NF4)[np.abs(x[:, None] - np.array(quant.NF4)).argmin(1)]
    pdf = np.vectorize(NORMAL.pdf)
    inside = [np.sum(pdf(x * s) * (s * (x - nearest)) ** 2) / np.sum(pdf(x * s)) for s in m]
    density = largest_of(64)(m)
    wanted = math.sqrt(63 / 64 * np.sum(inside * density) / np.sum(density))
    matrix = 0.02 * np.random.default_rng(0).standard_normal((1024, 512), dtype=np.float32)
    assert 0.08 < wanted < 0.1
    assert relative("nf4", matrix) == pytest.approx(wanted, rel=0.02)  # the second quantisation costs under 2% of it


def test_int8_loses_of_normal_weights_a_step_over_root_12() -> None:
    m = np.linspace(2.0, 6.0, 201)
    density = largest_of(1024)(m)
    wanted = math.sqrt(np.sum(density * m**2) / np.sum(density)) / 127 / math.sqrt(12)
    matrix = 0.02 * np.random.default_rng(0).standard_normal((1024, 512), dtype=np.float32)
    assert relative("int8", matrix) == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("shape", [(1, 1), (63, 3), (65, 300), (2, 130, 257), (2, 3, 42, 53)])
def test_odd_sizes_lose_no_more(kind: Format, shape: tuple[int, ...]) -> None:
    matrix = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    assert relative(kind, matrix) < (0.12 if kind == "nf4" else 0.012)


@pytest.mark.parametrize("kind", FORMATS)
def test_zeros_stay_zeros_and_an_outlier_spoils_only_its_block_or_column(kind: Format) -> None:
    matrix = np.random.default_rng(0).standard_normal((256, 300)).astype(np.float32)
    matrix[64:128] = 0.0
    matrix[0, 7] = 100.0
    got = through(kind, matrix)
    np.testing.assert_array_equal(got[64:128], 0.0)
    rest = np.ones(matrix.shape, bool)
    rest[: 64 if kind == "nf4" else 256, 7] = False
    assert got[0, 7] == pytest.approx(100.0, rel=1e-2)
    error = np.linalg.norm((got - matrix)[rest]) / np.linalg.norm(matrix[rest])
    assert error < (0.11 if kind == "nf4" else 0.011)


def test_nf4_takes_a_little_more_than_four_bits() -> None:
    parts = jax.eval_shape(lambda w: quant.quantise("nf4", w), jax.ShapeDtypeStruct((2, 4096, 4096), jnp.float32))
    bits = 8 * sum(x.size * x.dtype.itemsize for x in parts.values()) / (2 * 4096 * 4096)
    assert bits == pytest.approx(4 + 8 / 64 + 32 / 64 / 256, rel=1e-4)


def load(
    directory: Path, model: Model, shape: tuple[int, int, int, int] = (1, 1, 1, 1)
) -> tuple[Params, QuantizationErrors]:
    mesh = sharding.make_mesh(shape) if np.prod(shape) > 1 else single()
    where = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    errors, whole = QuantizationErrors(), model.unquantised.abstract()
    assert model.quantization is not None
    quantizing = weights_loading.Quantizing(model.quantization, errors)
    return weights_loading.load(model.config, directory, whole, where, "", quantizing), errors


def whole(model: Model, params: Params) -> Params:
    """The weights that quantised ones stand for."""
    shapes = model.unquantised.abstract()

    def read(parts: Any, shape: Any) -> Any:
        if quant.is_quantised(parts):
            assert model.quantization is not None
            return quant.dequantise(model.quantization, parts, shape.shape[-2])
        return {key: read(value, shape[key]) for key, value in parts.items()} if isinstance(parts, dict) else parts

    return dict(jax.jit(partial(read, shape=shapes))(params))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llama-biases-mqa", "nf4"), ("gpt-oss", "nf4"), ("deepseek-v3", "int8"),
     ("gemma-4-moe", "int8")],
)  # fmt: skip
def test_a_quantised_model_is_the_model_of_the_numbers_it_stands_for(name: str, kind: Format, tmp_path: Path) -> None:
    raw = CASES[name]
    base, params = load_model(write_checkpoint(tmp_path, raw))
    model = dataclasses.replace(base, quantization=kind)
    read, errors = load(tmp_path, model)
    stands_for = whole(model, read)
    quantised = [path for path in model.weights if path[-1] == "codes"]
    kinds = {path[-2] for path in quantised}
    assert kinds >= {"o", "down"}
    assert errors.relative().keys() == kinds
    for matrix in kinds:
        places = [path[:2] for path in quantised if path[-2] == matrix]
        got, wanted = (
            np.concatenate([np.asarray(tree[name][part][matrix]).ravel() for name, part in places])
            for tree in (stands_for, params)
        )
        error = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
        assert errors.relative()[matrix] == pytest.approx(error, rel=1e-4)
        assert 0.0 < error < (0.11 if kind == "nf4" else 0.012)
    tokens, *short = examples(raw)
    (got_TV,) = forward(model, read, [plain(tokens, LENGTH)])
    (likeliest,) = greedy(model, read, short[:1], 24)
    rows = [plain(tokens, LENGTH), plain(np.concatenate([short[0], likeliest]), LENGTH)]
    wanted_TV, continued_TV = forward(base, stands_for, rows)
    np.testing.assert_allclose(got_TV, wanted_TV, atol=1e-4)
    np.testing.assert_array_equal(likeliest, continued_TV[len(short[0]) - 1 :][:24].argmax(-1))


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [("llama-3.1", "nf4", (1, 4, 2, 1)), ("deepseek-v3", "nf4", (1, 2, 2, 2)), ("phi-4", "nf4", (1, 2, 2, 2)),
     ("gpt-oss", "int8", (1, 4, 2, 1))],
)  # fmt: skip
def test_eight_devices_read_the_parts_that_one_does(
    name: str, kind: Format, shape: tuple[int, int, int, int], tmp_path: Path
) -> None:
    model = dataclasses.replace(load_model(write_checkpoint(tmp_path, CASES[name]))[0], quantization=kind)
    alone, _ = load(tmp_path, model)
    spread, _ = load(tmp_path, model, shape)

    def same(got: Any, wanted: Any) -> None:
        as_numbers = (np.asarray(x).astype(np.float32) for x in (got, wanted))
        np.testing.assert_allclose(*as_numbers, rtol=1e-6, atol=1e-9)

    jax.tree.map(same, spread, alone)


def test_reading_holds_the_parts_and_one_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {**CASES["llama-3.1"], "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 16}
    write_checkpoint(tmp_path, raw)
    plain_model, _ = load_model(tmp_path)
    model, most = dataclasses.replace(plain_model, quantization="nf4"), 0
    del plain_model, _
    read, before = weights_loading.read_weight, sum(x.nbytes for x in jax.live_arrays())

    def watched(checkpoint: Any, weight: Any) -> Any:
        nonlocal most
        tensor = read(checkpoint, weight)
        most = max(most, sum(x.nbytes for x in jax.live_arrays()) - before)
        return tensor

    monkeypatch.setattr(weights_loading, "read_weight", watched)
    params, _ = load(tmp_path, model)
    parts = sum(x.nbytes for x in jax.tree.leaves(params))
    tensors = sum(x.size * 4 for x in jax.tree.leaves(model.unquantised.abstract()))
    assert parts + 4 * 256 * 384 < tensors / 4
    assert most < parts + 2.5 * 4 * 256 * 384  # the largest tensor, and the buffer that it is read into


WIDE = dataclasses.replace(preset("tiny"), layers=8, d_model=256, d_ff=704, heads=4, kv_heads=4, head_dim=64)
ALL = Adapters(4, 8.0, ATTENTION + MLP)
WHOLE_BYTES = 4 * 8 * (4 * 256 * 256 + 3 * 256 * 704)
"""All matrices, float32."""


@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_train_step_never_holds_more_than_the_parts_and_a_layer(remat: Any) -> None:
    def memory(kind: Format | None) -> Any:
        model = Model(WIDE, adapters=ALL, quantization=kind, remat=remat)
        updates = transformation.build(Optimizer(), lambda step: 1.0)
        program = Program(model, Likelihood(), updates, lambda step: 1.0)  # type: ignore[arg-type]
        layout = program.layout(single())
        state, batch = program.abstract_state(layout), jax.tree.map(np.asarray, one_per_row())
        place: Any = lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)  # noqa: E731
        frozen = jax.tree.map(place, model.frozen(model.abstract()), layout.frozen)
        function: Any = train_step(program, layout)
        with jax.set_mesh(single()):
            return function.lower(state, batch, frozen).compile().memory_analysis()

    base = memory(None)
    for kind, share in (("nf4", 4.2 / 32), ("int8", 8.2 / 32)):
        analysis = memory(kind)  # type: ignore[arg-type]
        assert analysis.argument_size_in_bytes < base.argument_size_in_bytes - (1 - share) * WHOLE_BYTES
        assert analysis.temp_size_in_bytes < base.temp_size_in_bytes + WHOLE_BYTES / 8


@pytest.mark.parametrize("kind", FORMATS)
def test_decoding_never_holds_more_than_the_parts_and_two_layers(kind: Format) -> None:
    """XLA would move what makes them whole out of the loop over tokens, if it could."""
    model = Model(WIDE, quantization=kind)
    decoding = Decoding(model, (257,), Sampling(max_new_tokens=0, max_length=0))
    params = jax.eval_shape(model.for_decoding, model.abstract())
    shape: Any = jax.ShapeDtypeStruct
    padded = PaddedPrompts(
        shape((2, 16), jnp.int32), shape((2,), jnp.int32), shape((2,), jnp.uint32), shape((2,), jnp.int32)
    )
    number, which = shape((), jnp.uint32), shape((), jnp.int32)
    prefill = partial(decoding.prefill, 4)
    pool = jax.eval_shape(prefill, params, padded, number, number, which, which)
    rows = jax.eval_shape(partial(row_changes.spread, model, None, 4, 16), pool)
    compiled = jitted(decoding, "cpu")["advance"].lower(params, rows, None, which, which).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < WHOLE_BYTES / 8 * 2


@lru_cache
def trained(kind: Format, shape: tuple[int, int, int, int], micro: int | None = None) -> Any:
    """Losses and adapters of some steps."""
    model = Model(preset("tiny"), adapters=ALL, quantization=kind)
    mesh = sharding.make_mesh(shape) if np.prod(shape) > 1 else single()
    updates = transformation.build(Optimizer(eps=1.0), lambda step: 1.0)
    program = Program(model, Likelihood(), updates, lambda step: 1.0, micro)  # type: ignore[arg-type]
    layout = program.layout(mesh)
    function = train_step(program, layout)
    with jax.set_mesh(mesh):
        frozen = jax.device_put(jax.jit(model.without_adapters.init)(jax.random.key(0)), layout.frozen)
        state = program.new_state(model.init_adapters(layout.state.params, 0))
        state = jax.device_put(state, layout.state)
        losses = []
        for _ in range(3):
            state, metrics = function(state, put(mesh, one_per_row()), frozen)
            losses.append(float(metrics["loss"]))
    return losses, jax.device_get(state.params)


@pytest.mark.parametrize(("kind", "shape", "micro"), [("nf4", (2, 2, 2, 1), 4), ("int8", (2, 2, 1, 2), None)])
def test_eight_devices_train_on_quantised_weights_as_one_does(
    kind: Format, shape: tuple[int, int, int, int], micro: int | None
) -> None:
    losses, params = trained(kind, shape, micro)
    wanted_losses, wanted = trained(kind, (1, 1, 1, 1))
    assert wanted_losses[-1] < wanted_losses[0]
    np.testing.assert_allclose(losses, wanted_losses, rtol=2e-5)
    jax.tree.map(lambda got, x: np.testing.assert_allclose(got, x, atol=1e-4), params, wanted)


@pytest.mark.parametrize(("name", "kind"), [("llama-3.1", "nf4"), ("qwen-3-moe", "int8")])
def test_the_merged_export_is_the_numbers_and_the_adapters_in_float32(name: str, kind: Format, tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", CASES[name])
    plain_model, _ = load_model(base)
    model = dataclasses.replace(plain_model, quantization=kind)
    read, _ = load(base, model)
    model, params = adapted(model, read, name)
    export(
        Directory(tmp_path / "merged"),
        model,
        params,
        TokenizerFiles(byte_tokenizer(), None),
        ExportWriter(jax.device_get),
    )
    stands_for = whole(model.without_adapters, read)
    wanted = plain_model.join_params(stands_for, model.trained(params))
    wanted = dataclasses.replace(model, quantization=None).merged(wanted)
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    for layer in range(model.config.layers):
        got = stored[f"model.layers.{layer}.self_attn.o_proj.weight"]
        np.testing.assert_array_equal(got, np.asarray(wanted["layers"]["attention"]["o"][layer]).T)
    again, params_again = load_model(tmp_path / "merged")
    tokens, *_ = examples(CASES[name])
    (got_TV,) = forward(again, params_again, [plain(tokens, LENGTH)])
    (ours_TV,) = forward(model, params, [plain(tokens, LENGTH)])
    np.testing.assert_allclose(got_TV, ours_TV, atol=1e-4)


def test_a_job_says_how_and_what_is_not_quantised_keeps_its_format() -> None:
    training = Training(lora=Lora(rank=4), quantization=Quantization(weights="int8"))
    parts = model_loader.load_model(ModelSpec(uri="random://tiny"), training, lambda line: None)
    assert parts.model.quantization == "int8"
    frozen = dataclasses.replace(parts.model, param_dtype="bfloat16").without_adapters.abstract()
    assert frozen["embedding"].dtype == frozen["layers"]["mlp_norm"]["scale"].dtype == jnp.bfloat16
    assert frozen["layers"]["mlp"]["up"]["codes"].dtype == jnp.int8
    assert frozen["layers"]["mlp"]["up"]["scales"].dtype == jnp.float32
