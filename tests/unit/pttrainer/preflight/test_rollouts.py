"""A rollout as programs and as time: the engine's functions from shapes, and tokens per second by hand."""

import math
from dataclasses import replace
from typing import Any

import jax
import pytest
from tests.builders.trainer.preflight import spec

from ptapi.spec import Environment, ModelSpec
from pttrainer.models import PRESETS
from pttrainer.models.attention.flash_kernels import Problem
from pttrainer.models.attention.paged_kernel import is_supported
from pttrainer.models.config import Vision
from pttrainer.models.families.published_shapes import RAW
from pttrainer.models.vision.names import VISION
from pttrainer.preflight.compiler import rollout_programs
from pttrainer.preflight.compiler.programs import shallow
from pttrainer.preflight.memory import resident
from pttrainer.preflight.shapes import rollout_shapes, tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, read_config, shapes_of
from pttrainer.preflight.shapes.passes import DECODE, PREFILL, WEIGHTS
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.timing.rollout_time import generation
from pttrainer.preflight.timing.step_time import estimate
from pttrainer.rollout.native import buckets
from pttrainer.runtime.distributed import sharding

SIGLIP = Vision(
    d_model=1152, d_ff=4304, layers=27, heads=16, image_size=896, patch_size=14, tokens=256, begin_id=1, end_id=2
)
EIGHT: dict[str, Any] = {"algorithm": "grpo", "batchSize": 64, "sequenceLength": 3072}


def sampled_job(**fields: Any) -> JobShapes:
    return shapes_of(spec("llama3.1-8b", "v5p-16", **{**EIGHT, "rollout": {"maxNewTokens": 1024}, **fields}))


def test_the_engines_functions_take_the_shapes_that_preflight_gives_them() -> None:
    """On one device of this machine; with fewer rows than completions, decoding takes the next prompts too."""
    fields = {"options": {"groupSize": 2}, "batchSize": 4, "sequenceLength": 32, "rollout": {"maxNewTokens": 16}}
    order: dict[int | None, list[str]] = {}
    for slots in (None, 2):
        rollout = {**fields["rollout"], **({} if slots is None else {"slots": slots})}  # type: ignore[dict-item]
        of = shapes_of(spec("tiny", "v6e-1", algorithm="grpo", **{**fields, "rollout": rollout}))
        mesh = sharding.make_mesh(of.shape, jax.devices()[:1])
        order[slots] = []
        with jax.set_mesh(mesh):
            programs, made = rollout_programs.lowered(of, mesh), None
            while True:
                try:
                    one = programs.send(made)
                except StopIteration:
                    break
                order[slots].append(one.name)
                # The last one is not compiled: that costs most, and nothing comes after it.
                made = None if order[slots].count(DECODE) == 2 else one.program.compile()
    parts = [WEIGHTS] * (1 + 2)  # a layer, the embedding, the norm: the head is the embedding
    assert order[None] == order[2] == [*parts, PREFILL, DECODE, DECODE]


