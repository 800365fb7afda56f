"""Budgets by failure class: who pays for a restart, who gets none, and how long a broken machine is waited for."""

from tests.builders.operator.job_steps import NAME, bring_up, condition, edit, phase, settle, start, status, termination
from tests.builders.operator.world import Operator, World

from ptapi.run_directory import Heartbeat
from ptkube.resources import JOBSETS
from ptoperator.kube import labels

UNHEALTHY = "RuntimeError: Unable to initialize backend 'tpu': No ba16c7433 device found."


def fail_again(operator: Operator, code: int = 1, message: str = "") -> None:
    """The running attempt fails; the next one, if any, runs."""
    operator.world.exit(operator.world.unfinished[0], code, message)
    settle(operator)
    operator.world.tick(700)
    start(operator)


def test_a_broken_machine_never_spends_max_restarts(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"maxRestarts": 1})
    for count in range(1, 5):
        fail_again(operator, 1, UNHEALTHY)
        assert status(world).restarts == {"HostError": count}
        assert phase(world) == "Running"
    assert world.overlaps == []


def test_the_budget_left_goes_with_a_jobset_that_is_made_anew(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"maxRestarts": 2})
    fail_again(operator, 1, "ValueError: boom")
    fail_again(operator, 1, UNHEALTHY)
    fail_again(operator, 1, UNHEALTHY)
    jobset = world.api.find(JOBSETS, NAME)
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 1
    assert jobset["metadata"]["annotations"][labels.RESTARTS_BEFORE] == "3"
    fail_again(operator, 1, "ValueError: boom")
    assert phase(world) == "Running"
    fail_again(operator, 1, "ValueError: boom")
    assert phase(world) == "Failed"
    assert status(world).restarts == {"Unknown": 2, "HostError": 2}
    assert "runPolicy.maxRestarts (2) is exhausted" in condition(world, "Failed")[2]


def test_a_repair_is_waited_for_longer_each_time(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"maxRestarts": 0})
    for pause in (30, 60, 120):
        world.exit(world.unfinished[0], 1, UNHEALTHY)
        settle(operator)
        assert phase(world) == "Restarting"
        assert f"restarts in {'30s' if pause == 30 else f'{pause // 60}m'}" in condition(world, "Running")[2]
        world.tick(pause - 2)
        settle(operator)
        assert world.unfinished == []
        world.tick(3)
        settle(operator)
        assert len(world.unfinished) == 1
        start(operator)


def test_an_outage_is_waited_for_without_a_charge_until_its_own_budget_is_used_up(
    operator: Operator, world: World
) -> None:
    unreachable = "spec.model.uri: hf://org/model: cannot be fetched: Temporary failure in name resolution"
    bring_up(operator, runPolicy={"maxRestarts": 1})
    fail_again(operator, 68, termination(68, "Network", unreachable))
    world.exit(world.unfinished[0], 68, termination(68, "Network", unreachable))
    settle(operator)
    assert phase(world) == "Restarting"
    assert "not charged to runPolicy.maxRestarts; restarts in 1m" in condition(world, "Running")[2]
    assert "because an outage takes minutes" in condition(world, "Running")[2]
    world.tick(700)
    start(operator)
    for _ in range(18):
        fail_again(operator, 68, termination(68, "Network", unreachable))
        assert phase(world) == "Running"
    fail_again(operator, 68, termination(68, "Network", unreachable))
    assert phase(world) == "Failed"
    assert status(world).restarts["Network"] == 21  # the JobSet has begun it when the budget turns out to be used up
    reason, message = condition(world, "Failed")[1:]
    assert reason == "Network"
    assert unreachable in message
    assert "Network was already retried 20 time(s)" in message
    assert "hint: check that the pods reach what the message names" in message


def test_a_node_under_maintenance_explains_a_crash_that_is_then_free(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"maxRestarts": 0})
    marks = {"cloud.google.com/active-node-maintenance": "true"}
    world.api.nodes["node-1"] = {"metadata": {"name": "node-1", "labels": marks}}
    fail_again(operator, 1, "Traceback\nRuntimeError: socket closed")
    assert phase(world) == "Running"
    assert status(world).restarts == {"Maintenance": 1}
    failure = status(world).failure
    assert failure.message.startswith("node node-1: its host is under maintenance; the trainer ended with exit code 1")
    assert (failure.node, failure.log) == ("node-1", "Traceback\nRuntimeError: socket closed")


