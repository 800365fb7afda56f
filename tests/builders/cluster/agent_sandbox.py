"""A stand-in for Agent Sandbox: its definitions, as far as claims need them.

They have the fields, defaults and bounds of kubernetes-sigs/agent-sandbox at v1beta1 (August 2026); the pod's spec is
the embedded API server's own.
"""

from copy import deepcopy
from functools import cache
from typing import Any

from ptkube.resources import SANDBOX_CLAIMS, SANDBOX_TEMPLATES, SANDBOX_WARM_POOLS, Manifest, Resource
from ptlocal.apiserver import jobset_crd
from ptlocal.apiserver.schema import defaulting, pruning, validation

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "format": "int32"}
COUNT: Schema = {**WHOLE, "minimum": 0}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}


def _map(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _choice(default: str, *others: str) -> Schema:
    return {"type": "string", "default": default, "enum": [default, *others]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


METADATA = _map(labels=TEXTS, annotations=TEXTS)
SELECTOR = _map(matchLabels=TEXTS)
PEERS = _list(_map(podSelector=SELECTOR, namespaceSelector=SELECTOR, ipBlock=_map(("cidr",), cidr=TEXT)))
PORTS = _list(_map(protocol=TEXT, port={"x-kubernetes-int-or-string": True}, endPort=WHOLE))
CONDITION = _map(
    ("lastTransitionTime", "message", "reason", "status", "type"),
    lastTransitionTime={"type": "string", "format": "date-time"},
    message=TEXT, reason={"type": "string", "minLength": 1}, type=TEXT, observedGeneration={"type": "integer"},
    status={"type": "string", "enum": ["True", "False", "Unknown"]},
)  # fmt: skip


def _template_spec() -> Schema:
    return _map(
        ("podTemplate",),
        podTemplate=_map(("spec",), metadata=METADATA, spec=_pod_spec()),
        networkPolicyManagement=_choice("Managed", "Unmanaged"),
        networkPolicy=_map(
            ingress=_list(_map(**{"from": PEERS, "ports": PORTS})), egress=_list(_map(to=PEERS, ports=PORTS))
        ),
        envVarsInjectionPolicy=_choice("Disallowed", "Allowed", "Overrides"),
        volumeClaimTemplatesPolicy=_choice("Disallowed", "Allowed", "Overrides"),
        service={"type": "boolean"},
    )


def _pod_spec() -> Schema:
    spec = jobset_crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    job = spec["properties"]["replicatedJobs"]["items"]["properties"]["template"]["properties"]["spec"]
    pod: Schema = job["properties"]["template"]["properties"]["spec"]
    return pod


_POOL = _map(
    ("sandboxTemplateRef",),
    replicas={**COUNT, "default": 1},
    sandboxTemplateRef=_map(("name",), name=TEXT),
    updateStrategy=_map(type=_choice("OnReplenish", "Recreate")),
)
_CLAIM = _map(
    ("warmPoolRef",),
    warmPoolRef=_map(("name",), name=TEXT),
    additionalPodMetadata=METADATA,
    env=_list(_map(("name", "value"), name=TEXT, value=TEXT, containerName=TEXT)),
    lifecycle=_map(
        shutdownPolicy=_choice("Retain", "Delete", "DeleteForeground"),
        shutdownTime={"type": "string", "format": "date-time"},
        ttlSecondsAfterFinished=COUNT,
    ),
)
_CLAIM_STATUS = _map(conditions=_list(CONDITION), sandbox=_map(name=TEXT, podIPs=_list(TEXT)))
KINDS = (SANDBOX_TEMPLATES, SANDBOX_WARM_POOLS, SANDBOX_CLAIMS)


@cache
def schema_of(kind: Resource) -> Schema:
    """Return the schema of one of the kinds."""
    spec = {SANDBOX_TEMPLATES: _template_spec, SANDBOX_WARM_POOLS: lambda: _POOL, SANDBOX_CLAIMS: lambda: _CLAIM}
    status = _CLAIM_STATUS if kind is SANDBOX_CLAIMS else _map(replicas=COUNT, readyReplicas=COUNT)
    whole = _map(("spec",), apiVersion=TEXT, kind=TEXT, metadata={"type": "object"}, spec=spec[kind]())
    return whole if kind is SANDBOX_TEMPLATES else {**whole, "properties": {**whole["properties"], "status": status}}


def definition(kind: Resource) -> Manifest:
    """Return the definition of one of the kinds."""
    served = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema_of(kind)}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": {"kind": kind.kind, "listKind": f"{kind.kind}List", "plural": kind.plural,
                      "singular": kind.kind.lower()},
            "scope": "Namespaced",
            "versions": [served if kind is SANDBOX_TEMPLATES else {**served, "subresources": {"status": {}}}],
        },
    }  # fmt: skip


def refused(made: Manifest) -> list[str]:
    """Return what a server with these definitions refuses in an object, unknown fields included."""
    schema = schema_of(next(kind for kind in KINDS if kind.kind == made["kind"]))
    sent = deepcopy(made)
    unknown = pruning.prune_object(sent, schema)
    defaulting.apply_defaults(sent, schema)
    return [*unknown, *map(str, validation.errors(sent, schema))]
