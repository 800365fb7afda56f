"""The kinds with only one or two rules."""

import base64
import binascii

from ptlocal.apiserver.errors import FieldError, forbidden_field, invalid_value
from ptlocal.apiserver.rules import pods
from ptlocal.apiserver.rules.base import Manifest, Rules, unchanged

_MAX_DATA_BYTES = 1024 * 1024


def _default_secret(secret: Manifest) -> None:
    secret.setdefault("type", "Opaque")
    plain = secret.pop("stringData", None) or {}
    for key, value in plain.items():
        secret.setdefault("data", {})[key] = base64.b64encode(str(value).encode()).decode()


def _validate_secret(secret: Manifest) -> list[FieldError]:
    errors = []
    total = 0
    for key, value in (secret.get("data") or {}).items():
        try:
            total += len(base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            errors.append(invalid_value(f"data[{key}]", "<secret>", "must be base64"))
    if total > _MAX_DATA_BYTES:
        errors.append(
            FieldError("data", "FieldValueTooLong", f"Too long: may not be more than {_MAX_DATA_BYTES} bytes")
        )
    return errors


def _validate_configmap(configmap: Manifest) -> list[FieldError]:
    total = sum(len(value.encode()) for key in ("data", "binaryData") for value in (configmap.get(key) or {}).values())
    if total > _MAX_DATA_BYTES:
        return [FieldError("", "FieldValueTooLong", f"Too long: may not be more than {_MAX_DATA_BYTES} bytes")]
    return []


def _immutable_data(new: Manifest, old: Manifest, subresource: str) -> list[FieldError]:
    errors = []
    if old.get("immutable"):
        for key in ("data", "binaryData"):
            if new.get(key) != old.get(key):
                errors.append(forbidden_field(key, "field is immutable when `immutable` is set"))
        if not new.get("immutable"):
            errors.append(forbidden_field("immutable", "field is immutable when `immutable` is set"))
    return errors


def _update_secret(new: Manifest, old: Manifest, subresource: str) -> list[FieldError]:
    return [*unchanged("type", new.get("type"), old.get("type")), *_immutable_data(new, old, subresource)]


def _validate_event(event: Manifest) -> list[FieldError]:
    involved = (event.get("involvedObject") or {}).get("namespace") or ""
    namespace = event["metadata"].get("namespace", "")
    if involved != namespace and not (not involved and namespace == "default"):
        return [invalid_value("involvedObject.namespace", involved, "does not match event.namespace")]
    return []


def _default_event(event: Manifest) -> None:
    """Set the fields that Go always writes."""
    for key in ("firstTimestamp", "lastTimestamp", "eventTime"):
        event.setdefault(key, None)
    event.setdefault("source", {})
    for key in ("reportingComponent", "reportingInstance"):
        event.setdefault(key, "")


def _create_claim(claim: Manifest) -> None:
    claim["status"] = {"phase": "Pending"}


def _default_claim(claim: Manifest) -> None:
    claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def _default_deployment(deployment: Manifest) -> None:
    spec = deployment.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    rolling = {"maxSurge": "25%", "maxUnavailable": "25%"}
    spec.setdefault("strategy", {"type": "RollingUpdate", "rollingUpdate": rolling})
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    template = spec.get("template")
    if isinstance(template, dict) and isinstance(template.get("spec"), dict):
        pods.default_spec(template["spec"])


def _update_deployment(new: Manifest, old: Manifest, subresource: str) -> list[FieldError]:
    return unchanged("spec.selector", new["spec"].get("selector"), old["spec"].get("selector"))


def _validate_deployment(deployment: Manifest) -> list[FieldError]:
    spec = deployment["spec"]
    wanted = ((spec.get("selector") or {}).get("matchLabels")) or {}
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return [invalid_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")]
    return pods.validate_spec(spec["template"]["spec"], "spec.template.spec")


def _default_priority_class(priority_class: Manifest) -> None:
    priority_class.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _update_priority_class(new: Manifest, old: Manifest, subresource: str) -> list[FieldError]:
    return unchanged("value", new.get("value"), old.get("value"))


SECRETS = Rules(default=_default_secret, validate=_validate_secret, validate_update=_update_secret)
CONFIGMAPS = Rules(validate=_validate_configmap, validate_update=_immutable_data)
EVENTS = Rules(default=_default_event, validate=_validate_event)
CLAIMS = Rules(default=_default_claim, create=_create_claim)
DEPLOYMENTS = Rules(default=_default_deployment, validate=_validate_deployment, validate_update=_update_deployment)
PRIORITY_CLASSES = Rules(default=_default_priority_class, validate_update=_update_priority_class)
