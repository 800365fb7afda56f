"""Progress of a run that writes no progress document: MaxText's, from the end of its first pod's log.

`maxtext_log` parses the lines. A log that cannot be read is not the job's fault.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ptapi.accelerators import resolve
from ptapi.load import parse_job
from ptapi.run_directory import Progress
from ptkube.errors import ApiError
from ptkube.objects import label
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.kube.audited_client import KubeReader
from ptoperator.observe import maxtext_log
from ptoperator.observe.state import Observed, is_started

logger = logging.getLogger(__name__)

TAIL_LINES = 400
"""A step is a line or two; compiling and checkpoints are many."""


def with_log(reader: KubeReader, state: Observed) -> Observed:
    """Add the progress from MaxText's log, if there is no progress document."""
    runtime = (state.job.get("spec") or {}).get("runtime") or {}
    if state.progress is not None or "maxtext" not in runtime or state.status.phase.is_terminal:
        return state
    first = next((pod for pod in state.current_pods if _is_log_source(pod) and is_started(pod)), None)
    return state if first is None else replace(state, progress=_read(reader, state, str(first["metadata"]["name"])))


def _read(reader: KubeReader, state: Observed, pod: str) -> Progress | None:
    spec = parse_job(state.job).spec
    chips = resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    per_pod = 1 if spec.pathways.enabled is True else chips.parallel_containers
    container = names.containers(per_pod)[0]
    try:
        lines = reader.pod_logs(pod, state.namespace, container=container, tail=TAIL_LINES, timestamps=True)
        return maxtext_log.read(lines, spec.training.steps or 0, chips.total_devices)
    except ApiError as error:
        logger.debug("the log of %s cannot be read: %s", pod, error)
        return None


def _is_log_source(pod: Manifest) -> bool:
    """Return True for process 0 or Pathways' head: the others log the same, or nothing."""
    role = label(pod, labels.REPLICATED_JOB_NAME)
    is_first = (label(pod, labels.JOB_INDEX), label(pod, labels.COMPLETION_INDEX)) == ("0", "0")
    return role == names.PATHWAYS_HEAD or (role == names.REPLICATED_JOB and is_first)
