"""The chips of samplers with pods of their own (`rollout.placement: separate`).

A sampler is one process on one host. Left out: how its mesh is made of them (`pttrainer.rollout`).
"""

from dataclasses import replace

from ptapi.accelerators.slice import Slice
from ptapi.accelerators.type_names import TYPE_FIELD, resolve
from ptapi.errors import Finding, SpecError
from ptapi.spec import PostTrainJobSpec

PLACEMENT_FIELD = "spec.rollout.placement"
SAMPLER_TYPE_FIELD = "spec.rollout.separate.accelerator.type"


def sampler_chips(spec: PostTrainJobSpec) -> Slice | None:
    """Return the chips of all samplers, a slice for each; None if no pods of their own sample. Raises SpecError."""
    separate = spec.rollout.separate
    if separate is None:
        return None
    trainer = resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    if trainer.total_vms * trainer.parallel_containers > 1:
        raise SpecError([_many_processes(trainer)])
    if separate.accelerator is None:
        return replace(trainer, slices=separate.replicas)
    try:
        one = resolve(separate.accelerator.type)
    except SpecError as error:
        raise SpecError([_about_sampler(finding) for finding in error.findings]) from None
    if one.multi_host:
        raise SpecError([_several_hosts(one)])
    return replace(one, slices=separate.replicas)


def samplers_beside(accelerator: Slice, samplers: Slice | None) -> int:
    """Return how many VMs of the trainer's kind samplers take."""
    is_same = samplers is not None and samplers.machine_type == accelerator.machine_type
    return samplers.total_vms if samplers is not None and is_same else 0


def _many_processes(trainer: Slice) -> Finding:
    return Finding(
        PLACEMENT_FIELD,
        "separate",
        "colocated, because one process must hold all weights to send them to samplers, and "
        f"{trainer.describe()} has {trainer.total_vms * trainer.parallel_containers} processes that train",
        "an accelerator of one host with one process",
    )


def _about_sampler(finding: Finding) -> Finding:
    return replace(finding, field=SAMPLER_TYPE_FIELD) if finding.field == TYPE_FIELD else finding


def _several_hosts(one: Slice) -> Finding:
    return Finding(
        SAMPLER_TYPE_FIELD,
        one.name,
        f"a type of one host, because a sampler is one process, and {one.describe()} is {one.vms} hosts",
        f"accelerator: {{type: {_one_host(one)}}} and more replicas",
    )


def _one_host(one: Slice) -> str:
    """Return the type of one host of the same generation, with as many chips as a host of the slice."""
    family, _, number = one.name.rpartition("-")
    return f"{family}-{int(number) // one.vms}"
