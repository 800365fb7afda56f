"""Links of a job: the run directory, logs, TensorBoard, the cloud console. Pure.

Logs outlive their pods in Cloud Logging, so a query finds what `kubectl logs` no longer can. The console's addresses
are known from Google's documentation only.
"""

from urllib.parse import quote

from ptapi.run_directory import run_uri
from ptapi.status import Links
from ptoperator.kube import labels, names
from ptoperator.render import Layout
from ptoperator.render.tensorboard import tensorboard_host
from ptoperator.settings import Settings

_CONSOLE = "https://console.cloud.google.com"


def links(layout: Layout) -> Links:
    """Return the links."""
    run = run_uri(layout.job.spec.output.uri, layout.name)
    local = run.removeprefix("file://")
    spec = layout.job.spec
    has_curves = spec.tensorboard.enabled and spec.runtime.function is None
    command = f"tensorboard --logdir {local}/tensorboard" if has_curves else ""
    if layout.has_tensorboard_server:
        command = f"ptctl workload tensorboard {layout.name} -n {layout.namespace}"
        host = tensorboard_host(layout)
        command = f"https://{host} (while it is in use: {command})" if host else command
    return Links(
        run=run,
        logs=f"ptctl workload logs {layout.name} -n {layout.namespace}",
        tensorboard=command,
        **_cloud_links(layout, layout.settings),
    )


def rank_logs_link(link: str, layout: Layout, rank: int) -> str:
    """Return the query for one rank's logs, from rank 0's (`links.cloudLogsOfRank`).

    A link per rank of a job of thousands would not fit into its status. Raises ValueError for a rank that the job does
    not have.
    """
    if not 0 <= rank < _ranks(layout):
        raise ValueError(f"rank {rank}: the job has rank{'s 0 to' if _ranks(layout) > 1 else ''} {_ranks(layout) - 1}")
    pod, process = divmod(rank, layout.processes_per_host)
    lines = _pod_line(layout, *divmod(pod, layout.hosts))
    if layout.processes_per_host > 1:
        lines += f'\nresource.labels.container_name="{names.containers(layout.processes_per_host)[process]}"'
    return link.replace(quote(_pod_line(layout, 0, 0), safe=""), quote(lines, safe=""))


def _ranks(layout: Layout) -> int:
    """Return the number of processes with the trainer's logs: under Pathways its head alone."""
    return 1 if layout.is_pathways else layout.processes


def _cloud_links(layout: Layout, settings: Settings) -> dict[str, str]:
    if not settings.has_gke:
        return {}
    cluster = f"{settings.gke_location}/{settings.gke_cluster}"
    project = f"project={quote(settings.gke_project)}"
    return {
        "cloud_logs": _logs(layout, settings, f'labels."k8s-pod/{_label(labels.JOB)}"="{layout.name}"'),
        "cloud_logs_of_rank": _logs(layout, settings, _pod_line(layout, 0, 0)),
        "console": f"{_CONSOLE}/kubernetes/clusters/details/{cluster}/details?{project}",
    }


def _logs(layout: Layout, settings: Settings, which: str) -> str:
    """Return a query of Cloud Logging as a URL."""
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
    """Return a pod's label key as Cloud Logging writes it: with `_` for every dot."""
    return key.replace(".", "_")


def _pod_line(layout: Layout, slice_index: int, host: int) -> str:
    """Return the query's line for the pods of one host, of all attempts."""
    role = names.PATHWAYS_HEAD if layout.is_pathways else names.REPLICATED_JOB
    return f'resource.labels.pod_name=~"^{layout.jobset}-{role}-{slice_index}-{host}-"'
