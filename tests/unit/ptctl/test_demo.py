"""The demo's parts that need no cluster: its jobs, what it shows, what it reports."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from ptapi.load import parse_job
from ptctl.demo import manifests, report
from ptctl.demo.display import PlainView, render
from ptctl.demo.follow import describe, share
from ptctl.demo.lock import exclusive
from ptctl.demo.own_jobs import end_jobs, own_jobs, refuse_foreign_jobs
from ptctl.demo.paths import GRPO, SFT, DemoPaths
from ptctl.demo.task_list import Task, TaskList, clock_text
from ptctl.errors import CliError
from ptctl.jobs.view import view
from ptctl.ui.console import Console
from ptkube.resources import PODS, POSTTRAINJOBS
from ptoperator.kube import labels


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def board() -> tuple[TaskList, Clock]:
    clock = Clock()
    return TaskList({"cluster": Task("Cluster"), SFT: Task("SFT"), GRPO: Task("GRPO")}, clock), clock


def run_of(place: DemoPaths, job: str, rows: list[dict[str, Any]]) -> None:
    place.run(job).mkdir(parents=True)
    (place.run(job) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_jobs_are_valid_and_point_at_the_demos_files(tmp_path: Path) -> None:
    directory = tmp_path / "my jobs, 100%"
    place = DemoPaths(directory)
    for manifest, name in ((manifests.sft(place, 7), SFT), (manifests.grpo(place, 7), GRPO)):
        job = parse_job(manifest)
        assert job.metadata.name == name
        assert job.metadata.labels["posttrain.dev/demo"] == "true"
        assert job.spec.data.train.uri == f"file://{directory}/data/train.jsonl"
        assert job.spec.data.eval.uri == f"file://{directory}/data/eval.jsonl"
        assert job.spec.output.uri == f"file://{directory}/runs"
        assert job.spec.training.seed == 7
    assert parse_job(manifests.grpo(place, 7)).spec.model.uri == f"file://{directory}/runs/{SFT}/export"


def test_lines_say_each_change_at_once_and_are_never_silent_for_five_seconds() -> None:
    shown, clock = board()
    err = io.StringIO()
    lines = PlainView(Console(io.StringIO(), err))
    shown.start("cluster", "starting")
    last_line = [clock.now]
    for _ in range(200):
        clock.now += 0.25
        before = err.tell()
        lines.draw(shown)
        if err.tell() != before:
            assert clock.now - last_line[-1] < 5
            last_line.append(clock.now)
    assert clock.now - last_line[-1] < 5
    shown.finish("cluster", "is up")
    shown.start(SFT, "accepted")
    lines.draw(shown)
    assert err.getvalue().splitlines()[-2:] == ["[ 0:50] Cluster: done: is up", "[ 0:50] SFT: accepted"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_live_view_names_every_task_and_what_runs(width: int) -> None:
    shown, clock = board()
    shown.start(SFT)
    clock.now += 65
    shown.update(SFT, "step 5/10, loss 0.8", 0.5, [3.0, 2.0, 0.8], "loss")
    text = str(render(shown, width))
    for words in ("posttrain demo  1:05", "Cluster", "SFT", "GRPO", "step 5/10, loss 0.8", "50%", "█▅▁ loss 0.8"):
        assert words in text, (words, text)
    assert max(map(len, text.splitlines())) <= width


def test_what_runs_when_the_demo_ends_early_is_marked() -> None:
    shown, _ = board()
    shown.start(SFT)
    shown.end("stopped")
    assert [task.state for task in shown.tasks.values()] == ["waiting", "stopped", "waiting"]


@pytest.mark.parametrize(
    ("phase", "progress", "rows", "text"),
    [
        ("Pending", {}, [], "accepted"),
        ("Starting", {}, [], "starting the trainer"),
        ("Provisioning", {}, [], "provisioning"),
        ("Running", {"stage": "loading"}, [], "loading the model"),
        ("Running", {"stage": "compiling", "totalSteps": 9}, [], "step 0/9, compiling"),
        ("Running", {"stage": "training", "step": 0, "totalSteps": 9}, [], "step 0/9, first step"),
        ("Running", {"stage": "training", "step": 4, "totalSteps": 9, "etaSeconds": 65.0},
         [{"step": 4, "loss": 0.51234}], "step 4/9, loss 0.512, 65s left"),
        ("Running", {"stage": "training", "step": 4, "totalSteps": 9, "etaSeconds": 6.0},
         [{"step": 4, "loss": 0.1, "reward": 0.75, "completion_length": 31.5}],
         "step 4/9, reward 0.75, length 31.5, 6s left"),
        ("Running", {"stage": "exporting", "step": 9, "totalSteps": 9}, [], "step 9/9, exporting the model"),
    ],
)  # fmt: skip
def test_a_job_in_a_line(phase: str, progress: dict[str, Any], rows: list[dict[str, Any]], text: str) -> None:
    assert describe(view({"metadata": {"name": "a"}, "status": {"phase": phase}}), progress, rows) == text


def test_the_share_of_steps_is_unknown_before_the_total_is() -> None:
    assert share({}) is None
    assert share({"step": 3, "totalSteps": 12}) == 0.25


def test_accuracy_is_read_from_the_two_runs(tmp_path: Path) -> None:
    place = DemoPaths(tmp_path)
    run_of(place, SFT, [{"step": 0, "eval/reward": 0.01}, {"step": 1, "loss": 2.0}, {"step": 9, "eval/reward": 0.6}])
    run_of(
        place, GRPO, [{"step": 0, "eval/reward": 0.615}, {"step": 1, "reward": 0.5}, {"step": 9, "eval/reward": 0.97}]
    )
    accuracy = report.accuracy(place)
    assert accuracy == report.Accuracy(0.01, 0.615, 0.97)
    lines = report.accuracy_table(accuracy, {SFT: 61.4, GRPO: 100}).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["before", "training", "1.0%"],
        ["after", "SFT", "61.5%", "+60", "points", "61", "s"],
        ["after", "GRPO", "97.0%", "+36", "points", "100", "s"],
    ]


def test_what_was_not_measured_is_said_and_not_invented(tmp_path: Path) -> None:
    place = DemoPaths(tmp_path)
    assert report.accuracy(place) == report.Accuracy(None, None, None)
    assert "not measured" in report.accuracy_table(report.accuracy(place), {})
    assert report.reward_curve(place, 80) == ""


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    place = DemoPaths(tmp_path)
    run_of(place, GRPO, [{"step": i, "reward": i / 10, "completion_length": 20 + i} for i in range(1, 10)])
    assert report.draw_picture(place).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(report.reward_curve(place, 60).splitlines()) == 15


def test_clock() -> None:
    assert [clock_text(seconds) for seconds in (0, 59.9, 61, 3600)] == ["0:00", "0:59", "1:01", "60:00"]


def test_what_to_type_next_says_how_to_tear_down(tmp_path: Path) -> None:
    text = report.what_next(DemoPaths(tmp_path))
    for words in (
        "local env",
        "chat demo-grpo ",
        "serve demo-grpo ",
        "kubectl get ptj",
        "local down",
        "local reset",
        f"rm -r {tmp_path}",
        "tensorboard --logdir",
    ):
        assert words in text


def test_a_second_demo_in_the_same_directory_or_on_the_same_cluster_is_refused(tmp_path: Path) -> None:
    ours, theirs, cluster = tmp_path / "a" / "lock", tmp_path / "b" / "lock", tmp_path / "cluster" / "lock"
    with exclusive(ours, cluster):
        for locks, place in (((ours,), ours), ((theirs, cluster), cluster)):
            with pytest.raises(CliError, match=f"another demo .* is running in {place.parent}$"), exclusive(*locks):
                raise AssertionError("two demos run")
        with exclusive(theirs, tmp_path / "other"):
            pass
    with exclusive(ours, cluster):
        pass


def test_the_jobs_of_an_earlier_demo_go_with_their_pods_in_a_hurry(kube: Any, tmp_path: Path) -> None:
    kube.put(POSTTRAINJOBS, manifests.grpo(DemoPaths(tmp_path), 0))
    kube.put(PODS, {"metadata": {"name": "compiles", "labels": {labels.JOB: GRPO}}})
    refuse_foreign_jobs(kube)
    assert own_jobs(kube) == [GRPO]
    end_jobs(kube, own_jobs(kube))
    assert [what for call, what in kube.calls if call == "delete"] == [GRPO, ("compiles", 2)]
    assert kube.objects == {}


def test_a_job_that_only_has_the_name_of_the_demos_is_neither_replaced_nor_cleared_up(kube: Any) -> None:
    kube.put(POSTTRAINJOBS, {"metadata": {"name": SFT}})
    with pytest.raises(CliError, match="is not the demo's"):
        refuse_foreign_jobs(kube)
    assert own_jobs(kube) == []
