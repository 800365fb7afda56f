"""GRPO with vLLM as its engine, by real, small runs against stand-ins for its server: the curve is the native one's,
also where a server goes away half-way, beside the job or in a pod of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.servers.otlp import Collector, collector
from tests.builders.trainer import runs
from tests.builders.vllm.fake import Brain, FakeServer, known_seeds

from ptapi import run_directory
from ptapi.failures import ExitCode
from pttrainer.checkpoint import model_export
from pttrainer.checkpoint.model_export import ExportWriter, TokenizerFiles
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, preset
from pttrainer.runtime.io.directory import Directory

STEPS, PROMPTS = 2, 4


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in files, which samplers in pods of their own must have, and rows."""
    directory = tmp_path_factory.mktemp("vllm")
    model = Model(preset("tiny"))
    tokenizer_files, writer = TokenizerFiles(byte_tokenizer(), None), ExportWriter(jax.device_get)
    params = jax.jit(model.init)(jax.random.key(1))
    model_export.export(Directory(directory / "model"), model, params, tokenizer_files, writer)
    runs.write_rows(directory / "train.jsonl", runs.NUMBERS)
    return directory


@pytest.fixture(scope="module")
def native(home: Path) -> list[dict[str, Any]]:
    """The curve of the native engine."""
    runs.run(job(home, "native", {}))
    return runs.lines(home / "runs" / "native")


@pytest.fixture
def fakes() -> Iterator[list[FakeServer]]:
    """Two, which begin with other weights than the job's: the first renewal must reach them."""
    model = Model(preset("tiny"))
    params = jax.jit(model.init)(jax.random.key(9))
    made = [FakeServer(Brain(model, params, known_seeds(0, STEPS, PROMPTS))) for _ in range(2)]
    yield made
    for fake in made:
        fake.close()


def job(home: Path, name: str, rollout: dict[str, Any], steps: int = STEPS, *changes: dict[str, Any]) -> Path:
    return runs.job(
        home,
        name,
        *changes,
        model={"uri": f"file://{home}/model"},
        algorithm={"sft": None, "grpo": {"groupSize": 4}},
        rewards=runs.own_reward(home, runs.SHARE_OF_LETTER_A, 5),
        training={"steps": steps, "batchSize": 16, "sequenceLength": 48, "optimizer": {"learningRate": 1e-2}},
        rollout={"maxNewTokens": 12, **rollout},
        checkpoint={"everySteps": 1},
        export={"format": "none"},
        tensorboard={"enabled": False},
        volumes=[{"name": "shared", "mountPath": str(home), "persistentVolumeClaim": {"claimName": "shared"}}],
    )


def assert_same_curve(through: list[dict[str, Any]], native: list[dict[str, Any]]) -> None:
    assert [line["step"] for line in through] == [1, 2]
    for name in ("loss", "grad_norm", run_directory.REWARD, "completion_length", "entropy"):
        wanted = [line[name] for line in native]
        np.testing.assert_allclose([line[name] for line in through], wanted, rtol=1e-4, atol=1e-6, err_msg=name)
    assert max(line["sampler/difference"] for line in through) < 1e-4


def assert_traced(traces: Collector, lines: list[dict[str, Any]]) -> None:
    """Each step is a trace, with all that takes time in it, in its order."""
    steps = traces.named("step")
    assert [step.attributes["posttrain.metric.loss"] for step in steps] == [line["loss"] for line in lines]
    for step, line in zip(steps, lines, strict=True):
        parts = {span.name: span for span in traces.spans if span.trace == step.trace}
        assert {"rollout", "sync", "generate", "reward", "score", "update", "checkpoint"} <= set(parts)
        order = ["sync", "generate", "reward", "update", "checkpoint"]
        assert [parts[name].name for name in sorted(order, key=lambda name: parts[name].began_ns)] == order
        sampled = parts["generate"].attributes
        assert sampled["gen_ai.provider.name"] == "vllm"
        assert sampled["gen_ai.usage.output_tokens"] == line["completion_length"] * 16


