"""Runs that are evaluated by what the model answers, and a model in files that several processes read."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file
from tests.builders.peers.models import CASES, tensors
from tests.builders.trainer import runs
from tests.builders.trainer.runs import losses, metrics, run

from ptapi import run_directory

LABELS = {"fruit": "apple pear plum fig", "animal": "dog cat cow hen", "metal": "iron tin zinc gold"}
STEPS = 60


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("answers")
    rows = [{"prompt": word, "completion": label} for label, words in LABELS.items() for word in words.split()]
    for file, some in {"train": rows * 4, "eval": rows}.items():
        runs.write_rows(directory / f"{file}.jsonl", some)
    raw = {**CASES["llama-3.0"], "vocab_size": 264, "bos_token_id": 256, "eos_token_id": 257}
    (directory / "model").mkdir()
    (directory / "model" / "config.json").write_text(json.dumps(raw))
    weights = {name: 0.3 * x if x.ndim == 2 else x for name, x in tensors(raw).items()}
    save_file(weights, directory / "model" / "model.safetensors", {"format": "pt"})
    return directory


def job(home: Path, name: str, devices: int = 1, slices: int = 1, **parts: Any) -> Path:
    common = {
        "model": {"uri": f"file://{home}/model", "tokenizer": "random://bytes"},
        "algorithm": {"sft": {"packing": False}},
        "data": {"eval": {"uri": f"file://{home}/eval.jsonl"}},
        "training": {"steps": 4, "sequenceLength": 32},
        "evaluation": {"answers": ["exactMatch", "accuracy", "macroF1"], "maxNewTokens": 12},
        "tensorboard": {"enabled": False},
        "accelerator": {"type": f"cpu-{devices}", "slices": slices},
    }
    return runs.job(home, name, common, parts)


def test_a_model_learns_labels_and_the_best_checkpoint_is_that_of_its_answers(home: Path) -> None:
    path = job(
        home,
        "labels",
        model={"uri": "random://tiny", "tokenizer": None},
        training={"steps": STEPS},
        evaluation={"everySteps": 20},
        checkpoint={"everySteps": 1000, "best": {"metric": "eval/macro_f1", "mode": "max"}},
    )
    run(path)
    evaluations = {line["step"]: line for line in metrics(home / "runs" / "labels") if "eval/macro_f1" in line}
    assert sorted(evaluations) == [0, 20, 40, STEPS]
    assert evaluations[0]["eval/macro_f1"] < 0.2
    assert evaluations[STEPS]["eval/macro_f1"] > 0.8
    assert evaluations[STEPS]["eval/exact_match"] <= evaluations[STEPS]["eval/accuracy"]
    assert "eval/reward" not in evaluations[STEPS]
    best = run_directory.Best.model_validate_json(
        (home / "runs" / "labels" / run_directory.BEST).read_text()
    ).checkpoints[0]
    assert best.value == max(line["eval/macro_f1"] for step, line in evaluations.items() if step)
    trained, fresh = evaluated(home, str(home / "runs" / "labels"), "random://tiny")
    for name in ("exact_match", "accuracy", "macro_f1", "completion_length"):
        assert trained[name] == pytest.approx(evaluations[best.step][f"eval/{name}"]), name
    assert fresh["macro_f1"] < 0.2


def evaluated(home: Path, *models: str) -> list[dict[str, float]]:
    """The metrics of `python -m pttrainer eval`, model by model."""
    limits = ("--max-length", "32", "--max-tokens", "12")
    done = runs.command("eval", *models, "--data", str(home / "eval.jsonl"), *limits, "-o", "json")
    out, errors = done.communicate(timeout=300)
    assert done.returncode == 0, errors
    document = json.loads(out)["models"]
    assert [each["model"] for each in document] == list(models)
    return [each["metrics"] for each in document]


@pytest.mark.parametrize("training", [{}, {"lora": {}, "quantization": {"weights": "nf4"}}], ids=["full", "qlora"])
def test_a_model_in_files_is_read_by_two_processes_as_by_one(home: Path, training: dict[str, Any]) -> None:
    kind = "full" if not training else "qlora"
    run(job(home, f"{kind}-one", training=training))
    layout = {**training, "parallelism": {"fsdp": 4}}
    run(job(home, f"{kind}-two", devices=2, slices=2, training=layout), processes=2)
    single, double = (home / "runs" / f"{kind}-{name}" for name in ("one", "two"))
    assert losses(double) == pytest.approx(losses(single), rel=1e-5)
    one, two = metrics(single)[-1], metrics(double)[-1]
    for name in ("eval/exact_match", "eval/accuracy", "eval/macro_f1"):
        assert one[name] == two[name]
