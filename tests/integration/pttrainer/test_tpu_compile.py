"""Our train step compiles for TPUs that are not here, with the fused attention kernel in it. Nothing is run.

Needs the TPU compiler (libtpu, 0.7 GB unpacked): `make aot`, or `pip install -e '.[tpu-compiler]'`.
"""

import importlib.util
import os
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.builders.trainer.steps import Likelihood

from ptapi import accelerators
from ptapi.accelerators import compiler_flags
from pttrainer.batch import Batch
from pttrainer.models import Model, ModelConfig
from pttrainer.models.config import Experts
from pttrainer.models.lora.adapters import Adapters, matrices
from pttrainer.models.shapes.structure import Remat
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.runtime.distributed import explicit_collectives, logical_axes, sharding
from pttrainer.train_step.program import Program
from pttrainer.train_step.step import train_step
from pttrainer.training.compiled_steps import StepPrograms

if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu is not installed; hint: make aot", allow_module_level=True)

# Several processes may load the compiler, no metadata server is asked, and quick compilation is enough.
os.environ |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1", "JAX_OPTIMIZATION_LEVEL": "O0"}

KERNEL = "splash_mha"
ROWS, LENGTH = 8, 256
SIZES: dict[str, Any] = {
    "vocab_size": 1000, "d_model": 256, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 64, "d_ff": 512,
}  # fmt: skip
LLAMA = ModelConfig("llama", **SIZES)
GEMMA = ModelConfig(
    "gemma2", **SIZES, tied_head=True, window=100, local_layers=(True, False), zero_centred_norms=True, post_norms=True,
    embedding_scale=16.0, attention_softcap=50.0, final_softcap=30.0, activation="gelu_tanh",
)  # fmt: skip
EXPERTS = ModelConfig("qwen3_moe", **SIZES, qk_norm=True, experts=Experts(8, 2, 128, balance_coefficient=0.01))
SINKS = ModelConfig("gpt_oss", **SIZES, sinks=True, window=100, local_layers=(True, False), o_bias=True, qkv_bias=True,
    experts=Experts(4, 2, 128, biased=True, clamp=7.0, slope=1.7))  # fmt: skip
CONFIGS = {"llama": LLAMA, "gemma-2": GEMMA, "experts": EXPERTS, "sinks": SINKS}


@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_train_step_compiles_with_the_fused_kernel(name: str, topology: str) -> None:
    assert KERNEL in compiled(Model(CONFIGS[name], "bfloat16", remat="full"), topology)


@pytest.mark.parametrize(
    ("config", "topology"),
    [(LLAMA, "v5e:2x2"), (replace(LLAMA, kv_heads=4, head_dim=128), "v5p:2x2x1")],
    ids=["half a key head for each device", "one"],
)
def test_so_do_adapters_on_a_frozen_model(config: ModelConfig, topology: str) -> None:
    adapters = Adapters(8, 16.0, matrices(config, "all-linear"), False)
    assert KERNEL in compiled(Model(config, "bfloat16", remat="full", adapters=adapters), topology)


def test_so_does_a_mesh_that_splits_heads() -> None:
    assert KERNEL in compiled(Model(LLAMA, "bfloat16", remat="full"), "v5e:2x2", fsdp=2, tensor=2)


def test_rows_that_devices_share_take_the_plain_computation_where_each_has_not_two_tiles() -> None:
    assert KERNEL not in compiled(Model(LLAMA, "bfloat16", remat="full"), "v5e:2x2", fsdp=2, sequence=2)


@pytest.mark.parametrize("config", [LLAMA, GEMMA], ids=["llama", "with windows"])
def test_of_rows_that_devices_share_keys_and_values_alone_are_gathered(config: ModelConfig) -> None:
    """Of 1,024 tokens, 512 a device; before, scores of all pairs were computed, and every weight was there twice."""
    text = compiled(Model(config, "bfloat16", remat="full"), "v6e:2x2", length=1024, fsdp=2, sequence=2)
    assert KERNEL in text
    gathered = re.findall(r" = \(?(\w+)\[([\d,]+)\]\S*(?:, \S+)* all-gather(?:-start)?\(", text)
    whole = {tuple(map(int, shape.split(","))) for _, shape in gathered if "1024" in shape.split(",")}
    rows, heads, size = ROWS // 2, config.kv_heads, config.head_dim
    assert whole <= {(rows, 1024, heads, size), (rows, 1024), (rows, 1, 1024), (ROWS, 1024)}, whole
    assert any(len(shape) == 4 for shape in whole)
    assert not re.search(r"\[[\d,]*1024,1024\]", text)


