"""What every command is given: the console, and a way to the cluster. Tests replace both.

Which cluster: --kubeconfig, else KUBECONFIG, else ~/.kube/config, exactly as kubectl decides. The embedded
cluster is never chosen silently; `eval "$(ptctl local env)"` chooses it for kubectl and ptctl alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from ptctl.ui.console import Console

if TYPE_CHECKING:
    from ptkube.client import Kube


@dataclass(frozen=True)
class Target:
    """Which cluster, and where in it. `namespace` None is the context's; with `everywhere` it means all."""

    namespace: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    everywhere: bool = False

    @property
    def flags(self) -> str:
        """The flags that lead another ptctl or kubectl command to the same place, with a leading blank."""
        given = (("-n", self.namespace), ("--kubeconfig", self.kubeconfig), ("--context", self.context))
        return "".join(f" {flag} {value}" for flag, value in given if value)


def connect(target: Target) -> Kube:
    """A client for the target's cluster; costs imports, so only commands that need a cluster call it."""
    from ptctl.errors import CliError
    from ptkube.client import Kube
    from ptkube.errors import ConfigError

    try:
        return Kube.load(target.kubeconfig, target.context)
    except ConfigError as error:
        from ptctl.local_cluster import local_hint

        hint = local_hint()
        if hint and not target.kubeconfig:
            raise CliError(str(error).split("\nhint:")[0], hint) from error
        raise


@dataclass(frozen=True)
class App:
    """The seams of ptctl."""

    console: Console = field(default_factory=Console)
    connect: Callable[[Target], Kube] = connect


pass_app = click.make_pass_decorator(App)
