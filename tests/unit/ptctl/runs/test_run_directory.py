"""`metrics`, `samples`, `tensorboard`: what the trainer left in the run directory."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptctl.runs import sample_view
from ptctl.runs.storage import bucket
from ptkube.errors import Unreachable
from ptkube.resources import POSTTRAINJOBS

Invoke = Callable[..., Any]


@pytest.fixture
def run(kube: Any, make_job: Callable[..., Any], tmp_path: Path) -> Path:
    kube.put(POSTTRAINJOBS, make_job("a", spec={"output": {"uri": tmp_path.as_uri()}}))
    folder = tmp_path / "a"
    (folder / "samples").mkdir(parents=True)
    rows = [{"step": step, "time": 1.0, "loss": 1.0 / step, "reward": step / 12} for step in range(1, 13)]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 13, "lo'
    (folder / "metrics.jsonl").write_text(text)
    for step in (1, 12):
        sample = {"prompt": f"P{step}", "completion": "C", "reward": 1.0, "advantage": -0.5}
        (folder / "samples" / f"step-{step:08d}.jsonl").write_text(json.dumps(sample) + "\n")
    return folder


@pytest.mark.usefixtures("run")
def test_metrics_are_a_table_of_the_newest_steps_and_a_half_written_line_does_not_count(invoke: Invoke) -> None:
    lines = invoke("workload", "metrics", "a", "--last", "2").out.splitlines()
    assert [line.split() for line in lines] == [
        ["STEP", "LOSS", "REWARD"],
        ["11", "0.09091", "0.9167"],
        ["12", "0.08333", "1"],
    ]


@pytest.mark.usefixtures("run")
def test_metrics_as_json_are_every_step(invoke: Invoke) -> None:
    rows = [json.loads(line) for line in invoke("workload", "metrics", "a", "-o", "json").out.splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 13))


@pytest.mark.usefixtures("run")
def test_a_curve_has_the_name_the_range_and_the_steps(invoke: Invoke) -> None:
    out = invoke("workload", "metrics", "a", "--plot", "reward").out
    assert out.splitlines()[0].strip() == "reward"
    assert out.splitlines()[1].split()[0] == "1"
    assert out.splitlines()[-1].split() == ["1", "12"]


@pytest.mark.usefixtures("run")
def test_a_metric_that_does_not_exist_is_refused_with_those_that_do(invoke: Invoke) -> None:
    result = invoke("workload", "metrics", "a", "--plot", "los")
    assert (result.code, "available: loss, reward" in result.err) == (3, True)


def test_before_the_first_step_there_are_no_metrics(invoke: Invoke, run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    result = invoke("workload", "metrics", "a")
    assert (result.code, "no metrics yet" in result.err) == (3, True)


@pytest.mark.usefixtures("run")
def test_samples_are_those_of_the_newest_or_the_given_step(invoke: Invoke) -> None:
    assert "P12" in invoke("workload", "samples", "a").out
    assert "step 1   reward 1   advantage -0.5\nP1\nC\n" in invoke("workload", "samples", "a", "--step", "1").out
    result = invoke("workload", "samples", "a", "--step", "5")
    assert (result.code, "available: 1, 12" in result.err) == (3, True)


def test_an_episode_shows_its_length_its_calls_and_why_it_has_no_reward(invoke: Invoke, run: Path) -> None:
    sample = {
        "prompt": "P", "reward": None, "advantage": 0.0, "tokens": 74, "ended": False, "tool_calls": 2,
        "tool_failures": 1, "turns": [{"role": "assistant", "content": "call"}], "error": "its process died",
    }  # fmt: skip
    (run / "samples" / "step-00000012.jsonl").write_text(json.dumps(sample) + "\n")
    figures = "step 12   reward none   advantage 0   tokens 74, cut   calls 2, failed 1\n"
    assert f"{figures}P\nassistant: call\nno reward: its process died\n" in invoke("workload", "samples", "a").out


def test_figures_of_a_sample_go_on_in_the_next_line_where_a_terminal_is_narrow() -> None:
    assert sample_view.wrap_parts(["step 1", "reward 1.25", "advantage -1.5", "tokens 12"], 24) == [
        "step 1   reward 1.25",
        "  advantage -1.5",
        "  tokens 12",
    ]


def test_describe_shows_the_best_sample_of_the_newest_step(invoke: Invoke, run: Path) -> None:
    rows = [{"prompt": "1+1?", "completion": text, "reward": reward} for text, reward in (("3", 0.0), ("2", 1.0))]
    (run / "samples" / "step-00000012.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "Best sample of step 12 (reward 1):\n  1+1?\n  2\n" in invoke("workload", "describe", "a").out


def test_a_completion_cannot_write_to_the_terminal(invoke: Invoke, run: Path) -> None:
    sample = {"prompt": "P", "completion": "red: \x1b[31m\r\nü\t\x9b", "reward": 0.0}
    (run / "samples" / "step-00000012.jsonl").write_text(json.dumps(sample) + "\n")
    assert "red: \\x1b[31m\\x0d\nü\t\\x9b\n" in invoke("workload", "samples", "a").out


@pytest.mark.usefixtures("run")
def test_rare_metrics_are_shown_with_o_wide_only(invoke: Invoke, run: Path) -> None:
    with (run / "metrics.jsonl").open("w") as file:
        file.write(json.dumps({"step": 1, "loss": 2.0, "clip_fraction/high": 0.5}) + "\n")
    assert "CLIP_FRACTION/HIGH" not in invoke("workload", "metrics", "a").out
    assert "CLIP_FRACTION/HIGH" in invoke("workload", "metrics", "a", "-o", "wide").out


def test_tensorboard_prints_the_command(invoke: Invoke, run: Path) -> None:
    assert invoke("workload", "tensorboard", "a").out == f"tensorboard --logdir {run}/tensorboard --port 6006\n"


def test_tensorboard_reads_the_run_directory_where_the_operator_starts_no_servers(
    invoke: Invoke, kube: Any, make_job: Callable[..., Any]
) -> None:
    spec = {"output": {"uri": "gs://lab/runs"}, "tensorboard": {"server": True}}
    command = "tensorboard --logdir gs://lab/runs/a/tensorboard"
    kube.put(POSTTRAINJOBS, make_job("a", spec=spec, links={"tensorboard": command}))
    result = invoke("workload", "tensorboard", "a")
    assert (result.code, result.out) == (0, f"{command} --port 6006\n")
    assert "tensorboard.servers" in result.err


def test_a_bucket_that_cannot_be_reached_is_named_with_the_command_that_reads_it(
    invoke: Invoke, kube: Any, make_job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr(bucket, "_PATIENCE_S", 0.1)
    bucket._client.cache_clear()
    kube.put(POSTTRAINJOBS, make_job("a", spec={"output": {"uri": "gs://lab/runs"}}))
    result = invoke("workload", "metrics", "a")
    bucket._client.cache_clear()
    assert (result.code, "gcloud storage cat gs://lab/runs/a/metrics.jsonl" in result.err) == (1, True)
    assert "gs://lab/runs/a/metrics.jsonl cannot be reached" in result.err
    assert "gs://lab/runs/a/tensorboard" in invoke("workload", "tensorboard", "a").out


@pytest.mark.usefixtures("run")
def test_samples_are_followed_from_the_newest_step_to_the_job_s_end(
    invoke: Invoke, run: Path, kube: Any, make_job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"prompt": "P13", "completion": "C", "reward": None, "rewards": {"a": None, "b": 0.5}, "advantage": 0.0}
    turns = [{"role": "assistant", "content": "call"}, {"role": "tool", "content": "7"}]

    def passes(_: float) -> None:
        text = json.dumps(parts) + "\n" + json.dumps({**parts, "turns": turns}) + "\n"
        (run / "samples" / "step-00000013.jsonl").write_text(text)
        spec = {"output": {"uri": run.parent.as_uri()}}
        kube.put(POSTTRAINJOBS, make_job("a", phase="Succeeded", spec=spec))

    monkeypatch.setattr("ptctl.runs.sample_view.time", SimpleNamespace(sleep=passes))
    result = invoke("workload", "samples", "a", "-f")
    assert "P1\n" not in result.out
    assert "P12\nC\n" in result.out
    assert "step 13   reward none   a none   b 0.5   advantage 0\nP13\nC\n" in result.out
    assert "assistant: call\ntool: 7\n" in result.out
    assert "job 'a' succeeded" in result.err


@pytest.fixture
def local_run(invoke: Invoke, run: Path, kube: Any) -> Path:
    """The same run without a job in a cluster, which does not answer either."""
    made = kube.objects.popitem()[1]
    made.pop("status")
    (run / "spec.yaml").write_text(json.dumps(made))
    kube.error = Unreachable(0, "Unreachable", "no cluster")
    return run


def ends(run: Path, *, released: str = "now", heartbeat: str = "2026-01-01T00:00:00Z", **termination: Any) -> None:
    (run / "lease.json").write_text(json.dumps({"released": released, "heartbeat": heartbeat}))
    (run / "termination.json").write_text(json.dumps(termination))


def test_a_run_directory_stands_in_for_a_job(invoke: Invoke, local_run: Path) -> None:
    ends(local_run, exitCode=0)
    (local_run / "progress.json").write_text(json.dumps({"stage": "done", "step": 12, "totalSteps": 12}))
    assert invoke("workload", "metrics", str(local_run), "--last", "1").out.splitlines()[1].split()[0] == "12"
    assert "P12\nC\n" in invoke("workload", "samples", str(local_run)).out
    assert invoke("workload", "samples", f"{local_run}/", "-f").err == "job 'a' succeeded\n"
    assert f"--logdir {local_run}/tensorboard" in invoke("workload", "tensorboard", local_run.as_uri()).out
    described = invoke("workload", "describe", str(local_run))
    assert described.code == 0, described.err
    lines = {" ".join(line.split()) for line in described.out.splitlines()}
    assert {"Name: a", "Phase: Succeeded", "Step: 12 of 12 (100%)", f"Run directory: file://{local_run}"} <= lines


@pytest.mark.parametrize(
    ("end", "phase"),
    [
        ({"exitCode": 65, "failureClass": "DataError", "message": "no rows"}, "Failed"),
        ({"exitCode": 75}, "Suspended"),
        ({"exitCode": 0, "released": ""}, "Suspended"),
        ({"exitCode": 0, "released": "", "heartbeat": "2999-01-01T00:00:00Z"}, "Running"),
    ],
)
def test_a_local_run_s_phase_follows_from_its_lease_and_its_end(
    invoke: Invoke, local_run: Path, end: dict[str, Any], phase: str
) -> None:
    ends(local_run, **end)
    out = invoke("workload", "describe", str(local_run)).out
    assert f"Phase:           {phase}\n" in out
    assert ("DataError: no rows" in out) == (phase == "Failed")


def test_a_directory_without_a_run_is_refused_with_the_runs_in_it(invoke: Invoke, local_run: Path) -> None:
    result = invoke("workload", "metrics", str(local_run.parent))
    assert (result.code, f"did you mean {local_run}?" in result.err) == (3, True)


@pytest.mark.usefixtures("run")
def test_following_and_a_step_are_refused_together(invoke: Invoke) -> None:
    assert invoke("workload", "samples", "a", "-f", "--step", "1").code == 2
