"""Samplers with pods of their own: what is rendered, and what the status says when one is lost."""

import json
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from tests.builders.operator.world import START, Api
from tests.unit.ptoperator.render.test_gpus import TCPXO
from tests.unit.ptoperator.render.test_render import SETTINGS, UID, env_of, job, job_manifest

import posttrain_vllm
from ptapi.conditions import ConditionType, Phase
from ptapi.failures import FailureClass
from ptapi.load import manifest
from ptapi.run_directory import Progress, SlicesProgress
from ptapi.status import Condition
from ptkube.resources import SECRETS, Manifest
from ptoperator.failures.pod_failures import cause, pod_failure
from ptoperator.job import read_job
from ptoperator.kube import labels
from ptoperator.kube.actions import CreateToken, Delete, apply, describe
from ptoperator.observe import elastic_slices
from ptoperator.observe.observed_parts import RunDocuments
from ptoperator.observe.state import Observed
from ptoperator.plan.hang import hang_detected
from ptoperator.plan.step_result import PlanContext
from ptoperator.render import Layout, config_maps, jobset, layout_of, pod_group_kind, render, sampler_secret
from ptoperator.render.pods.beside import vllm_plugin
from ptoperator.render.pods.environment_variables import TOKEN_KEY
from ptoperator.status.running_phases import jobset_active


def layout(name: str = "llama", **separate: Any) -> Layout:
    """Return that of a job with two samplers on one device each."""
    made = job_manifest(
        name,
        algorithm={"grpo": {"groupSize": 4}},
        rewards=[{"builtin": "gsm8k"}],
        rollout={"maxNewTokens": 8, "placement": "separate", "separate": {"replicas": 2, **separate}},
        accelerator={"type": "v6e-4"},
        training={"steps": 2, "batchSize": 16},
    )
    return layout_of(job(made), SETTINGS)


