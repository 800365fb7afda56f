"""Wait for the parts of a cluster to come up; each wait ends early, with the reason, if the part dies."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

from ptkube.client import ApiError, Kube, NotFound
from ptkube.objects import holds
from ptkube.resources import CRDS, Manifest

T = TypeVar("T")

_LIMIT_S = 300.0
"""Long enough for a busy machine; if a part dies, the wait ends at once."""
_POLL_S = 0.03


class StartFailed(Exception):
    """A component did not come up; the message says why."""


def api_server(kubeconfig: Path, check: Callable[[], None]) -> Kube:
    """Wait until the server behind the kubeconfig (which it may still have to write) answers; return a client."""

    def connect() -> Kube | None:
        if not kubeconfig.exists():
            return None
        kube = Kube.load(str(kubeconfig))
        try:
            kube.request("GET", "/version")
        except ApiError:
            kube.close()
            return None
        return kube

    return _wait("the API server", connect, check)


def operator(port: int, check: Callable[[], None]) -> None:
    """Wait until the operator is ready."""

    def answers() -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    _wait("the operator", answers, check)


def install(kube: Kube, definition: Manifest) -> None:
    """Apply a CRD and wait until its kind is served."""
    name = definition["metadata"]["name"]
    kube.apply(CRDS, definition, field_manager="ptctl-local")

    def is_established() -> bool:
        return holds(kube.get(CRDS, name), "Established")

    _wait(f"the resource definition {name}", is_established, lambda: None)


def install_if_missing(kube: Kube, definition: Manifest) -> None:
    """Install the CRD unless it exists."""
    try:
        kube.get(CRDS, definition["metadata"]["name"])
    except NotFound:
        install(kube, definition)


def _wait(part: str, attempt: Callable[[], T | None], check: Callable[[], None]) -> T:
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        check()
        result = attempt()
        if result:
            return result
        time.sleep(_POLL_S)
    raise StartFailed(f"{part} was not ready within {_LIMIT_S:.0f} s")
