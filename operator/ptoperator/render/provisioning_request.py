"""The ProvisioningRequest for the nodes of a job's slice, and the PodTemplate it names.

GKE provides as many nodes as these pods need, all or none. It takes one set of pods per request, so a job has one
slice, and Pathways' head, which needs no chips, is not part of it.
"""

from ptkube.resources import POD_TEMPLATES, PROVISIONING_REQUESTS, Manifest, Resource
from ptoperator.kube import labels
from ptoperator.render.jobset import jobset
from ptoperator.render.layout import Layout
from ptoperator.render.pods.pod import QUEUED_CLASS

FLEX_START_SECONDS = 7 * 24 * 3600
"""The longest that flex-start gives."""


def provisioning_request(layout: Layout) -> Manifest:
    """Return the request's manifest."""
    return {
        **_head(layout, PROVISIONING_REQUESTS),
        "spec": {
            "provisioningClassName": QUEUED_CLASS,
            "podSets": [{"podTemplateRef": {"name": layout.provisioning_request}, "count": layout.hosts}],
            "parameters": {"maxRunDurationSeconds": str(FLEX_START_SECONDS)},
        },
    }


def pods_to_come(layout: Layout) -> Manifest:
    """Return the template of the JobSet's own pods with chips, so that the nodes fit them."""
    replicated = jobset(layout)["spec"]["replicatedJobs"]
    template = next(each for each in replicated if each["name"] == layout.chip_pods)["template"]["spec"]["template"]
    containers = [_with_requests(each) for each in template["spec"]["containers"]]
    return {
        **_head(layout, POD_TEMPLATES),
        "template": {**template, "spec": {**template["spec"], "containers": containers}},
    }


def _with_requests(container: Manifest) -> Manifest:
    """Copy limits to requests, as the API server does in a Pod but not in a PodTemplate."""
    resources = container["resources"]
    requests = {**resources.get("limits", {}), **resources.get("requests", {})}
    return {**container, "resources": {**resources, "requests": requests}}


def _head(layout: Layout, kind: Resource) -> Manifest:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": layout.provisioning_request,
            "namespace": layout.namespace,
            "labels": labels.for_job(layout.name, layout.uid),
            "ownerReferences": layout.owner_references,
        },
    }
