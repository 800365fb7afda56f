"""Headless servers and elastic slices: what is rendered, and what the status says when a slice is lost."""

from dataclasses import replace
from typing import Any

import pytest
from tests.builders.operator.world import START
from tests.unit.ptoperator.render.test_render import SETTINGS, job, job_manifest, made_for, on, pod_spec

from ptapi.errors import SpecError
from ptapi.failures import FATAL_EXIT_CODES, FailureClass
from ptapi.load import manifest
from ptapi.run_directory import Progress, SlicesProgress
from ptapi.status import PostTrainJobStatus, SlicesStatus
from ptkube.resources import Manifest
from ptoperator.failures.pod_failures import PodFailure
from ptoperator.job import read_job
from ptoperator.kube import labels
from ptoperator.observe import elastic_slices
from ptoperator.observe.observed_parts import RunDocuments
from ptoperator.observe.state import Observed
from ptoperator.render import Layout, jobset, layout_of
from ptoperator.status import builder, events, restart_counts
from ptoperator.status.running_phases import jobset_active

GS = {"uri": "gs://bucket/runs"}
MINE = {"image": "mine:1", "runtime": {"container": {"command": ["python"]}}, "output": GS}
UID = "0b5e2a4c-8f0e-4f5e-9d1c-2f6f1c9a7e11"


def elastic_layout(slices: int = 3, missing: int = 1) -> Layout:
    pathways = {"enabled": True, "elasticSlices": missing}
    return layout_of(on("v6e-8", slices, pathways=pathways, runPolicy={"maxRestarts": 2}, **MINE), SETTINGS)


def state(layout: Layout, scheduled: dict[int, int], head: bool = True) -> Observed:
    """The run with so many scheduled pods in each slice."""
    pods = [_pod("pathways-head", 0, 0, head)]
    for index in range(layout.slices):
        pods += [_pod("pathways-worker", index, host, host < scheduled[index]) for host in range(layout.hosts)]
    meta = {"name": "llama", "namespace": "team-a", "uid": UID}
    job = read_job({**manifest(layout.job), "metadata": meta})
    return Observed(now=START, observed_at=START, job=job, layout=layout, jobset=jobset(layout), pods=tuple(pods))


def _pod(role: str, index: int, host: int, is_scheduled: bool) -> Manifest:
    marks = {labels.REPLICATED_JOB_NAME: role, labels.JOB_INDEX: str(index), labels.JOB_UID: UID}
    status = {"phase": "Running" if is_scheduled else "Pending", "startTime": "2026-01-01T00:00:00Z"}
    spec = {"nodeName": "n"} if is_scheduled else {}
    return {"metadata": {"name": f"{role}-{index}-{host}", "labels": marks}, "spec": spec, "status": status}


