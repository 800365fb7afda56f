"""Decoding compiles for TPUs that are not here, with the ragged paged attention kernel in it, and moves no page.

The engine's own functions are compiled from shapes alone, one after the other. Needs libtpu (`make aot`).
"""

import importlib.util
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ptapi import accelerators
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, ModelConfig
from pttrainer.models.attention.paged_kv_cache import PagedCache
from pttrainer.models.config import Experts
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.timing.collectives import collectives
from pttrainer.rollout.engine import Sampling
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.decode_loop import PaddedPrompts
from pttrainer.rollout.native.decoding_weights import PART_BYTES, cut_weights, decoding_shapes, decoding_shardings
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.runtime.distributed import sharding

if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu is not installed; hint: make aot", allow_module_level=True)

tpu_topology.prepare_environment()

KERNEL = "ragged_paged_attention_kernel"
LLAMA = ModelConfig(
    "llama", vocab_size=1000, d_model=256, layers=2, heads=8, kv_heads=2, head_dim=64, d_ff=512, eos_ids=(1,)
)
GEMMA = replace(
    LLAMA, family="gemma2", head_dim=128, window=100, local_layers=(True, False), zero_centred_norms=True,
    post_norms=True, attention_softcap=50.0,
)  # fmt: skip
MULTI_QUERY = replace(LLAMA, kv_heads=1, head_dim=128)
WIDE = replace(LLAMA, d_model=1024, d_ff=8192, head_dim=128)
EXPERTS = Experts(count=32, per_token=2, d_ff=768)
MIXTURE = Model(replace(WIDE, family="qwen3_moe", experts=EXPERTS), "bfloat16")
PROMPTS, PROMPT_SLOTS, SAMPLES, ROWS = 4, 128, 4, 8


@pytest.mark.parametrize("chip", ["v5e-1", "v6e-1"])
@pytest.mark.parametrize(
    "model", [Model(LLAMA, "bfloat16"), Model(GEMMA, "bfloat16"), Model(MULTI_QUERY)], ids=["llama", "gemma-2", "f32"]
)
def test_decoding_compiles_with_the_kernel(model: Model, chip: str) -> None:
    program, cache = decoding(model, chip, (1,))
    text = program.as_text()
    assert KERNEL in text
    assert "tpu_custom_call" in text
    assert isinstance(cache, PagedCache)
    assert not copies_of_pages(text, cache)


@pytest.mark.parametrize(("shape", "refilled"), [((1, 4), False), ((1, 2, 2), True), ((1, 4), True)])
def test_so_it_does_on_a_mesh_where_no_page_leaves_its_device(shape: tuple[int, ...], refilled: bool) -> None:
    program, cache = decoding(Model(LLAMA, "bfloat16"), "v5e-4", shape, refilled)
    text = program.as_text()
    assert KERNEL in text
    assert not copies_of_pages(text, cache)
    gathered = re.findall(r"= (\w+\[[\d,]*\])\S* all-gather\(", text)
    assert not [array for array in gathered if f",{LLAMA.head_dim}]" in array or ",128]" in array]


@pytest.mark.parametrize("config", [replace(LLAMA, sinks=True), replace(LLAMA, head_dim=256)], ids=["sinks", "wide"])
def test_sinks_and_wide_heads_take_the_plain_computation(config: ModelConfig) -> None:
    program, cache = decoding(Model(config, "bfloat16"), "v5e-1", (1,))
    assert KERNEL not in program.as_text()
    assert not isinstance(cache, PagedCache)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("chip", "shape"), [("tpu7x-2", (1, 2)), ("v5p-8", (1, 4))])
