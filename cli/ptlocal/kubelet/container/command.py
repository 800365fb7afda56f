"""The command of a container in terms of this machine: arguments, environment and directory."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ptkube.resources import Manifest
from ptlocal.kubelet.container.path_rewriting import Mount, Rewriter, expand
from ptlocal.kubelet.container.value_sources import NotReady

UNPULLABLE = ".invalid/"
"""An image from a registry of this top-level domain (RFC 2606) cannot be pulled: for tests of that failure."""

_PYTHONS = ("python", "python3")
_TERMINATION_PATH = "/dev/termination-log"


@dataclass(frozen=True)
class Command:
    """Arguments, environment and working directory of a process."""

    argv: list[str]
    env: dict[str, str]
    cwd: Path


def command_of(
    pod: Manifest,
    container: Manifest,
    container_env: Mapping[str, str],
    rewrite: Rewriter,
    base: Mapping[str, str],
    home: Path,
) -> Command:
    """Return the container's command.

    `container_env` is its environment from the spec, `base` that of every container, `home` the default directory.
    """
    if not container.get("command"):
        message = f"container {container['name']} has no command, and the embedded cluster does not read images"
        raise NotReady(message, "RunContainerError")
    arguments = [*container["command"], *(container.get("args") or [])]
    argv = [rewrite(expand(str(argument), container_env)) for argument in arguments]
    argv = _own_ports(pod, container, argv, rewrite)
    if argv[0] in _PYTHONS:
        argv[0] = sys.executable
    hostname = str(pod["spec"].get("hostname") or pod["metadata"]["name"])
    env = {**base, "HOSTNAME": hostname, **{name: rewrite(value) for name, value in container_env.items()}}
    return Command(argv, env, Path(rewrite(container["workingDir"])) if container.get("workingDir") else home)


def _own_ports(pod: Manifest, container: Manifest, argv: list[str], rewrite: Rewriter) -> list[str]:
    """Return the arguments with the local port behind `--port`, where it is a declared one that peers reach by name."""
    host = pod["spec"].get("hostname")
    declared = {str(port["containerPort"]) for port in container.get("ports") or []}
    if not host or not rewrite.subdomain:
        return argv
    return [
        str(rewrite.port_for(str(host), int(value))) if flag == "--port" and value in declared else value
        for flag, value in zip(["", *argv], argv, strict=False)
    ]


def termination_mount(container: Manifest, file: Path) -> Mount:
    """Return the mount of the termination message's path, which is a separate file."""
    return Mount(container.get("terminationMessagePath") or _TERMINATION_PATH, str(file))


def refuse_unpullable(container: Manifest, *, first_try: bool) -> None:
    """Raise NotReady for an image of the registry domain whose images cannot be pulled."""
    image = container.get("image") or ""
    if UNPULLABLE in image:
        reason = "ErrImagePull" if first_try else "ImagePullBackOff"
        raise NotReady(f'Back-off pulling image "{image}": no such registry', reason)


def base_environment() -> dict[str, str]:
    """Return every container's base environment: this interpreter first on PATH, the user's home for caches."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH") or os.defpath])
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL", "TMPDIR", "TZ") if name in os.environ}
    source_roots = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {"PATH": path, **kept, **({"PYTHONPATH": os.pathsep.join(source_roots)} if source_roots else {})}
