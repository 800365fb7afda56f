"""Job files: one job each, read as the API reads YAML, checked with its rules before anything is sent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ptapi.errors import SpecError
from ptapi.load import parse_job
from ptapi.spec import PostTrainJob
from ptapi.text import kubectl_yaml
from ptctl.errors import InputError
from ptctl.jobs.set_field import assign
from ptkube.resources import Manifest

STDIN = "-"


def read(path: str) -> Manifest:
    """The document in a file (`-`: standard input). Raises InputError; the spec itself is not looked at."""
    where = "standard input" if path == STDIN else path
    try:
        body = kubectl_yaml.read(_text(path))
    except SpecError as error:
        raise InputError("\n  ".join(f"{where}: {finding}" for finding in error.findings)) from error
    if not isinstance(body, dict):
        raise InputError(f"{where}: {type(body).__name__}; accepted: a map with apiVersion, kind, metadata, spec")
    kind = body.get("kind")
    if kind != "PostTrainJob":
        hint = {
            None: "a job begins with `apiVersion: posttrain.dev/v1alpha1` and `kind: PostTrainJob`",
            "List": "one job in a file",
        }.get(kind, "ptctl handles PostTrainJobs; `kubectl apply -f` takes the rest")
        raise InputError(f"{where}: kind: {kind!r}; accepted: PostTrainJob", hint)
    return body


def read_changed(path: str, assignments: Sequence[str]) -> Manifest:
    """The document in a file, with the fields that `--set` changes. Raises InputError."""
    job = read(path)
    for assignment in assignments:
        assign(job, assignment)
    return job


def check(job: Manifest, where: str) -> PostTrainJob:
    """Every rule that needs no cluster. Raises InputError with all findings, a line each."""
    try:
        return parse_job(job)
    except SpecError as error:
        count = len(error.findings)
        lines = "".join(f"\n  {finding}" for finding in error.findings)
        raise InputError(f"{where}: {count} thing{'s' * (count > 1)} wrong{lines}") from error


def _text(path: str) -> str:
    if path == STDIN:
        if sys.stdin.isatty():
            print("reading a job from standard input; end with Ctrl-D", file=sys.stderr)
        return _decoded(sys.stdin.buffer.read(), "standard input")
    try:
        return _decoded(Path(path).read_bytes(), path)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: a directory; accepted: a YAML or JSON file, or - for standard input") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not a text file (byte {error.start} is not UTF-8)") from error
