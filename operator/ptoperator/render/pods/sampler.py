"""The samplers of a job (`rollout.placement: separate`): a Job for each, beside the trainer's, with a pod per host.

A sampler that fails is made anew by its own Job, at most `runPolicy.maxRestarts` times for failures of its own, and the
trainer goes on. JobSet 0.12 restarts one Job of several only behind an alpha gate (RestartJob), so a failure of the
trainer restarts the samplers with it; they hold nothing that the trainer could not send again.

The pods of a sampler of several hosts end together (`pttrainer.rollout`): when one fails, the others end as if they had
been told to, which their Job does not count, and it makes all of them anew. Of a host that vanishes they may learn only
when JAX aborts them, which it does count: so a Job may have as many failures as hosts for each that is allowed.
"""

from dataclasses import replace

from ptapi.run_directory import JOB_FILE
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.render.failure_policy import sampler_failure_policy
from ptoperator.render.layout import Layout
from ptoperator.render.pods import gpu_fabric, overrides, resources, vllm_sampler
from ptoperator.render.pods.environment_variables import SAMPLER_INDEX, sampler_env
from ptoperator.render.pods.pod import (
    exclusive_topology,
    placement,
    pod_base,
    trainer_container,
    volumes,
    with_init_containers,
)
from ptoperator.render.pods.pod_group import scheduling_group

HEALTH = "/health"
"""Answered without the token, once the sampler takes requests."""


def replicated_job(layout: Layout) -> Manifest:
    """Return the replicated job of all samplers."""
    return {
        "name": names.SAMPLER,
        "replicas": layout.sampler_count,
        "template": _job(_of_sampler(layout), scheduling_group(layout)),
    }


def _of_sampler(layout: Layout) -> Layout:
    """Return the layout with the chips of one sampler in place of the trainer's. Pools are for chips."""
    assert layout.samplers is not None
    one = replace(layout.samplers, slices=1)
    return replace(layout, accelerator=one, pools=() if one.is_cpu else layout.pools)


def _job(layout: Layout, group: Manifest) -> Manifest:
    own = exclusive_topology(layout)
    return {
        "metadata": {
            "labels": labels.for_job(layout.name, layout.uid),
            **({"annotations": own} if own else {}),
        },
        "spec": {
            "parallelism": layout.hosts,
            "completions": layout.hosts,
            "completionMode": "Indexed",
            "backoffLimit": layout.sampler_backoff_limit,
            "podFailurePolicy": sampler_failure_policy(),
            "template": {
                "metadata": overrides.metadata(
                    layout,
                    labels.for_pod(layout.name, layout.uid),
                    vllm_sampler.annotations(layout) if _is_vllm(layout) else gpu_fabric.annotations(layout),
                ),
                "spec": {**_pod_spec(layout), **group},
            },
        },
    }


def _is_vllm(layout: Layout) -> bool:
    return layout.job.spec.rollout.sampling_engine == "vllm"


def _pod_spec(layout: Layout) -> Manifest:
    return {
        **pod_base(layout),
        **overrides.network(layout),
        **placement(layout),
        "securityContext": overrides.pod_security(layout),
        **with_init_containers([*gpu_fabric.sidecars(layout), *overrides.init_containers(layout)]),
        "containers": [_container(layout)],
        "volumes": [*volumes(layout), *(vllm_sampler.volumes(layout) if _is_vllm(layout) else [])],
    }


def _container(layout: Layout) -> Manifest:
    chips = 0 if layout.accelerator.is_cpu else layout.accelerator.chips_per_vm
    amounts = resources.of(layout, "trainer", resources.trainer_default(layout), chips)
    if _is_vllm(layout):
        return vllm_sampler.container(layout, amounts)
    port = names.SAMPLER_PORT
    ports = [{"name": "sampler", "containerPort": port}]
    if layout.hosts > 1:
        ports.append({"name": "coordinator", "containerPort": names.COORDINATOR_PORT})
    arguments = ["--spec", JOB_FILE, "--index", f"$({SAMPLER_INDEX})", "--port", str(port)]
    container = trainer_container(layout, names.SAMPLER, sampler_env(layout), amounts, ports=ports)
    container["args"] = ["sampler", *arguments]
    probe = {"httpGet": {"path": HEALTH, "port": port}, "periodSeconds": 5}
    return {**container, "readinessProbe": probe}
