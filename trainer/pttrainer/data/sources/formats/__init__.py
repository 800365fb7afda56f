"""What is inside a data file, by its suffix: one module per format, each yields records in the file's order.

A format is a function from a file's content to `Record`s. What is wrong with one row is a record too (its `value`
is a DataError), because the job decides whether a bad row ends the run; what is wrong with the whole file is raised.
"""

from __future__ import annotations

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
    """The format's suffix of a file name, whatever it is compressed with; None where it is no format of ours."""
    for packed in UNPACKERS:
        name = name.removesuffix(packed)
    return next((known for known in READERS if name.lower().endswith(known)), None)


def read(name: str, content: bytes, where: str) -> Iterator[Record]:
    """The records of a file; raises DataError, naming `where`, for one that is broken or of no known format."""
    known = suffix(name)
    if known is None:
        raise DataError(f"{where}: format not recognised from its name; accepted: {ACCEPTED}")
    return READERS[known](_unpacked(name, content, where), where)


def _unpacked(name: str, content: bytes, where: str) -> bytes:
    for packed, unpack in UNPACKERS.items():
        if name.endswith(packed):
            try:
                return unpack(content)
            except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
                raise DataError(f"{where}: cannot be decompressed as {packed}: {error}; hint: is it whole?") from error
    return content
