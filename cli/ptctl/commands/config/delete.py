"""`ptctl config delete`: remove a configuration."""

import click

from ptctl.errors import InputError
from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.property_values import complete_configurations
from ptctl.ui.configurations import active_name, changing

_EXAMPLES = """
ptctl config delete staging
"""


@click.command("delete", cls=Verb, examples=_EXAMPLES)
@click.argument("name", shell_complete=complete_configurations)
@pass_app
def delete(app: App, name: str) -> None:
    """Delete a configuration.

    The active one is refused: activate another first.
    """
    with changing() as configurations:
        configurations.named(name)
        if name == active_name(configurations):
            raise InputError(f"configuration {name!r} is active; accepted: another one", "`ptctl config activate NAME`")
        del configurations.by_name[name]
    app.console.say(f"configuration {name} is deleted")
