"""Writes builtin.json: the schemas of the built-in kinds, derived from the official Python client's models.

Run by developers (`python scripts/generate_builtin_schemas.py`) when the client is upgraded; the server reads only
the JSON. Field names, types and required fields come from the models; what the models do not say stands in the tables
below: which strings are quantities or int-or-string, and how lists and maps merge. Descriptions are left out.
"""

import importlib
import json
import re
from pathlib import Path
from typing import Any

ROOTS = [
    "V1Namespace",
    "V1Pod",
    "V1Service",
    "V1ConfigMap",
    "V1Secret",
    "CoreV1Event",
    "EventsV1Event",
    "V1Node",
    "V1ServiceAccount",
    "V1PersistentVolumeClaim",
    "V1PersistentVolume",
    "V1Endpoints",
    "V1Lease",
    "V1Job",
    "V1Deployment",
    "V1PodDisruptionBudget",
    "V1NetworkPolicy",
    "V1PriorityClass",
    "V1CustomResourceDefinition",
    "V1Role",
    "V1RoleBinding",
    "V1ClusterRole",
    "V1ClusterRoleBinding",
    "V1SelfSubjectAccessReview",
    "V1SelfSubjectRulesReview",
    "V1SubjectAccessReview",
    "V1Binding",
    "V1Eviction",
    "V1DeleteOptions",
    "V1StatusDetails",
    "V1EndpointSlice",
    "V1TokenReview",
]

# (model, field): the list's map keys; the first is also the strategic merge patch's key.
MAP_KEYS: dict[tuple[str, str], list[str]] = {
    ("PodSpec", "containers"): ["name"],
    ("PodSpec", "initContainers"): ["name"],
    ("PodSpec", "ephemeralContainers"): ["name"],
    ("PodSpec", "volumes"): ["name"],
    ("PodSpec", "imagePullSecrets"): ["name"],
    ("PodSpec", "hostAliases"): ["ip"],
    ("PodSpec", "topologySpreadConstraints"): ["topologyKey", "whenUnsatisfiable"],
    ("PodSpec", "schedulingGates"): ["name"],
    ("PodSpec", "resourceClaims"): ["name"],
    ("Container", "ports"): ["containerPort", "protocol"],
    ("Container", "env"): ["name"],
    ("Container", "volumeMounts"): ["mountPath"],
    ("Container", "volumeDevices"): ["devicePath"],
    ("EphemeralContainer", "ports"): ["containerPort", "protocol"],
    ("EphemeralContainer", "env"): ["name"],
    ("EphemeralContainer", "volumeMounts"): ["mountPath"],
    ("EphemeralContainer", "volumeDevices"): ["devicePath"],
    ("ObjectMeta", "ownerReferences"): ["uid"],
    ("PodStatus", "conditions"): ["type"],
    ("PodStatus", "podIPs"): ["ip"],
    ("JobStatus", "conditions"): ["type"],
    ("NodeStatus", "conditions"): ["type"],
    ("NodeStatus", "addresses"): ["type"],
    ("NamespaceStatus", "conditions"): ["type"],
    ("DeploymentStatus", "conditions"): ["type"],
    ("PodDisruptionBudgetStatus", "conditions"): ["type"],
    ("CustomResourceDefinitionStatus", "conditions"): ["type"],
    ("PersistentVolumeClaimStatus", "conditions"): ["type"],
    ("ServiceStatus", "conditions"): ["type"],
    ("ServiceSpec", "ports"): ["port", "protocol"],
    ("ServiceAccount", "secrets"): ["name"],
    ("Endpoints", "subsets"): [],
}
SETS = {("ObjectMeta", "finalizers"), ("NodeSpec", "podCIDRs")}
MERGED_BUT_ATOMIC_FOR_APPLY = {("NodeSpec", "taints"): "key"}
ATOMIC_MODELS = {
    "LabelSelector",
    "ObjectReference",
    "LocalObjectReference",
    "SecretKeySelector",
    "ConfigMapKeySelector",
    "ObjectFieldSelector",
    "ResourceFieldSelector",
    "OwnerReference",
    "NodeSelector",
    "NodeSelectorTerm",
    "TypedLocalObjectReference",
    "SecretReference",
    "RoleRef",
    "RbacSubject",
    "EndpointAddress",
    "CoreEndpointPort",
}
ATOMIC_MAPS = {("PodSpec", "nodeSelector"), ("ServiceSpec", "selector")}
INT_OR_STRING = {
    ("TCPSocketAction", "port"),
    ("HTTPGetAction", "port"),
    ("ServicePort", "targetPort"),
    ("RollingUpdateDeployment", "maxSurge"),
    ("RollingUpdateDeployment", "maxUnavailable"),
    ("PodDisruptionBudgetSpec", "maxUnavailable"),
    ("PodDisruptionBudgetSpec", "minAvailable"),
    ("NetworkPolicyPort", "port"),
}
# Only those that are keys of a list: a manifest may leave them out and still name its item.
DEFAULTS = {("ContainerPort", "protocol"): "TCP", ("ServicePort", "protocol"): "TCP"}
STATUS_PARTS = {
    "ContainerStateTerminated",
    "NodeAddress",
    "NodeSystemInfo",
    "PodCondition",
    "NodeCondition",
    "JobCondition",
    "NamespaceCondition",
    "ContainerImage",
    "AttachedVolume",
    "DaemonEndpoint",
    "NodeDaemonEndpoints",
    "PodIP",
    "HostIP",
}
MICRO_TIMES = {
    ("LeaseSpec", "renewTime"),
    ("LeaseSpec", "acquireTime"),
    ("CoreEvent", "eventTime"),
    ("EventsEvent", "eventTime"),
    ("CoreEventSeries", "lastObservedTime"),
    ("EventsEventSeries", "lastObservedTime"),
}
QUANTITY_FIELDS = {
    "limits",
    "requests",
    "capacity",
    "allocatable",
    "overhead",
    "sizeLimit",
    "divisor",
    "allocatedResources",
}
ANY_FIELDS = {"default", "example"}
JSON_SCHEMA_OR_BOOL = {"additionalItems", "additionalProperties", "items"}


