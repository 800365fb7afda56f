"""`ptctl config activate`: choose the active configuration."""

import os

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.property_values import complete_configurations
from ptctl.ui.configurations import ACTIVE_ENV, changing

_EXAMPLES = """
ptctl config activate staging
"""


@click.command("activate", cls=Verb, examples=_EXAMPLES)
@click.argument("name", shell_complete=complete_configurations)
@pass_app
def activate(app: App, name: str) -> None:
    """Make another configuration the active one."""
    with changing() as configurations:
        configurations.named(name)
        configurations.active = name
    app.console.say(f"configuration {name} is active")
    if (other := os.environ.get(ACTIVE_ENV)) not in (None, "", name):
        app.console.warn(f"{ACTIVE_ENV} is {other}, which this shell uses instead")
