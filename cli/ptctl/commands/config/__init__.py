"""`ptctl config`: named sets of defaults."""

import click

from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup

COMMANDS = {
    "list": Lazy("ptctl.commands.config.list:list_all", "List the configurations, and each property in effect."),
    "set": Lazy("ptctl.commands.config.set:set_property", "Set a property of the active configuration."),
    "get": Lazy("ptctl.commands.config.get:get", "Print a property in effect."),
    "unset": Lazy("ptctl.commands.config.unset:unset", "Remove a property of the active configuration."),
    "create": Lazy("ptctl.commands.config.create:create", "Create a configuration and activate it."),
    "activate": Lazy("ptctl.commands.config.activate:activate", "Make another configuration the active one."),
    "describe": Lazy("ptctl.commands.config.describe:describe", "Print a configuration's properties."),
    "delete": Lazy("ptctl.commands.config.delete:delete", "Delete a configuration."),
}
MOVED = {
    "configurations": "`ptctl config list`, `create`, `activate`, `describe`, `delete`: no word between",
    "get-value": "`ptctl config get PROPERTY`",
    "view": "`ptctl config list`",
    "use-context": "`ptctl config set context NAME`; `kubectl config use-context NAME` changes the kubeconfig",
    "rm": "`ptctl config delete NAME`",
}

_EXAMPLES = """
ptctl config set namespace team-a
ptctl config set accelerator v6e-16
ptctl config create staging          # another set of defaults, active from now on
ptctl config activate default
PTCTL_CONFIGURATION=staging ptctl workload list
"""


@click.group("config", cls=LazyGroup, table=COMMANDS, moved=MOVED, examples=_EXAMPLES)
def config() -> None:
    """Keep defaults of your own: context, namespace, accelerator, output, queue, project, location, zone.

    In order: the flag, the job's file, PTCTL_PROPERTY of the environment (PTCTL_NAMESPACE), the active configuration,
    what the verb does without. They are in $PTCTL_HOME/configurations.json, else ~/.posttrain/ptctl.
    """
