"""What `logits` and `generate` begin with: rows of token ids from a JSON file, a model in float32 on all devices."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pttrainer.commands import note
from pttrainer.errors import DataError

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from pttrainer.models import Model, ModelConfig, Params

Rows = list[list[int]]


def add_options(parser: argparse.ArgumentParser, tokens: str) -> None:
    """Add the options of model and rows. tokens: the help of --tokens."""
    parser.add_argument(
        "--model", required=True, metavar="URI", help="hf://, gs:// or file:// of the model, or random://"
    )
    parser.add_argument("--tokens", required=True, type=Path, help=f"JSON file: {tokens}")
    parser.add_argument("--revision", help="branch, tag or commit of an hf:// model")
    parser.add_argument(
        "--images", type=Path, help="JSON file: for each row a list of image files, in the order of their tokens"
    )


def read_rows(path: Path) -> Rows:
    """Read rows of token ids. Raises DataError."""
    try:
        rows = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    is_rows = isinstance(rows, list) and bool(rows) and all(isinstance(row, list) and row for row in rows)
    if not is_rows or not all(type(token) is int for row in rows for token in row):
        raise DataError(f"{path}: accepted: a list of lists of token ids, such as [[1, 2, 3], [4, 5, 6]]")
    return list(rows)


@contextmanager
def loaded(options: argparse.Namespace, rows: Rows) -> Iterator[tuple["Model", "Params", "Mesh", list[Any]]]:
    """Yield the model, its weights and their mesh, in context, and each row's images, or None.

    Raises DataError on ids and images that it cannot read.
    """
    import jax

    from pttrainer.models import Model
    from pttrainer.models.loading.model_loader import load_params
    from pttrainer.models.loading.model_spec import open_source
    from pttrainer.runtime.distributed import sharding

    has_images = options.images is not None
    source = open_source(options.model, "--model", note, options.revision, images=has_images)
    model = Model(source.config.at_length(max(map(len, rows))))
    _check(model.config, rows)
    images: list[Any] = [None] * len(rows)
    if has_images:
        from pttrainer.commands.image_files import read_images

        images = list(read_images(options.images, rows, source))
    # A few rows have nothing to split but the matrices.
    mesh = sharding.make_mesh((1, 1, jax.device_count(), 1))
    where: Any = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    with jax.set_mesh(mesh), jax.default_matmul_precision("highest"):
        yield model, load_params(source, model, where), mesh, images


def _check(config: "ModelConfig", rows: Rows) -> None:
    ids = {token for row in rows for token in row}
    if wrong := [token for token in (max(ids), min(ids)) if not 0 <= token < config.vocab_size]:
        raise DataError(f"--tokens: id {wrong[0]}: accepted: 0 to {config.vocab_size - 1}, the model's vocabulary")
    if config.image_token_id in ids and config.vision is None:
        raise DataError(
            f"--tokens: id {config.image_token_id}: stands for an image (image_token_id of config.json); accepted: ids "
            "of text alone; hint: --images names the images of a model whose images are supported"
        )
    if other := [(key, token) for key, token in config.unsupported_token_ids if token in ids]:
        key, token = other[0]
        raise DataError(
            f"--tokens: id {token}: stands for {key.partition('_')[0]} ({key} of config.json), which is not supported; "
            "accepted: ids of text and of images"
        )
