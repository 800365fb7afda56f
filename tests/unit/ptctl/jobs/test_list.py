"""`workload list` and `get`: tables, documents, filters, watching."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from ptkube.errors import ConfigError, Forbidden, NotFound, Unauthorized, Unreachable
from ptkube.resources import POSTTRAINJOBS

Invoke = Callable[..., Any]


@pytest.fixture
def jobs(kube: Any, make_job: Callable[..., Any]) -> None:
    kube.put(
        POSTTRAINJOBS,
        make_job(
            "b-run",
            "Running",
            progress={"step": 40, "total": 300, "eta": "1h12m", "stage": "training"},
            metrics={"loss": "0.812", "reward": "0.61"},
            restarts={"Preempted": 2, "Hang": 1},
            chips=64,
            spec={"accelerator": {"type": "v5p-128", "slices": 2}, "algorithm": {"grpo": {"loss": "dr-grpo"}}},
            labels={"team": "search"},
        ),
    )
    kube.put(POSTTRAINJOBS, make_job("a-done", "Succeeded", progress={"step": 9, "total": 9, "eta": "0s"}))
    kube.put(
        POSTTRAINJOBS,
        make_job("c-bad", "Failed", failure={"failureClass": "DataError", "message": "line 3 is not JSON"}),
    )
    kube.put(POSTTRAINJOBS, make_job("other", "Queued", namespace="team"))


@pytest.mark.usefixtures("jobs")
def test_the_table_has_the_columns_of_kubectl_and_restarts(invoke: Invoke) -> None:
    lines = invoke("workload", "list").out.splitlines()
    assert lines[0].split() == [
        "NAME",
        "PHASE",
        "ALGORITHM",
        "ACCELERATOR",
        "STEP",
        "LOSS",
        "REWARD",
        "ETA",
        "RESTARTS",
        "AGE",
    ]
    assert [line.split()[0] for line in lines[1:]] == ["a-done", "b-run", "c-bad"]
    assert lines[2].split()[:-1] == [
        "b-run",
        "Running",
        "dr-grpo",
        "2",
        "x",
        "v5p-128",
        "40/300",
        "0.812",
        "0.61",
        "1h12m",
        "3",
    ]
    assert "0s" not in lines[1]


@pytest.mark.usefixtures("jobs")
def test_wide_adds_chips_run_directory_and_failure(invoke: Invoke) -> None:
    out = invoke("workload", "list", "-o", "wide").out
    assert "file:///runs/b-run" in out
    assert "DataError: line 3 is not JSON" in out
    assert " 64 " in out


@pytest.mark.usefixtures("jobs")
def test_all_namespaces_adds_the_column(invoke: Invoke, kube: Any) -> None:
    lines = invoke("workload", "list", "-A").out.splitlines()
    assert lines[0].split()[:2] == ["NAMESPACE", "NAME"]
    assert lines[-1].split()[:3] == ["team", "other", "Queued"]
    assert kube.calls == [("list", ("posttrainjobs", None, None, None))]


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("status", "names"),
    [
        ("EVERYTHING", ["a-done", "b-run", "c-bad"]),
        ("finished", ["a-done", "c-bad"]),
        ("RUNNING", ["b-run"]),
        ("QUEUED", []),
        ("FAILED", ["c-bad"]),
        ("SUCCESSFUL", ["a-done"]),
    ],
)
def test_filters_by_xpks_status_words(invoke: Invoke, status: str, names: list[str]) -> None:
    out = invoke("workload", "list", "--filter-by-status", status, "-o", "name").out
    assert out.split() == [f"posttrainjob.posttrain.dev/{name}" for name in names]


@pytest.mark.usefixtures("jobs")
def test_filters_by_part_of_the_name_and_by_label(invoke: Invoke) -> None:
    assert invoke("workload", "list", "--filter-by-job", "-d", "-o", "name").out.split() == [
        "posttrainjob.posttrain.dev/a-done"
    ]
    assert invoke("workload", "list", "-l", "team=search", "-o", "name").out.split() == [
        "posttrainjob.posttrain.dev/b-run"
    ]


@pytest.mark.usefixtures("jobs")
def test_documents_are_lists_for_list_and_objects_for_one_name(invoke: Invoke) -> None:
    listed = json.loads(invoke("workload", "list", "-o", "json").out)
    assert (listed["kind"], len(listed["items"])) == ("List", 3)
    assert json.loads(invoke("workload", "list", "--filter-by-job", "b-run", "-o", "json").out)["kind"] == "List"
    assert yaml.safe_load(invoke("workload", "get", "b-run", "-o", "yaml").out)["kind"] == "PostTrainJob"
    assert json.loads(invoke("workload", "get", "b-run", "a-done", "-o", "json").out)["kind"] == "List"


def test_nothing_found_is_no_error_and_leaves_stdout_empty(invoke: Invoke) -> None:
    result = invoke("workload", "list")
    assert (result.code, result.out, result.err) == (0, "", "no jobs found in namespace 'default'\n")
    assert json.loads(invoke("workload", "list", "-o", "json").out)["items"] == []
    assert invoke("workload", "list", "-o", "name").out == ""


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("verb", ["get", "describe", "logs"])
def test_a_name_that_does_not_exist_exits_3_and_names_the_nearest(invoke: Invoke, verb: str) -> None:
    result = invoke("workload", verb, "b-ran")
    assert result.code == 3
    assert "job 'b-ran' does not exist in namespace 'default'" in result.err
    assert "did you mean b-run?" in result.err


@pytest.mark.usefixtures("jobs")
def test_a_job_of_another_namespace_is_pointed_at(invoke: Invoke) -> None:
    assert "add -n team" in invoke("workload", "get", "other").err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Unauthorized(401, "Unauthorized", "Unauthorized"), 4, "Unauthorized"),
        (Forbidden(403, "Forbidden", "cannot list resource"), 4, "cannot list resource"),
        (Unreachable(0, "Unreachable", "https://x: Connection refused"), 1, "ptctl local up"),
        (NotFound(404, "NotFound", "the server could not find the requested resource"), 3, "not installed"),
        (ConfigError("no kubeconfig\nhint: do this"), 1, "hint: do this"),
    ],
)
def test_errors_of_the_cluster_have_their_exit_code_and_a_hint(
    invoke: Invoke, kube: Any, error: Exception, code: int, message: str
) -> None:
    kube.error = error
    for words in (("workload", "list"), ("workload", "get", "a"), ("workload", "wait", "a")):
        result = invoke(*words)
        assert result.code == code
        assert message in result.err
        assert result.out == ""
        assert result.err.startswith("error: ")


@pytest.mark.usefixtures("jobs")
def test_watch_prints_the_table_and_then_changes_under_the_same_columns(
    invoke: Invoke, kube: Any, make_job: Callable[..., Any]
) -> None:
    kube.events = [
        ("MODIFIED", make_job("b-run", "Succeeded")),
        ("ADDED", make_job("d-new", "Pending")),
        ("DELETED", make_job("a-done", "Succeeded")),
    ]
    result = invoke("workload", "list", "-w")
    assert result.code == 130
    lines = result.out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["a-done", "Succeeded"],
        ["b-run", "Running"],
        ["c-bad", "Failed"],
        ["b-run", "Succeeded"],
        ["d-new", "Pending"],
        ["a-done", "Deleted"],
    ]
    assert {line.index(line.split()[1]) for line in lines} == {lines[0].index("PHASE")}


@pytest.mark.usefixtures("jobs")
def test_a_narrow_terminal_shows_fewer_columns_and_a_pipe_all(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    narrow = invoke("workload", "list", terminal=True, env={"NO_COLOR": "1"}).out
    assert max(map(len, narrow.splitlines())) <= 40
    assert narrow.splitlines()[0].split()[:3] == ["NAME", "PHASE", "STEP"]
    assert "ACCELERATOR" in invoke("workload", "list").out


@pytest.mark.usefixtures("jobs")
def test_colour_only_on_a_terminal_and_not_with_no_color(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    coloured = invoke("workload", "list", terminal=True).out
    assert "\x1b[31mFailed\x1b[0m" in coloured
    for plain in (
        invoke("workload", "list", terminal=True, env={"NO_COLOR": "1"}).out,
        invoke("workload", "list", terminal=True, env={"TERM": "dumb"}).out,
        invoke("workload", "list").out,
    ):
        assert "\x1b" not in plain


def test_a_job_without_status_is_pending(invoke: Invoke, kube: Any, make_job: Callable[..., Any]) -> None:
    job = make_job("fresh")
    del job["status"]
    kube.put(POSTTRAINJOBS, job)
    assert invoke("workload", "list").out.splitlines()[1].split()[:3] == ["fresh", "Pending", "grpo"]
