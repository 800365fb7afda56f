"""Jobs on a running operator, JobSet controller and kubelet, with a trainer that starts in a moment."""

import os
import statistics
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from tests.builders.cluster.fake_jobs import FAKE_TRAINER
from tests.builders.cluster.operator_process import OperatorProcess
from tests.builders.servers import bucket
from tests.builders.servers.hub import COMMIT, TOKEN, hub

from ptctl.runs.logs.ranks import ranks
from ptkube.resources import CONFIGMAPS, EVENTS, JOBSETS, POSTTRAINJOBS, SECRETS, SERVICE_ACCOUNTS, Manifest


def condition(status: Any, kind: str) -> tuple[str, str]:
    match = next(each for each in status.conditions if each.type == kind)
    return match.status, match.reason


def test_a_job_runs_to_success_and_tells_its_life(operator: OperatorProcess, jobs: Any) -> None:
    jobs.create("fine", {"FAKE_HOLD_AT": "2"})
    jobs.wait(lambda: jobs.status("fine").progress.step == 2)
    running = jobs.wait_phase("fine", "Running")
    assert running.progress.total == 3
    jobs.mark("fine")
    status = jobs.wait_phase("fine", "Succeeded")
    assert condition(status, "Complete") == ("True", "Succeeded")
    assert (status.progress.steps, status.metrics.loss) == ("3/3", "1.7")
    assert status.restarts == {}
    reasons = [
        event["reason"]
        for event in jobs.kube.list(EVENTS, jobs.namespace).items
        if event["involvedObject"]["kind"] == "PostTrainJob"
    ]
    assert sorted(reasons) == sorted(["Created", "Accepted", "NodesReady", "Training", "Succeeded"])
    meta = jobs.kube.get(POSTTRAINJOBS, "fine", jobs.namespace)["metadata"]
    assert "finalizers" not in meta
    assert "annotations" not in meta


def test_a_jobset_is_there_within_a_second_of_apply(operator: OperatorProcess, jobs: Any) -> None:
    medians: list[float] = []
    while not medians or (medians[-1] >= 1.0 and len(medians) < 8):  # again: the machine may have been busy
        seconds = []
        for number in range(9):
            name = f"quick-{len(medians)}-{number}"
            began = time.monotonic()
            jobs.create(name, queue="nobody-admits")
            jobs.wait(lambda name=name: jobs.find(JOBSETS, name))
            seconds.append(time.monotonic() - began)
        medians.append(statistics.median(seconds))
    assert medians[-1] < 1.0, medians


def test_a_data_error_fails_at_once_in_the_trainers_words(operator: OperatorProcess, jobs: Any) -> None:
    jobs.create("bad", {"FAKE_EXIT": "65", "FAKE_CLASS": "DataError", "FAKE_MESSAGE": "train.jsonl line 3 is no JSON"})
    status = jobs.wait_phase("bad", "Failed")
    assert condition(status, "Failed") == ("True", "DataError")
    assert status.failure.exit_code == 65
    assert "train.jsonl line 3 is no JSON" in status.failure.message
    assert status.restarts == {}


def test_a_killed_trainer_starts_again_and_is_counted(operator: OperatorProcess, jobs: Any) -> None:
    jobs.create("killed", {"FAKE_CRASH_AT": "2"})
    status = jobs.wait_phase("killed", "Succeeded")
    assert status.restarts == {"Unknown": 1}
    assert not (jobs.runs / "killed" / "doubled").exists()


def test_two_processes_on_two_slices_succeed_together(operator: OperatorProcess, jobs: Any) -> None:
    jobs.create("pair", accelerator={"type": "cpu-1", "slices": 2})
    jobs.wait(lambda: len(jobs.pods("pair")) == 2)
    jobs.wait_phase("pair", "Succeeded")