def test_the_curve_through_a_server_is_the_native_one_until_the_server_is_lost(
    home: Path, fakes: list[FakeServer], native: list[dict[str, Any]]
) -> None:
    fake = fakes[0]
    vllm = {"endpoint": fake.url, "weightsDirectory": f"{home}/weights", "retries": 0, "tolerance": 1e-4}
    path = job(home, "vllm", {"engine": "vllm", "vllm": vllm}, STEPS + 1)
    fake.trouble = lambda path, calls: (
        503 if len(fake.bodies("/collective_rpc")) == 3 and "completions" in path else None
    )
    [process] = runs.start(path)
    errors = process.communicate(timeout=900)[1]

    assert process.returncode == ExitCode.SERVICE_LOST, errors
    assert "log-probs match the trainer's within" in errors
    assert "Traceback" not in errors
    ended = runs.termination(home / "runs" / "vllm")
    assert (ended.failure_class, ended.step) == ("ServiceLost", 2)
    through = runs.lines(home / "runs" / "vllm")
    assert_same_curve(through, native)
    assert all(line["seconds/sync"] > 0 for line in through)


def test_the_curve_through_pods_of_its_own_is_the_native_one_though_one_is_lost(
    home: Path, fakes: list[FakeServer], native: list[dict[str, Any]]
) -> None:
    vllm = {"weightsDirectory": f"{home}/weights", "tolerance": 1e-4, "image": "vllm", "concurrency": 1}
    rollout = {"engine": "vllm", "vllm": vllm, "placement": "separate", "separate": {"replicas": 2}}
    lost, kept = fakes
    lost.trouble = lambda path, calls: "drop" if len(lost.bodies("/v1/completions")) >= 3 else None
    addresses = ",".join(fake.url.removeprefix("http://") for fake in fakes)
    env = {"POSTTRAIN_SAMPLERS": addresses, "POSTTRAIN_SAMPLER_TOKEN": "of this test"}
    with collector() as traces:
        path = job(home, "pods", rollout, STEPS, {"tracking": {"openTelemetry": {"endpoint": traces.uri}}})
        code, errors = runs.end(runs.command("run", str(path), env=env))
    assert code == 0, errors
    through = runs.lines(home / "runs" / "pods")
    assert_same_curve(through, native)
    assert sum(line["samplers/drawn_again"] for line in through) == 1
    assert through[-1]["samplers/away"] == 1
    assert all(line["weights/bytes"] > 0 for line in through)
    assert len(kept.brain.loaded) == STEPS
    assert not list((home / "weights" / "posttrain-pods").iterdir()), "no version is left behind"
    assert_traced(traces, through)


def test_two_processes_train_through_pods_as_one_trains_natively_and_the_leader_alone_writes(
    home: Path, fakes: list[FakeServer], native: list[dict[str, Any]]
) -> None:
    vllm = {"weightsDirectory": f"{home}/weights", "tolerance": 1e-4, "image": "vllm"}
    rollout = {"engine": "vllm", "vllm": vllm, "placement": "separate", "separate": {"replicas": 2}}
    split = {"accelerator": {"type": "cpu-1", "slices": 2}}
    addresses = ",".join(fake.url.removeprefix("http://") for fake in fakes)
    env = {"POSTTRAIN_SAMPLERS": addresses, "POSTTRAIN_SAMPLER_TOKEN": "of this test"}
    path = job(home, "pods-together", rollout, STEPS, split, {"training": {"parallelism": {"fsdp": 2}}})
    ends = [runs.end(process) for process in runs.start(path, 2, env)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert_same_curve(runs.lines(home / "runs" / "pods-together"), native)
    for fake in fakes:
        assert len(fake.brain.loaded) == STEPS
    assert fakes[0].brain.loaded == fakes[1].brain.loaded, "each version is written once"
    assert not list((home / "weights" / "posttrain-pods-together").iterdir()), "no version is left behind"
