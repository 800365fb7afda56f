"""The chart's page: off until switched on, behind a proxy, with rights as narrow as what it shows."""

import subprocess
import sys
from typing import Any

import pytest
from tests.unit.chart.test_chart import documents, of_kind

ON: dict[str, Any] = {"page": {"enabled": True, "audience": "/projects/1/global/backendServices/2"}}


def of_page(values: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [body for body in of_kind(values, kind) if body["metadata"]["name"].endswith("-page")]


def granted(values: dict[str, Any], kind: str = "ClusterRole") -> set[tuple[str, str]]:
    rules = [rule for role in of_page(values, kind) for rule in role["rules"]]
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


JOBS = {("get", "posttrainjobs"), ("list", "posttrainjobs"), ("list", "events")}
REVIEWS = {("create", "subjectaccessreviews")}


def test_the_page_is_off_until_it_is_switched_on_and_needs_an_audience() -> None:
    assert [body for body in documents({}) if body["metadata"]["name"].endswith("-page")] == []
    with pytest.raises(Exception, match=r"page\.audience: empty; accepted with page\.enabled=true"):
        documents({"page": {"enabled": True}})


def test_the_page_may_read_jobs_and_ask_what_callers_may_and_nothing_else() -> None:
    assert granted(ON) == JOBS | REVIEWS
    nodes = {"page": {**ON["page"], "nodes": True}}
    assert granted(nodes) - granted(ON) == {("list", "nodes"), ("list", "pods"), ("list", "clusterqueues")}


def test_of_listed_namespaces_the_page_reads_no_others() -> None:
    values = {**ON, "namespaces": ["a", "b"]}
    assert granted(values) == REVIEWS
    assert granted(values, "Role") == JOBS
    assert {role["metadata"]["namespace"] for role in of_page(values, "Role")} == {"a", "b"}
    container = of_page(values, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["--port=8011", f"--audience={ON['page']['audience']}", "--only=a,b"]


def test_the_pages_pod_meets_the_restricted_standard_and_is_what_its_service_selects() -> None:
    (deployment,), (service,) = of_page(ON, "Deployment"), of_page(ON, "Service")
    pod = deployment["spec"]["template"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    context = pod["spec"]["containers"][0]["securityContext"]
    assert (context["readOnlyRootFilesystem"], context["capabilities"]) == (True, {"drop": ["ALL"]})
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    operator = next(body for body in of_kind(ON, "Service") if body["metadata"]["name"] == "pt-operator")
    assert not operator["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


IMAGE = r"""
import importlib.metadata as metadata, re, sys
def closure(name, extra, done):
    done.add(name.lower().replace("_", "-"))
    for line in metadata.requires(name) or []:
        wanted = re.match(r"[\w.-]+", line)[0].lower().replace("_", "-")
        marker = re.search(r"extra\s*==\s*.(\w+)", line)
        if (not marker or marker[1] == extra) and wanted not in done:
            try: closure(wanted, "requests" if wanted == "google-auth" else None, done)
            except metadata.PackageNotFoundError: pass
    return done
installed = closure("posttrain", "operator", set())
owners = metadata.packages_distributions()
class Absent:
    def find_spec(self, name, path=None, target=None):
        names = {each.lower().replace("_", "-") for each in owners.get(name, ())}
        if names and names.isdisjoint(installed): raise ModuleNotFoundError(f"not in the image: {name}", name=name)
sys.meta_path.insert(0, Absent())
from ptctl.commands import ui
from ptctl.page import access, answers, callers, server
from ptctl.runs.storage import bucket
from cryptography.hazmat.primitives.asymmetric import ec
import google.auth.jwt, google.cloud.storage, requests
try: import matplotlib
except ModuleNotFoundError: print("imported")
"""


def test_the_operators_image_holds_what_the_page_imports() -> None:
    done = subprocess.run([sys.executable, "-c", IMAGE], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr
