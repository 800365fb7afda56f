"""`--set path=value`: set one field of a job by its path; the value is parsed as YAML.

    training.optimizer.learningRate=6e-5    rewards[0].weight=2    runPolicy={maxRestarts: 1}

A path starts at `spec`; `metadata.labels.team=x` reaches outside it. Lists grow by one element at a time.
"""

import re
from collections.abc import Sequence
from typing import Any

from ptapi.errors import SpecError
from ptapi.text import kubectl_yaml
from ptctl.errors import InputError
from ptkube.resources import Manifest

_PATH = re.compile(r"[A-Za-z_][\w-]*(\[\d+\])*(\.[A-Za-z_/][\w/-]*(\[\d+\])*)*")
_ROOTS = ("metadata", "spec")
_UNSET = ("null", "~")


def assign(job: Manifest, assignment: str) -> None:
    """Set the field in `job`, in place. Raises InputError for anything but `path=value`."""
    path, separator, text = assignment.partition("=")
    if not separator or not _PATH.fullmatch(path.strip()):
        raise InputError(
            f"--set {assignment!r}: accepted: PATH=VALUE", "for example --set training.optimizer.learningRate=6e-5"
        )
    steps = _parse_path(path.strip())
    if steps[0] not in _ROOTS:
        steps.insert(0, "spec")
    _set_at(job, steps, _parse_value(text, assignment), assignment)


def assign_all(job: Manifest, assignments: Sequence[str]) -> None:
    """Set the fields in `job`, in place. Raises InputError, also if one is set twice: only the last would count."""
    paths = [assignment.partition("=")[0].strip().removeprefix("spec.") for assignment in assignments]
    for path, assignment in zip(paths, assignments, strict=True):
        if paths.count(path) > 1:
            raise InputError(f"--set {assignment!r}: {path} is set {paths.count(path)} times; accepted: once")
        assign(job, assignment)


def _parse_path(path: str) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in re.findall(r"[^.\[\]]+", path)]


def _parse_value(text: str, assignment: str) -> Any:
    if not text.strip():
        return text
    if text.strip() in _UNSET:
        return None
    try:
        return kubectl_yaml.read(text)
    except SpecError as error:
        reason = "; ".join(f"{finding.value} {finding.accepted}".strip() for finding in error.findings)
        raise InputError(f"--set {assignment!r}: {reason}", "quote text: --set 'path=\"value\"'") from error


def _set_at(job: Manifest, steps: list[str | int], value: Any, assignment: str) -> None:
    parent: Any = job
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        _check_step(parent, step, assignment)
        if following is None:
            _store_step(parent, step, value)
            return
        empty: Any = [] if isinstance(following, int) else {}
        exists = step < len(parent) if isinstance(step, int) else parent.get(step) is not None
        if not exists:
            _store_step(parent, step, empty)
        parent = parent[step]


def _check_step(parent: Any, step: str | int, assignment: str) -> None:
    if isinstance(step, int):
        if not isinstance(parent, list):
            raise InputError(f"--set {assignment!r}: [{step}] indexes a value that is not a list")
        if step > len(parent):
            raise InputError(f"--set {assignment!r}: [{step}] leaves a gap; the list has {len(parent)} elements")
    elif not isinstance(parent, dict):
        raise InputError(f"--set {assignment!r}: {step!r} is a key of a value that is not a mapping")


def _store_step(parent: Any, step: str | int, value: Any) -> None:
    if isinstance(step, int) and step == len(parent):
        parent.append(value)
    else:
        parent[step] = value
