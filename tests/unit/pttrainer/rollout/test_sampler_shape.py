"""The mesh that samples, by the estimated time of a rollout."""

import dataclasses
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from tests.builders.trainer.preflight import spec

from ptapi.spec import PostTrainJobSpec
from pttrainer.models import Model
from pttrainer.preflight.compiler.programs import shallow
from pttrainer.preflight.shapes import rollout_shapes
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.rollout.disaggregated import placement
from pttrainer.rollout.evaluation import evaluator
from pttrainer.rollout.native.sizes import max_rows, sampler_shape, sampling_time
from pttrainer.rollout.native.sizes.sampler_shape import fastest
from pttrainer.rollout.native.sizes.sampling_time import DeviceTime, rollout_of
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.logical_axes import Shape


def job(model: str, accelerator: str, **fields: Any) -> PostTrainJobSpec:
    rows = {"batchSize": 128, "sequenceLength": 2048, "rollout": {"maxNewTokens": 1024}}
    return spec(model, accelerator, algorithm="grpo", **{**rows, **fields})


def by_memory(of: JobShapes) -> Shape:
    """Return the mesh that preflight would name without published rates."""
    memory = int(rollout_shapes.tpu_topology.usable_bytes(of.slice))
    return sampler_shape.sampler_shape(of.structure, of.shape, memory, None, None)


@pytest.mark.parametrize(
    ("model", "accelerator", "least", "chosen"),
    [
        ("llama3.1-8b", "v6e-8", (1, 4, 2, 1, 1), (1, 2, 4, 1, 1)),
        ("llama3.1-8b", "v5p-8", (1, 4, 1, 1, 1), (1, 1, 4, 1, 1)),
        ("llama3.1-8b", "tpu7x-8", (1, 8, 1, 1, 1), (1, 2, 4, 1, 1)),
        ("llama3.1-8b", "v5e-8", (1, 2, 4, 1, 1), (1, 2, 4, 1, 1)),  # 1 x 8 saves less than a tenth
        ("llama3.1-8b", "v4-8", (1, 2, 2, 1, 1), (1, 2, 2, 1, 1)),  # no rate of its links is published
        ("llama3.1-8b", "h100-8", (1, 8, 1, 1, 1), (1, 4, 2, 1, 1)),
        ("llama3.1-70b", "v5p-128", (1, 16, 4, 1, 1), (1, 8, 8, 1, 1)),
        ("llama3.1-70b", "v6e-64", (1, 8, 8, 1, 1), (1, 8, 8, 1, 1)),  # no further: there are 8 key heads
        ("qwen2.5-0.5b", "v6e-8", (1, 8, 1, 1, 1), (1, 8, 1, 1, 1)),  # its sums cost what its weights save
        ("qwen2.5-1.5b", "v6e-8", (1, 8, 1, 1, 1), (1, 4, 2, 1, 1)),  # no further: there are 2 key heads
        ("qwen3-30b-a3b", "v5p-8", (1, 2, 2, 1, 1), (1, 1, 4, 1, 1)),
        ("qwen3-next-80b", "v5p-128", (1, 32, 2, 1, 1), (1, 32, 2, 1, 1)),  # its states are not split
        ("deepseek-v3", "v5p-256", None, None),  # all heads read one latent vector, which is not split
    ],
)
def test_tensor_takes_more_where_that_samples_a_rollout_sooner(
    model: str, accelerator: str, least: Shape | None, chosen: Shape | None
) -> None:
    of = shapes_of(job(model, accelerator))
    assert by_memory(of) == (least or by_memory(of))
    assert rollout_shapes.sampler(of).shape == (chosen or by_memory(of))


def test_devices_that_share_rows_in_training_sample_rows_of_their_own() -> None:
    parallelism = {"fsdp": 2, "sequence": 4}
    of = shapes_of(job("llama3.1-8b", "v6e-8", parallelism=parallelism))
    assert of.shape == (1, 2, 1, 4, 1)
    assert rollout_shapes.sampler(of).shape == (1, 2, 4, 1, 1)
    assert sampler_shape.sampler_shape(of.structure, of.shape, None, None, None) == (1, 8, 1, 1, 1)


def test_rows_enough_to_keep_the_matrix_units_busy_leave_a_small_model_whole() -> None:
    few, many = (shapes_of(job("qwen2.5-1.5b", "v6e-8", batchSize=rows)) for rows in (128, 1024))
    assert rollout_shapes.sampler(few).axis("tensor") == 2
    assert rollout_shapes.sampler(many).axis("tensor") == 1


