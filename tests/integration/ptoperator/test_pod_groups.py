"""Kubernetes' own gangs on an API server that serves them: found by discovery, made before the pods, named by each.

The definition is a test's, of v1beta1's shape as far as it is used; no scheduler here acts on it.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.builders.cluster.manifests import eventually
from tests.builders.cluster.operator_process import OperatorProcess

from ptkube.client import Kube
from ptkube.errors import AlreadyExists
from ptkube.resources import CRDS, JOBSETS, POD_GROUPS, Manifest
from ptoperator.kube.pod_groups import served_version

GANG: Manifest = {"type": "object", "required": ["minCount"], "properties": {"minCount": {"type": "integer"}}}
POLICY: Manifest = {"type": "object", "properties": {"gang": GANG}}
SPEC: Manifest = {
    "type": "object",
    "required": ["schedulingPolicy"],
    "properties": {"schedulingPolicy": POLICY, "priorityClassName": {"type": "string"}},
}
KIND = POD_GROUPS["v1beta1"]
NAME = f"{KIND.plural}.{KIND.group}"


@pytest.fixture
def pod_groups(kube: Kube) -> Iterator[None]:
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC}}}
    version = {"name": KIND.version, "served": True, "storage": True, "schema": schema}
    names = {"plural": KIND.plural, "singular": "podgroup", "kind": KIND.kind, "listKind": "PodGroupList"}
    spec = {"group": KIND.group, "scope": "Namespaced", "names": names, "versions": [version]}
    meta = {"name": NAME, "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}}
    try:
        kube.create(CRDS, {"metadata": meta, "spec": spec})
    except AlreadyExists:
        pytest.skip("the cluster has PodGroups")
    eventually(lambda: served_version(kube) == KIND.version)  # the operator looks once, when it starts
    yield
    kube.delete(CRDS, NAME)


def test_all_pods_of_a_job_name_the_gang_that_is_made_for_them(
    pod_groups: None, kube: Kube, operator: OperatorProcess, jobs: Any
) -> None:
    jobs.create("gang", {}, accelerator={"type": "h100-16"}, preflight="Skip", training={"steps": 1, "batchSize": 16})
    jobs.wait(lambda: jobs.find(JOBSETS, "gang"))
    (group,) = kube.list(KIND, jobs.namespace).items
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 2}}}
    jobset = kube.get(JOBSETS, "gang", jobs.namespace)
    assert group["metadata"]["ownerReferences"] == jobset["metadata"]["ownerReferences"]
    (replicated,) = jobset["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert pod["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}
