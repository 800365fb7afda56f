"""Questions that no model can answer without its tool: the answer stands in a table that only `lookup` reads.

    python -m pttrainer.data.synthetic.lookup_table --out DIR --seed 0 --rows 4000 --eval-rows 100

Every row has a table of its own, of random keys and codes, and asks for the code of one key. `sft.jsonl` shows how
people answer: some look the key up and say what they read, most guess, and a guess is right once in a million times.
A model that learned from them guesses, when it is asked for its likeliest answer. `train.jsonl` and `eval.jsonl` hold
questions alone: reinforcement learning finds out that the tool pays. The same seed gives the same files.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

SFT, TRAIN, EVAL = "sft.jsonl", "train.jsonl", "eval.jsonl"
KEYS = 4
KEY_DIGITS, CODE_DIGITS = 4, 6
LOOKING = 0.4
"""Share of the answers in `sft.jsonl` that use the tool."""


class Problem(NamedTuple):
    """A question, the key that it asks for, and the code of every key."""

    question: str
    key: str
    codes: dict[str, str]

    @property
    def answer(self) -> str:
        """The right code."""
        return self.codes[self.key]

    @property
    def table(self) -> dict[str, str]:
        """What the tool says of each key."""
        return {key: _sentence(key, code) for key, code in self.codes.items()}


def problem(source: random.Random) -> Problem:
    """One question with its table."""
    codes = {_number(source, KEY_DIGITS): _number(source, CODE_DIGITS) for _ in range(KEYS)}
    key = source.choice(list(codes))
    return Problem(f"Code of {key}?", key, codes)


def asked(of: Problem) -> dict[str, Any]:
    """A row for reinforcement learning and evaluation."""
    return {"question": of.question, "answer": of.answer, "table": of.table}


def shown(of: Problem, source: random.Random) -> dict[str, Any]:
    """A row for supervised learning: somebody looks, or guesses."""
    call = json.dumps({"name": "lookup", "arguments": {"key": of.key}})
    looked = [
        {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
        {"role": "tool", "content": of.table[of.key]},
        {"role": "assistant", "content": of.table[of.key]},
    ]
    guessed = [{"role": "assistant", "content": f"I guess {_sentence(of.key, _number(source, CODE_DIGITS))}"}]
    said = looked if source.random() < LOOKING else guessed
    return {"messages": [{"role": "user", "content": of.question}, *said]}


def write(directory: Path, seed: int, rows: int, eval_rows: int) -> None:
    """Writes the three files."""
    directory.mkdir(parents=True, exist_ok=True)
    source = random.Random(seed)
    files = {
        SFT: [shown(problem(source), source) for _ in range(rows)],
        TRAIN: [asked(problem(source)) for _ in range(rows)],
        EVAL: [asked(problem(source)) for _ in range(eval_rows)],
    }
    for name, found in files.items():
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in found))


def _number(source: random.Random, digits: int) -> str:
    return f"{source.randrange(10**digits):0{digits}d}"


def _sentence(key: str, code: str) -> str:
    return f"{key} is {code}"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pttrainer.data.synthetic.lookup_table", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, required=True, help=f"directory for {SFT}, {TRAIN} and {EVAL}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=4_000, help=f"rows of {SFT} and {TRAIN} each")
    parser.add_argument("--eval-rows", type=int, default=100, help=f"rows of {EVAL}")
    options = parser.parse_args(arguments)
    write(options.out, options.seed, options.rows, options.eval_rows)


if __name__ == "__main__":
    main()
