"""Where the proxy of a headless Pathways job listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptctl.errors import CliError
from ptkube.resources import PODS, Manifest
from ptoperator.kube import labels, names

if TYPE_CHECKING:
    from ptkube.client import Kube


def address(job: Manifest) -> str:
    """The proxy's address within the cluster. Raises CliError for a job that has none."""
    if not (job["spec"].get("pathways") or {}).get("headless"):
        raise CliError(
            f"{job['metadata']['name']} is not a headless Pathways job", "pathways: {enabled: true, headless: true}"
        )
    jobset = (job.get("status") or {}).get("jobSet")
    if not jobset:
        raise CliError(f"{job['metadata']['name']} has no JobSet yet", "ptctl workload describe says why")
    head = f"{jobset}-{names.PATHWAYS_HEAD}-0-0.{jobset}.{job['metadata']['namespace']}"
    return f"grpc://{head}:{names.PATHWAYS_PROXY_PORT}"


def variables(where: str) -> str:
    """What JAX reads, in a line for a shell."""
    return f"JAX_PLATFORMS=proxy JAX_BACKEND_TARGET={where}"


def head_of(kube: Kube, job: Manifest) -> str:
    """Name of the running head pod. Raises CliError while there is none."""
    address(job)
    meta = job["metadata"]
    pods = kube.list(PODS, meta["namespace"], labels=labels.selector(meta["name"])).items
    heads = [
        pod["metadata"]["name"]
        for pod in pods
        if pod["metadata"]["labels"].get(labels.REPLICATED_JOB_NAME) == names.PATHWAYS_HEAD
        and (pod.get("status") or {}).get("phase") == "Running"
    ]
    if not heads:
        raise CliError(f"the head of {meta['name']} does not run yet", "ptctl workload wait --for running")
    return str(heads[0])
