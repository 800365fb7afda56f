"""Distillation: a student learns from a larger model what it does not learn from the same data in the same steps.

The task is a cipher, each letter of a word becomes the next of the alphabet, shown by careless people: half of their
letters are wrong. A larger model with more steps learns what they mean. A student with a fifth of its weights, after
two fifths of its steps on their answers, goes on in one of three ways, each with as many steps and answers: on the
people's (`sft`, the control), on the teacher's predictions for samples of its own (`on-policy`), and on its predictions
for the people's answers, from a file that holds the four likeliest tokens alone (`offline`). How many letters are wrong
and how many steps there are was chosen so that the control fails and the teacher learns: with two in five wrong and 100
steps, the control learnt the cipher with seed 1, and on-policy distillation was half-way with seed 2.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from task import Bar, Place, Spec, Task, Trial, write_rows

EXACT = "eval/reward"
LETTERS, ALPHABET, CARELESS = 8, "abcdefghijklmnopqrstuvwxyz", 0.5
ROWS, EVAL_ROWS = 3_000, 128
TOLD = {"train.jsonl": "told.jsonl", "eval.jsonl": "told-eval.jsonl"}
"""What offline distillation reads instead."""
LIKELIEST = 4
REACHED = 0.8


def write_data(folder: Path, seed: int) -> None:
    """train.jsonl, with mistakes, and eval.jsonl, without; no word is in both."""
    source = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < ROWS + EVAL_ROWS:
        words["".join(source.choices(ALPHABET, k=LETTERS))] = None
    rows = [{"question": word, "answer": shifted(word)} for word in words]
    write_rows(folder / "eval.jsonl", rows[:EVAL_ROWS])
    write_rows(
        folder / "train.jsonl", [{**row, "answer": _careless(row["answer"], source)} for row in rows[EVAL_ROWS:]]
    )


def shifted(word: str) -> str:
    """Each letter becomes the next; z becomes a."""
    return "".join(ALPHABET[(ALPHABET.index(letter) + 1) % len(ALPHABET)] for letter in word)


def _careless(answer: str, source: random.Random) -> str:
    return "".join(source.choice(ALPHABET) if source.random() < CARELESS else letter for letter in answer)


def ask_teacher(place: Place) -> None:
    """Both files again, with the teacher's likeliest tokens at each place of their answers."""
    import numpy as np
    from tokenizers import Tokenizer

    folder, teacher = place.folder / "data", place.folder / "runs" / "teacher" / "export"
    files = [[json.loads(line) for line in (folder / name).read_text().splitlines()] for name in TOLD]
    engine = Tokenizer.from_file(str(teacher / "tokenizer.json"))
    rows = [row for file in files for row in file]
    texts = [f"<|bos|><|user|>{row['question']}<|end|><|assistant|>{row['answer']}<|end|>" for row in rows]
    asked, said = folder / "tokens.json", folder / "logits.npy"
    asked.write_text(json.dumps([engine.encode(text, add_special_tokens=False).ids for text in texts]))
    words = ["--model", teacher.as_uri(), "--tokens", str(asked), "--out", str(said)]
    subprocess.run([sys.executable, "-m", "pttrainer", "logits", *words], check=True)
    # What predicts the answer and its end token stands one place before them.
    logits = np.load(said)[:, -LETTERS - 2 : -1].astype(np.float64)
    logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.argsort(-logps, axis=-1)[..., :LIKELIEST]
    likeliest = np.take_along_axis(logps, ids, axis=-1)
    told = iter([_told(*row) for row in zip(rows, ids, likeliest, strict=True)])
    for name, file in zip(TOLD.values(), files, strict=True):
        write_rows(folder / name, list(islice(told, len(file))))


def _told(row: dict[str, str], ids: Any, logps: Any) -> dict[str, Any]:
    return {**row, "teacher_ids": ids.tolist(), "teacher_logprobs": logps.round(5).tolist()}


def learning(place: Place, model: str, algorithm: dict[str, Any], steps: int) -> Spec:
    """What all have in common. A batch is 24 answers, 6 to a row where they are packed."""
    mode = algorithm.get("distill", {}).get("mode")
    on_policy = mode == "on-policy"
    train, held_out = TOLD.values() if mode == "offline" else TOLD
    return {
        "model": {"uri": model},
        "algorithm": algorithm,
        "data": {"train": {"uri": place.data(train)}, "eval": {"uri": place.data(held_out)}},
        "rewards": [{"builtin": "exact"}],
        "rollout": {"maxNewTokens": LETTERS + 2},
        "training": {
            "steps": steps,
            "batchSize": 24 if on_policy else 4,
            "sequenceLength": 32 if on_policy else 128,
            "optimizer": {"learningRate": 3e-3},
        },
        "evaluation": {"batchSize": EVAL_ROWS, "everySteps": 25},
    }


def teacher(place: Place) -> Spec:
    return learning(place, "random://demo", {"sft": {}}, 600)


def start(place: Place) -> Spec:
    return learning(place, "random://tiny", {"sft": {}}, 100)


def more(place: Place) -> Spec:
    return learning(place, place.export("distillation/start"), {"sft": {}}, 150)


def distilled(mode: str) -> Any:
    """The rest of the student's steps, in this mode."""

    def spec(place: Place) -> Spec:
        source = {} if mode == "offline" else {"teacher": {"uri": place.export("distillation/teacher")}}
        algorithm = {"distill": {"mode": mode, "beta": 0.0, **source}}
        return learning(place, place.export("distillation/start"), algorithm, 150)

    return spec


_BEFORE = ("distillation/teacher", "distillation/start")

TASK = Task(
    name="distillation",
    title="Distillation from a larger model",
    story=__doc__,
    write_data=write_data,
    trials=(
        Trial("teacher", teacher, Bar(EXACT, least=0.9)),
        Trial("start", start, Bar(EXACT, below=REACHED)),
        Trial("sft", more, Bar(EXACT, below=REACHED), needs=_BEFORE[1:]),
        Trial("on-policy", distilled("on-policy"), Bar(EXACT, least=REACHED), needs=_BEFORE),
        Trial("offline", distilled("offline"), Bar(EXACT, least=REACHED), needs=_BEFORE, prepare=ask_teacher),
    ),
)
