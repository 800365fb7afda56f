"""What every side of the rollout's benchmark samples: prompts, lengths, and which tokens end a completion.

Imported by scripts that run in a peer's environment, so it imports nothing of ours.
"""

import argparse
import random
from dataclasses import dataclass

from shapes import SHAPES

PROMPT_TOKENS = 64
RAGGED_MEAN, RAGGED_MAX, RAGGED_SAMPLES = 48, 256, 256


@dataclass(frozen=True)
class Options:
    """One side's command line. samples: completions of one generation, of which `batch` are in work at once.
    end_ids: none where all completions are equally long."""

    model: str
    batch: int
    new_tokens: int
    cache: int
    samples: int
    steps: int
    end_ids: tuple[int, ...]


def arguments() -> Options:
    """--model, --batch, --steps, and either --new with --cache, or --ragged."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, default="bench-16m")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--cache", type=int, default=0, help="tokens of cache allowed; 0 is just enough")
    parser.add_argument("--ragged", action="store_true")
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    new = RAGGED_MAX if options.ragged else options.new
    return Options(
        options.model,
        options.batch,
        new,
        options.cache or PROMPT_TOKENS + new,
        RAGGED_SAMPLES if options.ragged else options.batch,
        options.steps,
        end_ids(SHAPES[options.model].vocab) if options.ragged else (),
    )


def end_ids(vocab: int) -> tuple[int, ...]:
    """So many end tokens that a model of random weights, to which all tokens are about equally likely, ends one
    completion in RAGGED_MEAN tokens: lengths are geometric on every side, drawn by the side itself."""
    return tuple(range(vocab - vocab // RAGGED_MEAN, vocab))


def prompts(count: int, step: int) -> list[list[int]]:
    """Prompts of PROMPT_TOKENS, new ones for each step."""
    chance = random.Random(step)
    return [[chance.randrange(97, 123) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def finished(step: int, tokens: int) -> None:
    """Tells whoever measures that a generation is done, and how many tokens it sampled."""
    print(f"step {step} of {tokens} tokens", flush=True)
