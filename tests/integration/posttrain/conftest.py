"""The Python package against the session's cluster, in which everything of ours runs."""

import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import posttrain
from ptkube.errors import ApiError
from ptkube.resources import NAMESPACES, NODES


@pytest.fixture(scope="session")
def kubeconfig(kubeconfig: Path, cluster: Any) -> Path:
    if [node["metadata"]["name"] for node in cluster.kube.list(NODES).items] != ["local"]:
        pytest.skip("pods of a real cluster do not see this machine's files")
    return kubeconfig


@pytest.fixture
def client(cluster: Any, kubeconfig: Path) -> Iterator[posttrain.Client]:
    """A client in a namespace of the test's own."""
    name = f"test-{secrets.token_hex(4)}"
    cluster.kube.create(NAMESPACES, {"metadata": {"name": name}})
    client = posttrain.Client(str(kubeconfig), namespace=name)
    yield client
    for run in client.list():
        with suppress(posttrain.Error):
            run.delete()
    client.close()
    with suppress(ApiError):
        cluster.kube.delete(NAMESPACES, name)
