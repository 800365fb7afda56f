"""`ptctl train`, around the trainer: what it does before its first step, and what to do after its last."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ptapi.run_directory import LOSS, REWARD, run_uri
from ptapi.spec import PostTrainJob
from ptctl import trainer_process
from ptctl.errors import INTERRUPTED, OK
from ptctl.jobs.summary import summary
from ptctl.runs.metric_table import number
from ptctl.runs.storage import directory
from ptctl.ui.app import App
from ptctl.ui.console import Console

_POLL_S = 0.5
_STAGES = ("loading", "compiling", "restoring", "exporting")
"""Stages in which the trainer itself prints nothing."""


def train(app: App, job: PostTrainJob, *, is_fresh: bool) -> int:
    """Run the job's trainer to its end and return the exit code of the shell."""
    uri = run_uri(job.spec.output.uri, job.metadata.name)
    run = Path(uri.removeprefix("file://")) if uri.startswith("file://") else None
    app.console.say(f"{job.metadata.name}: {summary(job)}, in {run or uri}\nstarting the trainer")
    with _stages(app.console, run) as show_stages:
        options = ["--fresh"] if is_fresh else []
        code = trainer_process.run_trainer(app, job, "run", *options, on_start=show_stages)
    for line in _what_next(job, run, uri, code):
        app.console.say(line)
    return code


@contextmanager
def _stages(console: Console, run: Path | None) -> Iterator[Callable[[], None]]:
    """Yield a function that prints the stages of the run, from its progress document, until the block ends."""
    ended = threading.Event()
    started, last = time.time(), ""

    def follow() -> None:
        nonlocal last
        while run is not None and not ended.wait(_POLL_S):
            stage = str(directory.progress(run, started).get("stage"))
            if stage != last and stage in _STAGES:
                console.say(f"{directory.STAGES[stage]} ...")
            last = stage

    try:
        yield threading.Thread(target=follow, daemon=True).start
    finally:
        ended.set()


def _what_next(job: PostTrainJob, run: Path | None, uri: str, code: int) -> Iterator[str]:
    if code == INTERRUPTED:
        yield "the same command resumes the run from its newest checkpoint; --fresh starts over"
    elif code == OK:
        rows = directory.metrics(run) if run else []
        newest = rows[-1] if rows else {}
        numbers = [f"{name} {number(newest[name])}" for name in (LOSS, REWARD) if name in newest]
        yield ", ".join([f"{job.metadata.name}: done", *([f"step {newest['step']}"] if newest else []), *numbers])
        yield f"model: {run or uri}/export"
    if run is not None and run.is_dir():
        yield "next:"
        if code == OK:
            yield f"  ptctl chat {run}"
        yield f"  ptctl workload describe {run}"
        yield f"  ptctl workload metrics {run} --plot {REWARD if directory.sample_steps(run) else LOSS}"
        if directory.sample_steps(run):
            yield f"  ptctl workload samples {run}"
        yield f"  ptctl workload tensorboard {run} --open"
