"""`python -m pttrainer logits`: a model's logits, to compare it with another implementation.

Rows go through one at a time, in float32 with exact products, on as many devices as there are: speed does not matter
here.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.errors import DataError, StorageError


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser("logits", help="write a model's logits for given tokens (float32, [B, T, V])")
    parser.add_argument(
        "--model", required=True, metavar="URI", help="hf://, gs:// or file:// of the model, or random://"
    )
    parser.add_argument("--tokens", required=True, type=Path, help="JSON file: a list of equally long lists of ids")
    parser.add_argument("--out", required=True, type=Path, help="the .npy file to write")
    parser.add_argument("--revision", help="branch, tag or commit of an hf:// model")
    parser.set_defaults(run=lambda options: exit_code_of(lambda: run(options)))


def run(options: argparse.Namespace) -> None:
    """Read tokens, compute logits and write them."""
    rows = read_tokens(options.tokens)
    import numpy as np

    logits_BTV = compute(options.model, options.revision, rows)
    try:
        with options.out.open("wb") as file:
            np.save(file, logits_BTV)
    except OSError as error:
        raise StorageError(f"{options.out}: cannot be written: {error.strerror}") from error
    note(f"{options.out}: float32 {list(logits_BTV.shape)}")


def read_tokens(path: Path) -> list[list[int]]:
    """Read rows of equal length. Raises DataError."""
    try:
        rows = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    is_rows = isinstance(rows, list) and bool(rows) and all(isinstance(row, list) and row for row in rows)
    if not is_rows or not all(type(token) is int for row in rows for token in row):
        raise DataError(f"{path}: accepted: a list of lists of token ids, such as [[1, 2, 3], [4, 5, 6]]")
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise DataError(f"{path}: rows have {', '.join(map(str, lengths))} tokens; accepted: rows of one length")
    return list(rows)


def compute(uri: str, revision: str | None, rows: list[list[int]]) -> Any:
    """Return logits [B, T, V] on the host, float32."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from pttrainer.models import Model, Params
    from pttrainer.models.loading.model_loader import load_params
    from pttrainer.models.loading.model_spec import open_source
    from pttrainer.runtime.distributed import sharding

    source = open_source(uri, "--model", note, revision)
    model = Model(source.config)
    tokens_BT = np.array(rows, np.int32)
    if tokens_BT.min() < 0 or tokens_BT.max() >= model.config.vocab_size:
        wrong = tokens_BT.max() if tokens_BT.min() >= 0 else tokens_BT.min()
        raise DataError(f"--tokens: id {wrong}: accepted: 0 to {model.config.vocab_size - 1}, the model's vocabulary")
    # One row at a time has nothing to split but the matrices.
    mesh = sharding.make_mesh((1, 1, jax.device_count(), 1))
    jax.set_mesh(mesh)
    params = load_params(source, model, sharding.weight_shardings(mesh, model.abstract(), model.logical_axes()))

    @jax.jit
    def one_row(params: Params, tokens_T: jax.Array) -> jax.Array:
        positions_BT = jnp.arange(len(tokens_T))[None]
        hidden_BTD = model.forward(params, tokens_T[None], positions_BT, jnp.ones_like(positions_BT))
        return sharding.constrain(model.logits(params, hidden_BTD)[0], ())

    with jax.default_matmul_precision("highest"):
        return np.stack([np.asarray(one_row(params, tokens_T)) for tokens_T in tokens_BT])
