"""Models with images: against numbers of transformers (`make references`, `make parity`), and by the verb `logits`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.peers.image_models import (
    BEGIN,
    END,
    EXAMPLES,
    PART,
    PREPROCESSOR,
    RAW,
    TOKENS,
    load_model,
    packed_and_alone,
    write_checkpoint,
)
from tests.builders.pictures import drawn, encoded

from ptapi.failures import ExitCode
from pttrainer.__main__ import main
from pttrainer.models import ModelStructure, from_hf

TOLERANCE = 1e-4
"""Largest difference of a logit, float32; their deviation is above 1. Not to be loosened."""
IMAGE = [BEGIN, *[PART] * TOKENS, END]
RUNS = f"runs of {{}} tokens of id {PART}; accepted: a run of {TOKENS}"


def test_logits_with_images_are_those_of_transformers_alone_and_packed(tmp_path: Path) -> None:
    expected = np.load(Path(__file__).with_name("gemma-3.npz"))
    alone, packed_TV = packed_and_alone(*load_model(write_checkpoint(tmp_path)))
    start = 0
    for (tokens, _), ours_TV, name in zip(EXAMPLES, alone, expected.files, strict=True):
        assert np.abs(ours_TV[::3] - expected[name]).max() <= TOLERANCE
        assert np.abs(packed_TV[start : start + len(tokens)][::3] - expected[name]).max() <= TOLERANCE
        start += len(tokens)


def logits(directory: Path, rows: list[list[int]], files: Any, *more: str) -> int:
    tokens, images = directory.parent / "ids.json", directory.parent / "images.json"
    tokens.write_text(json.dumps(rows))
    images.write_text(json.dumps(files))
    options = ["--tokens", str(tokens), "--images", str(images), *(more or ("--out", f"{directory}.npy"))]
    return main(["generate" if more else "logits", "--model", f"file://{directory}", *options])


def test_the_verb_logits_reads_pictures_as_the_model_does(tmp_path: Path) -> None:
    home = tmp_path / "run #1, 50%"
    home.mkdir()
    directory = write_checkpoint(home / "model")
    (home / "a.png").write_bytes(encoded(drawn(50, 31)))
    (home / "b.png").write_bytes(encoded(drawn(50, 31, 1)))
    row = [5, *IMAGE, 7, 9]
    assert logits(directory, [row, row, [5] * len(row)], [["a.png"], ["b.png"], []]) == ExitCode.OK
    first, second, text = np.load(home / "model.npy")
    np.testing.assert_array_equal(first[0], second[0])
    assert np.abs(first[-1] - second[-1]).max() > 0.1, "other pictures, other logits"
    assert np.isfinite(text).all()


def test_generated_tokens_are_the_likeliest_of_the_full_forward_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts of three lengths with two, one and no images, through windows and the cache."""
    directory, new = write_checkpoint(tmp_path / "model"), 6
    files = [["a.png", "b.png"], ["b.png"], []]
    for seed, name in enumerate(("a.png", "b.png")):
        (tmp_path / name).write_bytes(encoded(drawn(50, 31, seed)))
    rows = [[5, *IMAGE, 7, *IMAGE, 9], [*IMAGE, 8, 8], [4, 6, 9]]
    assert logits(directory, rows, files, "--max-new", str(new)) == ExitCode.OK
    continued = json.loads(capsys.readouterr().out)
    assert continued[0] != continued[1]
    whole = [[*row, *more] for row, more in zip(rows, continued, strict=True)]
    padded = [row + [3] * (max(map(len, whole)) - len(row)) for row in whole]
    assert logits(directory, padded, files) == ExitCode.OK
    for row, more, logits_TV in zip(rows, continued, np.load(tmp_path / "model.npy"), strict=True):
        assert more == logits_TV.argmax(-1)[len(row) - 1 : len(row) - 1 + new].tolist()


@pytest.mark.parametrize(
    ("rows", "files", "answer"),
    [
        ([[5, *IMAGE]], [[]], f"row 0: {RUNS.format(TOKENS)} for each of its 0 images"),
        ([[5, *IMAGE[:-2], END]], [["a.png"]], RUNS.format(TOKENS - 1)),
        ([[5, 6]], [["a.png"]], f"{RUNS.format('no')} for each of its 1 images"),
        ([[5, 6]], [["a.png"], []], "accepted: a list with a list of files for each of the 1 rows, such as"),
        ([[5, *IMAGE]], [["gone.png"]], "row 0, image 0: file://"),
    ],
)  # fmt: skip
def test_images_that_do_not_fit_their_tokens_are_refused(
    tmp_path: Path, rows: Any, files: Any, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_checkpoint(tmp_path / "model")
    (tmp_path / "a.png").write_bytes(encoded(drawn(5, 3)))
    assert logits(directory, rows, files) == ExitCode.DATA_ERROR
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"do_pan_and_scan": True}, "preprocessor_config.json do_pan_and_scan: True: not supported; accepted: False"),
        ({"resample": 6}, "preprocessor_config.json resample: 6: not supported; accepted: 0, 1, 2, 3, 4, 5"),
        ({"size": {"height": 42, "width": 43}}, "preprocessor_config.json size width: 43: not supported; accepted: 42"),
        ({"crop": 3}, "preprocessor_config.json crop: 3: not supported; accepted: unset"),
    ],
)
def test_preprocessing_that_is_not_computed_is_refused(
    tmp_path: Path, change: dict[str, Any], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_checkpoint(tmp_path / "model")
    (directory / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR | change))
    assert logits(directory, [[5, 6]], [[]]) == ExitCode.CONFIG_ERROR
    assert answer in capsys.readouterr().err


def test_images_of_a_model_that_takes_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_checkpoint(tmp_path / "model")
    (directory / "config.json").write_text(json.dumps(RAW["text_config"]))
    assert logits(directory, [[5, 6]], [[]]) == ExitCode.CONFIG_ERROR
    assert (
        "'gemma3_text': has no vision tower that is supported; accepted with images: gemma3" in capsys.readouterr().err
    )


def test_gemma_3_4b_has_as_many_weights_as_its_released_files() -> None:
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    }  # fmt: skip
    tower = {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
        "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
    }  # fmt: skip
    config = from_hf({"model_type": "gemma3", "text_config": text, "vision_config": tower}, images=True)
    assert sum(spec.size for spec in ModelStructure(config).weights.values()) == 4_300_079_472
    assert config.vision is not None
    assert (config.vision.tokens, config.vision.begin_id, config.image_token_id) == (256, 255_999, 262_144)
