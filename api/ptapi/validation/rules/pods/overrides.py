"""Rules for `resources` and `pod`: what Kubernetes would refuse later, and what would break the operator's own pods.

Python alone checks the keys of maps, whose length CEL cannot bound, and quantities.
"""

import json
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from pydantic import ValidationError

from ptapi.errors import Finding
from ptapi.quantity import parse_quantity
from ptapi.spec import Pod, PostTrainJobSpec, Resources
from ptapi.spec.base import LABEL_KEY
from ptapi.spec.pods.affinity import OnlyAffinity
from ptapi.spec.pods.resources import AMOUNTS
from ptapi.validation.parse_errors import translate
from ptapi.validation.predicate import Predicate, at, differs, equals, filled, has, is_true, matches, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.chips.capacity import IS_EXISTING
from ptapi.validation.rules.pods.env_and_volumes import variable_rules

_NODE_POOL = "cloud.google.com/gke-nodepool"
_KEY = re.compile(LABEL_KEY)
_OURS = r"posttrain\.dev/|([a-z]+\.)?jobset\.sigs\.k8s\.io/|batch\.kubernetes\.io/"
_PART_OF = r"kueue\.x-k8s\.io/|job-name$|controller-uid$|app\.kubernetes\.io/(name|managed-by|component)$"
_OWN_CONTAINERS = r"^(trainer(-[0-9]+)?|preflight|stage|pathways-.*|colocated-python-sidecar)$"
_POD = Scope("spec.pod")
_TOLERATION = Scope("spec.pod.tolerations[]")
_INIT = Scope("spec.pod.initContainers[]")
_CONTAINER_CONTEXTS = ("spec.pod.containerSecurityContext", "spec.pod.initContainers[].securityContext")


def _keys(field: str, own: str, whose: str) -> Rule:
    """Require valid keys of a map, and none of the operator's own."""

    def holds(pod: Any) -> bool:
        return all(_KEY.fullmatch(key) and not re.match(own, key) for key in at(pod, field) or {})

    return _POD.rule(field, f"keys such as team or example.com/team, and not {whose}", Predicate("", holds))


def _has_keys(field: str, metadata: Any) -> bool:
    return all(_KEY.fullmatch(key) for key in at(metadata, field))


def _at_most_limits(scope: str, name: str) -> Rule:
    def holds(resources: Any) -> bool:
        request, limit = at(resources, f"requests.{name}"), at(resources, f"limits.{name}")
        return request is None or limit is None or parse_quantity(request) <= parse_quantity(limit)

    return Scope(scope).rule(f"requests.{name}", f"at most limits.{name}", Predicate("", holds))


def _is_usable(scope: str, side: str, name: str) -> Rule:
    """Refuse amounts that no container starts with: `64` of memory is 64 bytes, and `64m` less than one."""
    least, most = ("1m", "100000") if name == "cpu" else ("4Mi", "1Pi")

    def holds(resources: Any) -> bool:
        amount = at(resources, f"{side}.{name}")
        return amount is None or parse_quantity(least) <= parse_quantity(amount) <= parse_quantity(most)

    return Scope(scope).rule(f"{side}.{name}", f"from {least} to {most}", Predicate("", holds))


def _resource_rules() -> Iterable[Rule]:
    roles = (f"spec.resources.{field.alias}" for field in Resources.model_fields.values())
    for scope in (*roles, "spec.pod.initContainers[].resources"):
        yield from (_is_usable(scope, side, name) for side in ("requests", "limits") for name in AMOUNTS)
        yield from (_at_most_limits(scope, name) for name in AMOUNTS)


def _security_rules() -> Iterable[Rule]:
    for path in ("spec.pod.securityContext", *_CONTAINER_CONTEXTS):
        is_root = has("runAsUser") & equals("runAsUser", 0)
        accepted = "false or unset, because runAsUser is 0"
        yield Scope(path).rule("runAsNonRoot", accepted, ~is_root | ~_true("runAsNonRoot"))
        is_local = has("type") & equals("type", "Localhost")
        accepted = "a file on the node with type: Localhost, unset with every other type"
        yield Scope(f"{path}.seccompProfile").rule("localhostProfile", accepted, has("localhostProfile").iff(is_local))
    for path in _CONTAINER_CONTEXTS:
        for field in ("add", "drop"):
            accepted = "capabilities without CAP_, such as SYS_RESOURCE"
            yield Scope(f"{path}.capabilities").rule(field, accepted, Predicate("", partial(_has_no_prefix, field)))
        may = unset("allowPrivilegeEscalation") | is_true("allowPrivilegeEscalation")
        accepted = "true or unset, because privileged is true"
        yield Scope(path).rule("allowPrivilegeEscalation", accepted, ~_true("privileged") | may)