def test_a_torus_gathers_and_does_not_sum() -> None:
    devices = tpu_topology.devices(accelerators.resolve("v5p-128"))
    rows = NamedSharding(sharding.make_mesh((1, len(devices)), devices), PartitionSpec("fsdp"))
    x, w = (jax.ShapeDtypeStruct((size, 8192), "bfloat16", sharding=rows) for size in (64 * 128, 8192))
    text = (
        jax.jit(lambda x, w: x @ w, out_shardings=rows)
        .lower(x, w)
        .compile(compiler_options=compiler_flags.flags("v5p"))
        .as_text()
    )
    assert "all-gather" in text
    assert "all-reduce" not in text


def test_chips_of_tpu7x_that_are_no_torus_gather_in_two_steps_and_do_not_sum() -> None:
    devices = tpu_topology.devices(accelerators.resolve("tpu7x-64"))
    mesh, axes = sharding.make_mesh((1, len(devices)), devices), ("embed", "mlp")
    w = jax.ShapeDtypeStruct((8192, 8192), "bfloat16")
    where = NamedSharding(mesh, PartitionSpec("fsdp")), *sharding.weight_shardings(mesh, [w], [axes])
    rows = jax.ShapeDtypeStruct((64 * 128, 8192), "bfloat16", sharding=where[0])
    with jax.set_mesh(mesh):
        program = jax.jit(lambda x, w: explicit_collectives.product(x, w, axes)).lower(
            rows, w.update(sharding=where[1])
        )
        text = program.compile(compiler_options=compiler_flags.flags("tpu7x")).as_text()
    assert len(re.findall(r" all-gather(?:-start)?\(", text)) == 2
    assert "all-reduce" not in text


@cache
def step_of_llama(remat: Remat) -> str:
    return compiled(Model(LLAMA, "bfloat16", remat=remat), "v6e:2x2")


def test_matrices_are_gathered_once_a_pass_and_the_embedding_not_at_all() -> None:
    text = step_of_llama("full")
    assert len(collectives(text, "all-gather", (512, 256))) == 2  # `down`: forward, and once backward
    assert len(collectives(text, "all-gather", (256, 4, 64))) == 2  # `q`
    assert len(collectives(text, "all-gather", (4, 64, 256))) == 2  # `o`
    assert len(collectives(text, "all-gather", (1000, 256))) == 1  # the head; a look-up sends rows
    assert len(collectives(text, "all-reduce", (1000, 256))) == 1


def test_matrices_of_an_mlp_are_gathered_by_whole_rows_with_the_models_axis_in_lanes() -> None:
    """Rows have as many tokens as the model is wide, and so their tokens in lanes."""
    text = step_of_llama("full")
    gate_and_up, down = (collectives(text, "all-gather", shape) for shape in ((256, 512), (512, 256)))
    assert len(gate_and_up) == 4
    assert all("[256,512]{0,1:" in line for line in gate_and_up)
    assert all("[512,256]{1,0:" in line for line in down)


def test_the_optimizer_reads_embedding_and_head_as_they_are_stored() -> None:
    """Parts of 64 columns fill no lanes, so TPUs store them turned; gradients are turned for that, and nothing else."""
    copies = re.findall(r"(\w+)\[1000,64\]\S* copy\(", step_of_llama("full"))
    assert sorted(copies) == ["bf16", "bf16", "f32"]  # what is looked up; the head's gradient, and the embedding's


def test_the_gradient_of_logits_is_not_copied_where_words_fill_no_lanes() -> None:
    text = step_of_llama("full")
    assert re.search(r"\[512,1000\]\S* fusion\(", text)  # two rows of 256 tokens
    assert not re.search(r"\[(512|2,256),1000\]\S* copy\(", text)


@pytest.mark.parametrize(("remat", "runs"), [("full", 2), ("save-context", 1), ("save-qkv-context", 1), ("none", 1)])
def test_attention_runs_forward_once_where_its_output_is_saved(remat: Remat, runs: int) -> None:
    kernels = re.findall(r"%(splash_mha_fwd\S*) = .* custom-call\(", step_of_llama(remat))
    assert len(kernels) == runs


def test_of_long_rows_it_does_for_each_few_heads_with_one_kernel_for_the_backward_pass() -> None:
    """Whose partial gradients of queries, of 8 blocks of keys, are there for four heads at a time."""
    model = Model(replace(LLAMA, heads=8), "bfloat16", remat="save-context")
    text = compiled(model, "v6e:2x2", length=32_768)
    kernels = Counter(re.findall(r"%splash_mha_([a-z]+)\S* = .* custom-call\(", text))
    assert kernels == {"fwd": 1, "dkv": 1}
    assert re.search(r"%splash_mha_dkv\S* = \(.*bf16\[2,8,4,32768,64\]", text)  # of a device's two rows


