"""Job files: one job each, parsed as the API parses YAML and checked before anything is sent."""

import os
import select
import sys
from collections.abc import Sequence

from ptapi.errors import SpecError
from ptapi.load import SERVER_METADATA, parse_job
from ptapi.spec import PostTrainJob
from ptapi.text import kubectl_yaml
from ptctl.errors import InputError
from ptctl.jobs.definition.set_field import assign_all
from ptkube.resources import Manifest

STDIN = "-"
_SERVER_METADATA = (*SERVER_METADATA, "uid")
_MOST_BYTES = 3 * 2**20
"""The API server accepts no larger request."""


def read(path: str) -> Manifest:
    """Return the document in a file (`-`: standard input). Raises InputError; the spec itself is not checked."""
    where = "standard input" if path == STDIN else path
    try:
        body = kubectl_yaml.read(read_text(path))
    except SpecError as error:
        raise InputError("\n  ".join(f"{where}: {finding}" for finding in error.findings)) from error
    if not isinstance(body, dict):
        raise InputError(f"{where}: {type(body).__name__}; accepted: a map with apiVersion, kind, metadata, spec")
    kind = body.get("kind")
    if kind != "PostTrainJob":
        hint = {
            None: "a job starts with `apiVersion: posttrain.dev/v1alpha1` and `kind: PostTrainJob`",
            "List": "put one job in each file",
        }.get(kind, "ptctl handles only PostTrainJobs; use `kubectl apply -f` for other kinds")
        raise InputError(f"{where}: kind: {kind!r}; accepted: PostTrainJob", hint)
    return body


def read_with_changes(path: str, assignments: Sequence[str]) -> Manifest:
    """Return the document in a file with the `--set` assignments applied. Raises InputError."""
    job = read(path)
    assign_all(job, assignments)
    return job


def without_server_fields(job: Manifest) -> tuple[Manifest, list[str]]:
    """Return the job without what only the server sets (as in `get -o yaml`), and the names of these fields."""
    metadata = job.get("metadata")
    names = [name for name in _SERVER_METADATA if isinstance(metadata, dict) and name in metadata]
    dropped = [*(f"metadata.{name}" for name in names), *(["status"] if "status" in job else [])]
    if not dropped:
        return job, []
    kept = {name: value for name, value in (metadata or {}).items() if name not in names}
    return {**{name: value for name, value in job.items() if name != "status"}, "metadata": kept}, dropped


def check(job: Manifest, where: str) -> PostTrainJob:
    """Check every rule that needs no cluster and return the parsed job. Raises InputError with one line per finding."""
    try:
        return parse_job(job)
    except SpecError as error:
        count = len(error.findings)
        lines = "".join(f"\n  {finding}" for finding in error.findings)
        raise InputError(f"{where}: {count} error{'s' * (count > 1)}{lines}") from error


def read_text(path: str) -> str:
    """Return the text of a file (`-`: standard input). Raises InputError."""
    if path == STDIN:
        if sys.stdin.isatty():
            print("reading a job from standard input; press Ctrl-D to end", file=sys.stderr)
        return _decode(sys.stdin.buffer.read(_MOST_BYTES + 1), "standard input")
    try:
        return _decode(_read_bytes(path), path)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: a directory; accepted: a YAML or JSON file, or - for standard input") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _read_bytes(path: str) -> bytes:
    """Read a file, a device or a pipe that has a writer (`-f <(command)`); a pipe without one is empty."""
    data = b""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        while len(data) <= _MOST_BYTES:
            chunk = file.read(_MOST_BYTES)
            if chunk is None:  # its writer has written nothing yet
                select.select([file], [], [])
            elif chunk:
                data += chunk
            else:
                break
    return data


def _decode(data: bytes, where: str) -> str:
    if len(data) > _MOST_BYTES:
        raise InputError(f"{where}: more than {_MOST_BYTES >> 20} MiB; accepted: one job")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not a text file (byte {error.start} is not UTF-8)") from error
