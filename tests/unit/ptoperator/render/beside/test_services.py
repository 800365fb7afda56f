"""Services of a job: what is rendered, what they hold, and what the status says when a replica is lost."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.ptoperator.render.beside.test_samplers import messages, observed
from tests.unit.ptoperator.render.test_render import SETTINGS, env_of, job, job_manifest

from ptapi.conditions import ConditionType, Phase
from ptapi.failures import FailureClass
from ptapi.status import ServiceStatus
from ptkube.resources import JOBS, Manifest
from ptoperator.failures.pod_failures import PodFailure, pod_failure
from ptoperator.kube import labels
from ptoperator.kube.actions import Delete
from ptoperator.kueue.workload import chips_message
from ptoperator.observe import elastic_slices
from ptoperator.observe.state import Observed
from ptoperator.plan.jobset_steps import follow_jobset
from ptoperator.plan.step_result import PlanContext
from ptoperator.render import Layout, jobset, layout_of
from ptoperator.status.builder import StatusUpdate, build
from ptoperator.status.restart_counts import failure_of_jobset
from ptoperator.status.terminal_phases import jobset_failed

JUDGE = {"name": "judge", "replicas": 2, "model": {"uri": "hf://Qwen/Qwen3-8B"}, "accelerator": {"type": "v6e-4"}}
GAME = {"name": "game", "image": "registry/game:1"}
TOKEN = {"model": {"uri": "hf://Qwen/Qwen3-1.7B", "tokenSecretRef": {"name": "hf"}}}


def layout(*services: dict[str, Any], **spec: Any) -> Layout:
    """Return that of a job on a v6e-4 with these services."""
    made = {
        "algorithm": {"grpo": {"groupSize": 4}},
        "rewards": [{"builtin": "gsm8k"}],
        "rollout": {"maxNewTokens": 8},
        "accelerator": {"type": "v6e-4"},
        "training": {"steps": 2, "batchSize": 16},
        "services": list(services),
    }
    return layout_of(job(job_manifest("llama", **made | spec)), SETTINGS)


def of_service(made: Layout, name: str = "judge") -> Manifest:
    (role,) = (each for each in jobset(made)["spec"]["replicatedJobs"] if each["name"] == name)
    jobs: Manifest = role["template"]["spec"]
    return jobs


def pod_of(made: Layout, name: str = "judge") -> Manifest:
    pod: Manifest = of_service(made, name)["template"]
    return pod


def container_of(made: Layout, name: str = "judge") -> Manifest:
    (container,) = pod_of(made, name)["spec"]["containers"]
    return dict(container)


def variables(made: Layout, name: str = "judge") -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container_of(made, name)["env"]}


def test_each_service_is_a_replicated_job_and_the_trainers_success_ends_all() -> None:
    made = jobset(layout(JUDGE, GAME))
    roles = {each["name"]: each["replicas"] for each in made["spec"]["replicatedJobs"]}
    assert roles == {"slice": 1, "judge": 2, "game": 1}
    assert made["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["slice"]}


def test_the_trainer_finds_every_replica_by_its_services_name() -> None:
    urls = json.loads(env_of(jobset(layout(JUDGE, {**GAME, "port": 9000})))["POSTTRAIN_SERVICES"])
    assert urls == {
        "judge": [f"http://llama-judge-{index}-0.llama:8000" for index in (0, 1)],
        "game": ["http://llama-game-0-0.llama:9000"],
    }
    assert "POSTTRAIN_SERVICES" not in env_of(jobset(layout()))


def test_a_model_is_served_under_its_services_name_over_all_chips_of_the_host() -> None:
    container = container_of(layout({**JUDGE, "maxModelLen": 8192, "args": ["--enforce-eager"]}))
    assert container["image"] == "vllm/vllm-tpu:v0.32.0"
    assert container["command"] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    words = "--served-model-name judge --port 8000 --max-model-len 8192 --tensor-parallel-size 4 --enforce-eager"
    assert container["args"] == words.split()
    assert container["resources"]["limits"]["google.com/tpu"] == 4
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    on_gpus = container_of(layout({**JUDGE, "accelerator": {"type": "h100-8"}}))
    assert (on_gpus["image"], on_gpus["resources"]["limits"]["nvidia.com/gpu"]) == ("vllm/vllm-openai:v0.32.0", 8)


@pytest.mark.parametrize(("uri", "path"), [("gs://lab/m", "/models/model"), ("file:///models/m", "/models/m")])
def test_a_model_of_a_bucket_or_a_claim_is_mounted_to_be_read(uri: str, path: str) -> None:
    claim = {"name": "models", "mountPath": "/models", "persistentVolumeClaim": {"claimName": "models"}}
    made = layout({**JUDGE, "model": {"uri": uri}}, volumes=[claim])
    container = container_of(made)
    assert container["command"][2] == path
    mount = container["volumeMounts"][1]
    assert mount["readOnly"]
    assert path.startswith(mount["mountPath"])
    assert ("gke-gcsfuse/volumes" in pod_of(made)["metadata"]["annotations"]) == uri.startswith("gs://")


def test_a_teacher_may_be_asked_for_as_many_tokens_as_the_job_compares() -> None:
    def made(top_k: int) -> list[str]:
        distill = {"distill": {"teacher": {"service": "judge"}, "topK": top_k}}
        words: list[str] = container_of(layout(JUDGE, algorithm=distill, rewards=[]))["args"]
        return words[words.index("--max-logprobs") :][:2]

    assert [made(4), made(64)] == [["--max-logprobs", "20"], ["--max-logprobs", "64"]]
    assert "--max-logprobs" not in container_of(layout(JUDGE))["args"]


def test_a_program_runs_as_its_image_says_without_chips_and_without_what_is_the_trainers() -> None:
    of_trainer = {"env": [{"name": "OF_TRAINER", "value": "x"}], "serviceAccountName": "reads-buckets", **TOKEN}
    made = layout({**GAME, "env": [{"name": "LEVEL", "value": "3"}]}, **of_trainer)
    container, spec = container_of(made, "game"), pod_of(made, "game")["spec"]
    assert not {"command", "args", "volumeMounts"} & container.keys()
    assert variables(made, "game") == {
        "PYTHONUNBUFFERED": "1", "HOME": "/tmp", "USER": "posttrain", "LEVEL": "3",
    }  # fmt: skip
    assert container["readinessProbe"]["tcpSocket"] == {"port": "http"}
    assert "serviceAccountName" not in spec
    assert spec["automountServiceAccountToken"] is False
    assert not {"nodeSelector", "affinity", "volumes"} & spec.keys()
    assert "limits" not in container["resources"]


def test_only_a_model_of_the_hub_is_read_with_the_jobs_token() -> None:
    secret = {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert variables(layout(JUDGE, **TOKEN))["HF_TOKEN"] == secret
    assert "HF_TOKEN" not in variables(layout({**JUDGE, "model": {"uri": "gs://lab/m"}}, **TOKEN))


def test_a_program_answers_trainers_and_reaches_none_of_them() -> None:
    marks = pod_of(layout(GAME), "game")["metadata"]["labels"]
    assert marks["app.kubernetes.io/component"] == "service"


def test_a_lost_replica_ends_nothing_and_its_exit_codes_mean_nothing() -> None:
    made = of_service(layout(JUDGE, runPolicy={"maxRestarts": 5}))
    assert (made["backoffLimit"], made["completions"]) == (5, 1)
    (rule,) = made["podFailurePolicy"]["rules"]
    assert rule == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def test_chips_pools_and_words_count_services_beside_samplers() -> None:
    apart = {"maxNewTokens": 8, "placement": "separate", "separate": {"replicas": 2}}
    made = layout(JUDGE, {**JUDGE, "name": "other", "accelerator": {"type": "v5p-8"}}, GAME, rollout=apart)
    assert made.held_chips == {"v6e": 4 + 8 + 8, "v5p": 8}
    assert (made.pods, made.pool_count, made.line_hosts) == (1 + 2 + 4 + 1, 7, 5)
    assert [made.pool_chips(index).name for index in range(7)] == ["v6e-4"] * 5 + ["v5p-8"] * 2
    words = "v6e-4 (4 chips) and 2 samplers on v6e-4 (4 chips) each and service judge on 2 x v6e-4 (8 chips)"
    assert made.described.startswith(words)
    assert "game" not in made.described
    assert chips_message(made.accelerator, made.beside) == (
        "4 v6e chips and 8 v6e chips to sample and 8 v6e chips for judge and 8 v5p chips for other"
    )


ALL = {"slice-0": "Running", "judge-0": "Running", "judge-1": "Running", "game-0": "Running"}


def test_a_job_starts_when_its_services_have_nodes_too() -> None:
    made = layout(JUDGE, GAME)
    waiting = observed(made, {**ALL, "judge-1": "Pending"}, Phase.PROVISIONING)
    assert not elastic_slices.has_nodes(made, waiting)
    assert "3 of 4 pods have nodes; pod llama-judge-1" in messages(waiting)["CapacityReady"]
    assert elastic_slices.has_nodes(made, observed(made, ALL, Phase.PROVISIONING))


def test_a_run_goes_on_without_a_replica_and_names_it() -> None:
    made = layout(JUDGE, GAME)
    state = observed(made, {**ALL, "judge-1": "Pending", "game-0": "Failed"})
    assert elastic_slices.has_nodes(made, state)
    message = messages(state)
    assert message["phase"] == "Running"
    assert message["Running"].endswith("service judge 1 is away, of 2: no v6e-4 is free; service game 0 is away, of 1")
    assert [pod["metadata"]["name"] for pod in state.trainer_pods] == ["llama-slice-0"]


def test_the_status_counts_the_replicas_of_each_service() -> None:
    made = layout(JUDGE, GAME)
    state = observed(made, ALL)
    for pod in state.pods:
        is_ready = pod["metadata"]["labels"][labels.JOB_INDEX] == "0"
        pod["status"]["conditions"] = [{"type": "Ready", "status": str(is_ready)}]
    status = build(state, StatusUpdate(Phase.RUNNING), made)
    assert status.services == [
        ServiceStatus(name="judge", total=2, ready=1, away=[1]), ServiceStatus(name="game", total=1, ready=1),
    ]  # fmt: skip
    assert status.chips == 12


def test_a_service_that_its_job_makes_no_more_is_named_as_what_ended_the_run() -> None:
    made = layout(JUDGE, runPolicy={"maxRestarts": 3})
    why = "container service was killed by signal 9"
    failure = PodFailure(FailureClass.UNKNOWN, why, "llama-judge-1-0-x", exit_code=137, is_beside=True)
    state = replace(observed(made, ALL), failures=(failure,))
    message = "jobset failed due to reaching max number of restarts (first failed job: llama-judge-1)"
    ended = {"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts", "message": message}
    cause = failure_of_jobset(state, ended)
    assert cause.message == f"service judge 1 failed more than 3 times, all that its Job allows: {why}"
    failed = jobset_failed(made, state, ended).conditions[ConditionType.FAILED]
    assert "restarted so often for service judge that their own Jobs make no more" in failed.message


@pytest.mark.parametrize(("code", "text"), [(65, ""), (65, '{"exitCode": 65, "failureClass": "DataError"}')])
def test_an_exit_code_of_another_program_is_no_class_of_ours(code: int, text: str) -> None:
    ended = {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z", "message": text}
    pod = {
        "metadata": {"name": "llama-game-0-0-x", "labels": labels.for_service("llama", "u")},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "service", "state": {"terminated": ended}}]},
    }
    failure = pod_failure(pod)
    assert failure is not None
    assert failure.kind is FailureClass.UNKNOWN


def with_succeeded(state: Observed, role: str, *conditions: str) -> Observed:
    """Return the state of a JobSet of which a Job of this role is done."""
    status = {
        "replicatedJobsStatus": [{"name": "slice", "succeeded": 0}, {"name": role, "succeeded": 1}],
        "conditions": [{"type": kind, "status": "True"} for kind in conditions],
    }
    assert state.jobset is not None
    owner = {"kind": "PostTrainJob", "uid": state.job.uid, "controller": True}
    meta = {**state.jobset["metadata"], "uid": "of-jobset", "ownerReferences": [owner]}
    return replace(state, jobset={**state.jobset, "metadata": meta, "status": status})


def test_a_service_that_ended_with_0_is_made_anew_until_the_run_is_over() -> None:
    made = layout(JUDGE, GAME)
    state = observed(made, ALL)
    assert state.ended_roles == frozenset()
    assert with_succeeded(state, "game").ended_roles == {"game"}
    assert with_succeeded(state, "game", "Completed").ended_roles == frozenset()
    done = {"metadata": {"name": "llama-game-0", "uid": "of-game"}}
    step = follow_jobset(PlanContext(replace(with_succeeded(state, "game"), ended_jobs=(done,)), made, SETTINGS))
    assert step.actions == (Delete(JOBS, "llama-game-0", "team-a", "of-game"),)
