"""The demo, from top to bottom: cluster, data, SFT, GRPO, results.

Whatever happens, nothing that the demo started is left running, except the cluster after success, for a look around.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ptapi.load import parse_job
from ptapi.run_directory import LOSS, REWARD
from ptctl import local_cluster
from ptctl.demo import manifests, report
from ptctl.demo.display import DemoDisplay
from ptctl.demo.follow import follow
from ptctl.demo.lock import exclusive
from ptctl.demo.own_jobs import end_jobs, own_jobs, refuse_foreign_jobs
from ptctl.demo.paths import GRPO, NAMESPACE, SFT, DemoPaths
from ptctl.demo.task_list import Task, TaskList
from ptctl.errors import CliError, TimedOutError
from ptctl.jobs.view import view
from ptctl.ui import interrupts
from ptctl.ui.app import App, Target
from ptctl.ui.console import Console
from ptkube.errors import ApiError
from ptkube.resources import POSTTRAINJOBS

if TYPE_CHECKING:
    from ptkube.client import Kube

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TASKS = {"cluster": "Cluster", "data": "Data", SFT: "SFT", GRPO: "GRPO", "results": "Results"}


def run_demo(app: App, folder: Path, seed: int, *, is_down_at_end: bool) -> None:
    """Run the demo. Raises CliError with the job's own message if a job fails."""
    _check_installed()
    paths = DemoPaths(_create_directory(folder))
    tasks = TaskList({name: Task(title) for name, title in _TASKS.items()})
    # SIGTERM and a closed terminal end the demo like Ctrl-C.
    with interrupts.handled(interrupts.raise_once, *_END_SIGNALS), exclusive(paths.lock, local_cluster.demo_lock()):
        _run_alone(app, paths, seed, tasks, is_down_at_end=is_down_at_end)


def _run_alone(app: App, paths: DemoPaths, seed: int, tasks: TaskList, *, is_down_at_end: bool) -> None:
    was_up = local_cluster.is_up()  # then it is not ours to stop
    with _cleanup_if_killed(app, was_up), _cleanup_on_error(app, was_up):
        with DemoDisplay(tasks, app.console):
            _run(app, paths, seed, tasks)
        _report(app, paths, tasks)
    if is_down_at_end and not was_up:
        local_cluster.down(app.console.say)
        app.console.say("the cluster is stopped; `ptctl local up` brings it back with its jobs")


def _run(app: App, paths: DemoPaths, seed: int, tasks: TaskList) -> None:
    tasks.start("cluster", "starting API server, controllers and operator")
    info = local_cluster.up(lambda line: tasks.update("cluster", line))
    kube = app.connect(Target(kubeconfig=str(info.kubeconfig)))
    tasks.finish("cluster", f"{'up' if info.started else 'already up'}: {info.server}")
    tasks.start("data", "generating word problems")
    tasks.finish("data", _make_data(paths, seed))
    jobs = ((SFT, manifests.sft(paths, seed), LOSS), (GRPO, manifests.grpo(paths, seed), REWARD))
    _delete_earlier_run(kube, paths, tasks)
    for name, manifest, series in jobs:
        parse_job(manifest)
        tasks.start(name, "applying the job")
        kube.create(POSTTRAINJOBS, manifest)
        follow(kube, name, paths.run(name), tasks, series)
        tasks.finish(name, _result(kube, name))
    tasks.start("results", "drawing the curve")
    tasks.finish("results", str(report.draw_picture(paths)))


def _check_installed() -> None:
    for package, extra in (("jax", "trainer"), ("kopf", "operator"), ("rich", "cli"), ("matplotlib", "cli")):
        if find_spec(package) is None:
            raise CliError(
                f"the demo needs {package}, which is not installed",
                f"pip install 'posttrain[operator,trainer-cpu,cli]' ({package} is in the extra {extra!r})",
            )


def _create_directory(folder: Path) -> Path:
    path = folder.expanduser().resolve()
    try:
        (path / "data").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"--dir {folder}: cannot be created: {error.strerror}") from error
    return path


def _make_data(paths: DemoPaths, seed: int) -> str:
    """Generate the data in a child process: the generator belongs to the trainer, which ptctl never imports."""
    command = [
        sys.executable,
        "-m",
        "pttrainer.data.synthetic.arithmetic",
        "--out",
        str(paths.train.parent),
        "--seed",
        str(seed),
    ]
    with tempfile.TemporaryFile("w+") as output:
        code = subprocess.call(command, stdout=output, stderr=subprocess.STDOUT)
        if code:
            output.seek(0)
            raise CliError(f"generating the data failed:\n{output.read().strip()}")
    return f"{_count_lines(paths.train):,} problems, {_count_lines(paths.held_out):,} held out, seed {seed}"


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _delete_earlier_run(kube: Kube, paths: DemoPaths, tasks: TaskList) -> None:
    """Delete the jobs and runs of an earlier demo."""
    refuse_foreign_jobs(kube)
    earlier = own_jobs(kube)
    if earlier:
        tasks.start(SFT, "deleting the jobs of an earlier demo")
        end_jobs(kube, earlier)
    for name in (SFT, GRPO):
        shutil.rmtree(paths.run(name), ignore_errors=True)


def _result(kube: Kube, name: str) -> str:
    job = view(kube.get(POSTTRAINJOBS, name, NAMESPACE))
    measured = f"reward {job.reward}" if job.reward else f"loss {job.loss}" if job.loss else ""
    return ", ".join(filter(None, (f"{job.total or job.step} steps", measured)))


def _report(app: App, paths: DemoPaths, tasks: TaskList) -> None:
    seconds = {name: task.seconds for name, task in tasks.tasks.items()}
    app.console.data("")
    app.console.data(report.accuracy_table(report.accuracy(paths), seconds))
    app.console.data("")
    app.console.data(report.reward_curve(paths, min(app.console.width or 80, 80)))
    app.console.data(f"\nThe same as a picture: {paths.picture}\n")
    app.console.data(report.what_next(paths))


@contextmanager
def _cleanup_if_killed(app: App, was_up: bool) -> Iterator[None]:
    """Have another process clean up if this one ends without doing so (kill -9); it waits for the end of a pipe."""
    reader, writer = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        try:
            os.close(writer)
            os.setsid()
            if not os.read(reader, 1):
                with open(os.devnull, "w") as nowhere:
                    _clean_up(App(Console(nowhere, nowhere), app.connect), was_up)
        finally:
            os._exit(0)
    os.close(reader)
    try:
        yield
    finally:
        os.write(writer, b"+")
        os.close(writer)
        os.waitpid(watcher, 0)


@contextmanager
def _cleanup_on_error(app: App, was_up: bool) -> Iterator[None]:
    """On any failure stop what the demo started; a second Ctrl-C leaves that to the process that watches this one."""
    try:
        yield
    except BaseException:
        with interrupts.handled(interrupts.exit_at_once, *_END_SIGNALS):
            _clean_up(app, was_up)
        raise


def _clean_up(app: App, was_up: bool) -> None:
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
        app.console.say("nothing of the demo is left running; the cluster was up before and goes on")
        return
    local_cluster.down(app.console.say, now=True)
    app.console.say("nothing is left running")
