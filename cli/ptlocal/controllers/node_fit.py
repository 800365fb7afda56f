"""Decide whether a pod fits on a node and, if on none, why. Pure. The messages are the real scheduler's.

Considered: resource requests against allocatable, nodeSelector and required node affinity, taints, cordon. Left out:
inter-pod affinity, topology spread, priorities and preemption of other pods.
"""

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

from ptapi.quantity import parse_quantity
from ptkube.objects import holds
from ptkube.resources import Manifest

Amounts = dict[str, Decimal]


def choose_node(pod: Manifest, nodes: list[Manifest], pods: list[Manifest]) -> tuple[str | None, str]:
    """Return the node's name, or None and the reason. `pods` are all pods that are bound and not finished."""
    reasons: Counter[str] = Counter()
    for node in nodes:
        there = [p for p in pods if p["spec"].get("nodeName") == node["metadata"]["name"]]
        problems = _problems(pod, node, there)
        if not problems:
            return str(node["metadata"]["name"]), ""
        reasons.update(problems)
    if not nodes:
        return None, "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{count} {text}" for text, count in reasons.items()))
    return None, f"0/{len(nodes)} nodes are available: {listed}."


def requests(pod: Manifest) -> Amounts:
    """Return the pod's requests: containers and sidecars together, or its largest init container if that is more."""
    spec = pod["spec"]
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            sidecars = _plus(sidecars, _requests_of(container))
        else:
            peak = _max(peak, _plus(sidecars, _requests_of(container)))
    total = sidecars
    for container in spec["containers"]:
        total = _plus(total, _requests_of(container))
    return _max(total, peak)


def _problems(pod: Manifest, node: Manifest, there: list[Manifest]) -> list[str]:
    """Return why the pod does not fit, or nothing. Like the scheduler, only the first failing filter is reported."""
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    if not holds(node, "Ready"):
        return ["node(s) had untolerated taint {node.kubernetes.io/not-ready: }"]
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] != "PreferNoSchedule" and not _tolerated(pod, taint):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value') or ''}}}"]
    if not _selected(pod, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return _shortages(pod, node, there)


def _shortages(pod: Manifest, node: Manifest, there: list[Manifest]) -> list[str]:
    allocatable = {k: parse_quantity(str(v)) for k, v in node["status"].get("allocatable", {}).items()}
    used: Amounts = {"pods": Decimal(len(there))}
    for other in there:
        used = _plus(used, requests(other))
    wanted = {"pods": Decimal(1), **requests(pod)}
    short = [
        name
        for name, amount in wanted.items()
        if amount > 0 and used.get(name, Decimal(0)) + amount > allocatable.get(name, Decimal(0))
    ]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]


def _tolerated(pod: Manifest, taint: Manifest) -> bool:
    for toleration in pod["spec"].get("tolerations") or []:
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        if toleration.get("operator") == "Exists":
            if toleration.get("key") in (None, "", taint["key"]):
                return True
        elif toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or ""):
            return True
    return False


def _selected(pod: Manifest, node: Manifest) -> bool:
    labels = node["metadata"].get("labels") or {}
    wanted = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not affinity:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        _all_match(term.get("matchExpressions"), labels) and _all_match(term.get("matchFields"), fields)
        for term in affinity["nodeSelectorTerms"]
    )


def _all_match(expressions: list[Manifest] | None, values: dict[str, str]) -> bool:
    return all(_matches(e["operator"], values.get(e["key"]), e.get("values") or []) for e in expressions or [])


def _matches(operator: str, value: str | None, wanted: list[str]) -> bool:
    match operator:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(wanted[0])
        case "Lt":
            return value is not None and int(value) < int(wanted[0])
    return False


def _requests_of(container: Manifest) -> Amounts:
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(str(amount)) for name, amount in amounts.items()}


def _plus(a: Amounts, b: Amounts) -> Amounts:
    return {name: a.get(name, Decimal(0)) + b.get(name, Decimal(0)) for name in _names(a, b)}


def _max(a: Amounts, b: Amounts) -> Amounts:
    return {name: max(a.get(name, Decimal(0)), b.get(name, Decimal(0))) for name in _names(a, b)}


def _names(a: Amounts, b: Amounts) -> Iterable[str]:
    return dict.fromkeys([*a, *b])
