"""The cluster the integration tests run against, chosen once per session.

- by default our embedded API server, started in a temporary directory;
- with KUBEBUILDER_ASSETS set, a real etcd and kube-apiserver (and kube-controller-manager where its binary is there);
- with --kube-context NAME, that cluster of the user's kubeconfig.

Tests ask `cluster` what it is (`is_embedded`, `has_controller_manager`) and skip what it cannot show; they never expect
something else of a real server.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from ptoperator import kubeconfig as kubeconfigs
from ptoperator.apierrors import NotFound
from ptoperator.kube import Kube
from ptoperator.resources import NAMESPACES

sys.path.insert(0, str(Path(__file__).parent))
import controlplanes


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class Cluster:
    """Where the API server is, and three ways to talk to it: `kube`, `http`, `kubectl`."""

    kubeconfig: Path
    context: str | None
    is_embedded: bool
    has_controller_manager: bool
    data: Path | None = field(default=None)
    """The embedded server's data directory."""

    @cached_property
    def kube(self) -> Kube:
        return Kube.load(str(self.kubeconfig), self.context)

    @cached_property
    def _raw(self) -> Any:
        from kubernetes import config

        return config.new_client_from_config(str(self.kubeconfig), self.context)

    def http(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json",
             accept: str = "application/json", headers: dict[str, str] | None = None) -> Answer:
        """One request as it goes over the wire; a str or bytes body is sent as it is."""
        client = self._raw
        data = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
        sent = {"Accept": accept, "User-Agent": "conformance/1.0", **self.authorization, **(headers or {})}
        if data is not None:
            sent["Content-Type"] = content_type
        response = client.rest_client.pool_manager.request(
            method, client.configuration.host + path, body=data, headers=sent, timeout=30.0, retries=False)
        return Answer(response.status, response.headers, response.data.decode("utf-8", "replace"))

    @property
    def authorization(self) -> dict[str, str]:
        settings = self._raw.configuration.auth_settings()
        return {entry["key"]: entry["value"] for entry in settings.values() if entry["value"]}

    @property
    def has_kubectl(self) -> bool:
        return shutil.which("kubectl") is not None

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0,
                ) -> subprocess.CompletedProcess[str]:
        """kubectl with this cluster; skips the test where there is none. Never raises on a failing command."""
        if not self.has_kubectl:
            pytest.skip("kubectl is not on PATH")
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig)]
        if self.context:
            command += ["--context", self.context]
        env = {**os.environ, "KUBECACHEDIR": str(self.kubeconfig.parent / ".kubecache")}
        return subprocess.run([*command, *arguments], input=stdin, text=True, capture_output=True, timeout=timeout_s,
                              env=env, check=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kube-context", help="run the integration tests on this context of the kubeconfig")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    context = request.config.getoption("--kube-context")
    if context:
        yield Cluster(_user_kubeconfig(), context, is_embedded=False, has_controller_manager=True)
        return
    folder = tmp_path_factory.mktemp("cluster")
    processes = controlplanes.Processes(folder)
    assets = controlplanes.assets_folder()
    try:
        if assets is None:
            kubeconfig = controlplanes.start_embedded(processes, folder)
            yield Cluster(kubeconfig, None, is_embedded=True, has_controller_manager=False, data=folder)
        else:
            kubeconfig, has_manager = controlplanes.start_real(processes, folder, assets)
            yield Cluster(kubeconfig, None, is_embedded=False, has_controller_manager=has_manager)
    finally:
        processes.end()


def _user_kubeconfig() -> Path:
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(named).expanduser() if named else Path.home() / ".kube" / "config"
    kubeconfigs.from_files([path])  # says what is wrong with it before any test runs
    return path


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    cluster.kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    try:
        cluster.kube.delete(NAMESPACES, name)
    except NotFound:
        pass  # the test deleted it
