"""The observed state of one job at one moment: a frozen value with named parts.

It is read once per reconcile (`observer`); plan and status use this value and never the API. Manifests are raw;
questions that several places ask of them are answered here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from ptapi.conditions import ConditionType, Reason
from ptapi.status import PostTrainJobStatus
from ptkube import timestamps
from ptkube.objects import condition, is_deleting, label, pod_phase, true_condition
from ptkube.resources import Manifest
from ptoperator.capacity.attempts import open_attempt
from ptoperator.capacity.cloud import Cloud
from ptoperator.capacity.provisioning_request_state import NO_REQUEST, ProvisioningRequestState
from ptoperator.capacity.waiting_line.fair_order import NO_COMPETITION, CompetingJobs
from ptoperator.failures.pod_failures import PodFailure, StartFailure, start_failure
from ptoperator.job import JobObject
from ptoperator.kube import labels
from ptoperator.kueue.workload import KueueState
from ptoperator.observe.observed_parts import (
    PreflightObjects,
    RunDocuments,
    SandboxClaims,
    ServerObjects,
    StagingObjects,
    TensorBoardObjects,
)
from ptoperator.render import Layout
from ptoperator.render.pods.pod import pools_of

_ENDED = ("Succeeded", "Failed")
USUAL_CREATION_S = 2.0
"""Controllers usually create a JobSet's pods within this time."""