def test_a_step_that_the_compiler_refuses_gives_way_to_full_recomputation_where_the_job_leaves_that_open() -> None:
    where = NamedSharding(Mesh(tpu_topology.devices(accelerators.resolve("v6e-1")), ("all",)), PartitionSpec())
    state = jax.ShapeDtypeStruct((128,), "float32", sharding=where)
    large: Any = jax.jit(lambda x, y: jnp.broadcast_to(x + y, (2**27, 128)))  # 64 GiB, of which a chip has half
    small: Any = jax.jit(lambda x, y: x + y)
    notes: list[str] = []
    layout: Any = None
    assert StepPrograms(large, layout, (), None, small, notes.append).compile(state, state).as_text()  # type: ignore[arg-type]
    assert notes == ["training.remat: auto: the compiler finds no memory for saved activations; full is taken"]
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        StepPrograms(large, layout, ()).compile(state, state)  # type: ignore[arg-type]


def test_rotations_do_not_cut_heads_in_halves() -> None:
    halves = r"\[2,256,[24],32\]"  # of 2 rows a device, and its query and key heads
    assert not re.search(halves, step_of_llama("full"))


@pytest.mark.parametrize("config", [LLAMA, replace(GEMMA, qk_norm=True)], ids=["llama", "normed, with windows"])
def test_queries_keys_and_values_are_not_copied_into_another_order(config: ModelConfig) -> None:
    text = compiled(Model(replace(config, head_dim=128), "bfloat16", remat="full"), "v6e:2x2")
    assert not re.findall(r"%\S+ = bf16\[2,(?:256,[24]|[24],256),128\]\S* (?:copy|transpose)\(", text)


@pytest.mark.parametrize(("experts", "part"), [(8, "8,64"), (32, "1,384")], ids=["parts", "whole"])
def test_matrices_of_experts_are_multiplied_as_they_are_gathered(experts: int, part: str) -> None:
    """Kernels read them turned where they lie so: none is copied into another order, forward or backward."""
    width, topology = (256, "v6e:2x2") if experts == 8 else (384, "v6e:4x8")  # 12 of 384 would fill no rows of tiles
    config = replace(EXPERTS, d_model=width, experts=Experts(experts, 2, 128))
    text = compiled(Model(config, "bfloat16", remat="full"), topology)
    assert re.search(rf"bf16\[1,{part},128\]", text)
    shapes = f"{experts},(?:{width},128|128,{width})"
    assert not re.findall(rf"%\S+ = bf16\[(?:1,)?{shapes}\]\S* (?:copy|transpose)\(", text)
    kernels = Counter(re.findall(r"%(ragged-dot-none|gmm|tgmm)[.\d]* = .* custom-call\(", text))
    assert kernels == {"ragged-dot-none": 5, "gmm": 3, "tgmm": 3}


def collectives(text: str, kind: str, shape: tuple[int, ...]) -> list[str]:
    """Return the program's collectives of this kind whose result has this shape."""
    dims = ",".join(map(str, shape))
    return [line for line in text.splitlines() if re.search(rf"\[{dims}\]\S* {kind}(?:-start)?\(", line)]


@pytest.mark.parametrize(
    ("flag", "generation"), [(flag, each) for flag in compiler_flags.TABLE for each in sorted(flag.generations)]
)
def test_the_compiler_knows_each_flag_of_the_table(flag: compiler_flags.XlaFlag, generation: str) -> None:
    devices = tpu_topology.devices(accelerators.resolve(accelerators.names(generation)[0]))
    where = NamedSharding(sharding.make_mesh((1, len(devices)), devices), PartitionSpec())
    program = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((8, 128), "float32", sharding=where))
    assert program.compile(compiler_options={flag.name: flag.value})
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        program.compile(compiler_options={f"{flag.name}_": flag.value})


def compiled(model: Model, topology: str, length: int = LENGTH, **split: int) -> str:
    """The program that the TPU's compiler makes of the real train step."""
    mesh = _mesh(topology, split)
    adamw = optax.adamw(1e-3)
    program = Program(model, Likelihood(), adamw, lambda count: 1e-3)  # type: ignore[arg-type]
    where = program.layout(mesh)
    step: Any = train_step(program, where)
    frozen = None
    if where.frozen is not None:
        shapes = model.frozen(model.abstract())
        frozen = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, where.frozen)
    with jax.set_mesh(mesh):
        lowered = step.lower(program.abstract_state(where), _batch(mesh, length), frozen)
        text: str = lowered.compile().as_text()
    assert KERNEL not in text or "tpu_custom_call" in text  # the name alone could be one of ordinary operations
    return text


def _mesh(topology: str, split: dict[str, int]) -> Mesh:
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    sizes = split or {"fsdp": len(devices)}
    shape = tuple(sizes.get(axis, 1) for axis in logical_axes.MESH_AXES)
    return Mesh(np.array(devices).reshape(shape), logical_axes.MESH_AXES)


def _batch(mesh: Mesh, length: int) -> Batch:
    rows = max(ROWS, mesh.size)
    where = NamedSharding(mesh, sharding.fitting_batch_spec(mesh, (rows, length)))
    ids, numbers = (jax.ShapeDtypeStruct((rows, length), dtype, sharding=where) for dtype in ("int32", "float32"))
    return Batch(ids, ids, ids, ids, numbers, numbers)
