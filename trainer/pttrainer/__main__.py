"""`python -m pttrainer run job.yaml`: the only command so far. Exit codes: `ptapi.failures.ExitCode`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and runs; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pttrainer", description="Post-train a model as a PostTrainJob says."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a job to its end, or resume it")
    run.add_argument("job", type=Path, help="file that holds a PostTrainJob")
    options = parser.parse_args(arguments)
    from pttrainer.run import run_job

    return int(run_job(options.job))


if __name__ == "__main__":
    sys.exit(main())
