"""Jobs: defaults, the generated selector and pod labels, and the immutable template."""

import copy

from ptlocal.apiserver.errors import FieldError, invalid_value, not_supported, required
from ptlocal.apiserver.rules import job_status, pods
from ptlocal.apiserver.rules.base import Manifest, Rules, unchanged

_UID_LABEL = "batch.kubernetes.io/controller-uid"
_NAME_LABEL = "batch.kubernetes.io/job-name"


def _default(job: Manifest) -> None:
    spec = job["spec"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    template = spec.get("template")
    if isinstance(template, dict) and isinstance(template.get("spec"), dict):
        pods.default_spec(template["spec"])
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []:
        for pattern in rule.get("onPodConditions") or []:
            pattern.setdefault("status", "True")


def _create(job: Manifest) -> None:
    job["status"] = {}
    spec = job["spec"]
    if not isinstance(spec.get("template"), dict):
        spec["template"] = {}
    if not spec.get("manualSelector"):
        _generate_selector(job, spec)
    if not job["metadata"].get("labels"):
        labels = (spec["template"].get("metadata") or {}).get("labels")
        if labels:
            job["metadata"]["labels"] = dict(labels)


def _generate_selector(job: Manifest, spec: Manifest) -> None:
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    meta = spec.setdefault("template", {}).setdefault("metadata", {})
    meta["labels"] = {
        **(meta.get("labels") or {}),
        _UID_LABEL: uid,
        _NAME_LABEL: name,
        "controller-uid": uid,
        "job-name": name,
    }
    spec["selector"] = {"matchLabels": {_UID_LABEL: uid}}


def _validate(job: Manifest) -> list[FieldError]:
    spec = job["spec"]
    template = spec.get("template") or {}
    pod_spec = template.get("spec")
    if not isinstance(pod_spec, dict):
        return [required("spec.template.spec.containers")]
    errors = pods.validate_spec(pod_spec, "spec.template.spec")
    for key in ("parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished"):
        if isinstance(spec.get(key), int) and spec[key] < 0:
            errors.append(invalid_value(f"spec.{key}", spec[key], "must be greater than or equal to 0"))
    if pod_spec["restartPolicy"] == "Always":
        errors.append(required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    if spec["completionMode"] not in ("NonIndexed", "Indexed"):
        errors.append(not_supported("spec.completionMode", spec["completionMode"], ["Indexed", "NonIndexed"]))
    if spec["completionMode"] == "Indexed" and "completions" not in spec:
        errors.append(required("spec.completions", "when completion mode is Indexed"))
    if spec.get("podFailurePolicy") and pod_spec["restartPolicy"] != "Never":
        errors.append(
            invalid_value(
                "spec.template.spec.restartPolicy",
                pod_spec["restartPolicy"],
                'only "Never" is supported when podFailurePolicy is specified',
            )
        )
    if spec.get("manualSelector") and not spec.get("selector"):
        errors.append(required("spec.selector"))
    return errors


def _validate_update(new: Manifest, old: Manifest, subresource: str) -> list[FieldError]:
    if subresource == "status":
        return job_status.errors_in(new.get("status") or {}, old.get("status") or {})
    now, before = new["spec"], old["spec"]
    errors = []
    for key in ("completionMode", "selector", "podFailurePolicy", "managedBy", "backoffLimitPerIndex"):
        errors += unchanged(f"spec.{key}", now.get(key), before.get(key))
    if before["completionMode"] != "Indexed" or now.get("parallelism") != now.get("completions"):
        errors += unchanged("spec.completions", now.get("completions"), before.get("completions"))
    was_suspended = bool(before.get("suspend"))
    errors += unchanged(
        "spec.template", _frozen(now["template"], was_suspended), _frozen(before["template"], was_suspended)
    )
    return errors


def _frozen(template: Manifest, suspended: bool) -> Manifest:
    """Return the immutable part: while a job is suspended a queue controller may still choose its nodes."""
    if not suspended:
        return template
    kept = copy.deepcopy(template)
    for key in ("labels", "annotations"):
        kept.get("metadata", {}).pop(key, None)
    kept.pop("metadata", None)
    for key in ("nodeSelector", "tolerations", "schedulingGates", "affinity"):
        kept["spec"].pop(key, None)
    for container in [*kept["spec"].get("containers", []), *kept["spec"].get("initContainers", [])]:
        container.pop("resources", None)
    return kept


RULES = Rules(default=_default, create=_create, validate=_validate, validate_update=_validate_update)
