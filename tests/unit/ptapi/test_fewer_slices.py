"""The same batch on fewer slices: micro-batches, and the numbers of slices that can train."""

from fractions import Fraction
from typing import Any

import pytest

from ptapi.accelerators import fewer_slices
from ptapi.errors import SpecError
from ptapi.load import parse_job
from ptapi.spec import PostTrainJobSpec


def spec(
    slices: int,
    batch: int,
    micro: int | None = None,
    devices: int = 1,
    parts: dict[str, Any] | None = None,
    **parallelism: int,
) -> PostTrainJobSpec:
    training: dict[str, Any] = {"steps": 1, "batchSize": batch, "sequenceLength": 8, "parallelism": parallelism}
    fields = {
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": "file:///data/train.jsonl"}},
        "training": training | ({"microBatchSize": micro} if micro else {}),
        "accelerator": {"type": f"cpu-{devices}", "slices": slices, "minSlices": slices},
        "output": {"uri": "file:///runs"},
        **(parts or {}),
    }
    job = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": "few"}, "spec": fields}
    return parse_job(job).spec


@pytest.mark.parametrize(
    ("slices", "batch", "micro", "rows"),
    [
        (4, 16, None, {1: 4, 2: 8, 3: None, 4: 16}),
        (3, 12, None, {1: 4, 2: 6, 3: 12}),
        (3, 12, 6, {1: 2, 2: 4, 3: 6}),
        (4, 96, 48, {1: 12, 2: 24, 3: 24, 4: 48}),
    ],
)
def test_rows_per_device_never_grow(slices: int, batch: int, micro: int | None, rows: dict[int, int | None]) -> None:
    job = spec(slices, batch, micro)
    assert {count: fewer_slices.micro_batch(job, count) for count in rows} == rows
    assert fewer_slices.usable_counts(job) == tuple(count for count, each in rows.items() if each is not None)
    for count, each in rows.items():
        assert each is None or each / count <= (micro or batch) / slices


