"""The PodGroup of a job: Kubernetes' own gang scheduling, all pods of a job at once or none (scheduling.k8s.io).

Without it, of two jobs that each get half of the nodes neither starts. One group holds all pods of the JobSet, which
name it; it needs no Workload object. Where the API server serves PodGroups (1.36 as alpha, 1.37 as beta) and JobSet
keeps `schedulingGroup` (0.12).

Left out: jobs in a queue, which Kueue admits as a whole; Pathways, whose head starts before its workers; and slices of
several TPU hosts, for which JobSet makes the other pods only once the first one has its node: a gang would wait for
pods that nobody makes.
"""

from ptkube.resources import POD_GROUPS, Manifest, Resource
from ptoperator.kube import labels, names
from ptoperator.render.layout import Layout


def pod_group_kind(layout: Layout) -> Resource | None:
    """Return the kind of the job's PodGroup; None if its pods are scheduled one by one."""
    served = POD_GROUPS.get(layout.settings.pod_groups)
    is_whole = layout.pods == 1 or layout.job.spec.queue is not None
    chips = [layout.accelerator, *(role.chips for role in layout.beside)]
    is_in_order = layout.is_pathways or any(each.multi_host and not each.is_gpu for each in chips)
    return None if is_whole or is_in_order else served


def scheduling_group(layout: Layout) -> Manifest:
    """Return the field of a pod that names its group; empty without one."""
    if pod_group_kind(layout) is None:
        return {}
    return {"schedulingGroup": {"podGroupName": names.pod_group(layout.jobset, layout.uid)}}


def pod_group(layout: Layout) -> Manifest:
    """Return the manifest, of the newest kind if none is served."""
    kind = pod_group_kind(layout) or next(iter(POD_GROUPS.values()))
    priority = layout.job.spec.priority_class_name
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": names.pod_group(layout.jobset, layout.uid),
            "namespace": layout.namespace,
            "labels": labels.for_job(layout.name, layout.uid),
            "ownerReferences": layout.owner_references,
        },
        "spec": {
            "schedulingPolicy": {"gang": {"minCount": layout.pods}},
            **({"priorityClassName": priority} if priority else {}),
        },
    }
