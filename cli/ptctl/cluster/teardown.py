"""Delete a cluster that ptctl made, and nothing that it did not make."""

from __future__ import annotations

import time
from collections.abc import Callable

from ptctl.cluster.cloud.cloud_errors import CloudError, MissingInCloudError
from ptctl.cluster.cloud.gke import ClusterView, Gke
from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.cluster.definition import gpu_networks
from ptctl.cluster.definition.requests import MAKER
from ptctl.cluster.kubeconfig import kube_of
from ptctl.errors import CliError, InputError
from ptctl.jobs.view import TERMINAL
from ptctl.ui.console import Console
from ptkube.errors import ApiError, NotFound
from ptkube.resources import POSTTRAINJOBS
from ptoperator.kube import labels

_MAX_SILENT_POLLS = 30


def check_deletable(cluster: ClusterView) -> None:
    """Raise CliError for a cluster, or one with node pools, that ptctl did not make."""
    if not cluster.is_ours:
        raise CliError(
            f"cluster {cluster.name} in {cluster.location} was not made by ptctl",
            f"whoever made it deletes it; or: gcloud container clusters delete {cluster.name} "
            f"--location {cluster.location}",
        )
    makers = (MAKER, labels.MANAGER)
    others = [pool.name for pool in cluster.pools if pool.maker not in makers and not pool.is_autoprovisioned]
    if others:
        raise CliError(
            f"cluster {cluster.name} has node pools that ptctl did not make: {', '.join(others)}",
            "delete those first, if nobody needs them: gcloud container node-pools delete POOL",
        )


def running_jobs(settings: CloudSettings, cluster: ClusterView) -> list[str]:
    """Return the jobs that have not ended. Raises CliError where the cluster does not answer."""
    if cluster.state not in ("RUNNING", "RECONCILING", "DEGRADED"):
        return []
    try:
        jobs = kube_of(settings, cluster).list(POSTTRAINJOBS).items
    except NotFound:
        return []  # posttrain is not installed there
    except ApiError as error:
        raise CliError(
            f"the jobs of cluster {cluster.name} cannot be listed: {error.message}",
            "--force deletes it without looking at its jobs",
        ) from error
    return [
        f"{job['metadata']['namespace']}/{job['metadata']['name']}"
        for job in jobs
        if (job.get("status") or {}).get("phase") not in TERMINAL
    ]


def networks_left(cluster: ClusterView) -> list[str]:
    """Return the VPCs that ptctl made for the cluster's GPUs. They stay: they cost nothing, and others may use them."""
    nics = [nic for pool in cluster.raw.node_pools for nic in pool.network_config.additional_node_network_configs]
    made = {vpc.name for kind in gpu_networks.KINDS for vpc in gpu_networks.vpcs(kind, cluster.name)}
    return sorted(made & {nic.network.rpartition("/")[2] for nic in nics})


def check_idle(cluster: ClusterView, jobs: list[str]) -> None:
    """Raise CliError if jobs have not ended."""
    if jobs:
        shown = ", ".join(jobs[:5]) + (f" and {len(jobs) - 5} more" if len(jobs) > 5 else "")
        raise CliError(
            f"cluster {cluster.name} has {len(jobs)} unfinished job{'s' if len(jobs) > 1 else ''}: {shown}",
            "`ptctl workload delete`, or --force to delete the cluster with them; run directories in buckets stay",
        )


def confirm(console: Console, cluster: ClusterView, answer: Callable[[], str]) -> None:
    """Ask for the cluster's name. Raises InputError for another answer, or where standard input has none."""
    console.say(
        f"This deletes cluster {cluster.name} in {cluster.location} with {len(cluster.pools)} node pools, "
        f"{cluster.nodes} nodes and everything in it. Buckets stay.\nType its name to continue:"
    )
    try:
        typed = answer().strip()
    except EOFError:
        typed = ""
    if typed != cluster.name:
        raise InputError(f"the name typed is {typed!r}, not {cluster.name!r}; nothing is deleted", "--yes does not ask")


def delete_cluster(
    gke: Gke, path: str, cluster: ClusterView, poll_s: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Delete the cluster and return when it is gone. Every answer may be lost, so each try looks first."""
    silent = 0
    while silent <= _MAX_SILENT_POLLS:
        try:
            now = gke.get(path)
            if now is None:
                return
            check_deletable(now)
            if now.state != "STOPPING":
                gke.delete_cluster(path)
            silent = 0
        except MissingInCloudError:
            return
        except CloudError as error:
            if not error.is_transient:
                raise
            silent += 1
        sleep(poll_s)
    raise CliError(f"cluster {cluster.name}: GKE does not answer", "run the same command again; the deletion continues")
