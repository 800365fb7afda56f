"""`ptctl config list`: the configurations, and what is in effect."""

import json

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import output
from ptctl.ui.configurations import PROPERTIES, active_name, in_effect, read
from ptctl.ui.table import table, table_or_records

_EXAMPLES = """
ptctl config list
ptctl config list -o json
"""


@click.command("list", cls=Verb, examples=_EXAMPLES)
@output("json")
@pass_app
def list_all(app: App, output: str | None) -> None:
    """List the configurations, and each property in effect.

    FROM says what decides: the environment's variable, or the active configuration. A flag, and a job's file, come
    before both.
    """
    configurations = read()
    active = active_name(configurations)
    effective = {name: in_effect(name) for name in PROPERTIES}
    rows = [(name, text, origin) for name, (text, origin) in effective.items() if text is not None]
    if output:
        values = {name: {"value": text, "from": origin} for name, text, origin in rows}
        document = {"active": active, "configurations": configurations.by_name, "inEffect": values}
        return app.console.data(json.dumps(document, indent=2))
    if configurations.by_name:
        names = [(name, "*" if name == active else "") for name in configurations.by_name]
        app.console.data(table(("CONFIGURATION", "ACTIVE"), names) + ("\n" if rows else ""))
    if rows:
        return app.console.data(table_or_records(("PROPERTY", "VALUE", "FROM"), rows, app.console.width))
    return app.console.say(f"no property is set; `ptctl config set PROPERTY VALUE`: {', '.join(PROPERTIES)}")
