"""Distillation: a student learns from a larger model what its own data do not hold.

The task is a cipher: each letter of a word stands for another, which ones the seed draws. The people in the student's
data know half of the alphabet and guess the rest. The larger model learned from people who know all of it, and slip
in every fifth letter. The student, of a fifth of the weights, begins with its own people, then goes on in one of four
ways with the same questions and as many steps and answers: on the people's answers (`sft`, the control, which no number
of steps could help: a held-out word is all in known letters once in 256 times), on what the larger model predicts for
samples of the student's own (`on-policy`), for the people's answers (`online`), and for these again, from a file that
holds the four likeliest tokens alone (`offline`). Nobody shows it the right answer to a question.

Bars and sizes were set before the first run and have stayed. An earlier form of this task, wrong letters at random for
all, depended on its seed: its control learned the cipher with two of three.
"""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from task import Bar, Place, Spec, Task, Trial, write_rows

EXACT = "eval/reward"
LETTERS, ALPHABET = 8, "abcdefghijklmnopqrstuvwxyz"
KNOWN = 13
"""Letters that the student's people know."""
SLIPS = 0.2
"""Share of the letters that the teacher's people get wrong."""
ROWS, EVAL_ROWS = 3_000, 128
TAUGHT, PEOPLE, PREDICTED = (
    ("taught.jsonl", "eval.jsonl"),
    ("train.jsonl", "eval.jsonl"),
    ("told.jsonl", "told-eval.jsonl"),
)
"""Training and held-out rows of the teacher, of the student, and of the student with the teacher's predictions."""
LIKELIEST = 4
"""Tokens at each place that `PREDICTED` has the teacher's log-probs of."""
STEPS = 150
REACHED, UNREACHED = 0.8, 0.1


def write_data(folder: Path, seed: int) -> None:
    """taught.jsonl for the teacher, train.jsonl for the student, eval.jsonl with right answers; no word is in two."""
    source = random.Random(seed)
    code = dict(zip(ALPHABET, source.sample(ALPHABET, len(ALPHABET)), strict=True))
    known = frozenset(source.sample(ALPHABET, KNOWN))
    words: dict[str, None] = {}
    while len(words) < 2 * ROWS + EVAL_ROWS:
        words["".join(source.choices(ALPHABET, k=LETTERS))] = None
    left = iter(words)

    def answered(rows: int, knows: Callable[[str], bool]) -> list[dict[str, str]]:
        return [
            {"question": word, "answer": "".join(code[at] if knows(at) else source.choice(ALPHABET) for at in word)}
            for word in islice(left, rows)
        ]

    write_rows(folder / "eval.jsonl", answered(EVAL_ROWS, lambda letter: True))
    write_rows(folder / "train.jsonl", answered(ROWS, known.__contains__))
    write_rows(folder / "taught.jsonl", answered(ROWS, lambda letter: source.random() >= SLIPS))


def ask_teacher(place: Place) -> None:
    """Both files again, with the teacher's likeliest tokens at each place of their answers."""
    import numpy as np
    from tokenizers import Tokenizer

    folder, teacher = place.folder / "data", place.folder / "runs" / "teacher" / "export"
    files = [[json.loads(line) for line in (folder / name).read_text().splitlines()] for name in PEOPLE]
    engine = Tokenizer.from_file(str(teacher / "tokenizer.json"))
    rows = [row for file in files for row in file]
    texts = [f"<|bos|><|user|>{row['question']}<|end|><|assistant|>{row['answer']}<|end|>" for row in rows]
    tokens_file, logits_file = folder / "tokens.json", folder / "logits.npy"
    tokens_file.write_text(json.dumps([engine.encode(text, add_special_tokens=False).ids for text in texts]))
    words = ["--model", teacher.as_uri(), "--tokens", str(tokens_file), "--out", str(logits_file)]
    subprocess.run([sys.executable, "-m", "pttrainer", "logits", *words], check=True, stdout=subprocess.DEVNULL)
    # What predicts the answer and its end token stands one place before them.
    logits = np.load(logits_file)[:, -LETTERS - 2 : -1].astype(np.float64)
    logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.argsort(-logps, axis=-1)[..., :LIKELIEST]
    likeliest = np.take_along_axis(logps, ids, axis=-1)
    predicted = iter([_with_predictions(*row) for row in zip(rows, ids, likeliest, strict=True)])
    for name, file in zip(PREDICTED, files, strict=True):
        write_rows(folder / name, list(islice(predicted, len(file))))


def _with_predictions(row: dict[str, str], ids: Any, logps: Any) -> dict[str, Any]:
    return {**row, "teacher_ids": ids.tolist(), "teacher_logprobs": logps.round(5).tolist()}


def learning(place: Place, model: str, rows: tuple[str, str], algorithm: Spec, steps: int) -> Spec:
    """What all have in common. A batch is 24 answers, 6 to a row where they are packed."""
    on_policy = algorithm.get("distill", {}).get("mode") == "on-policy"
    train, held_out = rows
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
    """The larger model."""
    return learning(place, "random://demo", TAUGHT, {"sft": {}}, 300)


def start(place: Place) -> Spec:
    """The student, before it goes on in one of the ways."""
    return learning(place, "random://tiny", PEOPLE, {"sft": {}}, 200)


def control(place: Place) -> Spec:
    """More of the same."""
    return learning(place, place.export("distillation/start"), PEOPLE, {"sft": {}}, STEPS)


def distilled(mode: str, place: Place) -> Spec:
    """With the teacher, in one of its modes."""
    is_offline = mode == "offline"
    guide = {} if is_offline else {"teacher": {"uri": place.export("distillation/teacher")}}
    algorithm = {"distill": {"mode": mode, "beta": 0.0, **guide}}
    return learning(place, place.export("distillation/start"), PREDICTED if is_offline else PEOPLE, algorithm, STEPS)


_BEFORE = ("distillation/teacher", "distillation/start")

TASK = Task(
    name="distillation",
    title="Distillation from a larger model",
    story=__doc__,
    write_data=write_data,
    trials=(
        Trial("teacher", teacher, Bar(EXACT, least=0.9)),
        Trial("start", start, Bar(EXACT, below=UNREACHED)),
        Trial("sft", control, Bar(EXACT, below=UNREACHED), needs=_BEFORE[1:]),
        Trial("on-policy", partial(distilled, "on-policy"), Bar(EXACT, least=REACHED), needs=_BEFORE),
        Trial("online", partial(distilled, "online"), Bar(EXACT, least=REACHED), needs=_BEFORE),
        Trial("offline", partial(distilled, "offline"), Bar(EXACT, least=REACHED), needs=_BEFORE, prepare=ask_teacher),
    ),
)
