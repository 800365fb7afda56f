"""Arithmetic word problems: supervised learning from people of whom many guess, then each policy loss.

Four numbers are added. Some people add step by step; asked to be quick, most say a result at once, which a model of
this size seldom gets right. It learns to do what people do. Then every loss begins at the same supervised model of its
seed, with the same prompts in the same order, the same rate and two updates per batch of samples, so that its clip
takes part; everything else is its paper's (see [what each algorithm computes](reference/algorithms.md)).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from task import Bar, Place, Spec, Task, Trial, write_rows

ACCURACY = "eval/reward"
ROWS, EVAL_ROWS = 4_000, 128
NUMBERS = 4
NAMES = ("Ada", "Ali", "Amy", "Ana", "Ben", "Eli", "Eva", "Gus", "Ida", "Ivo", "Jan", "Kai", "Lea", "Leo", "Lin", "Mia")
THINGS = (
    "buns",
    "caps",
    "cups",
    "eggs",
    "figs",
    "hats",
    "jars",
    "keys",
    "mugs",
    "nuts",
    "peas",
    "pens",
    "pies",
    "pots",
)
ASKED = (("{name} has {things}. Total?", 0.95), ("Quick, {name} has {things}. Total?", 0.2))
"""Ways to ask, and the share of the answers to each that add step by step."""
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr-grpo": {},
    # What its paper has beside the loss: groups that teach nothing are drawn again, long answers cost.
    "dapo": {"dynamicSampling": {"maxTries": 1}, "overlong": {"bufferTokens": 4}},
    "gspo": {},
    "cispo": {},
    "rloo": {},
}
"""By loss: what is set beside it."""


def problems(seed: int) -> Iterator[dict[str, str]]:
    """Endless rows; no numbers come twice in the same order. `worked` is the answer in steps, however people said it.

    A step has as many characters as a number with its thing, so where a step's number stands is always as far behind
    it, and a small model learns to find it in hundreds of updates instead of thousands.
    """
    source = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    while True:
        text, steps = source.choice(ASKED)
        numbers = tuple(source.randint(1, 9) for _ in range(NUMBERS))
        things, name = (", ".join(f"{number} {source.choice(THINGS)}" for number in numbers)), source.choice(NAMES)
        is_worked = source.random() < steps
        if numbers in seen:
            continue
        seen.add(numbers)
        said = [f"{one:02}+{more}={one + more:02}" for one, more in zip(accumulate(numbers), numbers[1:], strict=False)]
        result = f"#### {sum(numbers):02}"
        worked = "\n".join([*said, result])
        question = text.format(name=name, things=things)
        yield {"question": question, "answer": worked if is_worked else result, "worked": worked}


def write_data(folder: Path, seed: int) -> None:
    """train.jsonl and eval.jsonl; no numbers are in both."""
    source = problems(seed)
    for name, rows in (("eval.jsonl", EVAL_ROWS), ("train.jsonl", ROWS)):
        write_rows(
            folder / name, ({"question": row["question"], "answer": row["answer"]} for row in _take(source, rows))
        )


def _take(source: Iterator[dict[str, str]], rows: int) -> Iterator[dict[str, str]]:
    return (next(source) for _ in range(rows))


def asking(place: Place) -> Spec:
    """Data, reward and evaluation, the same in all trials."""
    return {
        "data": {"train": {"uri": place.data("train.jsonl")}, "eval": {"uri": place.data("eval.jsonl")}},
        "rewards": [{"builtin": "gsm8k"}],
        "rollout": {"maxNewTokens": 40},
        "evaluation": {"batchSize": EVAL_ROWS},
    }


def imitation(place: Place) -> Spec:
    """Small batches and many steps: per token, a small model learns most from the next update."""
    return {
        **asking(place),
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "training": {"steps": 1200, "batchSize": 4, "sequenceLength": 176, "optimizer": {"learningRate": 5e-3}},
    }


def reinforcement(loss: str, place: Place) -> Spec:
    """One of the policy losses."""
    return {
        **asking(place),
        "model": {"uri": place.export("arithmetic/sft")},
        "algorithm": {"grpo": {"loss": loss, "groupSize": 8, "updatesPerBatch": 2, **VARIANTS[loss]}},
        "training": {
            "steps": 20,
            "batchSize": 128,
            "sequenceLength": 96,
            "optimizer": {"learningRate": 3e-4},
            "schedule": {"kind": "constant"},
        },
        "evaluation": {"batchSize": EVAL_ROWS, "everySteps": 5},
    }


TASK = Task(
    name="arithmetic",
    title="Arithmetic word problems: SFT, then six policy losses",
    story=__doc__,
    write_data=write_data,
    trials=(
        Trial("sft", imitation, Bar(ACCURACY, least=0.3)),
        *(
            Trial(loss, partial(reinforcement, loss), Bar(ACCURACY, least=0.75, gain=0.15), needs=("arithmetic/sft",))
            for loss in VARIANTS
        ),
    ),
)