def test_a_killed_sampler_comes_back_to_the_trainer_and_both_end_with_success(
    operator: OperatorProcess, jobs: Any
) -> None:
    jobs.create(
        "apart",
        {"FAKE_WAIT": "1", "FAKE_STEP_S": "0.1"},
        algorithm={"grpo": {"groupSize": 4}},
        rewards=[{"builtin": "gsm8k"}],
        rollout={"maxNewTokens": 8, "placement": "separate", "separate": {"replicas": 2}},
    )
    samples = jobs.runs / "apart" / "samples"

    def processes(index: str) -> list[str]:
        lines = samples.read_text().splitlines() if samples.exists() else []
        return list(dict.fromkeys(line.partition(" ")[2] for line in lines if line.partition(" ")[0] == index))

    jobs.wait(lambda: processes("0") and processes("1"))
    psutil.Process(int(processes("1")[0])).kill()
    jobs.wait(lambda: len(processes("1")) == 2, shown=lambda: (jobs.status("apart"), jobs.pods("apart")))
    assert len(processes("0")) == 1
    jobs.wait(lambda: jobs.status("apart").samplers.ready == 2, shown=lambda: jobs.status("apart"))
    assert (jobs.status("apart").samplers.total, jobs.status("apart").samplers.away) == (2, [])
    assert {rank.number: rank.container for rank in ranks(jobs.pods("apart"), "sampler")} == {
        0: "sampler",
        1: "sampler",
    }
    assert [rank.number for rank in ranks(jobs.pods("apart"))] == [0]
    assert "refused" not in samples.read_text()
    (jobs.runs / "apart" / "finish").touch()
    status = jobs.wait_phase("apart", "Succeeded")
    assert status.restarts == {}
    assert not (jobs.runs / "apart" / "doubled").exists()
    jobs.wait(lambda: [pod for pod in jobs.pods("apart") if pod["status"]["phase"] == "Running"] == [])
    secrets = [each for each in jobs.kube.list(SECRETS, jobs.namespace).items if "apart" in each["metadata"]["name"]]
    assert len(secrets) == 1
    jobs.delete("apart")
    jobs.wait(lambda: jobs.find(SECRETS, secrets[0]["metadata"]["name"]) is None)


def test_samplers_that_are_vllm_are_made_replaced_and_ended_with_the_job(
    operator: OperatorProcess, jobs: Any, tmp_path: Path
) -> None:
    jobs.create(
        "served",
        {"FAKE_WAIT": "1", "FAKE_STEP_S": "0.1", "PATH": f"{FAKE_TRAINER / 'bin'}:{os.environ['PATH']}"},
        model={"uri": "hf://Qwen/Qwen3-8B"},
        algorithm={"grpo": {"groupSize": 4}},
        rewards=[{"builtin": "gsm8k"}],
        rollout={
            "maxNewTokens": 8,
            "engine": "vllm",
            "vllm": {"weightsDirectory": f"{tmp_path}/weights", "image": "vllm"},
            "placement": "separate",
            "separate": {"replicas": 2},
        },
        volumes=[{"name": "shared", "mountPath": str(tmp_path), "persistentVolumeClaim": {"claimName": "shared"}}],
    )
    samples = jobs.runs / "served" / "samples"

    def processes() -> dict[str, int]:
        """Return the process of each pod that answered, by the name of its model."""
        lines = samples.read_text().splitlines() if samples.exists() else []
        return {name: int(pid) for name, _, pid in (line.partition(" ") for line in lines)}

    jobs.wait(lambda: len(processes()) == 2, shown=lambda: jobs.pods("served"))
    uids = {pod["metadata"]["uid"] for pod in jobs.pods("served")}
    assert set(processes()) <= uids
    first = next(iter(processes()))
    psutil.Process(processes()[first]).kill()
    jobs.wait(lambda: len(processes()) == 3, shown=lambda: (jobs.status("served"), jobs.pods("served")))
    jobs.wait(lambda: jobs.status("served").samplers.ready == 2, shown=lambda: jobs.status("served"))
    assert "refused" not in samples.read_text()
    (jobs.runs / "served" / "finish").touch()
    status = jobs.wait_phase("served", "Succeeded")
    assert status.restarts == {}
    jobs.wait(lambda: [pod for pod in jobs.pods("served") if pod["status"]["phase"] == "Running"] == [])


