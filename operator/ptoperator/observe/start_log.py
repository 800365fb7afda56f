"""What the init containers of a pod printed whose trainer cannot start: the log goes with the pod when the job ends.

Read once, when that is decided. A container that failed by itself leaves its log in the pod's status instead
(`failures.pod_failures`). A log that cannot be read is not the job's fault.
"""

import logging
from dataclasses import replace

from ptkube.errors import ApiError
from ptkube.resources import Manifest
from ptoperator.failures.log_excerpt import log_tail
from ptoperator.kube.audited_client import KubeReader
from ptoperator.observe.state import Observed
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)

_TAIL_LINES = 50


def with_start_log(reader: KubeReader, state: Observed, settings: Settings) -> Observed:
    """Add that log, if a pod could not start for so long that the job ends."""
    failure = state.final_start_failure(settings.start_failure_seconds)
    pod = next((pod for pod in state.current_pods if failure and pod["metadata"]["name"] == failure.pod), None)
    if pod is None:
        return state
    return replace(state, start_log=log_tail("\n".join(_printed(reader, pod))))


def _printed(reader: KubeReader, pod: Manifest) -> list[str]:
    lines: list[str] = []
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    try:
        for container in _ended(pod):
            lines += reader.pod_logs(name, namespace, container=container, tail=_TAIL_LINES, timestamps=False)
    except ApiError as error:
        logger.debug("a log of %s cannot be read: %s", name, error)
    return lines


def _ended(pod: Manifest) -> list[str]:
    """Return the init containers that are done."""
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or []
    return [each["name"] for each in statuses if (each.get("state") or {}).get("terminated")]