def sampler_pod(made: Manifest) -> Manifest:
    pod: Manifest = made["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
    return pod


def test_each_sampler_is_a_job_of_one_pod_on_its_own_chips() -> None:
    made = jobset(layout(accelerator={"type": "v5p-8"}))
    trainer, samplers = made["spec"]["replicatedJobs"]
    assert (trainer["name"], samplers["name"], samplers["replicas"]) == ("slice", "sampler", 2)
    pod = sampler_pod(made)["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == "tpu-v5p-slice"
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["google.com/tpu"] == 4
    assert container["args"][1:5] == ["--spec", "/etc/posttrain/job.yaml", "--index", "$(POSTTRAIN_SAMPLER_INDEX)"]
    assert "all_gather" not in str(sampler_pod(jobset(layout(accelerator={"type": "cpu-1"})))), "a TPU's flags"


def test_the_trainer_knows_where_each_sampler_listens_and_both_read_one_token() -> None:
    made = jobset(layout())
    port = sampler_pod(made)["spec"]["containers"][0]["ports"][0]["containerPort"]
    hosts = [f"llama-sampler-{index}-0.llama:{port}" for index in range(2)]
    trainer = env_of(made)
    assert trainer["POSTTRAIN_SAMPLERS"] == ",".join(hosts)
    sampler = {each["name"]: each for each in sampler_pod(made)["spec"]["containers"][0]["env"]}
    token = trainer["POSTTRAIN_SAMPLER_TOKEN"]["secretKeyRef"]
    assert sampler["POSTTRAIN_SAMPLER_TOKEN"]["valueFrom"]["secretKeyRef"] == token
    assert token == {"name": sampler_secret(layout())["metadata"]["name"], "key": TOKEN_KEY}


def test_every_process_of_several_slices_knows_the_samplers_and_the_leader_and_each_slice_has_a_pool() -> None:
    spec = manifest(layout(accelerator={"type": "v6e-4"}).job)["spec"] | {
        "accelerator": {"type": "v6e-16", "slices": 2}, "training": {"steps": 2, "batchSize": 32},
    }  # fmt: skip
    of = layout_of(job(job_manifest("llama", **spec)), SETTINGS)
    made = jobset(of)
    trainer, samplers = made["spec"]["replicatedJobs"]
    assert (trainer["replicas"], trainer["template"]["spec"]["parallelism"], samplers["replicas"]) == (2, 4, 2)
    env = env_of(made)
    assert (env["JAX_COORDINATOR_ADDRESS"], env["JAX_NUM_PROCESSES"]) == ("llama-slice-0-0.llama:8476", "8")
    assert env["POSTTRAIN_SAMPLERS"].startswith("llama-sampler-0-0.llama:")
    assert not {"JAX_COORDINATOR_ADDRESS", "POSTTRAIN_SLICE_INDEX"} & {
        each["name"] for each in sampler_pod(made)["spec"]["containers"][0]["env"]
    }
    assert "exclusive-topology" in str(trainer["template"]["metadata"])
    assert "exclusive-topology" not in str(samplers)
    assert (of.held_chips, of.pods, of.described) == (
        {"v6e": 40}, 10, "2 x v6e-16 (32 chips) and 2 samplers on v6e-4 (4 chips) each"
    )  # fmt: skip


def of_several_hosts(**separate: Any) -> Layout:
    """Return the layout of a job with two samplers of two hosts each, beside a trainer of one."""
    return layout(accelerator={"type": "v5p-16"}, **separate)


def test_the_pods_of_a_sampler_of_several_hosts_join_have_a_slice_and_come_back_together() -> None:
    made = of_several_hosts()
    samplers = jobset(made)["spec"]["replicatedJobs"][1]
    of_each = samplers["template"]["spec"]
    assert (samplers["replicas"], of_each["parallelism"], of_each["completions"]) == (2, 2, 2)
    assert of_each["backoffLimit"] == 2 * 3, "a host that is lost may cost a failure of each of its sampler's pods"
    assert samplers["template"]["metadata"]["annotations"] == {labels.EXCLUSIVE_TOPOLOGY: labels.NODE_POOL}
    pod = of_each["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x2x2"
    (container,) = pod["containers"]
    env = {each["name"]: each for each in container["env"]}
    assert env["JAX_COORDINATOR_ADDRESS"]["value"] == "llama-sampler-$(POSTTRAIN_SAMPLER_INDEX)-0.llama:8476"
    assert list(env).index("POSTTRAIN_SAMPLER_INDEX") < list(env).index("JAX_COORDINATOR_ADDRESS"), "else not expanded"
    assert env["JAX_NUM_PROCESSES"]["value"] == env["POSTTRAIN_HOSTS_PER_SLICE"]["value"] == "2", (
        "logs count ranks by it"
    )
    assert "job-completion-index" in env["JAX_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert container["resources"]["limits"]["google.com/tpu"] == 4
    assert env_of(jobset(made))["POSTTRAIN_SAMPLERS"].count(",") == 1, "the trainer speaks to one pod of each"
    assert (made.held_chips, made.pods, made.pool_count) == ({"v6e": 4, "v5p": 16}, 5, 3)
    assert made.pool_chips(1).vms == 2
    assert pod_group_kind(replace(made, settings=replace(SETTINGS, pod_groups="v1beta1"))) is None


def test_samplers_on_several_machines_of_gpus_have_their_network() -> None:
    made = layout(accelerator={"type": "h100-mega-16"})
    made = replace(made, settings=replace(made.settings, gpu_networks=TCPXO))
    pod = sampler_pod(jobset(made))
    assert "networking.gke.io/interfaces" in pod["metadata"]["annotations"]
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["tcpxo-daemon"]


def vllm_pod(model: str = "hf://Qwen/Qwen3-8B", chips: str = "v6e-4", **changes: Any) -> Manifest:
    """Return the pod template of a sampler that is vLLM."""
    return sampler_pod(jobset(vllm_layout(model, chips, **changes)))


def vllm_layout(model: str = "hf://Qwen/Qwen3-8B", chips: str = "v6e-4", **changes: Any) -> Layout:
    """Return the layout of a job whose samplers are vLLM."""
    rollout = {
        "maxNewTokens": 8,
        "engine": "vllm",
        "vllm": {"weightsDirectory": "/shared/weights", **changes.pop("vllm", {})},
        "placement": "separate",
        "separate": {"accelerator": {"type": chips}},
        **changes.pop("rollout", {}),
    }
    spec: dict[str, Any] = {
        "model": {"uri": model, "revision": "main"} if model.startswith("hf://") else {"uri": model},
        "algorithm": {"grpo": {"groupSize": 4}},
        "rewards": [{"builtin": "gsm8k"}],
        "rollout": rollout,
        "accelerator": {"type": "v6e-4"},
        "training": {"steps": 2, "batchSize": 16, "sequenceLength": 64, "lora": {"rank": 100}},
        "volumes": [{"name": "shared", "mountPath": "/shared", "persistentVolumeClaim": {"claimName": "shared"}}],
    }
    return layout_of(job(job_manifest("llama", **{**spec, **changes})), SETTINGS)


def flags(pod: Manifest) -> dict[str, str]:
    """Return the arguments by flag; a flag without a value has the next one's name."""
    words = pod["spec"]["containers"][0]["args"]
    return dict(zip(words, [*words[1:], ""], strict=True))


def test_a_sampler_that_is_vllm_serves_the_model_under_its_pods_own_name() -> None:
    (container,) = vllm_pod()["spec"]["containers"]
    env = {each["name"]: each for each in container["env"]}
    given = flags(vllm_pod())
    assert container["image"] == "vllm/vllm-tpu:v0.32.0"
    assert container["command"] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    assert given["--served-model-name"] == "$(POSTTRAIN_SAMPLER_POD)"
    assert env["POSTTRAIN_SAMPLER_POD"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert env["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"]["key"] == TOKEN_KEY
    assert (given["--tensor-parallel-size"], given["--max-model-len"], given["--revision"]) == ("4", "64", "main")
    assert (given["--max-lora-rank"], "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in env) == ("128", True)
    assert container["startupProbe"]["httpGet"] == {"path": "/health", "port": "sampler"}
    assert {"name": "shared", "mountPath": "/shared"} in container["volumeMounts"]


def test_every_host_of_a_trainer_has_the_volume_and_the_servers_addresses() -> None:
    made = jobset(vllm_layout(accelerator={"type": "v6e-16"}))
    trainer = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = trainer["template"]["spec"]["containers"]
    assert trainer["parallelism"] == 4
    assert {"name": "shared", "mountPath": "/shared"} in container["volumeMounts"]
    assert env_of(made)["POSTTRAIN_SAMPLERS"] == "llama-sampler-0-0.llama:8477"


def test_a_sampler_on_gpus_that_is_given_all_weights_takes_them_in_development_mode() -> None:
    training = {"steps": 2, "batchSize": 16, "sequenceLength": 64}
    (container,) = vllm_pod(chips="h100-2", training=training)["spec"]["containers"]
    env = {each["name"] for each in container["env"]}
    assert {"VLLM_SERVER_DEV_MODE"} == {"VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"} & env
    assert "--enable-lora" not in container["args"]
    assert container["image"] == "vllm/vllm-openai:v0.32.0"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2


def test_a_sampler_that_is_given_all_weights_finds_the_plugin_as_an_installed_package(tmp_path: Path) -> None:
    training = {"steps": 2, "batchSize": 16, "sequenceLength": 64}
    env = [{"name": "PYTHONPATH", "value": "/shared/packages"}]
    made = vllm_layout(chips="h100-2", training=training, env=env)
    pod, (_, plugin) = sampler_pod(jobset(made)), config_maps(made)
    (container,) = pod["spec"]["containers"]
    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "vllm-plugin"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "vllm-plugin"]
    assert volume["configMap"]["name"] == plugin["metadata"]["name"]
    [paths] = [each["value"] for each in container["env"] if each["name"] == "PYTHONPATH"]
    assert paths == f"{mount['mountPath']}:/shared/packages"
    for item in volume["configMap"]["items"]:  # as the kubelet lays them out
        (tmp_path / item["path"]).parent.mkdir(exist_ok=True)
        (tmp_path / item["path"]).write_text(plugin["data"][item["key"]])
    [package] = [each for each in distributions(path=[str(tmp_path)]) if each.name == "posttrain_vllm"]
    [entry_point] = package.entry_points.select(group="vllm.general_plugins")
    assert entry_point.name == json.loads(flags(pod)["--weight-transfer-config"])["backend"]
    assert entry_point.load() is posttrain_vllm.register
    assert sorted(path.name for path in (tmp_path / "posttrain_vllm").iterdir()) == sorted(
        path.name for path in Path(posttrain_vllm.__file__).parent.glob("*.py")
    )


def test_pods_of_a_newer_operator_do_not_mount_an_older_ones_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    made = vllm_layout(chips="h100-2", training={"steps": 2, "batchSize": 16, "sequenceLength": 64})
    job, plugin = (each["metadata"]["name"] for each in config_maps(made))
    files = vllm_plugin.files()
    monkeypatch.setattr(vllm_plugin, "files", lambda: files | {"posttrain_vllm/new.py": ""})
    newer_job, newer_plugin = (each["metadata"]["name"] for each in config_maps(made))
    [volume] = [each for each in sampler_pod(jobset(made))["spec"]["volumes"] if each["name"] == "vllm-plugin"]
    assert job == newer_job
    assert plugin != newer_plugin == volume["configMap"]["name"]


FULL = {"steps": 2, "batchSize": 16, "sequenceLength": 64}


@pytest.mark.parametrize("training", [FULL, FULL | {"lora": {"rank": 8}}])
def test_a_vllm_server_on_several_machines_is_one_sampler_whose_first_pod_serves(training: dict[str, Any]) -> None:
    made = vllm_layout(chips="h100-16", training=training)
    rendered = jobset(made)
    of_each = rendered["spec"]["replicatedJobs"][1]["template"]["spec"]
    assert (of_each["parallelism"], of_each["completions"], of_each["backoffLimit"]) == (2, 2, 2 * 3)
    assert env_of(rendered)["POSTTRAIN_SAMPLERS"] == "llama-sampler-0-0.llama:8477", "the trainer speaks to one pod"
    (container,) = of_each["template"]["spec"]["containers"]
    launcher, command = container["command"][:-4], container["command"][-4:]
    assert command == ["--", "vllm", "serve", "Qwen/Qwen3-8B"]
    assert launcher[:3] == ["python3", "-m", "posttrain_vllm.several_hosts"]
    assert launcher[3:] == [
        *("--rank", "$(POSTTRAIN_HOST_INDEX)", "--hosts", "2"),
        *("--leader", "llama-sampler-$(POSTTRAIN_SAMPLER_INDEX)-0.llama:8476", "--health", "8477"),
    ]
    given = flags(of_each["template"])
    assert (given["--tensor-parallel-size"], given["--pipeline-parallel-size"]) == ("8", "2")
    assert ("--weight-transfer-config" in given) == ("lora" not in training)
    env = {each["name"]: each for each in container["env"]}
    assert "job-completion-index" in env["POSTTRAIN_HOST_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert env["VLLM_HOST_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert {"sampler", "coordinator"} == {each["name"] for each in container["ports"]}
    assert env["PYTHONPATH"]["value"] == "/etc/posttrain-vllm"
    assert "posttrain_vllm.several_hosts.py" in config_maps(made)[1]["data"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8


def test_vllm_on_several_machines_has_the_network_of_the_gpus_and_keeps_its_buckets_mount() -> None:
    made = vllm_layout("gs://models/qwen", "h100-mega-16")
    made = replace(made, settings=replace(made.settings, gpu_networks=TCPXO))
    pod = sampler_pod(jobset(made))
    assert {"networking.gke.io/interfaces", "gke-gcsfuse/volumes"} <= pod["metadata"]["annotations"].keys()
    (container,) = pod["spec"]["containers"]
    assert container["command"][:2] == ["/bin/bash", "-c"], "NCCL's profile comes first"
    assert "posttrain_vllm.several_hosts" in container["command"]
    assert "LD_LIBRARY_PATH" in {each["name"] for each in container["env"]}


def test_adapters_need_no_plugin() -> None:
    assert not [each for each in vllm_pod()["spec"]["volumes"] if each["name"] == "vllm-plugin"]
    assert "--weight-transfer-config" not in flags(vllm_pod())
    [own] = config_maps(vllm_layout())
    assert list(own["data"]) == ["job.yaml"]


@pytest.mark.parametrize(
    ("changes", "flag", "value"),
    [
        ({}, "--dtype", "bfloat16"),
        ({"accelerator": {"type": "cpu-1"}}, "--dtype", "float32"),
        ({}, "--logprobs-mode", "raw_logprobs"),
        ({"rollout": {"temperature": 0.7}}, "--logprobs-mode", "processed_logprobs"),
        ({"vllm": {"memoryShare": 0.8}}, "--gpu-memory-utilization", "0.8"),
    ],
)
def test_vllm_computes_as_the_trainer_and_reports_log_probs_of_what_it_draws_from(
    changes: dict[str, Any], flag: str, value: str
) -> None:
    assert flags(vllm_pod(**changes))[flag] == value


def test_vllm_reads_a_model_of_a_bucket_where_it_is_mounted_and_one_of_a_claim_at_its_path() -> None:
    of_bucket, of_claim = vllm_pod("gs://models/qwen"), vllm_pod("file:///shared/qwen")
    assert of_bucket["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
    assert of_bucket["spec"]["containers"][0]["command"][-1] == "/models/model"
    assert [each["name"] for each in of_bucket["spec"]["volumes"]][-2:] == ["shared", "model"]
    assert of_claim["spec"]["containers"][0]["command"][-1] == "/shared/qwen"
    assert "gke-gcsfuse/volumes" not in of_claim["metadata"]["annotations"]


def test_the_trainers_success_ends_the_samplers_and_a_lost_sampler_ends_nothing() -> None:
    spec = jobset(layout())["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["slice"]}
    samplers = spec["replicatedJobs"][1]["template"]["spec"]
    assert samplers["backoffLimit"] == 3
    assert [rule["action"] for rule in samplers["podFailurePolicy"]["rules"]] == ["Ignore", "Ignore", "FailJob"]


def test_pod_names_of_many_samplers_fit() -> None:
    many = layout("a" * 63, replicas=64)
    assert len(f"{many.jobset}-sampler-63-0-xxxxx") <= 63


def test_a_rendered_token_is_empty_and_a_written_one_random_and_kept() -> None:
    first, second = Api(), Api()
    secret = next(made for made in render(layout().job, SETTINGS) if made["kind"] == "Secret")
    assert secret["stringData"] == {TOKEN_KEY: ""}
    action = CreateToken(secret, TOKEN_KEY)
    tokens = []
    for api in (first, second):
        apply(api, action)  # type: ignore[arg-type]
        tokens.append(api.get(SECRETS, secret["metadata"]["name"], "team-a")["stringData"][TOKEN_KEY])
        apply(api, action)  # type: ignore[arg-type]
        assert api.get(SECRETS, secret["metadata"]["name"], "team-a")["stringData"][TOKEN_KEY] == tokens[-1]
    assert tokens[0] != tokens[1]
    assert all(len(token) >= 32 and token not in f"{action}{describe(action)}" for token in tokens)


def observed(made: Layout, phases: dict[str, str], phase: Phase = Phase.RUNNING) -> Observed:
    """Return the run whose pods are in these phases, by `role-index`."""
    meta = {"name": "llama", "namespace": "team-a", "uid": UID}
    owned = read_job({**manifest(made.job), "metadata": meta, "status": {"phase": str(phase)}})
    pods = tuple(_pod(name, state) for name, state in phases.items())
    return Observed(now=START, observed_at=START, job=owned, layout=made, jobset=jobset(made), pods=pods)


def _pod(name: str, phase: str) -> Manifest:
    role, _, index = name.partition("-")
    marks = {
        labels.REPLICATED_JOB_NAME: role,
        labels.JOB_INDEX: index.partition("-")[0].partition("/")[0],
        labels.COMPLETION_INDEX: index.partition("/")[2] or "0",
        **labels.for_pod("llama", UID),
    }
    conditions = [{"type": "PodScheduled", "status": "False", "message": "no v6e-4 is free"}]
    is_up = phase != "Pending"
    return {
        "metadata": {"name": f"llama-{name}", "uid": f"of-{name}", "labels": marks},
        "spec": {"nodeName": "n"} if is_up else {},
        "status": {"phase": phase, "startTime": "2026-01-01T00:00:00Z", "conditions": [] if is_up else conditions},
    }


ALL = {"slice-0": "Running", "sampler-0": "Running", "sampler-1": "Running"}


def messages(state: Observed) -> dict[str, str]:
    assert state.layout is not None
    update = jobset_active(state.layout, state, 0.0)
    return {"phase": str(update.phase)} | {str(kind): each.message for kind, each in update.conditions.items()}


def test_a_job_starts_when_all_its_pods_have_nodes() -> None:
    made = layout()
    waiting = observed(made, {**ALL, "sampler-1": "Pending"}, Phase.PROVISIONING)
    assert not elastic_slices.has_nodes(made, waiting)
    assert "2 of 3 pods have nodes; pod llama-sampler-1" in messages(waiting)["CapacityReady"]
    assert elastic_slices.has_nodes(made, observed(made, ALL, Phase.PROVISIONING))


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ({"sampler-1": "Pending"}, "sampler 1 is away, of 2: no v6e-4 is free"),
        ({"sampler-1": "Failed"}, "sampler 1 is away, of 2"),
        ({"sampler-0": "Failed", "sampler-1": "Failed"}, "samplers 0, 1 are away, of 2"),
    ],
)
def test_a_run_goes_on_without_a_sampler_and_names_it(lost: dict[str, str], words: str) -> None:
    made = layout()
    state = observed(made, {**ALL, **lost})
    assert elastic_slices.has_nodes(made, state)
    message = messages(state)
    assert message["phase"] == "Running"
    assert message["Running"].endswith(words)


def test_a_run_of_several_slices_goes_on_without_one_of_them_and_without_a_sampler() -> None:
    chips = {"accelerator": {"type": "v6e-8", "slices": 2, "minSlices": 1}, "training": {"steps": 2, "batchSize": 16}}
    rollout = {"placement": "separate", "separate": {"replicas": 2, "accelerator": {"type": "v6e-4"}}}
    algorithm = {"algorithm": {"grpo": {"groupSize": 4}}, "rewards": [{"builtin": "gsm8k"}]}
    gs = {"output": {"uri": "gs://bucket/runs"}}
    made = layout_of(job(job_manifest(rollout={"maxNewTokens": 8, **rollout}, **algorithm, **chips, **gs)), SETTINGS)
    success = jobset(made)["spec"]["successPolicy"]
    assert success == {"operator": "Any", "targetReplicatedJobs": ["slice"]}, "the samplers would never end"
    running = {"slice-0-a": "Running", "slice-0-b": "Running", "sampler-0": "Running", "sampler-1": "Running"}
    state = observed(made, {**running, "slice-1-a": "Running", "slice-1-b": "Pending", "sampler-1": "Failed"})
    at_work = SlicesProgress(present=[0], total=2, generation=2, restarts={"HostError": 1})
    progress = Progress(job_uid=UID, stage="training", step=7, updated="2026-01-01T00:01:00Z", slices=at_work)
    begun = replace(state, run=replace(state.run, progress=progress))
    assert elastic_slices.has_nodes(made, begun)
    message = messages(begun)
    assert message["phase"] == "Running"
    assert message["CapacityReady"] == "2 of 6 pods have nodes; the run continues without 1 of 2 slices"
    words = "on 1 of 2 slices, after 1 restart in place (HostError 1); sampler 1 is away, of 2"
    assert message["Running"].endswith(words)
    assert not elastic_slices.has_nodes(made, state), "at first all slices are needed"


def test_as_many_slices_as_there_are_change_nothing_beside_vllm() -> None:
    def made(**chips: Any) -> Manifest:
        spec = manifest(vllm_layout("hf://Qwen/Qwen3-8B", "v6e-4").job)["spec"]
        return jobset(layout_of(job(job_manifest(**spec | {"accelerator": spec["accelerator"] | chips})), SETTINGS))

    assert made(slices=1, minSlices=1) == made()


def test_a_sampler_that_came_back_is_not_counted_twice() -> None:
    made = layout()
    state = observed(made, {**ALL, "sampler-1": "Failed", "sampler-1-again": "Running"}, Phase.PROVISIONING)
    assert elastic_slices.away(made, state) == ""
    assert elastic_slices.has_nodes(made, state)
    assert not state.has_missing_pods


@pytest.mark.parametrize("lost", [{"sampler-1/1": "Pending"}, {"sampler-1/1": "Failed"}])
def test_a_sampler_is_away_that_lacks_one_of_its_hosts(lost: dict[str, str]) -> None:
    made = of_several_hosts()
    pods = {"slice-0": "Running"} | {f"sampler-{index}/{host}": "Running" for index in (0, 1) for host in (0, 1)}
    assert elastic_slices.away(made, observed(made, pods)) == ""
    state = observed(made, pods | lost)
    assert "sampler 1 is away" in elastic_slices.away(made, state)
    assert elastic_slices.has_nodes(made, state), "the run goes on"
    assert not elastic_slices.has_nodes(made, observed(made, pods | lost, Phase.PROVISIONING))


def test_a_lost_trainer_is_missed() -> None:
    made = layout()
    state = observed(made, {"sampler-0": "Running", "sampler-1": "Running"})
    assert not elastic_slices.has_nodes(made, state)


def test_what_ended_the_trainer_is_its_own_failure_and_not_a_samplers_before_it() -> None:
    def failed(name: str, code: int, time: str) -> Manifest:
        ended = {"exitCode": code, "finishedAt": time}
        pod = _pod(name, "Failed")
        pod["status"]["containerStatuses"] = [{"name": name.partition("-")[0], "state": {"terminated": ended}}]
        return pod

    sampler = pod_failure(failed("sampler-0", 137, "2026-01-01T00:00:00Z"))
    trainer = pod_failure(failed("slice-0", 1, "2026-01-01T00:01:00Z"))
    fatal = pod_failure(failed("sampler-1", 2, "2026-01-01T00:02:00Z"))
    assert sampler is not None
    assert trainer is not None
    assert fatal is not None
    assert cause([sampler, trainer], 0) == trainer
    ended = cause([fatal], 0, charged=True)
    assert ended is not None
    assert (ended.kind, ended.pod) == (FailureClass.CONFIG_ERROR, "llama-sampler-1")


def test_a_trainer_that_hangs_is_ended_alone_and_the_samplers_that_are_away_are_named() -> None:
    made = layout()
    silent = Progress(stage="training", step=4, updated="2026-01-01T00:00:00Z")
    run = RunDocuments(progress=silent, progress_since=START)
    state = replace(observed(made, {**ALL, "sampler-1": "Pending"}), run=run, now=START + timedelta(days=1))
    context = PlanContext(state, made, SETTINGS)
    step = hang_detected(context)
    assert step is not None
    running = step.update.conditions[ConditionType.RUNNING]
    assert "after step 4 while training" in running.message
    assert "; sampler 1 is away, of 2: no v6e-4 is free; the pods are deleted" in running.message
    known = Condition(type=ConditionType.RUNNING, status="False", reason=running.reason, last_transition_time="")
    status = state.status.model_copy(update={"conditions": [known]})
    again = hang_detected(replace(context, state=replace(state, job=replace(state.job, status=status))))
    assert again is not None
    assert [action.name for action in again.actions if isinstance(action, Delete)] == ["llama-slice-0"]


def test_all_chips_of_a_job_are_counted_and_described() -> None:
    made = layout()
    assert made.held_chips == {"v6e": 12}
    assert made.described == "v6e-4 (4 chips) and 2 samplers on v6e-4 (4 chips) each"
    assert (made.line_hosts, observed(made, ALL).job.hosts, made.pool_count) == (3, 3, 3)
    mixed = layout(accelerator={"type": "v5p-8"}, replicas=1)
    assert mixed.held_chips == {"v6e": 4, "v5p": 4}
    assert mixed.described == "v6e-4 (4 chips) and 1 sampler on v5p-8 (4 chips)"
    assert (mixed.line_hosts, mixed.pool_count) == (1, 2)
    on_cpus = layout(accelerator={"type": "cpu-1"})
    assert (on_cpus.held_chips, on_cpus.pool_count) == ({"v6e": 4}, 1)
