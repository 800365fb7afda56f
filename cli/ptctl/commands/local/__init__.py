"""`ptctl local`: the embedded cluster (`ptlocal`), for laptops and tests."""

from __future__ import annotations

import click

from ptctl.ui.lazy_group import SETTINGS, Lazy, LazyGroup

COMMANDS = {
    "up": Lazy("ptctl.commands.local.up:up", "Start the cluster, with the jobs it had."),
    "status": Lazy("ptctl.commands.local.status:status", "Tell whether it runs, and where."),
    "env": Lazy("ptctl.commands.local.env:env", "Print what points kubectl and ptctl at it."),
    "down": Lazy("ptctl.commands.local.down:down", "Stop the cluster; its jobs are kept."),
    "reset": Lazy("ptctl.commands.local.reset:reset", "Stop the cluster and forget everything in it."),
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


@click.group(
    "local",
    cls=LazyGroup,
    table=COMMANDS,
    moved=MOVED,
    context_settings=SETTINGS,
    examples=_EXAMPLES,
    no_args_is_help=True,
)
def local() -> None:
    """A small cluster on this machine, for trying things.

    An API server, the controllers and the real operator as local processes, pods as well: no Docker, no root. Its
    files are in $POSTTRAIN_LOCAL_DIR, else ~/.posttrain/local. For production there is GKE.
    """
