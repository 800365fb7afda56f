"""Parquet, and Arrow as `datasets.save_to_disk` writes it: batch by batch, so that a limit saves the rest.

Values become JSON types, so that a row is the same in every file format: times and decimals become text. Only the
content of a file in a row stays bytes (Hugging Face's features Image and Audio: `{bytes, path}`), as do bytes that are
no text.
"""

from collections.abc import Iterator
from typing import Any

from pttrainer.data.sources.formats.record import Record
from pttrainer.errors import DataError, first_line

BATCH_ROWS = 1024
FILE = {"bytes", "path"}
"""Keys of a file that a row holds."""


def read_parquet(content: bytes, where: str) -> Iterator[Record]:
    """Yield a record per row."""
    import pyarrow
    from pyarrow import parquet

    try:
        yield from _records(parquet.ParquetFile(pyarrow.BufferReader(content)).iter_batches(BATCH_ROWS), where)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{where}: cannot be read as Parquet: {first_line(error)}; hint: is the file complete?"
        ) from error


def read_arrow(content: bytes, where: str) -> Iterator[Record]:
    """Yield a record per row of a stream, or of a file with a footer."""
    import pyarrow

    buffer = pyarrow.BufferReader(content)
    try:
        if content.startswith(b"ARROW1"):
            file = pyarrow.ipc.open_file(buffer)
            yield from _records((file.get_batch(i) for i in range(file.num_record_batches)), where)
        else:
            yield from _records(pyarrow.ipc.open_stream(buffer), where)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{where}: cannot be read as Arrow: {first_line(error)}; hint: is the file complete?"
        ) from error


def _records(batches: Any, where: str) -> Iterator[Record]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield Record(number, f"{where} row {number}", _plain(row))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        if value.keys() == FILE:
            return {"bytes": value["bytes"], "path": _plain(value["path"])}
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return _text_or_bytes(value) if isinstance(value, bytes) else str(value)


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
