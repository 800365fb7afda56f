"""Progress of a run that writes no progress document: MaxText's, from the end of its first pod's log.

`maxtext_log` parses the lines. A log that cannot be read is not the job's fault.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ptapi.run_directory import Progress
from ptkube.errors import ApiError
from ptkube.objects import label
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.kube.audited_client import KubeReader
from ptoperator.observe import maxtext_log
from ptoperator.observe.state import Observed, is_started
from ptoperator.render import Layout

logger = logging.getLogger(__name__)

TAIL_LINES = 400
"""A step is a line or two; compiling and checkpoints are many."""


def with_log(reader: KubeReader, state: Observed) -> Observed:
    """Add the progress from MaxText's log, if there is no progress document."""
    layout = state.layout
    if state.progress is not None or layout is None or state.status.phase.is_terminal:
        return state
    if layout.job.spec.runtime.maxtext is None:
        return state
    first = next((pod for pod in state.current_pods if _is_log_source(pod) and is_started(pod)), None)
    return state if first is None else replace(state, progress=_read(reader, layout, str(first["metadata"]["name"])))


def _read(reader: KubeReader, layout: Layout, pod: str) -> Progress | None:
    container = names.containers(1 if layout.is_pathways else layout.processes_per_host)[0]
    try:
        lines = reader.pod_logs(pod, layout.namespace, container=container, tail=TAIL_LINES, timestamps=True)
        return maxtext_log.read(lines, layout.job.spec.training.steps or 0, layout.accelerator.total_devices)
    except ApiError as error:
        logger.debug("the log of %s cannot be read: %s", pod, error)
        return None


def _is_log_source(pod: Manifest) -> bool:
    """Return True for process 0 or Pathways' head: the others log the same, or nothing."""
    role = label(pod, labels.REPLICATED_JOB_NAME)
    is_first = (label(pod, labels.JOB_INDEX), label(pod, labels.COMPLETION_INDEX)) == ("0", "0")
    return role == names.PATHWAYS_HEAD or (role == names.REPLICATED_JOB and is_first)
