"""Kueue: queues that exist and are active, admission checks that are answered, and its time limit for pods."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from ptapi.accelerators.slice import GPU_RESOURCE, TPU_RESOURCE
from ptctl.cluster.doctor.finding import CheckContext, Finding, error, ok, warning
from ptctl.cluster.in_cluster.survey import Controller, version_of
from ptctl.jobs.view import view
from ptctl.ui.duration import parse_duration
from ptkube.errors import NotFound
from ptkube.resources import ADMISSION_CHECKS, CONFIGMAPS, LOCAL_QUEUES, POSTTRAINJOBS, Manifest, Resource
from ptoperator.kube import labels

CHECK = "queues"
CLUSTER_QUEUES = Resource("kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
SLICES_CRD = "slices.accelerator.gke.io"
_SHORT_WAIT_S = 15 * 60.0
"""Multi-host slices need minutes until every pod is ready; Kueue evicts jobs that are later."""

_ON_BY_DEFAULT = (0, 19)
"""The version of Kueue from which jobs are evicted unless its configuration says otherwise."""
_WITHOUT_SWITCH = "config.kueue.x-k8s.io/v1beta2"
"""The version of that configuration that has no `enable`: there it is always on."""
_NEW_TIMEOUT, _OLD_TIMEOUT = "30m", "5m"


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield what keeps Kueue from admitting jobs."""
    if not context.survey.has_kueue:
        yield ok(CHECK, "Kueue is not installed: jobs without `queue` stand in line by themselves")
        return
    yield from _cluster_queues(context)
    yield from _missing_queues(context)
    yield from _checks(context)
    yield from _dynamic_slices(context)
    yield from _configured(context)


def _cluster_queues(context: CheckContext) -> Iterator[Finding]:
    checks = context.kube.list(ADMISSION_CHECKS).items
    dispatching = {
        each["metadata"]["name"] for each in checks if each["spec"].get("controllerName") == labels.MULTIKUEUE
    }
    for queue in context.kube.list(CLUSTER_QUEUES).items:
        name, active = queue["metadata"]["name"], condition(queue, "Active")
        if dispatching & set(_check_names(queue)):
            yield warning(
                CHECK,
                f"ClusterQueue {name} sends jobs to other clusters (MultiKueue): PostTrainJobs fail there",
                "create them on the worker clusters, with an operator on each",
            )
        covered = {each for group in queue["spec"].get("resourceGroups") or [] for each in group["coveredResources"]}
        if active and active["status"] != "True":
            yield error(CHECK, f"ClusterQueue {name} admits nothing: {active.get('message') or active.get('reason')}",
                        f"kubectl describe clusterqueue {name}")  # fmt: skip
        elif not covered & {TPU_RESOURCE, GPU_RESOURCE}:
            yield warning(CHECK, f"ClusterQueue {name} has no quota of google.com/tpu: jobs on TPUs wait for ever",
                          "add a flavor with that resource (docs/guides/queueing.md)")  # fmt: skip
        else:
            yield ok(CHECK, f"ClusterQueue {name} is active")


def _check_names(queue: Manifest) -> list[str]:
    strategy: Manifest = queue["spec"].get("admissionChecksStrategy") or {}
    return [str(each["name"]) for each in strategy.get("admissionChecks") or []]


def _missing_queues(context: CheckContext) -> Iterator[Finding]:
    jobs = [view(each) for each in context.kube.list(POSTTRAINJOBS).items]
    wanted = {(job.namespace, job.queue): job.name for job in jobs if job.queue and not job.is_terminal}
    existing = {(q["metadata"]["namespace"], q["metadata"]["name"]) for q in context.kube.list(LOCAL_QUEUES).items}
    for (namespace, queue), job in sorted(wanted.items()):
        if (namespace, queue) not in existing:
            yield error(
                CHECK,
                f"job {namespace}/{job} waits for LocalQueue {queue}, which does not exist there",
                f"`ptctl cluster install … --queue-namespace {namespace}` makes one, named posttrain",
            )


def _checks(context: CheckContext) -> Iterator[Finding]:
    for each in context.kube.list(ADMISSION_CHECKS).items:
        active = condition(each, "Active")
        if each["spec"].get("controllerName") == labels.POOLS_CHECK and (not active or active["status"] != "True"):
            yield error(CHECK, f"AdmissionCheck {each['metadata']['name']} is not active: no operator answers it",
                        "the operator needs its settings of GKE: `ptctl cluster install NAME`")  # fmt: skip


