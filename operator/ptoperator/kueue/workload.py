"""Read the state of a queued JobSet from Kueue, and describe it.

Nothing is written here; `admission_answer` has the answer to the admission check. Kueue creates a Workload for every
JobSet with a queue, decides on it, and gives the reason in its conditions; its visibility API counts the jobs ahead.
Without Kueue or its visibility API, less is known and nothing breaks. Needs Kueue 0.15 or newer
(`kueue.x-k8s.io/v1beta2`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ptapi.accelerators import Slice
from ptapi.accelerators.roles import Role
from ptkube import objects
from ptkube.errors import ApiError, Forbidden, NotFound
from ptkube.resources import ADMISSION_CHECKS, LOCAL_QUEUES, VISIBLE_QUEUES, WORKLOADS, Manifest
from ptoperator.kube import labels
from ptoperator.kube.audited_client import KubeReader
from ptoperator.kube.rbac import PENDING

_WHY_LIMIT = 600
_TOO_LATE = "PodsReadyTimeout"
"""Reason of an eviction by Kueue's `waitForPodsReady`, which since 0.19 is on unless it is switched off."""
_LATE = {
    frozenset({"WaitForStart"}): "not all pods ran within Kueue's waitForPodsReady.timeout: nodes or images came later",
    frozenset({"WaitForRecovery"}): "a pod that was lost did not come back within Kueue's "
    "waitForPodsReady.recoveryTimeout",
}
"""What was late, by the causes that the Workload's statistics count. They are not told apart once both are there."""
_LATE_EITHER = (
    "pods did not run within Kueue's waitForPodsReady.timeout, or did not come back within its recoveryTimeout"
)


@dataclass(frozen=True)
class KueueState:
    """A job's state in its queue. cluster_queue: empty if unknown; ahead: None if nobody counts.

    exists: whether the LocalQueue exists; has_kueue: whether the cluster knows LocalQueues at all. check: the name of
    the admission check by which Kueue asks for the job's node pools; empty if it does not ask. slicer: the name of the
    one by which it has GKE form slices, likewise.
    """

    queue: str
    has_kueue: bool = True
    exists: bool = True
    cluster_queue: str = ""
    workload: Manifest | None = None
    ahead: int | None = None
    check: str = ""
    slicer: str = ""

    @property
    def has_quota(self) -> bool:
        """Return True if Kueue has reserved quota, and is not about to revoke it."""
        return self.holds("QuotaReserved") and not self.holds("Evicted")

    @property
    def needs_answer(self) -> bool:
        """Return True if Kueue waits for the answer that the node pools are ready."""
        return self.has_quota and self.check != "" and not self.is_answered

    @property
    def is_answered(self) -> bool:
        """Return True if the check is answered for the quota that Kueue has reserved."""
        return self.has_quota and any(
            each["name"] == self.check and each.get("state") == "Ready" for each in self.checks
        )

    @property
    def checks(self) -> list[Manifest]:
        """Return the Workload's admission checks."""
        return ((self.workload or {}).get("status") or {}).get("admissionChecks") or []

    @property
    def is_active(self) -> bool:
        """Return True if Kueue still considers the Workload: after too many evictions it does not."""
        return self.workload is None or self.workload["spec"].get("active", True) is True

    def condition(self, kind: str) -> Manifest | None:
        """Return a condition of the Workload, whatever its status."""
        return objects.condition(self.workload or {}, kind)

    def holds(self, kind: str) -> bool:
        """Return True if a condition of the Workload is True."""
        return objects.holds(self.workload or {}, kind)


def read_state(reader: KubeReader, namespace: str, queue: str, jobset_uid: str) -> KueueState:
    """Read a job's state: three calls, and one per admission check.

    Raises ApiError, except for a missing kind or object.
    """
    try:
        workload = find_workload(reader, namespace, jobset_uid)
    except NotFound:
        return KueueState(queue, has_kueue=False)
    try:
        cluster_queue = str(reader.get(LOCAL_QUEUES, queue, namespace)["spec"].get("clusterQueue") or "")
    except NotFound:
        return KueueState(queue, exists=False)
    kueue = KueueState(queue, cluster_queue=cluster_queue, workload=workload)
    if workload is None:
        return kueue
    if kueue.has_quota:
        names = _check_names(reader, kueue)
        return replace(kueue, check=names.get(labels.POOLS_CHECK, ""), slicer=names.get(labels.SLICE_CHECK, ""))
    return replace(kueue, ahead=_ahead(reader, namespace, queue, str(workload["metadata"]["name"])))


def find_workload(reader: KubeReader, namespace: str, jobset_uid: str) -> Manifest | None:
    """Return the Workload that Kueue made for a JobSet; None before. Raises ApiError: NotFound without Kueue."""
    workloads = reader.list(WORKLOADS, namespace, labels=f"{labels.KUEUE_JOB_UID}={jobset_uid}").items
    return workloads[0] if workloads else None


