"""`ptctl config unset`: remove a property."""

import click

from ptctl.errors import MissingError
from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.configurations import PROPERTIES, active_name, changing

_EXAMPLES = """
ptctl config unset namespace
"""


@click.command("unset", cls=Verb, examples=_EXAMPLES)
@click.argument("name", metavar="PROPERTY", type=click.Choice(list(PROPERTIES)))
@pass_app
def unset(app: App, name: str) -> None:
    """Remove a property of the active configuration."""
    with changing() as configurations:
        active = active_name(configurations)
        if not active or configurations.named(active).pop(name, None) is None:
            raise MissingError(
                f"property {name!r} is not set in {f'configuration {active}' if active else 'any configuration'}"
            )
    app.console.say(f"{name}: not set any more (configuration {active})")
