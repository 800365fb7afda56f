"""What preflight's formula knows without jax is what jax makes: weights, optimizer state, division over a mesh.

The plain tables (`shapes.parameters`, `packed_matrix`, `state_shapes`, `logical_axes`) against the modules, optax and
`NamedSharding`, array by array: place in the tree, shape, number format, what a device holds.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from tests.builders.trainer.formula_figures import JOBS

from pttrainer import algorithms
from pttrainer.losses import loss_traits
from pttrainer.models import PRESETS, Model, ModelStructure, preset
from pttrainer.models.families.published_shapes import RAW
from pttrainer.models.lora.adapters import Adapters, matrices
from pttrainer.models.quantization.packed_matrix import Format
from pttrainer.preflight.compiler.abstract_inputs import inputs, placed, program_of
from pttrainer.preflight.shapes import device_bytes
from pttrainer.preflight.shapes.device_bytes import Share, Shares
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.rollout.native import decoding_weights
from pttrainer.rollout.native.sizes import sampling_time
from pttrainer.runtime.distributed import logical_axes, sharding

FAMILIES = {preset(name).family: name for name in (*PRESETS, *RAW)}
"""One preset of each family."""
BY_KIND = {(job.spec.algorithm.kind, getattr(job.spec.algorithm.grpo, "loss", "")): job for job in JOBS.values()}
"""One job of each algorithm, and of each loss of grpo."""
SHAPES = [(1, 4, 2, 1, 1), (2, 2, 1, 2, 4)]


def structure(name: str, method: str) -> ModelStructure:
    config = preset(name)
    adapters = Adapters(16, 32.0, matrices(config, "all-linear"), embeddings=method != "lora")
    kinds: dict[str, Format] = {"nf4": "nf4", "int8": "int8"}
    return ModelStructure(
        config, "bfloat16", "bfloat16", "full", None if method == "full" else adapters, kinds.get(method)
    )


def cases() -> Iterator[tuple[str, str]]:
    """Every preset in full and with everything at once; of each family, the other ways too."""
    for name in (*PRESETS, *RAW):
        yield from ((name, method) for method in ("full", "nf4"))
    for name in FAMILIES.values():
        yield from ((name, method) for method in ("lora", "int8"))


def named(tree: Any, is_leaf: Any = None) -> dict[tuple[str, ...], Any]:
    """Leaves by the words on their way, in jax's order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/")): leaf for path, leaf in leaves}


@pytest.mark.parametrize(("name", "method"), list(cases()))
def test_declared_weights_are_those_that_the_modules_make(name: str, method: str) -> None:
    plain = structure(name, method)
    model = Model.from_structure(plain)
    made = named(model.abstract())
    axes = named(model.logical_axes(), is_leaf=lambda x: isinstance(x, tuple))
    assert list(plain.weights) == list(made)
    for path, one in plain.weights.items():
        assert (one.shape, one.dtype, one.axes) == (made[path].shape, str(made[path].dtype), axes[path]), path
    assert list(plain.trained_weights) == list(named(model.trained(model.abstract())))
    assert list(plain.frozen_weights) == list(named(model.frozen(model.abstract())))


@pytest.mark.parametrize("name", FAMILIES.values())
def test_a_sampler_holds_what_is_declared_for_decoding(name: str) -> None:
    plain = structure(name, "nf4")
    plain = replace(plain, config=plain.config.first_layers(4))
    model = Model.from_structure(plain)
    assert plain.decoding_bytes == sum(
        x.size * x.dtype.itemsize for x in jax.tree.leaves(decoding_weights.decoding_shapes(model))
    )
    for shape in SHAPES:
        mesh = abstract_mesh(shape)
        where = decoding_weights.decoding_shardings(model, mesh)  # type: ignore[arg-type]
        made = jax.tree.map(placed, decoding_weights.decoding_shapes(model), where)
        assert sampling_time.weights_bytes(plain, shape) == bytes_per_device(made)


@pytest.mark.parametrize("name", JOBS)
def test_a_device_holds_of_a_jobs_arguments_what_shardings_say(name: str) -> None:
    of = shapes_of(JOBS[name].spec)
    made, computed = inputs(of, abstract_mesh(of.shape, of.slice.platform)), of.arguments
    critic = made.state.critic
    assert computed.params == of_device(made.state.params)
    assert computed.optimizer == of_device(made.state.optimizer)
    assert computed.critic == of_device({} if critic is None else critic.params)
    assert computed.of_critic == of_device({} if critic is None else critic.optimizer)
    assert computed.frozen == of_device(made.frozen)
    assert computed.teacher == of_device(made.teacher)
    assert sorted(computed.batch) == sorted(of_device(made.batch))
    assert device_bytes.total(computed.all) == bytes_per_device(made)


def bytes_per_device(tree: Any) -> int:
    """Memory of arrays, as shapes on jax's own shardings, on one device."""
    leaves = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.ShapeDtypeStruct))
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def of_device(tree: Any) -> Shares:
    """Names without places in tuples and what a device holds, in jax's order."""
    return [
        (
            tuple(word for word in path if not word.isdigit()),
            Share(leaf.sharding.shard_shape(leaf.shape), str(leaf.dtype)),
        )
        for path, leaf in named(tree).items()
    ]


def abstract_mesh(shape: logical_axes.Shape, platform: str = "cpu") -> AbstractMesh:
    axis_types = (AxisType.Auto,) * len(logical_axes.MESH_AXES)
    device = AbstractDevice("", None, platform)
    return AbstractMesh(shape, logical_axes.MESH_AXES, axis_types=axis_types, abstract_device=device)


@pytest.mark.parametrize("kind", BY_KIND)
def test_a_losses_traits_are_those_of_its_code(kind: tuple[str, str]) -> None:
    of: JobShapes = shapes_of(BY_KIND[kind].spec)
    assert program_of(of).objective.by_token == loss_traits.by_token(of.spec.algorithm)


def test_axes_that_do_not_divide_are_split_by_the_first_mesh_axes_that_do() -> None:
    mesh = abstract_mesh((1, 4, 2, 1, 3))
    for size in (24, 12, 8, 4, 6, 3, 5, 1):
        [where] = jax.tree.leaves(
            sharding.weight_shardings(mesh, [jax.ShapeDtypeStruct((size,), "int8")], [("embed",)])
        )
        split = logical_axes.fitting(mesh.shape, "embed", size)
        assert size // logical_axes.pieces(mesh.shape, split) == where.shard_shape((size,))[0]


def test_algorithms_of_the_table_are_those_that_the_trainer_knows() -> None:
    assert {*loss_traits.BY_TOKEN, "grpo"} == set(algorithms.MODULES)