def test_gpus_of_other_machines_are_behind_a_network_and_share_no_matrices() -> None:
    of = shapes_of(job("llama3.1-70b", "h100-16", batchSize=16))
    wide = dataclasses.replace(of.structure, config=dataclasses.replace(of.config, kv_heads=16))
    shapes: list[Shape] = [(1, 4, 4, 1, 1), (1, 2, 8, 1, 1), (1, 1, 16, 1, 1)]
    slow = dataclasses.replace(of.slice, chip=dataclasses.replace(of.slice.chip, hbm_gbytes_per_s=100))
    assert fastest(wide, shapes, slow, rollout_of(of.spec)) == (1, 2, 8, 1, 1)
    assert fastest(wide, shapes, dataclasses.replace(slow, chips_per_vm=16), rollout_of(of.spec)) == (1, 1, 16, 1, 1)


MICROSECONDS = [
    ("v6e-8", (1, 4, 2, 1, 1), 163, 22),
    ("v6e-8", (1, 2, 4, 1, 1), 67, 23),
    ("v6e-8", (1, 1, 8, 1, 1), 33, 42),
    ("v5e-8", (1, 2, 4, 1, 1), 133, 36),
    ("v5p-8", (1, 4, 1, 1, 1), 158, 22),
    ("v5p-8", (1, 2, 2, 1, 1), 79, 28),
    ("v5p-8", (1, 1, 4, 1, 1), 52, 45),
    ("tpu7x-8", (1, 8, 1, 1, 1), 155, 17),
    ("tpu7x-8", (1, 2, 4, 1, 1), 38, 33),
]
"""Products and other instructions of a layer of 8B, 128 rows: docs/findings/compilers.md, "Sampling on TPUs"."""


WHOLE = [
    ("v5p-8", (1, 4, 1, 1, 1), 299, 17),
    ("v5p-8", (1, 2, 2, 1, 1), 141, 26),
    ("v5p-8", (1, 1, 4, 1, 1), 73, 39),
    ("tpu7x-8", (1, 8, 1, 1, 1), 180, 14),
    ("tpu7x-8", (1, 2, 4, 1, 1), 50, 26),
]
"""The same where matrices are whole, as those of experts and quantised ones are."""