def test_memory_of_the_chip_named_in_words_is_not_tried_again(operator: Operator, world: World) -> None:
    training = {"steps": 10, "batchSize": 8, "sequenceLength": 4096}
    bring_up(operator, accelerator={"type": "v6e-1"}, preflight="Skip", training=training)
    world.exit(world.unfinished[0], 1, "XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")
    settle(operator)
    assert phase(world) == "Failed"
    message = condition(world, "Failed")[2]
    for words in (
        "OutOfMemoryHBM",
        "not retried",
        "training.microBatchSize: 4 (it is 8)",
        "sequenceLength (it is 4096)",
        "training.lora",
        "v6e-4 (4 chips)",
    ):
        assert words in message, message
    assert world.unfinished == []


def test_the_hosts_memory_is_tried_once_more(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"maxRestarts": 5})
    for _ in range(2):
        world.exit(world.unfinished[0], 137, reason="OOMKilled")
        settle(operator)
        world.tick(1)
        if world.unfinished:
            start(operator)
    assert phase(world) == "Failed"
    assert condition(world, "Failed")[1] == "OutOfMemoryHost"
    assert "already retried 1 time(s)" in condition(world, "Failed")[2]


def hang(operator: Operator, seconds: float) -> None:
    operator.world.tick(seconds)
    operator.work()


def test_a_run_without_a_sign_of_life_is_restarted_by_the_operator(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"hangTimeoutSeconds": 100})
    hang(operator, 190)
    assert phase(world) == "Running"
    assert all("deletionTimestamp" not in pod["metadata"] for pod in world.pods)
    hang(operator, 60)
    state, reason, message = condition(world, "Running")
    assert (state, reason) == ("False", "Hang")
    assert "after step 3 while training (limit 1m40s)" in message
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.pods)
    for pod in world.unfinished:
        world.exit(pod, 137)
    start(operator)
    assert phase(world) == "Running"
    assert status(world).restarts == {"Hang": 1}


def test_a_hang_names_the_processes_that_stay_behind(operator: Operator, world: World) -> None:
    limits = {"hangTimeoutSeconds": 100}
    bring_up(operator, accelerator={"type": "v6e-16"}, preflight="Skip", training={"batchSize": 16}, runPolicy=limits)
    for process in range(4):
        is_late = process == 2
        beat = Heartbeat(
            process=process,
            host=f"llama-slice-0-{process}",
            stage="training",
            step=2 if is_late else 3,
            updated="2026-01-01T00:00:10Z" if is_late else "2026-01-01T00:03:10Z",
        )
        world.files[f"file:///runs/llama/heartbeats/process-{process:04d}.json"] = beat.model_dump_json(
            by_alias=True
        ).encode()
    hang(operator, 300)
    message = condition(world, "Running")[2]
    assert "behind: process 2 on llama-slice-0-2 (step 2, last heartbeat 3m before the others)" in message
    assert "process 1" not in message


def test_a_clock_that_is_wrong_by_an_hour_is_no_hang(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"hangTimeoutSeconds": 100})
    world.tick(3607)
    for step in range(4, 10):
        world.progress(step)
        slow = world.files["file:///runs/llama/progress.json"].replace(b"T01:", b"T00:")
        world.files["file:///runs/llama/progress.json"] = slow
        hang(operator, 30)
        assert condition(world, "Running")[1] != "Hang"
    hang(operator, 300)
    assert condition(world, "Running")[1] == "Hang"


def test_a_run_that_ended_is_no_hang(operator: Operator, world: World) -> None:
    bring_up(operator)
    world.progress(10, "done")
    hang(operator, 9000)
    assert phase(world) == "Running"


def test_a_suspended_run_is_no_hang(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"hangTimeoutSeconds": 100})
    edit(world, suspend=True)
    hang(operator, 9000)
    assert condition(world, "Suspended")[1] in ("Suspending", "Suspended")


def test_the_trainers_own_word_for_a_hang_is_charged(operator: Operator, world: World) -> None:
    bring_up(operator, runPolicy={"maxRestarts": 1})
    fail_again(operator, 72, termination(72, "Hang", "no progress for 600 s"))
    assert status(world).restarts == {"Hang": 1}
    fail_again(operator, 72, termination(72, "Hang", "no progress for 600 s"))
    assert phase(world) == "Failed"
