"""API servers for the integration tests: ours, and a real one from the binaries that KUBEBUILDER_ASSETS names.

Both are started in a directory of their own on free ports and are ended with everything they started. A real control
plane is etcd and kube-apiserver, and kube-controller-manager where its binary is there too. It runs no pods.
"""

import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.builders.cluster.api_access import Cluster, find

from ptkube import kubeconfig as kubeconfigs
from ptkube.client import Kube
from ptkube.resources import NODES, SERVICE_ACCOUNTS
from ptlocal import cluster as local

START_S = 600.0


class Processes:
    """Child processes with their logs; ended in reverse order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str, command: list[str], stdout: int | None = None) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout or log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )
        self._running.append((name, process))
        return process

    def wait_for(self, what: str, is_ready: Callable[[], bool]) -> None:
        end = time.monotonic() + START_S
        while not is_ready():
            for name, process in self._running:
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended with {process.returncode}: {self._tail(name)}")
            if time.monotonic() > end:
                raise RuntimeError(f"{what} is not ready after {START_S:.0f} s; see {self._folder}")
            time.sleep(0.2)

    def end(self) -> None:
        for _, process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
        for _, process in reversed(self._running):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _tail(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]


def start_embedded(processes: Processes, folder: Path) -> Path:
    """Our server; returns its kubeconfig."""
    command = [sys.executable, "-m", "ptlocal.apiserver", "--data", str(folder), "--port", "0"]
    process = processes.start("apiserver", command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        raise RuntimeError(f"the embedded API server did not start: {(folder / 'apiserver.log').read_text()}")
    return Path(json.loads(line)["kubeconfig"])


def start_real(processes: Processes, folder: Path, assets: Path) -> tuple[Path, bool]:
    """etcd, kube-apiserver and perhaps kube-controller-manager; returns the kubeconfig and whether the last runs."""
    has_controller_manager = (assets / "kube-controller-manager").exists()
    client_port, peer_port, port, manager_port = _free_ports(4)
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    processes.start(
        "etcd",
        [
            str(assets / "etcd"),
            "--data-dir",
            str(folder / "etcd"),
            "--unsafe-no-fsync",
            "--listen-client-urls",
            client,
            "--advertise-client-urls",
            client,
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            f"default={peer}",
        ],
    )
    token = secrets.token_urlsafe(24)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    _write_account_keys(folder)
    processes.start("kube-apiserver", _apiserver(assets, folder, client, port, has_controller_manager))
    processes.wait_for("kube-apiserver", lambda: _answers(f"https://127.0.0.1:{port}/readyz", token))
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(_kubeconfig(port, token, folder / "certs" / "apiserver.crt")))
    if has_controller_manager:
        processes.start(
            "kube-controller-manager",
            [
                str(assets / "kube-controller-manager"),
                f"--kubeconfig={kubeconfig}",
                "--leader-elect=false",
                f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}",
                f"--service-account-private-key-file={folder / 'accounts.key'}",
                "--bind-address=127.0.0.1",
                f"--secure-port={manager_port}",
                f"--root-ca-file={folder / 'certs' / 'apiserver.crt'}",
            ],
        )
        account = f"https://127.0.0.1:{port}/api/v1/namespaces/default/serviceaccounts/default"
        processes.wait_for("the default service account", lambda: _answers(account, token))
    return kubeconfig, has_controller_manager


def _apiserver(assets: Path, folder: Path, etcd: str, port: int, has_controller_manager: bool) -> list[str]:
    flags = [
        str(assets / "kube-apiserver"),
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certs'}",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'accounts.pub'}",
        f"--service-account-signing-key-file={folder / 'accounts.key'}",
    ]
    if not has_controller_manager:
        flags.append("--disable-admission-plugins=ServiceAccount")  # nobody would make the accounts it asks for
    return flags


def _write_account_keys(folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "accounts.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "accounts.pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _kubeconfig(port: int, token: str, ca: Path) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [
            {"name": "test", "cluster": {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(ca)}}
        ],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
    }


def _answers(url: str, token: str) -> bool:
    context = ssl._create_unverified_context()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_ports(count: int) -> list[int]:
    holders = [socket.socket() for _ in range(count)]
    for holder in holders:
        holder.bind(("127.0.0.1", 0))
    ports = [int(holder.getsockname()[1]) for holder in holders]
    for holder in holders:
        holder.close()
    return ports


@contextmanager
def session_cluster(context: str | None, folder: Path) -> Iterator[Cluster]:
    """The API server the environment asks for; see conftest.py."""
    if context:
        path = _user_kubeconfig()
        kubeconfigs.from_files([path], context)  # says what is wrong with it before any test runs
        yield Cluster(path, context, has_controller_manager=_makes_accounts(path, context))
        return
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    processes = Processes(folder)
    try:
        if assets:
            kubeconfig, has_manager = start_real(processes, folder, Path(assets))
            yield Cluster(kubeconfig, has_controller_manager=has_manager)
        else:
            yield Cluster(start_embedded(processes, folder), is_embedded=True, data=folder)
    finally:
        processes.end()


@contextmanager
def with_our_processes(cluster: Cluster, folder: Path, without: str = "") -> Iterator[Path]:
    """Our controllers, kubelet and operator beside an API server; the kubeconfig that they use. A cluster with nodes of
    its own keeps them and gets no kubelet. without: a process that is not started."""
    data = cluster.data or folder / "node"  # the embedded API server reads logs from its own data directory
    access = with_current_context(cluster, folder / "access")
    own_nodes = any(node["metadata"]["name"] != "local" for node in cluster.kube.list(NODES).items)
    left_out = [*([without] if without else []), *(["kubelet"] if own_nodes else [])]
    try:
        local.up(data, say=lambda _: None, api_server=access, without=left_out)
        yield access
    finally:
        local.down(data, say=lambda _: None, now=True)


def _makes_accounts(kubeconfig: Path, context: str) -> bool:
    """What only a controller-manager does."""
    return find(Kube.load(str(kubeconfig), context), SERVICE_ACCOUNTS, "default", "default") is not None


def _user_kubeconfig() -> Path:
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(named).expanduser() if named else Path.home() / ".kube" / "config"


def with_current_context(cluster: Cluster, folder: Path) -> Path:
    """A kubeconfig in `folder` whose current context is the cluster's, for programs that are told of no context."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    if cluster.context:
        config["current-context"] = cluster.context
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "kubeconfig"
    target.write_text(yaml.safe_dump(config))
    target.chmod(0o600)
    return target
