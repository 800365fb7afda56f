"""A batch as JSON, for the checkpoint of a rollout that is still in use: exact to the last bit."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pttrainer.batch import Batch, Prompts


def to_json(batch: Batch) -> dict[str, Any]:
    """Return shape, type and compressed bytes of every array."""
    assert batch.images is None, "prompts of rollouts have no images yet"
    rows = {name: x for name, x in batch._asdict().items() if x is not None and name != "prompts"}
    shared = {} if batch.prompts is None else {"prompts": _arrays(batch.prompts._asdict())}
    return _arrays(rows) | shared


def from_json(document: Mapping[str, Any]) -> Batch:
    """Return the batch that `to_json` wrote."""
    arrays: dict[str, Any] = {name: decode(array) for name, array in document.items() if name != "prompts"}
    shared = document.get("prompts")
    return Batch(**arrays, prompts=None if shared is None else Prompts(**{k: decode(x) for k, x in shared.items()}))


def _arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encode(np.asarray(x)) for name, x in arrays.items()}


def encode(x: np.ndarray) -> dict[str, Any]:
    """Return one array as JSON."""
    data = base64.b64encode(zlib.compress(x.tobytes(), 1)).decode()
    return {"shape": list(x.shape), "dtype": x.dtype.str, "data": data}


def decode(array: Mapping[str, Any]) -> np.ndarray:
    """Return the array that `encode` wrote."""
    content = zlib.decompress(base64.b64decode(array["data"]))
    return np.frombuffer(content, np.dtype(array["dtype"])).reshape(array["shape"])
