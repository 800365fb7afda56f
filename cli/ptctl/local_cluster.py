"""ptctl's access to the embedded cluster: ptlocal's functions with ptctl's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ptctl.errors import CliError

if TYPE_CHECKING:
    from ptlocal.cluster import Info, Status

ENV_COMMAND = 'eval "$(ptctl local env)"'

Say = Callable[[str], None]


def up(say: Say) -> Info:
    """Start the cluster, or find it running."""
    from ptlocal import cluster

    with _as_cli_error():
        return cluster.up(say=say)


def down(say: Say, *, now: bool = False) -> bool:
    """Stop the cluster; return True if it was running. `now` gives pods two seconds instead of their grace period."""
    from ptlocal import cluster

    with _as_cli_error():
        return cluster.down(say=say, now=now)


def reset(say: Say) -> bool:
    """Stop the cluster and delete its files; return True if there was one."""
    from ptlocal import cluster

    with _as_cli_error():
        return cluster.reset(say=say)


def status() -> Status:
    """Return the cluster's status."""
    from ptlocal import cluster

    return cluster.status()


def is_up() -> bool:
    """Return True if the cluster runs and answers."""
    return status().phase == "ready"


def kubeconfig() -> Path:
    """Return the path of the cluster's kubeconfig."""
    return status().kubeconfig


def demo_lock() -> Path:
    """Return the path of the lock that a demo holds while it uses the cluster."""
    from ptlocal.paths import Layout

    return Layout(status().data_dir).demo_lock


def local_hint() -> str:
    """Return a hint for using the embedded cluster if it runs, else an empty string."""
    return f"to use the cluster on this machine: {ENV_COMMAND}" if is_up() else ""


@contextmanager
def _as_cli_error() -> Iterator[None]:
    from ptlocal.cluster import LocalClusterError

    try:
        yield
    except LocalClusterError as error:
        message, _, hint = str(error).partition("\nhint: ")
        raise CliError(message, hint) from error
