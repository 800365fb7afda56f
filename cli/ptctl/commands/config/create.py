"""`ptctl config create`: make a configuration."""

import click

from ptctl.errors import InputError
from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import checked_name
from ptctl.ui.configurations import changing

_EXAMPLES = """
ptctl config create staging
ptctl config create staging --no-activate
"""


@click.command("create", cls=Verb, examples=_EXAMPLES)
@click.argument("name")
@click.option("--activate/--no-activate", "is_activated", default=True, help="Whether it becomes the active one.")
@pass_app
def create(app: App, name: str, is_activated: bool) -> None:
    """Create a configuration and activate it."""
    checked_name(name, "configuration")
    with changing() as configurations:
        if name in configurations.by_name:
            raise InputError(f"configuration {name!r} exists", f"`ptctl config activate {name}`")
        configurations.by_name[name] = {}
        if is_activated:
            configurations.active = name
    app.console.say(f"configuration {name} is created{' and active' if is_activated else ''}")
