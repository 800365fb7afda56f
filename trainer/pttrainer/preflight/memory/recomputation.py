"""The policy behind `training.remat: auto`: what saves most of a layer's activations and fits, by the formula.

Every activation that is kept is a product less in the backward pass, and memory that stays free is worth nothing. The
formula answers in milliseconds, and alike on every host. It may be wrong by a tenth, so a policy must leave more than
that. The compiler confirms: where it refuses the policy, preflight takes `full`, and so does the trainer
(`compiled_steps`).

Left out: policies that keep activations in host memory, because how long they take to get there and back is published
for one generation only (`host_memory`): a job names them. CPUs, where `none` is faster than every other policy, and
GPUs, where the formula was held against no compiler: they recompute all.
"""

from dataclasses import replace

from ptapi.spec import PostTrainJobSpec
from pttrainer.errors import ConfigError
from pttrainer.models.shapes.structure import Remat
from pttrainer.preflight.memory import formula
from pttrainer.preflight.memory.staged_check import ROOMY
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.shapes.local_devices import LocalDevices

SAVING: tuple[Remat, ...] = ("none", "save-qkv-context", "save-context")
"""Policies that save something, the one that saves most first."""


def settled(of: JobShapes) -> JobShapes:
    """Return the job with the policy of `auto` in place of it; any other job as it is."""
    if of.spec.training.remat != "auto" or of.slice.platform != "tpu" or isinstance(of.slice, LocalDevices):
        return of
    policies = (with_policy(of, policy) for policy in SAVING)
    return next((one for one in policies if _is_roomy(one)), with_policy(of, "full"))


def policy(spec: PostTrainJobSpec) -> Remat | None:
    """Return the policy with which a job trains on TPUs, if its spec leaves that open.

    Of a job that the formula does not support, `full`: what is wrong with it, the trainer says.
    """
    if spec.training.remat != "auto":
        return None
    try:
        of = settled(shapes_of(spec))
        return None if of.slice.is_cpu else of.structure.remat
    except ConfigError:
        return "full"


def with_policy(of: JobShapes, remat: Remat) -> JobShapes:
    """Return the job with a policy; its teacher that is the student, and its critic, take the same."""
    structure = replace(of.structure, remat=remat)
    critic = of.critic
    if critic is not None and critic.structure is not None:
        critic = critic._replace(structure=replace(critic.structure, remat=remat))
    training = of.spec.training.model_copy(update={"remat": remat})
    return replace(
        of,
        spec=of.spec.model_copy(update={"training": training}),
        structure=structure,
        teacher=structure if of.teacher is of.structure else of.teacher,
        critic=critic,
    )


def _is_roomy(of: JobShapes) -> bool:
    memory = formula.memory(of)
    return memory.peak <= ROOMY * memory.available
