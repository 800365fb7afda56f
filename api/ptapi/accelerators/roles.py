"""The roles of a job beside its trainer's: samplers with pods of their own, and services. Each has chips of its own.

Left out: several hosts for one replica of a service, which vLLM runs by Ray alone on TPUs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ptapi.accelerators.samplers import is_on_claim, sampler_chips
from ptapi.accelerators.slice import Slice
from ptapi.accelerators.type_names import resolve
from ptapi.errors import Finding, SpecError
from ptapi.spec import PostTrainJobSpec, Service

SAMPLER = "sampler"
NO_CHIPS = "cpu-1"
"""What a pod without chips counts as."""


@dataclass(frozen=True)
class Role:
    """Pods beside the trainer's, which come back by themselves while it goes on.

    name: `sampler`, or the service's. chips: of all, a slice for each. service: what runs; None for samplers.
    """

    name: str
    chips: Slice
    service: Service | None = None

    @property
    def count(self) -> int:
        """Return how many samplers, or replicas, there are."""
        return self.chips.slices

    @property
    def hosts(self) -> int:
        """Return the pods of each."""
        return self.chips.vms

    @property
    def pods(self) -> int:
        """Return the pods of all."""
        return self.chips.total_vms

    @property
    def noun(self) -> str:
        """Return what one is called in a message, before its number: `sampler`, `service judge`."""
        return self.name if self.service is None else f"service {self.name}"

    @property
    def nouns(self) -> str:
        """Return what several are called, before their numbers."""
        return f"{self.name}s" if self.service is None else self.noun

    @property
    def described(self) -> str:
        """Return what has its chips: `2 samplers on v6e-4 (4 chips) each`; empty for a service without chips."""
        if self.service is not None:
            return "" if self.chips.is_cpu else f"{self.noun} on {self.chips.describe()}"
        one, each = ("", "") if self.count == 1 else ("s", " each")
        return f"{self.count} {self.noun}{one} on {replace(self.chips, slices=1).describe()}{each}"


def roles_beside(spec: PostTrainJobSpec) -> tuple[Role, ...]:
    """Return the roles beside the trainer, samplers first. Raises SpecError for chips that they cannot have."""
    samplers = sampler_chips(spec)
    return (*([Role(SAMPLER, samplers)] if samplers else []), *services_beside(spec))


def services_beside(spec: PostTrainJobSpec) -> tuple[Role, ...]:
    """Return the services of a job. Raises SpecError for chips that they cannot have."""
    return tuple(_role(spec, service, f"spec.services[{index}]") for index, service in enumerate(spec.services))


def vms_beside(accelerator: Slice, roles: Iterable[Role]) -> int:
    """Return how many VMs of the trainer's kind they take."""
    return sum(role.pods for role in roles if role.chips.machine_type == accelerator.machine_type)


def _role(spec: PostTrainJobSpec, service: Service, field: str) -> Role:
    uri = service.model.uri if service.model else ""
    if uri.startswith("file://") and not is_on_claim(spec, uri.removeprefix("file://")):
        accepted = "hf://, gs://, or a directory below the mountPath of a claim of spec.volumes"
        hint = "volumes: [{name: models, mountPath: /models, persistentVolumeClaim: {claimName: models}}]"
        raise SpecError([Finding(f"{field}.model.uri", uri, accepted, hint)])
    return Role(service.name, _chips(service, f"{field}.accelerator.type"), service)


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
