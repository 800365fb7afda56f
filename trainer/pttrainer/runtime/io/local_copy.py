"""A local copy of a user's Python file, wherever the job's URI points."""

import atexit
import shutil
import tempfile
from pathlib import Path

from pttrainer.runtime.io import storage


def local_copy(field: str, uri: str) -> str:
    """Return the path of the file behind a URI; a file from a bucket is copied, alone.

    Raises DataError naming `field` if it cannot be read. The copy is deleted when the process ends.
    """
    scheme, path = storage.split(uri)
    if scheme == "file":
        return path
    content = storage.read_file(uri, field)
    home = tempfile.mkdtemp(prefix="posttrain-python-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    copy = Path(home, uri.rpartition("/")[2])
    copy.write_bytes(content)
    return str(copy)
