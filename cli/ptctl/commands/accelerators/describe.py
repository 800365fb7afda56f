"""`ptctl accelerators describe`: a page about one type."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import output

_EXAMPLES = """
ptctl accelerators describe v6e-16
ptctl accelerators describe v5p-4x4x8 -o json | jq .hosts
"""


@click.command("describe", cls=Verb, examples=_EXAMPLES)
@click.argument("type")
@output("json", "yaml", "name")
@pass_app
def describe(app: App, type: str, output: str | None) -> None:
    """Show one type: slice, machines, chip.

    TYPE is a name (v6e-16), an alias (trillium-16), a shape (v5p-4x4x8) or cpu-N.
    """
    from ptctl.planning.accelerator_list import describe_type

    describe_type(app.console, type, output)
