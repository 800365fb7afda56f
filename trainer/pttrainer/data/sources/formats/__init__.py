"""Data file formats by suffix: one module per format, each yields records in the file's order.

A format is a function from a file's content to `Record`s. An error in one row is a record too (its `value` is a
DataError), because the job decides whether a bad row ends the run; an error of the whole file is raised.
"""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator

from pttrainer.data.sources.formats import csv_tsv, json_lines, json_list, parquet_arrow
from pttrainer.data.sources.formats.record import Record
from pttrainer.errors import DataError

Reader = Callable[[bytes, str], Iterator[Record]]

READERS: dict[str, Reader] = {
    ".jsonl": json_lines.read,
    ".ndjson": json_lines.read,
    ".json": json_list.read,
    ".csv": csv_tsv.read_commas,
    ".tsv": csv_tsv.read_tabs,
    ".parquet": parquet_arrow.read_parquet,
    ".arrow": parquet_arrow.read_arrow,
}


def _unzstd(content: bytes) -> bytes:
    import pyarrow

    return bytes(pyarrow.input_stream(pyarrow.BufferReader(content), compression="zstd").read())


UNPACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
    ".zst": _unzstd,
}
ACCEPTED = f"{', '.join(READERS)}, each also with {', '.join(UNPACKERS)}"


def suffix(name: str) -> str | None:
    """Return the format's suffix of a file name, ignoring compression, or None if the format is unknown."""
    for packed in UNPACKERS:
        name = name.removesuffix(packed)
    return next((each for each in READERS if name.lower().endswith(each)), None)


def read(name: str, content: bytes, where: str) -> Iterator[Record]:
    """Return the records of a file; raise DataError, naming `where`, if it is broken or of unknown format."""
    format_suffix = suffix(name)
    if format_suffix is None:
        raise DataError(f"{where}: format not recognised from its name; accepted: {ACCEPTED}")
    return READERS[format_suffix](_unpacked(name, content, where), where)


def _unpacked(name: str, content: bytes, where: str) -> bytes:
    for packed, unpack in UNPACKERS.items():
        if name.endswith(packed):
            try:
                return unpack(content)
            except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
                raise DataError(
                    f"{where}: cannot be decompressed as {packed}: {error}; hint: is the file complete?"
                ) from error
    return content
