"""A Job that runs the trainer's image on a CPU node before the job has chips.

It mounts the job's volumes and satisfies Pod Security "restricted". What would fail the same way again ends it,
anything else is tried again, and a lost node is not counted. Its deadline is for pods that never start.
"""

from ptapi.failures import FATAL_EXIT_CODES
from ptkube.resources import JOBS, Manifest
from ptoperator.render.layout import Layout
from ptoperator.render.pods import overrides, resources
from ptoperator.render.pods.environment_variables import cpu_env
from ptoperator.render.pods.pod import SHARED_MEMORY_VOLUME, pod_base, trainer_container, volumes, with_init_containers

_GRACE_S = 5


def cpu_job(
    layout: Layout,
    role: str,
    name: str,
    labels: dict[str, str],
    args: list[str],
    *,
    default: Manifest,
    tries: int,
    deadline_s: float,
    without: tuple[str, ...] = (),
) -> Manifest:
    """Return the Job. role: its container's name, and its field in `spec.resources`; without: volumes it lacks."""
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": name,
            "namespace": layout.namespace,
            "labels": labels,
            "ownerReferences": layout.owner_references,
        },
        "spec": {
            "backoffLimit": tries - 1,
            "activeDeadlineSeconds": int(deadline_s),
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(FATAL_EXIT_CODES)}},
                ]
            },
            "template": {
                "metadata": overrides.metadata(layout, labels),
                "spec": _pod_spec(layout, role, args, default, {SHARED_MEMORY_VOLUME, *without}),
            },
        },
    }


def _pod_spec(layout: Layout, role: str, args: list[str], default: Manifest, without: set[str]) -> Manifest:
    amounts = resources.of(layout, role, default)
    container = trainer_container(layout, role, cpu_env(layout), amounts)
    tolerations, policy = overrides.tolerations(layout), overrides.of(layout).dns_policy
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] not in without]
    return {
        **pod_base(layout),
        "terminationGracePeriodSeconds": _GRACE_S,
        **({"dnsPolicy": policy} if policy else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        "securityContext": overrides.pod_security(layout),
        **with_init_containers(overrides.init_containers(layout)),
        "containers": [{**container, "args": args, "volumeMounts": mounts}],
        "volumes": [volume for volume in volumes(layout) if volume["name"] not in without],
    }
