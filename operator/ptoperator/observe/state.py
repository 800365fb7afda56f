"""What is known of one job at one moment: a frozen value with named buckets.

It is gathered once per reconcile (`observe`); plan and status ask this value and never the API. Manifests are raw;
the questions that several places ask of them are answered here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from pydantic import ValidationError

from ptapi.conditions import ConditionType, Reason
from ptapi.run_directory import Heartbeat, Progress, Termination
from ptapi.status import PostTrainJobStatus
from ptkube.objects import condition, is_deleting, label, pod_phase, true_condition
from ptkube.resources import Manifest
from ptoperator.capacity.attempts import open_attempt
from ptoperator.capacity.cloud import Cloud
from ptoperator.capacity.fair_queue import NO_COMPETITION, CompetingJobs, options_of
from ptoperator.capacity.provisioning_state import NO_REQUEST, ProvisioningRequestState
from ptoperator.failures.pod_failures import PodFailure
from ptoperator.kube import labels
from ptoperator.kueue.workload import KueueState
from ptoperator.render.pod import pools_of

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Estimate:
    """What preflight's formula says. words: `peak 29.8 of 95.7 GiB per chip on v5p-128 (64 chips)`."""

    fits: bool
    message: str


@dataclass(frozen=True)
class TensorBoardObjects:
    """The objects of a shared TensorBoard, None where one does not exist. route: its Ingress or HTTPRoute."""

    deployment: Manifest | None = None
    service: Manifest | None = None
    route: Manifest | None = None


