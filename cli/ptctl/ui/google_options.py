"""Options of verbs that talk to Google Cloud, with gcloud's and XPK's names."""

from collections.abc import Callable
from typing import Any

import click

Function = Callable[..., Any]


def project(function: Function) -> Function:
    """Add --project."""
    return click.option(
        "--project", metavar="ID", help="Google Cloud project; default: $GOOGLE_CLOUD_PROJECT, else the credentials'."
    )(function)


def location(function: Function) -> Function:
    """Add --location; without it the cluster is looked for everywhere in the project."""
    return click.option(
        "--location", metavar="PLACE", help="Region or zone of the cluster; default: wherever the name is found."
    )(function)


def cluster_name(function: Function) -> Function:
    """Add the cluster's name: an argument, or --cluster as XPK has it; passed to the verb as `name`."""
    function = click.option("--cluster", "cluster_flag", metavar="NAME", help="Same as NAME, as XPK has it.")(function)
    return click.argument("name", required=False)(function)


def one_name(name: str | None, cluster_flag: str | None) -> str:
    """Return the name from the argument or the flag. Raises UsageError for none or two."""
    if bool(name) == bool(cluster_flag):
        raise click.UsageError(
            "NAME and --cluster are both set; accepted: one of them" if name else "Missing argument 'NAME'.",
            click.get_current_context(),
        )
    return name or cluster_flag or ""
