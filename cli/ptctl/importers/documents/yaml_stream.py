"""YAML streams of Kubernetes objects, and the jobs in them."""

import re

from ptapi.errors import SpecError
from ptapi.text import kubectl_yaml
from ptctl.errors import InputError
from ptctl.importers.documents import jobset, pathways_job, train_job
from ptctl.importers.draft import Draft
from ptkube.resources import Manifest

_KINDS = {kind: source for source in (pathways_job, jobset, train_job) for kind in source.KINDS}
_START = re.compile(r"(?:\s*#.*\n|\s*\n)*\s*(apiVersion|kind|metadata|---)")


def is_document(text: str) -> bool:
    """Return True for a text that starts as an object does."""
    return _START.match(text) is not None


def drafts(text: str, where: str) -> list[Draft]:
    """Return the jobs of a stream. Raises InputError for YAML that kubectl would not take, and if there is none."""
    try:
        bodies = [kubectl_yaml.read(part) for part in re.split(r"(?m)^---(?:\s.*)?$", text) if part.strip()]
    except SpecError as error:
        raise InputError("\n  ".join(f"{where}: {finding}" for finding in error.findings)) from error
    objects: list[Manifest] = [body for body in bodies if isinstance(body, dict)]
    jobs = [body for body in objects if body.get("kind") in _KINDS]
    if not jobs:
        kinds = ", ".join(sorted({str(body.get("kind")) for body in objects}))
        command = "`ptctl import --command 'COMMAND'` reads what its container runs, where that is TRL or Axolotl"
        hint = command if any("kubeflow.org/" in str(body.get("apiVersion")) for body in objects) else ""
        raise InputError(f"{where}: kind: {kinds}; accepted: {', '.join(_KINDS)}", hint)
    others = [body for body in objects if body.get("kind") not in _KINDS]
    made = []
    for body in jobs:
        try:
            made.append(_KINDS[str(body["kind"])].draft_of(body, others))
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{where}: not a valid {body['kind']}: near {error}") from error
    for body in others:
        made[0].note(f"{body.get('kind')} {body.get('metadata', {}).get('name')}", "not imported: apply it as before")
    return made
