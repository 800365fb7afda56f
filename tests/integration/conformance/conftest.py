"""An API server alone, with no controller or kubelet of ours beside it, and a definition with a bit of everything.

The same three choices as for the other integration tests: our embedded server, the real one that KUBEBUILDER_ASSETS
names, or the cluster of --kube-context.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apiaccess import Cluster
from controlplanes import session_cluster
from manifests import eventually, is_established

from ptoperator.kube import NotFound
from ptoperator.resources import CRDS, NAMESPACES

Manifest = dict[str, Any]
WIDGETS = "/apis/conformance.posttrain.dev/v1/namespaces/{}/widgets"


@pytest.fixture(scope="session")
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with session_cluster(request.config.getoption("--kube-context"), tmp_path_factory.mktemp("api")) as cluster:
        yield cluster


@pytest.fixture
def namespace(api: Cluster) -> Iterator[str]:
    name = f"conformance-{uuid.uuid4().hex[:8]}"
    api.kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    try:
        api.kube.delete(NAMESPACES, name)
    except NotFound:
        pass  # the test deleted it


@pytest.fixture(scope="session")
def widget_crd(api: Cluster) -> Iterator[Manifest]:
    """A definition with a bit of everything, Established."""
    crd = json.loads((Path(__file__).parent / "widget_crd.json").read_text())
    created = api.kube.apply(CRDS, crd, field_manager="conformance")
    eventually(lambda: is_established(api.kube.get(CRDS, crd["metadata"]["name"])))
    yield created
    api.kube.delete(CRDS, crd["metadata"]["name"])


@pytest.fixture
def widgets(widget_crd: Manifest, namespace: str, api: Cluster) -> str:
    """The path of the widgets in a namespace of the test's own."""
    path = WIDGETS.format(namespace)
    eventually(lambda: api.http("GET", path).status == 200)
    return path
