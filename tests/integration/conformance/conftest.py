"""A definition with a bit of everything, in the API server alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import eventually, is_established

from ptkube.resources import CRDS

Manifest = dict[str, Any]
WIDGETS = "/apis/conformance.posttrain.dev/v1/namespaces/{}/widgets"


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
