"""The bytes of a row's image: from the row, a file, a bucket, or the web where the job allows it."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from pttrainer.data.sources.images import web
from pttrainer.data.sources.images.references import ImageReference
from pttrainer.errors import DataError
from pttrainer.runtime.io import storage

MAX_BYTES = 512 << 20
"""Of a file: more than the largest picture that is decoded has without any compression."""

_opened = lru_cache(maxsize=256)(storage.place)
"""A bucket's client takes longer to make than an image to read."""


def read(image: ImageReference) -> bytes:
    """Return the encoded image; raise DataError, naming its row."""
    if image.content is not None:
        return image.content
    if image.uri.startswith("https://"):
        return web.fetch(image.uri, image.where)
    if image.uri.startswith("file://"):
        _check_size(image)
    return storage.read_file(image.uri, image.where, _opened)


def _check_size(image: ImageReference) -> None:
    """Refuse a file that would fill the memory before anything looks at it, such as a video."""
    size = 0
    with suppress(OSError, ValueError):  # a file that is not there has its answer where it is read
        size = Path(storage.split(image.uri)[1]).stat().st_size
    if size > MAX_BYTES:
        raise DataError(f"{image.named}: has {size:,} bytes; accepted: at most {MAX_BYTES:,}")
