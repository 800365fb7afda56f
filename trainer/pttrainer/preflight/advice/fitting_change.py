"""Suggest what would fit after a chip's memory ran out, by the formula, corrected by the actual need.

The formula had said that the job fits, or it was not asked. XLA's number, if any, or else the chip's whole memory gives
the correction factor; every change and every other chip is judged with it.
"""

from ptapi.spec import PostTrainJobSpec
from pttrainer.preflight.advice import changes
from pttrainer.preflight.memory import formula, recomputation
from pttrainer.preflight.report.status_summary import assignments
from pttrainer.preflight.shapes.job_shapes import read_config, shapes_of
from pttrainer.preflight.verdict import Option


def suggest(spec: PostTrainJobSpec, needed: int | None) -> str:
    """Return `by the formula it fits with training.microBatchSize=4, or as it is on v6e-32 (32 chips), …`, or "".

    needed: bytes per device, if XLA reported them. Raises ConfigError for jobs that the formula does not support.
    """
    of = recomputation.settled(shapes_of(spec, read_config(spec)))
    memory = formula.memory(of)
    factor = max(1.0, max(needed or 0, memory.available) / memory.peak)
    change = next((each for each in changes.options(of, factor) if _is_of_the_job(each) and each.fits), None)
    held = next(iter(changes.smallest(of, factor)), None)
    ways = []
    if change is not None:
        ways.append(f"with {', '.join(assignments(change.settings))}")
    if held is not None:
        ways.append(f"as it is on {held.change}, the cheapest that holds it")
    return f"by the formula it fits {', or '.join(ways)}" if ways else ""


def _is_of_the_job(option: Option) -> bool:
    """Return True for a change of the job rather than of its chips."""
    return "accelerator" not in option.settings
