"""Classify pod failures. Pure, table-driven.

A pod shows its conditions (disruption), its containers' exit codes, and the trainer's termination message, or in its
place the end of the log (`log_excerpt`). Its node may know better why it failed (`node_failures`). The first failed pod
is the cause; the others lost their peer. Left out: the errors of GKE's operations (`capacity.cloud_errors`), and the
JobSet's own message (`status.restart_counts`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ptapi.failures import EXIT_CLASSES, REACTIONS, ExitCode, FailureClass
from ptapi.run_directory import Termination
from ptkube.objects import condition, container_statuses, is_deleting, label, true_condition
from ptkube.resources import Manifest
from ptoperator.failures import exceeded_resources
from ptoperator.failures.log_excerpt import is_stack_dump, known_line, log_tail, most_relevant_line
from ptoperator.failures.node_failures import NodeFailureHint
from ptoperator.kube import labels, names

_DISRUPTIONS: dict[str, FailureClass] = {
    "PreemptionByScheduler": FailureClass.PREEMPTED,
    "EvictionByEvictionAPI": FailureClass.MAINTENANCE,
    "DeletionByTaintManager": FailureClass.HOST_ERROR,
    "DeletionByPodGC": FailureClass.HOST_ERROR,
    "TerminationByKubelet": FailureClass.PREEMPTED,
}
"""Reasons of a pod's DisruptionTarget condition. The kubelet ends pods when its node is shut down, as a spot VM is."""

IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "ImageInspectError",
        "SignatureValidationFailed",
    }
)
CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_BY_THE_MACHINE = (
    FailureClass.PREEMPTED,
    FailureClass.MAINTENANCE,
    FailureClass.HOST_ERROR,
    FailureClass.HANG,
    FailureClass.UNKNOWN,
)
"""Classes that a broken or leaving node explains better; a wrong spec stays one wherever it ran."""


@dataclass(frozen=True)
class PodFailure:
    """Why a pod failed.

    attempt: the JobSet's restart count when the pod was created. time: RFC 3339. log: the end of its log, if the
    trainer did not report. is_settled: Kubernetes itself named the reason, so the node need not be read. is_beside:
    the pod was a sampler's or a service's, which its Job makes anew.
    """

    kind: FailureClass
    message: str
    pod: str
    attempt: int = 0
    exit_code: int | None = None
    time: str = ""
    node: str = ""
    log: str = ""
    is_settled: bool = False
    is_beside: bool = False

    @property
    def needs_node_check(self) -> bool:
        """Return True if its node may know better."""
        return bool(self.node) and not self.is_settled and self.kind in _BY_THE_MACHINE

    def with_node_hint(self, hint: NodeFailureHint | None) -> PodFailure:
        """Return the failure as its node explains it; the node need not be read again."""
        if hint is None or not self.needs_node_check:
            return replace(self, is_settled=True)
        return replace(self, kind=hint.kind, message=f"{hint.message}; {self.message}", is_settled=True)

    @property
    def is_charged(self) -> bool:
        """Return True if it counts against `runPolicy.maxRestarts`."""
        return REACTIONS[self.kind].charged


@dataclass(frozen=True)
class StartFailure:
    """Why a pod's container cannot start. since: when the pod got its node."""

    kind: FailureClass
    message: str
    pod: str
    since: str = ""


def pod_failure(pod: Manifest) -> PodFailure | None:
    """Return why this pod failed, or None. An evicted one may vanish before its node reports the end."""
    status = pod.get("status") or {}
    disruption = true_condition(pod, "DisruptionTarget")
    failed = [each for each in map(_terminated, container_statuses(pod)) if each and each["exitCode"] != 0]
    is_evicted = disruption is not None and is_deleting(pod) and status.get("phase") != "Succeeded"
    if status.get("phase") != "Failed" and not failed and not is_evicted:
        return None
    first = min(failed, key=lambda each: each.get("finishedAt") or "", default=None)
    if disruption is not None:
        return _disrupted(pod, disruption, first)
    if first is None:
        return _failure(pod, FailureClass.HOST_ERROR, _pod_message(status))
    return _exited(pod, first)


def pull_errors(pod: Manifest) -> dict[str, str]:
    """Return the registry's error by image.

    The kubelet shows it briefly; between two attempts, some versions only show that they wait.
    """
    states = ((each, (each.get("state") or {}).get("waiting") or {}) for each in container_statuses(pod))
    return {
        str(container.get("image")): str(waiting["message"])
        for container, waiting in states
        if waiting.get("reason") == "ErrImagePull" and waiting.get("message")
    }


