"""The embedded cluster, seen from ptctl: its functions with ptctl's errors, and how a person points a shell at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ptctl.errors import CliError

if TYPE_CHECKING:
    from ptlocal.cluster import Info, Status

USE_IT = 'eval "$(ptctl local env)"'

Say = Callable[[str], None]


def up(say: Say) -> Info:
    """Start it, or find it running."""
    from ptlocal import cluster

    with _as_cli_error():
        return cluster.up(say=say)


def down(say: Say, *, now: bool = False) -> bool:
    """Stop it; whether it ran. `now` gives pods two seconds instead of their own grace period."""
    from ptlocal import cluster

    with _as_cli_error():
        return cluster.down(say=say, now=now)


def reset(say: Say) -> bool:
    """Stop it and delete its files; whether there was one."""
    from ptlocal import cluster

    with _as_cli_error():
        return cluster.reset(say=say)


def status() -> Status:
    """What it does."""
    from ptlocal import cluster

    return cluster.status()


def is_up() -> bool:
    """Whether it runs and answers."""
    return status().phase == "ready"


def kubeconfig() -> Path:
    """The file that kubectl needs."""
    return status().kubeconfig


def demo_lock() -> Path:
    """Held while a demo uses it."""
    from ptlocal.paths import Layout

    return Layout(status().data_dir).demo_lock


def local_hint() -> str:
    """How to use the embedded cluster, if one runs; else empty."""
    return f"the cluster on this machine is used after  {USE_IT}" if is_up() else ""


@contextmanager
def _as_cli_error() -> Iterator[None]:
    from ptlocal.cluster import LocalClusterError

    try:
        yield
    except LocalClusterError as error:
        message, _, hint = str(error).partition("\nhint: ")
        raise CliError(message, hint) from error
