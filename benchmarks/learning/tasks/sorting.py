"""Sorting letters: of the people in the data most only copy the word; GRPO finds out that sorting is what pays.

Supervised learning makes a model that knows both and mostly does what most do. The reward is 1 where the whole answer
is right, else 0.
"""

from __future__ import annotations

import random
from pathlib import Path

from task import Bar, Place, Spec, Task, Trial, write_rows

EXACT = "eval/reward"
LETTERS, ALPHABET = 5, "abcdefghij"
SORTING = 0.4
"""Share of the answers that are sorted."""
ROWS, EVAL_ROWS = 4_000, 128


def write_data(folder: Path, seed: int) -> None:
    """train.jsonl and eval.jsonl; no word is in both."""
    source = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < ROWS + EVAL_ROWS:
        words["".join(source.choices(ALPHABET, k=LETTERS))] = None
    rows = [{"question": f"Sort {word}", "answer": "".join(sorted(word))} for word in words]
    write_rows(folder / "eval.jsonl", rows[:EVAL_ROWS])
    write_rows(folder / "train.jsonl", rows[EVAL_ROWS:])
    shown = [word if source.random() > SORTING else "".join(sorted(word)) for word in words]
    write_rows(
        folder / "sft.jsonl",
        [{**row, "answer": answer} for row, answer in zip(rows[EVAL_ROWS:], shown[EVAL_ROWS:], strict=True)],
    )


def asking(place: Place, rows: str) -> Spec:
    """Data, reward and evaluation."""
    return {
        "data": {"train": {"uri": place.data(rows)}, "eval": {"uri": place.data("eval.jsonl")}},
        "rewards": [{"builtin": "exact"}],
        "rollout": {"maxNewTokens": 8},
        "evaluation": {"batchSize": EVAL_ROWS},
    }


def imitation(place: Place) -> Spec:
    """What people do."""
    return {
        **asking(place, "sft.jsonl"),
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "training": {"steps": 500, "batchSize": 4, "sequenceLength": 128, "optimizer": {"learningRate": 5e-3}},
    }


def reinforcement(place: Place) -> Spec:
    """From there, by reward alone."""
    return {
        **asking(place, "train.jsonl"),
        "model": {"uri": place.export("sorting/sft")},
        "algorithm": {"grpo": {"groupSize": 8}},
        "training": {
            "steps": 30,
            "batchSize": 128,
            "sequenceLength": 32,
            "optimizer": {"learningRate": 3e-4},
            "schedule": {"kind": "constant"},
        },
        "evaluation": {"batchSize": EVAL_ROWS, "everySteps": 6},
    }


TASK = Task(
    name="sorting",
    title="Sorting letters: SFT, then GRPO",
    story=__doc__,
    write_data=write_data,
    trials=(
        Trial("sft", imitation, Bar(EXACT, below=0.5)),
        Trial("grpo", reinforcement, Bar(EXACT, least=0.55, gain=0.3), needs=("sorting/sft",)),
    ),
)