@dataclass(frozen=True)
class Observed:
    """One job and all that belongs to it.

    pods: every trainer pod that carries the job's name, also of earlier attempts and of an earlier job of that name.
    preflight_job, preflight_pods: what compiles the job before it has chips, while that is not decided.
    failures: why pods failed, also of pods that are gone, as long as the operator saw them. pull_errors: what
    registries said, by image.
    looked: when the API was last asked; `now` is later where only progress was read since.
    progress_since: when this operator first saw that progress.
    progress, termination, heartbeats: documents of the run directory, where it could be read (the last only of a run
    that is silent). rival: the job that owns the run directory, if it is another one. obstacle: what the API server
    said when it refused an object of this job.
    cloud: what the cloud says, where that matters now; None also where the operator knows no cloud. booking: what there
    is of the job's ProvisioningRequest, where the cloud was asked.
    place: what Kueue says, while the job waits in a queue. crowd: other jobs that want the same chips, while this one
    has none. estimate: of a job that skips preflight, while it was told nothing. bound_jobs: child Jobs of a JobSet
    that Kueue holds back, which still bind their pods to the node pools of an earlier admission.
    """

    now: datetime
    observed_at: datetime
    job: Manifest
    jobset: Manifest | None = None
    pods: tuple[Manifest, ...] = ()
    config_map_missing: bool = False
    preflight_job: Manifest | None = None
    preflight_pods: tuple[Manifest, ...] = ()
    failures: tuple[PodFailure, ...] = ()
    pull_errors: Mapping[str, str] = field(default_factory=dict)
    progress: Progress | None = None
    progress_since: datetime | None = None
    termination: Termination | None = None
    heartbeats: tuple[Heartbeat, ...] = ()
    run_directory_owner: str = ""
    rejection: str = ""
    cloud: Cloud | None = None
    provisioning: ProvisioningRequestState = NO_REQUEST
    kueue: KueueState | None = None
    bound_jobs: tuple[Manifest, ...] = ()
    competing: CompetingJobs = NO_COMPETITION
    estimate: Estimate | None = None

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.job["metadata"]["uid"])

    @property
    def is_on_cpu(self) -> bool:
        """Whether the manifest asks for virtual devices of a host instead of TPU chips."""
        accelerator = (self.job.get("spec") or {}).get("accelerator") or {}
        return str(accelerator.get("type")).startswith("cpu-")

    @property
    def generation(self) -> int:
        return int(self.job["metadata"].get("generation") or 0)

    @property
    def is_deleting(self) -> bool:
        return is_deleting(self.job)

    @property
    def has_finalizer(self) -> bool:
        """Whether the job may hold node pools, and stays until they are gone."""
        return labels.FINALIZER in (self.job["metadata"].get("finalizers") or [])

    @cached_property
    def status(self) -> PostTrainJobStatus:
        """What the operator wrote before; nothing, if somebody else made it unreadable."""
        try:
            return PostTrainJobStatus.model_validate(self.job.get("status") or {})
        except ValidationError:
            return PostTrainJobStatus()

    @property
    def is_preflight_open(self) -> bool:
        """Return True while preflight is undecided and no JobSet is made."""
        condition = self.status.condition(ConditionType.PREFLIGHTED)
        is_undecided = condition is None or condition.reason == Reason.PREFLIGHT_RUNNING
        return is_undecided and self.jobset is None and not self.status.phase.is_terminal

    @property
    def may_need_preflight(self) -> bool:
        """Return False where the manifest alone rules a preflight Job out, so that no read is spent on it."""
        spec = self.job.get("spec") or {}
        return bool(spec["preflight"] != "Skip" if spec.get("preflight") else not self.is_on_cpu)

    @property
    def capacity_option(self) -> str:
        """Return the type of the `spec.capacity` entry by which the current chips were obtained."""
        attempt, options = open_attempt(self.status.capacity), options_of(self.job)
        return str(options[attempt.entry]["type"]) if attempt and attempt.entry < len(options) else "existing"

    @property
    def is_jobset_ours(self) -> bool:
        """Whether the JobSet belongs to this very job, not to an earlier one of its name or to somebody else."""
        owners = self.jobset["metadata"].get("ownerReferences") or [] if self.jobset else []
        return any(owner.get("uid") == self.uid for owner in owners)

    @property
    def is_jobset_deleting(self) -> bool:
        return self.jobset is not None and is_deleting(self.jobset)

    @property
    def is_jobset_suspended(self) -> bool:
        return bool(self.jobset and self.jobset["spec"].get("suspend"))

    @property
    def jobset_queue(self) -> str | None:
        """The Kueue queue that the JobSet was made for."""
        return label(self.jobset, labels.KUEUE_QUEUE) or None if self.jobset else None

    @property
    def is_suspended_by_kueue(self) -> bool:
        """Whether Kueue keeps the JobSet from making pods."""
        return self.is_jobset_ours and self.is_jobset_suspended and self.jobset_queue is not None

    @cached_property
    def jobset_pools(self) -> tuple[str, ...]:
        """The node pools that its pods may run on; none: any."""
        if self.jobset is None or not self.is_jobset_ours:
            return ()
        templates = (each["template"]["spec"]["template"] for each in self.jobset["spec"]["replicatedJobs"])
        return tuple(dict.fromkeys(name for each in templates for name in pools_of(each["spec"])))

    @property
    def jobset_restarts(self) -> int:
        """Restarts under this JobSet; those of an earlier job's are not ours."""
        status = (self.jobset.get("status") or {}) if self.jobset and self.is_jobset_ours else {}
        return int(status.get("restarts") or 0)

    @property
    def restarts_before(self) -> int:
        """Restarts under JobSets before this one."""
        annotations = (self.jobset["metadata"].get("annotations") or {}) if self.jobset and self.is_jobset_ours else {}
        text = str(annotations.get(labels.RESTARTS_BEFORE, "0"))
        return int(text) if text.isdigit() else 0

    @property
    def restarts(self) -> int:
        """Restarts under all JobSets so far, those included that status has not counted yet."""
        return self.restarts_before + self.jobset_restarts

    def jobset_condition(self, kind: str) -> Manifest | None:
        """A condition of the JobSet that is True."""
        return true_condition(self.jobset, kind) if self.jobset else None

    @cached_property
    def unfinished_pods(self) -> tuple[Manifest, ...]:
        """Pods that may still write the run directory, whichever attempt or job they are of."""
        return tuple(pod for pod in self.pods if pod_phase(pod) not in _ENDED)

    @cached_property
    def current_pods(self) -> tuple[Manifest, ...]:
        """Pods of this job and of the JobSet's current attempt."""
        return tuple(pod for pod in self.pods if self._is_current(pod))

    def _is_current(self, pod: Manifest) -> bool:
        attempt = label(pod, labels.RESTART_ATTEMPT) or str(self.jobset_restarts)
        return labels.is_of_job(pod, self.uid) and attempt == str(self.jobset_restarts) and not is_deleting(pod)


def is_scheduled(pod: Manifest) -> bool:
    return bool((pod.get("spec") or {}).get("nodeName"))


def is_started(pod: Manifest) -> bool:
    """Whether its containers run, or ran."""
    return pod_phase(pod) in ("Running", *_ENDED)


def started_at(pod: Manifest) -> str:
    """When the kubelet took the pod; empty before."""
    return str((pod.get("status") or {}).get("startTime") or "")


def why_unscheduled(pod: Manifest) -> str:
    """The scheduler's words."""
    return str((condition(pod, "PodScheduled") or {}).get("message") or "")
