"""The demo, from top to bottom: cluster, data, SFT, GRPO, what came of it.

Whatever happens, nothing that the demo started is left running, except after success the cluster, to be looked at.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptapi.load import parse_job
from ptapi.run_directory import LOSS, REWARD
from ptctl import local_cluster
from ptctl.demo import manifests, report
from ptctl.demo.display import Show
from ptctl.demo.follow import follow
from ptctl.demo.jobs import end_jobs, own_jobs, refuse_foreign_jobs
from ptctl.demo.lock import alone
from ptctl.demo.paths import GRPO, NAMESPACE, SFT, Place
from ptctl.demo.task_list import Board, Task
from ptctl.errors import CliError, TimedOutError
from ptctl.jobs.view import view
from ptctl.ui.app import App, Target
from ptkube.errors import ApiError
from ptkube.resources import POSTTRAINJOBS

if TYPE_CHECKING:
    from ptkube.client import Kube

_TASKS = {"cluster": "Cluster", "data": "Data", SFT: "SFT", GRPO: "GRPO", "results": "Results"}


def run_demo(app: App, folder: Path, seed: int, *, is_down_at_end: bool) -> None:
    """Run it. Raises CliError with the job's own message if a job fails."""
    _check_installed()
    place = Place(_made(folder))
    board = Board({name: Task(title) for name, title in _TASKS.items()})
    with _signals_as_interrupts(), alone(place.lock, local_cluster.demo_lock()):
        _run_alone(app, place, seed, board, is_down_at_end=is_down_at_end)


def _run_alone(app: App, place: Place, seed: int, board: Board, *, is_down_at_end: bool) -> None:
    was_up = local_cluster.is_up()  # what was there before is not ours to stop
    with _cleared_up(app, was_up):
        with Show(board, app.console):
            _run(app, place, seed, board)
        _report(app, place, board)
    if is_down_at_end and not was_up:
        local_cluster.down(app.console.say)
        app.console.say("the cluster is stopped; `ptctl local up` brings it back with its jobs")


def _run(app: App, place: Place, seed: int, board: Board) -> None:
    board.start("cluster", "API server, controllers, operator: starting")
    info = local_cluster.up(lambda line: board.update("cluster", line))
    kube = app.connect(Target(kubeconfig=str(info.kubeconfig)))
    board.finish("cluster", f"{'is up' if info.started else 'was up already'}: {info.server}")
    board.start("data", "making word problems")
    board.finish("data", _make_data(place, seed))
    jobs = ((SFT, manifests.sft(place, seed), LOSS), (GRPO, manifests.grpo(place, seed), REWARD))
    _forget_earlier(kube, place, board)
    for name, manifest, series in jobs:
        parse_job(manifest)
        board.start(name, "applying the job")
        kube.create(POSTTRAINJOBS, manifest)
        follow(kube, name, place.run(name), board, series)
        board.finish(name, _result(kube, name))
    board.start("results", "drawing the curve")
    board.finish("results", str(report.draw_picture(place)))


def _check_installed() -> None:
    for package, extra in (("jax", "trainer"), ("kopf", "operator"), ("rich", "cli"), ("matplotlib", "cli")):
        if find_spec(package) is None:
            raise CliError(
                f"the demo needs {package}, which is not installed",
                f"pip install 'posttrain[operator,trainer-cpu,cli]' ({package} is in the extra {extra!r})",
            )


def _made(folder: Path) -> Path:
    path = folder.expanduser().resolve()
    try:
        (path / "data").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"--dir {folder}: cannot be made: {error.strerror}") from error
    return path


def _make_data(place: Place, seed: int) -> str:
    """The generator runs as a child: it belongs to the trainer, which ptctl never imports."""
    command = [
        sys.executable,
        "-m",
        "pttrainer.data.synthetic.arithmetic",
        "--out",
        str(place.train.parent),
        "--seed",
        str(seed),
    ]
    with tempfile.TemporaryFile("w+") as output:
        code = subprocess.call(command, stdout=output, stderr=subprocess.STDOUT)
        if code:
            output.seek(0)
            raise CliError(f"the data could not be made:\n{output.read().strip()}")
    return f"{_lines(place.train):,} problems, {_lines(place.held_out):,} held out, seed {seed}"


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _forget_earlier(kube: Kube, place: Place, board: Board) -> None:
    """Delete the jobs and runs of an earlier demo."""
    refuse_foreign_jobs(kube)
    earlier = own_jobs(kube)
    if earlier:
        board.start(SFT, "deleting the jobs of an earlier demo")
        end_jobs(kube, earlier)
    for name in (SFT, GRPO):
        shutil.rmtree(place.run(name), ignore_errors=True)


def _result(kube: Kube, name: str) -> str:
    job = view(kube.get(POSTTRAINJOBS, name, NAMESPACE))
    measured = f"reward {job.reward}" if job.reward else f"loss {job.loss}" if job.loss else ""
    return ", ".join(filter(None, (f"{job.total or job.step} steps", measured)))


def _report(app: App, place: Place, board: Board) -> None:
    seconds = {name: task.seconds for name, task in board.tasks.items()}
    app.console.data("")
    app.console.data(report.accuracy_table(report.accuracy(place), seconds))
    app.console.data("")
    app.console.data(report.reward_curve(place, min(app.console.width or 80, 80)))
    app.console.data(f"\nThe same as a picture: {place.picture}\n")
    app.console.data(report.what_next(place))


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """SIGTERM and a closed terminal end the demo as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _cleared_up(app: App, was_up: bool) -> Iterator[None]:
    """On any failure stop what the demo started; a second Ctrl-C does not stop the stopping."""
    try:
        yield
    except BaseException:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            _clear_up(app, was_up)
        finally:
            signal.signal(signal.SIGINT, before)
        raise


def _clear_up(app: App, was_up: bool) -> None:
    app.console.say("stopping what the demo started ...")
    try:
        if local_cluster.is_up():
            kube = app.connect(Target(kubeconfig=str(local_cluster.kubeconfig())))
            end_jobs(kube, own_jobs(kube))
    except (ApiError, TimedOutError) as error:
        app.console.warn(f"the demo's jobs could not be deleted: {error}")
        if was_up:
            return
    if was_up:
        app.console.say("nothing of the demo is left running; the cluster was up before it and goes on")
        return
    local_cluster.down(app.console.say, now=True)
    app.console.say("nothing is left running")