def _has_no_prefix(field: str, capabilities: Any) -> bool:
    return not any(name.startswith("CAP_") for name in at(capabilities, field))


def _true(field: str) -> Predicate:
    return has(field) & is_true(field)


def _names_differ(pod: Pod) -> bool:
    return len({container.name for container in pod.init_containers}) == len(pod.init_containers)


def _mounts_known_volumes(spec: Any) -> bool:
    known = {volume.name for volume in spec.volumes}
    return all(mount.name in known for container in spec.pod.init_containers for mount in container.volume_mounts)


RULES: tuple[Rule, ...] = (
    *(
        Scope("metadata").rule(field, "keys such as team or example.com/team", Predicate("", partial(_has_keys, field)))
        for field in ("labels", "annotations")
    ),
    *_resource_rules(),
    _keys("labels", f"{_OURS}|{_PART_OF}", "those of posttrain, JobSet, Job and Kueue, by which pods are found"),
    _keys("annotations", rf"{_OURS}|autoscaling\.x-k8s\.io/", "those of posttrain, JobSet and ProvisioningRequests"),
    _keys("nodeSelector", r"cloud\.google\.com/gke-(tpu-|accelerator)", "the chips', which spec.accelerator decides"),
    SPEC.unset_unless(
        "pod.nodeSelector",
        unset("pod") | unset("pod.nodeSelector") | IS_EXISTING,
        "because nodes that the operator makes have no labels of yours",
        "capacity: [{type: existing}]",
    ),
    _TOLERATION.rule(
        "key",
        "any taint but posttrain.dev/node-pool, by which nodes are kept for the job that they were made for",
        differs("key", "posttrain.dev/node-pool"),
    ),
    _TOLERATION.unset_unless("value", unset("operator") | differs("operator", "Exists"), "because operator is Exists"),
    _TOLERATION.unset_unless(
        "tolerationSeconds", has("effect") & equals("effect", "NoExecute"), "or together with effect: NoExecute"
    ),
    _POD.rule(
        "dnsPolicy",
        "ClusterFirstWithHostNet or unset, because hostNetwork is true, where ClusterFirst finds no pods",
        unset("dnsPolicy") | equals("dnsPolicy", "ClusterFirstWithHostNet") | ~_true("hostNetwork"),
    ),
    *_security_rules(),
    _INIT.rule(
        "name",
        "a name that no container of the operator has, as trainer, preflight, stage and pathways-… do",
        ~matches("name", _OWN_CONTAINERS),
    ),
    SPEC.rule(
        "pod.initContainers",
        "containers with different names",
        Predicate("", lambda spec: spec.pod is None or _names_differ(spec.pod)),
        secret=True,
    ),
    _INIT.rule("command", "a command, or another image: the trainer's would train", filled("command") | has("image")),
    SPEC.rule(
        "pod.initContainers",
        "volumeMounts of volumes in spec.volumes",
        unset("pod") | Predicate("", _mounts_known_volumes),
        "volumes: [{name: …, mountPath: …, emptyDir: {}}]",
        secret=True,
    ),
    *variable_rules("spec.pod.initContainers[].env[]"),
)


def check_affinity(spec: PostTrainJobSpec) -> list[Finding]:
    """Return what Kubernetes would refuse of `pod.affinity`, which the CRD leaves open."""
    affinity = spec.pod.affinity if spec.pod else None
    document = {"spec": {"pod": {"affinity": affinity}}}
    try:
        OnlyAffinity.model_validate(document, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        return translate(OnlyAffinity, error, document)
    if _NODE_POOL in json.dumps((affinity or {}).get("nodeAffinity")):
        accepted = f"without {_NODE_POOL}, by which the operator knows the node pools that it made"
        return [Finding("spec.pod.affinity.nodeAffinity", _NODE_POOL, accepted, "pod: {nodeSelector: …}")]
    return []
