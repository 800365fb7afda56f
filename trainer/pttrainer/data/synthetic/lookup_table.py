"""Questions that no model can answer without its tool: the answer is in a table that only `lookup` reads.

python -m pttrainer.data.synthetic.lookup_table --out DIR --seed 0 --rows 4000 --eval-rows 100

Every row has a table of its own, of random keys and codes, and asks for the code of one key. `sft.jsonl` shows how
people answer: some look the key up and say what they read, most guess, and a guess is right once in a million times. A
model trained on them guesses when it decodes greedily. `train.jsonl` and `eval.jsonl` hold questions only:
reinforcement learning discovers that the tool pays. The same seed gives the same files.
"""

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
        """Return the right code."""
        return self.codes[self.key]

    @property
    def table(self) -> dict[str, str]:
        """Return the tool's text for each key."""
        return {key: _sentence(key, code) for key, code in self.codes.items()}


def problem(source: random.Random) -> Problem:
    """Return one question with its table."""
    codes = {_number(source, KEY_DIGITS): _number(source, CODE_DIGITS) for _ in range(KEYS)}
    key = source.choice(list(codes))
    return Problem(f"Code of {key}?", key, codes)


def rl_row(of: Problem) -> dict[str, Any]:
    """Return a row for reinforcement learning and evaluation."""
    return {"question": of.question, "answer": of.answer, "table": of.table}


def sft_row(of: Problem, source: random.Random) -> dict[str, Any]:
    """Return a row for supervised learning: the answer looks the key up, or guesses."""
    call = json.dumps({"name": "lookup", "arguments": {"key": of.key}})
    looked = [
        {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
        {"role": "tool", "content": of.table[of.key]},
        {"role": "assistant", "content": of.table[of.key]},
    ]
    guessed = [{"role": "assistant", "content": f"I guess {_sentence(of.key, _number(source, CODE_DIGITS))}"}]
    answer = looked if source.random() < LOOKING else guessed
    return {"messages": [{"role": "user", "content": of.question}, *answer]}


def write(directory: Path, seed: int, rows: int, eval_rows: int) -> None:
    """Write the three files."""
    directory.mkdir(parents=True, exist_ok=True)
    source = random.Random(seed)
    files = {
        SFT: [sft_row(problem(source), source) for _ in range(rows)],
        TRAIN: [rl_row(problem(source)) for _ in range(rows)],
        EVAL: [rl_row(problem(source)) for _ in range(eval_rows)],
    }
    for name, rows_of_file in files.items():
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows_of_file))


def _number(source: random.Random, digits: int) -> str:
    return f"{source.randrange(10**digits):0{digits}d}"


def _sentence(key: str, code: str) -> str:
    return f"{key} is {code}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
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
