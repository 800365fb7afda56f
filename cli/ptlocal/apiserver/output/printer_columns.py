"""The printer columns of the built-in kinds. One function per kind returns an object's cells."""

from collections.abc import Callable
from typing import Any

from ptlocal.apiserver.kinds.builtin_kinds import Column
from ptlocal.apiserver.output.ages import age, duration, parse_time

Manifest = dict[str, Any]
Cells = Callable[[Manifest], list[Any]]
_NONE = "<none>"


def columns_of(storage_key: str) -> tuple[Column, ...]:
    """Return the columns of a kind."""
    return _PRINTERS.get(storage_key, _DEFAULT)[0]


def cells_of(storage_key: str, obj: Manifest) -> list[Any]:
    """Return the cells of an object."""
    return _PRINTERS.get(storage_key, _DEFAULT)[1](obj)


def _age_of(obj: Manifest) -> str:
    return age(obj["metadata"].get("creationTimestamp"))


def _columns(*names: str) -> tuple[Column, ...]:
    """Parse columns: `Name`, `Name:integer`, and a leading `*` for those that only -o wide shows."""
    made = []
    for name in names:
        title, _, kind = name.lstrip("*").partition(":")
        made.append(Column(title, kind or "string", "", priority=1 if name.startswith("*") else 0))
    return tuple(made)


def pod_state(pod: Manifest) -> str:
    """Return the STATUS column: the phase, why the pod does not run, or how its containers ended."""
    status = pod.get("status") or {}
    reason = str(status.get("reason") or status.get("phase") or "Unknown")
    running = False
    for container in status.get("initContainerStatuses") or []:
        state = container.get("state") or {}
        ended = state.get("terminated")
        if (ended and ended.get("exitCode") == 0) or container.get("started"):
            continue
        waiting = (state.get("waiting") or {}).get("reason")
        if ended:
            return f"Init:{ended.get('reason') or 'ExitCode:' + str(ended.get('exitCode'))}"
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
    for container in reversed(status.get("containerStatuses") or []):
        state = container.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif "terminated" in state:
            ended = state["terminated"]
            reason = ended.get("reason") or (
                f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode')}"
            )
        elif container.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        reason = "Running"
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _pod(pod: Manifest) -> list[Any]:
    status = pod.get("status") or {}
    statuses = status.get("containerStatuses") or []
    ready = sum(bool(s.get("ready")) for s in statuses)
    total = len(pod["spec"].get("containers") or [])
    restarts = sum(int(s.get("restartCount") or 0) for s in statuses)
    gates = pod["spec"].get("readinessGates")
    return [
        f"{ready}/{total}",
        pod_state(pod),
        str(restarts),
        _age_of(pod),
        status.get("podIP") or _NONE,
        pod["spec"].get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        f"0/{len(gates)}" if gates else _NONE,
    ]


def _job(job: Manifest) -> list[Any]:
    spec, status = job["spec"], job.get("status") or {}
    wanted = spec.get("completions")
    done = f"{status.get('succeeded', 0)}/{1 if wanted is None else wanted}"
    start, end = parse_time(status.get("startTime")), parse_time(status.get("completionTime"))
    lasted = ""
    if start is not None:
        lasted = age(status["startTime"]) if end is None else duration((end - start).total_seconds())
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
    selector = ((spec.get("selector") or {}).get("matchLabels")) or {}
    return [
        _job_state(job),
        done,
        lasted,
        _age_of(job),
        _join(c.get("name") for c in containers),
        _join(c.get("image") for c in containers),
        _join(f"{k}={v}" for k, v in selector.items()) or _NONE,
    ]


