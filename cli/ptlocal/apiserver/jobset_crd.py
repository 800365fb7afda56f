"""The JobSet definition that the embedded cluster starts with, so that no download is needed.

The API is jobset.x-k8s.io/v1alpha2 as the public controller serves it: same fields, defaults and rules, in our own
writing; job and pod templates come from the built-in schemas. What the public controller's webhook fills in is a schema
default here. Left out: volumeClaimPolicies. A user may install the public definition over it, which is then kept.
"""

from __future__ import annotations

from typing import Any

from ptlocal.apiserver.kinds import builtin_schemas

Schema = dict[str, Any]
_IMMUTABLE = [{"rule": "self == oldSelf", "message": "Value is immutable"}]
_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "format": "int32", "minimum": 0}


def definition() -> Schema:
    """Return the JobSet CRD."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "jobsets.jobset.x-k8s.io"},
        "spec": {
            "group": "jobset.x-k8s.io",
            "scope": "Namespaced",
            "names": {"kind": "JobSet", "listKind": "JobSetList", "plural": "jobsets", "singular": "jobset"},
            "versions": [
                {
                    "name": "v1alpha2",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        _column("TerminalState", ".status.terminalState", "how the JobSet ended"),
                        _column("Restarts", ".status.restarts", "how often all its jobs were made anew"),
                        _column(
                            "Completed", '.status.conditions[?(@.type=="Completed")].status', "whether it succeeded"
                        ),
                        _column("Suspended", ".spec.suspend", "whether it is held back"),
                        _column("Age", ".metadata.creationTimestamp", "time since creation", "date"),
                    ],
                    "schema": {"openAPIV3Schema": _object({"spec": _spec(), "status": _status()})},
                }
            ],
        },
    }


def _column(name: str, path: str, description: str, kind: str = "string") -> Schema:
    return {"name": name, "jsonPath": path, "description": description, "type": kind}


def _object(properties: Schema, required: list[str] | None = None, rules: list[Schema] | None = None) -> Schema:
    made: Schema = {"type": "object", "properties": properties}
    if required:
        made["required"] = required
    if rules:
        made["x-kubernetes-validations"] = rules
    return made


def _enum(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _list(items: Schema, key: str | None = None) -> Schema:
    if key is None:
        return {"type": "array", "items": items, "x-kubernetes-list-type": "atomic"}
    return {"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _spec() -> Schema:
    return _object(
        {
            "replicatedJobs": _list(_replicated_job(), key="name"),
            "network": {
                "default": {},
                **_object(
                    {
                        "enableDNSHostnames": {"type": "boolean", "default": True},
                        "publishNotReadyAddresses": {"type": "boolean", "default": True},
                        "subdomain": _STRING,
                    },
                    rules=_IMMUTABLE,
                ),
            },
            "successPolicy": {
                "default": {"operator": "All"},
                **_object(
                    {
                        "operator": {**_enum("All", "Any"), "default": "All"},
                        "targetReplicatedJobs": _list(_STRING),
                    },
                    ["operator"],
                    _IMMUTABLE,
                ),
            },
            "failurePolicy": _failure_policy(),
            "startupPolicy": {
                "default": {"startupPolicyOrder": "AnyOrder"},
                **_object(
                    {
                        "startupPolicyOrder": {**_enum("AnyOrder", "InOrder"), "default": "AnyOrder"},
                    },
                    ["startupPolicyOrder"],
                    _IMMUTABLE,
                ),
            },
            "suspend": {"type": "boolean"},
            "coordinator": _object(
                {"replicatedJob": _STRING, "jobIndex": {"type": "integer"}, "podIndex": {"type": "integer"}},
                ["replicatedJob"],
            ),
            "managedBy": {**_STRING, "x-kubernetes-validations": _IMMUTABLE},
            "ttlSecondsAfterFinished": _COUNT,
        },
        rules=[
            {
                "rule": "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder' "
                "&& self.replicatedJobs.exists(x, has(x.dependsOn)))",
                "message": "StartupPolicy and DependsOn APIs are mutually exclusive",
            },
            {
                "rule": "(has(oldSelf.suspend) && oldSelf.suspend) || self.replicatedJobs == oldSelf.replicatedJobs",
                "message": "replicatedJobs: field is immutable while the JobSet is not suspended",
            },
        ],
    )


def _failure_policy() -> Schema:
    actions = (
        "FailJobSet",
        "RestartJobSet",
        "RestartJobSetAndIgnoreMaxRestarts",
        "RestartJob",
        "RestartJobAndIgnoreMaxRestarts",
    )
    rule = _object(
        {
            "name": _STRING,
            "action": _enum(*actions),
            "onJobFailureReasons": _list(_STRING),
            "onJobFailureMessagePatterns": _list(_STRING),
            "targetReplicatedJobs": _list(_STRING),
        },
        ["action", "name"],
    )
    return _object(
        {
            "maxRestarts": {"type": "integer", "format": "int32"},
            "restartStrategy": {**_enum("Recreate", "BlockingRecreate", "InPlaceRestart"), "default": "Recreate"},
            "rules": _list(rule),
        },
        rules=_IMMUTABLE,
    )


def _replicated_job() -> Schema:
    depends_on = _object({"name": _STRING, "status": _enum("Ready", "Complete")}, ["name", "status"])
    return _object(
        {
            "name": _STRING,
            "groupName": {**_STRING, "default": "default"},
            "replicas": {**_COUNT, "default": 1},
            "dependsOn": {**_list(depends_on, key="name"), "maxItems": 5, "x-kubernetes-validations": _IMMUTABLE},
            "template": _job_template(),
        },
        ["name", "template"],
    )


def _job_template() -> Schema:
    job_spec = _for_crd(builtin_schemas.expanded("JobSpec"))
    job_spec["properties"]["completionMode"] = {**_enum("Indexed", "NonIndexed"), "default": "Indexed"}
    job_spec["properties"]["template"]["properties"]["metadata"] = _template_metadata()
    return _object({"metadata": _template_metadata(), "spec": job_spec})


def _template_metadata() -> Schema:
    strings = {"type": "object", "additionalProperties": _STRING}
    return _object(
        {"name": _STRING, "namespace": _STRING, "labels": strings, "annotations": strings, "finalizers": _list(_STRING)}
    )


def _for_crd(schema: Schema) -> Schema:
    """Remove the strategic-merge hints, which only built-in kinds may have, and require every list key."""
    made = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-patch-")}
    if "properties" in made:
        made["properties"] = {name: _for_crd(child) for name, child in made["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), dict):
            made[key] = _for_crd(made[key])
    for key in made.get("x-kubernetes-list-map-keys") or []:
        if key not in made["items"].get("required", []):
            made["items"]["properties"][key].setdefault("default", "")
    return made


def _status() -> Schema:
    condition = _object(
        {
            "type": {"type": "string", "maxLength": 316},
            "status": _enum("True", "False", "Unknown"),
            "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": _COUNT,
        },
        ["type", "status", "reason", "message", "lastTransitionTime"],
    )
    counts = ("ready", "succeeded", "failed", "active", "suspended")
    whole: Schema = {"type": "integer", "format": "int32"}
    per_job = _object(
        {
            "name": _STRING,
            **dict.fromkeys(counts, whole),
            "jobRestarts": _list(whole),
            "jobRestartsCountTowardsMax": _list(whole),
        },
        ["name", *counts],
    )
    return _object(
        {
            "conditions": _list(condition, key="type"),
            "restarts": whole,
            "restartsCountTowardsMax": whole,
            "terminalState": _STRING,
            "replicatedJobsStatus": _list(per_job, key="name"),
            "currentInPlaceRestartAttempt": _COUNT,
            "previousInPlaceRestartAttempt": _COUNT,
        }
    )