@dataclass(frozen=True)
class Observed:
    """One job and all that belongs to it.

    layout: how its pods are laid out; None if this operator refuses its spec.
    pods: every trainer pod with the job's name, also of earlier attempts and of an earlier job of that name.
    failures: why pods failed, also of deleted pods, as long as the operator saw them. pull_errors: the registries'
    errors by image. creation_failure: why missing pods are not created, or a pod with a node does not start.
    start_log: what the init containers of a pod printed that could not start for too long.
    observed_at: when the API was last read; `now` is later if only progress was read since. rejection: the API server's
    message when it rejected an object of this job.

    cloud: the cloud's snapshot, if it matters now; None also if the operator knows no cloud. provisioning: the state of
    the job's ProvisioningRequest, if the cloud was read. kueue: Kueue's state, while the job waits in a queue.
    competing: other jobs that want the same chips, while this one has none. bound_jobs: child Jobs of a JobSet that
    Kueue suspends, which still bind their pods to the node pools of an earlier admission. ended_jobs: those of samplers
    and services that are done before the trainer is. tensorboard: its shared
    TensorBoard, if it asks for one and all was read. server: what serves the model of a job that succeeded. workload:
    in Kueue, where a boost is kept. sandboxes: the claims of a job that wants some, if all was read. is_scaled_up:
    whether a cluster autoscaler has just begun to make nodes for it.
    """

    now: datetime
    observed_at: datetime
    job: JobObject
    layout: Layout | None
    jobset: Manifest | None = None
    pods: tuple[Manifest, ...] = ()
    config_map_missing: bool = False
    staging: StagingObjects = field(default_factory=StagingObjects)
    preflight: PreflightObjects = field(default_factory=PreflightObjects)
    failures: tuple[PodFailure, ...] = ()
    pull_errors: Mapping[str, str] = field(default_factory=dict)
    creation_failure: StartFailure | None = None
    start_log: str = ""
    run: RunDocuments = field(default_factory=RunDocuments)
    rejection: str = ""
    cloud: Cloud | None = None
    provisioning: ProvisioningRequestState = NO_REQUEST
    kueue: KueueState | None = None
    bound_jobs: tuple[Manifest, ...] = ()
    ended_jobs: tuple[Manifest, ...] = ()
    competing: CompetingJobs = NO_COMPETITION
    tensorboard: TensorBoardObjects | None = None
    server: ServerObjects | None = None
    workload: Manifest | None = None
    sandboxes: SandboxClaims | None = None
    is_scaled_up: bool = False

    @property
    def status(self) -> PostTrainJobStatus:
        """Return the status as the operator last wrote it."""
        return self.job.status

    @property
    def is_staging_open(self) -> bool:
        """Return True while the model is to be staged and no JobSet is made."""
        is_wanted = self.layout is not None and self.layout.is_staged and not self.status.staged_model
        return is_wanted and self.jobset is None and not self.status.phase.is_terminal

    @property
    def is_preflight_open(self) -> bool:
        """Return True while preflight is undecided and no JobSet is made."""
        condition = self.status.condition(ConditionType.PREFLIGHTED)
        is_undecided = condition is None or condition.reason == Reason.PREFLIGHT_RUNNING
        return is_undecided and self.jobset is None and not self.status.phase.is_terminal

    @property
    def may_need_preflight(self) -> bool:
        """Return False where the spec alone rules a preflight Job out, so that no read is spent on it."""
        return self.layout is not None and self.layout.preflight != "Skip"

    @property
    def capacity_option(self) -> str:
        """Return the type of the `spec.capacity` entry by which the current chips were obtained."""
        attempt, options = open_attempt(self.status.capacity), self.job.capacity
        return options[attempt.entry].type if attempt and attempt.entry < len(options) else "existing"

    @property
    def may_be_scaled_up(self) -> bool:
        """Return True for a job whose turn at existing nodes came, and which does not have them all."""
        attempt = open_attempt(self.status.capacity)
        if attempt is None or attempt.granted is None or attempt.ready or attempt.scaling_up:
            return False
        return self.capacity_option == "existing"

    @property
    def is_jobset_ours(self) -> bool:
        """Return True if this job owns the JobSet, not an earlier job of its name or another owner."""
        owners = self.jobset["metadata"].get("ownerReferences") or [] if self.jobset else []
        return any(owner.get("uid") == self.job.uid for owner in owners)

    @property
    def is_jobset_deleting(self) -> bool:
        """Return True if the JobSet is being deleted."""
        return self.jobset is not None and is_deleting(self.jobset)

    @property
    def is_jobset_suspended(self) -> bool:
        """Return True if the JobSet is suspended."""
        return bool(self.jobset and self.jobset["spec"].get("suspend"))

    @property
    def jobset_queue(self) -> str | None:
        """Return the Kueue queue that the JobSet was created for, or None."""
        return label(self.jobset, labels.KUEUE_QUEUE) or None if self.jobset else None

    @property
    def foreign_manager(self) -> str:
        """Return who runs the JobSet instead of this cluster's JobSet controller; empty for the usual one."""
        manager = str(self.jobset["spec"].get("managedBy") or "") if self.jobset and self.is_jobset_ours else ""
        return "" if manager == labels.JOBSET_CONTROLLER else manager

    @property
    def is_suspended_by_kueue(self) -> bool:
        """Return True if Kueue keeps the JobSet from creating pods."""
        return self.is_jobset_ours and self.is_jobset_suspended and self.jobset_queue is not None

    @cached_property
    def jobset_pools(self) -> tuple[str, ...]:
        """Return the node pools that its pods may run on; none: any."""
        if self.jobset is None or not self.is_jobset_ours:
            return ()
        templates = (each["template"]["spec"]["template"] for each in self.jobset["spec"]["replicatedJobs"])
        return tuple(dict.fromkeys(name for each in templates for name in pools_of(each["spec"])))

    @property
    def jobset_restarts(self) -> int:
        """Return the restarts under this JobSet; 0 for an earlier job's."""
        status = (self.jobset.get("status") or {}) if self.jobset and self.is_jobset_ours else {}
        return int(status.get("restarts") or 0)

    @property
    def restarts_before(self) -> int:
        """Return the restarts under JobSets before this one."""
        annotations = (self.jobset["metadata"].get("annotations") or {}) if self.jobset and self.is_jobset_ours else {}
        text = str(annotations.get(labels.RESTARTS_BEFORE, "0"))
        return int(text) if text.isdigit() else 0

    @property
    def restarts(self) -> int:
        """Return the restarts under all JobSets, including those that status has not counted yet."""
        return self.restarts_before + self.jobset_restarts

    @property
    def ended_roles(self) -> frozenset[str]:
        """Return the roles beside the trainer's of which a Job is done, while the JobSet is not."""
        is_over = self.jobset_condition("Completed") or self.jobset_condition("Failed")
        if not self.is_jobset_ours or self.is_jobset_deleting or is_over or self.layout is None or self.jobset is None:
            return frozenset()
        rows = (self.jobset.get("status") or {}).get("replicatedJobsStatus") or []
        ended = {row["name"] for row in rows if int(row.get("succeeded") or 0)}
        return frozenset(role.name for role in self.layout.beside if role.name in ended)

    @property
    def has_missing_pods(self) -> bool:
        """Return True if the JobSet should have created more pods than there are."""
        if not self.is_jobset_ours or self.is_jobset_deleting or self.is_jobset_suspended or self.layout is None:
            return False
        is_over = self.jobset_condition("Completed") or self.jobset_condition("Failed")
        return not is_over and len(self.current_pods) < self.layout.pods

    @property
    def is_jobset_young(self) -> bool:
        """Return True while the JobSet's pods may still be missing without a reason."""
        created = str(self.jobset["metadata"].get("creationTimestamp") or "") if self.jobset else ""
        return (timestamps.seconds_since(created, self.now) or 0.0) < USUAL_CREATION_S

    def jobset_condition(self, kind: str) -> Manifest | None:
        """Return a condition of the JobSet if it is True, else None."""
        return true_condition(self.jobset, kind) if self.jobset else None

    def start_failures(self) -> Iterator[StartFailure]:
        """Return why pods are not created, and the containers that cannot start."""
        if self.creation_failure is not None:
            yield self.creation_failure
        failures = (start_failure(pod, self.pull_errors) for pod in self.current_pods)
        yield from (failure for failure in failures if failure is not None)

    def final_start_failure(self, limit_s: float) -> StartFailure | None:
        """Return why a pod has been unable to start for too long, or None."""
        ages = ((failure, timestamps.seconds_since(failure.since, self.now)) for failure in self.start_failures())
        return next((failure for failure, age in ages if age is not None and age >= limit_s), None)

    @cached_property
    def unfinished_pods(self) -> tuple[Manifest, ...]:
        """Return the pods that may still write the run directory, of any attempt or job."""
        return tuple(pod for pod in self.pods if pod_phase(pod) not in _ENDED)

    @cached_property
    def current_pods(self) -> tuple[Manifest, ...]:
        """Return the pods of this job and of the JobSet's current attempt."""
        return tuple(pod for pod in self.pods if self._is_current(pod))

    @property
    def trainer_pods(self) -> tuple[Manifest, ...]:
        """Return the current pods without those of samplers and services."""
        return tuple(pod for pod in self.current_pods if not labels.is_beside(pod))

    def _is_current(self, pod: Manifest) -> bool:
        attempt = label(pod, labels.RESTART_ATTEMPT) or str(self.jobset_restarts)
        if labels.is_beside(pod) and pod_phase(pod) in _ENDED:  # its Job makes it anew
            return False
        if self.layout is not None and self.layout.is_supervised and pod_phase(pod) == "Failed":
            return False
        return labels.is_of_job(pod, self.job.uid) and attempt == str(self.jobset_restarts) and not is_deleting(pod)


def is_scheduled(pod: Manifest) -> bool:
    """Return True if the pod has a node."""
    return bool((pod.get("spec") or {}).get("nodeName"))


def is_started(pod: Manifest) -> bool:
    """Return True if the pod's containers run, or ran."""
    return pod_phase(pod) in ("Running", *_ENDED)


def started_at(pod: Manifest) -> str:
    """Return when the kubelet accepted the pod; empty before."""
    return str((pod.get("status") or {}).get("startTime") or "")


def why_unscheduled(pod: Manifest) -> str:
    """Return the scheduler's message."""
    return str((condition(pod, "PodScheduled") or {}).get("message") or "")
