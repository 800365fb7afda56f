"""An API server of its own for what is installed in a cluster: no operator, no controllers, no kubelet."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.builders.cluster.control_planes import session_cluster

from ptkube.client import Kube


@dataclass
class Api:
    """An API server and the way to it."""

    kube: Kube
    kubeconfig: Path


@pytest.fixture(scope="module")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with session_cluster(None, tmp_path_factory.mktemp("install")) as cluster:
        yield Api(cluster.kube, cluster.kubeconfig)
