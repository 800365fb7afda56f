"""`runtime: maxtext`: MaxText's own commands from the spec, and the tutorial's job against what XPK makes of it.

Sources: see builders/xpk.py for XPK and the tutorial's words; the numbers that the tutorial leaves to MaxText are
those of src/maxtext/configs/post_train/rl.yml, base.yml and configs/types.py at maxtext e591f30 (2026-08-22).
"""

from typing import Any

import pytest
import yaml
from tests.builders.operator.manifest_checks import covers, differences
from tests.builders.xpk import TUTORIAL_ENV, pathways_jobset, tutorial_words
from tests.unit.ptoperator.render.test_render import CASES, SETTINGS, env_of, job, pod_spec

from ptapi.errors import SpecError
from ptapi.validation.rules.pods.maxtext import RENDERED
from ptkube.resources import Manifest
from ptoperator.render import jobset, layout_of
from ptoperator.render.pods.maxtext_command import RL_MODULE, SFT_MODULE

TUTORIAL, IRONWOOD, SFT = "maxtext-rl-v5p-128", "maxtext-rl-tpu7x-128", "maxtext-sft-v6e-256"
RL_DEFAULTS = {
    "max_target_length": "1024", "learning_rate": "3e-06", "adam_b1": "0.9", "adam_b2": "0.99",
    "adam_weight_decay": "0.1", "gradient_clipping_threshold": "0.1", "warmup_steps_fraction": "0.1",
    "data_shuffle_seed": "42", "checkpoint_period": "50", "eval_interval": "10", "num_generations": "2",
    "num_iterations": "1", "grpo_beta": "0.08", "grpo_epsilon": "0.2", "num_batches": "4", "batch_size": "1",
    "max_prefill_predict_length": "256", "decode_sampling_temperature": "0.9", "decode_sampling_nucleus_p": "1",
    "decode_sampling_top_k": "50", "max_num_checkpoints_to_keep": "10", "chips_per_vm": "4",
    "dataset_name": "openai/gsm8k", "train_split": "train", "eval_dataset_name": "openai/gsm8k",
    "eval_split": "test", "num_test_batches": "5",
    "eval_batch_size": "1",  # rl.yml: -1, which is batch_size
}  # fmt: skip

# Where ours differs from XPK's JobSet on purpose; docs/guides/runtimes.md says why. Lists are taken by name.
JOBS, POD = "spec.replicatedJobs", "template.spec.template.spec"
HEAD, WORKER = f"{JOBS}.pathways-head.{POD}", f"{JOBS}.pathways-worker.{POD}"
EVERY_POD = ("serviceAccountName", "automountServiceAccountToken", "enableServiceLinks", "securityContext",
             "terminationGracePeriodSeconds")  # fmt: skip
DIFFERENT = {
    "metadata.labels", "metadata.annotations", "metadata.namespace", "metadata.ownerReferences",
    "spec.failurePolicy",
    f"{JOBS}.pathways-head.template.metadata.labels", f"{JOBS}.pathways-worker.template.metadata.labels",
    f"{JOBS}.pathways-head.template.spec.podFailurePolicy", f"{JOBS}.pathways-worker.template.spec.podFailurePolicy",
    f"{JOBS}.pathways-head.template.spec.template.metadata", f"{JOBS}.pathways-worker.template.spec.template.metadata",
    f"{JOBS}.pathways-worker.template.spec.backoffLimit", f"{WORKER}.restartPolicy",
    *(f"{pod}.{field}" for pod in (HEAD, WORKER) for field in (*EVERY_POD, "hostNetwork", "dnsPolicy", "volumes")),
    f"{HEAD}.priorityClassName", f"{HEAD}.shareProcessNamespace",
    f"{HEAD}.initContainers.pathways-proxy.imagePullPolicy", f"{HEAD}.initContainers.pathways-rm.imagePullPolicy",
    f"{HEAD}.initContainers.pathways-proxy.args.--gcs_scratch_location",
    f"{HEAD}.initContainers.pathways-rm.args.--gcs_scratch_location",
    f"{HEAD}.initContainers.pathways-proxy.env.IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS",
    f"{WORKER}.containers.pathways-worker.imagePullPolicy",
    f"{WORKER}.containers.pathways-worker.args.--gcs_scratch_location",
    f"{WORKER}.containers.pathways-worker.resources.limits", f"{WORKER}.tolerations.google.com/tpu.effect",
    *(f"{HEAD}.containers.trainer.{field}" for field in (
        "command", "args", "imagePullPolicy", "securityContext", "resources", "volumeMounts",
        "terminationMessagePath", "terminationMessagePolicy")),
    *(f"{HEAD}.containers.trainer.env.{name}" for name in (
        "PATHWAYS_HEAD", "JAX_BACKEND_TARGET", "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS",
        "ENABLE_PATHWAYS_PERSISTENCE", "TF_CPP_MIN_LOG_LEVEL", "HF_TOKEN", "HOME", "USER", "PYTHONUNBUFFERED",
        "POSTTRAIN_RUN_DIRECTORY",
        "POSTTRAIN_TERMINATION_LOG")),
}  # fmt: skip