def _job_state(job: Manifest) -> str:
    true = {c.get("type") for c in (job.get("status") or {}).get("conditions") or [] if c.get("status") == "True"}
    if job["metadata"].get("deletionTimestamp"):
        true.add("Terminating")
    order = ("Complete", "Failed", "Terminating", "Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((name for name in order if name in true), "Running")


def _size(obj: Manifest, *fields: str) -> int:
    return sum(len(obj.get(field) or ()) for field in fields)


def _join(values: Any) -> str:
    return ",".join(str(value) for value in values)


def _service(service: Manifest) -> list[Any]:
    spec = service["spec"]
    ports = _join(f"{p.get('port')}/{p.get('protocol', 'TCP')}" for p in spec.get("ports") or []) or _NONE
    selector = _join(f"{k}={v}" for k, v in (spec.get("selector") or {}).items()) or _NONE
    return [
        spec.get("type"),
        spec.get("clusterIP") or _NONE,
        spec.get("externalName") or _NONE,
        ports,
        _age_of(service),
        selector,
    ]


def _event(event: Manifest) -> list[Any]:
    involved = event.get("involvedObject") or {}
    last_time = (
        event.get("lastTimestamp") or (event.get("series") or {}).get("lastObservedTime") or event.get("eventTime")
    )
    first = event.get("firstTimestamp") or event.get("eventTime")
    source = (event.get("source") or {}).get("component") or event.get("reportingComponent") or ""
    what = f"{str(involved.get('kind') or '').lower()}/{involved.get('name') or ''}"
    return [
        age(last_time or event["metadata"].get("creationTimestamp")),
        event.get("type"),
        event.get("reason"),
        what,
        involved.get("fieldPath") or "",
        source,
        str(event.get("message") or "").strip(),
        age(first or event["metadata"].get("creationTimestamp")),
        event.get("count") or 1,
    ]


def _node(node: Manifest) -> list[Any]:
    status, labels = node.get("status") or {}, node["metadata"].get("labels") or {}
    ready: Manifest = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), {})
    state = {"True": "Ready", "False": "NotReady"}.get(str(ready.get("status")), "Unknown")
    if node.get("spec", {}).get("unschedulable"):
        state += ",SchedulingDisabled"
    roles = _join(sorted(key.rpartition("/")[2] for key in labels if key.startswith("node-role.kubernetes.io/")))
    info = status.get("nodeInfo") or {}
    address = next((a.get("address") for a in status.get("addresses") or [] if a.get("type") == "InternalIP"), _NONE)
    return [
        state,
        roles or _NONE,
        _age_of(node),
        info.get("kubeletVersion") or "",
        address,
        _NONE,
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _claim(claim: Manifest) -> list[Any]:
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    return [
        status.get("phase"),
        spec.get("volumeName") or "",
        (status.get("capacity") or {}).get("storage") or "",
        _join(status.get("accessModes") or []),
        spec.get("storageClassName") or "",
        _age_of(claim),
        spec.get("volumeMode"),
    ]


def _deployment(deployment: Manifest) -> list[Any]:
    spec, status = deployment["spec"], deployment.get("status") or {}
    return [
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _age_of(deployment),
    ]


def _endpoints(endpoints: Manifest) -> list[Any]:
    addresses = [
        f"{a.get('ip')}:{p.get('port')}"
        for subset in endpoints.get("subsets") or []
        for a in subset.get("addresses") or []
        for p in subset.get("ports") or []
    ]
    return [_join(addresses) or _NONE, _age_of(endpoints)]


_DEFAULT: tuple[tuple[Column, ...], Cells] = (_columns("Age"), lambda obj: [_age_of(obj)])
_PRINTERS: dict[str, tuple[tuple[Column, ...], Cells]] = {
    "/pods": (
        _columns("Ready", "Status", "Restarts", "Age", "*IP", "*Node", "*Nominated Node", "*Readiness Gates"),
        _pod,
    ),
    "batch/jobs": (_columns("Status", "Completions", "Duration", "Age", "*Containers", "*Images", "*Selector"), _job),
    "/services": (_columns("Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "*Selector"), _service),
    "/events": (
        _columns("Last Seen", "Type", "Reason", "Object", "*Subobject", "*Source", "Message", "*First Seen", "*Count"),
        _event,
    ),
    "/nodes": (
        _columns(
            *("Status", "Roles", "Age", "Version"),
            *("*Internal-IP", "*External-IP", "*OS-Image", "*Kernel-Version", "*Container-Runtime"),
        ),
        _node,
    ),
    "/secrets": (
        _columns("Type", "Data:integer", "Age"),
        lambda obj: [obj.get("type"), _size(obj, "data"), _age_of(obj)],
    ),
    "/configmaps": (_columns("Data:integer", "Age"), lambda obj: [_size(obj, "data", "binaryData"), _age_of(obj)]),
    "/namespaces": (_columns("Status", "Age"), lambda obj: [(obj.get("status") or {}).get("phase"), _age_of(obj)]),
    "/serviceaccounts": (_columns("Secrets:integer", "Age"), lambda obj: [_size(obj, "secrets"), _age_of(obj)]),
    "/endpoints": (_columns("Endpoints", "Age"), _endpoints),
    "/persistentvolumeclaims": (
        _columns("Status", "Volume", "Capacity", "Access Modes", "StorageClass", "Age", "*VolumeMode"),
        _claim,
    ),
    "apps/deployments": (_columns("Ready", "Up-to-date:integer", "Available:integer", "Age"), _deployment),
    "coordination.k8s.io/leases": (
        _columns("Holder", "Age"),
        lambda obj: [(obj.get("spec") or {}).get("holderIdentity") or "", _age_of(obj)],
    ),
    "scheduling.k8s.io/priorityclasses": (
        _columns("Value:integer", "Global-Default:boolean", "Age", "PreemptionPolicy"),
        lambda obj: [obj.get("value"), bool(obj.get("globalDefault")), _age_of(obj), obj.get("preemptionPolicy")],
    ),
    "apiextensions.k8s.io/customresourcedefinitions": (
        _columns("Created At"),
        lambda obj: [obj["metadata"].get("creationTimestamp")],
    ),
}
