"""`--set path=value`: one field of a job, by its path, its value read as YAML.

    training.optimizer.learningRate=6e-5    rewards[0].weight=2    runPolicy={maxRestarts: 1}

A path counts from `spec`; `metadata.labels.team=x` reaches beside it. Lists grow by one element at a time.
"""

from __future__ import annotations

import re
from typing import Any

from ptapi.errors import SpecError
from ptapi.text import kubectl_yaml
from ptctl.errors import InputError
from ptkube.resources import Manifest

_PATH = re.compile(r"[A-Za-z_][\w-]*(\[\d+\])*(\.[A-Za-z_/][\w/-]*(\[\d+\])*)*")
_ROOTS = ("metadata", "spec")


def assign(job: Manifest, assignment: str) -> None:
    """Change `job` in place. Raises InputError for what is not `path=value`."""
    path, found, text = assignment.partition("=")
    if not found or not _PATH.fullmatch(path.strip()):
        raise InputError(
            f"--set {assignment!r}: accepted: PATH=VALUE", "for example --set training.optimizer.learningRate=6e-5"
        )
    steps = _steps(path.strip())
    if steps[0] not in _ROOTS:
        steps.insert(0, "spec")
    _put(job, steps, _value(text, assignment), assignment)


def _steps(path: str) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in re.findall(r"[^.\[\]]+", path)]


def _value(text: str, assignment: str) -> Any:
    if not text.strip():
        return text
    try:
        return kubectl_yaml.read(text)
    except SpecError as error:
        reason = "; ".join(f"{found.value} {found.accepted}".strip() for found in error.findings)
        raise InputError(f"--set {assignment!r}: {reason}", "text is quoted: --set 'path=\"value\"'") from error


def _put(job: Manifest, steps: list[str | int], value: Any, assignment: str) -> None:
    here: Any = job
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        _check(here, step, assignment)
        if following is None:
            _store(here, step, value)
            return
        empty: Any = [] if isinstance(following, int) else {}
        exists = step < len(here) if isinstance(step, int) else here.get(step) is not None
        if not exists:
            _store(here, step, empty)
        here = here[step]


def _check(here: Any, step: str | int, assignment: str) -> None:
    if isinstance(step, int):
        if not isinstance(here, list):
            raise InputError(f"--set {assignment!r}: [{step}] of something that is not a list")
        if step > len(here):
            raise InputError(f"--set {assignment!r}: [{step}] leaves a gap; the list has {len(here)} elements")
    elif not isinstance(here, dict):
        raise InputError(f"--set {assignment!r}: {step!r} of something that is not a mapping")


def _store(here: Any, step: str | int, value: Any) -> None:
    if isinstance(step, int) and step == len(here):
        here.append(value)
    else:
        here[step] = value
