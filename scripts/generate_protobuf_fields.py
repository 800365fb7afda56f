"""Writes protobuf.json: which number each field has on the wire, for the kinds that Go clients send as protobuf.

Run by developers on the interface definitions of a Kubernetes release (`python
scripts/generate_protobuf_fields.py DIR`, where DIR holds k8s.io/api and k8s.io/apimachinery). kubectl sends protobuf
when it makes an object from flags (`kubectl create namespace`, `create secret`, `auth can-i`, `drain`).
"""

import json
import re
import sys
from pathlib import Path

Fields = dict[str, list[str]]
FILES = {
    "core": "k8s.io/api/core/v1",
    "batch": "k8s.io/api/batch/v1",
    "apps": "k8s.io/api/apps/v1",
    "coordination": "k8s.io/api/coordination/v1",
    "scheduling": "k8s.io/api/scheduling/v1",
    "rbac": "k8s.io/api/rbac/v1",
    "authorization": "k8s.io/api/authorization/v1",
    "policy": "k8s.io/api/policy/v1",
    "events": "k8s.io/api/events/v1",
    "discovery": "k8s.io/api/discovery/v1",
    "meta": "k8s.io/apimachinery/pkg/apis/meta/v1",
    "resource": "k8s.io/apimachinery/pkg/api/resource",
    "intstr": "k8s.io/apimachinery/pkg/util/intstr",
    "runtime": "k8s.io/apimachinery/pkg/runtime",
}
ROOTS = [
    "core.Namespace",
    "core.Pod",
    "core.Service",
    "core.ConfigMap",
    "core.Secret",
    "core.Event",
    "core.Node",
    "core.ServiceAccount",
    "core.PersistentVolumeClaim",
    "core.Endpoints",
    "core.Binding",
    "batch.Job",
    "apps.Deployment",
    "coordination.Lease",
    "scheduling.PriorityClass",
    "rbac.Role",
    "rbac.RoleBinding",
    "rbac.ClusterRole",
    "rbac.ClusterRoleBinding",
    "authorization.SelfSubjectAccessReview",
    "authorization.SelfSubjectRulesReview",
    "authorization.SubjectAccessReview",
    "policy.Eviction",
    "events.Event",
    "discovery.EndpointSlice",
    "meta.DeleteOptions",
]
INLINED = ("volumeSource", "handler", "localObjectReference", "ephemeralContainerCommon")  # embedded Go structs
_FIELD = re.compile(r"^\s*(optional|repeated|map<string, ([^>]+)>)\s*([.\w]+)?\s+(\w+) = (\d+);", re.MULTILINE)
_MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)


def messages(root: Path) -> dict[str, Fields]:
    """`core.Pod` -> field number -> [name, type, "" | "repeated" | "map" | "inline"]."""
    packages = {path.replace("/", "."): short for short, path in FILES.items()}
    fields: dict[str, Fields] = {}
    for short, path in FILES.items():
        text = (root / path / "generated.proto").read_text()
        for name, body in _MESSAGE.findall(text):
            fields[f"{short}.{name}"] = {
                number: [field, _type(of_map or kind, short, packages), "map" if of_map else _mode(label, field)]
                for label, of_map, kind, field, number in _FIELD.findall(body)
            }
    return fields


def _mode(label: str, field: str) -> str:
    return "inline" if field in INLINED else "repeated" if label == "repeated" else ""


def _type(text: str, here: str, packages: dict[str, str]) -> str:
    if "." not in text:
        return text if text.islower() or re.fullmatch(r"u?int\d+", text) else f"{here}.{text}"
    package, _, name = text.lstrip(".").rpartition(".")
    return f"{packages[package]}.{name}"


def main() -> None:
    known = messages(Path(sys.argv[1]))
    wanted, reached = list(ROOTS), {}
    while wanted:
        name = wanted.pop()
        if name in reached:
            continue
        reached[name] = known[name]
        wanted += [kind for _, kind, _ in known[name].values() if "." in kind]
    lines = [
        f"{json.dumps(name)}: {json.dumps(fields, separators=(',', ':'))}" for name, fields in sorted(reached.items())
    ]
    (Path(__file__).parents[1] / "cli/ptlocal/apiserver/http/encoding/protobuf.json").write_text(
        "{\n" + ",\n".join(lines) + "\n}\n"
    )


if __name__ == "__main__":
    main()
