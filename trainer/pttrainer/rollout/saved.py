"""A batch as JSON, for the checkpoint of a rollout that is still in use: exact to the last bit."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pttrainer.batch import Batch


def to_json(batch: Batch) -> dict[str, Any]:
    """Shape, type and compressed bytes of every array."""
    return {name: encode(np.asarray(x)) for name, x in batch._asdict().items() if x is not None}


def from_json(document: Mapping[str, Any]) -> Batch:
    """The batch that `to_json` wrote."""
    return Batch(**{name: decode(array) for name, array in document.items()})


def encode(x: np.ndarray) -> dict[str, Any]:
    """One array."""
    data = base64.b64encode(zlib.compress(x.tobytes(), 1)).decode()
    return {"shape": list(x.shape), "dtype": x.dtype.str, "data": data}


def decode(array: Mapping[str, Any]) -> np.ndarray:
    """The array that `encode` wrote."""
    content = zlib.decompress(base64.b64decode(array["data"]))
    return np.frombuffer(content, np.dtype(array["dtype"])).reshape(array["shape"])
