"""Pods: the defaults that clients read back, the immutable spec, and container states that only advance."""

import copy
from collections.abc import Iterator
from typing import Any

from ptlocal.apiserver.errors import FieldError, forbidden_field, invalid_value, not_supported, required
from ptlocal.apiserver.rules.base import Manifest, Rules

_MAY_CHANGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_TOLERATED_S = 300


def default_spec(spec: Manifest) -> None:
    """Fill in defaults of a pod spec or template, in place."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    if spec.get("serviceAccountName"):
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in _all_containers(spec):
        _default_container(container)
    for volume in spec.get("volumes") or []:
        _default_volume(volume)


def _all_containers(spec: Manifest) -> Iterator[Manifest]:
    for key in ("containers", "initContainers"):
        for container in spec.get(key) or []:
            if isinstance(container, dict):
                yield container


def _default_container(container: Manifest) -> None:
    image = str(container.get("image") or "")
    latest = ":" not in image.rsplit("/", 1)[-1] or image.endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if latest and "@" not in image else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    resources = container["resources"]
    for name, limit in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, limit)
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for env in container.get("env") or []:
        field = (env.get("valueFrom") or {}).get("fieldRef")
        if field:
            field.setdefault("apiVersion", "v1")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            for key, value in (
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ):
                container[probe].setdefault(key, value)


def _default_volume(volume: Manifest) -> None:
    for source in ("configMap", "secret", "downwardAPI", "projected"):
        if source in volume:
            volume[source].setdefault("defaultMode", 0o644)
    for item in (volume.get("downwardAPI") or {}).get("items") or []:
        if item.get("fieldRef"):
            item["fieldRef"].setdefault("apiVersion", "v1")
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")


def _default(pod: Manifest) -> None:
    default_spec(pod["spec"])
    pod["spec"].setdefault("enableServiceLinks", True)
    _default_status(pod.get("status") or {})


def _default_status(status: Manifest) -> None:
    """Set the fields that clients read unconditionally."""
    for key in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(key) or []:
            for name, zero in (("image", ""), ("imageID", ""), ("ready", False), ("restartCount", 0)):
                container.setdefault(name, zero)
            container.setdefault("state", {})
            container.setdefault("lastState", {})
    if status.get("podIP"):
        status.setdefault("podIPs", [{"ip": status["podIP"]}])


def _create(pod: Manifest) -> None:
    spec = pod["spec"]
    spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = spec["serviceAccountName"]
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(t.get("key") in (key, None) and t.get("effect") in ("NoExecute", None) for t in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_S}
            )
    pod["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}


def _qos_class(spec: Manifest) -> str:
    containers = list(_all_containers(spec))
    requests = [c["resources"].get("requests") or {} for c in containers]
    limits = [c["resources"].get("limits") or {} for c in containers]
    if not any(r.get("cpu") or r.get("memory") for r in [*requests, *limits]):
        return "BestEffort"
    guaranteed = all(
        limit.get(name) and limit.get(name) == request.get(name)
        for limit, request in zip(limits, requests, strict=True)
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _validate(pod: Manifest) -> list[FieldError]:
    return validate_spec(pod["spec"], "spec")


def validate_spec(spec: Manifest, path: str) -> list[FieldError]:
    """Return the errors in a pod spec."""
    errors: list[FieldError] = []
    if not spec.get("containers"):
        errors.append(required(f"{path}.containers"))
    if spec["restartPolicy"] not in ("Always", "OnFailure", "Never"):
        errors.append(not_supported(f"{path}.restartPolicy", spec["restartPolicy"], ["Always", "OnFailure", "Never"]))
    volumes: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or []):
        errors += _name_errors(volume, f"{path}.volumes[{index}]", volumes)
    container_names: set[str] = set()
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(key) or []):
            here = f"{path}.{key}[{index}]"
            errors += _name_errors(container, here, container_names)
            if not container.get("image"):
                errors.append(required(f"{here}.image"))
            for number, mount in enumerate(container.get("volumeMounts") or []):
                if mount.get("name") not in volumes:
                    errors.append(
                        FieldError(
                            f"{here}.volumeMounts[{number}].name",
                            "FieldValueNotFound",
                            f'Not found: "{mount.get("name")}"',
                        )
                    )
    return errors


def _name_errors(item: Manifest, path: str, taken: set[str]) -> list[FieldError]:
    name = item.get("name", "")
    if not name:
        return [required(f"{path}.name")]
    if name in taken:
        return [FieldError(f"{path}.name", "FieldValueDuplicate", f'Duplicate value: "{name}"')]
    taken.add(name)
    return []


def _validate_update(new: Manifest, old: Manifest, subresource: str) -> list[FieldError]:
    if subresource == "status":
        return _status_errors(new.get("status") or {}, old.get("status") or {}, old["spec"])
    if subresource == "binding" or _frozen(new["spec"], old["spec"]) == _frozen(old["spec"], old["spec"]):
        return []
    return [forbidden_field("spec", _MAY_CHANGE)]


def _frozen(spec: Manifest, old: Manifest) -> Any:
    """Return the immutable part of a pod's spec."""
    kept = copy.deepcopy(spec)
    for container in _all_containers(kept):
        container.pop("image", None)
        container.pop("imagePullPolicy", None)
    kept.pop("activeDeadlineSeconds", None)
    before = old.get("tolerations") or []
    kept["tolerations"] = [t for t in kept.get("tolerations") or [] if t in before]
    if "schedulingGates" in kept:
        gone = [gate for gate in kept["schedulingGates"] if gate not in (old.get("schedulingGates") or [])]
        kept["schedulingGates"] = gone
    return {key: value for key, value in kept.items() if value not in ([], {})}


def _status_errors(new: Manifest, old: Manifest, spec: Manifest) -> list[FieldError]:
    restarts_for_ever = spec.get("restartPolicy") == "Always"
    if restarts_for_ever:
        return []
    errors = []
    for key in ("containerStatuses", "initContainerStatuses"):
        before = {s.get("name"): s for s in old.get(key) or []}
        for index, status in enumerate(new.get(key) or []):
            was = ((before.get(status.get("name")) or {}).get("state") or {}).get("terminated")
            if was is None or "terminated" in (status.get("state") or {}):
                continue
            if spec.get("restartPolicy") == "OnFailure" and was.get("exitCode") != 0:
                continue
            if key == "initContainerStatuses" and _is_sidecar(spec, str(status.get("name"))):
                continue
            errors.append(
                forbidden_field(f"status.{key}[{index}].state", "may not be transitioned to non-terminated state")
            )
    if new.get("phase") not in (None, "Pending", "Running", "Succeeded", "Failed", "Unknown"):
        errors.append(invalid_value("status.phase", new["phase"], "unknown phase"))
    return errors


def _is_sidecar(spec: Manifest, name: str) -> bool:
    return any(c.get("name") == name and c.get("restartPolicy") == "Always" for c in spec.get("initContainers") or [])


RULES = Rules(default=_default, create=_create, validate=_validate, validate_update=_validate_update)
