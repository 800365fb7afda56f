"""The address of a headless Pathways job's proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptctl.errors import CliError
from ptkube.resources import PODS, Manifest
from ptoperator.kube import labels, names

if TYPE_CHECKING:
    from ptkube.client import Kube


def address(job: Manifest) -> str:
    """Return the proxy's address within the cluster. Raises CliError for a job that has none."""
    if not (job["spec"].get("pathways") or {}).get("headless"):
        raise CliError(
            f"{job['metadata']['name']} is not a headless Pathways job", "pathways: {enabled: true, headless: true}"
        )
    jobset = (job.get("status") or {}).get("jobSet")
    if not jobset:
        raise CliError(f"{job['metadata']['name']} has no JobSet yet", "`ptctl workload describe NAME` shows why")
    head = f"{jobset}-{names.PATHWAYS_HEAD}-0-0.{jobset}.{job['metadata']['namespace']}"
    return f"grpc://{head}:{names.PATHWAYS_PROXY_PORT}"


def variables(proxy: str) -> str:
    """Return the environment variables that JAX reads, as one shell line."""
    return f"JAX_PLATFORMS=proxy JAX_BACKEND_TARGET={proxy}"


def head_of(kube: Kube, job: Manifest) -> str:
    """Return the name of the running head pod. Raises CliError while there is none."""
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
        raise CliError(
            f"the head pod of {meta['name']} is not running yet",
            "`ptctl workload wait NAME --for running` waits for it",
        )
    return str(heads[0])
