"""Who may do what: the caller, the operator and the trainer, as the API server's authorisers say."""

from __future__ import annotations

from collections.abc import Iterator

from ptctl.cluster.doctor.finding import CheckContext, Finding, error, ok, warning
from ptkube.client import Kube
from ptkube.resources import DEPLOYMENTS, EVENTS, PODS, POSTTRAINJOBS, SECRETS, Manifest, Resource
from ptoperator.kube.rbac import IN_NAMESPACES

CHECK = "rights"
_SELF = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)
SUBJECT_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
_CALLER = (
    *((verb, POSTTRAINJOBS, "") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    ("list", PODS, ""),
    ("get", PODS, "log"),
    ("list", EVENTS, ""),
)
"""What `ptctl workload` needs."""
TRAINER_ACCOUNT = "POSTTRAIN_TRAINER_SERVICE_ACCOUNT"


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield the rights that are missing, and one that a trainer should not have."""
    yield _caller(context)
    if context.survey.operator is not None:
        yield from _accounts(context)


def _caller(context: CheckContext) -> Finding:
    missing = [
        _right(verb, r, sub)
        for verb, r, sub in _CALLER
        if not may(context.kube, _SELF, {}, verb, r, sub, context.namespace)
    ]
    if missing:
        return warning(
            CHECK, f"you may not {', '.join(missing)} in namespace {context.namespace}",
            "ask for the ClusterRole posttrain-jobs-edit there",
        )  # fmt: skip
    return ok(CHECK, f"you may use jobs in namespace {context.namespace}")


def _accounts(context: CheckContext) -> Iterator[Finding]:
    operator = context.survey.operator
    assert operator is not None
    pod = context.kube.get(DEPLOYMENTS, operator.name, operator.namespace)["spec"]["template"]["spec"]
    account = _user(operator.namespace, pod.get("serviceAccountName") or "default")
    missing = [
        _right(verb, right.resource, right.subresource)
        for right in IN_NAMESPACES
        if not right.only_with and right.resource.group in ("", POSTTRAINJOBS.group, "jobset.x-k8s.io", "batch")
        for verb in right.granted
        if not may(
            context.kube, SUBJECT_REVIEWS, {"user": account}, verb, right.resource, right.subresource, context.namespace
        )
    ]
    if missing:
        yield error(
            CHECK,
            f"the operator ({account}) may not {', '.join(missing)} in namespace {context.namespace}",
            "`ptctl cluster install` or `helm upgrade` grants it; with the chart's `namespaces`, add this one",
        )
    else:
        yield ok(CHECK, f"the operator has its rights in namespace {context.namespace}")
    yield _trainer(context, pod)


def _trainer(context: CheckContext, pod: Manifest) -> Finding:
    account = _user(context.namespace, operator_setting(pod, TRAINER_ACCOUNT) or "default")
    if may(context.kube, SUBJECT_REVIEWS, {"user": account}, "list", SECRETS, "", context.namespace):
        return warning(
            CHECK,
            f"trainers ({account}) may read the Secrets of namespace {context.namespace}",
            "a trainer needs no right in Kubernetes: take the RoleBinding away, or give jobs another ServiceAccount",
        )
    return ok(CHECK, f"trainers ({account}) have no rights over Secrets")


def operator_setting(pod: Manifest, variable: str) -> str:
    """Return what the operator's pod is told by an environment variable."""
    variables = {each["name"]: each.get("value", "") for each in pod["containers"][0].get("env") or []}
    return str(variables.get(variable) or "")


def _user(namespace: str, account: str) -> str:
    return f"system:serviceaccount:{namespace}:{account}"


def may(kube: Kube, review: Resource, who: Manifest, verb: str, r: Resource, subresource: str, namespace: str) -> bool:
    """Return True if the API server's authorisers allow it; an empty namespace is all of them."""
    attributes = {"verb": verb, "group": r.group, "resource": r.plural, "subresource": subresource}
    spec = {**who, "resourceAttributes": {**attributes, "namespace": namespace}}
    answer = kube.create(review, {"metadata": {}, "spec": spec})
    return bool((answer.get("status") or {}).get("allowed"))


def _right(verb: str, r: Resource, subresource: str) -> str:
    return f"{verb} {r.plural}{f'/{subresource}' if subresource else ''}"
