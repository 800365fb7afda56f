"""Names of images: `us-docker.pkg.dev/project/repository/name:tag`, as Docker and Kubernetes read them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ptctl.errors import InputError

_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DOCKER_HUB = "docker.io"


@dataclass(frozen=True)
class Reference:
    """An image in a registry, by tag or by digest."""

    registry: str
    repository: str
    version: str

    @property
    def url(self) -> str:
        """Return the address of the registry's API; plain HTTP on this machine alone, as Docker has it."""
        host = "registry-1.docker.io" if self.registry == _DOCKER_HUB else self.registry
        is_here = host.partition(":")[0] in ("localhost", "127.0.0.1")
        return f"{'http' if is_here else 'https'}://{host}"

    def at(self, digest: str) -> str:
        """Return the name that always means this content."""
        return f"{self.registry}/{self.repository}@{digest}"

    def __str__(self) -> str:
        mark = "@" if self.version.startswith("sha256:") else ":"
        return f"{self.registry}/{self.repository}{mark}{self.version}"


def parse(text: str, flag: str) -> Reference:
    """Return the image of that name. Raises InputError with the flag that it came by."""
    name, _, digest = text.partition("@")
    first, slash, rest = name.partition("/")
    has_registry = bool(slash) and (bool(set(first) & set(".:")) or first == "localhost")
    registry, path = (first, rest) if has_registry else (_DOCKER_HUB, name)
    repository, _, tag = path.partition(":")
    if registry == _DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    is_version = (
        bool(_DIGEST.fullmatch(digest)) if digest else not path.endswith(":") and _TAG.fullmatch(tag or "latest")
    )
    if not (_NAME.fullmatch(repository) and is_version):
        raise InputError(
            f"{flag} {text!r}: not an image's name; accepted: REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST",
            "names have lower-case letters, digits, and . _ - between them",
        )
    return Reference(registry, repository, digest or tag or "latest")
