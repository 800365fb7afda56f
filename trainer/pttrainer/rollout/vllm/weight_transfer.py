"""vLLM's weight API with our backend over files (`posttrain_vllm`), as the trainer uses it.

    POST /init_weight_transfer_engine   does the server have the backend, and see the directory?
    GET  /weight_info                   the version that it has
    POST /pause?mode=wait               lets requests in progress end, and drops its caches of prompts
    POST /start_weight_update
    POST /update_weights                the tensors: names, formats, shapes, files, checksums; verified, not yet loaded
    POST /finish_weight_update          loaded by all workers, under the version's name
    POST /resume

A server that has the version that it was given last is given the layers that changed since: frozen ones stay. Served by
vLLM 0.32.0 under VLLM_SERVER_DEV_MODE=1.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from posttrain_vllm.tensor_files import MARK, Expected
from pttrainer.models.weights import safetensors_file

THREADS = 4
"""Threads that compute checksums."""
_LAYER = re.compile(r"^.*?\.\d+\.")
_PIECE_BYTES = 1 << 22


class Refused(Exception):
    """The server refuses a call; its answer."""


class NoDirectory(Refused):
    """The server does not see the trainer's files; its answer."""


class NoBackend(Exception):
    """The server has no backend over files; its answer."""


class TensorList:
    """The tensors of a directory. Files are read when they are needed first, once."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._tensors = directory, tuple[Expected, ...]()
        self._lock = threading.Lock()

    def tensors(self) -> tuple[Expected, ...]:
        """Return all tensors, file after file in the order of their bytes."""
        with self._lock:
            if not self._tensors:
                self._tensors = tuple(_listed(self._directory))
            return self._tensors


def changed_layers(new: Sequence[Expected], old: Sequence[Expected]) -> list[Expected]:
    """Return the tensors of layers in which one differs: vLLM keeps some of a layer's tensors in one."""
    before = {tensor.name: tensor.sha256 for tensor in old}
    changed = {_layer(tensor.name) for tensor in new if before.get(tensor.name) != tensor.sha256}
    return [tensor for tensor in new if _layer(tensor.name) in changed]


class WeightTransfer:
    """The API of one server. call(method, path, body): its JSON; raises `Refused`."""

    def __init__(self, call: Callable[[str, str, Mapping[str, Any] | None], Any]) -> None:
        self._call = call
        self._held: tuple[str, TensorList] | None = None

    def load(self, name: str, directory: Path, listed: TensorList) -> None:
        """Give the server a version. Raises NoBackend, NoDirectory, or Refused with the server's reason."""
        held, self._held = self._held, None  # whatever fails below: all weights next time
        try:
            self._call("POST", "/init_weight_transfer_engine", {"init_info": {"directory": str(directory)}})
        except Refused as refused:
            if MARK in str(refused):
                raise NoDirectory(str(refused)) from refused
            raise NoBackend(str(refused)) from refused
        tensors: Sequence[Expected] = listed.tensors()
        if held is not None and self._version() == held[0]:
            tensors = changed_layers(tensors, held[1].tensors())
        self._call("POST", "/pause?mode=wait", None)
        try:
            self._start()
            self._call("POST", "/update_weights", {"update_info": update_info(directory, tensors)})
            self._call("POST", "/finish_weight_update", {"weight_version": name})
        except Refused:
            self._call("POST", "/resume", None)
            raise
        self._call("POST", "/resume", None)
        if (version := self._version()) != name:
            raise Refused(f"/weight_info: {version!r} after an update to {name!r}")
        self._held = name, listed

    def _start(self) -> None:
        try:
            self._call("POST", "/start_weight_update", None)
        except Refused:  # an update of a trainer that is gone; nothing is staged any more, so its end changes nothing
            self._call("POST", "/finish_weight_update", {})
            self._call("POST", "/start_weight_update", None)

    def _version(self) -> str:
        return str(self._call("GET", "/weight_info", None)["weight_version"])


def update_info(directory: Path, tensors: Sequence[Expected]) -> dict[str, Any]:
    """Return what `/update_weights` is told: columns, as vLLM's own backends have them."""
    names, dtype_names, shapes, files, sums = [list(column) for column in zip(*tensors, strict=True)] or [[]] * 5
    columns = {"names": names, "dtype_names": dtype_names, "shapes": shapes, "files": files, "sha256": sums}
    return {"directory": str(directory), **columns}


def _layer(name: str) -> str:
    """Return the name up to its first number, or the whole name."""
    layer = _LAYER.match(name)
    return layer[0] if layer else name


def _listed(directory: Path) -> list[Expected]:
    located = [
        (name, tensor)
        for file in sorted(directory.glob("*.safetensors"))
        for name, tensor in sorted(safetensors_file.read_header(file).items(), key=lambda item: item[1].start)
    ]
    with ThreadPoolExecutor(THREADS) as threads:
        sums = threads.map(_sha256, [tensor for _, tensor in located])
        return [
            Expected(name, str(tensor.dtype), tensor.shape, tensor.file.name, sha256)
            for (name, tensor), sha256 in zip(located, sums, strict=True)
        ]


def _sha256(tensor: safetensors_file.Tensor) -> str:
    left = tensor.dtype.itemsize
    for size in tensor.shape:
        left *= size
    digest = hashlib.sha256()
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        while left:
            piece = file.read(min(left, _PIECE_BYTES))
            if not piece:
                raise safetensors_file.truncated(tensor.file)
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()
