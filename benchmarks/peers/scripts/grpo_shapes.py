"""What every side of a benchmark of GRPO works on: prompts of 64 tokens, completions of a fixed length, a reward that
differs between the samples of a prompt and costs nothing. Imports nothing of ours.
"""

import argparse
import random
import zlib
from collections.abc import Sequence

from shapes import SHAPES

PROMPT = 64
LEARNING_RATE = 1e-6


def arguments() -> argparse.Namespace:
    """The same for every side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, default="bench-16m")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--beta", type=float, default=0.04)
    return parser.parse_args()


def prompts(count: int) -> list[list[int]]:
    """Tokens that a byte tokenizer makes of random letters."""
    chance = random.Random(0)
    return [[chance.randrange(97, 123) for _ in range(PROMPT)] for _ in range(count)]


def reward(completion: Sequence[int] | str) -> float:
    """0 to 1, as if by chance, the same for the same completion."""
    return zlib.crc32(str(completion).encode()) % 1000 / 1000


def finished(step: int) -> None:
    """Tells whoever measures that an optimizer step is done."""
    print(f"step {step}", flush=True)
