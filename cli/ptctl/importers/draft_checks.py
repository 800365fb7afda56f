"""Checks of drafts before anything is printed: the API's rules, Secrets to create, fields left to fill in."""

from collections.abc import Iterable, Sequence

from ptctl.errors import InputError
from ptctl.importers.draft import Draft
from ptctl.jobs.definition.file import check
from ptctl.jobs.definition.set_field import assign_all


def finished(draft: Draft, assignments: Sequence[str]) -> Draft:
    """Return the draft with --set applied. Raises InputError if the job breaks a rule of the API."""
    assign_all(draft.job, assignments)
    check(draft.filled(examples=True), draft.source)
    return draft


def secret_commands(drafts: Iterable[Draft]) -> list[str]:
    """Return a line for each secret that became a reference; its value is in none."""
    secrets = {pair for draft in drafts for pair in draft.secrets.items()}
    return [
        f"{variable} is a secret and not in the job, which refers to it: "
        f"kubectl create secret generic {name} --from-literal=token=…"
        for variable, name in sorted(secrets)
    ]


def refuse_changes(drafts: Sequence[Draft]) -> None:
    """Raise InputError if something else would be trained than by the source."""
    lines = [f"{draft.get('metadata.name') or draft.source}: {one}" for draft in drafts for one in draft.changes]
    if lines:
        raise InputError(
            "no counterpart, and so something else is trained:\n  " + "\n  ".join(lines),
            "change the source, or import with --allow-changes",
        )


def refuse_missing(drafts: Sequence[Draft]) -> None:
    """Raise InputError if something is left to fill in."""
    lines = [
        f"{draft.get('metadata.name') or draft.source}: {path}: {hint}"
        for draft in drafts
        for path, (_, hint) in draft.missing().items()
    ]
    if lines:
        raise InputError("left to fill in:\n  " + "\n  ".join(lines), "edit the file, or import with --set PATH=VALUE")
