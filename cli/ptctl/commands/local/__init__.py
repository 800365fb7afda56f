"""`ptctl local`: the embedded cluster (`ptlocal`), for laptops and tests."""

import click

from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup

COMMANDS = {
    "up": Lazy("ptctl.commands.local.up:up", "Start the cluster with the jobs that it had."),
    "status": Lazy("ptctl.commands.local.status:status", "Show whether the cluster runs, and where."),
    "env": Lazy("ptctl.commands.local.env:env", "Print the command that points kubectl and ptctl at it."),
    "down": Lazy("ptctl.commands.local.down:down", "Stop the cluster and keep its jobs."),
    "reset": Lazy("ptctl.commands.local.reset:reset", "Stop the cluster and delete everything in it."),
}

MOVED = {
    "start": "`ptctl local up`",
    "create": "`ptctl local up`",
    "stop": "`ptctl local down`",
    "delete": "`ptctl local reset`",
    "kubeconfig": "`ptctl local env`",
}

_EXAMPLES = """
ptctl local up
eval "$(ptctl local env)"        # kubectl and ptctl in this shell use it
kubectl get nodes
ptctl local down
"""


@click.group("local", cls=LazyGroup, table=COMMANDS, moved=MOVED, examples=_EXAMPLES)
def local() -> None:
    """Run a small cluster on this machine, to try things out.

    The API server, the controllers, the real operator and the pods are local processes: no Docker, no root. The
    cluster's files are in $POSTTRAIN_LOCAL_DIR, else ~/.posttrain/local. For production use GKE.
    """
