"""Waiting for the services that an environment names, before its sessions are opened."""

from collections.abc import Callable

from ptapi.spec import Environment as EnvironmentSpec
from pttrainer.runtime.services import first_answer
from pttrainer.runtime.services.addresses import addresses
from pttrainer.runtime.services.replicas import Replicas


def wait(spec: EnvironmentSpec, note: Callable[[str], None], alive: Callable[[], None]) -> None:
    """Wait until each service has answered once; alive: called while waiting. Raises ConfigError or ServiceLost."""
    fields = {f"spec.environment.mcp[{index}].service": server.service for index, server in enumerate(spec.mcp)}
    if spec.openenv is not None:
        fields["spec.environment.openenv.service"] = spec.openenv.service
    for field, name in fields.items():
        if name is not None:
            first_answer.wait(name, field, Replicas(addresses(name, field)), note, alive)