def test_suspend_saves_frees_and_resumes_where_it_was(operator: OperatorProcess, jobs: Any) -> None:
    policy = {"terminationGracePeriodSeconds": 600}
    jobs.create("pause", {"FAKE_HOLD_AT": "2", "FAKE_SAVE_UNTIL": "may-save"}, runPolicy=policy)
    jobs.wait(lambda: jobs.status("pause").progress.step == 2)
    jobs.edit("pause", suspend=True)
    jobs.wait(lambda: condition_or_none(jobs, "pause", "Suspended") == ("False", "Suspending"))
    jobs.mark("pause", "may-save")
    status = jobs.wait_phase("pause", "Suspended")
    assert jobs.pods("pause") == []
    saved = status.checkpoint.step
    jobs.edit("pause", suspend=False)
    jobs.wait_phase("pause", "Running")
    assert jobs.status("pause").progress.step >= saved
    jobs.mark("pause")
    status = jobs.wait_phase("pause", "Succeeded")
    assert status.restarts == {}
    assert condition(status, "Suspended") == ("False", "Resumed")


def condition_or_none(jobs: Any, name: str, kind: str) -> tuple[str, str] | None:
    matches = [each for each in jobs.status(name).conditions if each.type == kind]
    return (matches[0].status, matches[0].reason) if matches else None


def test_pods_that_are_refused_are_told_at_once_and_mended(operator: OperatorProcess, jobs: Any) -> None:
    jobs.create("unserved", serviceAccountName="nobody")

    def is_reported() -> bool:
        conditions = jobs.status("unserved").conditions
        return any(
            (each.type, each.reason) == ("CapacityReady", "CreateFailed")
            and 'serviceaccount "nobody" not found' in each.message
            for each in conditions
        )

    jobs.wait(is_reported, shown=lambda: jobs.status("unserved"))
    events = jobs.kube.list(EVENTS, jobs.namespace, fields="involvedObject.kind=PostTrainJob,reason=CreateFailed").items
    assert ["nobody" in event["message"] for event in events] == [True]
    jobs.kube.create(SERVICE_ACCOUNTS, {"metadata": {"name": "nobody", "namespace": jobs.namespace}})
    jobs.wait_phase("unserved", "Succeeded")


def test_a_missing_secret_is_told_and_mended(operator: OperatorProcess, jobs: Any) -> None:
    jobs.create("secretive", model={"uri": "random://tiny", "tokenSecretRef": {"name": "hf"}})

    def is_reported() -> bool:
        conditions = jobs.status("secretive").conditions
        return any(
            each.type == "Running" and "hf" in each.message and "cannot start" in each.message for each in conditions
        )

    jobs.wait(is_reported, shown=lambda: jobs.status("secretive"))
    secret: Manifest = {"metadata": {"name": "hf", "namespace": jobs.namespace}, "stringData": {"token": "t0k3n"}}
    jobs.kube.create(SECRETS, secret)
    jobs.wait_phase("secretive", "Succeeded")
    assert "t0k3n" not in str(jobs.kube.get(POSTTRAINJOBS, "secretive", jobs.namespace))
    assert "t0k3n" not in operator.log.read_text()


@pytest.mark.parametrize(
    "phase", ["Preflight", "Queued", "Provisioning", "Starting", "Running", "Suspended", "Succeeded", "Failed"]
)
def test_a_job_deleted_in_any_phase_leaves_nothing(operator: OperatorProcess, jobs: Any, phase: str) -> None:
    spec: dict[str, Any] = {}
    fake = {"FAKE_WAIT": "yes"}
    match phase:
        case "Preflight":
            spec["preflight"] = "Enforce"
            fake["FAKE_PREFLIGHT_UNTIL"] = "/never"
        case "Queued":
            spec["queue"] = "nobody-admits"
        case "Provisioning":
            spec["accelerator"] = {"type": "v6e-4"}
            spec["preflight"] = "Skip"
            spec["training"] = {"steps": 3, "batchSize": 8}
        case "Starting":
            spec["model"] = {"uri": "random://tiny", "tokenSecretRef": {"name": "there-is-no-such-secret"}}
        case "Suspended":
            spec["runPolicy"] = {"suspend": True}
        case "Succeeded":
            fake = {"FAKE_STEPS": "1"}
        case "Failed":
            fake = {"FAKE_EXIT": "64", "FAKE_STEPS": "1"}
    jobs.create("gone", fake, **spec)
    jobs.wait_phase("gone", phase)
    jobs.delete("gone")
    jobs.wait(lambda: jobs.left("gone") == [], shown=lambda: jobs.left("gone"))


