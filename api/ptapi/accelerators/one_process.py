"""Whether one process drives all of a job's chips by Pathways (`pathways.enabled`), and why.

`auto` takes Pathways where posttrain's own trainer samples on several hosts and could not do so with a trainer on each:
other chips than those that train sample, Python of the user's or an MCP server answers the model, or a vLLM server is
given the weights.
Left out: whether Pathways would be faster for the other jobs, which no run on TPUs has shown.
"""

from ptapi.accelerators.slice import Slice
from ptapi.accelerators.type_names import resolve
from ptapi.errors import SpecError
from ptapi.spec import PostTrainJobSpec


def uses_pathways(spec: PostTrainJobSpec) -> bool:
    """Return True if one process drives all chips."""
    switch = spec.pathways.enabled
    return reason(spec) is not None if switch == "auto" else switch


def reason(spec: PostTrainJobSpec) -> str | None:
    """Return why `auto` takes Pathways; None if it does not, or nothing is left to it."""
    if spec.pathways.enabled != "auto" or not spec.runtime.is_native or not spec.algorithm.is_on_policy:
        return None
    need = _need(spec)
    slice_ = None if need is None else _slice(spec)
    if slice_ is None or slice_.pathways_instance_type is None or slice_.total_vms == 1:
        return None
    return f"{need}, and {slice_.describe()} is {slice_.total_vms} hosts"


def _need(spec: PostTrainJobSpec) -> str | None:
    """Return what needs one process."""
    rollout, environment = spec.rollout, spec.environment
    if rollout.placement == "disaggregated":
        return "rollout.placement: disaggregated needs one process that moves weights"
    if rollout.placement == "separate":  # the leader of the processes that train speaks to the samplers
        return None
    if environment is not None and environment.needs_one_process:
        if environment.runs_python:
            return "Python of the environment runs in one process"
        return "one process holds the sessions with environment.mcp's servers"
    if rollout.vllm is not None and rollout.vllm.endpoint is not None:
        return "one process gives vLLM's server the weights"
    return None


def _slice(spec: PostTrainJobSpec) -> Slice | None:
    try:
        return resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    except SpecError:
        return None
