"""The JobSet of a run.

Multi-controller: one replicated job `slice`, one child Job per slice, one pod per VM, and one for each role beside it,
samplers and services (`render.pods.beside`); with Pathways the head and the workers of `render.pathways`. With
`accelerator.minSlices` a slice's Job replaces its pods, and the JobSet restarts none.

The JobSet has no TTL: it could vanish before the operator saw how it ended, and then look as if it had never been
created. The operator deletes the finished job itself, and the JobSet goes with it.
"""

from ptkube.resources import JOBSETS, Manifest
from ptoperator.kube import labels, names
from ptoperator.render import pathways
from ptoperator.render.failure_policy import failure_policy, pod_failure_policy, supervised_failure_policy
from ptoperator.render.layout import Layout
from ptoperator.render.pods.beside import role_job
from ptoperator.render.pods.pod import exclusive_topology, pod_template


def jobset(layout: Layout, restarts_before: int = 0, charged_before: int = 0) -> Manifest:
    """Return the manifest.

    restarts_before: restarts of the job under earlier JobSets. charged_before: those of them that count against
    `maxRestarts`; a new JobSet gets what is left.
    """
    policy = layout.job.spec.run_policy
    return {
        "apiVersion": JOBSETS.api_version,
        "kind": JOBSETS.kind,
        "metadata": {
            "name": layout.jobset,
            "namespace": layout.namespace,
            "labels": _labels(layout),
            "annotations": _annotations(layout, restarts_before),
            "ownerReferences": layout.owner_references,
        },
        "spec": {
            # Kueue admits a queued JobSet by setting this to false.
            "suspend": layout.job.spec.queue is not None or policy.suspend,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            **_roles(layout),
            # Supervisors count their restarts themselves, over all pods: a Job that fails then ends the run.
            "failurePolicy": failure_policy(
                0 if layout.is_supervised else max(0, policy.max_restarts - charged_before)
            ),
            "replicatedJobs": _replicated_jobs(layout),
        },
    }


def _roles(layout: Layout) -> Manifest:
    """Return which replicated job decides success, and which starts first."""
    operator = "Any" if layout.is_supervised else "All"  # at the end a slice may be without nodes
    if layout.beside:  # a sampler, or a service, serves until it is ended, with the trainer's success
        return {"successPolicy": {"operator": operator, "targetReplicatedJobs": [names.REPLICATED_JOB]}}
    if not layout.is_pathways:
        return {"successPolicy": {"operator": operator}}
    decides = {} if layout.is_headless else {"targetReplicatedJobs": [names.PATHWAYS_HEAD]}
    return {
        "coordinator": {"replicatedJob": names.PATHWAYS_HEAD},
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
        "successPolicy": {"operator": "All", **decides},
    }


def _replicated_jobs(layout: Layout) -> list[Manifest]:
    if layout.is_pathways:
        return pathways.replicated_jobs(layout)
    trainer = {"name": names.REPLICATED_JOB, "replicas": layout.slices, "template": _job_template(layout)}
    return [trainer, *(role_job.replicated_job(layout, role) for role in layout.beside)]


def _labels(layout: Layout) -> Manifest:
    spec = layout.job.spec
    kueues = {labels.KUEUE_QUEUE: spec.queue, labels.KUEUE_PRIORITY: spec.queue_priority_class_name}
    return {**labels.for_job(layout.name, layout.uid), **{key: value for key, value in kueues.items() if value}}


def _annotations(layout: Layout, restarts_before: int) -> Manifest:
    annotations = {labels.RESTARTS_BEFORE: str(restarts_before)}
    if layout.has_sandboxes:
        annotations[labels.SANDBOX] = layout.sandboxes
    return annotations if layout.beside else annotations | exclusive_topology(layout)


def _job_template(layout: Layout) -> Manifest:
    # Beside others, which may share a pool, the annotation is that of Jobs on slices of several hosts alone.
    own = exclusive_topology(layout) if layout.beside else {}
    return {
        "metadata": {
            "labels": labels.for_job(layout.name, layout.uid),
            **({"annotations": own} if own else {}),
        },
        "spec": {
            "parallelism": layout.hosts,
            "completions": layout.hosts,
            "completionMode": "Indexed",
            "backoffLimit": layout.hosts * layout.job.spec.run_policy.max_restarts if layout.is_supervised else 0,
            "podFailurePolicy": supervised_failure_policy() if layout.is_supervised else pod_failure_policy(),
            "template": pod_template(layout),
        },
    }
