"""A critic's value head on disk: `value_head.safetensors`, two tensors, with or without a critic model's files.

A reward model's is one tensor among the model's own, `score.weight`, as transformers' sequence classification names it.

`export/critic` of a run holds it (`export.export_critic`); another run's critic begins from it. Names and shapes are
those of a linear layer with one output, as torch stores it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pttrainer.errors import ConfigError
from pttrainer.models import Params
from pttrainer.models.loading.model_spec import SCORE
from pttrainer.models.weights.hf_directory import Checkpoint
from pttrainer.models.weights.safetensors_file import read_header, write_header
from pttrainer.runtime.io import model_files
from pttrainer.runtime.io.model_files import Note

FILE = "value_head.safetensors"
WEIGHT, BIAS = "value_head.weight", "value_head.bias"


def directory(uri: str, field: str, note: Note) -> Path:
    """Return the local directory behind a URI; raise ConfigError, naming `field`, if it has no value head."""
    path = model_files.fetch(uri, field, note).directory
    if not (path / FILE).is_file():
        raise ConfigError(f"{field}: {uri}: no {FILE}; accepted: the export/critic of a run with algorithm.ppo")
    return path


def load_or_zeros(where: Path | None, width: int, shardings: Params, field: str) -> Params:
    """Return a critic's first weights: the file's, if the directory has one, else zeros."""
    weight, bias = np.zeros(width, np.float32), np.zeros((), np.float32)
    if where is not None and (where / FILE).is_file():
        weight, bias = _read(where / FILE, width, field)
    return placed({"weight": weight, "bias": bias}, shardings)


def score_weight(where: Path | None, width: int, display_name: str) -> np.ndarray | None:
    """Return the head of the reward model in a directory; None if the model there is none. Raise ConfigError."""
    checkpoint = None if where is None else Checkpoint(where, display_name)
    if checkpoint is None or SCORE not in checkpoint.names():
        return None
    shape = checkpoint.shape(SCORE)
    if shape != (1, width):
        raise ConfigError(f"{display_name}: {SCORE} is {list(shape)}; accepted: [1, {width}], a model with one output")
    weight: np.ndarray = checkpoint.rows(SCORE, 0, 1)[0].astype(np.float32)
    return weight


def placed(weights: Params, shardings: Params) -> Params:
    """Return host arrays on these shardings."""
    on_mesh: Params = jax.tree.map(_placed, weights, shardings)
    return on_mesh


def write(path: Path | None, value: Params, fetch: Callable[[Any], Any]) -> None:
    """Write the file; without a path only take part in fetching."""
    weight = np.ascontiguousarray(fetch(value["weight"]), np.float32).reshape(1, -1)
    bias = np.ascontiguousarray(fetch(value["bias"]), np.float32).reshape(1)
    if path is None:
        return
    with path.open("wb") as file:
        write_header(file, ((name, x.dtype, x.shape) for name, x in ((WEIGHT, weight), (BIAS, bias))))
        for x in (weight, bias):
            file.write(x.tobytes())


def _read(path: Path, width: int, field: str) -> tuple[np.ndarray, np.ndarray]:
    tensors = read_header(path)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != {WEIGHT: (1, width), BIAS: (1,)}:
        raise ConfigError(
            f"{field}: {path.parent}: {FILE} holds {shapes}; accepted: {WEIGHT} [1, {width}] and {BIAS} [1], "
            "for the hidden states of this job's critic"
        )
    weight, bias = (tensors[name].rows(0, 1).astype(np.float32) for name in (WEIGHT, BIAS))
    return weight[0], bias[0]


def _placed(x: Any, where: Any) -> jax.Array:
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, where, lambda index: x[index])