def test_what_the_trainer_runs_differs_in_nothing_but_the_mesh_and_what_is_computed_at_once() -> None:
    job = spec(4, 64, devices=4, tensor=2)
    fewer = fewer_slices.on_slices(job, 2)
    assert fewer.accelerator.slices == 2
    assert fewer.training.micro_batch_size == 32
    assert fewer.training.parallelism.model_dump() == {"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1, "expert": 1}
    same = {"training": job.training, "accelerator": job.accelerator, "evaluation": job.evaluation}
    assert fewer.model_copy(update=same) == job
    assert fewer.training.batch_size == 64
    assert fewer.evaluation.batch_size == job.evaluation.batch_size // 2
    assert fewer_slices.on_slices(job, 4) is job


def test_a_model_that_is_split_over_slices_trains_on_all_or_none() -> None:
    job = spec(2, 16, fsdp=2)
    assert fewer_slices.usable_counts(job) == (2,)
    with pytest.raises(ValueError, match="do not divide"):
        fewer_slices.on_slices(job, 1)


@pytest.mark.parametrize("algorithm", ["dpo", "reward"])
def test_pairs_stay_whole(algorithm: str) -> None:
    job = spec(2, 6, parts={"algorithm": {algorithm: {}}})
    assert fewer_slices.micro_batch(job, 1) == 2
    assert fewer_slices.micro_batch(spec(2, 6), 1) == 3


def grpo(slices: int, batch: int, group: int, micro: int | None = None, **rollout: Any) -> PostTrainJobSpec:
    return spec(
        slices,
        batch,
        micro,
        parts={
            "algorithm": {"grpo": {"groupSize": group}},
            "rollout": {"maxNewTokens": 4, **rollout},
            "rewards": [{"builtin": "gsm8k"}, {"name": "judge", "model": {"uri": "hf://org/judge", "batchSize": 9}}],
        },
    )


@pytest.mark.parametrize(
    ("job", "rows"),
    [
        (grpo(4, 32, 4), {1: 8, 2: 16, 3: None, 4: 32}),
        (grpo(2, 24, 4, 24), {1: 12, 2: 24}),
        (grpo(3, 24, 4), {1: 8, 2: 8, 3: 24}),
        (grpo(3, 36, 9), {1: 12, 2: 12, 3: 36}),
    ],
    ids=["all groups whole", "in one micro-batch", "smaller than it could be, to stay whole", "none whole, nor later"],
)
def test_devices_have_whole_groups_on_fewer_slices_as_on_all(job: PostTrainJobSpec, rows: dict[int, int]) -> None:
    """So a batch that a checkpoint holds, whose samples may share their prompts, fits everywhere."""
    assert {count: fewer_slices.micro_batch(job, count) for count in rows} == rows
    group, slices = job.algorithm.samples_per_prompt, job.accelerator.slices
    is_whole = {count: each % (group * count) == 0 for count, each in rows.items() if each is not None}
    assert set(is_whole.values()) == {is_whole[slices]}


def test_sampling_and_scoring_shrink_with_the_slices() -> None:
    job = grpo(4, 32, 4, slots=10)
    fewer = fewer_slices.on_slices(job, 2)
    assert (fewer.rollout.slots, job.rollout.slots) == (5, 10)
    assert [each.model and each.model.batch_size for each in fewer.rewards] == [None, 4]
    assert fewer_slices.on_slices(grpo(4, 32, 4), 2).rollout.slots is None
    assert fewer_slices.share(job, 2) == Fraction(1, 2)


PYTHON = {"environment": {"python": {"uri": "file:///env.py"}}}
MCP = {"environment": {"mcp": [{"name": "m", "url": "http://m"}]}}
SPLIT = {"rollout": {"placement": "disaggregated", "maxNewTokens": 4}}
VLLM = {"rollout": {"engine": "vllm", "vllm": {}, "maxNewTokens": 4}}
IN_FLIGHT = {"rollout": {"inFlightUpdates": True, "maxStaleness": 4, "maxNewTokens": 4}}
CONTAINER = {"runtime": {"container": {"command": ["train"]}}, "image": "r/i:1", "algorithm": {"sft": {}}}
DYNAMIC = {
    "queue": "team",
    "accelerator": {"type": "tpu7x-16", "slices": 2, "minSlices": 2, "dynamicSlicing": True},
    "training": {"steps": 1, "batchSize": 64, "sequenceLength": 8},
}
PATHWAYS = {
    "pathways": {"enabled": True},
    "output": {"uri": "gs://bucket/runs"},
    "accelerator": {"type": "v6e-16", "slices": 1, "minSlices": 1},
    "training": {"steps": 1, "batchSize": 16, "sequenceLength": 8},
}


def elastic(parts: dict[str, Any]) -> PostTrainJobSpec:
    grpo = {"algorithm": {"grpo": {"groupSize": 4}}, "rewards": [{"builtin": "gsm8k"}], "rollout": {"maxNewTokens": 4}}
    of_rewards = {} if "runtime" in parts else grpo
    return spec(1, 16, devices=2, parts=of_rewards | parts)


@pytest.mark.parametrize("parts", [VLLM, SPLIT, IN_FLIGHT, PYTHON, MCP, CONTAINER, DYNAMIC, PATHWAYS])
def test_as_many_slices_as_there_are_asks_for_nothing_where_no_trainer_could_go_on_with_fewer(
    parts: dict[str, Any],
) -> None:
    job = elastic(parts)
    assert job.accelerator.min_slices == job.accelerator.slices
    assert not fewer_slices.can_lose_slices(job)
    assert not fewer_slices.is_supervised(job), "as if unset"
    fewer = {"type": "cpu-1", "slices": 2, **parts.get("accelerator", {}), "minSlices": 1}
    with pytest.raises(SpecError) as error:
        elastic(parts | {"accelerator": fewer | {"slices": 2}})
    assert "spec.accelerator.minSlices" in [finding.field for finding in error.value.findings], "the rules agree"


def test_as_many_slices_as_there_are_restarts_in_place_where_a_trainer_could_go_on_with_fewer() -> None:
    assert fewer_slices.is_supervised(elastic({}))
    assert fewer_slices.is_supervised(spec(2, 16))
    unset = elastic({"accelerator": {"type": "cpu-2"}})
    assert fewer_slices.can_lose_slices(unset)
    assert not fewer_slices.is_supervised(unset)
