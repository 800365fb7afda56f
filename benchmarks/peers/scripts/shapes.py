"""What every side of a benchmark of SFT works on: the shapes, as plain numbers, and the tokens.

Imported by scripts that run in a peer's environment, so it imports nothing of ours.
"""

import argparse
import random
from dataclasses import dataclass

BATCH, LENGTH = 8, 256


@dataclass(frozen=True)
class Shape:
    """A Llama: tied head, heads of 64."""

    vocab: int
    layers: int = 6
    width: int = 384
    feed_forward: int = 1024
    heads: int = 6
    kv_heads: int = 2
    head: int = 64


SHAPES = {"bench-16m": Shape(16_384), "bench-13m": Shape(8_192)}
LORA_RANK, LORA_ALPHA = 16, 32.0
LEARNING_RATE = 2e-5


def arguments() -> argparse.Namespace:
    """--model, --steps and --lora, the same for every side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, default="bench-16m")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--lora", action="store_true")
    return parser.parse_args()


def rows(count: int) -> list[list[int]]:
    """Rows of LENGTH tokens, those that a byte tokenizer makes of random text."""
    chance = random.Random(0)
    return [[chance.randrange(97, 123) for _ in range(LENGTH)] for _ in range(count)]


def finished(step: int) -> None:
    """Tells whoever measures that a step is done."""
    print(f"step {step}", flush=True)
