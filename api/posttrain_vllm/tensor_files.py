"""The tensors of an update, found in safetensors files and compared with what the trainer says of them.

8 bytes: length of the header; the header: JSON {name: {dtype, shape, data_offsets}}; then the tensors' bytes
"""

import hashlib
import json
import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MARK = "posttrain-files:"
"""Begins every error of this package, by which the trainer tells it from vLLM's own."""
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Number formats by torch's name, and the name in a file."""
THREADS = 4
"""Threads that compute checksums."""


class TransferError(RuntimeError):
    """An update that is refused."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{MARK} {message}")


class Expected(NamedTuple):
    """What the trainer says of a tensor. sha256: of its bytes, in hexadecimal; file: its name in the directory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    sha256: str


class MappedTensor(NamedTuple):
    """A tensor and its bytes in a mapped file."""

    expected: Expected
    content: memoryview


def verified(directory: str, tensors: Sequence[Expected], rank: int = 0, world_size: int = 1) -> list[MappedTensor]:
    """Return all tensors. Raises TransferError if one is missing or is not the trainer's.

    Every worker compares names, formats and shapes; checksums are shared out: those of tensor i are the worker
    i modulo world_size's. An update is applied after all workers have accepted it.
    """
    files = {file: _mapped(Path(directory), file) for file in sorted({tensor.file for tensor in tensors})}
    mapped = [MappedTensor(tensor, files[tensor.file].content(tensor)) for tensor in tensors]
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(_compare, mapped[rank % world_size :: world_size]))
    return mapped


class _MappedFile:
    """A safetensors file in memory. Its pages are private: nothing that is done to them reaches the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as opened:
            self._content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))
        length = int.from_bytes(self._content[:8], "little")
        self._start = 8 + length
        self._header = json.loads(bytes(self._content[8 : self._start]))

    def content(self, tensor: Expected) -> memoryview:
        entry = self._header.get(tensor.name)
        if entry is None:
            raise TransferError(f"{self._path.name} has no tensor {tensor.name}; nothing was changed")
        is_same = entry["dtype"] == DTYPES.get(tensor.dtype) and tuple(entry["shape"]) == tuple(tensor.shape)
        if not is_same:
            raise TransferError(
                f"{tensor.name} in {self._path.name} is {entry['dtype']} {entry['shape']}, and the trainer has "
                f"{tensor.dtype} {list(tensor.shape)}; nothing was changed"
            )
        begin, end = entry["data_offsets"]
        return self._content[self._start + begin : self._start + end]


def _mapped(directory: Path, file: str) -> _MappedFile:
    if Path(file).name != file:
        raise TransferError(f"{file!r} is no name of a file; nothing was changed")
    try:
        return _MappedFile(directory / file)
    except (OSError, ValueError) as error:
        raise TransferError(f"cannot read {directory / file}: {error}; nothing was changed") from error


def _compare(mapped: MappedTensor) -> None:
    tensor = mapped.expected
    if hashlib.sha256(mapped.content).hexdigest() != tensor.sha256:
        raise TransferError(
            f"{tensor.name} in {tensor.file} has another sha256 than the trainer's; nothing was changed"
        )
