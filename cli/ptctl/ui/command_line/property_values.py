"""What the verbs of `ptctl config` accept, and what the shell completes."""

import re
from contextlib import suppress

import click

from ptctl.errors import InputError
from ptctl.ui.configurations import PROPERTIES, read

_NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_FORMS = {
    "namespace": (_NAME, "lower-case letters, digits and -, with no - at either end"),
    "queue": (_NAME, "lower-case letters, digits and -, with no - at either end"),
    "project": (r"[a-z][-a-z0-9]{4,28}[a-z0-9]", "a project's id, such as my-project"),
    "location": (r"[a-z]+-[a-z]+\d+(-[a-z])?", "a region or zone, such as us-east5 or us-east5-b"),
    "zone": (r"[a-z]+-[a-z]+\d+-[a-z]", "a zone, such as us-east5-b"),
    "context": (r"\S+", "a context of the kubeconfig"),
}


def complete_configurations(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of configurations; nothing if their file cannot be read."""
    with suppress(InputError):
        return [name for name in read().by_name if name.startswith(incomplete)]
    return []


def checked_property(name: str) -> str:
    """Return a property's name. Raises InputError for any other."""
    if name not in PROPERTIES:
        raise InputError(f"property {name!r}: accepted: {', '.join(PROPERTIES)}")
    return name


def checked_value(name: str, text: str) -> str:
    """Return a property's value. Raises InputError for one that no verb would take."""
    if name == "accelerator":
        return _accelerator(text)
    if name == "output":
        return _output(text)
    form, accepted = _FORMS[name]
    if not re.fullmatch(form, text):
        raise InputError(f"{name}: {text!r}; accepted: {accepted}")
    return text


def _output(text: str) -> str:
    from ptapi.spec.base import OUTPUT_URI
    from ptapi.text import bucket_names

    if re.fullmatch(OUTPUT_URI, text):
        return text
    hint = f"a bucket has {bucket_names.ACCEPTED}" if text.startswith("gs://") and bucket_names.problem(text) else ""
    raise InputError(f"output: {text!r}; accepted: gs://bucket/directory or file:///directory", hint)


def _accelerator(text: str) -> str:
    from ptapi import accelerators
    from ptapi.errors import SpecError

    try:
        accelerators.resolve(text)
    except SpecError as error:
        findings = "; ".join(f"accelerator: {finding}".replace(f"{finding.field}: ", "") for finding in error.findings)
        raise InputError(findings) from error
    return text
