"""The life of a job, event by event, in a small cluster in memory."""

import pytest
from tests.builders.operator.job_steps import (
    NAME,
    begin,
    bring_up,
    change,
    condition,
    create,
    edit,
    end,
    events,
    exit_all,
    fail_writes,
    phase,
    settle,
    start,
    status,
    termination,
)
from tests.builders.operator.world import NAMESPACE, Operator, World, copied, job_manifest

from ptkube import timestamps
from ptkube.errors import ApiError, Invalid
from ptkube.resources import JOBSETS, PODS, POSTTRAINJOBS
from ptoperator.kube import labels
from ptoperator.observe.watch_caches import WATCHED

REFUSAL = Invalid(422, "Invalid", "spec.replicatedJobs[0].name: too long")


def test_a_job_runs_from_apply_to_success(operator: Operator, world: World) -> None:
    create(world)
    operator.work()
    assert phase(world) == "Provisioning"
    assert world.api.find(JOBSETS, NAME)
    settle(operator)
    world.start(world.pods[0])
    operator.work()
    assert phase(world) == "Starting"
    world.tick(11)
    world.progress(4, checkpoint=3)
    operator.work()
    assert phase(world) == "Running"
    now = status(world)
    assert (now.progress.steps, now.progress.percent, now.metrics.loss) == ("4/10", 40, "2.1")
    assert now.checkpoint.step == 3
    world.progress(10, "done")
    end(operator, 0)
    assert phase(world) == "Succeeded"
    assert condition(world, "Complete")[:2] == ("True", "Succeeded")
    assert status(world).progress.percent == 100
    assert status(world).completion_time
    assert events(world) == [
        ("Normal", "Created"),
        ("Normal", "Accepted"),
        ("Normal", "NodesReady"),
        ("Normal", "Training"),
        ("Normal", "Succeeded"),
    ]


def test_nothing_is_written_when_nothing_changed(operator: Operator, world: World) -> None:
    bring_up(operator)
    before = world.api.writes
    for _ in range(20):
        operator.news.add((NAMESPACE, NAME))
        operator.work()
    assert world.api.writes == before


def test_progress_is_written_no_more_often_than_the_setting_says(operator: Operator, world: World) -> None:
    bring_up(operator)
    before = world.api.writes
    for second in range(100):
        world.tick(1)
        world.progress(3 + second // 20)
        operator.news.add((NAMESPACE, NAME))
        operator.work()
    assert world.api.writes - before <= 10


def test_reading_progress_between_events_costs_no_api_read(operator: Operator, world: World) -> None:
    bring_up(operator)
    reads: list[str] = []
    world.api.get = lambda r, *_: reads.append(r.kind) or pytest.fail("a read")  # type: ignore[method-assign,assignment]
    world.tick(10)
    world.progress(5)
    operator.work()
    assert status(world).progress.step == 5
    assert reads == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (64, "ConfigError"),
        (65, "DataError"),
        (66, "UserCode"),
        (70, "OutOfMemoryHBM"),
        (74, "Storage"),
        (2, "ConfigError"),
    ],
)
def test_a_fatal_exit_code_fails_the_job_at_once(operator: Operator, world: World, code: int, kind: str) -> None:
    bring_up(operator)
    end(operator, code, termination(code, kind, "row 3 is no JSON"))
    assert phase(world) == "Failed"
    reason, message = condition(world, "Failed")[1:]
    assert reason == kind
    assert "row 3 is no JSON" in message
    assert f"exit code {code}" in message
    assert world.pods[0]["metadata"]["name"] in message
    assert status(world).restarts == {}


def test_preemption_is_free_however_often(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"maxRestarts": 1})
    for _ in range(5):
        world.disrupt(world.unfinished[0])
        settle(operator)
        assert phase(world) == "Restarting"
        start(operator)
    assert phase(world) == "Running"
    assert status(world).restarts == {"HostError": 5}
    jobset = world.api.find(JOBSETS, NAME)
    assert jobset["status"]["restartsCountTowardsMax"] == 0


def test_a_saved_checkpoint_is_free_and_named_when_it_continues(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"maxRestarts": 0})
    world.progress(5, checkpoint=5)
    end(operator, 75, termination(75, "Preempted", "SIGTERM; saved step 5"))
    assert phase(world) == "Restarting"
    assert status(world).restarts == {"Preempted": 1}
    assert "continues from step 5" in condition(world, "Running")[2]


