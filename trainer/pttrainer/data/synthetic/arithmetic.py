"""Arithmetic word problems in GSM8K's form, for the demo: a question, and an answer that ends in `#### number`.

python -m pttrainer.data.synthetic.arithmetic --out DIR --seed 0 --rows 20000 --eval-rows 200

Every problem adds six one-digit numbers. Some answers add step by step, some give the result at once; the question's
wording decides which is more likely. A small model learns from them to add step by step, and to answer at once where it
saw that most often, and then it is mostly wrong: six numbers are too much for one token. Reinforcement learning on the
same questions teaches it to think first, everywhere.

No six numbers occur, in the same order, in both files. The same seed gives the same files.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

TRAIN, EVAL = "train.jsonl", "eval.jsonl"
ADDENDS = 6

NAMES = (
    "Ada", "Ali", "Amy", "Ana", "Ben", "Bo", "Cleo", "Dan", "Eli", "Eva", "Finn", "Gus", "Ida", "Ivo", "Jan", "Kai",
    "Lea", "Leo", "Lin", "Mia", "Nia", "Noa", "Omar", "Pia", "Raj", "Rosa", "Sam", "Sue", "Tom", "Uma", "Vera", "Zoe",
)  # fmt: skip
THINGS = (
    "bags", "buns", "caps", "cups", "dots", "eggs", "figs", "gems", "hats", "jars", "keys", "kits", "lids", "maps",
    "mugs", "nuts", "peas", "pens", "pies", "pins", "pots", "rods", "tags", "toys", "vans", "yams",
)  # fmt: skip
"""All of one length, like the questions: a number's position relative to the answer is then constant, and a small model
learns to find it in hundreds of steps instead of thousands."""


class Wording(NamedTuple):
    """A wording of the question, and the share of its answers that add step by step."""

    text: str
    steps: float


CAREFUL, HASTY = 0.98, 0.25
WORDINGS = (
    Wording("{name} has {numbers} {things}. How many?", CAREFUL),
    Wording("{name} buys {numbers} {things}. In total?", CAREFUL),
    Wording("{name} sold {numbers} {things}. Add them.", CAREFUL),
    Wording("Quick, {name} has {numbers} {things}. How many?", HASTY),
    Wording("Quick, {name} buys {numbers} {things}. In total?", HASTY),
    Wording("Hurry, {name} got {numbers} {things}. In total?", HASTY),
    Wording("Guess: {name} lost {numbers} {things}. How many?", HASTY),
    Wording("Guess: {name} sold {numbers} {things}. Add them.", HASTY),
)


class Problem(NamedTuple):
    """A row of the file, and the numbers that it adds."""

    question: str
    answer: str
    numbers: tuple[int, ...]


def problems(seed: int) -> Iterator[Problem]:
    """Yield endless problems; no question repeats."""
    random_numbers = random.Random(seed)
    questions: set[str] = set()
    while True:
        problem = _problem(random_numbers)
        if problem.question not in questions:
            questions.add(problem.question)
            yield problem


def split(seed: int, rows: int, eval_rows: int) -> tuple[list[Problem], list[Problem]]:
    """Return training and held-out problems, with no numbers in common."""
    source = problems(seed)
    held_out = [next(source) for _ in range(eval_rows)]
    taken = {problem.numbers for problem in held_out}
    train: list[Problem] = []
    while len(train) < rows:
        problem = next(source)
        if problem.numbers not in taken:
            train.append(problem)
    return train, held_out


def write(directory: Path, seed: int, rows: int, eval_rows: int) -> None:
    """Write both files."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in zip((TRAIN, EVAL), split(seed, rows, eval_rows), strict=True):
        lines = [json.dumps({"question": problem.question, "answer": problem.answer}) + "\n" for problem in part]
        (directory / name).write_text("".join(lines))


def _problem(source: random.Random) -> Problem:
    form = source.choice(WORDINGS)
    numbers = tuple(source.randint(1, 9) for _ in range(ADDENDS))
    listed = ", ".join(map(str, numbers))
    question = form.text.format(name=source.choice(NAMES), things=source.choice(THINGS), numbers=listed)
    answer = f"{_steps(numbers)}\n" if source.random() < form.steps else ""
    return Problem(question, f"{answer}#### {sum(numbers)}", numbers)


def _steps(numbers: Sequence[int]) -> str:
    """Return `3+8=11`, `11+1=12`, … one per line."""
    totals = list(accumulate(numbers))
    steps = zip(totals, numbers[1:], totals[1:], strict=False)
    return "\n".join(f"{total}+{number}={more}" for total, number, more in steps)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pttrainer.data.synthetic.arithmetic", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for train.jsonl and eval.jsonl")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of train.jsonl")
    parser.add_argument("--eval-rows", type=int, default=200, help="rows of eval.jsonl")
    options = parser.parse_args(arguments)
    write(options.out, options.seed, options.rows, options.eval_rows)


if __name__ == "__main__":
    main()
