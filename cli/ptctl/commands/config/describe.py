"""`ptctl config describe`: one configuration."""

import json

import click

from ptctl.errors import MissingError
from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import output
from ptctl.ui.command_line.property_values import complete_configurations
from ptctl.ui.configurations import PROPERTIES, active_name, read
from ptctl.ui.table import table_or_records

_EXAMPLES = """
ptctl config describe
ptctl config describe staging -o json
"""


@click.command("describe", cls=Verb, examples=_EXAMPLES)
@click.argument("name", required=False, shell_complete=complete_configurations)
@output("json")
@pass_app
def describe(app: App, name: str | None, output: str | None) -> None:
    """Print a configuration's properties.

    Without NAME the active one's.
    """
    configurations = read()
    chosen = name or active_name(configurations)
    if not chosen:
        raise MissingError("there is no configuration", "`ptctl config set PROPERTY VALUE` makes one")
    properties = configurations.named(chosen)
    if output:
        return app.console.data(json.dumps(properties, indent=2))
    if not properties:
        return app.console.say(f"configuration {chosen} has no properties")
    rows = [(key, properties[key], PROPERTIES[key]) for key in PROPERTIES if key in properties]
    return app.console.data(table_or_records(("PROPERTY", "VALUE", "MEANING"), rows, app.console.width))
