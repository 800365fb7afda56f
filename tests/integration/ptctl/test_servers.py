"""`ptctl serve --on gke` and `ptctl server`: made, changed, listed and deleted on an API server."""

import io
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.builders.cluster.manifests import eventually, is_established

from ptctl.cli import root
from ptctl.ui.app import App
from ptctl.ui.console import Console
from ptctl.ui.exit_codes import report
from ptkube.errors import NotFound
from ptkube.resources import CRDS, DEPLOYMENTS, HTTP_ROUTES, INFERENCE_POOLS, NAMESPACES, SERVICES, Resource

Ptctl = Callable[..., tuple[int, str, str]]
SERVE = ("serve", "gs://lab/runs/llama/export", "--on", "gke", "--tpu", "v6e-4")


@pytest.fixture
def namespace(api: Any) -> Iterator[str]:
    """A namespace of the test's own, in the API server alone."""
    name = f"t-{secrets.token_hex(5)}"
    api.kube.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    api.kube.delete(NAMESPACES, name)


@pytest.fixture
def ptctl(api: Any, namespace: str) -> Ptctl:
    def run(*words: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        app = App(Console(out, err, {}), lambda target: api.kube)
        try:
            root.main([*words, "-n", namespace], prog_name="ptctl", standalone_mode=False, obj=app)
            code = 0
        except BaseException as error:
            code = report(error, app.console)
        return code, out.getvalue(), err.getvalue()

    return run


def names(api: Any, kind: Resource, namespace: str) -> list[str]:
    return [item["metadata"]["name"] for item in api.kube.list(kind, namespace).items]


def test_a_server_is_made_changed_listed_and_deleted(api: Any, namespace: str, ptctl: Ptctl) -> None:
    code, out, err = ptctl(*SERVE)
    assert (code, out.strip()) == (0, "llama-serve"), err
    assert f"http://llama-serve.{namespace}.svc:8000/v1, model 'llama'" in err
    assert "created Deployment, Service llama-serve" in err
    assert names(api, SERVICES, namespace) == ["llama-serve"]
    code, _, err = ptctl(*SERVE, "--replicas", "2", "--max-length", "4096")
    assert (code, "updated Deployment" in err) == (0, True), err
    made = api.kube.get(DEPLOYMENTS, "llama-serve", namespace)
    assert made["spec"]["replicas"] == 2
    words = made["spec"]["template"]["spec"]["containers"][0]["command"]
    assert words[-2:] == ["--max-model-len", "4096"]
    lines = ptctl("server", "list")[1].splitlines()
    assert [line.split() for line in lines[1:]] == [["llama-serve", namespace, "0/2", "llama", "-"]]
    assert ptctl("server", "delete", "llama-serve")[0] == 0
    assert names(api, DEPLOYMENTS, namespace) == names(api, SERVICES, namespace) == []
    assert ptctl("server", "delete", "llama-serve")[0] == 3


def test_a_kind_that_the_cluster_lacks_is_named_and_nothing_is_made(api: Any, namespace: str, ptctl: Ptctl) -> None:
    code, _, err = ptctl(*SERVE, "--replicas", "1:4")
    assert code == 1
    assert "PodMonitoring (monitoring.googleapis.com/v1) is not a kind of this cluster" in err
    assert "--replicas N" in err
    assert names(api, DEPLOYMENTS, namespace) == []


def test_a_route_goes_when_it_is_no_longer_asked_for(api: Any, namespace: str, ptctl: Ptctl) -> None:
    for kind in (INFERENCE_POOLS, HTTP_ROUTES):
        define(api, kind)
    code, _, err = ptctl(*SERVE, "--gateway", "outside", "--endpoint-picker", "picker")
    assert code == 0, err
    assert names(api, INFERENCE_POOLS, namespace) == names(api, HTTP_ROUTES, namespace) == ["llama-serve"]
    assert ptctl(*SERVE)[0] == 0
    assert names(api, INFERENCE_POOLS, namespace) == names(api, HTTP_ROUTES, namespace) == []
    assert names(api, DEPLOYMENTS, namespace) == ["llama-serve"]


def test_an_object_of_others_is_never_taken_over(api: Any, namespace: str, ptctl: Ptctl) -> None:
    body = {"metadata": {"name": "llama-serve", "namespace": namespace}, "spec": {"ports": [{"port": 80}]}}
    api.kube.create(SERVICES, body)
    code, _, err = ptctl(*SERVE)
    assert (code, "Service 'llama-serve'" in err, "is not a server's" in err) == (2, True, True)
    assert names(api, DEPLOYMENTS, namespace) == []
    with pytest.raises(NotFound):
        api.kube.get(DEPLOYMENTS, "llama-serve", namespace)


def define(api: Any, kind: Resource) -> None:
    """A kind of another project, without its schema."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names_of = {"plural": kind.plural, "singular": kind.kind.lower(), "kind": kind.kind}
    spec = {"group": kind.group, "scope": "Namespaced", "names": names_of, "versions": [version]}
    note = {"api-approved.kubernetes.io": "unapproved, for a test"}
    name = f"{kind.plural}.{kind.group}"
    if name not in [item["metadata"]["name"] for item in api.kube.list(CRDS).items]:
        api.kube.create(CRDS, {"metadata": {"name": name, "annotations": note}, "spec": spec})
    eventually(lambda: is_established(api.kube.get(CRDS, name)))
