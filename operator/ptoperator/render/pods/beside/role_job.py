"""The replicated job of a role beside the trainer's: a Job for each sampler, or replica of a service.

A pod that fails is made anew by its own Job, at most `runPolicy.maxRestarts` times for failures of its own, and the
trainer goes on. JobSet 0.12 restarts one Job of several only behind an alpha gate (RestartJob), so a failure of the
trainer restarts these with it; they hold nothing that the trainer could not send or ask again.
"""

from dataclasses import replace

from ptapi.accelerators.roles import Role
from ptkube.resources import Manifest
from ptoperator.kube import labels
from ptoperator.render.failure_policy import ignored_disruption_policy, sampler_failure_policy
from ptoperator.render.layout import Layout
from ptoperator.render.pods.beside import sampler, service
from ptoperator.render.pods.pod import exclusive_topology
from ptoperator.render.pods.pod_group import scheduling_group


def replicated_job(layout: Layout, role: Role) -> Manifest:
    """Return the replicated job."""
    return {"name": role.name, "replicas": role.count, "template": _job(layout, role)}


def _job(layout: Layout, role: Role) -> Manifest:
    of_one = _of_role(layout, role)
    template = sampler.pod_template(of_one) if role.service is None else service.pod_template(of_one, role.service)
    own = exclusive_topology(of_one)
    return {
        "metadata": {
            "labels": labels.for_job(layout.name, layout.uid),
            **({"annotations": own} if own else {}),
        },
        "spec": {
            "parallelism": role.hosts,
            "completions": role.hosts,
            "completionMode": "Indexed",
            "backoffLimit": layout.backoff_limit(role),
            # What the exit codes of other programs mean is not known.
            "podFailurePolicy": sampler_failure_policy() if role.service is None else ignored_disruption_policy(),
            "template": {**template, "spec": {**template["spec"], **scheduling_group(layout)}},
        },
    }


def _of_role(layout: Layout, role: Role) -> Layout:
    """Return the layout with the chips of one of them in place of the trainer's. Pools are for chips."""
    one = replace(role.chips, slices=1)
    return replace(layout, accelerator=one, pools=() if one.is_cpu else layout.pools)