def test_unknown_errors_restart_until_the_budget_is_used_up(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"maxRestarts": 2})
    for _ in range(2):
        end(operator, 1, "Traceback: ValueError: boom")
        assert phase(world) == "Restarting"
        start(operator)
    end(operator, 1, "Traceback: ValueError: boom")
    assert phase(world) == "Failed"
    assert "runPolicy.maxRestarts (2) is exhausted" in condition(world, "Failed")[2]
    assert "boom" in condition(world, "Failed")[2]
    assert status(world).restarts == {"Unknown": 2}


def test_the_first_explained_failure_is_the_cause(operator: Operator, world: World) -> None:
    bring_up(operator, accelerator={"type": "cpu-1", "slices": 2})
    first, second = world.unfinished
    world.exit(second, 1, "lost connection to the coordinator")
    world.tick(1)
    world.exit(first, 65, termination(65, "DataError", "row 7"))
    settle(operator)
    assert condition(world, "Failed")[1] == "DataError"


def test_suspend_saves_stops_and_resumes(operator: Operator, world: World) -> None:
    bring_up(operator)
    edit(world, suspend=True)
    operator.work()
    world.run_jobsets()
    operator.work()
    assert condition(world, "Suspended")[:2] == ("False", "Suspending")
    world.progress(6, checkpoint=6)
    world.reap()
    operator.work()
    assert phase(world) == "Suspended"
    assert condition(world, "Suspended")[0] == "True"
    assert "continues from step 6" in condition(world, "Suspended")[2]
    assert world.pods == []
    change(operator, suspend=False)
    assert condition(world, "Suspended")[:2] == ("False", "Resumed")
    start(operator)
    assert phase(world) == "Running"
    assert status(world).restarts == {}


def test_suspended_job_creates_no_pods(operator: Operator, world: World) -> None:
    begin(operator, runPolicy={"suspend": True})
    assert phase(world) == "Suspended"
    assert world.api.find(JOBSETS, NAME) is None
    change(operator, suspend=False)
    assert len(world.pods) == 1


def test_a_queued_job_is_suspended_by_deleting_its_jobset_and_keeps_its_count(operator: Operator, world: World) -> None:
    begin(operator, queue="team")
    world.admit()
    start(operator)
    world.disrupt(world.unfinished[0])
    start(operator)
    change(operator, suspend=True)
    assert phase(world) == "Suspended"
    assert world.api.find(JOBSETS, NAME) is None
    change(operator, suspend=False)
    world.admit()
    start(operator)
    jobset = world.api.find(JOBSETS, NAME)
    assert jobset["metadata"]["annotations"][labels.RESTARTS_BEFORE] == "1"
    world.disrupt(world.unfinished[0])
    settle(operator)
    assert status(world).restarts == {"HostError": 2}


def test_the_queue_may_change_while_suspended(operator: Operator, world: World) -> None:
    bring_up(operator)
    change(operator, suspend=True)
    world.api.patch(POSTTRAINJOBS, NAME, NAMESPACE, {"spec": {"queue": "other"}})
    settle(operator)
    change(operator, suspend=False)
    jobset = world.api.find(JOBSETS, NAME)
    assert jobset["metadata"]["labels"][labels.KUEUE_QUEUE] == "other"
    assert phase(world) == "Queued"


def test_the_deadline_fails_the_job_and_frees_its_chips(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"activeDeadlineSeconds": 60})
    world.tick(70)
    settle(operator)
    assert phase(world) == "Failed"
    assert condition(world, "Failed")[1] == "DeadlineExceeded"
    assert world.api.find(JOBSETS, NAME) is None
    assert world.pods == []


def test_the_deadline_counts_anew_after_a_suspension(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"activeDeadlineSeconds": 60})
    change(operator, suspend=True)
    world.tick(500)
    settle(operator)
    change(operator, suspend=False)
    start(operator)
    assert phase(world) == "Running"


def test_a_finished_job_is_deleted_after_its_ttl(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"ttlSecondsAfterFinished": 30})
    end(operator, 0)
    world.tick(29)
    settle(operator)
    assert phase(world) == "Succeeded"
    world.tick(2)
    settle(operator)
    assert {ref[0] for ref in world.api.objects} == {"Event"}


def test_a_ttl_may_be_set_after_the_end(operator: Operator, world: World) -> None:
    bring_up(operator)
    end(operator, 0)
    change(operator, ttlSecondsAfterFinished=0)
    assert world.api.find(POSTTRAINJOBS, NAME) is None


