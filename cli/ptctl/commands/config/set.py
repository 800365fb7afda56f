"""`ptctl config set`: set a property."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.property_values import checked_property, checked_value
from ptctl.ui.configurations import DEFAULT, PROPERTIES, active_name, changing

_EXAMPLES = """
ptctl config set namespace team-a
ptctl config set accelerator v6e-16
ptctl config set output gs://my-bucket/runs
"""


@click.command("set", cls=Verb, examples=_EXAMPLES)
@click.argument("name", metavar="PROPERTY", type=click.Choice(list(PROPERTIES)))
@click.argument("value", metavar="VALUE")
@pass_app
def set_property(app: App, name: str, value: str) -> None:
    """Set a property of the active configuration.

    PROPERTY is context, namespace, accelerator, output, queue, project, location or zone. Without any configuration,
    `default` is created.
    """
    text = checked_value(checked_property(name), value)
    with changing() as configurations:
        active = active_name(configurations)
        if not active:
            active = configurations.active = DEFAULT
            configurations.by_name.setdefault(DEFAULT, {})
        configurations.named(active)[name] = text
    app.console.say(f"{name}: {text} (configuration {active})")
