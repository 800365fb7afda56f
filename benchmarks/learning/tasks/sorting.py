"""Sorting letters: supervised learning that stops early, then GRPO on whether the whole answer is right."""

from __future__ import annotations

import random
from pathlib import Path

from task import Bar, Place, Spec, Task, Trial, write_rows

EXACT = "eval/reward"
LETTERS, ALPHABET = 6, "abcdefghijklmnopqrstuvwxyz"
ROWS, EVAL_ROWS = 8_000, 128


def write_data(folder: Path, seed: int) -> None:
    """train.jsonl and eval.jsonl; no word is in both."""
    source = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < ROWS + EVAL_ROWS:
        words["".join(source.choices(ALPHABET, k=LETTERS))] = None
    rows = [{"question": f"Sort {word}", "answer": "".join(sorted(word))} for word in words]
    write_rows(folder / "eval.jsonl", rows[:EVAL_ROWS])
    write_rows(folder / "train.jsonl", rows[EVAL_ROWS:])


def asking(place: Place) -> Spec:
    """Data, reward and evaluation, the same in both trials."""
    return {
        "data": {"train": {"uri": place.data("train.jsonl")}, "eval": {"uri": place.data("eval.jsonl")}},
        "rewards": [{"builtin": "exact"}],
        "rollout": {"maxNewTokens": 8},
        "evaluation": {"batchSize": EVAL_ROWS},
    }


def imitation(place: Place) -> Spec:
    """Too few steps to sort everything."""
    return {
        **asking(place),
        "model": {"uri": "random://demo"},
        "algorithm": {"sft": {}},
        "training": {"steps": 400, "batchSize": 4, "sequenceLength": 128, "optimizer": {"learningRate": 3e-3}},
    }


def reinforcement(place: Place) -> Spec:
    """From there, by reward alone."""
    return {
        **asking(place),
        "model": {"uri": place.export("sorting/sft")},
        "algorithm": {"grpo": {"groupSize": 8}},
        "training": {
            "steps": 40,
            "batchSize": 256,
            "sequenceLength": 32,
            "optimizer": {"learningRate": 3e-4},
            "schedule": {"kind": "constant"},
        },
        "evaluation": {"batchSize": EVAL_ROWS, "everySteps": 10},
    }


TASK = Task(
    name="sorting",
    title="Sorting letters: SFT, then GRPO",
    story=__doc__,
    write_data=write_data,
    trials=(
        Trial("sft", imitation, Bar(EXACT, least=0.1)),
        Trial("grpo", reinforcement, Bar(EXACT, least=0.8, gain=0.2), needs=("sorting/sft",)),
    ),
)
