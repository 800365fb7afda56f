"""Memory of the services that serve models: their weights on the chips of a replica, by their published shape.

vLLM takes what is left for its cache, so only weights that do not fit are refused. Left out: weights in other formats
than bfloat16, and models that the trainer does not know, about which a line says that they are not checked.
"""

from collections.abc import Iterator
from dataclasses import replace

from ptapi.accelerators.roles import Role, roles_beside
from ptapi.spec import PostTrainJobSpec
from pttrainer.errors import ConfigError, TrainerError
from pttrainer.models.loading import model_spec
from pttrainer.models.shapes import parameters
from pttrainer.preflight.shapes import tpu_topology

BFLOAT16 = 2
VLLM_SHARE = 0.9
"""Of a device's memory, unless vLLM is told otherwise."""
_GIB = 2**30


def check(spec: PostTrainJobSpec) -> list[str]:
    """Return a line for each served model; raise ConfigError for weights that its chips do not hold."""
    return list(_lines(spec))


def _lines(spec: PostTrainJobSpec) -> Iterator[str]:
    for index, role in enumerate(role for role in roles_beside(spec) if role.service is not None):
        if role.service is not None and role.service.model is not None and not role.chips.is_cpu:
            yield _line(role, f"spec.services[{index}]")


def _line(role: Role, field: str) -> str:
    assert role.service is not None
    assert role.service.model is not None
    model = role.service.model
    try:
        config = model_spec.open_source(
            model.uri, f"{field}.model.uri", lambda _: None, model.revision, weights=False
        ).config
    except TrainerError as error:  # also a hub that cannot be reached: the run's chips do not depend on it
        return f"the memory of service {role.name} is not checked: {error}"
    weights, room = parameters.count(config) * BFLOAT16, _room(role)
    each = f"{weights / _GIB:.1f} GiB of weights in bfloat16"
    if weights > room:
        chips = replace(role.chips, slices=1).describe()
        raise ConfigError(
            f"{field}.accelerator.type: {chips}: vLLM may use {room / _GIB:.1f} GiB there, and {model.uri} has {each}; "
            "accepted: chips of one host that hold them, or a smaller model"
        )
    return (
        f"service {role.name}: {each}, where vLLM may use {room / _GIB:.1f} GiB; the time of its answers is not counted"
    )


def _room(role: Role) -> float:
    return VLLM_SHARE * role.chips.devices * tpu_topology.usable_bytes(role.chips)
