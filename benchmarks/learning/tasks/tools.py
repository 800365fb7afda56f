"""A task that needs its tool: the answer stands in a table that only `lookup` reads.

The data are those of `pttrainer.data.synthetic.lookup_table`: of the people in them some look the code up and most
guess, so that the supervised model's likeliest answer is a guess, which is right once in a million times.

Reinforcement learning can only choose what supervised learning has taught, so that has to find out, with every seed,
that the answer is what the tool said. The task's first form, keys of two letters and codes of three digits, answered
with the digits alone, did not make sure of it: with seed 1 the model called the tool with the right key and then said
other digits, and GRPO came to 2% (seed 0: 100%). After that was seen, data and supervised learning were changed, the
bars and GRPO not. Keys are digits as codes are, and the tool and every answer, a guess too, say a sentence with both
(`4242 is 536110`): every row shows how digits are copied, and an answer repeats all that the tool said. The rate is
half (1.5e-3), and 600 steps do instead of 1,200.
"""

import subprocess
import sys
from pathlib import Path

from task import Bar, Place, Spec, Task, Trial

EVAL_ROWS = 100


def write_data(folder: Path, seed: int) -> None:
    """sft.jsonl, train.jsonl and eval.jsonl."""
    words = ["--out", str(folder), "--seed", str(seed), "--rows", "4000", "--eval-rows", str(EVAL_ROWS)]
    subprocess.run([sys.executable, "-m", "pttrainer.data.synthetic.lookup_table", *words], check=True)


def asking(place: Place) -> Spec:
    """Tool, reward and evaluation, the same in both trials."""
    return {
        "rewards": [{"builtin": "gsm8k"}],
        "environment": {"tools": [{"builtin": "lookup"}], "maxTurns": 2},
        "rollout": {"maxNewTokens": 80},
        "evaluation": {"batchSize": EVAL_ROWS},
    }


def imitation(place: Place) -> Spec:
    """How a call of the tool looks, and that people guess."""
    return {
        **asking(place),
        "model": {"uri": "random://demo"},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": place.data("sft.jsonl")}, "eval": {"uri": place.data("eval.jsonl")}},
        "training": {"steps": 600, "batchSize": 8, "sequenceLength": 128, "optimizer": {"learningRate": 1.5e-3}},
    }


def reinforcement(place: Place) -> Spec:
    """It finds out that looking up pays."""
    return {
        **asking(place),
        "model": {"uri": place.export("tools/sft")},
        "algorithm": {"grpo": {"groupSize": 8}},
        "data": {"train": {"uri": place.data("train.jsonl")}, "eval": {"uri": place.data("eval.jsonl")}},
        "training": {
            "steps": 20,
            "batchSize": 128,
            "sequenceLength": 128,
            "optimizer": {"learningRate": 2e-4},
            "schedule": {"kind": "constant"},
        },
        "evaluation": {"batchSize": EVAL_ROWS, "everySteps": 5},
    }


TASK = Task(
    name="tools",
    title="A task that needs its tool: SFT, then GRPO",
    story=__doc__,
    write_data=write_data,
    trials=(
        Trial("sft", imitation, Bar("eval/reward", below=0.2)),
        Trial("grpo", reinforcement, Bar("eval/reward", least=0.85, gain=0.5), needs=("tools/sft",)),
    ),
)
