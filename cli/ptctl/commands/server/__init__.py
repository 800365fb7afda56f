"""`ptctl server`: the servers of models in a cluster, one file per verb."""

import click

from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup

COMMANDS = {
    "list": Lazy("ptctl.commands.server.list:list_servers", "List the servers of a namespace."),
    "delete": Lazy("ptctl.commands.server.delete:delete", "Delete a server."),
}

_EXAMPLES = """
ptctl serve llama-gsm8k --on gke --tpu v6e-4     # make one, or change it
ptctl server list
ptctl server delete llama-gsm8k-serve
"""


@click.group("server", cls=LazyGroup, table=COMMANDS, examples=_EXAMPLES)
def server() -> None:
    """List and delete the servers of models in a cluster."""
