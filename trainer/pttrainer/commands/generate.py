"""`python -m pttrainer generate`: the likeliest continuation of given tokens, to compare with another implementation.

The tokens come from the engine that samples in training (`rollout.native`), through its cache, in float32 with exact
products.
"""

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pttrainer.commands.exit import exit_code_of
from pttrainer.commands.token_rows import Rows, add_options, loaded, read_rows
from pttrainer.errors import DataError

if TYPE_CHECKING:
    from pttrainer.models import ModelConfig

EXAMPLES = """examples:
  echo '[[1, 15043], [1, 450, 7483, 310]]' > ids.json
  python -m pttrainer generate --model hf://ORG/NAME --tokens ids.json --max-new 32
  python -m pttrainer generate --model file:///runs/my-job/export --tokens ids.json --max-new 8 > new.json
"""


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser(
        "generate",
        help="write the likeliest next tokens as JSON, by the sampler's own cache (float32)",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, "a list of lists of ids, of any lengths")
    parser.add_argument(
        "--max-new", required=True, type=int, metavar="N", help="most tokens per row; an end token ends a row earlier"
    )
    parser.set_defaults(run=lambda options: exit_code_of(lambda: run(options)))


def run(options: argparse.Namespace) -> None:
    """Read rows, continue them and print the new tokens."""
    if options.max_new < 1:
        raise DataError(f"--max-new: {options.max_new}: accepted: a whole number of at least 1")
    print(json.dumps(continued(options, read_rows(options.tokens))))


def continued(options: argparse.Namespace, rows: Rows) -> Rows:
    """Return the new tokens of each row, including an end token."""
    from functools import partial

    import jax
    import numpy as np

    from pttrainer.data.tokenization.tokenizer import byte_tokenizer
    from pttrainer.rollout.engine import Draw, Prompt, Sampling
    from pttrainer.rollout.native.native_engine import NativeEngine
    from pttrainer.runtime.distributed import sharding

    new: Rows = [[] for _ in rows]
    goes_on = np.ones(len(rows), bool)
    with loaded(options, rows) as (model, params, mesh, images):
        # Without strings that end a sample, the engine uses only these ids of a tokenizer.
        ends = replace(byte_tokenizer(), eos_ids=model.config.eos_ids, pad_id=0)
        for length in _lengths(model.config, max(map(len, rows)) + options.max_new):
            here = [row for row in np.flatnonzero(goes_on) if len(rows[row]) + len(new[row]) < length]
            if not here:
                continue
            prompts = [Prompt(rows[row] + new[row], int(row), images[row]) for row in here]
            of_length = replace(model, config=model.config.at_length(length - 1))
            engine = NativeEngine(of_length, ends, partial(sharding.put, mesh), jax.device_get, mesh)
            sampling = Sampling(options.max_new, length, greedy=True)
            completions = engine.generate(params, prompts, 1, sampling, Draw(0, 0))
            for row, (place, has_ended) in zip(here, enumerate(completions.ended_N), strict=True):
                new[row] = (new[row] + completions.tokens(place))[: options.max_new]
                goes_on[row] = not has_ended and len(new[row]) < options.max_new
    return new


def _lengths(config: "ModelConfig", longest: int) -> list[int]:
    """Return up to which lengths of rows one model computes them.

    Where rotary factors depend on the length, transformers begins a row anew when it has outgrown the short ones.
    """
    switch = config.at_length(1).longest + 1
    return [switch, longest] if config.rope.depends_on_length and switch < longest else [longest]
