"""`ptctl accelerators`: which chips there are, and which of them hold a job."""

import click

from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup

COMMANDS = {
    "list": Lazy("ptctl.commands.accelerators.list:list_accelerators", "List the types, or the smallest for a job."),
    "describe": Lazy("ptctl.commands.accelerators.describe:describe", "Show one type: slice, machines, chip."),
}

_EXAMPLES = """
ptctl accelerators list --generation v6e
ptctl accelerators list --fits -f job.yaml
ptctl accelerators describe v6e-16
"""


@click.group("accelerators", cls=LazyGroup, table=COMMANDS, examples=_EXAMPLES)
def accelerators() -> None:
    """Show the accelerator types, and which of them hold a job.

    Types, topologies and machines are GKE's, from posttrain's own table: nothing is asked of a cluster or a project.
    """