def test_no_weights_are_copied_before_the_loop_over_tokens(
    chip: str, shape: tuple[int, ...], parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every weight of a layer is read in the order and the tiles that it is stored in, also where it is in parts."""
    cut_into(parts, chip, shape[1], monkeypatch)
    program, _ = decoding(Model(WIDE, "bfloat16"), chip, shape)
    smallest_copy = 2 * WIDE.layers * WIDE.d_model * WIDE.heads * WIDE.head_dim  # of all queries' weights
    assert program.memory_analysis().temp_size_in_bytes < smallest_copy


@pytest.mark.parametrize(("chip", "shape"), [("v6e-4", (1, 1, 4)), ("v5p-8", (1, 1, 4)), ("v5e-4", (1, 4))])
def test_experts_are_read_as_they_lie_by_the_kernel_for_few_rows(chip: str, shape: tuple[int, ...]) -> None:
    """Of 768 / 4 columns no lanes are filled, so memory has the matrices turned. Prompts copy none, either."""
    program, _ = decoding(MIXTURE, chip, shape)
    assert program.as_text().count("few_rows_product") >= 3 * WIDE.layers
    of_gates = 2 * 2 * WIDE.layers * EXPERTS.count * WIDE.d_model * EXPERTS.d_ff // (shape[2] if shape[2:] else 1)
    assert program.memory_analysis().temp_size_in_bytes < of_gates / 4
    prompts = prompts_program(MIXTURE, mesh_of(chip, shape)).compile()
    assert prompts.memory_analysis().temp_size_in_bytes < of_gates / 2


def test_experts_that_fill_the_lanes_of_tiles_are_not_copied_either() -> None:
    """As gpt-oss 120B's: 128 of them, whose matrices have no axis of whole lanes."""
    experts, width, devices = replace(EXPERTS, count=128, d_ff=576), 576, 4
    program, _ = decoding(Model(replace(WIDE, d_model=width, experts=experts, d_ff=0), "bfloat16"), "v5e-4", (1, 1, 4))
    of_gates = 2 * 2 * WIDE.layers * experts.count * width * experts.d_ff // devices
    assert program.memory_analysis().temp_size_in_bytes < of_gates / 4


@pytest.mark.parametrize("words", [100_000, 100_002])
def test_no_token_sends_the_logits_and_each_device_computes_its_own(words: int) -> None:
    """25,000 words of a device are no multiple of a block; sums of blocks and one block of each row are sent."""
    config = replace(LLAMA, kv_heads=4, vocab_size=words)
    program, _ = decoding(Model(config, "bfloat16"), "v5e-4", (1, 1, 4))
    text = program.as_text()
    sent = sum(one.bytes for one in collectives(text, 4, turns=1))
    assert sent < 4 * ROWS * words / 8
    assert f"f32[{words}," not in text


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("share", "vocab_size", "sums"), [(0.0, 1000, 1), (1e9, 1008, 5)])
def test_matrices_are_gathered_once_where_each_device_computes_prompts_of_its_own(
    share: float, vocab_size: int, sums: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "GATHERED_SHARE", share)
    cut_into(parts, "v5e-4", 2, monkeypatch)
    model = Model(replace(WIDE, vocab_size=vocab_size), "bfloat16")  # one each, as jax.jit keeps what it traced
    text = prompts_program(model, mesh_of("v5e-4", (1, 2, 2))).compile().as_text()
    sent = {one.kind: one for one in collectives(text, 4)}
    assert sent["all-reduce"].count == sums  # one is of rows of the embedding, which is split by words
    heads, d_ff = (WIDE.heads + WIDE.kv_heads) * WIDE.head_dim, WIDE.d_ff
    matrices = 2 * WIDE.layers * WIDE.d_model * (2 * heads + 3 * d_ff)
    gathered = sent["all-gather"].bytes if "all-gather" in sent else 0
    assert gathered == (0 if sums > 1 else pytest.approx(matrices / 2, rel=0.05))


def cut_into(parts: int, chip: str, tensor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the matrices of `WIDE`'s feed-forward parts so often."""
    monkeypatch.setitem(
        PART_BYTES, accelerators.resolve(chip).generation, 2 * WIDE.d_model * WIDE.d_ff // tensor // parts
    )


def mesh_of(chip: str, shape: tuple[int, ...]) -> Mesh:
    return sharding.make_mesh(shape, tpu_topology.devices(accelerators.resolve(chip)))


def decoding(model: Model, chip: str, shape: tuple[int, ...], refilled: bool = False) -> tuple[Any, Any]:
    """The program of a dispatch, and the cache that it goes on with."""
    mesh = mesh_of(chip, shape)
    pool = _made(prompts_program(model, mesh))
    with jax.set_mesh(mesh):
        functions, weights = of_engine(model, mesh)
        number = _array(mesh, (), jnp.int32)
        if refilled:
            rows = _made(functions["idle"].lower(ROWS, 256, pool))
        else:
            rows = _made(functions["spread"].lower(SAMPLES, 256, pool))
        program = functions["advance"].lower(weights, rows, pool if refilled else None, number, number)
        return program.compile(), rows.cache


def prompts_program(model: Model, mesh: Mesh) -> Any:
    """The program of a pool of prompts, before it is compiled."""
    with jax.set_mesh(mesh):
        functions, weights = of_engine(model, mesh)
        number, key = _array(mesh, (), jnp.int32), _array(mesh, (), jnp.uint32)
        counts = _array(mesh, (PROMPTS,), jnp.int32)
        prompts = PaddedPrompts(_array(mesh, (PROMPTS, PROMPT_SLOTS), jnp.int32), counts, counts, counts)
        return functions["prefill"].lower(SAMPLES, weights, prompts, key, key, number, number)


def of_engine(model: Model, mesh: Mesh) -> tuple[dict[str, Any], Any]:
    """The engine's functions, and its weights as shapes."""
    functions = NativeEngine(model, byte_tokenizer(), mesh=mesh).compiled(Sampling(256, 1024))
    where = decoding_shardings(model, mesh)
    return functions, cut_weights(jax.tree.map(_placed, dict(decoding_shapes(model)), where))


def _array(mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))


def _placed(x: Any, where: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)


def _made(program: Any) -> Any:
    """What a program returns, where it leaves it."""
    compiled = program.compile()
    return jax.tree.map(_placed, compiled.out_info, compiled.output_shardings)


def copies_of_pages(text: str, cache: PagedCache) -> list[str]:
    """Instructions that write all pages of a layer anew: a kernel that wants them otherwise would cost one a token."""
    here = cache.layers[0].sharding.shard_shape(cache.layers[0].shape)
    shapes = "|".join(",".join(map(str, shape)) for shape in (here, here[1:]))
    return re.findall(rf"= \w+\[(?:{shapes})\]\S* (?:copy|transpose|convert)\(.*", text)
