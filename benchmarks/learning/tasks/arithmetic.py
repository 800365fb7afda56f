"""Arithmetic word problems: supervised learning from people of whom many answer in a hurry, then each policy loss.

The data are the demo's (`python -m pttrainer.data.synthetic.arithmetic`): six numbers are added, by some step by step
and by some at once, which is too much for one token. The model learns to do what people do. Then every loss begins at
the same supervised model of its seed, with the same prompts in the same order, the same rate and two updates per batch
of samples, so that its clip takes part; everything else is its paper's (see [what each algorithm
computes](reference/algorithms.md)). CISPO alone has half the rate: its clip never stops a token that is pushed down
(GRPO's stops 0.2 to 1.4% of all tokens here), and at the others' rate it unlearned: 64% to 44% with seed 0, which is
how the half was chosen. The bars are those of the first runs. These had 20 steps, which left GSPO at 77% with seed 0;
since then it is 30.

`in-flight` is grpo whose samples outlive weight updates (`rollout.inFlightUpdates`): 27% of its tokens were of older
weights. Its bar is the others', written before it was run, with one seed."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from task import Bar, Place, Spec, Task, Trial

ACCURACY = "eval/reward"
EVAL_ROWS = 128
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr-grpo": {},
    # What its paper has beside the loss: groups that teach nothing are drawn again, long answers cost.
    "dapo": {"dynamicSampling": {"maxTries": 1}, "overlong": {"bufferTokens": 16}},
    "gspo": {},
    "cispo": {},
    "rloo": {},
}
"""By loss: what is set beside it."""
RATE, RATES = 2e-4, {"cispo": 1e-4}
"""Learning rate, and of losses that have another."""


def write_data(folder: Path, seed: int) -> None:
    """train.jsonl and eval.jsonl."""
    words = ["--out", str(folder), "--seed", str(seed), "--rows", "20000", "--eval-rows", str(EVAL_ROWS)]
    subprocess.run([sys.executable, "-m", "pttrainer.data.synthetic.arithmetic", *words], check=True)


def asking(place: Place) -> Spec:
    """Data, reward and evaluation, the same in all trials."""
    return {
        "data": {"train": {"uri": place.data("train.jsonl")}, "eval": {"uri": place.data("eval.jsonl")}},
        "rewards": [{"builtin": "gsm8k"}],
        "rollout": {"maxNewTokens": 64},
        "evaluation": {"batchSize": EVAL_ROWS},
    }


def imitation(place: Place) -> Spec:
    """Small batches and many steps: per token, a small model learns most from the next update."""
    return {
        **asking(place),
        "model": {"uri": "random://demo"},
        "algorithm": {"sft": {}},
        "training": {"steps": 1100, "batchSize": 4, "sequenceLength": 256, "optimizer": {"learningRate": 3e-3}},
    }


def reinforcement(loss: str, place: Place) -> Spec:
    """One of the policy losses."""
    return {
        **asking(place),
        "model": {"uri": place.export("arithmetic/sft")},
        "algorithm": {"grpo": {"loss": loss, "groupSize": 8, "updatesPerBatch": 2, **VARIANTS[loss]}},
        "training": {
            "steps": 30,
            "batchSize": 144,
            "sequenceLength": 256,
            "optimizer": {"learningRate": RATES.get(loss, RATE)},
            "schedule": {"kind": "constant"},
        },
        "evaluation": {"batchSize": EVAL_ROWS, "everySteps": 5},
    }


def in_flight(place: Place) -> Spec:
    """As grpo, with samples that outlive weight updates."""
    job = reinforcement("grpo", place)
    return {**job, "rollout": {**job["rollout"], "inFlightUpdates": True, "maxStaleness": 8}}


TASK = Task(
    name="arithmetic",
    title="Arithmetic word problems: SFT, then six policy losses",
    story=__doc__,
    write_data=write_data,
    trials=(
        Trial("sft", imitation, Bar(ACCURACY, least=0.3)),
        *(
            Trial(loss, partial(reinforcement, loss), Bar(ACCURACY, least=0.75, gain=0.1), needs=("arithmetic/sft",))
            for loss in VARIANTS
        ),
        Trial("in-flight", in_flight, Bar(ACCURACY, least=0.75, gain=0.1), needs=("arithmetic/sft",)),
    ),
)
