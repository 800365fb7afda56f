"""`python -m pttrainer run job.yaml`, and the verbs of `commands`. Exit codes: `ptapi.failures.ExitCode`."""

import argparse
import os
import sys
from pathlib import Path

from ptapi.failures import ExitCode
from pttrainer.commands import data, export, function, generate, huge_pages, logits, preflight
from pttrainer.commands.model import chat, evaluate, sampler, serve, stage


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pttrainer", description="Post-train a model as a PostTrainJob says."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a job to its end, or resume it")
    run.add_argument("job", type=Path, help="file that holds a PostTrainJob")
    run.add_argument(
        "--fresh", action="store_true", help="start over: what the run directory holds is kept as NAME.previous-N"
    )
    run.set_defaults(run=_run)
    for verb in (data, function, logits, generate, export, preflight, serve, chat, evaluate, stage, sampler):
        verb.add_to(commands)
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _run(options: argparse.Namespace) -> int:
    from pttrainer.commands.run import run_job
    from pttrainer.runtime.reporting import termination

    code = run_job(options.job, is_fresh=options.fresh)
    if code == ExitCode.STORAGE or termination.is_compiling():
        # Everything is said. Threads of libraries that still write would add their tracebacks; a compiler takes long.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return int(code)


if __name__ == "__main__":
    if "run" in sys.argv[1:2]:  # the other verbs compute little, and start sooner without
        huge_pages.use()
    sys.exit(main())
