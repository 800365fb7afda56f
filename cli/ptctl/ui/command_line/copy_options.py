"""The options of verbs that make a new job from one that exists, as one value."""

from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from ptctl.ui.command_line.options import Function, assignments, cluster_options, complete_names, dry_run


@dataclass(frozen=True)
class CopyOptions:
    """The copy's name (None: the next free one), what differs in its spec, and how it is submitted and printed."""

    name: str | None
    assignments: tuple[str, ...]
    dry_run: str
    form: str | None


def copy_options(function: Function) -> Function:
    """Add NAME, the job to copy, and the flags of the copy, passed to the verb as `options`."""

    @wraps(function)
    def wrapped(*args: Any, new_name: str | None, assignments: tuple[str, ...], dry_run: str, form: str | None,
                **kwargs: Any) -> Any:  # fmt: skip
        return function(*args, options=CopyOptions(new_name, assignments, dry_run, form), **kwargs)

    new_name = click.option(
        "--name", "new_name", metavar="NEW", help="Name of the new job; default: NAME-2, or the next free."
    )
    form = click.option("-o", "form", type=click.Choice(("json", "yaml", "name")), help="Print the object.")
    source = click.argument("name", shell_complete=complete_names)
    return source(new_name(assignments(dry_run(form(cluster_options(wrapped))))))