def test_the_proxy_is_told_how_many_slices_may_be_missing_and_workers_come_back_by_themselves() -> None:
    rendered = jobset(elastic_layout())
    _, proxy = pod_spec(rendered)["initContainers"]
    assert "--num_elastic_slices=1" in proxy["args"]
    head, workers = (each["template"]["spec"] for each in rendered["spec"]["replicatedJobs"])
    assert workers["backoffLimit"] == 2 * 2  # hosts x maxRestarts
    assert workers["podFailurePolicy"]["rules"] == [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    assert (workers["template"]["spec"]["restartPolicy"], head["backoffLimit"]) == ("Never", 0)


def test_without_elastic_slices_a_lost_worker_ends_the_attempt() -> None:
    rendered = made_for("v6e-8", 3, pathways={"enabled": True}, output=GS)
    workers = rendered["spec"]["replicatedJobs"][1]["template"]["spec"]
    assert (workers["backoffLimit"], workers["podFailurePolicy"]["rules"][0]["action"]) == (0, "FailJob")
    assert "elastic" not in str(pod_spec(rendered))


@pytest.mark.parametrize(
    ("scheduled", "missing"),
    [({0: 2, 1: 2, 2: 2}, 0), ({0: 2, 1: 1, 2: 2}, 1), ({0: 2, 1: 0, 2: 0}, 0)],
    ids=["all there", "one slice short of a pod", "too many are missing"],
)
def test_slices_are_missing_whole_and_only_as_many_as_may_be(scheduled: dict[int, int], missing: int) -> None:
    layout = elastic_layout()
    assert elastic_slices.missing_slices(layout, state(layout, scheduled)) == missing


def test_a_run_that_goes_on_without_a_slice_says_so() -> None:
    layout = elastic_layout()
    observation = jobset_active(layout, state(layout, {0: 2, 1: 0, 2: 2}), 60.0)
    conditions = {str(kind): condition for kind, condition in observation.conditions.items()}
    assert conditions["CapacityReady"].holds
    assert conditions["CapacityReady"].message == "5 of 7 pods have nodes; the run continues without 1 of 3 slices"
    assert str(observation.phase) in ("Starting", "Running")


def test_without_its_head_nothing_goes_on() -> None:
    layout = elastic_layout()
    lost = state(layout, {0: 2, 1: 0, 2: 2}, head=False)
    assert elastic_slices.missing_slices(layout, lost) == 0
    assert not elastic_slices.has_nodes(layout, lost)
    assert elastic_slices.has_nodes(layout, replace(lost, pods=state(layout, {0: 2, 1: 0, 2: 2}).pods))


def headless(**spec: Any) -> Manifest:
    return made_for("v6e-16", 2, pathways={"enabled": True, "headless": True}, output=GS, **spec)


def test_headless_servers_run_alone_until_they_are_deleted() -> None:
    rendered = headless(priorityClassName="high")
    head = pod_spec(rendered)
    assert [each["name"] for each in head["containers"]] == ["pathways-rm", "pathways-proxy"]
    assert not any("restartPolicy" in each for each in head["containers"])
    assert "initContainers" not in head
    assert head["priorityClassName"] == "high"
    assert rendered["spec"]["successPolicy"] == {"operator": "All"}
    rules = rendered["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert [list(rule) for rule in rules] == [["action", "onPodConditions"]]


def test_a_headless_job_runs_when_its_pods_do_and_says_how_to_reach_it() -> None:
    job = on("v6e-8", 1, pathways={"enabled": True, "headless": True}, output=GS)
    layout = layout_of(job, SETTINGS)
    observation = jobset_active(layout, state(layout, {0: 2}), 60.0)
    assert str(observation.phase) == "Running"
    messages = [each.message for each in observation.conditions.values()]
    assert any("ptctl workload connect llama -n team-a" in message for message in messages)


@pytest.mark.parametrize(
    ("pathways", "spec", "field"),
    [
        ({"headless": True}, {}, "spec.pathways.headless"),
        ({"enabled": True, "headless": True}, MINE, "spec.runtime"),
        ({"enabled": True, "elasticSlices": 1}, {}, "spec.pathways.elasticSlices"),
        ({"enabled": True, "elasticSlices": 3}, MINE, "spec.pathways.elasticSlices"),
        ({"elasticSlices": 1}, MINE, "spec.pathways.elasticSlices"),
    ],
    ids=["headless without pathways", "headless with a command", "native trainer", "no slice left", "no pathways"],
)
def test_what_does_not_go_together_is_refused(pathways: Manifest, spec: Manifest, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        on("v6e-8", 3, **{"output": GS, **spec, "pathways": pathways})
    assert field in [finding.field for finding in caught.value.findings]


def test_flags_of_the_servers_and_the_colocated_python_sidecar_are_rendered() -> None:
    pathways = {
        "enabled": True, "serverArgs": ["--a=1"], "proxyArgs": ["--b=2"], "workerArgs": ["--c=3"],
        "colocatedPythonImage": "sidecar:1",
    }  # fmt: skip
    rendered = made_for("v6e-16", pathways=pathways, output=GS)
    manager, proxy = pod_spec(rendered)["initContainers"]
    worker = rendered["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    assert (manager["args"][-1], proxy["args"][-1], worker["containers"][0]["args"][-1]) == ("--a=1", "--b=2", "--c=3")
    (sidecar,) = worker["initContainers"]
    assert (sidecar["image"], sidecar["restartPolicy"]) == ("sidecar:1", "Always")
    assert {"name": "GRPC_SERVER_ADDRESS", "value": "0.0.0.0:50051"} in sidecar["env"]
    assert sidecar["volumeMounts"] == worker["containers"][0]["volumeMounts"]


def supervised_layout(slices: int = 3, least: int = 2) -> Layout:
    chips = {"type": "v6e-8", "slices": slices, "minSlices": least}
    training = {"steps": 10, "batchSize": 96, "sequenceLength": 256}
    spec = {"accelerator": chips, "training": training, "output": GS, "algorithm": {"sft": {}}}
    return layout_of(job(job_manifest(**spec)), SETTINGS)


def supervised(layout: Layout, running: dict[int, int], slices: SlicesProgress | None) -> Observed:
    """The run with so many running pods in each slice; slices: what its trainer reported."""
    pods = [_pod("slice", s, h, h < running[s]) for s in range(layout.slices) for h in range(layout.hosts)]
    meta = {"name": "llama", "namespace": "team-a", "uid": UID}
    stored = read_job({**manifest(layout.job), "metadata": meta})
    progress = Progress(job_uid=UID, stage="training", step=7, updated="2026-01-01T00:01:00Z", slices=slices)
    run = RunDocuments(progress=progress if slices else None)
    made = jobset(layout)
    return Observed(now=START, observed_at=START, job=stored, layout=layout, jobset=made, pods=tuple(pods), run=run)


def test_a_supervised_slice_is_mended_by_its_own_job_and_ends_the_run_alone() -> None:
    layout = supervised_layout()
    rendered = jobset(layout)["spec"]
    (slices,) = (each["template"]["spec"] for each in rendered["replicatedJobs"])
    assert slices["backoffLimit"] == layout.hosts * layout.job.spec.run_policy.max_restarts > 0
    actions = [
        (rule["action"], rule.get("onExitCodes", {}).get("values", "disrupted"))
        for rule in slices["podFailurePolicy"]["rules"]
    ]
    fatal = list(FATAL_EXIT_CODES)
    assert actions == [("Ignore", "disrupted"), ("Ignore", [75]), ("FailJob", fatal), ("FailJob", [1, 68, 69, 71, 72])]
    assert rendered["successPolicy"] == {"operator": "Any"}
    assert rendered["failurePolicy"]["maxRestarts"] == 0
    env = {each["name"]: each.get("value") for each in pod_spec(jobset(layout))["containers"][0]["env"]}
    name = layout.jobset
    assert env["POSTTRAIN_SLICE_ADDRESS"] == f"{name}-slice-$(POSTTRAIN_SLICE_INDEX)-0.{name}:8476"
    assert list(env).index("POSTTRAIN_SLICE_INDEX") < list(env).index("POSTTRAIN_SLICE_ADDRESS"), "else not expanded"


def test_a_supervised_run_that_has_begun_goes_on_without_a_slice_and_says_so() -> None:
    layout = supervised_layout()
    at_work = SlicesProgress(present=[0, 2], total=3, generation=3, restarts={"HostError": 1, "Unknown": 1})
    observed = supervised(layout, {0: 2, 1: 1, 2: 2}, at_work)
    assert elastic_slices.has_nodes(layout, observed)
    update = jobset_active(layout, observed, 60.0)
    conditions = {str(kind): condition for kind, condition in update.conditions.items()}
    assert conditions["CapacityReady"].message.endswith("the run continues without 1 of 3 slices")
    assert update.phase == "Running"
    words = "the trainer is training on 2 of 3 slices, after 2 restarts in place (HostError 1, Unknown 1)"
    assert conditions["Running"].message == words
    assert not elastic_slices.has_nodes(layout, supervised(layout, {0: 2, 1: 0, 2: 0}, at_work)), "two are needed"


def test_before_it_has_begun_a_supervised_run_waits_for_the_nodes_of_all_slices() -> None:
    layout = supervised_layout()
    assert not elastic_slices.has_nodes(layout, supervised(layout, {0: 2, 1: 0, 2: 2}, None))
    assert elastic_slices.has_nodes(layout, supervised(layout, {0: 2, 1: 2, 2: 2}, None))


def test_a_failed_pod_that_is_replaced_is_none_of_a_supervised_run() -> None:
    layout = supervised_layout()
    observed = supervised(layout, {0: 2, 1: 2, 2: 2}, None)
    failed = {**_pod("slice", 1, 0, True), "status": {"phase": "Failed"}}
    assert len(replace(observed, pods=(*observed.pods, failed)).current_pods) == layout.pods


def test_a_supervised_run_ended_by_what_its_supervisors_agreed_on_not_by_a_pod_of_long_ago() -> None:
    layout = supervised_layout()
    early = PodFailure(
        FailureClass.OUT_OF_MEMORY_HOST, "killed", "slice-0-0", exit_code=137, time="2026-01-01T00:00:00Z"
    )
    last = PodFailure(FailureClass.HANG, "hang: again", "slice-1-0", exit_code=72, time="2026-01-02T00:00:00Z")
    observed = replace(supervised(layout, {0: 2, 1: 2, 2: 2}, None), failures=(early, last))
    failure = restart_counts.failure_of_jobset(observed, {})
    assert (failure.failure_class, failure.exit_code) == ("Hang", 72)
    assert restart_counts.is_verdict(layout, failure.exit_code), "else the operator would make the JobSet again"
    assert not restart_counts.is_verdict(layout, 137)
    assert not restart_counts.is_verdict(elastic_layout(), 72)


def reported(old: PostTrainJobStatus, restarts: dict[str, int], present: list[int]) -> PostTrainJobStatus:
    """The status after the supervisors' trainer reported these restarts and slices."""
    layout = supervised_layout()
    at_work = SlicesProgress(present=present, total=3, generation=1 + sum(restarts.values()), restarts=restarts)
    observed = supervised(layout, {0: 2, 1: 2, 2: 2}, at_work)
    observed = replace(observed, job=replace(observed.job, status=old))
    return builder.build(observed, jobset_active(layout, observed, 60.0), layout)


def test_restarts_in_place_are_counted_with_the_others_and_only_once() -> None:
    before = reported(PostTrainJobStatus(restarts={"HostError": 1}), {"HostError": 1}, [0, 2])
    assert before.restarts == {"HostError": 2}
    assert before.slices == SlicesStatus(total=3, training=2, restarts={"HostError": 1})
    after = reported(before, {"HostError": 1, "Resized": 1}, [0, 1, 2])
    assert after.restarts == {"HostError": 2, "Resized": 1}
    assert after.pod_restarts == {"HostError": 1}, "what the operator's own decisions rest on"
    assert reported(after, {"HostError": 1, "Resized": 1}, [0, 1, 2]) == after


def test_a_restart_in_place_is_an_event_with_its_cause() -> None:
    before = reported(PostTrainJobStatus(), {}, [0, 1, 2])
    after = reported(before, {"HostError": 1}, [0, 2])
    lines = [(each.reason, each.message) for each in events.events_between(before, after)]
    assert ("Restarting", "restart 1 in place (HostError), on 2 of 3 slices") in lines
    assert not [each for each in events.events_between(after, after) if each.reason == "Restarting"]
