"""The chips of samplers with pods of their own (`rollout.placement: separate`).

A sampler is one process on one host. Left out: how its mesh is made of them (`pttrainer.rollout`).
"""

from dataclasses import replace

from ptapi.accelerators.slice import Slice
from ptapi.accelerators.type_names import TYPE_FIELD, resolve
from ptapi.errors import Finding, SpecError
from ptapi.spec import PostTrainJobSpec

SAMPLER_TYPE_FIELD = "spec.rollout.separate.accelerator.type"


def sampler_chips(spec: PostTrainJobSpec) -> Slice | None:
    """Return the chips of all samplers, a slice for each; None if no pods of their own sample. Raises SpecError."""
    separate = spec.rollout.separate
    if separate is None:
        return None
    own = separate.accelerator
    try:
        if own is None:
            one = resolve(spec.accelerator.type, spec.accelerator.topology)
        else:
            one = resolve(own.type)
    except SpecError as error:
        raise SpecError([_about_sampler(finding) for finding in error.findings] if own else error.findings) from None
    if one.multi_host:
        raise SpecError([_several_hosts(one, is_own=own is not None)])
    return replace(one, slices=separate.replicas)


def _about_sampler(finding: Finding) -> Finding:
    return replace(finding, field=SAMPLER_TYPE_FIELD) if finding.field == TYPE_FIELD else finding


def _several_hosts(one: Slice, *, is_own: bool) -> Finding:
    return Finding(
        SAMPLER_TYPE_FIELD,
        one.name if is_own else "(missing)",
        f"a type of one host, because a sampler is one process, and {one.describe()} is {one.vms} hosts",
        f"accelerator: {{type: {_one_host(one)}}} and more replicas",
    )


def _one_host(one: Slice) -> str:
    """Return the type of one host of the same generation, with as many chips as a host of the slice."""
    count = one.chips_per_vm * one.tensorcores // one.chips
    return f"{one.name.partition('-')[0]}-{count}"
