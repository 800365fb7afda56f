"""The Job that checks whether a job fits its chips, before it has any: the trainer's image on a CPU node.

It mounts what the trainer mounts, because the model's config and the run directory may be there. A verdict, good or
bad, ends it; a crash is retried once. The command limits the compile itself.
"""

from ptapi.run_directory import JOB_FILE
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.render.cpu_job import cpu_job
from ptoperator.render.layout import Layout
from ptoperator.render.pods import resources

_TRIES = 2


def preflight_job(layout: Layout) -> Manifest:
    """Return a Job whose pod compiles and reports in its termination message."""
    return cpu_job(
        layout,
        names.PREFLIGHT,
        names.preflight(layout.name, layout.uid),
        labels.for_preflight(layout.name, layout.uid),
        ["preflight", JOB_FILE, "--report", f"--time-limit={layout.settings.preflight_seconds:.0f}"],
        default=resources.PREFLIGHT,
        tries=_TRIES,
        deadline_s=deadline_s(layout),
    )


def deadline_s(layout: Layout) -> float:
    """Return how long it may take from its creation: two compiles, and time for a node and the image."""
    return layout.settings.preflight_seconds * _TRIES + layout.settings.start_failure_seconds
