"""`ptctl config get`: print a property."""

import click

from ptctl.errors import MissingError
from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.configurations import PROPERTIES, value

_EXAMPLES = """
ptctl config get namespace
"""


@click.command("get", cls=Verb, examples=_EXAMPLES)
@click.argument("name", metavar="PROPERTY", type=click.Choice(list(PROPERTIES)))
@pass_app
def get(app: App, name: str) -> None:
    """Print a property in effect.

    Exit code 3 if it is not set.
    """
    chosen = value(name)
    if chosen is None:
        raise MissingError(f"property {name!r} is not set", f"`ptctl config set {name} VALUE`")
    app.console.data(chosen)
