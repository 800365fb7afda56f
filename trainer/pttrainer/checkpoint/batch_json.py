"""A batch as JSON, for the checkpoint of a rollout that is still in use: exact to the last bit."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pttrainer.batch import Batch, Images, Prompts

_PARTS = {"prompts": Prompts, "images": Images}
"""What a batch holds besides arrays of its rows."""


def to_json(batch: Batch) -> dict[str, Any]:
    """Return shape, type and compressed bytes of every array."""
    rows = {name: x for name, x in batch._asdict().items() if name not in _PARTS}
    parts = {name: _arrays(of._asdict()) for name in _PARTS if (of := getattr(batch, name)) is not None}
    return _arrays(rows) | parts


def from_json(document: Mapping[str, Any]) -> Batch:
    """Return the batch that `to_json` wrote."""
    arrays: dict[str, Any] = {name: decode(array) for name, array in document.items() if name not in _PARTS}
    parts: dict[str, Any] = {
        name: part(**{key: decode(x) for key, x in document[name].items()})
        for name, part in _PARTS.items()
        if name in document
    }
    return Batch(**arrays, **parts)


def _arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encode(np.asarray(x)) for name, x in arrays.items() if x is not None}


def encode(x: np.ndarray) -> dict[str, Any]:
    """Return one array as JSON."""
    data = base64.b64encode(zlib.compress(x.tobytes(), 1)).decode()
    return {"shape": list(x.shape), "dtype": x.dtype.str, "data": data}


def decode(array: Mapping[str, Any]) -> np.ndarray:
    """Return the array that `encode` wrote."""
    content = zlib.decompress(base64.b64decode(array["data"]))
    return np.frombuffer(content, np.dtype(array["dtype"])).reshape(array["shape"])
