"""A small vision model learns to name what a drawn picture shows: `2 red squares`, one of 36 such labels.

The model is Gemma 3's, random at first (0.4 M weights; see `benchmarks/learning/vision_model.py`), and trained whole,
with `training.vision: all`. Pictures have 48 x 48 pixels and 9 tokens. Held-out pictures show every label equally
often, so a guess is right once in 36 times. The value is the lower one of accuracy and macro F1. The control sees the
same rows with blank pictures, in training and in evaluation, and must stay at chance; as there is nothing to learn, it
has 200 steps instead of 900.

The bars are those of before the first run, which missed them: 86% with seed 0, 600 steps and a random tower that
stayed frozen (another one of twice the width, 800 steps: 86%). With the tower trained at the same rate (3e-3) 500
steps came to 65%, and the loss showed why: it fell only as the rate did. The rate is half since; 700 steps then came
to 96, 90 (one picture short) and 99%, so they are 900.
"""

import random
from pathlib import Path

import drawings
import vision_model
from task import Bar, Place, Spec, Task, Trial, write_rows

ROWS, EVAL_ROWS = 3600, 144


def write_data(folder: Path, seed: int) -> None:
    """The model, pictures, and rows that name them: train.jsonl, eval.jsonl, and the same with blank pictures."""
    vision_model.write(folder / "model", seed)
    source = random.Random(seed)
    for name, rows, first in (("train", ROWS, 0), ("eval", EVAL_ROWS, ROWS)):
        labels = drawings.LABELS * (rows // len(drawings.LABELS))
        source.shuffle(labels)
        pictures = drawings.write(folder / "pictures", labels, source, first)
        named = [
            {"prompt": "?", "completion": label, "image": picture}
            for label, picture in zip(labels, pictures, strict=True)
        ]
        write_rows(folder / f"{name}.jsonl", named)
        write_rows(folder / f"{name}-blank.jsonl", [{**row, "image": f"pictures/{drawings.BLANK}"} for row in named])


def imitation(place: Place, rows: str = "") -> Spec:
    """Rows are pictures with their labels. rows: ending of the files' names."""
    return {
        "model": {"uri": place.data("model"), "images": True},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": place.data(f"train{rows}.jsonl")}, "eval": {"uri": place.data(f"eval{rows}.jsonl")}},
        "training": {
            "steps": 900,
            "batchSize": 16,
            "sequenceLength": 48,
            "optimizer": {"learningRate": 1.5e-3},
            "vision": "all",
        },
        "evaluation": {
            "batchSize": EVAL_ROWS,
            "everySteps": 100,
            "answers": ["accuracy", "macroF1"],
            "maxNewTokens": 6,
        },
    }


def blank(place: Place) -> Spec:
    """The same without anything to see."""
    spec = imitation(place, "-blank")
    return {**spec, "training": {**spec["training"], "steps": 200}}


ACCURACY, F1 = "eval/accuracy", "eval/macro_f1"

TASK = Task(
    name="pictures",
    title="What a picture shows: SFT of a vision model",
    story=__doc__,
    write_data=write_data,
    trials=(
        Trial("sft", imitation, Bar(ACCURACY, least=0.9, and_also=F1)),
        Trial("blank", blank, Bar(ACCURACY, below=0.1)),
    ),
)