def start_failure(pod: Manifest, known_errors: Mapping[str, str] | None = None) -> StartFailure | None:
    """Return why a container of this pod cannot start, or None. known_errors: earlier `pull_errors`."""
    for container in container_statuses(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        kind = _start_class(reason)
        if kind is None:
            continue
        scheduled = condition(pod, "PodScheduled") or {}
        message = waiting.get("message") or f"image {container.get('image', '')}"
        earlier = (known_errors or {}).get(str(container.get("image")), "")
        if reason == "ImagePullBackOff" and "ErrImagePull" not in message and earlier:
            message = f"{message}: ErrImagePull: {earlier}"
        return StartFailure(kind, f"{reason}: {message}", _name(pod), str(scheduled.get("lastTransitionTime") or ""))
    return None


def cause(failures: Iterable[PodFailure], attempt: int, *, charged: bool | None = None) -> PodFailure | None:
    """Return the failure that ended an attempt: the earliest one with a known class.

    `charged` restricts it to what the JobSet's rule says: a preempted host makes its peers fail with errors of their
    own. A failure with a known class goes before an unknown one, whatever the rule.
    """
    of_attempt = [each for each in failures if each.attempt == attempt]
    fitting = [each for each in of_attempt if charged is None or each.is_charged == charged] or of_attempt
    fitting = [each for each in fitting if not each.is_beside] or fitting  # most of theirs end no attempt
    explained = _explained(fitting) or _explained(of_attempt) or fitting
    return min(explained, key=lambda each: (each.time, each.pod), default=None)


def termination(text: str) -> Termination | None:
    """Parse the trainer's termination message; None if it is none."""
    try:
        return Termination.model_validate(json.loads(text))
    except ValueError:  # no JSON, or JSON of something else: pydantic's ValidationError is one
        return None


def _explained(failures: list[PodFailure]) -> list[PodFailure]:
    return [each for each in failures if each.kind is not FailureClass.UNKNOWN]


def _disrupted(pod: Manifest, disruption: Manifest, exited: Manifest | None) -> PodFailure:
    reason, message = str(disruption.get("reason") or ""), str(disruption.get("message") or "")
    kind = _DISRUPTIONS.get(reason, FailureClass.PREEMPTED)
    if reason == "TerminationByKubelet" and "low on resource" in message:
        kind = FailureClass.OUT_OF_MEMORY_HOST
    code = exited["exitCode"] if exited else None
    failure = _failure(pod, kind, f"{reason}: {message}" if message else reason, code, exited)
    # The disruption comes first; peers that save and exit meanwhile only follow it.
    time = str(disruption.get("lastTransitionTime") or failure.time)
    is_settled = reason == "PreemptionByScheduler" or kind is FailureClass.OUT_OF_MEMORY_HOST
    return replace(failure, time=time, is_settled=is_settled)


def _exited(pod: Manifest, terminated: Manifest) -> PodFailure:
    code, text = int(terminated["exitCode"]), str(terminated.get("message") or "")
    report = termination(text)
    if terminated.get("reason") == "OOMKilled":
        message = exceeded_resources.out_of_memory(pod, terminated["container"])
        failure = _failure(pod, FailureClass.OUT_OF_MEMORY_HOST, message, code, terminated)
        return replace(failure, log="" if report else log_tail(text))
    over_storage = exceeded_resources.evicted(pod)
    if over_storage:
        return replace(_failure(pod, FailureClass.UNKNOWN, over_storage, code, terminated), is_settled=True)
    if label(pod, labels.REPLICATED_JOB_NAME) == names.PATHWAYS_WORKER:  # Google's server, whose exit codes are others
        return _failure(pod, FailureClass.UNKNOWN, f"a Pathways worker ended with exit code {code}", code, terminated)
    if labels.is_of_service(pod):  # another program, which neither ends nor reports as ours
        return _failure_from_log(pod, FailureClass.UNKNOWN, code, terminated)
    kind = EXIT_CLASSES.get(code, FailureClass.UNKNOWN)
    if report is not None:
        kind = _class(report.failure_class) or kind
        return _failure(pod, kind, report.message or _exit_message(code, terminated), code, terminated)
    return _failure_from_log(pod, kind, code, terminated)


def _failure_from_log(pod: Manifest, kind: FailureClass, code: int, terminated: Manifest) -> PodFailure:
    """Return the failure of a program that did not report, by the end of its log."""
    tail = str(terminated.get("message") or "")
    if code == ExitCode.UNKNOWN and is_stack_dump(tail):
        message = "Python's GIL was held for too long; the log ends with the stacks of all threads"
        return replace(_failure(pod, FailureClass.HANG, message, code, terminated), log=log_tail(tail))
    known = known_line(tail) if kind is FailureClass.UNKNOWN else None
    kind, line = known or (kind, most_relevant_line(tail))
    exited = _exit_message(code, terminated)
    message = f"{exited}: {line}" if line else exited
    return replace(_failure(pod, kind, message, code, terminated), log=log_tail(tail))


def _exit_message(code: int, terminated: Manifest) -> str:
    name = terminated["container"]
    who = "the trainer" if name.partition("-")[0] == names.CONTAINER else f"container {name}"
    if 128 < code < 160:
        return f"killed by signal {code - 128}" if who == "the trainer" else f"{who} was killed by signal {code - 128}"
    return f"{who} ended with exit code {code}"


def _failure(
    pod: Manifest, kind: FailureClass, message: str, code: int | None = None, terminated: Manifest | None = None
) -> PodFailure:
    meta = pod["metadata"]
    attempt = label(pod, labels.RESTART_ATTEMPT)
    time = (terminated or {}).get("finishedAt") or meta.get("deletionTimestamp") or ""
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    number = int(attempt) if attempt.isdigit() else 0
    failure = PodFailure(kind, message, _name(pod), number, code, str(time), node)
    return replace(failure, is_beside=labels.is_beside(pod))


def _pod_message(status: Manifest) -> str:
    """Return the kubelet's message: `UnexpectedAdmissionError: Allocate failed due to no healthy devices present`."""
    message = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
    return message or "the pod failed without a message"


def _start_class(reason: str) -> FailureClass | None:
    if reason in IMAGE_REASONS:
        return FailureClass.IMAGE_PULL
    return FailureClass.CONFIG_ERROR if reason in CONFIG_REASONS else None


def _class(text: str) -> FailureClass | None:
    return FailureClass(text) if text in set(FailureClass) else None


def _name(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])


def _terminated(container: Manifest) -> Manifest | None:
    """Return how a container ended, with its name; None if it did not."""
    terminated: Manifest | None = (container.get("state") or {}).get("terminated")
    return {**terminated, "container": str(container.get("name"))} if terminated else None
