"""Weights on their way to the devices that sample: all arrive, in chunks, and what did not arrive is noticed."""

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from tests.builders.peers.models import CASES

from pttrainer.errors import TransferError
from pttrainer.models import Model, Params, from_hf
from pttrainer.models.lora.adapters import Adapters, matrices
from pttrainer.rollout.disaggregated.weight_sync import NO_LAYER, Chunk, WeightSync, chunks
from pttrainer.rollout.native import decoding_weights
from pttrainer.rollout.native.decoding_weights import DecodingWeights, decoding_shardings
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.checksum import digest

CPU = ""
"""The generation of chips that are in no table."""


class RecordingWeightSync(WeightSync):
    """Remembers what moved; may damage it on the way."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.moved: list[int] = []
        self.under_way: list[int] = []
        self.damage = -1

    def _across(self, cut: Sequence[Array]) -> list[Array]:
        self.under_way.append(sum(x.nbytes for x in jax.live_arrays()))
        there = super()._across(cut)
        self.moved.append(sum(x.nbytes for x in cut))
        if len(self.moved) - 1 == self.damage:
            there[0] = jax.device_put(np.asarray(there[0]) * np.asarray(1.01, there[0].dtype), there[0].sharding)
        return there


def model(name: str = "qwen-3", layers: int = 2, **changes: Any) -> Model:
    return Model(from_hf(CASES[name]).first_layers(layers), **changes)


def meshes(trainer: tuple[int, ...], sampler: tuple[int, ...]) -> tuple[jax.sharding.Mesh, jax.sharding.Mesh]:
    first, devices = int(np.prod(trainer)), jax.devices()
    return sharding.make_mesh(trainer, devices[:first]), sharding.make_mesh(sampler, devices[first:])


def params_on(mesh: jax.sharding.Mesh, of: Model, seed: int = 0) -> Params:
    where = sharding.weight_shardings(mesh, of.abstract(), of.logical_axes())
    base: Params = initial(of.without_adapters, 0 if of.adapters else seed)
    whole = of.join_params(base, of.init_adapters(of.trained(where), seed)) if of.adapters else base
    placed: Params = jax.device_put(whole, where)
    return placed


@cache
def initial(of: Model, seed: int) -> Params:
    params: Params = jax.device_get(jax.jit(of.init)(jax.random.key(seed)))
    return params


def assert_delivered(of: Model, delivered: Params, params: Params, mesh: jax.sharding.Mesh) -> None:
    wanted = of.for_decoding(jax.device_get(params))
    assert jax.tree.structure(delivered) == jax.tree.structure(wanted)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b), strict=True), delivered, wanted
    )
    where = decoding_shardings(of, mesh)
    assert all(jax.tree.leaves(jax.tree.map(lambda x, there: x.sharding == there, delivered, where)))


@pytest.mark.parametrize(
    ("name", "layers", "trainer", "sampler"),
    [("qwen-3", 2, (1, 2, 2), (2, 1, 2)), ("qwen-3", 2, (1, 6), (2,)), ("qwen-3-moe-mixed", 5, (1, 2), (2,))],
    ids=["four to four, both axes", "six to two", "layers of two kinds"],
)
def test_the_sampler_holds_what_a_colocated_rollout_would_make(
    name: str, layers: int, trainer: tuple[int, ...], sampler: tuple[int, ...]
) -> None:
    of, (source, target) = model(name, layers, compute_dtype="bfloat16"), meshes(trainer, sampler)
    params = params_on(source, of)
    transfer = WeightSync(of, source, target)
    with jax.set_mesh(source):
        delivered = transfer.deliver(params)
    assert_delivered(of, delivered, params, target)
    assert transfer.facts()["sync/bytes"] == sum(x.nbytes for x in jax.tree.leaves(delivered))
    assert transfer.facts() == {}


def test_large_matrices_arrive_in_the_parts_that_decoding_reads_and_are_compared_as_they_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(decoding_weights.PART_BYTES, CPU, 2**17)
    config = dataclasses.replace(model().config, d_model=256, d_ff=512)
    of, (source, target) = Model(config), meshes((1, 4), (2, 1, 2))
    params, transfer = params_on(source, of), RecordingWeightSync(of, source, target)
    with jax.set_mesh(source):
        delivered = transfer.deliver(params)
    wanted = DecodingWeights(of, target)(jax.device_put(params, sharding.replicated(target)))
    assert jax.tree.structure(delivered) == jax.tree.structure(wanted)
    assert [len(matrix.parts) for matrix in delivered["layers"][1]["mlp"].values()] == [2, 2, 2]
    for got, want in zip(jax.tree.leaves(delivered), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want), strict=True)
        assert got.sharding.is_equivalent_to(want.sharding, got.ndim)
    assert transfer.facts()["sync/bytes"] == sum(x.nbytes for x in jax.tree.leaves(params))
    transfer.damage = len(transfer.moved) + 1
    with jax.set_mesh(source), pytest.raises(TransferError, match="layers"):
        transfer.deliver(params)


@cache
def quantised() -> tuple[Model, RecordingWeightSync]:
    """Adapters on matrices of 4 bits, and what moves them; its programs are compiled once for the tests below."""
    of = model(adapters=Adapters(4, 8.0, matrices(model().config, "attention")), quantization="nf4")
    return of, RecordingWeightSync(of, *meshes((1, 4), (4,)))


def test_only_adapters_move_after_the_first_time_and_frozen_matrices_move_packed() -> None:
    of, transfer = quantised()
    source = meshes((1, 4), (4,))[0]
    params, later = params_on(source, of), params_on(source, of, seed=1)
    with jax.set_mesh(source):
        assert_delivered(of, transfer.deliver(params), params, transfer.mesh)
        first = transfer.facts()["sync/bytes"]
        assert_delivered(of, transfer.deliver(later), later, transfer.mesh)
    trained = sum(x.nbytes for x in jax.tree.leaves(of.trained(params)))
    assert transfer.facts()["sync/bytes"] == trained
    assert first == sum(x.nbytes for x in jax.tree.leaves(params))


def test_frozen_weights_that_change_where_they_lie_are_noticed_at_the_next_sync() -> None:
    of, transfer = quantised()
    source = meshes((1, 4), (4,))[0]
    params = params_on(source, of)
    with jax.set_mesh(source):
        transfer.deliver(params)
        key = next(key for key in transfer._static if key[1] == 1)
        delivered = transfer._static[key]
        transfer._static[key] = jax.device_put(
            np.asarray(delivered) + np.asarray(1, delivered.dtype), delivered.sharding
        )
        with pytest.raises(TransferError, match=f"{key[0]} of layer 1"):
            transfer.deliver(params)
        transfer._static[key] = delivered


def test_no_more_than_the_bound_is_under_way_and_an_array_that_arrived_damaged_is_named() -> None:
    of, (source, target) = model(), meshes((1, 4), (4,))
    params = params_on(source, of)
    largest = max(x.nbytes // (2 if x.shape[0] == 2 else 1) for x in jax.tree.leaves(params))
    transfer = RecordingWeightSync(of, source, target, chunk_bytes=largest)
    with jax.set_mesh(source):
        before = sum(x.nbytes for x in jax.live_arrays())
        delivered = transfer.deliver(params)
        assert len(transfer.moved) > 3
        assert max(transfer.moved) <= largest
        arrived = np.cumsum([0, *transfer.moved[:-1]])
        for there, alive, moving in zip(arrived, transfer.under_way, transfer.moved, strict=True):
            assert alive - before - there <= moving + 4096  # the parts that were cut, checksums, and nothing older
        assert sum(x.nbytes for x in jax.tree.leaves(delivered)) == sum(transfer.moved)
        transfer.damage = 2 * len(transfer.moved) - 1
        with pytest.raises(TransferError, match=r"rollout weights: layers\.\S+ of layer \d: .* sent 0x[0-9a-f]{8}"):
            transfer.deliver(params)


def test_a_chunk_is_as_many_layers_or_tables_as_fit_the_bound() -> None:
    def array(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count,), jnp.float32)

    shapes = {("a", NO_LAYER): array(1), ("b", NO_LAYER): array(2), ("c", NO_LAYER): array(9)}
    shapes |= {(name, layer): array(2) for layer in range(5) for name in ("q", "k")}
    assert chunks(shapes, 16) == [
        Chunk(("a", "b"), 0, 0), Chunk(("c",), 0, 0),
        Chunk(("q", "k"), 0, 1), Chunk(("q", "k"), 1, 1), Chunk(("q", "k"), 2, 1), Chunk(("q", "k"), 3, 1),
        Chunk(("q", "k"), 4, 1),
    ]  # fmt: skip
    assert chunks(shapes, 32)[1:] == [
        Chunk(("c",), 0, 0), Chunk(("q", "k"), 0, 2), Chunk(("q", "k"), 2, 2), Chunk(("q", "k"), 4, 1),
    ]  # fmt: skip


def test_a_digest_sees_a_bit_and_a_change_of_places_and_not_the_mesh() -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    bit, places = x.copy(), x.copy()
    bit.view(np.uint32)[3, 3] ^= 1
    places[[0, 1]] = places[[1, 0]]
    there = jax.device_put(x, jax.sharding.NamedSharding(meshes((1, 4), (4,))[0], jax.sharding.PartitionSpec("fsdp")))
    assert int(jax.jit(digest)(there)) == int(digest(jnp.array(x)))
    assert len({int(digest(jnp.array(one))) for one in (x, bit, places)}) == 3
    assert int(digest(jnp.array([1, 2], jnp.uint8))) == (1 + 2 * 2654435761) % 2**32
