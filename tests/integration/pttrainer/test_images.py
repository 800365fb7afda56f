"""Training with images by real, small runs: colours are learned from pictures and from nothing else."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.builders.peers import llama4_images, qwen_images
from tests.builders.peers.image_models import write_trainable
from tests.builders.trainer import runs

from ptapi import run_directory
from ptapi.failures import ExitCode
from pttrainer.__main__ import main
from pttrainer.models.weights.safetensors_file import read_header

COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220)}
CHANCE = np.log(2) / 2
"""Loss of a guess: of the two learned tokens of an answer, its letter and its end, one is unknown."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of two colours with noise, rows that ask for them, and the same rows about grey pictures."""
    directory = tmp_path_factory.mktemp("home")
    write_trainable(directory / "model")
    rng = np.random.default_rng(0)
    grey = np.full((20, 30, 3), 128, np.uint8)
    rows: list[dict[str, Any]] = []
    for number in range(24):
        name = ("red", "blue")[number % 2]
        picture = np.clip(np.array(COLOURS[name]) + rng.normal(0, 20, (20, 30, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(picture).save(directory / f"{number}.png")
        Image.fromarray(grey).save(directory / f"grey-{number}.png")
        rows.append({"prompt": "?", "completion": name[0], "image": f"{number}.png"})
    runs.write_rows(directory / "train.jsonl", rows)
    runs.write_rows(directory / "eval.jsonl", rows[:5])
    runs.write_rows(directory / "grey.jsonl", [{**row, "image": f"grey-{row['image']}"} for row in rows])
    return directory


def job(home: Path, name: str, **changes: Any) -> Path:
    training = {"steps": 30, "batchSize": 4, "sequenceLength": 128, "optimizer": {"learningRate": 1e-2}}
    model = {"uri": f"file://{home}/model", "images": True}
    return runs.job(home, name, {"model": model, "training": training, "checkpoint": {"everySteps": 5}}, changes)


def write_resized(home: Path, name: str, sizes: Sequence[tuple[int, int]]) -> None:
    """Rows `name`.jsonl of the home's pictures, which take turns to have these sizes."""
    for number in range(24):
        with Image.open(home / f"{number}.png") as picture:
            picture.resize(sizes[number // 2 % len(sizes)]).save(home / f"{name}-{number}.png")
    rows = [{"prompt": "?", "completion": "rb"[n % 2], "image": f"{name}-{n}.png"} for n in range(24)]
    runs.write_rows(home / f"{name}.jsonl", rows)


def tensors(directory: Path) -> dict[str, np.ndarray]:
    header = read_header(directory / "model.safetensors")
    return {name: tensor.rows(0, tensor.shape[0]) for name, tensor in header.items()}


def test_colours_are_learned_and_the_whole_model_is_exported_with_its_tower_unchanged(home: Path) -> None:
    data = {"eval": {"uri": f"file://{home}/eval.jsonl"}}
    evaluation = {"answers": ["accuracy"], "maxNewTokens": 3}
    log = runs.killed_and_resumed(job(home, "colours", data=data, evaluation=evaluation), 12)
    assert "at most 3 images each" in log
    run = home / "runs" / "colours"
    assert np.mean(runs.losses(run)[-3:]) < CHANCE / 10
    before, after = tensors(home / "model"), tensors(run / run_directory.EXPORT)
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {name for name in before if name.startswith("language_model.")}
    files = {file.name for file in (run / run_directory.EXPORT).iterdir()}
    assert {"preprocessor_config.json", "tokenizer.json", "config.json"} <= files
    assert json.loads((run / run_directory.EXPORT / "config.json").read_text())["model_type"] == "gemma3"
    first, *_, last = [line for line in runs.lines(run) if "eval/loss" in line]
    assert last["eval/loss"] < CHANCE / 10
    assert (first["eval/accuracy"], last["eval/accuracy"]) == (0.0, 1.0), "answers sampled from pictures"
    # Other pictures under the same names are other data: the run does not go on with them.
    picture = home / "0.png"
    before = picture.read_bytes()
    picture.write_bytes((home / "1.png").read_bytes())
    longer = job(home, "colours", data=data, evaluation=evaluation, training={"steps": 31})
    runs.refused(longer, ExitCode.CONFIG_ERROR, "spec.data.train: the images of its rows are not those that the run in")
    picture.write_bytes(before)


def test_without_pictures_nothing_is_learned_and_adapters_leave_the_tower_alone(home: Path) -> None:
    data = {"train": {"uri": f"file://{home}/grey.jsonl"}}
    runs.run(job(home, "grey", data=data, training={"lora": {"rank": 4, "alpha": 8}}))
    run = home / "runs" / "grey"
    assert np.mean(runs.losses(run)[-3:]) > CHANCE * 0.9
    before, after = tensors(home / "model"), tensors(run / run_directory.EXPORT)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before if not name.startswith("language_model."))


def test_adapters_of_the_tower_are_trained_resumed_exported_and_sampled_with(home: Path) -> None:
    plain: dict[str, Any] = {"tensorboard": {"enabled": False}, "checkpoint": {"everySteps": 4}}
    training = {"steps": 16, "vision": "lora", "lora": {"rank": 8, "alpha": 32}, "optimizer": {"learningRate": 2e-2}}
    runs.killed_and_resumed(job(home, "eyes", training=training, export={"format": "peft"}, **plain), 12)
    run = home / "runs" / "eyes"
    assert np.mean(runs.losses(run)[-3:]) < CHANCE / 2
    header = read_header(run / run_directory.EXPORT / "adapter_model.safetensors")
    trained = {name: tensor.rows(0, tensor.shape[0]) for name, tensor in header.items() if "language_model" not in name}
    assert {name.split(".")[3] for name in trained} == {"vision_tower", "multi_modal_projector"}
    assert all(np.abs(numbers).max() > 0 for numbers in trained.values()), "the second matrix began at zero"
    # The next run begins with these adapters: its samples name the colours, which the model without them cannot.
    adapted = {"rank": 8, "alpha": 32, "from": f"file://{run}/{run_directory.EXPORT}"}
    training = {"steps": 2, "batchSize": 16, "microBatchSize": 8, "vision": "lora", "lora": adapted}
    runs.run(letters_of_colours(home, "eyes-grpo", training={**training, "optimizer": {"learningRate": 1e-4}}))
    rewards = [line["reward"] for line in runs.metrics(home / "runs" / "eyes-grpo")]
    assert np.mean(rewards) > 0.75, "half is a guess"


def test_data_check_shows_sizes_and_tokens_of_images(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", str(job(home, "look")), "--examples", "1"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "images   24, 9 tokens each; 30 x 20 to 30 x 20 pixels" in out
    assert "user\n    \n    \n    <start_of_image>[image 30 x 20: 9 tokens]<end_of_image>" in out
    assert "<start_of_turn>model\n    [[r<end_of_turn>]]" in out


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"model": {"images": False}}, "line 1: has images, and the model takes none; accepted: rows of text"),
        ({"algorithm": {"sft": None, "distill": {"teacher": {"uri": "random://tiny"}}}},
         "spec.model.images: true: not supported yet; accepted: false, or true with algorithm sft, dpo,"),
        ({"model": {"uri": "random://tiny"}}, "random://tiny: takes no images; accepted: a model with a vision tower"),
    ],
)  # fmt: skip
def test_what_images_are_not_for_is_refused(
    home: Path, changes: dict[str, Any], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", str(job(home, "refused", **changes))]) in (ExitCode.CONFIG_ERROR, ExitCode.DATA_ERROR)
    assert answer in capsys.readouterr().err


def test_pictures_of_any_size_are_learned_and_the_whole_model_is_exported(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Qwen3-VL: wide and tall pictures of 1 to 10 tokens, in packed rows; answers are sampled from them."""
    qwen_images.write_trainable(home / "qwen")
    write_resized(home, "sized", [(23, 9), (12, 31), (6, 6), (70, 13)])
    data = {part: {"uri": f"file://{home}/sized.jsonl"} for part in ("train", "eval")}
    changes: dict[str, Any] = {
        "data": data, "model": {"uri": f"file://{home}/qwen"},
        "training": {"steps": 24, "optimizer": {"learningRate": 5e-3}},
        "evaluation": {"answers": ["accuracy"], "maxNewTokens": 3},
    }  # fmt: skip
    file = job(home, "sized", **changes)
    assert main(["data", str(file), "--examples", "1"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "images   24, 1 to 10 tokens each; 6 x 6 to 70 x 13 pixels" in out
    assert "user\n    <|vision_start|>[image 23 x 9: 8 tokens]<|vision_end|>" in out
    runs.run(file)
    run = home / "runs" / "sized"
    assert [line for line in runs.lines(run) if "eval/loss" in line][-1]["eval/accuracy"] == 1.0
    before, after = tensors(home / "qwen"), tensors(run / run_directory.EXPORT)
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {name for name in before if not name.startswith("model.visual.")}
    exported = json.loads((run / run_directory.EXPORT / "config.json").read_text())
    assert exported["architectures"] == ["Qwen3VLForConditionalGeneration"]


def test_pictures_cut_into_tiles_are_learned_with_the_tower_unchanged(home: Path) -> None:
    """Llama 4: pictures of one to five tiles, in packed rows."""
    llama4_images.write_trainable(home / "llama4")
    write_resized(home, "tiled", [(23, 9), (12, 31), (6, 6), (30, 29)])
    changes: dict[str, Any] = {
        "data": {"train": {"uri": f"file://{home}/tiled.jsonl"}}, "model": {"uri": f"file://{home}/llama4"},
        "training": {"steps": 20, "optimizer": {"learningRate": 5e-3}}, "checkpoint": {"everySteps": 20},
    }  # fmt: skip
    log = runs.run(job(home, "tiled", **changes))
    run = home / "runs" / "tiled"
    assert np.mean(runs.losses(run)[-3:]) < CHANCE / 2, log
    before, after = tensors(home / "llama4"), tensors(run / run_directory.EXPORT)
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {name for name in before if name.startswith("language_model.")}
    exported = json.loads((run / run_directory.EXPORT / "config.json").read_text())
    assert exported["architectures"] == ["Llama4ForConditionalGeneration"]


def letters_of_colours(home: Path, name: str, **changes: Any) -> Path:
    """GRPO for the letter of the colour that a picture shows."""
    reward = "def reward(prompt, completion, row):\n    return float(completion[:1] == row['completion'])\n"
    spec = {
        "algorithm": {"sft": None, "grpo": {"groupSize": 8, "updatesPerBatch": 2}},
        "rewards": runs.own_reward(home, reward),
        "rollout": {"maxNewTokens": 2},
        "export": {"format": "none"},
        "tensorboard": {"enabled": False},
    }
    return job(home, name, **(spec | changes))


def test_pictures_of_gemma_4_are_learned_and_then_reinforced_from_the_export(home: Path) -> None:
    """A random model without files learns with its tower; what it learned is in the samples of the run after it."""
    changes: dict[str, Any] = {
        "model": {"uri": "random://tiny-gemma4"}, "tensorboard": {"enabled": False},
        "training": {"steps": 16, "sequenceLength": 96, "vision": "all"},
        "checkpoint": {"everySteps": 1000},
    }  # fmt: skip
    runs.run(job(home, "gemma4", **changes))
    run = home / "runs" / "gemma4"
    assert np.mean(runs.losses(run)[-3:]) < CHANCE / 2
    exported = json.loads((run / run_directory.EXPORT / "config.json").read_text())
    assert exported["architectures"] == ["Gemma4ForConditionalGeneration"]
    training = {"steps": 2, "batchSize": 8, "sequenceLength": 96}
    model = {"uri": f"file://{run}/{run_directory.EXPORT}"}
    once: dict[str, Any] = {"sft": None, "grpo": {"groupSize": 8}}  # an update for a batch: nothing is scored again
    runs.run(letters_of_colours(home, "gemma4-grpo", model=model, training=training, algorithm=once))
    rewards = [line["reward"] for line in runs.metrics(home / "runs" / "gemma4-grpo")]
    assert np.mean(rewards) > 0.8, "half of them is a guess between two colours"


def test_reinforcement_with_pictures_resumes_to_the_bit_and_only_with_the_same_pictures(home: Path) -> None:
    training = {"steps": 4, "batchSize": 16, "microBatchSize": 8}
    data = {"eval": {"uri": f"file://{home}/eval.jsonl"}}
    whole, killed = (
        letters_of_colours(home, name, training=training, data=data, checkpoint={"everySteps": 1})
        for name in ("whole", "killed")
    )
    runs.run(whole)
    runs.killed_and_resumed(killed, 3)
    assert runs.metrics(home / "runs" / "killed") == runs.metrics(home / "runs" / "whole")
    picture = home / "1.png"
    before = picture.read_bytes()
    picture.write_bytes((home / "0.png").read_bytes())
    longer = letters_of_colours(home, "killed", training={**training, "steps": 5}, data=data)
    runs.refused(longer, ExitCode.CONFIG_ERROR, "spec.data.train: the images of its rows are not those that the run in")
    picture.write_bytes(before)


def test_preferences_about_pictures_are_learned_and_resumed(home: Path) -> None:
    rows = [
        {"prompt": "?", "chosen": ("r", "b")[n % 2], "rejected": ("b", "r")[n % 2], "image": f"{n}.png"}
        for n in range(24)
    ]
    runs.write_rows(home / "pairs.jsonl", rows)
    changes: dict[str, Any] = {
        "algorithm": {"sft": None, "dpo": {"beta": 1.0}},
        "data": {"train": {"uri": f"file://{home}/pairs.jsonl"}},
        "training": {"steps": 24, "microBatchSize": 2},
        "checkpoint": {"everySteps": 4},
        "export": {"format": "none"},
    }
    runs.killed_and_resumed(job(home, "pairs", **changes), 12)
    last = runs.metrics(home / "runs" / "pairs")[-4:]
    assert np.mean([line["rewards/accuracies"] for line in last]) == 1.0, "half of them is chance"
