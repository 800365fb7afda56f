"""One controller for all chips, by Pathways."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import Image, SpecModel

Flag = Annotated[str, Field(max_length=1024, pattern=r"^--[^\s]+$")]


class Pathways(SpecModel):
    """One controller for all chips (Pathways)."""

    enabled: Literal["auto"] | bool = "auto"
    """`true`: one trainer on a CPU node drives all chips. `false`: one trainer per host. `auto`: `true` where
    posttrain's own trainer samples on several hosts and needs one process for it (`rollout.placement: disaggregated`,
    Python of your own or MCP servers in `environment`, a vLLM server), else `false`, until runs on TPUs show which is
    better for the others."""
    headless: bool = False
    """Start only the Pathways servers; `ptctl workload connect` prints how your own program reaches the chips. The
    job runs until it is deleted or suspended, or its deadline passes."""
    elastic_slices: Annotated[int, Field(ge=0, le=512)] = 0
    """How many slices may be missing while the program continues (pathwaysutils' elastic training). A lost slice's
    workers restart by themselves, at most `runPolicy.maxRestarts` times for failures of their own."""
    server_image: Image | None = None
    """Image of Pathways' resource manager and workers. Unset: the operator's setting; by default Google's latest."""
    proxy_image: Image | None = None
    """Image of Pathways' proxy. Unset: the operator's setting; by default Google's latest."""
    colocated_python_image: Image | None = None
    """Image of a sidecar that runs Python next to every worker (colocated Python). Unset: none."""
    server_args: Annotated[list[Flag], Field(max_length=64)] = []
    """Further flags of the resource manager."""
    proxy_args: Annotated[list[Flag], Field(max_length=64)] = []
    """Further flags of the proxy; XLA's flags belong here, because the proxy compiles."""
    worker_args: Annotated[list[Flag], Field(max_length=64)] = []
    """Further flags of the workers."""
