"""SFT against its peers, in one run, on the same shapes: tokens/s, CPU-seconds, memory, time to the first step.

Full fine-tuning and LoRA (rank 16, all linear layers) of `random://bench-16m` and `bench-13m`, float32, AdamW, batches
of 8 × 256 tokens. Every side is a process of its own, watched from outside (`measure`); sides take turns, so that what
else the machine does touches all of them. Ours is `python -m pttrainer run`, checkpoint and export left out as the
peers' are.

    python benchmarks/peers/sft.py --tunix .venv-tunix/bin/python --torch .venv-parity/bin/python

A row whose Python is not given is left out; with `--ours` our side of it is measured alone. The first turn of ours
compiles, the others find compiled functions, as a second run of a user does; JAX peers are given such a cache as well.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from measure import Measured
from peer_table import SCRIPTS, Table, TokenRate, run_job

sys.path.insert(1, str(SCRIPTS))
sys.path.insert(1, str(SCRIPTS.parents[2]))

from benchmarks.jobs import manifest
from shapes import BATCH, LEARNING_RATE, LENGTH, LORA_ALPHA, LORA_RANK


@dataclass(frozen=True)
class Work:
    """A row of the table. bound: what our tokens/s must be, as a multiple of the peer's."""

    name: str
    model: str
    lora: bool
    peer: str
    script: str
    python: str
    bound: float


WORKS = (
    Work("SFT full, bench-16m", "bench-16m", False, "Tunix", "tunix_sft.py", "tunix", 1.3),
    Work("SFT LoRA r16, bench-16m", "bench-16m", True, "Tunix", "tunix_sft.py", "tunix", 1.6),
    Work("SFT full, bench-13m", "bench-13m", False, "TRL", "trl_sft.py", "torch", 1.4),
    Work("SFT full, bench-13m", "bench-13m", False, "torch loop", "torch_loop.py", "torch", 0.85),
    Work("SFT LoRA r16, bench-13m", "bench-13m", True, "TRL", "trl_sft.py", "torch", 1.3),
)


def job(work: Work, data: Path, output: Path, steps: int) -> dict[str, object]:
    """The same work as a PostTrainJob."""
    training: dict[str, object] = {
        "steps": steps,
        "batchSize": BATCH,
        "sequenceLength": LENGTH,
        "optimizer": {"learningRate": LEARNING_RATE},
        "precision": {"compute": "float32"},
    }
    if work.lora:
        training["lora"] = {"rank": LORA_RANK, "alpha": LORA_ALPHA}
    return manifest(
        "bench",
        data=data.as_uri(),
        output=output.as_uri(),
        model={"uri": f"random://{work.model}"},
        training=training,
        checkpoint={"everySteps": 10**6},
        export={"format": "none"},
    )


def ours(work: Work, steps: int, cache: Path) -> Measured:
    """Run ours once."""
    text = [{"text": "".join(chr(97 + (i * j * j + j) % 26) for j in range(2 * LENGTH))} for i in range(512)]

    def files(here: Path) -> dict[str, str]:
        return {
            "data.jsonl": "".join(json.dumps(row) + "\n" for row in text),
            "job.yaml": json.dumps(job(work, here / "data.jsonl", here / "runs", steps)),
        }

    return run_job(files, cache)


def flags(work: Work, steps: int) -> list[object]:
    """Return the command line of the peer's script."""
    return ["--model", work.model, "--steps", steps, *(["--lora"] if work.lora else [])]


if __name__ == "__main__":
    rate = TokenRate(BATCH * LENGTH)
    table = Table(WORKS, ours, flags, rate.speed, rate.ratio)
    table.main(__doc__, 10, "optimizer steps of each process; the first two do not count")
