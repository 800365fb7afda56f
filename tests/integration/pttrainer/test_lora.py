"""LoRA by real, small runs: killed it ends with the same bits, its exports are one model, GRPO trains adapters too."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.trainer import quick, runs
from tests.builders.trainer.runs import exported, killed_again_and_again, killed_and_resumed, metrics, start

from ptapi import run_directory
from ptapi.failures import ExitCode
from pttrainer.models.weights.safetensors_file import read_header

STEPS = 10
ADAPTERS = "adapter_model.safetensors"


def job(home: Path, name: str, **changes: Any) -> Path:
    training = {"steps": STEPS, "optimizer": {"learningRate": 3e-2}, "lora": {"rank": 4, "alpha": 8}}
    return runs.job(home, name, {"training": training, "export": {"format": "peft"}}, changes)


def grpo(home: Path, name: str, beside: list[dict[str, Any]], **training: Any) -> Path:
    steps = {"batchSize": 16, "sequenceLength": 64, "optimizer": {"learningRate": 1e-1}, **training}
    algorithm = {"sft": None, "grpo": {"groupSize": 4, "beta": 0.05}}
    rewards = [{"builtin": "gsm8k"}, *beside]
    return job(home, name, algorithm=algorithm, rewards=rewards, training=steps, rollout={"maxNewTokens": 12})


def run(*words: str) -> tuple[int, str]:
    return runs.end(runs.command(*words))


def ptctl_export(run_directory: Path, out: Path, *options: str) -> int:
    words = [sys.executable, "-m", "ptctl", "workload", "export", str(run_directory), str(out), *options]
    cache = {"JAX_COMPILATION_CACHE_DIR": runs.compiled(), "XLA_FLAGS": quick.FLAGS}
    return subprocess.run(words, env={**os.environ, **cache}, timeout=300).returncode


@pytest.fixture(scope="module")
def reference(home: Path) -> Path:
    """The run directory of a run that nothing happened to."""
    runs.run(job(home, "reference"))
    return home / "runs" / "reference"


def test_adapters_learn_and_checkpoints_hold_them_alone(reference: Path) -> None:
    losses = [line["loss"] for line in metrics(reference)]
    assert losses[-1] < losses[0] - 0.5
    lineage = runs.lineage(reference)
    held = sum(file.stat().st_size for file in (reference / run_directory.CHECKPOINTS / str(STEPS)).rglob("*"))
    assert 0 < lineage["trainedParameters"] < lineage["parameters"] / 8
    assert lineage["remat"] == "none"  # what `auto` is on a CPU
    assert held < 4 * lineage["parameters"]  # the weights alone would take that


def test_killed_again_and_again_a_run_ends_with_the_same_adapters(home: Path, reference: Path) -> None:
    path = job(home, "killed")
    kills = killed_again_and_again(lambda: start(path)[0], random.Random(0))
    assert kills >= 2
    assert metrics(home / "runs" / "killed") == metrics(reference)
    assert exported(home / "runs" / "killed", ADAPTERS) == exported(reference, ADAPTERS)


def test_a_merged_export_is_what_the_adapters_say(home: Path, reference: Path) -> None:
    runs.run(job(home, "merged", export={"format": "safetensors"}))
    assert ptctl_export(reference, home / "by-hand", "--merged") == 0
    merged = home / "runs" / "merged" / "export"
    assert (home / "by-hand" / "model.safetensors").read_bytes() == exported(home / "runs" / "merged")
    assert ptctl_export(reference, home / "apart", "--step", str(STEPS)) == 0
    assert (home / "apart" / ADAPTERS).read_bytes() == exported(reference, ADAPTERS)

    tiny = {"learningRate": 1e-12, "eps": 1.0, "maxGradNorm": 1e-9}
    still = {"lora": None, "steps": 1, "optimizer": tiny}  # the base, through the same export
    base = job(home, "base", training=still, export={"format": "safetensors"})
    runs.refused(base, ExitCode.CONFIG_ERROR, "no weight changed")
    assert run("export", "--checkpoint", f"file://{home}/runs/base", "--out", str(home / "base"))[0] == 0
    adapters, name = read_header(reference / run_directory.EXPORT / ADAPTERS), "model.layers.1.mlp.down_proj"
    a, b = (adapters[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    before = _whole(home / "base" / "model.safetensors", f"{name}.weight")
    after = _whole(merged / "model.safetensors", f"{name}.weight")
    assert np.abs(after - before).max() > 1e-3
    update = 2.0 * b.rows(0, b.shape[0]) @ a.rows(0, a.shape[0])
    np.testing.assert_allclose(after, before + update, atol=1e-6)


def test_a_run_begins_with_exported_adapters_where_the_other_ended_and_killed_in_dropout_ends_with_the_same_bits(
    home: Path, reference: Path
) -> None:
    held_out = {"data": {"eval": {"uri": f"file://{home}/train.jsonl", "limit": 16}}}
    lora = {"rank": 4, "alpha": 8, "from": f"file://{reference}/export", "dropout": 0.2}
    first = {**held_out, "evaluation": {"atStart": False, "atEnd": True}}
    after = {**held_out, "evaluation": {"atStart": True, "atEnd": False}, "training": {"lora": lora, "steps": 6}}
    runs.run(job(home, "evaluated", **first))
    runs.run(job(home, "continued", **after))
    began, ended = (_evaluated(home / "runs" / name) for name in ("continued", "evaluated"))
    assert began == pytest.approx(ended, rel=1e-6)
    continued = home / "runs" / "continued"
    assert runs.lineage(continued)["adaptersFrom"] == {"uri": lora["from"], "commit": None}
    assert json.loads(exported(continued, "adapter_config.json"))["lora_dropout"] == 0.2

    killed_and_resumed(job(home, "continued-killed", **after), 5)
    assert metrics(home / "runs" / "continued-killed") == metrics(continued)
    assert exported(home / "runs" / "continued-killed", ADAPTERS) == exported(continued, ADAPTERS)

    wrong = {"training": {"lora": {**lora, "rank": 8, "targets": "attention"}}}
    words = "r is 4 there and 8 by spec.training.lora.rank; target_modules are"
    runs.refused(job(home, "other-rank", **wrong), ExitCode.CONFIG_ERROR, words)


def _evaluated(directory: Path) -> float:
    """The loss of the only evaluation."""
    (loss,) = (line[run_directory.EVAL_LOSS] for line in metrics(directory) if run_directory.EVAL_LOSS in line)
    return float(loss)


def test_grpo_trains_adapters_against_the_model_without_them_and_resumes_to_the_bit(home: Path) -> None:
    own = runs.own_reward(home, "def reward(p, completion, row):\n    return completion.count('a') / 12\n", 10)
    training = {"steps": 6, "lora": {"rank": 4, "rsLora": True}}
    runs.run(grpo(home, "grpo", own, **training))
    killed_and_resumed(grpo(home, "grpo-killed", own, **training), 5)
    whole = metrics(home / "runs" / "grpo")
    assert metrics(home / "runs" / "grpo-killed") == whole
    assert whole[0][run_directory.KL] < 1e-6  # the reference is the model that the fresh adapters do not change
    assert whole[-1][run_directory.KL] > 1e-4
    assert all(line["sampler/difference"] < 1e-4 for line in whole)  # the sampler has the adapters


def test_on_quantised_weights_a_killed_run_ends_with_the_same_adapters(home: Path) -> None:
    quantized = {"training": {"quantization": {"weights": "int8"}}}
    assert "frozen weights quantized to int8: relative error down " in runs.run(job(home, "int8", **quantized))
    killed_and_resumed(job(home, "int8-killed", **quantized), 5)
    whole, killed = home / "runs" / "int8", home / "runs" / "int8-killed"
    assert metrics(killed) == metrics(whole)
    assert exported(killed, ADAPTERS) == exported(whole, ADAPTERS)
    losses = [line["loss"] for line in metrics(whole)]
    assert losses[-1] < losses[0] - 0.5
    lineage = runs.lineage(whole)["quantization"]
    assert lineage["weights"] == "int8"
    assert lineage["relativeError"].keys() == {"q", "k", "v", "o", "gate", "up", "down"}

    out = home / "int8-merged"
    code, errors = run("export", "--checkpoint", f"file://{whole}", "--merge-lora", "--out", str(out))
    assert code == 0, errors
    file, name = whole / run_directory.EXPORT / ADAPTERS, "model.layers.1.mlp.down_proj"
    adapters = read_header(file)
    a, b = (_whole(file, f"base_model.model.{name}.lora_{x}.weight") for x in "AB")
    assert len(adapters) == 2 * 2 * 7
    base = _whole(out / "model.safetensors", f"{name}.weight") - 2.0 * b @ a
    # Stored as [out, in]: a column of ours is a row here, and holds whole numbers of its scale.
    steps = base / (np.abs(base).max(axis=1, keepdims=True) / 127)
    np.testing.assert_allclose(steps, np.round(steps), atol=2e-3)


def test_grpo_samples_from_quantised_weights_and_their_adapters(home: Path) -> None:
    path = grpo(home, "grpo-nf4", [], steps=3, quantization={"weights": "nf4"})
    assert "frozen weights quantized to nf4: relative error down " in runs.run(path)
    lines = metrics(home / "runs" / "grpo-nf4")
    assert lines[0][run_directory.KL] < 1e-6  # the reference is the same quantised model
    assert all(line["sampler/difference"] < 1e-4 for line in lines)


def test_targets_that_the_model_does_not_have_are_refused_with_those_it_has(home: Path, tmp_path: Path) -> None:
    config = {
        "model_type": "gpt_oss", "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16, "num_local_experts": 4,
        "num_experts_per_tok": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "sliding_window": 8,
        "rope_theta": 10000.0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    model = {"uri": f"file://{tmp_path}", "tokenizer": "random://bytes"}
    path = job(home, "refused", model=model, training={"lora": {"targets": "mlp"}})
    words = ("spec.training.lora.targets: mlp", "accepted: all-linear, attention")
    runs.refused(path, ExitCode.CONFIG_ERROR, *words)


def _whole(file: Path, name: str) -> np.ndarray:
    tensor = read_header(file)[name]
    return tensor.rows(0, tensor.shape[0])
