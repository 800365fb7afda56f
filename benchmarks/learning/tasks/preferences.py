"""DPO on synthetic preferences: of two answers to a word problem, people like the one that adds step by step.

Begins at the arithmetic task's supervised model of the same seed, which answers at once where people are in a hurry. The
worse answer is a number at once, and a wrong one. No answer is judged while it trains; greedy answers to held-out
problems are what counts, which are right only where the model also adds correctly.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from task import Bar, Place, Spec, Task, Trial, write_rows

PAIRS, EVAL_ROWS = 1_000, 128


def write_data(folder: Path, seed: int) -> None:
    """Pairs, of problems of another seed than the supervised model's."""
    words = ["--out", str(folder), "--seed", str(1_000 + seed), "--rows", "3000", "--eval-rows", "400"]
    subprocess.run([sys.executable, "-m", "pttrainer.data.arithmetic", *words], check=True)
    source = random.Random(seed)
    for name, most in (("train.jsonl", PAIRS), ("eval.jsonl", EVAL_ROWS)):
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        worked = [row for row in rows if "\n" in row["answer"]]
        write_rows(folder / name, [_pair(row["question"], row["answer"], source) for row in worked[:most]])


def _pair(question: str, answer: str, source: random.Random) -> dict[str, str]:
    number = answer.rpartition(" ")[2]
    wrong = int(number) + source.choice((-3, -2, -1, 1, 2, 3))
    return {"prompt": question, "chosen": answer, "rejected": f"#### {wrong}", "answer": number}


def preference(place: Place) -> Spec:
    """DPO with its paper's numbers."""
    return {
        "model": {"uri": place.export("arithmetic/sft")},
        "algorithm": {"dpo": {"loss": "sigmoid", "beta": 0.1}},
        "data": {"train": {"uri": place.data("train.jsonl")}, "eval": {"uri": place.data("eval.jsonl")}},
        "rewards": [{"builtin": "gsm8k"}],
        "rollout": {"maxNewTokens": 64},
        "training": {
            "steps": 60,
            "batchSize": 32,
            "sequenceLength": 256,
            "optimizer": {"learningRate": 1e-4},
        },
        "evaluation": {"batchSize": EVAL_ROWS, "everySteps": 15},
    }


TASK = Task(
    name="preferences",
    title="DPO on synthetic preferences",
    story=__doc__,
    write_data=write_data,
    trials=(Trial("dpo", preference, Bar("eval/reward", least=0.75, gain=0.1), needs=("arithmetic/sft",)),),
)