def test_a_job_created_again_at_once_does_not_meet_its_predecessor(operator: OperatorProcess, jobs: Any) -> None:
    jobs.create("again", {"FAKE_WAIT": "yes", "FAKE_SAVE_S": "2"})
    jobs.wait_phase("again", "Running")
    jobs.delete("again")
    jobs.create("again", {"FAKE_STEPS": "3"})
    jobs.wait_phase("again", "Succeeded")
    assert not (jobs.runs / "again" / "doubled").exists()


def test_an_idle_operator_is_small_and_quiet(operator: OperatorProcess, jobs: Any) -> None:
    for number in range(5):
        jobs.create(f"idle-{number}", runPolicy={"suspend": True})
    for number in range(5):
        jobs.wait_phase(f"idle-{number}", "Suspended")
    process = psutil.Process(operator.pid)
    assert any(_share_used(process) < 0.05 for _ in range(6))  # again: it may still have been at work
    assert process.memory_info().rss < 200e6


def _share_used(process: psutil.Process) -> float:
    """Of a processor, for some seconds."""
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(5)
    after, seconds = process.cpu_times(), time.monotonic() - began
    return float((after.user + after.system) - (before.user + before.system)) / seconds


def test_sigterm_ends_the_operator_cleanly_and_a_new_one_goes_on(operator: OperatorProcess, jobs: Any) -> None:
    jobs.create("handed-over", {"FAKE_HOLD_AT": "2"})
    jobs.wait_phase("handed-over", "Running")
    assert operator.stop() == 0
    assert "Traceback" not in operator.log.read_text()
    operator.start()
    jobs.mark("handed-over")
    jobs.wait_phase("handed-over", "Succeeded")


def test_any_command_runs_as_a_job_and_its_exit_code_counts(operator: OperatorProcess, jobs: Any) -> None:
    def command(script: str) -> Manifest:
        return {"image": "mine:1", "runtime": {"container": {"command": ["/bin/sh", "-c"], "args": [script]}}}

    jobs.create("mine", **command('run=${POSTTRAIN_RUN_DIRECTORY#file://}; mkdir -p "$run" && touch "$run/was-here"'))
    jobs.create("wrong", **command("echo column prompt is missing >&2; exit 65"))
    assert jobs.wait_phase("mine", "Succeeded").restarts == {}
    assert (jobs.runs / "mine" / "was-here").exists()
    status = jobs.wait_phase("wrong", "Failed")
    assert condition(status, "Failed") == ("True", "DataError")
    assert "column prompt is missing" in status.failure.message


def test_a_trainer_over_its_memory_limit_is_told_the_limit_and_where_to_raise_it(
    operator: OperatorProcess, jobs: Any
) -> None:
    script = "import time; held = b'x' * (200 << 20); time.sleep(600)"
    jobs.create(
        "hungry",
        image="mine:1",
        runtime={"container": {"command": ["python", "-c", script]}},
        resources={"trainer": {"limits": {"memory": "100Mi"}}},
        runPolicy={"maxRestarts": 0},
    )
    status = jobs.wait_phase("hungry", "Failed")
    assert condition(status, "Failed") == ("True", "OutOfMemoryHost")
    assert status.failure.exit_code == 137
    limit = "more than its memory limit of 100Mi (spec.resources.trainer.limits.memory; OOMKilled)"
    assert limit in status.failure.message


def test_an_init_container_fills_a_volume_before_the_program_starts(operator: OperatorProcess, jobs: Any) -> None:
    jobs.create(
        "fetched",
        image="mine:1",
        runtime={"container": {"command": ["test", "-f", "/corpus/rows"]}},
        volumes=[{"name": "corpus", "mountPath": "/corpus", "emptyDir": {}}],
        pod={
            "labels": {"team": "a"},
            "initContainers": [
                {"name": "fetch", "command": ["touch", "/work/rows"],
                 "volumeMounts": [{"name": "corpus", "mountPath": "/work"}]},
            ],
        },
    )  # fmt: skip
    jobs.wait_phase("fetched", "Succeeded")
    (pod,) = jobs.pods("fetched")
    assert pod["metadata"]["labels"]["team"] == "a"


