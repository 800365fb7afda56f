"""The chips of a job's services: a host of TPUs or GPUs for each replica, or none.

Left out: several hosts for one replica, which vLLM runs by Ray alone on TPUs.
"""

from dataclasses import replace

from ptapi.accelerators.slice import Slice
from ptapi.accelerators.type_names import resolve
from ptapi.errors import Finding, SpecError
from ptapi.spec import PostTrainJobSpec, Service

NO_CHIPS = "cpu-1"
"""What a pod without chips counts as."""


def service_chips(spec: PostTrainJobSpec) -> tuple[Slice, ...]:
    """Return the chips of each service's replicas, a slice for each, in the order of the spec. Raises SpecError."""
    return tuple(
        _chips(service, f"spec.services[{index}].accelerator.type") for index, service in enumerate(spec.services)
    )


def _chips(service: Service, field: str) -> Slice:
    type_ = service.accelerator.type if service.accelerator else NO_CHIPS
    try:
        one = resolve(type_)
    except SpecError as error:
        raise SpecError([replace(finding, field=field) for finding in error.findings]) from None
    if service.accelerator and one.is_cpu:
        raise SpecError([Finding(field, type_, "TPUs or GPUs; without accelerator a service has no chips")])
    if one.multi_host:
        accepted = f"not supported yet; accepted: chips of one host, and {one.describe()} is {one.vms} hosts"
        raise SpecError([Finding(field, type_, accepted)])
    return replace(one, slices=service.replicas)
