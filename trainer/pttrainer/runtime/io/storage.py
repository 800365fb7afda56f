"""Files behind URIs: `file://` directories and `gs://` buckets, behind one interface (`place.Place`).

Errors say which URI could not be read or written, and why.
"""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlparse

from ptapi.text import bucket_names
from pttrainer.errors import ConfigError, DataError, NetworkError, StorageError
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.io.gcs_bucket import Bucket
from pttrainer.runtime.io.place import Place


def place(uri: str) -> Place:
    """Return the place behind a `file://` or `gs://` URI."""
    scheme, path = split(uri)
    return Directory(Path(path)) if scheme == "file" else bucket(uri)


def below(place_: Place, name: str) -> Place:
    """Return a subdirectory of a place, behind the same fence."""
    directory = place(f"{place_.uri}/{name}")
    directory.fence = place_.fence
    return directory


def bucket(uri: str) -> Bucket:
    """Return the bucket and prefix of a `gs://` URI. Raises ConfigError for what no bucket is named."""
    if wrong := bucket_names.problem(uri):
        raise ConfigError(wrong)
    name, _, prefix = split(uri)[1].partition("/")
    return Bucket(name, prefix)


def split(uri: str) -> tuple[str, str]:
    """Return scheme and path of a supported URI. Names may hold `#`, `?` and `%`, which mean themselves."""
    scheme, separator, path = uri.partition("://")
    if separator and scheme == "file":
        return "file", path.removeprefix("localhost") if path.startswith("localhost/") else path
    if separator and scheme == "gs":
        return "gs", path
    raise ConfigError(f"{uri}: {urlparse(uri).scheme}:// not supported yet; accepted: file://, gs://")


def read_file(uri: str, field: str, open_place: Callable[[str], Place] = place) -> bytes:
    """Return the content of the file that the job names in `field`; raise DataError if it cannot be read.

    open_place: for callers that read many files of a place.
    """
    directory, _, name = uri.rpartition("/")
    try:
        scheme, path = split(uri)
        if scheme == "file" and Path(path).exists() and not Path(path).is_file():
            raise DataError(f"{field}: {uri}: is not a regular file; accepted: the URI of one file")
        content = open_place(directory).read(name)
    except OSError as error:
        raise DataError(f"{field}: {uri}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a zero byte in its name
        raise DataError(f"{field}: {uri!r}: cannot be read: {error}") from error
    except NetworkError:
        raise
    except StorageError as error:
        raise DataError(f"{field}: {error}") from error
    if content is None:
        raise DataError(f"{field}: {uri}: no such file; hint: the path must exist where the trainer runs")
    return content