def made(name: str) -> Manifest:
    return jobset(layout_of(job(CASES[name]), SETTINGS))


def words(name: str) -> dict[str, str]:
    (container,) = pod_spec(made(name))["containers"]
    pairs = [word.partition("=")[::2] for word in container["args"]]
    assert len(pairs) == len(dict(pairs)), "a key stands twice"
    return dict(pairs)


def changed(name: str, **patch: Any) -> SpecError:
    document = yaml.safe_load(yaml.safe_dump(CASES[name]))
    for path, value in patch.items():
        node, *rest = document["spec"], *path.split("__")
        for step in rest[:-1]:
            node = node.setdefault(step, {})
        node[rest[-1]] = value
    with pytest.raises(SpecError) as caught:
        job(document)
    return caught.value


def keyed(value: Any) -> Any:
    """Lists of named things and of flags as maps, so that their order says nothing."""
    if isinstance(value, dict):
        return {key: keyed(each) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    if value and all(isinstance(each, str) and each.startswith("--") for each in value):
        return dict(each.partition("=")[::2] for each in value)
    key = next(
        (
            key
            for key in ("name", "containerPort", "key")
            if all(isinstance(each, dict) and key in each for each in value)
        ),
        None,
    )
    return {str(each[key]): keyed(each) for each in value} if key else [keyed(each) for each in value]


def xpks_and_ours() -> set[str]:
    spec = CASES[TUTORIAL]["spec"]
    theirs = pathways_jobset(TUTORIAL, spec["image"], "tpu-v5p-slice", "4x4x4", "tpuv5:4x4x4", 16)
    theirs["spec"]["replicatedJobs"][1]["name"] = "pathways-worker"  # XPK: worker
    theirs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "trainer"
    return differences(keyed(made(TUTORIAL)), keyed(theirs))


def test_the_tutorials_jobset_is_xpks_but_for_the_intended_differences() -> None:
    assert {path for path in xpks_and_ours() if not any(covers(each, path) for each in DIFFERENT)} == set()


def test_every_intended_difference_is_one() -> None:
    paths = xpks_and_ours()
    assert {each for each in DIFFERENT if not any(covers(each, path) for path in paths)} == set()


def test_the_tutorials_words_are_said_and_what_is_said_beside_them_is_maxtexts_default() -> None:
    spec = CASES[TUTORIAL]["spec"]
    (container,) = pod_spec(made(TUTORIAL))["containers"]
    assert container["command"] == ["python3", "-m", "maxtext.trainers.post_train.rl.train_rl"]
    theirs = tutorial_words("llama3.1-70b-Instruct", spec["model"]["uri"], TUTORIAL, spec["output"]["uri"])
    tutorial = dict(word.partition("=")[::2] for word in theirs)
    del tutorial["hf_access_token"]  # MaxText reads HF_TOKEN, and a token in argv can be read by many
    ours = words(TUTORIAL)
    assert {key: ours.pop(key, None) for key in tutorial} == tutorial
    assert ours == RL_DEFAULTS


def test_the_tutorials_variables_are_set_and_the_token_comes_from_the_secret() -> None:
    env = env_of(made(TUTORIAL))
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
    plain = ("JAX_PLATFORMS", "ENABLE_PATHWAYS_PERSISTENCE", "TF_CPP_MIN_LOG_LEVEL")
    assert {name: env[name] for name in plain} == {name: TUTORIAL_ENV[name] for name in plain}
    assert env["JAX_BACKEND_TARGET"] == "grpc://localhost:29000"  # the tutorial: 127.0.0.1


def test_the_ironwood_demo_takes_64_chips_as_128_devices_for_250_steps() -> None:
    rendered, options = made(IRONWOOD), words(IRONWOOD)
    workers = rendered["spec"]["replicatedJobs"][1]["template"]["spec"]
    assert (workers["completions"], workers["parallelism"]) == (16, 16)
    placed = workers["template"]["spec"]
    assert placed["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x", "cloud.google.com/gke-tpu-topology": "4x4x4",
    }  # fmt: skip
    assert placed["containers"][0]["resources"]["limits"] == {"google.com/tpu": 4}
    manager, proxy = pod_spec(rendered)["initContainers"]
    assert "--instance_type=tpu7x:4x4x4" in manager["args"]
    assert proxy["args"][-3:] == CASES[IRONWOOD]["spec"]["pathways"]["proxyArgs"]
    assert {key: options[key] for key in ("num_batches", "batch_size", "train_micro_batch_size", "chips_per_vm")} == {
        "num_batches": "250", "batch_size": "128", "train_micro_batch_size": "32", "chips_per_vm": "8",
    }  # fmt: skip
    assert options["dataset_name"] == "nvidia/OpenMathInstruct-2"
    assert options["hf_train_files"].endswith("data/train_1M-*.parquet")
    assert (options["tokenizer_path"], options["num_test_batches"]) == ("Qwen/Qwen3-30B-A3B-Base", "10")


def test_sft_says_its_batch_per_device_and_its_mesh() -> None:
    options = words(SFT)
    assert pod_spec(made(SFT))["containers"][0]["command"][-1] == SFT_MODULE != RL_MODULE
    assert (options["steps"], options["per_device_batch_size"]) == ("1000", "1")
    assert options["gradient_accumulation_steps"] == "1"
    assert (options["ici_fsdp_parallelism"], options["dcn_data_parallelism"]) == ("256", "1")
    assert (options["hf_path"], options["train_data_columns"]) == ("HuggingFaceH4/ultrachat_200k", "['messages']")
    assert "enable_single_controller" not in options


def test_the_jobs_own_words_win() -> None:
    document = yaml.safe_load(yaml.safe_dump(CASES[SFT]))
    document["spec"]["runtime"]["maxtext"]["args"] = ["learning_rate=1e-4", "remat_policy=full"]
    (container,) = pod_spec(jobset(layout_of(job(document), SETTINGS)))["containers"]
    assert container["args"][-2:] == ["learning_rate=1e-4", "remat_policy=full"]
    assert [word for word in container["args"] if word.startswith("learning_rate=")] == ["learning_rate=1e-4"]


@pytest.mark.parametrize(
    ("name", "patch", "field", "accepted"),
    [
        (TUTORIAL, {"algorithm__grpo__loss": "cispo"}, "spec.algorithm.grpo.loss", "grpo or gspo-token"),
        (TUTORIAL, {"algorithm__grpo__clipHigh": 0.3}, "spec.algorithm.grpo.clipHigh", "has no word for it"),
        (TUTORIAL, {"training__lora": {"rank": 8}}, "spec.training.lora.rank", "has no word for it"),
        (TUTORIAL, {"training__steps": None}, "spec.training.steps", "counts steps and no epochs"),
        (TUTORIAL, {"rewards": [{"builtin": "format"}]}, "spec.rewards", "MaxText's own rewards"),
        (TUTORIAL, {"pathways": {}}, "spec.pathways.enabled", "with Pathways alone"),
        (TUTORIAL, {"data__train__uri": "gs://lab/d.jsonl"}, "spec.data.train.uri", "hf://datasets/"),
        (TUTORIAL, {"model__uri": "hf://meta-llama/Llama-3.1-70B"}, "spec.model.uri", "a MaxText checkpoint"),
        (SFT, {"algorithm": {"dpo": {}}}, "spec.algorithm", "sft or grpo"),
        (SFT, {"algorithm__sft__zLoss": 1e-4}, "spec.algorithm.sft.zLoss", "has no word for it"),
        (SFT, {"export": {"format": "none"}}, "spec.export.format", "has no word for it"),
    ],
)
def test_what_maxtext_cannot_do_is_refused(name: str, patch: dict[str, Any], field: str, accepted: str) -> None:
    findings = {finding.field: finding for finding in changed(name, **patch).findings}
    assert accepted in findings[field].accepted, findings


def test_a_token_among_the_words_is_refused_and_not_shown() -> None:
    error = changed(SFT, runtime__maxtext__args=["hf_access_token=hf_planted"])
    assert "hf_planted" not in str(error)
    assert "model.tokenSecretRef" in str(error)


@pytest.mark.parametrize("name", [TUTORIAL, SFT])
def test_fields_that_count_as_said_change_the_words(name: str) -> None:
    document = CASES[name]
    before = words(name)
    kind = job(document).spec.algorithm.kind
    numbers = {"training.sequenceLength": 4096, "training.seed": 7, "training.optimizer.learningRate": 1e-3,
               "training.optimizer.beta1": 0.5, "training.optimizer.weightDecay": 0.3,
               "training.schedule.warmupFraction": 0.5, "checkpoint.everySteps": 7}  # fmt: skip
    assert numbers.keys() <= RENDERED[kind]
    for path, value in numbers.items():
        other = yaml.safe_load(yaml.safe_dump(document))
        node = other["spec"]
        *parents, last = path.split(".")
        for step in parents:
            node = node.setdefault(step, {})
        node[last] = value
        (container,) = pod_spec(jobset(layout_of(job(other), SETTINGS)))["containers"]
        assert dict(word.partition("=")[::2] for word in container["args"]) != before, path
