"""What was owned goes with its owner, also where the owner's kind was just installed."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ptkube.client import Kube
from ptkube.resources import CONFIGMAPS, CRDS, Manifest, Resource
from ptlocal.supervisor.readiness import install

Eventually = Callable[..., Any]
DEFINITION: Manifest = json.loads((Path(__file__).parents[1] / "conformance" / "widget_crd.json").read_text())
WIDGETS = Resource("conformance.posttrain.dev", "v1", "widgets", "Widget")


def owned(name: str, namespace: str, owner: Manifest) -> Manifest:
    reference = {**owner, "apiVersion": "conformance.posttrain.dev/v1", "kind": "Widget"}
    return {"metadata": {"name": name, "namespace": namespace, "ownerReferences": [reference]}}


@pytest.fixture
def definition(kube: Kube) -> Iterator[Manifest]:
    """Installed this moment."""
    install(kube, DEFINITION)
    yield DEFINITION
    kube.delete(CRDS, DEFINITION["metadata"]["name"])


def test_what_nobody_owns_goes_though_the_kind_of_its_owner_is_new(
    kube: Kube, namespace: str, eventually: Eventually, definition: Manifest
) -> None:
    kube.create(CONFIGMAPS, owned("nobodys", namespace, {"name": "gone", "uid": "of-nobody"}))
    eventually(CONFIGMAPS, "nobodys", namespace, lambda item: item is None)


def test_the_children_of_an_owner_go_though_its_kind_was_removed_and_installed_again(
    kube: Kube, namespace: str, eventually: Eventually, definition: Manifest
) -> None:
    time.sleep(1)  # the collector begins to watch the kind
    name = definition["metadata"]["name"]
    kube.delete(CRDS, name)
    eventually(CRDS, name, None, lambda item: item is None)
    time.sleep(0.5)  # it finds out that the kind is not served, and asks again seconds later
    install(kube, definition)
    widget = kube.create(WIDGETS, {"metadata": {"name": "owner", "namespace": namespace}, "spec": {}})
    kube.create(CONFIGMAPS, owned("child", namespace, {"name": "owner", "uid": widget["metadata"]["uid"]}))
    kube.create(CONFIGMAPS, owned("nobodys", namespace, {"name": "gone", "uid": "of-nobody"}))
    eventually(CONFIGMAPS, "nobodys", namespace, lambda item: item is None)  # it has seen the child, too
    kube.delete(WIDGETS, "owner", namespace)
    eventually(CONFIGMAPS, "child", namespace, lambda item: item is None)