def waiting_message(kueue: KueueState, accelerator: Slice, beside: Sequence[Role] = ()) -> str:
    """Return `waiting for 64 v5p chips in cluster-queue, 2 ahead: insufficient quota for google.com/tpu`."""
    if not kueue.has_kueue:
        return f"waiting in queue {kueue.queue}, but Kueue is not installed; hint: install Kueue, or remove spec.queue"
    if not kueue.exists:
        return f"waiting for queue {kueue.queue}, which does not exist; hint: create the LocalQueue, or use another"
    where = kueue.cluster_queue or f"queue {kueue.queue}"
    if not kueue.is_active:
        hint = "hint: set spec.active of the Workload to true, or suspend and resume the job"
        return f"{where} has deactivated the job: {_why(kueue) or 'its Workload is not active'}; {hint}"
    ahead = "" if kueue.ahead is None else f", {kueue.ahead} ahead"
    why = _why(kueue)
    chips = chips_message(accelerator, beside)
    return f"waiting for {chips} in {where}{ahead}{_again(kueue)}{f': {why}' if why else ''}"


def eviction_message(kueue: KueueState, accelerator: Slice, beside: Sequence[Role] = ()) -> str:
    """Say why the quota was revoked, and what the job waits for."""
    evicted = kueue.condition("Evicted") or {}
    reason = f" ({evicted['reason']}: {evicted.get('message') or ''})" if evicted.get("reason") else ""
    where = kueue.cluster_queue or f"queue {kueue.queue}"
    waiting = waiting_message(kueue, accelerator, beside)
    return f"{where} revoked the quota{reason}; {waiting}{_pods_ready_hint(kueue)}"


def _pods_ready_hint(kueue: KueueState) -> str:
    """Say what to do after an eviction because pods were not ready in time; empty after any other."""
    if (kueue.condition("Evicted") or {}).get("reason") != _TOO_LATE:
        return ""
    statistics: Manifest = ((kueue.workload or {}).get("status") or {}).get("schedulingStats") or {}
    evictions = statistics.get("evictions") or []
    causes = frozenset(str(each.get("underlyingCause")) for each in evictions if each.get("reason") == _TOO_LATE)
    late = _LATE.get(causes, _LATE_EITHER)
    return f"; hint: {late}; raise it in kueue-manager-config (`ptctl cluster doctor` tells it)"


def chips_message(accelerator: Slice, beside: Sequence[Role] = ()) -> str:
    """Return `64 v5p chips`, or the description of CPUs; with those of samplers, and of services with chips."""
    others = [
        f"{chips_message(role.chips)} {f'for {role.name}' if role.service else 'to sample'}"
        for role in beside
        if role.described
    ]
    if others:
        return " and ".join((chips_message(accelerator), *others))
    if accelerator.is_cpu:
        return accelerator.describe()
    chips, unit = accelerator.total_chips, "GPU" if accelerator.is_gpu else "chip"
    return f"{chips} {accelerator.generation} {unit}{'s' if chips > 1 else ''}"


def waiting_check(kueue: KueueState) -> str:
    """Return `admission check dws is Pending: Queued since 10:00`; empty if none waits."""
    slow = (each for each in kueue.checks if each.get("state") in ("Pending", "Retry", "Rejected"))
    check = next(slow, None)
    return f"admission check {check['name']} is {check['state']}: {check.get('message') or ''}" if check else ""


def _check_names(reader: KubeReader, kueue: KueueState) -> dict[str, str]:
    """Return the names of the Workload's admission checks by their controllers."""
    names: dict[str, str] = {}
    for each in kueue.checks:
        try:
            check = reader.get(ADMISSION_CHECKS, str(each["name"]))
        except (NotFound, Forbidden):  # removed meanwhile; or an older chart's role
            continue
        names.setdefault(str(check["spec"]["controllerName"]), str(each["name"]))
    return names


def _why(kueue: KueueState) -> str:
    """Return the latest reason: of a waiting admission check, else why no quota is reserved."""
    check = waiting_check(kueue)
    if check and kueue.holds("QuotaReserved"):
        return f"quota is reserved, {check}"[:_WHY_LIMIT]
    quota = kueue.condition("QuotaReserved")
    if quota is None or quota["status"] == "True":
        return ""
    return str(quota.get("message") or "")[:_WHY_LIMIT]


def _again(kueue: KueueState) -> str:
    """Say when Kueue considers the job again after evictions."""
    state: Manifest = ((kueue.workload or {}).get("status") or {}).get("requeueState") or {}
    if not state.get("requeueAt"):
        return ""
    return f", considered again at {state['requeueAt']} (requeued {state.get('count', 1)} times)"


def _ahead(reader: KubeReader, namespace: str, queue: str, workload: str) -> int | None:
    for served in VISIBLE_QUEUES:
        try:
            items = reader.get_subresource(served, queue, PENDING, namespace).get("items") or []
        except ApiError:  # not served, not permitted, or its server is away: a courtesy all the same
            continue
        mine = next((each for each in items if each["metadata"]["name"] == workload), None)
        return None if mine is None else int(mine.get("positionInClusterQueue") or 0)
    return None