def test_a_finished_job_is_not_started_again_when_its_jobset_is_deleted(operator: Operator, world: World) -> None:
    bring_up(operator)
    end(operator, 0)
    world.api.delete(JOBSETS, NAME, NAMESPACE)
    settle(operator)
    assert phase(world) == "Succeeded"
    assert world.api.find(JOBSETS, NAME) is None


def test_a_trainer_that_was_done_is_not_run_again_when_its_jobset_vanished(operator: Operator, world: World) -> None:
    bring_up(operator)
    world.progress(10, "done")
    exit_all(world, 0)
    world.api.delete(JOBSETS, NAME, NAMESPACE)
    world.collect()
    settle(operator)
    assert phase(world) == "Succeeded"


def test_a_deleted_jobset_comes_back_after_its_pods_are_gone(operator: Operator, world: World) -> None:
    bring_up(operator)
    world.api.delete(JOBSETS, NAME, NAMESPACE)
    world.collect()
    operator.work()
    assert world.api.find(JOBSETS, NAME) is None
    assert condition(world, "CapacityReady")[1] == "CleaningUp"
    world.reap()
    start(operator)
    assert phase(world) == "Running"
    assert world.overlaps == []


def test_a_job_created_again_waits_for_the_pods_of_the_one_before(operator: Operator, world: World) -> None:
    bring_up(operator)
    world.api.delete(POSTTRAINJOBS, NAME, NAMESPACE)
    create(world)
    operator.work()
    assert condition(world, "CapacityReady")[1] == "CleaningUp"
    settle(operator)
    assert len(world.pods) == 1
    assert world.overlaps == []


