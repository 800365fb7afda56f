"""The Job that copies a model of the hub into the bucket, before the job has chips: the trainer's image on a CPU node.

The copy lies beside the runs, in a directory of its commit that all jobs with that `output.uri` share. The command goes
on where an earlier pod stopped, and the Job's pauses between tries outlast half an hour's outage of the hub.
"""

from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.render.cpu_job import cpu_job
from ptoperator.render.layout import Layout
from ptoperator.render.pods import resources
from ptoperator.render.pods.pod import JOB_VOLUME

MODELS = ".models"
"""Directory of the copies, beside the runs."""
_TRIES = 11
_DEADLINE_S = 24 * 3600.0
"""A terabyte at 12 MB/s."""


def stage_job(layout: Layout) -> Manifest:
    """Return a Job whose pod copies the model and names the copy in its termination message."""
    spec = layout.job.spec
    revision = [] if spec.model.revision is None else [f"--revision={spec.model.revision}"]
    return cpu_job(
        layout,
        names.STAGE,
        names.stage(layout.name, layout.uid),
        labels.for_stage(layout.name, layout.uid),
        ["stage", spec.model.uri, f"{spec.output.uri.rstrip('/')}/{MODELS}", *revision, "--report"],
        default=resources.STAGE,
        tries=_TRIES,
        deadline_s=_DEADLINE_S,
        without=(JOB_VOLUME,),  # the job's file will name the copy
    )