def _dynamic_slices(context: CheckContext) -> Iterator[Finding]:
    """Yield what jobs with `accelerator.dynamicSlicing` wait for in vain."""
    jobs = [view(each) for each in context.kube.list(POSTTRAINJOBS).items if _is_dynamic(each)]
    waiting = [job for job in jobs if not job.is_terminal]
    if not waiting:
        return
    subject = f"job {waiting[0].namespace}/{waiting[0].name}"
    if SLICES_CRD not in context.survey.crds:
        yield error(CHECK, f"{subject} wants dynamic slices, and GKE's slice controller is not enabled",
                    "gcloud container clusters update NAME --enable-slice-controller")  # fmt: skip
    checks = context.kube.list(ADMISSION_CHECKS).items
    forming = [each for each in checks if each["spec"].get("controllerName") == labels.SLICE_CHECK]
    active = [each for each in forming if (condition(each, "Active") or {}).get("status") == "True"]
    if not forming:
        yield error(CHECK, f"{subject} wants dynamic slices, and no AdmissionCheck of Kueue has them formed",
                    f"add one with controllerName {labels.SLICE_CHECK} (docs/guides/gke.md)")  # fmt: skip
    elif not active:
        yield error(CHECK, f"AdmissionCheck {forming[0]['metadata']['name']} is not active: nobody forms slices",
                    "install GKE's slice controller for Kueue (docs/guides/gke.md)")  # fmt: skip


def _is_dynamic(job: Manifest) -> bool:
    return bool((job["spec"].get("accelerator") or {}).get("dynamicSlicing"))


def _configured(context: CheckContext) -> Iterator[Finding]:
    """Yield what Kueue's own configuration means to jobs."""
    namespace = context.survey.kueue.namespace if context.survey.kueue else "kueue-system"
    try:
        text = context.kube.get(CONFIGMAPS, "kueue-manager-config", namespace)["data"]["controller_manager_config.yaml"]
    except (NotFound, KeyError):
        return
    config = yaml.safe_load(text) or {}
    if config.get("manageJobsWithoutQueueName"):
        yield warning(
            CHECK,
            "Kueue keeps Jobs without a queue from starting (manageJobsWithoutQueueName): preflight and staging wait",
            "a LocalQueue named default with cpu and memory in those namespaces, or preflight: Skip in jobs",
        )
    timeout = pods_ready_timeout(config, context.survey.kueue)
    if timeout is not None:
        yield from _pods_ready_limits(timeout, config.get("waitForPodsReady") or {})


def _pods_ready_limits(timeout: str, wait: Manifest) -> Iterator[Finding]:
    message = f"Kueue evicts jobs whose pods are not ready after {timeout} (waitForPodsReady)"
    if _seconds(timeout) >= _SHORT_WAIT_S:
        yield ok(CHECK, message)
    else:
        yield warning(
            CHECK,
            message,
            "large slices, flexStart and long image pulls take longer: set timeout to 30m in kueue-manager-config",
        )
    recovery = str(wait.get("recoveryTimeout") or timeout)
    if recovery != timeout and 0 < _seconds(recovery) < _SHORT_WAIT_S:
        yield warning(
            CHECK,
            f"Kueue evicts jobs that miss a pod for {recovery} (waitForPodsReady.recoveryTimeout)",
            "the repair of a node takes many minutes: set recoveryTimeout to 30m, or to 0s for no limit",
        )
    if wait.get("blockAdmission"):
        yield warning(
            CHECK,
            "Kueue admits one job at a time, each after the pods of the one before are ready "
            "(waitForPodsReady.blockAdmission)",
            "set blockAdmission to false, unless that is meant",
        )
    limit = (wait.get("requeuingStrategy") or {}).get("backoffLimitCount")
    if limit is not None:
        times = f"{limit} time{'' if limit == 1 else 's'}"
        yield ok(CHECK, f"Kueue puts a job aside that was late {times} (waitForPodsReady.requeuingStrategy)")


def pods_ready_timeout(config: Manifest, kueue: Controller | None) -> str | None:
    """Return Kueue's time limit for pods, or None if it has none. Since 0.19 it has one unless it is switched off."""
    is_on_by_default = kueue is not None and (version_of(kueue.version) or (0, 0)) >= _ON_BY_DEFAULT
    wait: Manifest | None = config.get("waitForPodsReady")
    if wait is None:
        return _NEW_TIMEOUT if is_on_by_default else None
    if not wait.get("enable", is_on_by_default and config.get("apiVersion") == _WITHOUT_SWITCH):
        return None
    return str(wait.get("timeout") or (_NEW_TIMEOUT if is_on_by_default else _OLD_TIMEOUT))


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        return _SHORT_WAIT_S


def condition(body: Manifest, kind: str) -> Manifest | None:
    """Return a condition of an object."""
    conditions: list[Manifest] = (body.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), None)
