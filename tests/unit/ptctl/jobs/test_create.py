"""`workload create`: from flags, from files, dry and in earnest."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ptctl.jobs.definition.from_flags import apply_flags, empty_job
from ptkube.resources import POSTTRAINJOBS

Invoke = Callable[..., Any]

FLAGS = (
    "--workload",
    "llama-gsm8k",
    "--tpu-type",
    "v6e-16",
    "--algorithm",
    "grpo",
    "--model",
    "gs://my-bucket/models/llama-3.1-8b-instruct",
    "--data",
    "gs://my-bucket/gsm8k/train.jsonl",
    "--reward",
    "gsm8k",
    "--output",
    "gs://my-bucket/runs",
)


def flags(*changes: str) -> list[str]:
    """Return the flags with other values for some, for an option with one value may be given once."""
    return [*(word for pair in {**_pairs(FLAGS), **_pairs(changes)}.items() for word in pair)]


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))


def dry(invoke: Invoke, *words: str) -> Any:
    result = invoke("workload", "create", *words, "--dry-run=client", "-o", "yaml")
    assert result.code == 0, result.err
    return yaml.safe_load(result.out)


def test_flags_in_xpks_words_make_the_same_job_as_the_file(invoke: Invoke, job_file: Path) -> None:
    assert dry(invoke, *FLAGS) == dry(invoke, "-f", str(job_file)) == yaml.safe_load(job_file.read_text())


def test_every_flag_lands_in_its_field(invoke: Invoke, tmp_path: Path) -> None:
    env_file = tmp_path / "env"
    env_file.write_text("# comment\n\nA=1\nB=x=y\n")
    spec = dry(
        invoke,
        *FLAGS,
        "--eval-data",
        "gs://lab/test.jsonl",
        "--reward",
        "file:///b/reward.py:score",
        "--steps",
        "200",
        "--batch-size",
        "128",
        "--group-size",
        "16",
        "--sequence-length",
        "2048",
        "--max-new-tokens",
        "256",
        "--learning-rate",
        "2e-6",
        "--num-slices",
        "2",
        "--docker-image",
        "repo/image:1",
        "--docker-image-pull-secret",
        "pull",
        "--env",
        "C=",
        "--env-file",
        str(env_file),
        "--priority",
        "high",
        "--service-account",
        "trainer",
        "--max-restarts",
        "7",
        "--ttl-seconds-after-finished",
        "60",
        "--termination-grace-period-seconds",
        "90",
        "--suspend",
        "--set",
        "checkpoint.everySteps=10",
        "--set",
        "metadata.labels.team=search",
    )
    assert spec["metadata"] == {"name": "llama-gsm8k", "labels": {"team": "search"}}
    spec = spec["spec"]
    assert spec["data"]["eval"] == {"uri": "gs://lab/test.jsonl"}
    assert spec["rewards"] == [{"builtin": "gsm8k"}, {"python": {"uri": "file:///b/reward.py", "function": "score"}}]
    assert spec["training"] == {
        "steps": 200,
        "batchSize": 128,
        "sequenceLength": 2048,
        "optimizer": {"learningRate": 2e-6},
    }
    assert spec["algorithm"] == {"grpo": {"groupSize": 16}}
    assert spec["rollout"] == {"maxNewTokens": 256}
    assert spec["accelerator"] == {"type": "v6e-16", "slices": 2}
    assert spec["image"] == "repo/image:1"
    assert spec["imagePullSecrets"] == ["pull"]
    assert spec["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "x=y"}, {"name": "C", "value": ""}]
    assert spec["priorityClassName"] == "high"
    assert spec["serviceAccountName"] == "trainer"
    assert spec["runPolicy"] == {
        "maxRestarts": 7,
        "ttlSecondsAfterFinished": 60,
        "terminationGracePeriodSeconds": 90,
        "suspend": True,
    }
    assert spec["checkpoint"] == {"everySteps": 10}


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("sft", {"sft": {}}), ("grpo", {"grpo": {}}), ("dr-grpo", {"grpo": {"loss": "dr-grpo"}}), ("dpo", {"dpo": {}})],
)
def test_a_grpo_variant_is_an_algorithm_of_its_own_name(name: str, algorithm: dict[str, Any]) -> None:
    job = empty_job()
    apply_flags(job, {"algorithm": name})
    assert job["spec"]["algorithm"] == algorithm


def test_device_type_is_tpu_type(invoke: Invoke) -> None:
    words = ["--device-type" if word == "--tpu-type" else word for word in FLAGS]
    assert dry(invoke, *words)["spec"]["accelerator"] == {"type": "v6e-16"}


def test_a_path_becomes_a_file_uri(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = dry(invoke, *flags("--data", "./train.jsonl", "--output", f"{tmp_path}/runs"), "--reward", "my/r.py")
    assert job["spec"]["data"]["train"]["uri"] == f"file://{tmp_path.resolve()}/train.jsonl"
    assert job["spec"]["output"]["uri"] == f"file://{tmp_path.resolve()}/runs"
    assert job["spec"]["rewards"] == [{"builtin": "gsm8k"}, {"python": {"uri": f"file://{tmp_path.resolve()}/my/r.py"}}]


def test_flags_change_the_file_and_set_has_the_last_word(invoke: Invoke, job_file: Path) -> None:
    job = dry(
        invoke,
        "-f",
        str(job_file),
        "--workload",
        "second",
        "--steps",
        "5",
        "--set",
        "training.steps=6",
        "--set",
        "spec.rewards[0].weight=2",
        "--set",
        "rewards[1]={builtin: format}",
    )
    assert job["metadata"]["name"] == "second"
    assert job["spec"]["training"]["steps"] == 6
    assert job["spec"]["rewards"] == [{"builtin": "gsm8k", "weight": 2}, {"builtin": "format"}]


@pytest.mark.parametrize("verb", ["validate", "plan", "data check", "train", "workload render", "workload create"])
def test_a_second_job_file_is_refused_and_not_taken_for_the_first(
    invoke: Invoke, kube: Any, job_file: Path, verb: str
) -> None:
    result = invoke(*verb.split(), "-f", str(job_file), "-f", "other.yaml")
    assert (result.code, result.out) == (2, "")
    assert f"-f: 2 files ({job_file}, other.yaml); accepted: one job file at a time" in result.err
    assert kube.calls == []


def test_client_dry_run_needs_no_cluster(invoke: Invoke, kube: Any, job_file: Path) -> None:
    result = invoke("workload", "create", "-f", str(job_file), "--dry-run=client")
    assert result.out == "posttrainjob.posttrain.dev/llama-gsm8k created (client dry run)\n"
    assert kube.targets == []


def test_dry_run_alone_is_the_clients_as_in_xpk(invoke: Invoke, kube: Any, job_file: Path) -> None:
    result = invoke("workload", "create", "--dry-run", "-f", str(job_file))
    assert (result.code, result.out) == (0, "posttrainjob.posttrain.dev/llama-gsm8k created (client dry run)\n")
    assert kube.calls == []


def test_server_dry_run_creates_nothing_and_prints_the_servers_object(
    invoke: Invoke, kube: Any, job_file: Path
) -> None:
    result = invoke("workload", "create", "-f", str(job_file), "--dry-run=server", "-o", "json", "-n", "team")
    assert json.loads(result.out)["metadata"] == {"name": "llama-gsm8k", "namespace": "team"}
    assert kube.calls[0][1][1] is True
    assert kube.objects == {}


def test_client_dry_run_has_the_namespace_of_n(invoke: Invoke, job_file: Path) -> None:
    assert dry(invoke, "-f", str(job_file), "-n", "team")["metadata"] == {"name": "llama-gsm8k", "namespace": "team"}


def test_what_is_sent_is_what_the_client_dry_run_printed(invoke: Invoke, kube: Any, job_file: Path) -> None:
    printed = dry(invoke, "-f", str(job_file))
    invoke("workload", "create", "-f", str(job_file))
    (sent, is_dry) = kube.calls[0][1]
    printed["metadata"]["namespace"] = "default"
    assert (sent, is_dry) == (printed, False)


def test_after_submit_the_next_commands_are_on_stderr_and_carry_the_place(invoke: Invoke, job_file: Path) -> None:
    result = invoke("workload", "create", "-f", str(job_file), "-n", "team", "--context", "prod")
    assert result.out == "posttrainjob.posttrain.dev/llama-gsm8k created\n"
    assert "\n  ptctl workload logs llama-gsm8k -f -n team --context prod\n" in result.err
    assert "kubectl get ptj llama-gsm8k -w" in result.err


def test_document_forms_print_no_next_commands(invoke: Invoke, job_file: Path) -> None:
    result = invoke("workload", "create", "-f", str(job_file), "-o", "name")
    assert (result.out, result.err) == ("posttrainjob.posttrain.dev/llama-gsm8k\n", "")


def test_a_job_comes_from_standard_input(invoke: Invoke, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = SimpleNamespace(buffer=io.BytesIO(job_file.read_bytes()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    assert dry(invoke, "-f", "-")["metadata"]["name"] == "llama-gsm8k"


def test_a_job_that_exists_is_not_overwritten(invoke: Invoke, kube: Any, job_file: Path) -> None:
    invoke("workload", "create", "-f", str(job_file))
    result = invoke("workload", "create", "-f", str(job_file))
    assert result.code == 1
    assert "'llama-gsm8k' already exists in namespace 'default'" in result.err


def test_every_finding_of_a_wrong_job_is_printed_and_nothing_is_sent(invoke: Invoke, kube: Any, job_file: Path) -> None:
    result = invoke("workload", "create", "-f", str(job_file), "--steps", "0", "--tpu-type", "v5p", "--set", "x=1")
    assert result.code == 2
    assert result.out == ""
    for field in ("spec.training.steps: 0", "spec.x"):
        assert field in result.err
    assert kube.calls == []


WRONG = {
    "nothing": ([], "no job: pass -f FILE"),
    "no name": (["--model", "random://tiny"], "--workload NAME"),
    "unknown flag": ([*FLAGS, "--stepz", "3"], "--steps"),
    "flag without a value": ([*FLAGS, "--steps"], "requires an argument"),
    "text for a number": ([*FLAGS, "--steps", "many"], "'many' is not a valid integer"),
    "unknown algorithm": (flags("--algorithm", "gpro"), "grpo"),
    "unknown reward": ([*FLAGS, "--reward", "gsm9k"], "gsm8k, format"),
    "unknown accelerator": (flags("--tpu-type", "v5p-9"), "v5p-8"),
    "capital letters": (flags("--workload", "Llama"), "lower-case letters"),
    "model without a scheme": (flags("--model", "meta-llama/Llama"), "gs://bucket/dir"),
    "env without a value": ([*FLAGS, "--env", "A"], "NAME=VALUE"),
    "env file that is not there": ([*FLAGS, "--env-file", "/nowhere/env"], "No such file"),
    "set without a value": ([*FLAGS, "--set", "training.steps"], "PATH=VALUE"),
    "set of a gap": ([*FLAGS, "--set", "rewards[5].weight=1"], "leaves a gap"),
    "set below a text": ([*FLAGS, "--set", "model.uri.x=1"], "not a mapping"),
    "set of an index of a map": ([*FLAGS, "--set", "model[0]=1"], "not a list"),
    "set with broken YAML": ([*FLAGS, "--set", "training={steps: "], "not YAML"),
    "set with a trap of YAML": ([*FLAGS, "--set", "preflight=off"], "--set 'path=\"value\"'"),
    "set of an unknown field": ([*FLAGS, "--set", "trainning.steps=3"], "training"),
    "group size of sft": (flags("--algorithm", "sft", "--group-size", "4"), "sft"),
    "reservation without a name": ([*FLAGS, "--reservation", ""], "reservation"),
    "output as a form": (flags("--output", "yaml"), "-o yaml"),
    "file that is not there": (["-f", "/nowhere/job.yaml"], "no such file"),
    "file that is a directory": (["-f", "/"], "a directory"),
    "namespace with a slash": ([*FLAGS, "-n", "a/b"], "lower-case"),
    "argument too many": ([*FLAGS, "surplus"], "surplus"),
    "command without an image": ([*FLAGS, "--command", "python x.py"], "spec.image"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input_exits_2_names_what_is_wrong_and_sends_nothing(
    invoke: Invoke, kube: Any, words: list[str], message: str
) -> None:
    result = invoke("workload", "create", *words)
    assert result.code == 2, result.err
    assert message in result.err
    assert "Traceback" not in result.err
    assert "a bug" not in result.err
    assert result.out == ""
    assert not any(call[0] == "create" for call in kube.calls)


_BOMB = "a{1}: &a{1} [*a{0}, *a{0}]\n"

FILES = {
    "empty": ("", "no document"),
    "a list": ("- 1\n", "list"),
    "text": ("hello", "str"),
    "other kind": ("kind: Pod\nmetadata: {name: a}\n", "kubectl apply -f"),
    "no kind": ("spec: {}\n", "kind: PostTrainJob"),
    "two documents": ("kind: PostTrainJob\n---\nkind: PostTrainJob\n", "one job"),
    "tab": ("a:\n\tb: 1\n", "tabs"),
    "broken": ("a: [1\n", "line 2"),
    "double key": ("kind: PostTrainJob\nkind: PostTrainJob\n", "twice"),
    "no metadata": ("apiVersion: posttrain.dev/v1alpha1\nkind: PostTrainJob\nspec: {}\n", "metadata"),
    "name is a number": ("kind: PostTrainJob\nmetadata: {name: 7}\n", "metadata.name"),
    "metadata is text": ("kind: PostTrainJob\nmetadata: x\n", "metadata"),
    "octal": ("kind: PostTrainJob\nspec: {training: {steps: 010}}\n", "write 10 for the decimal number, 0o10 for"),
    "aliases that multiply": ("a0: &a0 x\n" + "".join(map(_BOMB.format, range(30), range(1, 31))), "100,000 values"),
    "alias of itself": ("a: &a [*a]\n", "is an alias of what contains it"),
    "deep nesting": ("a: " + "[" * 5000 + "]" * 5000, "deeper than 100 levels"),
    "null spec": ("kind: PostTrainJob\nmetadata: {name: a}\nspec:\n", "spec"),
}


@pytest.mark.parametrize(("text", "message"), FILES.values(), ids=FILES)
def test_a_wrong_file_exits_2_and_names_itself(invoke: Invoke, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    for words in (("workload", "create"), ("validate",), ("workload", "render"), ("train",)):
        result = invoke(*words, "-f", str(path))
        assert result.code == 2, result.err
        assert message in result.err
        assert str(path) in result.err
        assert "Traceback" not in result.err


def test_a_job_from_get_is_created_without_what_the_server_sets(
    invoke: Invoke, kube: Any, make_job: Callable[..., Any], tmp_path: Path
) -> None:
    kube.put(POSTTRAINJOBS, {**make_job("a", spec={"rewards": [{"builtin": "gsm8k"}]})})
    path = tmp_path / "job.yaml"
    path.write_text(invoke("workload", "get", "a", "-o", "yaml").out)
    result = invoke("workload", "create", "-f", str(path), "--workload", "b")
    assert result.code == 0, result.err
    ((_, (sent, _)),) = (call for call in kube.calls if call[0] == "create")
    assert sorted(sent) == ["apiVersion", "kind", "metadata", "spec"]
    assert sent["metadata"] == {"name": "b", "namespace": "default"}
    assert "left out, because the server sets them: metadata.creationTimestamp, metadata.resourceVersion" in result.err
    assert "status" in result.err


def test_relative_paths_need_no_dot(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = dry(invoke, *flags("--data", "d/train.jsonl", "--eval-data", "eval.jsonl", "--output", "runs"))
    assert job["spec"]["data"]["train"]["uri"] == f"file://{tmp_path}/d/train.jsonl"
    assert job["spec"]["data"]["eval"]["uri"] == f"file://{tmp_path}/eval.jsonl"
    assert job["spec"]["output"]["uri"] == f"file://{tmp_path}/runs"
    wrong = invoke("workload", "create", *flags("--data", "gs:/my-bucket/train.jsonl"), "--dry-run=client")
    assert (wrong.code, "spec.data.train.uri: gs:/my-bucket" in wrong.err) == (2, True)


@pytest.mark.parametrize("name", ["V5P-128", "v5p_128", "v5p128", "tpu-v5p-128", "TPU_v5p-128"])
def test_a_misspelt_accelerator_is_answered_with_the_one_that_was_meant(invoke: Invoke, name: str) -> None:
    result = invoke("workload", "create", *flags("--tpu-type", name), "--dry-run=client")
    assert (result.code, f"spec.accelerator.type: {name}: " in result.err) == (2, True)
    assert "hint: did you mean v5p-128?" in result.err


@pytest.mark.parametrize("kind", ["named pipe", "endless device", "endless standard input"])
def test_a_job_file_that_never_ends_is_refused(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = {"named pipe": str(tmp_path / "pipe"), "endless device": "/dev/zero"}.get(kind, "-")
    with open("/dev/zero") as zero:
        command = [sys.executable, "-m", "ptctl", "validate", "-f", path]
        done = subprocess.run(command, stdin=zero, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert ("no document" if kind == "named pipe" else "more than 3 MiB; accepted: one job") in done.stderr


def test_a_job_file_may_be_a_pipe_that_is_written_later(job_file: Path) -> None:
    line = (
        f"{sys.executable} -m ptctl validate -f <(sleep 0.5; head -c 20 {job_file}; sleep 0.5; tail -c +21 {job_file})"
    )
    done = subprocess.run(line, shell=True, executable="/bin/bash", capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_is_not_text_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xff\xfe\x00bad")
    result = invoke("validate", "-f", str(path))
    assert (result.code, "not a text file" in result.err) == (2, True)


def test_a_namespace_in_the_file_and_another_in_n_is_refused(invoke: Invoke, job_file: Path) -> None:
    result = invoke(
        "workload", "create", "-f", str(job_file), "--set", "metadata.namespace=a", "-n", "b", "--dry-run=server"
    )
    assert (result.code, "metadata.namespace" in result.err) == (2, True)


def test_text_that_yaml_could_take_for_a_number_stays_text(invoke: Invoke, job_file: Path) -> None:
    words = ("--set", "metadata.annotations={a: '1e-6', b: 'on', c: '1:30'}", "--dry-run=client", "-o", "yaml")
    printed = invoke("workload", "create", "-f", str(job_file), *words).out
    for line in ("a: '1e-6'", "b: 'on'", "c: '1:30'"):
        assert line in printed
