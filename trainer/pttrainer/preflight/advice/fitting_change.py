"""What would fit, asked after a chip's memory ran out: the formula, corrected by what was really needed.

The formula said that the job fits, or nobody asked it. XLA's number, where it gives one, or else the chip's whole
memory, says by how much it was too kind; every change and every other chip is judged with that factor.
"""

from __future__ import annotations

from ptapi.spec import PostTrainJobSpec
from pttrainer.preflight.advice import changes
from pttrainer.preflight.memory import formula
from pttrainer.preflight.report.status_summary import assignments
from pttrainer.preflight.shapes.job_shapes import read_config, subject
from pttrainer.preflight.verdict import Option


def remedy(spec: PostTrainJobSpec, needed: int | None) -> str:
    """`by the formula it fits with training.microBatchSize=4, or as it is on v6e-32 (32 chips), …`; empty where
    nothing is found.

    needed: bytes per device, where XLA said. Raises ConfigError for what the formula does not know.
    """
    of = subject(spec, read_config(spec))
    memory = formula.memory(of)
    factor = max(1.0, max(needed or 0, memory.available) / memory.peak)
    change = next((each for each in changes.options(of, factor) if _is_of_the_job(each) and each.fits), None)
    held = next(iter(changes.smallest(of, factor)), None)
    found = []
    if change is not None:
        found.append(f"with {', '.join(assignments(change.settings))}")
    if held is not None:
        found.append(f"as it is on {held.change}, the cheapest that holds it")
    return f"by the formula it fits {', or '.join(found)}" if found else ""


def _is_of_the_job(option: Option) -> bool:
    """A change of the job, not of its chips."""
    return "accelerator" not in option.settings