def short_name(model: str) -> str:
    for prefix, short in (("CoreV1", "Core"), ("EventsV1", "Events"), ("StorageV1", "Storage")):
        if model.startswith(prefix):
            return short + model.removeprefix(prefix)
    return re.sub(r"^([A-Za-z]*?)V\d+(?:(?:alpha|beta)\d+)?(?=[A-Z])", r"\1", model)


def scalar(name: str) -> dict[str, Any] | None:
    table: dict[str, dict[str, Any]] = {
        "str": {"type": "string"},
        "int": {"type": "integer"},
        "bool": {"type": "boolean"},
        "float": {"type": "number"},
        "datetime": {"type": "string", "format": "date-time", "nullable": True},
        "bytes": {"type": "string", "format": "byte"},
        "object": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    }
    return dict(table[name]) if name in table else None


class Generator:
    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self.models = importlib.import_module("kubernetes.client.models")

    def add(self, model: str) -> str:
        name = short_name(model)
        if name in self.definitions:
            return name
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        self.definitions[name] = schema
        cls = getattr(self.models, model)
        required = []
        by_wire_name = {f.serialization_alias or name: f for name, f in cls.model_fields.items()}
        for attribute, kind in cls.openapi_types.items():
            key = cls.attribute_map[attribute]
            schema["properties"][key] = self.field(name, key, kind)
            if by_wire_name[key].is_required():
                required.append(key)
        if name.endswith("Status") or name in STATUS_PARTS:
            required = []  # a real server fills in zero values there
        required = [key for key in required if key != "metadata"]
        if required:
            schema["required"] = sorted(required)
        if name in ATOMIC_MODELS:
            schema["x-kubernetes-map-type"] = "atomic"
        return name

    def field(self, model: str, key: str, kind: str) -> dict[str, Any]:
        if model == "JSONSchemaProps" and key in ANY_FIELDS | JSON_SCHEMA_OR_BOOL:
            return {"x-kubernetes-preserve-unknown-fields": True}
        if model == "JSONSchemaProps" and key == "enum":
            return {"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": True}}
        if (model, key) in INT_OR_STRING:
            return {"x-kubernetes-int-or-string": True}
        if key in QUANTITY_FIELDS and "str" in kind:
            quantity = {"x-kubernetes-int-or-string": True, "format": "quantity"}
            return {"type": "object", "additionalProperties": quantity} if "Dict" in kind else quantity
        if (model, key) in MICRO_TIMES:
            return {"type": "string", "format": "micro-time", "nullable": True}
        schema = self.type_of(kind)
        if (model, key) in DEFAULTS:
            schema["default"] = DEFAULTS[model, key]
        self.merge_rules(schema, model, key)
        return schema

    def type_of(self, kind: str) -> dict[str, Any]:
        plain = scalar(kind)
        if plain is not None:
            return plain
        if match := re.fullmatch(r"List\[(.+)\]", kind):
            return {"type": "array", "items": self.type_of(match[1])}
        if match := re.fullmatch(r"Dict\[str, (.+)\]", kind):
            return {"type": "object", "additionalProperties": self.type_of(match[1])}
        return {"$ref": self.add(kind)}

    @staticmethod
    def merge_rules(schema: dict[str, Any], model: str, key: str) -> None:
        if schema.get("type") == "array":
            keys = MAP_KEYS.get((model, key))
            if keys:
                schema["x-kubernetes-list-type"] = "map"
                schema["x-kubernetes-list-map-keys"] = keys
                schema["x-kubernetes-patch-strategy"] = "merge"
                schema["x-kubernetes-patch-merge-key"] = keys[0]
            elif (model, key) in SETS:
                schema["x-kubernetes-list-type"] = "set"
                schema["x-kubernetes-patch-strategy"] = "merge"
            else:
                schema["x-kubernetes-list-type"] = "atomic"
            if merge_key := MERGED_BUT_ATOMIC_FOR_APPLY.get((model, key)):
                schema["x-kubernetes-patch-strategy"] = "merge"
                schema["x-kubernetes-patch-merge-key"] = merge_key
        elif (model, key) in ATOMIC_MAPS:
            schema["x-kubernetes-map-type"] = "atomic"


def main() -> None:
    generator = Generator()
    for root in ROOTS:
        generator.add(root)
    lines = [
        f"{json.dumps(name)}: {json.dumps(schema, separators=(',', ':'))}"
        for name, schema in sorted(generator.definitions.items())
    ]
    (Path(__file__).parents[1] / "cli/ptlocal/apiserver/kinds/builtin.json").write_text(
        "{\n" + ",\n".join(lines) + "\n}\n"
    )


if __name__ == "__main__":
    main()
