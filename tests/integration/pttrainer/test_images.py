"""SFT with images by real, small runs: colours are learned from pictures and from nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
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
    return runs.job(home, name, {"model": model, "training": training, "checkpoint": {"everySteps": 10}}, changes)


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
        ({"algorithm": {"sft": None, "dpo": {}}}, "spec.model.images: true: not supported yet; accepted: false"),
        ({"export": {"format": "peft"}, "training": {"lora": {"rank": 4}}}, "safetensors or none, with model.images"),
        ({"model": {"uri": "random://tiny"}}, "random://tiny: takes no images; accepted: a model with a vision tower"),
    ],
)  # fmt: skip
def test_what_images_are_not_for_is_refused(
    home: Path, changes: dict[str, Any], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", str(job(home, "refused", **changes))]) in (ExitCode.CONFIG_ERROR, ExitCode.DATA_ERROR)
    assert answer in capsys.readouterr().err
