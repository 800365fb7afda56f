"""The bytes of a row's image: from the row, a file, a bucket, or the web where the job allows it."""

from functools import lru_cache

from pttrainer.data.sources.images import web
from pttrainer.data.sources.images.references import ImageReference
from pttrainer.runtime.io import storage

_opened = lru_cache(maxsize=256)(storage.place)
"""A bucket's client takes longer to make than an image to read."""


def read(image: ImageReference) -> bytes:
    """Return the encoded image; raise DataError, naming its row."""
    if image.content is not None:
        return image.content
    if image.uri.startswith("https://"):
        return web.fetch(image.uri, image.where)
    return storage.read_file(image.uri, image.where, _opened)
