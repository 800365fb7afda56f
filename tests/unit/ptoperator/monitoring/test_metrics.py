"""What Prometheus is told."""

from prometheus_client.parser import text_string_to_metric_families
from tests.builders.operator.job_steps import bring_up, settle, start
from tests.builders.operator.world import OnePoolCloud, Operator, World

from ptapi.conditions import Phase
from ptapi.status import FailureStatus, PostTrainJobStatus
from ptoperator.job import read_job
from ptoperator.monitoring.job_gauges import SHOWN_JOBS, JobNumbers, numbers_of, shown
from ptoperator.monitoring.metrics import Metrics


class Samples(dict[tuple[str, ...], float]):
    """Name and label values, in any order, to value."""

    def __getitem__(self, key: tuple[str, ...]) -> float:
        return super().__getitem__(_sorted(key))

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, tuple)
        return super().__contains__(_sorted(key))


def _sorted(key: tuple[str, ...]) -> tuple[str, ...]:
    return (key[0], *sorted(key[1:]))


def samples(metrics: Metrics) -> Samples:
    families = text_string_to_metric_families(metrics.text().decode())
    return Samples(
        {_sorted((each.name, *each.labels.values())): each.value for family in families for each in family.samples}
    )


def test_a_running_job_shows_its_numbers_and_an_ended_one_does_not(operator: Operator, world: World) -> None:
    metrics = Metrics(operator.cache.numbers)
    bring_up(operator, accelerator={"type": "v6e-4"}, preflight="Skip")
    values = samples(metrics)
    job = ("team-a", "llama", "Running")
    assert values["posttrain_jobs", "Running"] == 1
    assert values["posttrain_job_step", *job] == 3
    assert values["posttrain_job_target_steps", *job] == 10
    assert values["posttrain_job_loss", *job] == 2.2
    assert values["posttrain_job_chips", *job] == 4
    assert ("posttrain_job_reward", *job) not in values
    heard = values["posttrain_job_heartbeat_timestamp_seconds", *job]
    assert heard == world.api.now.timestamp()
    for pod in world.unfinished:
        world.exit(pod, 0)
    settle(operator)
    values = samples(metrics)
    assert values["posttrain_jobs", "Succeeded"] == 1
    assert not any(name[0].startswith("posttrain_job_") for name in values)


def test_failures_are_counted_by_class_and_by_what_followed(operator: Operator, world: World) -> None:
    metrics = Metrics(operator.cache.numbers)
    one = PostTrainJobStatus(restarts={"Preempted": 1})
    metrics.on_report(PostTrainJobStatus(), one)
    metrics.on_report(one, one)
    end = FailureStatus(failure_class="DataError", message="row 3")
    metrics.on_report(one, PostTrainJobStatus.model_validate({"phase": "Failed", "restarts": {"Preempted": 1}}))
    metrics.on_report(one, one.model_copy(update={"phase": Phase.FAILED, "failure": end}))
    values = samples(metrics)
    assert values["posttrain_failures_total", "Preempted", "restarted"] == 1
    assert values["posttrain_failures_total", "Unknown", "failed"] == 1
    metrics.on_report(one, PostTrainJobStatus(restarts={"Preempted": 1, "HostError": 2, "Resized": 1}))
    values = samples(metrics)
    assert values["posttrain_failures_total", "HostError", "restarted"] == 2
    assert ("posttrain_failures_total", "Resized", "restarted") not in values, "a slice that joined is no failure"
    assert values["posttrain_failures_total", "DataError", "failed"] == 1


def test_calls_pools_and_leadership_are_shown() -> None:
    metrics = Metrics(list, OnePoolCloud().last)
    metrics.on_call("get", "posttrainjobs", "ok")
    metrics.on_call("update", "posttrainjobs/status", "Conflict")
    metrics.on_sweep(2)
    metrics.on_leading(True)
    values = samples(metrics)
    assert values["posttrain_api_calls_total", "get", "posttrainjobs", "ok"] == 1
    assert values["posttrain_api_calls_total", "update", "posttrainjobs/status", "Conflict"] == 1
    assert values["posttrain_node_pools", "RUNNING"] == 1
    assert values["posttrain_node_pools", "ERROR"] == 0
    assert values["posttrain_orphan_node_pools",] == 2
    assert values["posttrain_leader",] == 1


def test_the_number_of_series_is_bounded_and_the_newest_jobs_are_shown() -> None:
    jobs = [
        JobNumbers("n", f"job-{number}", "Failed" if number % 2 else "Running", f"2026-01-01T00:00:{number:06d}Z")
        for number in range(3 * SHOWN_JOBS)
    ]
    names = [job.name for job in shown(jobs)]
    assert len(names) == SHOWN_JOBS
    assert names[0] == f"job-{3 * SHOWN_JOBS - 2}"
    assert all(int(name[4:]) % 2 == 0 for name in names)


def test_a_status_that_somebody_made_unreadable_counts_as_none() -> None:
    odd = {"phase": "Running", "progress": {"step": "x"}, "metrics": {"loss": ""}, "restarts": {"Hang": 2}}
    numbers = numbers_of(read_job({"metadata": {"namespace": "n", "name": "j"}, "status": odd}))
    assert numbers.phase == "Pending"
    assert numbers.values == {"posttrain_job_chips": 0.0, "posttrain_job_restarts": 0.0}


def test_a_restarted_job_counts_its_restarts(operator: Operator, world: World) -> None:
    metrics = Metrics(operator.cache.numbers)
    bring_up(operator)
    world.disrupt(world.unfinished[0])
    start(operator)
    assert samples(metrics)["posttrain_job_restarts", "team-a", "llama", "Running"] == 1
