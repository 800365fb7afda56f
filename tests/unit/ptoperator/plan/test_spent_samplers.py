"""Which part of a job with `minSlices` has used up which budget, and what comes back: samplers, trainers in place."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.ptoperator.render.beside.test_samplers import observed
from tests.unit.ptoperator.render.test_render import SETTINGS, job, job_manifest

from ptapi.conditions import ConditionType, Phase
from ptapi.failures import FailureClass
from ptapi.run_directory import Progress, SlicesProgress
from ptapi.status import SlicesStatus
from ptkube.resources import Manifest
from ptoperator.failures.pod_failures import PodFailure
from ptoperator.observe.observed_parts import RunDocuments
from ptoperator.observe.state import Observed
from ptoperator.plan.restart_budget import retry_uncharged
from ptoperator.plan.step_result import PlanContext
from ptoperator.render import Layout, jobset, layout_of
from ptoperator.status import terminal_phases
from ptoperator.status.restart_counts import with_in_place

KILLED, LOST = ("container sampler was killed by signal 9", 137), ("vLLM cannot be reached", 69)

SPENT = "runPolicy.maxRestarts (2) allows the trainer no more restarts in place"


def elastic(max_restarts: int = 2, **chips: Any) -> Layout:
    """Return the layout of a job with two samplers of two hosts each, whose trainer restarts in place."""
    rollout = {"maxNewTokens": 8, "placement": "separate"}
    separate = {"replicas": 2, "accelerator": {"type": "v5p-16"}}
    made = job_manifest(
        algorithm={"grpo": {"groupSize": 4}},
        rewards=[{"builtin": "gsm8k"}],
        rollout=rollout | {"separate": separate},
        accelerator={"type": "v6e-8", "slices": 2, "minSlices": 1} | chips,
        training={"steps": 2, "batchSize": 16},
        output={"uri": "gs://bucket/runs"},
        runPolicy={"maxRestarts": max_restarts},
    )
    return layout_of(job(made), SETTINGS)


def ended(job: str) -> Manifest:
    """Return the condition of a JobSet that one of its Jobs has ended, in JobSet's words."""
    message = f"jobset failed due to reaching max number of restarts (first failed job: {job})"
    return {"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts", "message": message}


def failed(pod: str, why: tuple[str, int], kind: FailureClass = FailureClass.UNKNOWN, second: int = 0) -> PodFailure:
    time = f"2026-01-01T00:00:{second:02}Z"
    return PodFailure(kind, why[0], pod, exit_code=why[1], time=time, is_beside="sampler" in pod)


def context(
    made: Layout, *failures: PodFailure, all_pods: dict[str, int] | None = None, in_place: dict[str, int] | None = None
) -> PlanContext:
    """Return the job with what failed and how often it was restarted."""
    state: Observed = observed(made, {})
    of_slices = SlicesStatus(total=2, training=2, restarts=in_place or {})
    counts = with_in_place(all_pods or {}, of_slices)
    status = state.job.status.model_copy(update={"phase": Phase.RUNNING, "restarts": counts, "slices": of_slices})
    slices = SlicesProgress(present=[0, 1], total=2, generation=3, restarts=in_place or {})
    uid = state.job.uid
    progress = Progress(job_uid=uid, stage="training", step=7, updated="2026-01-01T00:00:00Z", slices=slices)
    state = replace(
        state,
        job=replace(state.job, status=status),
        jobset=jobset(made, restarts_before=sum((all_pods or {}).values())),
        failures=failures,
        run=RunDocuments(progress=progress),
    )
    return PlanContext(state, made, SETTINGS)


@pytest.mark.parametrize("why", [KILLED, LOST])
def test_a_sampler_that_its_job_makes_no_more_comes_back_with_the_whole_job(why: tuple[str, int]) -> None:
    trainer = failed("llama-slice-0-0-x", ("boom", 1))
    sampler = failed("llama-sampler-1-1-x", why, second=9)
    step = retry_uncharged(context(elastic(), trainer, sampler), ended("llama-sampler-1"))
    assert step is not None
    assert step.update.restarted is not None
    assert (step.update.phase, step.update.restarted.pod) == (Phase.RESTARTING, "llama-sampler-1-1-x")
    message = step.update.conditions[ConditionType.RUNNING].message
    assert f"sampler 1 failed more than 4 times, all that its Job allows: {why[0]}; restarts in 30s" in message


@pytest.mark.parametrize(
    ("all_pods", "in_place", "comes_back"),
    [
        ({"Unknown": 1}, {}, True),
        ({"Unknown": 1}, {"Unknown": 1}, False),
        ({"Preempted": 5}, {"HostError": 5, "Resized": 5}, True),
        ({"Unknown": 2}, {}, False),
    ],
)
def test_spent_samplers_and_restarts_in_place_share_the_jobs_budget(
    all_pods: dict[str, int], in_place: dict[str, int], comes_back: bool
) -> None:
    of = context(elastic(), failed("llama-sampler-0-0-x", KILLED), all_pods=all_pods, in_place=in_place)
    condition = ended("llama-sampler-0")
    assert (retry_uncharged(of, condition) is not None) == comes_back
    message = terminal_phases.jobset_failed(of.layout, of.state, condition).conditions[ConditionType.FAILED].message
    assert "sampler 0 failed more than 4 times" in message
    assert "runPolicy.maxRestarts (2) is exhausted: the job is restarted so often for samplers" in message


def test_a_sampler_that_nobody_has_read_about_is_named_all_the_same() -> None:
    of = context(elastic(max_restarts=0))
    condition = ended("llama-sampler-1")
    assert retry_uncharged(of, condition) is None
    failure = terminal_phases.jobset_failed(of.layout, of.state, condition).failure
    assert failure is not None
    assert failure.message == "sampler 1 failed more than 0 times, all that its Job allows"


@pytest.mark.parametrize(
    ("kind", "code", "in_place", "words"),
    [
        ("Unknown", 1, {"Unknown": 2, "HostError": 4}, f"{SPENT} (Unknown 2)"),
        ("Unknown", 1, {}, SPENT),
        ("Network", 68, {"Network": 20}, "Network was already retried 20 time(s) in place"),
    ],
)
def test_a_trainer_that_is_restarted_in_place_no_more_is_told_from_a_jobset_that_is_spent(
    kind: str, code: int, in_place: dict[str, int], words: str
) -> None:
    sampler = failed("llama-sampler-0-0-x", LOST)
    verdict = failed("llama-slice-1-0-x", ("slice 1, process 0: boom", code), FailureClass(kind), second=9)
    of = context(elastic(), sampler, verdict, all_pods={"HostError": 1}, in_place=in_place)
    condition = ended("llama-slice-1")
    assert retry_uncharged(of, condition) is None, "the supervisors would agree on the same again"
    update = terminal_phases.jobset_failed(of.layout, of.state, condition)
    message = update.conditions[ConditionType.FAILED].message
    assert f"slice 1, process 0: boom; {words}" in message
    assert "maxRestarts (2) is exhausted" not in message
