"""Where to look: the run directory, logs, TensorBoard, the cloud console. Pure.

Logs outlive their pods in Cloud Logging, so there a query finds what `kubectl logs` cannot any more. The console's
addresses are Google's and known to us from its documentation only.
"""

from __future__ import annotations

from urllib.parse import quote

from ptapi.rundir import run_uri
from ptapi.status import Links
from ptoperator import labels, names
from ptoperator.render import Layout
from ptoperator.settings import Settings

_CONSOLE = "https://console.cloud.google.com"


def links(layout: Layout) -> Links:
    run = run_uri(layout.job.spec.output.uri, layout.name)
    local = run.removeprefix("file://")
    board = f"tensorboard --logdir {local}/tensorboard" if layout.job.spec.tensorboard.enabled else ""
    if layout.job.spec.tensorboard.server:
        board = f"ptctl workload tensorboard {layout.name} -n {layout.namespace}"
    return Links(
        run=run,
        logs=f"ptctl workload logs {layout.name} -n {layout.namespace}",
        tensorboard=board,
        **_in_the_cloud(layout, layout.settings),
    )


def _in_the_cloud(layout: Layout, settings: Settings) -> dict[str, str]:
    if not settings.has_gke:
        return {}
    cluster = f"{settings.gke_location}/{settings.gke_cluster}"
    project = f"project={quote(settings.gke_project)}"
    return {
        "cloud_logs": _logs(layout, settings, f'labels."k8s-pod/{_label(labels.JOB)}"="{layout.name}"'),
        "cloud_logs_of_rank": _logs(layout, settings, f'resource.labels.pod_name=~"^{_first_pod(layout)}-"'),
        "console": f"{_CONSOLE}/kubernetes/clusters/details/{cluster}/details?{project}",
    }


def _logs(layout: Layout, settings: Settings, which: str) -> str:
    """A query of Cloud Logging, as an address."""
    lines = (
        'resource.type="k8s_container"',
        f'resource.labels.location="{settings.gke_location}"',
        f'resource.labels.cluster_name="{settings.gke_cluster}"',
        f'resource.labels.namespace_name="{layout.namespace}"',
        which,
    )
    query = quote("\n".join(lines), safe="")
    return f"{_CONSOLE}/logs/query;query={query}?project={quote(settings.gke_project)}"


def _label(key: str) -> str:
    """Cloud Logging writes the dots and slashes of a pod's label key as it finds them, but for dots: `_`."""
    return key.replace(".", "_")


def _first_pod(layout: Layout) -> str:
    """The pod of rank 0; another rank's has its slice and host in place of the zeros."""
    role = names.PATHWAYS_HEAD if layout.is_pathways else names.REPLICATED_JOB
    return f"{layout.jobset}-{role}-0-0"
