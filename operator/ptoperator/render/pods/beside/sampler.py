"""The pods of a job's samplers (`rollout.placement: separate`), one per host of each.

The pods of a sampler of several hosts end together (`pttrainer.rollout`): when one fails, the others end as if they had
been told to, which their Job does not count, and it makes all of them anew. Of a host that vanishes they may learn only
when JAX aborts them, which it does count: so a Job may have as many failures as hosts for each that is allowed.
"""

from ptapi.run_directory import JOB_FILE
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.render.layout import Layout
from ptoperator.render.pods import gpu_fabric, overrides, resources
from ptoperator.render.pods.beside import vllm_sampler
from ptoperator.render.pods.environment_variables import SAMPLER_INDEX, sampler_env
from ptoperator.render.pods.pod import placement, pod_base, trainer_container, volumes, with_init_containers

HEALTH = "/health"
"""Answered without the token, once the sampler takes requests."""


def pod_template(layout: Layout) -> Manifest:
    """Return the pod template; layout: with the chips of one sampler."""
    annotations = vllm_sampler.annotations(layout) if _is_vllm(layout) else gpu_fabric.annotations(layout)
    return {
        "metadata": overrides.metadata(layout, labels.for_pod(layout.name, layout.uid), annotations),
        "spec": _pod_spec(layout),
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
