"""Webhooks without anybody behind them, images that cannot be pulled, and a clock that is off."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from ptctl.cluster.doctor.finding import CheckContext, Finding, error, ok, warning
from ptkube import timestamps
from ptkube.client import Kube
from ptkube.resources import CONFIGMAPS, MUTATING_WEBHOOKS, PODS, Manifest, Resource
from ptoperator.kube import labels

_VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
PULL_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_SKEW_S = 30.0
"""Tokens are refused when clocks differ by minutes; ages in tables are wrong before."""


def webhooks(context: CheckContext) -> Iterator[Finding]:
    """Yield the webhooks that refuse every write because no pod of theirs is ready."""
    failing = 0
    for r in (MUTATING_WEBHOOKS, _VALIDATING_WEBHOOKS):
        for configuration in context.kube.list(r).items:
            for hook in configuration.get("webhooks") or []:
                service = (hook.get("clientConfig") or {}).get("service")
                if hook.get("failurePolicy", "Fail") == "Fail" and service and not _is_served(context.kube, service):
                    failing += 1
                    yield error(
                        "webhooks",
                        f"{hook['name']} refuses writes: no pod of service {service['namespace']}/{service['name']} "
                        "is ready",
                        f"kubectl get pods -n {service['namespace']}; without its controller, delete "
                        f"{r.kind} {configuration['metadata']['name']}",
                    )
    if not failing:
        yield ok("webhooks", "every webhook that may refuse writes has a pod that is ready")


def _is_served(kube: Kube, service: Manifest) -> bool:
    slices = kube.list(_SLICES, service["namespace"], labels=f"kubernetes.io/service-name={service['name']}").items
    endpoints = (endpoint for each in slices for endpoint in each.get("endpoints") or [])
    return any((endpoint.get("conditions") or {}).get("ready", True) for endpoint in endpoints)


def images(context: CheckContext) -> Iterator[Finding]:
    """Yield the images of posttrain that a node cannot pull."""
    pods = context.kube.list(PODS, labels=f"{labels.NAME}=posttrain").items
    refused: dict[str, tuple[str, str]] = {}
    for pod in pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or []:
            waiting = (status.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in PULL_REASONS:
                where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                refused[str(status.get("image"))] = (where, str(waiting.get("message") or waiting["reason"]))
    for image, (where, message) in refused.items():
        yield error("images", f"{image} cannot be pulled ({where}): {message}", pull_fix(message))
    if not refused:
        yield ok("images", f"no pod of posttrain waits for an image ({len(pods)} pods)")


def pull_fix(message: str) -> str:
    """Return what to do about an image that is not pulled, from the node's own words."""
    lower = message.lower()
    if "403" in lower or "denied" in lower or "unauthorized" in lower:
        return "give the nodes' service account roles/artifactregistry.reader, or the job imagePullSecrets"
    if "not found" in lower or "404" in lower:
        return "check name and tag; was it pushed?"
    return "check that the nodes reach the registry (private nodes need Private Google Access or a NAT)"


def clock(context: CheckContext) -> Iterator[Finding]:
    """Yield how far this machine's clock is from the API server's, by a dry run that writes nothing."""
    body = {"metadata": {"name": "ptctl-clock", "namespace": context.namespace}}
    before = datetime.now(UTC)
    answer = context.kube.create(CONFIGMAPS, body, dry_run=True)
    theirs = timestamps.from_text(str(answer["metadata"].get("creationTimestamp") or ""))
    if theirs is None:
        return
    skew_s = (theirs - before).total_seconds()
    if abs(skew_s) > _SKEW_S:
        word = "behind" if skew_s > 0 else "ahead of"
        message = f"this machine's clock is {abs(skew_s):.0f} s {word} the cluster's"
        yield warning("clock", message, "let NTP set this machine's clock")
    else:
        yield ok("clock", "this machine's clock and the cluster's agree")
