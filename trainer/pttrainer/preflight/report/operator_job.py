"""Preflight run by the operator: the verdict goes into the termination message and the run directory.

The formula's verdict is written first, because the compiler may take too much memory or time and be killed: then the
operator finds that one. A compiled verdict is cached, and a job of the same shapes compiles nothing.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from ptapi.failures import ExitCode
from ptapi.run_directory import PREFLIGHT
from ptapi.spec import PostTrainJob
from ptapi.status import PreflightStatus
from pttrainer.errors import ConfigError, TrainerError
from pttrainer.models import ModelConfig
from pttrainer.preflight.check import judge, versions
from pttrainer.preflight.memory.staged_check import Depth
from pttrainer.preflight.report import table, verdict_cache
from pttrainer.preflight.report.status_summary import summarize
from pttrainer.preflight.report.verdict_cache import Document
from pttrainer.preflight.shapes.job_shapes import read_config
from pttrainer.preflight.shapes.tpu_topology import NotJudgedError
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import Attempt
from pttrainer.training.job_file import read_job
from pttrainer.training.run_directory import lease, run_files


def report(path: Path, depth: Depth, limit_s: float | None) -> ExitCode:
    """Judge the job of this file; return the exit code.

    Only an invalid job ends with an exit code other than a verdict's.
    """
    try:
        job = read_job(path)
        place = run_files.open_run(job)
        status = _judged(job, place, depth, limit_s)
    except TrainerError as error:
        termination.show(error, error.exit_code)
        termination.report(error.exit_code, termination.describe(error), Attempt())
        return error.exit_code
    code = ExitCode.OUT_OF_MEMORY_HBM if status.outcome == "DoesNotFit" else ExitCode.OK
    print(f"{status.outcome}: {status.line}")
    sys.stdout.flush()
    termination.report(code, "", Attempt(), status)
    return code


def _judged(job: PostTrainJob, place: Place, depth: Depth, limit_s: float | None) -> PreflightStatus:
    try:
        config = read_config(job.spec)
    except ConfigError as error:  # of the place it is read from; the trainer will say whether of the job
        return _undecided(f"the model's sizes cannot be read: {error}")
    try:
        return _verdict(job, config, place, depth, limit_s)
    except NotJudgedError as error:
        return _undecided(str(error))


def _verdict(
    job: PostTrainJob, config: ModelConfig, place: Place, depth: Depth, limit_s: float | None
) -> PreflightStatus:
    key, uri = verdict_cache.key(job.spec, config, depth, versions()), job.spec.output.uri
    cached = verdict_cache.load(uri, key)
    if cached is not None:
        status = cached[0].model_copy(update={"remembered": True})
        _write(place, job, {**cached[1], "job": job.metadata.name}, status)
        return status
    computed = judge(job, "formula", config=config)
    if depth != "formula":
        termination.report(ExitCode.UNKNOWN, "the compile came to no end", Attempt(), summarize(computed, key))
    verdict = computed if depth == "formula" else judge(job, depth, config=config, limit_s=limit_s)
    print(table.text(verdict))
    status = summarize(verdict, key)
    _write(place, job, verdict.document(), status)
    # The formula costs nothing and answers only until a compiler does; one that was stopped may come further next time.
    if verdict.stage != "formula" and status.outcome != "Undecided":
        _say_problems(lambda: verdict_cache.store(uri, key, status, verdict.document()))
    return status


def _write(place: Place, job: PostTrainJob, verdict: Document, status: PreflightStatus) -> None:
    """Write `preflight.json` in the run directory, unless a run writes there."""
    document = {**verdict, "brief": status.model_dump(mode="json", by_alias=True)}
    content = (json.dumps(document, indent=2) + "\n").encode()

    def write() -> None:
        with lease.hold_briefly(place, job):
            place.write(PREFLIGHT, content)

    _say_problems(write)


def _say_problems(action: Callable[[], None]) -> None:
    """Report storage errors as notes: the trainer will report an unwritable directory as an error."""
    try:
        action()
    except TrainerError as error:
        print(f"warning: {error}", file=sys.stderr)


def _undecided(why: str) -> PreflightStatus:
    return PreflightStatus(outcome="Undecided", line=why[:1000])
