"""`ptctl data`: verbs on a job's data, one file each."""

import click

from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup

COMMANDS = {"check": Lazy("ptctl.commands.data.check:check", "Show a job's data as the model will see it.")}

MOVED = {"validate": "`ptctl data check -f job.yaml`", "show": "`ptctl data check -f job.yaml`"}

_EXAMPLES = """
ptctl data check -f job.yaml
"""


@click.group("data", cls=LazyGroup, table=COMMANDS, moved=MOVED, examples=_EXAMPLES)
def data() -> None:
    """Inspect a job's data before you pay for chips."""