@pytest.mark.parametrize(
    ("accelerator", "shape", "products", "other", "is_cut"),
    [(*one, True) for one in MICROSECONDS] + [(*one, False) for one in WHOLE],
)
def test_a_layers_estimate_is_near_the_compilers(
    accelerator: str, shape: Shape, products: int, other: int, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_cut:
        monkeypatch.setattr(sampling_time, "IN_PARTS_BYTES_PER_S", sampling_time.LOADED_BYTES_PER_S)
    of = shapes_of(job("llama3.1-8b", accelerator))
    pair = shallow(of)
    assert pair is not None
    rows = 128 // sampling_time.row_shards(shape)
    few, more = (DeviceTime(each.structure, shape, of.slice) for each in pair)
    layers = pair[1].config.layers - pair[0].config.layers
    seconds = more.products(rows) + more.passes(rows) - few.products(rows) - few.passes(rows)
    assert 1e6 * seconds / layers == pytest.approx(products + other, rel=0.15)


PREFILL = [
    ("v6e-8", (1, 4, 2, 1, 1), 16, 0.35),
    ("v5p-8", (1, 4, 1, 1, 1), 16, 0.62),
    ("tpu7x-8", (1, 8, 1, 1, 1), 16, 0.47),
    ("v6e-8", (1, 2, 4, 1, 1), 16, 0.42),
    ("v6e-8", (1, 2, 4, 1, 1), 32, 0.65),
    ("v5e-8", (1, 2, 4, 1, 1), 16, 0.86),
    ("v5p-8", (1, 2, 2, 1, 1), 16, 0.86),
    ("v5p-8", (1, 2, 2, 1, 1), 32, 0.88),
    ("v5p-8", (1, 1, 4, 1, 1), 16, 0.86),
    ("tpu7x-8", (1, 2, 4, 1, 1), 16, 0.21),
    ("tpu7x-8", (1, 4, 2, 1, 1), 32, 0.64),
]
"""Its prompts' share of the peak, likewise: from the fourth on, matrices are gathered over `tensor`."""


@pytest.mark.parametrize(("accelerator", "shape", "pool", "share"), PREFILL)
def test_prefills_share_of_the_peak_is_near_the_compilers(
    accelerator: str, shape: Shape, pool: int, share: float
) -> None:
    of = shapes_of(job("llama3.1-8b", accelerator))
    assert of.slice.chip is not None
    prompts = pool // sampling_time.row_shards(shape)
    peak = of.slice.chip.peak_bf16_tflops * 1e12 * of.slice.total_chips
    least = sampling_time.prefill_flops(of.config, pool, 1024) / peak
    seconds = DeviceTime(of.structure, shape, of.slice).prefill(prompts, 1024, pool)
    assert least / seconds == pytest.approx(share, rel=0.22)


def trainers_mesh(monkeypatch: pytest.MonkeyPatch, of: JobShapes, share: Fraction = Fraction(1)) -> tuple[int, ...]:
    """Return the mesh that a trainer of these chips makes, on virtual devices."""
    monkeypatch.setattr(max_rows, "memory", lambda: int(rollout_shapes.tpu_topology.usable_bytes(of.slice)))
    monkeypatch.setattr(sharding, "chip", lambda: ("tpu", "TPU"))
    mesh = sharding.make_mesh(of.shape, jax.devices()[: of.devices])
    context: Any = SimpleNamespace(spec=of.spec, model=Model.from_structure(of.structure), mesh=mesh, share=share)
    return evaluator.sampling_mesh(context).devices.shape


@pytest.mark.parametrize("accelerator", ["v6e-8", "v5p-8", "v5e-8", "tpu7x-8"])
@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen2.5-0.5b", "qwen3-30b-a3b", "qwen2.5-1.5b"])
def test_trainer_and_preflight_choose_the_same_mesh(
    monkeypatch: pytest.MonkeyPatch, model: str, accelerator: str
) -> None:
    of = shapes_of(job(model, accelerator))
    assert trainers_mesh(monkeypatch, of) == rollout_shapes.sampler(of).shape


def test_a_run_that_lost_a_slice_samples_with_the_same_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    both, one = (shapes_of(job("llama3.1-8b", "v6e-4", slices=slices)) for slices in (2, 1))
    whole = rollout_shapes.sampler(both).shape
    assert trainers_mesh(monkeypatch, both) == whole == (2, 1, 4, 1, 1)
    lost = dataclasses.replace(one, spec=both.spec)
    assert trainers_mesh(monkeypatch, lost, Fraction(1, 2)) == (1, *whole[1:])


def test_a_draft_model_keeps_the_mesh_that_memory_needs() -> None:
    draft = {"speculative": {"draft": {"uri": "random://llama3.2-1b"}}}
    of = shapes_of(job("llama3.1-8b", "v6e-8", rollout={"maxNewTokens": 1024, **draft}))
    assert rollout_shapes.sampler(of).shape == by_memory(of)


def test_other_devices_than_the_jobs_keep_the_mesh_that_memory_needs() -> None:
    of = job("llama3.1-8b", "v6e-8")
    assert sampler_shape.chips_of(of, "gpu", 8) is None
    assert sampler_shape.chips_of(of, "tpu", 4) is None
    assert sampler_shape.chips_of(of, "tpu", 8) == shapes_of(of).slice


def test_chips_that_only_sample_hold_a_copy_on_more_of_them_where_that_is_sooner() -> None:
    """A v5p chip holds 8B: four copies on four chips by memory, one of four chips by time; never over two slices."""
    of, one = shapes_of(job("llama3.1-8b", "v5p-8")), job("llama3.1-8b", "v5p-8")
    assert placement.for_decoding(of.structure, of.slice, 1, None) == (4, 1, 1, 1, 1)
    assert placement.separate_sampler(of.structure, one, of.slice, 1) == (1, 1, 4, 1, 1)
    assert placement.separate_sampler(of.structure, one, dataclasses.replace(of.slice, slices=2), 1) == (2, 1, 4, 1, 1)


def test_copies_that_would_cut_a_key_head_take_more_chips_that_do_not() -> None:
    """70B on 48 v5p chips: three hold a copy, and would each hold the keys of all 8 heads."""
    of = shapes_of(job("llama3.1-70b", "v5p-128", batchSize=256))
    some = dataclasses.replace(of.slice, topology="4x4x3", chips=48)
    assert placement.for_decoding(of.structure, some, 1, None) == (16, 1, 3, 1, 1)
    assert placement.separate_sampler(of.structure, of.spec, some, 1) == (6, 1, 8, 1, 1)


def test_heads_that_pages_could_not_hold_are_not_split_further() -> None:
    """Of 48 key heads 24 are read from pages; 12 would be read from a dense cache."""
    of = shapes_of(job("llama3.1-8b", "v6e-8", batchSize=8))
    wide = dataclasses.replace(of.structure, config=dataclasses.replace(of.config, heads=48, kv_heads=48))
    shapes: list[Shape] = [(1, 8, 1, 1, 1), (1, 4, 2, 1, 1), (1, 2, 4, 1, 1)]
    assert fastest(wide, shapes, of.slice, rollout_of(of.spec)) == (1, 4, 2, 1, 1)
