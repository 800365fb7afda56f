"""The JobSet CRD for the embedded cluster: the fields, enums, list types and defaults of v1alpha2.

JobSet itself fills its defaults by a webhook; here the schema does. Its own schema for a Job template is the batch/v1
one, so a typo in a pod template is refused as on GKE. Left out: volumeClaimPolicies and the alpha fields of in-place
restart, which our controller does not act on.
"""

from __future__ import annotations

from typing import Any

from ptlocal.apiserver.builtin_schemas import expanded
from ptlocal.jobset.names import DEFAULT_GROUP
from ptoperator.resources import JOBSETS, Manifest

Schema = dict[str, Any]

_JOB_SPEC = "JobSpec"
_IMMUTABLE = [{"rule": "self == oldSelf", "message": "Value is immutable"}]
_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "format": "int32", "minimum": 0}


def jobset_crd() -> Manifest:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{JOBSETS.plural}.{JOBSETS.group}"},
        "spec": {
            "group": JOBSETS.group,
            "scope": "Namespaced",
            "names": {"plural": "jobsets", "singular": "jobset", "kind": "JobSet", "listKind": "JobSetList"},
            "versions": [
                {
                    "name": JOBSETS.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _schema()},
                }
            ],
        },
    }


def _schema() -> Schema:
    return {
        "type": "object",
        "properties": {
            "apiVersion": _STRING,
            "kind": _STRING,
            "metadata": {"type": "object"},
            "spec": _spec(),
            "status": _status(),
        },
    }


def _spec() -> Schema:
    exclusive = (
        "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder' && "
        "self.replicatedJobs.exists(x, has(x.dependsOn)))"
    )
    return {
        "type": "object",
        "x-kubernetes-validations": [
            {"rule": exclusive, "message": "StartupPolicy and DependsOn APIs are mutually exclusive"}
        ],
        "properties": {
            "replicatedJobs": _map_of({"name"}, _replicated_job()),
            "network": _object(
                {
                    "enableDNSHostnames": {"type": "boolean", "default": True},
                    "publishNotReadyAddresses": {"type": "boolean", "default": True},
                    "subdomain": _STRING,
                },
                default={},
                immutable=True,
            ),
            "successPolicy": _object(
                {
                    "operator": {"type": "string", "enum": ["All", "Any"]},
                    "targetReplicatedJobs": _atomic(_STRING),
                },
                required=["operator"],
                default={"operator": "All"},
                immutable=True,
            ),
            "failurePolicy": _failure_policy(),
            "startupPolicy": _object(
                {"startupPolicyOrder": {"type": "string", "enum": ["AnyOrder", "InOrder"]}},
                required=["startupPolicyOrder"],
                default={"startupPolicyOrder": "AnyOrder"},
                immutable=True,
            ),
            "coordinator": _object(
                {"replicatedJob": _STRING, "jobIndex": {"type": "integer"}, "podIndex": {"type": "integer"}},
                required=["replicatedJob"],
            ),
            "suspend": {"type": "boolean"},
            "ttlSecondsAfterFinished": _COUNT,
            "managedBy": {"type": "string", "maxLength": 63},
        },
    }


def _replicated_job() -> Schema:
    spec = _with_key_defaults(expanded(_JOB_SPEC))
    spec["properties"]["completionMode"]["default"] = "Indexed"
    text_map: Schema = {"type": "object", "additionalProperties": _STRING}
    template = _object({"metadata": _object({"labels": text_map, "annotations": text_map}), "spec": spec})
    dependency = _object(
        {"name": _STRING, "status": {"type": "string", "enum": ["Ready", "Complete"]}}, required=["name", "status"]
    )
    return _object(
        {
            "name": _STRING,
            "groupName": {"type": "string", "default": DEFAULT_GROUP},
            "replicas": {**_COUNT, "default": 1},
            "dependsOn": {**_map_of({"name"}, dependency), "maxItems": 5, "x-kubernetes-validations": _IMMUTABLE},
            "template": template,
        },
        required=["name", "template"],
    )


def _failure_policy() -> Schema:
    actions = ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
    rule = _object(
        {
            "name": _STRING,
            "action": {"type": "string", "enum": actions},
            "onJobFailureReasons": {"type": "array", "items": _STRING},
            "onJobFailureMessagePatterns": {"type": "array", "items": _STRING},
            "targetReplicatedJobs": _atomic(_STRING),
        },
        required=["action", "name"],
    )
    return _object(
        {
            "maxRestarts": {"type": "integer", "format": "int32"},
            "restartStrategy": {"type": "string", "default": "Recreate", "enum": ["Recreate", "BlockingRecreate"]},
            "rules": {"type": "array", "items": rule},
        },
        immutable=True,
    )


def _status() -> Schema:
    condition = _object(
        {
            "type": _STRING,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": _STRING,
            "message": _STRING,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
        required=["lastTransitionTime", "message", "reason", "status", "type"],
    )
    counts = {name: {"type": "integer", "format": "int32"} for name in _ROW_COUNTS}
    row = _object({"name": _STRING, **counts}, required=["name", *_ROW_COUNTS])
    return _object(
        {
            "conditions": _map_of({"type"}, condition),
            "restarts": {"type": "integer", "format": "int32"},
            "restartsCountTowardsMax": {"type": "integer", "format": "int32"},
            "replicatedJobsStatus": _map_of({"name"}, row),
            "terminalState": _STRING,
        }
    )


_ROW_COUNTS = ("ready", "succeeded", "failed", "active", "suspended")


def _columns() -> list[Manifest]:
    return [
        {"name": "TerminalState", "type": "string", "jsonPath": ".status.terminalState"},
        {"name": "Restarts", "type": "string", "jsonPath": ".status.restarts"},
        {"name": "Completed", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Completed")].status'},
        {"name": "Suspended", "type": "string", "jsonPath": ".spec.suspend"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]


def _object(
    properties: Schema, *, required: list[str] | None = None, default: Any = None, immutable: bool = False
) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if default is not None:
        schema["default"] = default
    if immutable:
        schema["x-kubernetes-validations"] = _IMMUTABLE
    return schema


def _map_of(keys: set[str], item: Schema) -> Schema:
    return {
        "type": "array",
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": sorted(keys),
    }


def _with_key_defaults(schema: Schema) -> Schema:
    """A CRD must give every key of a list map a value; the built-in types leave that to defaulting code."""
    for name in schema.get("x-kubernetes-list-map-keys") or []:
        item = schema["items"]
        if name not in item.get("required", []):
            item["properties"][name].setdefault("default", _KEY_DEFAULTS[name])
    children = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for child in children:
        if isinstance(child, dict):
            _with_key_defaults(child)
    return schema


_KEY_DEFAULTS = {"protocol": "TCP", "name": ""}


def _atomic(item: Schema) -> Schema:
    return {"type": "array", "items": item, "x-kubernetes-list-type": "atomic"}