def test_rows_that_do_not_fit_at_once_are_refilled() -> None:
    whole, few = (
        rollout_shapes.plan_of(sampled_job()),
        rollout_shapes.plan_of(sampled_job(rollout={"maxNewTokens": 1024, "slots": 20})),
    )
    assert (whole.rows, whole.pool, whole.is_refilled, whole.tokens) == (64, 8, False, 1024)
    # 16, because 20 do not divide over 8 devices; the pool has as many prompts as rows need.
    assert (few.rows, few.pool, few.is_refilled, few.tokens) == (16, 2, True, 4 * 1024)


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("model", [*PRESETS, *RAW])
def test_pages_are_counted_where_the_sampler_takes_them(model: str, tensor: int) -> None:
    parallelism = {"fsdp": 4 // tensor, "tensor": tensor}
    of = shapes_of(spec(model, "v5e-4", algorithm="grpo", batchSize=8, parallelism=parallelism))
    config = of.config
    for rows in (6, 8):
        problem = Problem(
            "tpu", "TPU v5 lite", "bfloat16", rows, config.heads, config.kv_heads, config.head_dim, sinks=config.sinks,
            row_shards=4 // tensor, head_shards=tensor,
        )  # fmt: skip
        assert rollout_shapes.is_paged(of, rows) == (config.is_pageable and is_supported(problem))


def test_heads_of_64_take_a_pages_128_and_no_more_than_64_in_a_pool_of_prompts() -> None:
    """As the compiler says of Llama 3.2 1B on v5e-4: 37 rows a device of 1,024 + 1,024 tokens, 4.77 GiB with a page
    more for each row; 16 prompts, four on each device, 0.125."""
    rollout = {"maxNewTokens": 1024}
    of = shapes_of(spec("llama3.2-1b", "v5e-4", algorithm="grpo", batchSize=256, sequenceLength=2048, rollout=rollout))
    plan = rollout_shapes.plan_of(of)
    assert (plan.rows, plan.pool) == (148, 16)
    paged = rollout_shapes.rows_bytes(of, plan.rows, plan.slots) + rollout_shapes.prompts_bytes(of, plan)
    assert paged == 37 * 2048 * 2 * 16 * 8 * 128 * 2 == pytest.approx(4.77 * 2**30, rel=0.04)
    assert rollout_shapes.cache_bytes(of, plan.pool, plan.prompt_slots) == pytest.approx(0.125 * 2**30)


def test_a_token_costs_the_weights_and_the_cache_of_a_device() -> None:
    costs = generation(sampled_job(), {})
    token = costs.programs[DECODE]
    norms = (2 * 32 + 1) * 4096
    weights = 2 * (8_030_261_248 - norms) / 4 + 2 * norms
    # Two key heads of 32 rows a device; on average of 128 to 1,024 slots, doubled when full; of 4 prompts 2,048.
    slots = (128 * 128 + 128 * 256 + 256 * 512 + 512 * 1024) / 1024
    cache = 32 * 2 * 128 * 2 * 2 * (32 * slots + 4 * 2048)
    assert token.hbm_bytes == pytest.approx(weights + cache, rel=1e-4)
    assert (token.bound, token.seconds) == ("memory", pytest.approx(token.hbm_bytes / 2765e9))
    assert costs.tokens_per_second == pytest.approx(64 / token.seconds)
    assert costs.decode_seconds == pytest.approx(1024 * token.seconds)


def test_sampling_is_part_of_a_steps_time_as_often_as_it_happens() -> None:
    each, half = estimate(sampled_job(), None), estimate(sampled_job(options={"updatesPerBatch": 2}), None)
    assert half.generation is not None
    assert each.seconds == pytest.approx(each.update_seconds + each.generation.seconds)
    assert half.generation.seconds == pytest.approx(each.generation.seconds / 2)
    assert estimate(sampled_job(algorithm="sft"), None).generation is None


def test_what_a_token_sends_may_be_what_it_costs() -> None:
    costs = generation(sampled_job(), {DECODE: [Traffic("all-gather", 1, int(6e10))]})
    assert costs.programs[DECODE].bound == "network"


def test_a_shallow_form_is_sampled_as_the_whole_job_would_be() -> None:
    of = shapes_of(spec("llama3.1-70b", "v5p-128", **{**EIGHT, "batchSize": 1024}, rollout={"maxNewTokens": 1024}))
    pair = shallow(of)
    assert pair is not None
    for each in pair:
        assert rollout_shapes.sampler(each).shape == rollout_shapes.sampler(of).shape == (1, 8, 8, 1, 1)
        assert rollout_shapes.plan_of(rollout_shapes.sampler(each)) == rollout_shapes.plan_of(
            rollout_shapes.sampler(of)
        )


def test_kept_prompts_of_episodes_are_counted_while_completions_are_sampled() -> None:
    """Episodes of 3,072 tokens: 48 pages each if they fit, of 32 layers with 8 key heads of 128 in bfloat16.

    Each of 8 devices has a key head of all 32 of them, and the state at the end of each page; of 64, and of long ones,
    two key heads of half of them.
    """

    def kept(of: JobShapes) -> list[resident.Buffer]:
        return [buffer for buffer in resident.resident_buffers(of) if buffer.name == resident.KEPT]

    def of_episodes(of: JobShapes) -> JobShapes:
        environment = Environment.model_validate({"tools": [{"builtin": "calculator"}]})
        return replace(of, spec=of.spec.model_copy(update={"environment": environment}))

    page, of_two, of_one = (128 * 2 * 32 * heads * 128 * 2 + 2 * 4096 for heads in (8, 2, 1))
    short, long = sampled_job(), sampled_job(sequenceLength=65536)
    assert kept(short) == []
    assert kept(of_episodes(sampled_job(batchSize=32))) == [resident.Buffer(resident.KEPT, 32 * 48 * of_one, "rollout")]
    assert kept(of_episodes(short)) == [resident.Buffer(resident.KEPT, 32 * 48 * of_two, "rollout")]
    (bounded,) = kept(of_episodes(long))
    fitting = 8 * int(tpu_topology.usable_bytes(long.slice) * buckets.KEPT_SHARE) // page
    assert bounded.bytes == math.ceil(fitting / 2) * of_two


def prompts_program(*, images: bool) -> tuple[JobShapes, Any]:
    """What a program of prompts takes, as preflight lowers it, compiled for this machine."""
    fields = {"options": {"groupSize": 2}, "batchSize": 4, "sequenceLength": 64, "rollout": {"maxNewTokens": 16}}
    wanted = spec("tiny-gemma3", "v6e-1", algorithm="grpo", **fields)  # type: ignore[arg-type]
    of = shapes_of(wanted.model_copy(update={"model": ModelSpec(uri="random://tiny-gemma3", images=images)}))
    mesh = sharding.make_mesh(of.shape, jax.devices()[:1])
    with jax.set_mesh(mesh):
        program = next(one.program for one in rollout_programs.lowered(of, mesh) if one.name == PREFILL)
        return of, program.compile(compiler_options={"xla_backend_optimization_level": 0}).memory_analysis()


def test_the_prompts_of_a_model_with_images_are_compiled_with_its_tower() -> None:
    (of, seeing), (_, blind) = prompts_program(images=True), prompts_program(images=False)
    tower = sum(2 * math.prod(one.shape) for path, one in of.structure.weights.items() if path[0] == VISION)
    plan = rollout_shapes.plan_of(of)
    pixels, slots, which = 4 * 48 * 48 * 3, 4 * plan.prompt_slots, 4
    of_images = tower + plan.prompts * (pixels + slots + which)
    assert seeing.argument_size_in_bytes - blind.argument_size_in_bytes == of_images
    assert seeing.temp_size_in_bytes > blind.temp_size_in_bytes


def test_images_are_computed_with_whole_prompts_and_their_activations_are_counted() -> None:
    """Gemma 3's tower of 4,096 patches beside short prompts: the largest of what is there for a moment."""
    seeing = replace(read_config(spec("gemma3-4b", "v6e-4")), vision=SIGLIP)
    fields = {"algorithm": "grpo", "batchSize": 64, "sequenceLength": 512, "rollout": {"maxNewTokens": 64}}
    of = shapes_of(spec("gemma3-4b", "v6e-4", **fields), seeing)
    plan = rollout_shapes.plan_of(of)
    assert (plan.pool, plan.pieces) == (8, 1)
    in_lanes = 4 * 16 * 128  # queries, keys, values and what attention gives: 16 heads of 72
    stream = 2 * 2 * 4096 * (1152 + in_lanes)
    pixels = 2 * 896 * 896 * 3 * 4
    name = "prompts: a layer of the vision tower"
    assert resident.Buffer(name, stream + pixels, "rollout") in resident.resident_buffers(of)
