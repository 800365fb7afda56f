"""Progress from the end of the first pod's log, of a run whose progress document the operator cannot read.

MaxText writes none, so its own lines are parsed (`maxtext_log`). Our trainer, with a run directory on a
PersistentVolumeClaim, repeats its document in the log. A log that cannot be read is not the job's fault.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace

from ptapi.run_directory import Progress
from ptapi.text.terminal import PROGRESS_LINE
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
    """Add the progress from the log, if there is no progress document and the log has it."""
    layout = state.layout
    if state.run.progress is not None or layout is None or state.status.phase.is_terminal:
        return state
    if layout.job.spec.runtime.maxtext is None and not layout.is_progress_in_log:
        return state
    first = next((pod for pod in state.current_pods if _is_log_source(pod) and is_started(pod)), None)
    if first is None:
        return state
    progress = _read(reader, layout, str(first["metadata"]["name"]))
    return replace(state, run=replace(state.run, progress=progress))


def newest(lines: Iterable[str]) -> Progress | None:
    """Return the last document that our trainer repeated in these lines, or None. Each line begins with its time."""
    texts = (line.partition(" ")[2] for line in lines)
    documents = [text.removeprefix(PROGRESS_LINE) for text in texts if text.startswith(PROGRESS_LINE)]
    try:
        return Progress.model_validate_json(documents[-1]) if documents else None
    except ValueError:
        return None  # a line that a full disk or a crash cut short


def _read(reader: KubeReader, layout: Layout, pod: str) -> Progress | None:
    container = names.containers(1 if layout.is_pathways else layout.processes_per_host)[0]
    try:
        lines = reader.pod_logs(pod, layout.namespace, container=container, tail=TAIL_LINES, timestamps=True)
        if layout.is_progress_in_log:
            return newest(lines)
        return maxtext_log.read(lines, layout.job.spec.training.steps or 0, layout.accelerator.total_devices)
    except ApiError as error:
        logger.debug("the log of %s cannot be read: %s", pod, error)
        return None


def _is_log_source(pod: Manifest) -> bool:
    """Return True for process 0 or Pathways' head: the others log the same, or nothing."""
    role = label(pod, labels.REPLICATED_JOB_NAME)
    is_first = (label(pod, labels.JOB_INDEX), label(pod, labels.COMPLETION_INDEX)) == ("0", "0")
    return role == names.PATHWAYS_HEAD or (role == names.REPLICATED_JOB and is_first)
