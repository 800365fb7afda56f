"""A local copy of a user's Python file: of the job's own text, or of what its URI points to."""

import atexit
import shutil
import tempfile
from pathlib import Path

from ptapi.spec import PythonCode
from pttrainer.runtime.io import storage


def local_copy(field: str, python: PythonCode) -> str:
    """Return the path of the user's file; the job's own text, or a file from a bucket, is copied, alone.

    Raises DataError naming `field` if it cannot be read. The copy is deleted when the process ends.
    """
    if python.code is not None:
        return _write("code.py", python.code.encode())
    assert python.uri is not None  # one of the two is given
    scheme, path = storage.split(python.uri)
    if scheme == "file":
        return path
    return _write(python.uri.rpartition("/")[2], storage.read_file(python.uri, f"{field}.uri"))


def _write(name: str, content: bytes) -> str:
    home = tempfile.mkdtemp(prefix="posttrain-python-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    copy = Path(home, name)
    copy.write_bytes(content)
    return str(copy)
