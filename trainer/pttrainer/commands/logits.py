"""`python -m pttrainer logits`: a model's logits, to compare it with another implementation.

Rows go through one at a time, in float32 with exact products, on as many devices as there are: speed does not matter
here.
"""

import argparse
from pathlib import Path
from typing import Any

from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.commands.token_rows import Rows, add_options, loaded, read_rows
from pttrainer.errors import DataError, StorageError


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser("logits", help="write a model's logits for given tokens (float32, [B, T, V])")
    add_options(parser, "a list of equally long lists of ids")
    parser.add_argument("--out", required=True, type=Path, help="the .npy file to write")
    parser.set_defaults(run=lambda options: exit_code_of(lambda: run(options)))


def run(options: argparse.Namespace) -> None:
    """Read tokens, compute logits and write them."""
    rows = read_rows(options.tokens)
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise DataError(
            f"{options.tokens}: rows have {', '.join(map(str, lengths))} tokens; accepted: rows of one length"
        )
    import numpy as np

    logits_BTV = compute(options, rows)
    try:
        with options.out.open("wb") as file:
            np.save(file, logits_BTV)
    except OSError as error:
        raise StorageError(f"{options.out}: cannot be written: {error.strerror}") from error
    note(f"{options.out}: float32 {list(logits_BTV.shape)}")


def compute(options: argparse.Namespace, rows: Rows) -> Any:
    """Return logits [B, T, V] on the host, float32."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from pttrainer.models import Params
    from pttrainer.runtime.distributed import sharding

    with loaded(options, rows) as (model, params, _, images):

        @jax.jit
        def one_row(params: Params, tokens_T: jax.Array, images: Any) -> jax.Array:
            rows = tokens_T[None], jnp.arange(len(tokens_T))[None], jnp.ones_like(tokens_T)[None]
            hidden_BTD = model.forward(params, *rows, images=images)
            return sharding.constrain(model.logits(params, hidden_BTD)[0], ())

        with_images = zip(np.array(rows, np.int32), images, strict=True)
        return np.stack([np.asarray(one_row(params, *one)) for one in with_images])
