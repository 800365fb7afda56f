"""The console and the cluster connection that every command gets. Tests replace both.

Which cluster: --kubeconfig, else KUBECONFIG, else ~/.kube/config, exactly as kubectl decides. The embedded
cluster is never chosen silently; `eval "$(ptctl local env)"` selects it for kubectl and ptctl alike.
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
    """A cluster and a namespace in it. `namespace` None is the context's, or all of them with `everywhere`.

    defaults: the flags that were not typed, with where each comes from.
    """

    namespace: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    everywhere: bool = False
    defaults: tuple[tuple[str, str], ...] = ()

    @property
    def typed_namespace(self) -> str | None:
        """Return the namespace of -n alone."""
        return None if "namespace" in dict(self.defaults) else self.namespace

    @property
    def flags(self) -> str:
        """Return the flags that send another ptctl or kubectl command to the same place, with a leading space."""
        options = (("-n", self.namespace), ("--kubeconfig", self.kubeconfig), ("--context", self.context))
        return "".join(f" {flag} {value}" for flag, value in options if value)


def connect(target: Target) -> Kube:
    """Return a client for the target's cluster. Its imports are slow, so only commands that need a cluster call it."""
    from ptctl.errors import CliError
    from ptkube.client import Kube
    from ptkube.errors import ConfigError

    try:
        return Kube.load(target.kubeconfig, target.context)
    except ConfigError as error:
        from ptctl.local_cluster import local_hint

        if origin := dict(target.defaults).get("context"):
            raise CliError(str(error), f"the context is that of {origin}: `ptctl config list`") from error
        hint = local_hint()
        if hint and not target.kubeconfig:
            raise CliError(str(error).split("\nhint:")[0], hint) from error
        raise


@dataclass(frozen=True)
class App:
    """The dependencies that tests replace: the console and the function that connects to a cluster."""

    console: Console = field(default_factory=Console)
    connect: Callable[[Target], Kube] = connect


pass_app = click.make_pass_decorator(App)
