"""Sandboxes of the cluster, for programs that a model wrote and for tools that it calls."""

from typing import Annotated

from pydantic import Field

from ptapi.spec.base import DnsName, Image, SpecModel


class Sandbox(SpecModel):
    """Pods of Agent Sandbox (`agents.x-k8s.io`), under gVisor or Kata, in place of processes of the trainer's pod."""

    replicas: Annotated[int, Field(ge=1, le=256)] = 8
    """Sandboxes that the run holds; each runs one bundle of requests at a time."""
    warm: Annotated[int, Field(ge=0, le=64)] = 1
    """Further ones, kept ready to replace lost ones."""
    runtime_class_name: DnsName = "gvisor"
    """RuntimeClass of their pods."""
    image: Image = "registry.k8s.io/agent-sandbox/python-runtime-sandbox:v0.1.0"
    """Serves Agent Sandbox's Python runtime on port 8888; Python 3.11 or later, and what tools import."""
    max_per_node: Annotated[int, Field(ge=1, le=110)] = 8
    """Most of them on one node."""
    max_created: Annotated[int, Field(ge=1, le=10000)] = 200
    """Most claims that the operator makes for the job, replacements included."""
    max_created_per_minute: Annotated[int, Field(ge=1, le=600)] = 20
    """Most of those in a minute."""
