"""Bringing a port of the cluster to this machine: kubectl does it, which everybody has who has a cluster."""

from __future__ import annotations

import subprocess

from ptctl.errors import CliError
from ptctl.ui.app import Target


def command(target: Target, namespace: str, what: str, here: int, there: int) -> list[str]:
    """The command that makes port `there` of `pod/…` or `service/…` listen on this machine as `here`."""
    chosen = (("kubeconfig", target.kubeconfig), ("context", target.context))
    where = [f"--{flag}={value}" for flag, value in chosen if value]
    return ["kubectl", *where, "-n", namespace, "port-forward", what, f"{here}:{there}"]


def run(words: list[str]) -> None:
    """Until Ctrl-C. Raises CliError where kubectl ends otherwise."""
    code = subprocess.call(words)
    if code:
        raise CliError(f"kubectl port-forward ended with exit code {code}")
