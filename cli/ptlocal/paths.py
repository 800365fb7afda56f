"""The paths of the embedded cluster's files: one data directory, defined in one place.

The API server and the kubelet stand-in are different processes that share these files: the kubelet writes a
container's output to `container_log`, and the API server serves that file for `kubectl logs`.
"""

import os
from dataclasses import dataclass
from pathlib import Path

DATA_DIR_ENV = "POSTTRAIN_LOCAL_DIR"
PROCESS_RECORD = "processes.json"
"""In a pod's directory: the process of each container, and where on this machine its mounts lie."""


def default_data_dir() -> Path:
    """Return `POSTTRAIN_LOCAL_DIR`, else ~/.posttrain/local."""
    configured = os.environ.get(DATA_DIR_ENV)
    return Path(configured).expanduser() if configured else Path.home() / ".posttrain" / "local"


@dataclass(frozen=True)
class Layout:
    """The files below one data directory. Nothing here creates them."""

    data: Path

    @property
    def kubeconfig(self) -> Path:
        """Return the kubeconfig of the cluster."""
        return self.data / "kubeconfig"

    @property
    def cluster_file(self) -> Path:
        """Return the JSON file with the cluster's id and the port, which is chosen once."""
        return self.data / "cluster.json"

    @property
    def pid_file(self) -> Path:
        """Return the file that the supervisor keeps locked while it lives."""
        return self.data / "supervisor.pid"

    @property
    def state_file(self) -> Path:
        """Return the JSON file with the supervisor's state and components; valid only while `pid_file` is locked."""
        return self.data / "state.json"

    @property
    def up_lock(self) -> Path:
        """Return the lock held while a cluster starts, so that two starts do not race."""
        return self.data / "up.lock"

    @property
    def demo_lock(self) -> Path:
        """Return the lock held by `ptctl demo`, whose jobs always have the same names."""
        return self.data / "demo.lock"

    @property
    def database(self) -> Path:
        """Return the API server's SQLite file; -wal and -shm are next to it while it runs."""
        return self.data / "apiserver.sqlite3"

    @property
    def pki(self) -> Path:
        """Return the directory of the API server's CA, serving certificate and bearer token; mode 0700."""
        return self.data / "pki"

    @property
    def logs(self) -> Path:
        """Return the log directory of the cluster's own processes: supervisor, apiserver, operator."""
        return self.data / "logs"

    @property
    def pods(self) -> Path:
        """Return the directory of all pods."""
        return self.data / "pods"

    def pod(self, uid: str) -> Path:
        """Return the directory of one pod's volumes, logs and process records, removed with the pod object."""
        return self.pods / uid

    @property
    def claims(self) -> Path:
        """Return the directory of persistent volumes, by namespace and claim."""
        return self.data / "volumes"

    @property
    def ports_file(self) -> Path:
        """Return the JSON file with the local ports that stand for pod addresses."""
        return self.data / "ports.json"

    def container_log(self, uid: str, container: str, restart: int) -> Path:
        """Return the raw stdout and stderr of one run of a container; `restart` is its restartCount at that run."""
        return self.pod(uid) / "logs" / container / f"{restart}.log"