def test_somebody_elses_jobset_of_the_same_name_is_left_alone(operator: Operator, world: World) -> None:
    world.api.create(JOBSETS, {"metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {}}, "spec": {}})
    create(world)
    operator.work()
    status_, reason, message = condition(world, "CapacityReady")
    assert (status_, reason) == ("False", "CreateFailed")
    assert "JobSet llama exists and belongs to another owner" in message
    world.api.delete(JOBSETS, NAME, NAMESPACE)
    world.tick(60)
    settle(operator)
    assert len(world.pods) == 1


def test_a_lost_config_map_is_made_again_while_pods_need_it(operator: Operator, world: World) -> None:
    begin(operator)
    (name,) = [item["metadata"]["name"] for item in world.api.kinds("ConfigMap")]
    world.api.remove(("ConfigMap", NAMESPACE, name))
    world.schedule(world.pods[0])
    operator.work()
    world.tick(11)
    operator.work()
    assert [item["metadata"]["name"] for item in world.api.kinds("ConfigMap")] == [name]


def test_an_image_that_cannot_be_pulled_fails_after_a_grace_period(operator: Operator, world: World) -> None:
    begin(operator)
    world.cannot_pull(world.pods[0])
    operator.work()
    assert phase(world) == "Starting"
    assert "manifest for trainer:9 not found" in condition(world, "Running")[2]
    for _ in range(12):
        world.tick(30)
        settle(operator)
    assert phase(world) == "Failed"
    assert condition(world, "Failed")[1] == "ImagePull"
    assert world.pods == []


def test_what_init_containers_printed_is_kept_when_the_trainers_image_is_not_pulled(
    operator: Operator, world: World
) -> None:
    """The pod goes with the JobSet, and its logs with the pod."""
    containers = [{"name": name, "command": [f"./{name}"]} for name in ("fetch", "unpack")]
    begin(operator, pod={"initContainers": containers})
    (pod,) = world.pods
    pod["status"]["initContainerStatuses"] = [
        {"name": name, "state": {"terminated": {"exitCode": 0}}} for name in ("fetch", "unpack")
    ]
    name, time = pod["metadata"]["name"], "2026-11-22T20:00:00Z"
    world.api.logs[name, "fetch"] = [f"{time} fetched 3 files", f"{time} HF_TOKEN=hf_abcdefghijklmnopqrst"]
    world.api.logs[name, "unpack"] = [f"{time} unpacked 9 rows"]
    world.cannot_pull(pod)
    for _ in range(12):
        world.tick(30)
        settle(operator)
    assert (phase(world), world.pods) == ("Failed", [])
    log = status(world).failure.log
    assert (log.startswith("fetched 3 files\n"), log.endswith("\nunpacked 9 rows"), "hf_abc" in log) == (
        True,
        True,
        False,
    )


def test_the_registrys_words_are_told_while_the_kubelet_only_waits(operator: Operator, world: World) -> None:
    begin(operator)
    world.cannot_pull(world.pods[0], "ErrImagePull", "manifest for trainer:9 not found")
    operator.hear()
    world.cannot_pull(world.pods[0], "ImagePullBackOff", 'Back-off pulling image "trainer:9"')
    operator.work()
    assert 'Back-off pulling image "trainer:9": ErrImagePull: manifest for trainer:9' in condition(world, "Running")[2]


def test_a_spec_that_slipped_past_the_crd_is_a_condition_and_no_crash(operator: Operator, world: World) -> None:
    begin(operator, accelerator={"type": "v5p-9"})
    assert phase(world) == "Failed"
    status_, reason, message = condition(world, "Validated")
    assert (status_, reason) == ("False", "InvalidSpec")
    assert "v5p-9" in message
    assert "nearest" in message
    assert world.api.kinds("JobSet") == []
    assert operator.timers == {}


def test_two_jobs_with_one_run_directory_the_younger_is_refused(operator: Operator, world: World) -> None:
    manifest = job_manifest(NAME)
    other = {**manifest, "metadata": {"name": NAME, "namespace": "team-0"}}
    world.api.create(POSTTRAINJOBS, other)
    world.tick(1)
    operator.cache.note_job(world.api.kinds("PostTrainJob")[0])
    operator.delivered = dict.fromkeys(WATCHED, len(world.api.changes))
    create(world)
    operator.work()
    assert phase(world) == "Failed"
    status_, reason, message = condition(world, "Validated")
    assert (status_, reason) == ("False", "OutputConflict")
    assert "team-0/llama" in message
    assert world.api.kinds("JobSet") == []


def test_what_the_api_server_refuses_is_told_and_tried_again(operator: Operator, world: World) -> None:
    create(world)
    mend = fail_writes(world, "create", JOBSETS, REFUSAL)
    operator.work()
    status_, reason, message = condition(world, "CapacityReady")
    assert (status_, reason) == ("False", "CreateFailed")
    assert "too long" in message
    assert ("Normal", "Created") not in events(world)
    assert status(world).job_set == ""
    writes = world.api.writes
    world.tick(60)
    operator.work()
    assert [line for line in world.api.log[writes:] if line.startswith(("status", "create Event"))] == []
    mend()
    world.tick(60)
    settle(operator)
    assert len(world.pods) == 1


@pytest.mark.parametrize("vanishes", [False, True])
def test_a_pod_evicted_by_a_taint_is_a_host_error_although_its_peer_saved_first(
    operator: Operator, world: World, vanishes: bool
) -> None:
    bring_up(operator, accelerator={"type": "cpu-1", "slices": 2})
    evicted, peer = world.unfinished
    condition_ = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    condition_ |= {
        "message": "deleting due to NoExecute taint",
        "lastTransitionTime": timestamps.to_text(world.api.now),
    }
    evicted["status"].setdefault("conditions", []).append(condition_)
    world.api.put(PODS, evicted)
    world.api.terminate(("Pod", NAMESPACE, evicted["metadata"]["name"]))
    operator.work()
    world.tick(5)
    world.exit(peer, 75)
    operator.work()
    world.tick(5)
    if not vanishes:  # a node that cannot be reached reports no end of its pods
        world.exit(evicted, 75)
    settle(operator)
    assert status(world).restarts == {"HostError": 1}


WEBHOOK = 'Internal error occurred: failed calling webhook "vjobset.kb.io": connection refused'
FAILURE = ApiError(500, "InternalError", WEBHOOK)


def test_a_webhook_that_is_down_is_told_at_the_first_try(operator: Operator, world: World) -> None:
    create(world)
    mend = fail_writes(world, "create", JOBSETS, FAILURE)
    operator.hear()
    for _ in range(3):
        operator.look((NAMESPACE, NAME))
    status_, reason, message = condition(world, "CapacityReady")
    assert (status_, reason) == ("False", "WriteFailed")
    assert message == f"the API server fails a request: create JobSet llama: {WEBHOOK}"
    assert events(world) == [("Warning", "WriteFailed")]
    mend()
    settle(operator)
    assert condition(world, "CapacityReady")[1] == "WaitingForNodes"
    assert sorted(reason for _, reason in events(world)) == ["Accepted", "Created", "WriteFailed"]


def test_a_running_job_that_cannot_be_suspended_says_why(operator: Operator, world: World) -> None:
    bring_up(operator)
    mend = fail_writes(world, "patch", JOBSETS, FAILURE)
    edit(world, suspend=True)
    operator.hear()
    operator.look((NAMESPACE, NAME))
    assert condition(world, "Running")[:2] == ("False", "WriteFailed")
    assert "patch JobSet llama" in condition(world, "Running")[2]
    assert events(world)[-1] == ("Warning", "WriteFailed")
    mend()
    settle(operator)
    for pod in world.unfinished:
        world.exit(pod, 75)
    settle(operator)
    assert phase(world) == "Suspended"


def test_a_finished_job_whose_pods_cannot_be_stopped_says_why_until_they_are(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"activeDeadlineSeconds": 60})
    mend = fail_writes(world, "delete", JOBSETS, FAILURE)
    world.tick(61)
    for _ in range(3):
        operator.hear()
        operator.look((NAMESPACE, NAME))
    ended = status(world).completion_time
    assert phase(world) == "Failed"
    assert condition(world, "CapacityReady")[:2] == ("False", "WriteFailed")
    mend()
    world.tick(5)
    settle(operator)
    assert condition(world, "CapacityReady")[:2] == ("False", "Released")
    assert status(world).completion_time == ended


def test_a_trainer_whose_progress_cannot_be_read_is_called_running_after_a_while(
    operator: Operator, world: World
) -> None:
    begin(operator)
    world.start(world.pods[0])
    operator.work()
    assert phase(world) == "Starting"
    world.tick(61)
    operator.work()
    assert phase(world) == "Running"
    assert "cannot be read" in condition(world, "Running")[2]


def test_a_step_that_is_compiled_after_the_first_rollout_does_not_start_the_run_again(
    operator: Operator, world: World
) -> None:
    bring_up(operator)
    assert phase(world) == "Running"
    before = events(world)
    for stage in ("compiling", "training"):
        world.tick(11)
        world.progress(0, stage)
        operator.work()
        assert (phase(world), condition(world, "Running")[0]) == ("Running", "True")
    assert events(world) == before


def test_progress_of_the_attempt_before_does_not_make_a_new_one_running(operator: Operator, world: World) -> None:
    bring_up(operator)
    world.disrupt(world.unfinished[0])
    settle(operator)
    world.tick(30)
    world.start(world.unfinished[0])
    settle(operator)
    assert phase(world) == "Restarting"
    assert status(world).progress.step == 3


def test_time_and_cost_survive_an_operator_that_was_away(operator: Operator, world: World) -> None:
    bring_up(operator, accelerator={"type": "v6e-4"}, preflight="Skip")
    held = status(world).time.held
    world.tick(3600)
    operator.restart()
    world.progress(9)
    operator.work()
    assert status(world).time.held == held + 3600
    assert float(status(world).cost.chip_hours) == pytest.approx((held + 3600) * 4 / 3600, abs=0.01)


def test_a_hint_says_that_a_file_run_directory_needs_a_volume(operator: Operator, world: World) -> None:
    create(world)
    operator.work()
    assert "mount a volume" in condition(world, "Validated")[2]


def test_a_deleted_job_leaves_nothing(operator: Operator, world: World) -> None:
    bring_up(operator)
    world.api.delete(POSTTRAINJOBS, NAME, NAMESPACE)
    settle(operator)
    assert {ref[0] for ref in world.api.objects} == {"Event"}
    assert operator.cache.numbers() == []
    assert world.api.find(PODS, NAME) is None


def test_a_job_that_an_earlier_operator_let_begin_goes_on_though_this_one_would_refuse_it(
    operator: Operator, world: World
) -> None:
    bring_up(operator)
    stored = copied(world.api.find(POSTTRAINJOBS, NAME))
    stored["spec"] |= {
        "image": "Registry/Trainer",
        "imagePullSecrets": ["a", "a"],
        "invented": {"by": "an earlier one"},
    }
    world.api.put(POSTTRAINJOBS, stored)  # as it was stored: its generation is the one that began
    operator.restart()
    operator.work()
    assert phase(world) == "Running"
    world.tick(11)
    world.progress(10, "done")
    end(operator, 0)
    assert phase(world) == "Succeeded"


def test_a_job_that_did_not_begin_is_refused(operator: Operator, world: World) -> None:
    create(world, imagePullSecrets=["a", "a"])
    operator.work()
    assert (phase(world), condition(world, "Validated")[0]) == ("Failed", "False")
