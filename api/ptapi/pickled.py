"""Python values between a user's Python and the trainer's: functions, arguments and results.

A value is pickled by cloudpickle, which takes a function of a notebook or a test with all that it refers to. In front
stand the versions of Python and cloudpickle that wrote it: bytecode of another Python would crash and not fail. Arrays
lie behind the pickle, uncopied (buffers out of band, protocol 5); a file is mapped into memory and not read.
Whoever loads a value runs its code: load only what your own jobs wrote.
"""

import base64
import json
import mmap
import pickle
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_ALIGNMENT = 64
"""Bytes: what a vector instruction loads at once."""
_LINE = 120


class NotLoadable(Exception):
    """The bytes are no value that this Python can load; the message says why."""


def dumps(value: Any) -> list[bytes | memoryview]:
    """Return the value in parts, to be written one after the other; arrays are views of their own memory.

    Raises whatever the value's own pickling raises.
    """
    import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    stream: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    lengths = [len(stream), *(view.nbytes for view in views)]
    header = json.dumps({**_versions(), "lengths": lengths}).encode() + b"\n"
    return list(_aligned([header, stream, *views]))


def loads(content: bytearray | mmap.mmap) -> Any:
    """Return the value. Arrays share the memory of `content`, which is writable. Raises NotLoadable."""
    end = content.find(b"\n") + 1
    try:
        header = json.loads(content[:end])
        lengths = [int(length) for length in header["lengths"]]
    except (ValueError, KeyError, TypeError) as error:
        raise NotLoadable(f"it is no packed value: {error}") from error
    _check(header)
    parts, start = [], _padded(end)
    for length in lengths:
        parts.append(memoryview(content)[start : start + length])
        start = _padded(start + length)
    if parts and len(parts[-1]) != lengths[-1]:
        raise NotLoadable(f"it has {len(content):,} bytes; accepted: all {start:,} that were written")
    return pickle.loads(parts[0], buffers=parts[1:])


def load(path: Path) -> Any:
    """Return the value in a file, mapped into memory; changes of it stay in memory. Raises NotLoadable, OSError."""
    with path.open("rb") as file:
        try:
            return loads(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except ValueError as error:  # an empty file
            raise NotLoadable(f"{path} is no packed value: {error}") from error


def python_file(name: str, value: Any, origin: str) -> str:
    """Return a Python file that defines `name` as the value; origin: a comment for readers."""
    packed = base64.b64encode(zlib.compress(b"".join(dumps(value)), 9)).decode()
    lines = "\n".join(packed[start : start + _LINE] for start in range(0, len(packed), _LINE))
    return f'# {origin}\nfrom {__name__} import from_text\n\n{name} = from_text("""\n{lines}\n""")\n'


def from_text(text: str) -> Any:
    """Return the value in a file of `python_file`. Raises NotLoadable."""
    return loads(bytearray(zlib.decompress(base64.b64decode(text))))


def _versions() -> dict[str, str]:
    import cloudpickle

    return {"python": _minor(sys.version.split()[0]), "cloudpickle": _minor(cloudpickle.__version__)}


def _check(header: dict[str, Any]) -> None:
    """Raise NotLoadable for a value of another version of Python or cloudpickle."""
    for name, here in _versions().items():
        if header.get(name) != here:
            hint = "choose an image with that version" if name == "python" else f"pip install 'cloudpickle=={here}.*'"
            raise NotLoadable(
                f"it was packed with {name} {header.get(name)}, and {name} {here} runs here; accepted: the same "
                f"version; hint: {hint}, or the other way round"
            )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _padded(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _aligned(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the parts, each from an aligned place on."""
    for part in parts:
        length = memoryview(part).nbytes
        yield part
        if padding := _padded(length) - length:
            yield bytes(padding)
