"""`python -m pttrainer preflight`: whether a job fits its chips, found by compiling its own step. Needs no TPU.

    python -m pttrainer preflight job.yaml
    python -m pttrainer preflight job.yaml --quick -o json
    python -m pttrainer preflight job.yaml --here

Ends with 0 where the job fits, as a run out of HBM where it does not (70), and as a run on a wrong job otherwise.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from ptapi.failures import ExitCode
from pttrainer.commands.exit import exit_code_of

KEPT = ("method", "chips", "length")


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser(
        "preflight",
        help="check whether a job fits its chips, without using any",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", type=Path, help="file that holds a PostTrainJob")
    parser.add_argument("--quick", action="store_true", help="use only the formula, not the compiler")
    parser.add_argument(
        "--depth",
        choices=("auto", "fast", "full"),
        default="auto",
        help="how far to compile: fast (no optimisation), full (as in training), auto (full if fast is inconclusive)",
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--here", action="store_true", help="use the devices of this machine (GPUs) instead of the job's accelerator"
    )
    parser.add_argument("--price", type=float, help="of a chip-hour, for the cost of the run")
    parser.add_argument(
        "--chip-hour",
        action="append",
        default=[],
        type=_priced,
        metavar="GENERATION=PRICE",
        help="to find the cheapest slice; repeatable",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the verdict to FILE, as JSON")
    modes.add_argument("--fit", action="store_true", help="write the smallest change that makes the job fit (--write)")
    parser.add_argument("--keep", action="append", default=[], choices=KEPT, help="what --fit may not change")
    modes.add_argument(
        "--matrix", action="store_true", help="write what fits on many chips, with many batches (--write)"
    )
    modes.add_argument("--smallest", action="store_true", help="write the smallest slices that hold the job (--write)")
    parser.add_argument("--accelerator", action="append", default=[], metavar="TYPE", help="of the matrix; repeatable")
    parser.add_argument("--batch-size", action="append", default=[], type=int, metavar="ROWS", help="of the matrix")
    modes.add_argument(
        "--report",
        action="store_true",
        help="as the operator does: write to the termination message and the run directory, and reuse earlier verdicts",
    )
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="limit for compiling; after it the formula decides"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.report:
        from pttrainer.preflight.shapes import tpu_topology

        tpu_topology.prepare_environment()  # before anything imports jax
        from pttrainer.preflight.report import operator_job

        return int(operator_job.report(options.job, _depth(options), options.time_limit))
    fits: list[bool] = []
    modes = ((options.fit, _fit), (options.matrix, _matrix), (options.smallest, _smallest))
    action = next((action for is_chosen, action in modes if is_chosen), run)
    code = exit_code_of(lambda: fits.append(action(options)))
    return int(code if code or fits[0] else ExitCode.OUT_OF_MEMORY_HBM)


def _fit(options: argparse.Namespace) -> bool:
    """Write the change; return True if there is one. Attempts are listed on stderr."""
    job = _job(options)
    from pttrainer.preflight.advice import search

    fit = search.fit(job, frozenset(options.keep), compile_first=not options.quick)
    _write(options, dataclasses.asdict(fit))
    return fit.change is not None


def _matrix(options: argparse.Namespace) -> bool:
    """Write the cells; return True if one of them fits."""
    job = _job(options)
    from pttrainer.preflight.advice.matrix import matrix

    cells = matrix(job, options.accelerator, options.batch_size)
    _write(options, [dataclasses.asdict(cell) for cell in cells])
    return any(cell.fits for cell in cells)


def _smallest(options: argparse.Namespace) -> bool:
    """Write each generation's smallest slice that holds the job; return True if there is one."""
    job = _job(options)
    from pttrainer.preflight.advice import changes
    from pttrainer.preflight.shapes.job_shapes import shapes_of

    slices = changes.smallest(shapes_of(job.spec), all_kinds=True)
    _write(options, [dataclasses.asdict(option) for option in slices])
    return bool(slices)


def _job(options: argparse.Namespace) -> Any:
    from pttrainer.preflight.shapes import local_devices, tpu_topology

    (local_devices if options.here else tpu_topology).prepare_environment()  # before anything imports jax
    from pttrainer.training.job_file import read_job

    return read_job(options.job)


def _write(options: argparse.Namespace, document: Any) -> None:
    text = json.dumps(document, indent=2)
    print(text) if options.write is None else options.write.write_text(text + "\n")


def _priced(text: str) -> tuple[str, float]:
    generation, _, price = text.partition("=")
    return generation, float(price)


def _depth(options: argparse.Namespace) -> Any:
    return "formula" if options.quick else options.depth


def run(options: argparse.Namespace) -> bool:
    """Print the verdict; return True if the job fits. Raises ConfigError on a wrong job."""
    job = _job(options)
    from pttrainer.preflight.check import judge
    from pttrainer.preflight.report import table
    from pttrainer.preflight.shapes.local_devices import detect

    devices = detect() if options.here else None
    prices = dict(options.chip_hour)
    verdict = judge(job, _depth(options), options.price, prices=prices, limit_s=options.time_limit, here=devices)
    document = json.dumps(verdict.document(), indent=2)
    if options.write is not None:
        options.write.write_text(document + "\n")
    print(document if options.output == "json" else table.text(verdict))
    sys.stdout.flush()
    return verdict.fits
