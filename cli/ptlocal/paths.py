"""Where the embedded cluster keeps its files: one data directory, named in one place.

The API server and the kubelet stand-in run in different processes and meet here: the kubelet writes a container's
output to `container_log`, the API server serves that file for `kubectl logs`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DATA_DIR_ENV = "POSTTRAIN_LOCAL_DIR"


def default_data_dir() -> Path:
    """`POSTTRAIN_LOCAL_DIR`, else ~/.posttrain/local."""
    named = os.environ.get(DATA_DIR_ENV)
    return Path(named).expanduser() if named else Path.home() / ".posttrain" / "local"


@dataclass(frozen=True)
class Layout:
    """The files below one data directory. Nothing here creates them."""

    data: Path

    @property
    def kubeconfig(self) -> Path:
        return self.data / "kubeconfig"

    @property
    def cluster_file(self) -> Path:
        """JSON: the port chosen once and the cluster's id."""
        return self.data / "cluster.json"

    @property
    def pid_file(self) -> Path:
        """Held with a lock by the supervisor for as long as it lives."""
        return self.data / "supervisor.pid"

    @property
    def state_file(self) -> Path:
        """JSON: what the supervisor is doing, and its components; only as true as `pid_file` is locked."""
        return self.data / "state.json"

    @property
    def up_lock(self) -> Path:
        """Held while a cluster is being started, so that two starts do not race."""
        return self.data / "up.lock"

    @property
    def demo_lock(self) -> Path:
        """Held by `ptctl demo`, whose jobs have the same names each time."""
        return self.data / "demo.lock"

    @property
    def database(self) -> Path:
        """The API server's SQLite file; -wal and -shm stand beside it while it runs."""
        return self.data / "apiserver.sqlite3"

    @property
    def pki(self) -> Path:
        """The API server's certificate authority, serving certificate and bearer token; mode 0700."""
        return self.data / "pki"

    @property
    def logs(self) -> Path:
        """Logs of the cluster's own processes: supervisor, apiserver, operator."""
        return self.data / "logs"

    @property
    def pods(self) -> Path:
        return self.data / "pods"

    def pod(self, uid: str) -> Path:
        """One pod's volumes, logs and process records; removed when the pod object is gone."""
        return self.pods / uid

    @property
    def claims(self) -> Path:
        """Directories that stand for persistent volumes, by namespace and claim."""
        return self.data / "volumes"

    @property
    def ports_file(self) -> Path:
        """JSON: local ports that stand for pod addresses."""
        return self.data / "ports.json"

    def container_log(self, uid: str, container: str, restart: int) -> Path:
        """Raw stdout and stderr of one run of a container; `restart` is its restartCount at that run."""
        return self.pod(uid) / "logs" / container / f"{restart}.log"
