"""A container's environment and arguments, with local paths and addresses instead of the cluster's.

Nothing can be mounted without root, and there is no cluster DNS. So a value that starts with a volume's mountPath (also
after `--flag=`, and as the first of several between colons) gets the volume's local directory instead, and the name of
a pod of the same subdomain becomes 127.0.0.1 with a port that no other job uses. Text inside a shell script or a file
is left unchanged.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

_REFERENCE = re.compile(r"\$(\$)|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


@dataclass(frozen=True)
class Mount:
    """A mount: `path` as in the pod spec, `local` on this machine."""

    path: str
    local: str


@dataclass(frozen=True)
class Rewriter:
    """Rewrites every environment value and argument, after $(VAR) expansion."""

    mounts: Sequence[Mount] = ()
    subdomain: str = ""
    namespace: str = ""
    port_for: Callable[[str, int], int] = field(default=lambda _, port: port)
    """(host name, port) -> its port on this machine."""

    def __call__(self, value: str) -> str:
        """Return the rewritten value."""
        return self._addresses(self._paths(value))

    def _paths(self, value: str) -> str:
        flag, equals, rest = value.partition("=") if value.startswith("-") else ("", "", value)
        for mount in sorted(self.mounts, key=lambda m: len(m.path), reverse=True):
            path = mount.path.rstrip("/")
            if rest == path or rest.startswith((path + "/", path + ":")):
                return f"{flag}{equals}{mount.local}{rest[len(path) :]}"
        return value

    def _addresses(self, value: str) -> str:
        if not self.subdomain or self.subdomain not in value:
            return value
        suffix = rf"(?:\.{re.escape(self.namespace)}(?:\.svc(?:\.cluster\.local)?)?)?"
        name = rf"(?<![\w.-])([a-z0-9](?:[a-z0-9-]*[a-z0-9])?)\.{re.escape(self.subdomain)}{suffix}\.?(?![\w-])"
        return re.sub(rf"{name}(?::(\d+))?", self._local_address, value)

    def _local_address(self, match: re.Match[str]) -> str:
        host, port = match.group(1), match.group(2)
        return f"127.0.0.1:{self.port_for(host, int(port))}" if port else "127.0.0.1"


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace $(NAME) by its value; an unknown one is left unchanged, $$ is a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        if match.group(1):
            return "$"
        return variables.get(match.group(2), match.group(0))

    return _REFERENCE.sub(replace, text)
