"""`ptctl version`: print the version."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb


@click.command("version", cls=Verb, examples="ptctl version")
@pass_app
def version(app: App) -> None:
    """Print the version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        number = installed("posttrain")
    except PackageNotFoundError:  # runs from a checkout that is not installed
        number = "unknown (not installed)"
    app.console.data(f"ptctl {number}")
