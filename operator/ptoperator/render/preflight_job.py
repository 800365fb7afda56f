"""The Job that checks whether a job fits its chips, before it has any: the trainer's image on a CPU node.

It mounts what the trainer mounts, because the model's config and the run directory may be there, and satisfies Pod
Security "restricted". A verdict, good or bad, ends it; a crash is retried once; a lost node is not counted. Its
deadline is for pods that never start; the command limits the compile itself.
"""

from ptapi.failures import FATAL_EXIT_CODES
from ptapi.run_directory import JOB_FILE
from ptkube.resources import JOBS, Manifest
from ptoperator.kube import labels, names
from ptoperator.render.layout import Layout
from ptoperator.render.pods import overrides, resources
from ptoperator.render.pods.environment_variables import preflight_env
from ptoperator.render.pods.pod import SHARED_MEMORY_VOLUME, pod_base, trainer_container, volumes, with_init_containers

_TRIES = 2
_GRACE_S = 5


def preflight_job(layout: Layout) -> Manifest:
    """Return a Job whose pod compiles and reports in its termination message."""
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": names.preflight(layout.name, layout.uid),
            "namespace": layout.namespace,
            "labels": labels.for_preflight(layout.name, layout.uid),
            "ownerReferences": layout.owner_references,
        },
        "spec": {
            "backoffLimit": _TRIES - 1,
            "activeDeadlineSeconds": int(deadline_s(layout)),
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(FATAL_EXIT_CODES)}},
                ]
            },
            "template": {
                "metadata": overrides.metadata(layout, labels.for_preflight(layout.name, layout.uid)),
                "spec": _pod_spec(layout),
            },
        },
    }


def deadline_s(layout: Layout) -> float:
    """Return how long it may take from its creation: two compiles, and time for a node and the image."""
    return layout.settings.preflight_seconds * _TRIES + layout.settings.start_failure_seconds


def _pod_spec(layout: Layout) -> Manifest:
    amounts = resources.of(layout, "preflight", resources.PREFLIGHT)
    container = trainer_container(layout, names.PREFLIGHT, preflight_env(layout), amounts)
    tolerations, policy = overrides.tolerations(layout), overrides.of(layout).dns_policy
    limit = f"--time-limit={layout.settings.preflight_seconds:.0f}"
    container["args"] = ["preflight", JOB_FILE, "--report", limit]
    return {
        **pod_base(layout),
        "terminationGracePeriodSeconds": _GRACE_S,
        **({"dnsPolicy": policy} if policy else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        "securityContext": overrides.pod_security(layout),
        **with_init_containers(overrides.init_containers(layout)),
        "containers": [_without_shared_memory(container)],
        "volumes": [volume for volume in volumes(layout) if volume["name"] != SHARED_MEMORY_VOLUME],
    }


def _without_shared_memory(container: Manifest) -> Manifest:
    """Drop what only libtpu's processes need; a compiler has no chips to talk to."""
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] != SHARED_MEMORY_VOLUME]
    return {**container, "volumeMounts": mounts}
