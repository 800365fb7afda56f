"""Local ports that stand for pod addresses: (job attempt, host, port) -> an exclusive port of this machine.

All pods of one attempt get the same port, so rank 0 binds the port that the others dial. Two jobs that both use port
1234 get two ports; so do two attempts of one job, which keeps a straggler of the old attempt out of the new one. Kept
in a file, because pods of one job may start before and after a restart of the kubelet.
"""

import json
import socket
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

# Below Linux' range for outgoing connections, so that no connection takes one between choice and bind.
_FIRST, _LAST = 20000, 30000


class PortMap:
    """Local ports of pod ports, kept in a file, so that they survive a restart."""

    def __init__(self, file: Path, seed: str = "", is_free: Callable[[int], bool] | None = None) -> None:
        """`seed` spreads the clusters of one machine over the range."""
        self._file = file
        self._first = _FIRST + zlib.crc32(seed.encode()) % (_LAST - _FIRST) if seed else _FIRST
        self._is_free = is_free or _can_bind
        self._ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}

    def port_for(self, group: str, host: str, port: int) -> int:
        """Return the local port for a pod's port, and assign one on the first call."""
        key = f"{group} {host}:{port}"
        if key not in self._ports:
            taken = set(self._ports.values())
            start = (list(self._ports.values())[-1] + 1) if taken else self._first  # not one that was just released
            candidates = [*range(start, _LAST), *range(_FIRST, start)]
            self._ports[key] = next(p for p in candidates if p not in taken and self._is_free(p))
            self._save()
        return self._ports[key]

    def keep_only(self, groups: Iterable[str]) -> None:
        """Release the ports of all other groups, which have no pods any more."""
        alive = set(groups)
        rest = {key: port for key, port in self._ports.items() if key.split(" ", 1)[0] in alive}
        if rest != self._ports:
            self._ports = rest
            self._save()

    def _save(self) -> None:
        scratch = self._file.with_suffix(".new")
        scratch.write_text(json.dumps(self._ports, indent=1))
        scratch.replace(self._file)


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _can_bind(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
