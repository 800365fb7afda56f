"""DPO on synthetic preferences: of two answers to a word problem, people like the one that adds step by step.

Begins at the arithmetic task's supervised model of the same seed, which guesses where people guess. The worse answer is
a number at once, and a wrong one. No answer is judged while it trains; greedy answers to held-out problems are what
counts, which are right only where the model also adds correctly.
"""

from __future__ import annotations

import random
from pathlib import Path

from task import Bar, Place, Spec, Task, Trial, write_rows

from tasks import arithmetic

PAIRS, EVAL_ROWS = 1_000, 128


def write_data(folder: Path, seed: int) -> None:
    """Pairs, of problems of another seed than the supervised model's."""
    source, rows = random.Random(seed), arithmetic.problems(1_000 + seed)
    for name, pairs in (("eval.jsonl", EVAL_ROWS), ("train.jsonl", PAIRS)):
        write_rows(folder / name, [_pair(next(rows), source) for _ in range(pairs)])


def _pair(row: dict[str, str], source: random.Random) -> dict[str, str]:
    right = row["worked"].rpartition(" ")[2]
    wrong = int(right) + source.choice((-3, -2, -1, 1, 2, 3))
    return {"prompt": row["question"], "chosen": row["worked"], "rejected": f"#### {wrong:02}", "answer": right}


def preference(place: Place) -> Spec:
    """DPO with its paper's numbers."""
    return {
        "model": {"uri": place.export("arithmetic/sft")},
        "algorithm": {"dpo": {"loss": "sigmoid", "beta": 0.1}},
        "data": {"train": {"uri": place.data("train.jsonl")}, "eval": {"uri": place.data("eval.jsonl")}},
        "rewards": [{"builtin": "gsm8k"}],
        "rollout": {"maxNewTokens": 40},
        "training": {
            "steps": 60,
            "batchSize": 32,
            "sequenceLength": 96,
            "optimizer": {"learningRate": 1e-4},
        },
        "evaluation": {"batchSize": EVAL_ROWS, "everySteps": 15},
    }


TASK = Task(
    name="preferences",
    title="DPO on synthetic preferences",
    story=__doc__,
    write_data=write_data,
    trials=(Trial("dpo", preference, Bar("eval/reward", least=0.75, gain=0.15), needs=("arithmetic/sft",)),),
)