def test_what_a_failing_init_container_printed_is_in_the_status(operator: OperatorProcess, jobs: Any) -> None:
    script = "echo column prompt is missing >&2; exit 3"
    jobs.create(
        "unfetched",
        image="mine:1",
        runtime={"container": {"command": ["true"]}},
        runPolicy={"maxRestarts": 0},
        pod={"initContainers": [{"name": "fetch", "command": ["/bin/sh", "-c", script]}]},
    )
    failure = jobs.wait_phase("unfetched", "Failed").failure
    assert failure.message == "container fetch ended with exit code 3: column prompt is missing"
    assert failure.log == "column prompt is missing"


def test_a_maxtext_job_shows_what_its_log_says(operator: OperatorProcess, jobs: Any) -> None:
    runtime = {"maxtext": {"modelName": "llama3.1-8b"}}
    jobs.create("maxtext", image="maxtext:1", runtime=runtime, model={"uri": "gs://nowhere/m/0/items"})
    jobs.wait(lambda: jobs.status("maxtext").progress.step == 2, shown=lambda: jobs.status("maxtext"))
    status = jobs.wait_phase("maxtext", "Running")
    assert (status.progress.steps, status.metrics.loss, status.metrics.tokens_per_second_per_chip) == (
        "2/3",
        "2.8",
        "64",
    )
    jobs.mark("maxtext")
    assert jobs.wait_phase("maxtext", "Succeeded").failure is None


def test_a_model_of_the_hub_is_staged_before_preflight_and_the_pods_read_the_copy(
    operator: OperatorProcess, jobs: Any, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text("{}")
    copy, output = f"gs://out/runs/.models/org--gated@{COMMIT}", {"uri": "gs://out/runs"}
    with bucket.serve() as buckets, hub(tmp_path / "model") as endpoint:
        env = {**buckets.environment(), "HF_ENDPOINT": endpoint, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        chips: Any = {"accelerator": {"type": "v6e-4"}, "preflight": "Enforce", "output": output}
        jobs.create("refused", env, model={"uri": "hf://org/gated", "stage": True}, **chips)
        assert jobs.wait_phase("refused", "Failed").failure.failure_class == "ConfigError"
        assert "hf://org/gated: you have no access" in jobs.status("refused").failure.message
        jobs.kube.create(
            SECRETS, {"metadata": {"name": "hf", "namespace": jobs.namespace}, "stringData": {"token": TOKEN}}
        )
        model = {"uri": "hf://org/gated", "revision": "v1", "stage": True, "tokenSecretRef": {"name": "hf"}}
        jobs.create("staged", env, model=model, **chips)
        status = jobs.wait_phase("staged", "Provisioning", "Failed")
        assert (condition(status, "Staged"), status.staged_model) == (("True", "Staged"), copy)
        assert condition(status, "Preflighted") == ("True", "Fits")
        (file,) = (each for each in jobs.kube.list(CONFIGMAPS, jobs.namespace).items if "staged" in str(each))
        assert yaml.safe_load(file["data"]["job.yaml"])["spec"]["model"]["uri"] == copy
        names = {name.rpartition("/")[2] for name in buckets.names("out", copy.removeprefix("gs://out/"))}
        assert names == {"config.json", "tokenizer.json", "model.safetensors", "posttrain-staged"}


def test_preflight_goes_before_the_pods_and_its_verdict_into_status(
    operator: OperatorProcess, jobs: Any, tmp_path: Path
) -> None:
    jobs.create("checked", {"FAKE_PREFLIGHT_UNTIL": str(tmp_path / "may-fit")}, preflight="Enforce")
    status = jobs.wait_phase("checked", "Preflight")
    assert condition(status, "Preflighted") == ("False", "PreflightRunning")
    assert jobs.find(JOBSETS, "checked") is None
    (tmp_path / "may-fit").touch()
    status = jobs.wait_phase("checked", "Succeeded")
    assert condition(status, "Preflighted") == ("True", "Fits")
    assert status.preflight.peak_gib == 1.5
    assert status.restarts == {}
