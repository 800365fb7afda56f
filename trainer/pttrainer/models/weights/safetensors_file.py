"""Files in the safetensors format, read and written piece by piece with plain file reads.

    8 bytes: length of the header; the header: JSON {name: {dtype, shape, data_offsets}}; then the tensors' bytes

A memory map would do too, but its pages count as the process's memory until the system wants them back, and
what a load may take is bounded here.
"""

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ptapi.text.messages import shown
from pttrainer.errors import ConfigError
from pttrainer.runtime.io import json_text

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U8": np.dtype(np.uint8),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
}
"""What can be read; a name of any other number format is refused."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Tensor:
    """Location of a tensor: file, number format, shape and first byte."""

    file: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int

    def rows(self, first: int, last: int) -> np.ndarray:
        """Return the entries [first:last] of the leading axis."""
        row = self.dtype.itemsize
        for size in self.shape[1:]:
            row *= size
        out = np.empty((last - first, *self.shape[1:]), self.dtype)
        with self.file.open("rb") as file:
            file.seek(self.start + first * row)
            if file.readinto(out.reshape(-1).view(np.uint8).data) != out.nbytes:
                raise truncated(self.file)
        return out


def read_header(file: Path) -> dict[str, Tensor]:
    """Return all tensors of a file; raise ConfigError if it is truncated or its numbers are unsupported."""
    with file.open("rb") as opened:
        start = opened.read(8)
        if len(start) < 8:
            raise truncated(file)
        (length,) = struct.unpack("<Q", start)
        header = _parsed(file, opened.read(length) if length < file.stat().st_size else b"")
    size = file.stat().st_size
    tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _entry(file, name, entry)
        if 8 + length + end > size:
            raise truncated(file)
        tensors[name] = Tensor(file, dtype, shape, 8 + length + begin)
    return tensors


def _entry(file: Path, name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """Return number format, shape, first byte and end of a tensor; raise ConfigError where they are not consistent."""
    try:
        kind, shape, (begin, end) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise _inconsistent(file, name, entry) from None
    if kind not in DTYPES:
        accepted = f"not supported; accepted: {', '.join(DTYPES)}"
        raise ConfigError(f"{file}: {shown(name)}: number format {shown(kind)}: {accepted}")
    are_counts = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    if not are_counts or end - begin != DTYPES[kind].itemsize * math.prod(shape):
        raise _inconsistent(file, name, entry)
    return DTYPES[kind], shape, begin, end


def _inconsistent(file: Path, name: str, entry: Any) -> ConfigError:
    return ConfigError(
        f"{file}: {shown(name)}: {repr(entry)[:120]}; accepted: dtype, shape, and data_offsets as far apart as the "
        "shape has bytes; hint: copy the file again"
    )


def truncated(file: Path) -> ConfigError:
    """Return the error for a truncated file."""
    return ConfigError(f"{file}: is truncated, or not a safetensors file; hint: copy it again")


def write_header(file: BinaryIO, tensors: Iterable[tuple[str, np.dtype, tuple[int, ...]]]) -> None:
    """Write the header; the tensors' bytes must follow in the same order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in tensors:
        begin, end = end, end + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)


def _parsed(file: Path, text: bytes) -> dict[str, dict[str, Any]]:
    try:
        header: dict[str, dict[str, Any]] = json_text.loads(text)
    except ValueError as error:
        raise truncated(file) from error
    if not isinstance(header, dict):
        raise truncated(file)
    return header
