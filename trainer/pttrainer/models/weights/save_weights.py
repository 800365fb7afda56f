"""Save weights as safetensors files, one layer at a time, into files of at most `SHARD_BYTES`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pttrainer.models.weights.hf_directory import INDEX
from pttrainer.models.weights.hf_names import Names, Part
from pttrainer.models.weights.safetensors_file import write_header
from pttrainer.models.weights.weight import Tensor, Weight, at_path, tensors_of, weights_of

SHARD_BYTES = 5 * 10**9


def save(names: Names, params: Any, directory: Path | None, fetch: Callable[[Any], Any] = np.asarray) -> None:
    """Write weights as Hugging Face's files.

    `fetch` brings an array to the host; without a directory nothing else happens, for processes that must take part
    in fetching but do not write.
    """
    weights = weights_of(names, params)
    files = _files(weights)
    places: dict[str, str] = {}
    for number, tensors in enumerate(files, start=1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        places |= dict.fromkeys([weight.name(place) for [(weight, place), *_] in tensors], file)
        _write_file(directory and directory / file, tensors, params, fetch)
    if directory is not None and len(files) > 1:
        total = sum(int(np.prod(weight.shape)) * weight.dtype.itemsize for weight in weights)
        (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2))


def save_adapters(names: Names, params: Any, path: Path | None, fetch: Callable[[Any], Any] = np.asarray) -> None:
    """Write adapters like `save`, into the one file that PEFT reads."""
    weights = weights_of(names, params)
    _write_file(path, list(tensors_of(weights).values()), params, fetch)


def _files(weights: list[Weight]) -> list[list[Tensor]]:
    """Assign tensors to files."""
    files: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors_of(weights).values():
        first, _ = tensor[0]
        each = int(np.prod(first.stored_shape)) * first.dtype.itemsize
        if size and size + each > SHARD_BYTES:
            files.append([])
            size = 0
        files[-1].append(tensor)
        size += each
    return files


def _write_file(path: Path | None, tensors: list[Tensor], params: Any, fetch: Callable[[Any], Any]) -> None:
    if path is None:
        for _ in _host_tensors(tensors, params, fetch):
            pass
        return
    with path.open("wb") as file:
        firsts = (tensor[0] for tensor in tensors)
        write_header(file, ((weight.name(place), weight.dtype, weight.stored_shape) for weight, place in firsts))
        for tensor in _host_tensors(tensors, params, fetch):
            file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)


def _host_tensors(tensors: list[Tensor], params: Any, fetch: Callable[[Any], Any]) -> Iterator[np.ndarray]:
    """Yield each tensor in its stored form; a layer's experts come to the host together."""
    fetched: tuple[Any, np.ndarray] | None = None
    for tensor in tensors:
        whole: np.ndarray | None = None
        for weight, place in tensor:
            if fetched is None or fetched[0] != (weight.path, place[:1]):
                value = at_path(params, weight.path)
                fetched = (weight.path, place[:1]), np.asarray(fetch(value[place[0]] if place else value))
            own = fetched[1][place[1:]]
            own = own.swapaxes(-1, -2) if weight.stored.transposed else own
            whole = own if weight.stored.part is None else _with_part(whole, own, weight.stored.part)
        assert whole is not None
        yield whole


def _with_part(whole: np.ndarray | None, own: np.ndarray, part: Part) -> np.ndarray:
    """Put a weight into its tensor; None for one that does not exist yet."""
    whole = np.zeros(part.whole, own.dtype) if whole is None else whole
    whole[part.where(tuple((0, size) for size in own.shape))] = own
    return whole
