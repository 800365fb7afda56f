"""`ptctl config`: defaults of the user's, and what comes before them."""

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.shell_completion import ShellComplete
from tests.unit.ptctl.conftest import FakeKube, Invoke

from ptctl.cli import root
from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.errors import InputError
from ptctl.ui import configurations
from ptctl.ui.app import App, Target, connect
from ptctl.ui.exit_codes import report

SHORT = [
    "workload",
    "create",
    "--workload",
    "a",
    "--model",
    "random://tiny",
    "--algorithm",
    "sft",
    "--data",
    "gs://lab/x",
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTCTL_HOME", str(tmp_path / "home"))
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def configure(invoke: Invoke, **properties: str) -> None:
    for name, value in properties.items():
        assert invoke("config", "set", name, value).code == 0


def job_of(result: Any) -> dict[str, Any]:
    assert result.code == 0, result.err
    job: dict[str, Any] = yaml.safe_load(result.out)
    return job


def test_a_new_job_takes_what_it_does_not_say(invoke: Invoke) -> None:
    configure(invoke, accelerator="v6e-16", output="gs://lab/runs", queue="team", namespace="team-a")
    result = invoke(*SHORT, "--dry-run", "-o", "yaml")
    job = job_of(result)
    assert (job["metadata"]["namespace"], job["spec"]["queue"]) == ("team-a", "team")
    assert (job["spec"]["accelerator"]["type"], job["spec"]["output"]["uri"]) == ("v6e-16", "gs://lab/runs")
    assert "accelerator.type: v6e-16 (configuration default)" in result.err


def test_flag_then_file_then_environment_then_configuration(
    invoke: Invoke, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(invoke, accelerator="v5p-8", output="gs://lab/configured", namespace="configured")
    monkeypatch.setenv("PTCTL_ACCELERATOR", "v5p-16")
    monkeypatch.setenv("PTCTL_NAMESPACE", "of-the-environment")
    from_file = job_of(invoke("workload", "create", "-f", str(job_file), "--dry-run", "-o", "yaml"))
    assert from_file["spec"]["accelerator"]["type"] == "v6e-16"
    assert from_file["metadata"]["namespace"] == "of-the-environment"
    assert job_of(invoke(*SHORT, "--dry-run", "-o", "yaml"))["spec"]["accelerator"]["type"] == "v5p-16"
    typed = job_of(invoke(*SHORT, "--tpu-type", "v6e-8", "-n", "typed", "--dry-run", "-o", "yaml"))
    assert (typed["spec"]["accelerator"]["type"], typed["metadata"]["namespace"]) == ("v6e-8", "typed")


def test_a_files_namespace_comes_before_a_configured_one_and_contradicts_a_typed_one(
    invoke: Invoke, job_file: Path
) -> None:
    configure(invoke, namespace="configured")
    job_file.write_text(job_file.read_text().replace("{name: llama-gsm8k}", "{name: a, namespace: of-the-file}"))
    words = ["workload", "create", "-f", str(job_file), "--dry-run", "-o", "yaml"]
    assert job_of(invoke(*words))["metadata"]["namespace"] == "of-the-file"
    assert invoke(*words, "-n", "typed").code == 2


def test_verbs_on_jobs_go_to_the_configured_context_and_namespace(invoke: Invoke, kube: FakeKube) -> None:
    configure(invoke, context="gke_p_us-east5_c", namespace="team-a")
    invoke("workload", "list")
    invoke("workload", "list", "-A")
    invoke("workload", "list", "-n", "b", "--context", "other")
    assert [(one.namespace, one.context, one.everywhere) for one in kube.targets] == [
        ("team-a", "gke_p_us-east5_c", False),
        (None, "gke_p_us-east5_c", True),
        ("b", "other", False),
    ]


def test_a_context_that_the_kubeconfig_lacks_is_an_error_that_names_the_configuration(
    invoke: Invoke, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{current-context: b, contexts: [{name: b, context: {cluster: b}}], clusters: [], users: []}")
    target = Target(None, str(file), "a", defaults=(("context", "configuration default"),))
    with pytest.raises(Exception) as caught:
        connect(target)
    report(caught.value, App().console)
    err = capsys.readouterr().err
    assert "context 'a' does not exist; contexts: b" in err
    assert "the context is that of configuration default" in err


def test_init_and_the_project_of_google_take_the_configuration(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(invoke, accelerator="cpu-1", output="gs://lab/runs", project="my-project")
    job = job_of(
        invoke("init", "--algorithm", "sft", "--model", "random://tiny", "--data", "gs://lab/x.jsonl", "-o", "-")
    )
    assert (job["spec"]["accelerator"]["type"], job["spec"]["output"]["uri"]) == ("cpu-1", "gs://lab/runs")
    assert CloudSettings.from_env().project_for(None) == "my-project"
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "of-google")
    assert CloudSettings.from_env().project_for(None) == "of-google"
    monkeypatch.setenv("PTCTL_PROJECT", "of-ptctl")
    assert CloudSettings.from_env().project_for(None) == "of-ptctl"
    assert CloudSettings.from_env().project_for("typed") == "typed"


def test_configurations_are_created_activated_listed_described_and_deleted(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(invoke, namespace="team-a")
    assert invoke("config", "create", "staging").code == 0
    configure(invoke, namespace="staging", zone="us-east5-b")
    listed = invoke("config", "list").out.splitlines()
    assert listed[:3] == ["CONFIGURATION   ACTIVE", "default", "staging         *"]
    assert listed[-2:] == [
        "namespace   staging      configuration staging",
        "zone        us-east5-b   configuration staging",
    ]
    assert invoke("config", "describe", "default").out.splitlines()[1].split()[:2] == ["namespace", "team-a"]
    monkeypatch.setenv("PTCTL_CONFIGURATION", "default")
    assert invoke("config", "get", "namespace").out == "team-a\n"
    monkeypatch.delenv("PTCTL_CONFIGURATION")
    assert invoke("config", "delete", "staging").code == 2
    assert invoke("config", "activate", "default").code == 0
    assert invoke("config", "delete", "staging").code == 0
    assert invoke("config", "unset", "namespace").code == 0
    assert invoke("config", "get", "namespace").code == 3
    document = json.loads(invoke("config", "list", "-o", "json").out)
    assert document == {"active": "default", "configurations": {"default": {}}, "inEffect": {}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["set", "accelerator", "v9-8"], "accelerator"),
        (["set", "namespace", "Team"], "namespace: 'Team'; accepted: lower-case letters"),
        (["set", "zone", "us-east5"], "zone: 'us-east5'; accepted: a zone, such as us-east5-b"),
        (["set", "colour", "red"], "'colour' is not one of 'context'"),
        (["activate", "nowhere"], "configuration 'nowhere' does not exist; there are: none"),
        (["create", "Not A Name"], "configuration 'Not A Name': accepted"),
        (["unset", "zone"], "property 'zone' is not set"),
        (["configurations", "list"], "no word between"),
    ],
)
def test_a_wrong_word_is_refused_and_nothing_is_written(
    invoke: Invoke, home: Path, words: list[str], message: str
) -> None:
    result = invoke("config", *words)
    assert result.code in (2, 3)
    assert message in result.err
    assert not (home / "configurations.json").exists()


def test_the_shell_completes_names_of_configurations_and_properties(invoke: Invoke) -> None:
    configure(invoke, namespace="a")
    assert invoke("config", "create", "staging").code == 0
    shell = ShellComplete(root, {}, "ptctl", "_PTCTL_COMPLETE")
    assert [item.value for item in shell.get_completions(["config", "activate"], "st")] == ["staging"]
    assert [item.value for item in shell.get_completions(["config", "set"], "na")] == ["namespace"]


def test_a_file_that_is_not_ptctls_is_left_alone(invoke: Invoke, home: Path) -> None:
    home.mkdir()
    file = home / "configurations.json"
    file.write_text("[]")
    for words in (["config", "set", "zone", "us-east5-b"], ["config", "list"], ["workload", "list"]):
        result = invoke(*words)
        assert (result.code, file.read_text()) == (2, "[]")
        assert "not what `ptctl config` writes" in result.err


def test_an_unknown_configuration_of_the_environment_is_an_error(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(invoke, namespace="a")
    monkeypatch.setenv("PTCTL_CONFIGURATION", "nowhere")
    result = invoke("workload", "list")
    assert (result.code, "configuration 'nowhere' does not exist; there are: default" in result.err) == (3, True)


def test_writers_at_the_same_time_lose_nothing() -> None:
    def write(index: int) -> None:
        with configurations.changing() as all_of_them:
            all_of_them.by_name[f"c-{index}"] = {}

    threads = [threading.Thread(target=write, args=(index,)) for index in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(configurations.read().by_name) == 20


def test_a_write_that_fails_leaves_the_file_as_it_was(invoke: Invoke, home: Path) -> None:
    configure(invoke, namespace="a")
    before = (home / "configurations.json").read_text()
    refused = invoke("config", "create", "default")  # it has the name of another
    assert (refused.code, "configuration 'default' exists" in refused.err) == (2, True)
    with suppress(InputError), configurations.changing() as all_of_them:
        all_of_them.by_name.clear()
        raise InputError("stop")
    assert (home / "configurations.json").read_text() == before
