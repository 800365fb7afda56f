"""Thumbnails of images on terminals."""

import json
import os
import pty
from pathlib import Path

import pytest
import yaml
from PIL import Image
from tests.builders.peers.image_models import write_trainable
from tests.builders.pictures import drawn, encoded

from pttrainer.__main__ import main
from pttrainer.commands import thumbnail


def test_a_character_is_two_pixels_and_the_terminals_own_colour_is_below_the_last_row() -> None:
    picture = Image.new("RGB", (2, 3), (255, 0, 0))
    picture.putpixel((1, 1), (0, 0, 255))
    first, last = thumbnail.lines(picture)
    red = "\x1b[38;2;255;0;0m"
    assert first == f"{red}\x1b[48;2;255;0;0m▀{red}\x1b[48;2;0;0;255m▀\x1b[0m"
    assert last == f"{red}\x1b[49m▀{red}\x1b[49m▀\x1b[0m"


def test_a_large_picture_keeps_its_proportions() -> None:
    wide, tall = thumbnail.lines(drawn(640, 160)), thumbnail.lines(drawn(100, 900))
    assert (len(wide), wide[0].count("▀")) == (4, thumbnail.COLUMNS)
    assert (len(tall), tall[0].count("▀")) == (thumbnail.LINES, 3)


@pytest.mark.parametrize(
    ("environment", "possible"),
    [
        ({"COLORTERM": "truecolor"}, True),
        ({"COLORTERM": "24bit", "TERM": "xterm"}, True),
        ({}, False),
        ({"COLORTERM": "yes"}, False),
        ({"COLORTERM": "truecolor", "NO_COLOR": "1"}, False),
        ({"COLORTERM": "truecolor", "TERM": "dumb"}, False),
    ],
)
def test_only_terminals_with_24_bit_colour_show_pictures(
    environment: dict[str, str], possible: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("COLORTERM", "TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, (tmp_path / "out").open("w") as file:
        assert thumbnail.is_possible(terminal) is possible
        assert not thumbnail.is_possible(file)
    os.close(ours)


@pytest.mark.parametrize(("options", "pictures"), [((), 1), (("--no-images",), 0), (("-o", "json"), 0)])
def test_data_are_shown_with_their_pictures(
    options: tuple[str, ...],
    pictures: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = write_trainable(tmp_path / "model")
    (tmp_path / "a.png").write_bytes(encoded(drawn(8, 4)))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "Which?", "completion": "A cat.", "image": "a.png"}))
    spec = {
        "model": {"uri": f"file://{model}", "images": True}, "algorithm": {"sft": {}},
        "data": {"train": {"uri": f"file://{tmp_path}/rows.jsonl"}},
        "training": {"steps": 1, "batchSize": 1, "sequenceLength": 128}, "accelerator": {"type": "cpu-1"},
        "output": {"uri": f"file://{tmp_path}/runs"},
    }  # fmt: skip
    head = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": "look"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["data", str(tmp_path / "job.yaml"), *options]) == 0
    out = capsys.readouterr().out
    assert "[image 8 x 4: 9 tokens]" in out
    assert out.count("▀") == pictures * 8 * 2
