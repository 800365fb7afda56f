"""Where a row says that an image is: bytes in the row, a path beside its file, or a URI.

As Hugging Face's data sets write it (`{bytes, path}`, or a path) and as OpenAI's messages do (`{url}`, which may be a
`data:` URL). Nothing is read here.
"""

import base64
import binascii
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from ptapi.text import bucket_names
from pttrainer.data.conversation import kind
from pttrainer.errors import DataError

ACCEPTED = "accepted: a path beside the file, file://, gs://, https://, a data: URL, or {bytes, path}"
SHOWN = 60
"""Characters of a wrong value in messages."""
LONGEST_NAME = 1024
"""Of a path; what is longer is the image itself, as text."""


@dataclass(frozen=True)
class ImageReference:
    """An image of a row: its encoded bytes, or the URI that has them. where: row and column, for messages."""

    where: str
    content: bytes | None = field(default=None, repr=False)
    uri: str = ""

    @property
    def named(self) -> str:
        """Return the row and column, and the URI where it has one, for messages about its content."""
        return f"{self.where}: {self.uri}" if self.uri else self.where

    @property
    def url(self) -> str:
        """Return a URL that names it from anywhere: its own, or one that holds its bytes."""
        if self.content is None:
            return self.uri
        return f"data:image/*;base64,{base64.b64encode(self.content).decode()}"


@dataclass(frozen=True)
class Origin:
    """Where a row is from. file: URI of its file; https: whether the job lets its images be fetched from the web."""

    file: str
    https: bool = False


def reference(value: Any, where: str, origin: Origin) -> ImageReference:
    """Return the image that a value of a row names; raise DataError."""
    if isinstance(value, dict):
        content = value.get("bytes")
        named = content if isinstance(content, bytes) else value.get("url") or value.get("path")
        if not named and not isinstance(named, bytes):
            raise DataError(f"{where}: is an object with {_contents(value)}; {ACCEPTED}")
        value = named
    if isinstance(value, bytes):
        return ImageReference(where, value)
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: is {kind(value)}; {ACCEPTED}")
    if value.startswith("data:"):
        return ImageReference(where, _inline(value, where))
    return ImageReference(where, uri=_absolute(value, where, origin))


def _inline(url: str, where: str) -> bytes:
    """Return the bytes of a `data:` URL."""
    header, comma, body = url.partition(",")
    try:
        if not comma:
            raise ValueError("has no comma")
        is_base64 = header.lower().endswith(";base64")
        return base64.b64decode("".join(body.split()), validate=True) if is_base64 else unquote_to_bytes(body)
    except (ValueError, binascii.Error) as error:
        raise DataError(f"{where}: {url[:SHOWN]!r}: {error}; accepted: data:image/png;base64,…") from error


def _contents(value: Mapping[str, Any]) -> str:
    """Return what an object holds that names no image."""
    return ", ".join(f"{key}: {kind(inner)}" for key, inner in list(value.items())[:4]) or "nothing in it"


def _absolute(value: str, where: str, origin: Origin) -> str:
    """Return the URI of a path or URI; rows of strangers name nothing on this machine or in a bucket."""
    scheme, separator, _ = value.partition("://")
    shown = f"{where}: {value[:SHOWN]!r}"
    if not separator and len(value) > LONGEST_NAME:
        raise DataError(
            f"{shown}: a name of {len(value):,} characters; accepted: at most {LONGEST_NAME:,}; "
            "hint: base64 has data:image/png;base64, before it"
        )
    if separator and scheme == "gs" and (wrong := bucket_names.problem(value)):
        raise DataError(f"{where}: {wrong}")
    if separator and scheme == "https":
        if not origin.https:
            raise DataError(f"{shown}: images from the web; hint: set spec.data.allowHttpsImages: true, or copy them")
        return value
    if separator and scheme not in ("file", "gs"):
        raise DataError(f"{shown}: {scheme}://; {ACCEPTED}")
    if origin.file.startswith("hf://"):
        raise DataError(
            f"{shown}: images beside the files of a hub data set: not supported yet; accepted: bytes in its rows "
            "(Parquet), https://, data: URLs; hint: copy the data set to a directory or a bucket"
        )
    if separator:
        return value
    scheme, _, directory = origin.file.rpartition("/")[0].partition("://")
    if value.startswith("/") and scheme != "file":
        raise DataError(f"{shown}: a path on a machine; accepted: a path beside {origin.file}, or a URI")
    return f"{scheme}://{posixpath.normpath(posixpath.join(directory, value))}"
