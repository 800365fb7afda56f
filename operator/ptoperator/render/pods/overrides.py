"""The overrides of a job's pods, `spec.pod`: over the administrator's, and both over the operator's defaults.

The defaults satisfy Pod Security "restricted". Where each override applies is a table in the guide on pods; the one
idea: labels, annotations and tolerations go to every pod, placement to those with the trainer's chips, and user and
init containers to every program that sees the job's volumes.
"""

from ptapi.spec import ContainerSecurityContext, InitContainer, Pod
from ptapi.spec.pods.overrides import PodSecurityContext, VolumeMount
from ptkube.resources import Manifest
from ptoperator.kube import labels
from ptoperator.render.layout import Layout
from ptoperator.render.pods.environment_variables import stated_env
from ptoperator.render.pods.resources import over
from ptoperator.settings import pod_defaults

USER_ID = 65532
"""The image's user. A group of the same number owns mounted volumes."""
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_USER = ("runAsNonRoot", "runAsUser", "runAsGroup")


def of(layout: Layout) -> Pod:
    """Return the overrides: the job's over the administrator's."""
    return pod_defaults.joined(pod_defaults.pod(layout.settings.trainer_pod), layout.job.spec.pod)


def metadata(layout: Layout, own: dict[str, str], annotations: dict[str, str] | None = None) -> Manifest:
    """Return a pod's labels and annotations; the operator's own come last, so that none is replaced."""
    pod = of(layout)
    return {
        "labels": {**(pod.labels or {}), **own},
        "annotations": {SAFE_TO_EVICT: "false", **(pod.annotations or {}), **(annotations or {})},
    }


def tolerations(layout: Layout) -> list[Manifest]:
    """Return the further taints that every pod tolerates."""
    return [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in of(layout).tolerations]


def network(layout: Layout) -> Manifest:
    """Return the pod's network, if it is not Kubernetes' default."""
    pod = of(layout)
    policy = pod.dns_policy or ("ClusterFirstWithHostNet" if pod.host_network else None)
    return {**({"hostNetwork": True} if pod.host_network else {}), **({"dnsPolicy": policy} if policy else {})}


def affinity(layout: Layout) -> Manifest:
    """Return the affinity of pods with chips; the job's own pools are required in each of the job's terms."""
    stated: Manifest = of(layout).affinity or {}
    if not layout.pools:
        return stated
    pools = {"key": labels.NODE_POOL, "operator": "In", "values": sorted(layout.pools)}
    nodes = stated.get("nodeAffinity") or {}
    terms = (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    bound = [{**term, "matchExpressions": [*term.get("matchExpressions", []), pools]} for term in terms]
    return {**stated, "nodeAffinity": {**nodes, _REQUIRED: {"nodeSelectorTerms": bound}}}


def pod_security(layout: Layout) -> Manifest:
    """Return the security context of a pod whose containers are all the trainer's."""
    stated = _stated(of(layout).security_context)
    return {
        "runAsNonRoot": stated.get("runAsUser") != 0,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
        **stated,
    }


def head_security(layout: Layout) -> Manifest:
    """Return that of a pod with Google's servers, which bring their own user: the trainer's is in its container."""
    return {key: value for key, value in pod_security(layout).items() if key not in _USER}


def container_security(
    layout: Layout, own: ContainerSecurityContext | None = None, *, in_head: bool = False
) -> Manifest:
    """Return the security context of a trainer's container. own: what an init container says over it."""
    stated = _stated(pod_defaults.joined(of(layout).container_security_context or ContainerSecurityContext(), own))
    user = {key: value for key, value in pod_security(layout).items() if key in _USER} if in_head else {}
    is_root = {"runAsNonRoot": False} if stated.get("runAsUser") == 0 else {}
    return {**_unprivileged(stated), **user, **is_root, **stated}


def worker_security(layout: Layout) -> Manifest:
    """Return that of a Pathways worker, which has only what is asked: it is Google's program."""
    stated = _stated(of(layout).container_security_context)
    return {"securityContext": stated} if stated else {}


def init_containers(layout: Layout, *, in_head: bool = False) -> list[Manifest]:
    """Return the job's init containers, as the trainer sees its volumes."""
    return [_init_container(layout, each, in_head) for each in of(layout).init_containers]


def _init_container(layout: Layout, container: InitContainer, in_head: bool) -> Manifest:
    optional = {
        "imagePullPolicy": container.image_pull_policy,
        "command": container.command,
        "args": container.args,
        "workingDir": container.working_dir,
        "env": stated_env(container.env),
        "resources": over({}, container.resources),
        "volumeMounts": [_mount(each) for each in container.volume_mounts],
        "restartPolicy": container.restart_policy,
    }
    return {
        "name": container.name,
        "image": container.image or layout.trainer_image,
        **{key: value for key, value in optional.items() if value},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(layout, container.security_context, in_head=in_head),
    }


def _mount(mount: VolumeMount) -> Manifest:
    return mount.model_dump(mode="json", by_alias=True, exclude_none=True)


def _unprivileged(stated: Manifest) -> Manifest:
    """Return the defaults that go with what is said: privileges imply escalation, and Kubernetes refuses both."""
    if stated.get("privileged"):
        return {}
    added = (stated.get("capabilities") or {}).get("add", [])
    escalates = {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(added)
    return {**({} if escalates else {"allowPrivilegeEscalation": False}), "capabilities": {"drop": ["ALL"]}}


def _stated(context: PodSecurityContext | ContainerSecurityContext | None) -> Manifest:
    """Return a context without what is unset; empty lists are none."""
    fields: Manifest = context.model_dump(mode="json", by_alias=True, exclude_none=True) if context else {}
    if "capabilities" in fields:
        fields["capabilities"] = {key: value for key, value in fields["capabilities"].items() if value}
    return {key: value for key, value in fields.items() if value != []}
