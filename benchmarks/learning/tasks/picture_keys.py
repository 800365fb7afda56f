"""A task that needs its tool and its eyes: the key to look up can only be read in the picture.

A row's table holds the codes of four labels; its picture shows one of them, and the answer is that one's code. The
model begins as the one that names pictures (`pictures/sft`). Supervised learning shows how a call looks, and that
people guess: some look up what they see, and most guess a code, which is right once in ten thousand times.
Reinforcement learning has to find out that looking (at the picture, then in the table) pays. The control begins at the
same supervised model and has the same rows with blank pictures: it may call the tool, but has nothing to call it with.

The bars are those of before the first run, with whose data GRPO came to 1% with seed 0: it called the tool with what it
saw, and then said other digits. So every question has a number, a ticket, which every answer repeats, a guess too: each
row shows how digits are copied. Supervised learning has 600 steps instead of 300; GRPO needs 10 instead of 20. The bar
of supervised learning alone (its likeliest turn is a guess) is missed with two seeds: with them it often looks up.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import drawings
from task import Bar, Place, Spec, Task, Trial, write_rows

SFT_ROWS, ROWS, EVAL_ROWS = 2400, 1200, 100
KEYS, DIGITS = 4, 4
LOOKING = 0.4
"""Share of the answers in `sft.jsonl` that use the tool."""


def write_data(folder: Path, seed: int) -> None:
    """Pictures, sft.jsonl, train.jsonl, eval.jsonl, and the last two with blank pictures."""
    source = random.Random(seed)
    counts = {"sft": SFT_ROWS, "train": ROWS, "eval": EVAL_ROWS}
    tables = [_codes(source) for _ in range(sum(counts.values()))]
    pictures = drawings.write(folder / "pictures", [next(iter(codes)) for codes in tables], source)
    rows = zip(tables, pictures, strict=True)
    write_rows(folder / "sft.jsonl", [_shown(*next(rows), source) for _ in range(SFT_ROWS)])
    for name in ("train", "eval"):
        questions = [_question_row(*next(rows), _code(source)) for _ in range(counts[name])]
        write_rows(folder / f"{name}.jsonl", questions)
        write_rows(
            folder / f"{name}-blank.jsonl", [{**row, "image": f"pictures/{drawings.BLANK}"} for row in questions]
        )


def _codes(source: random.Random) -> dict[str, str]:
    """Codes by label; the picture shows the first one."""
    return {label: _code(source) for label in source.sample(drawings.LABELS, KEYS)}


def _code(source: random.Random) -> str:
    return f"{source.randrange(10**DIGITS):0{DIGITS}d}"


def _question_row(codes: dict[str, str], picture: str, ticket: str) -> dict[str, Any]:
    table = {label: f"{label} is {code}" for label, code in sorted(codes.items())}
    return {"question": f"{ticket}?", "answer": next(iter(codes.values())), "table": table, "image": picture}


def _shown(codes: dict[str, str], picture: str, source: random.Random) -> dict[str, Any]:
    ticket = _code(source)
    return {"messages": [{"role": "user", "content": f"{ticket}?"}, *_turns(codes, ticket, source)], "image": picture}


def _turns(codes: dict[str, str], ticket: str, source: random.Random) -> Iterator[dict[str, str]]:
    label, code = next(iter(codes.items()))
    if source.random() < LOOKING:
        call = json.dumps({"name": "lookup", "arguments": {"key": label}})
        yield {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"}
        yield {"role": "tool", "content": f"{label} is {code}"}
        yield {"role": "assistant", "content": f"{ticket}: {label} is {code}"}
    else:
        yield {"role": "assistant", "content": f"{ticket}: I guess {label} is {_code(source)}"}


def asking(place: Place, rows: str) -> Spec:
    """Tool, reward and evaluation, the same in all trials. rows: ending of the files' names."""
    return {
        "rewards": [{"builtin": "gsm8k"}],
        "environment": {"tools": [{"builtin": "lookup"}], "maxTurns": 2},
        "rollout": {"maxNewTokens": 20},
        "evaluation": {"batchSize": EVAL_ROWS},
        "data": {"train": {"uri": place.data(f"train{rows}.jsonl")}, "eval": {"uri": place.data(f"eval{rows}.jsonl")}},
    }


def imitation(place: Place) -> Spec:
    """How a call of the tool looks, and that people guess."""
    common = asking(place, "")
    return {
        **common,
        "model": {"uri": place.export("pictures/sft"), "images": True},
        "algorithm": {"sft": {}},
        "data": {**common["data"], "train": {"uri": place.data("sft.jsonl")}},
        "training": {"steps": 600, "batchSize": 16, "sequenceLength": 80, "optimizer": {"learningRate": 1.5e-3}},
    }


def reinforcement(place: Place, rows: str = "") -> Spec:
    """It finds out that looking pays."""
    return {
        **asking(place, rows),
        "model": {"uri": place.export("picture-keys/sft"), "images": True},
        "algorithm": {"grpo": {"groupSize": 8}},
        "training": {
            "steps": 10,
            "batchSize": 64,
            "sequenceLength": 80,
            "optimizer": {"learningRate": 2e-4},
            "schedule": {"kind": "constant"},
        },
        "evaluation": {"batchSize": EVAL_ROWS, "everySteps": 5},
    }


def blank(place: Place) -> Spec:
    """The same without anything to see."""
    return reinforcement(place, "-blank")


TASK = Task(
    name="picture-keys",
    title="A tool whose key only the picture shows: SFT, then GRPO",
    story=__doc__,
    write_data=write_data,
    trials=(
        Trial("sft", imitation, Bar("eval/reward", below=0.2), needs=("pictures/sft",)),
        Trial("grpo", reinforcement, Bar("eval/reward", least=0.8, gain=0.5), needs=("picture-keys/sft",)),
        Trial("blank", blank, Bar("eval/reward", below=0.2), needs=("picture-keys/sft",)),
    ),
)
