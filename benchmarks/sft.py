"""SFT against its peers, in one run, on the same shapes: tokens/s, CPU-seconds, memory, time to the first step.

Full fine-tuning and LoRA (rank 16, all linear layers) of `random://bench-16m` and `bench-13m`, float32, AdamW, batches
of 8 × 256 tokens. Every side is a process of its own, watched from outside (`measure`); sides take turns, so that what
else the machine does touches all of them. Ours is `python -m pttrainer run`, checkpoint and export left out as the
peers' are.

    python benchmarks/sft.py --tunix .venv-tunix/bin/python --torch .venv-parity/bin/python

A side whose Python is not given is left out. The first turn of ours compiles, the others find compiled steps, as a
second run of a user does; JAX peers are given such a cache as well.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import peertable
from jobs import manifest
from measure import Measured, in_turns, measure, median
from peers.shapes import BATCH, LEARNING_RATE, LENGTH, LORA_ALPHA, LORA_RANK

PEERS = Path(__file__).parent / "peers"


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
    """One run of ours, in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        text = [{"text": "".join(chr(97 + (i * j * j + j) % 26) for j in range(2 * LENGTH))} for i in range(512)]
        (here / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in text))
        (here / "job.yaml").write_text(json.dumps(job(work, here / "data.jsonl", here / "runs", steps)))
        command = [sys.executable, "-m", "pttrainer", "run", str(here / "job.yaml")]
        return measure(command, {"JAX_COMPILATION_CACHE_DIR": str(cache)})


def theirs(work: Work, python: str, steps: int, cache: Path) -> Measured:
    """One run of the peer's."""
    flags = ["--lora"] if work.lora else []
    command = [python, str(PEERS / work.script), "--model", work.model, "--steps", str(steps), *flags]
    return measure(command, {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PLATFORMS": "cpu"})


def compare(work: Work, python: str, steps: int, turns: int) -> None:
    """Both sides in turns, and the row that comes of it."""
    sides: dict[str, Callable[[Path], Measured]] = {
        "ours": lambda cache: ours(work, steps, cache),
        work.peer: partial(theirs, work, python, steps),
    }
    found = in_turns(sides, turns)
    print(f"\n{work.name}, against {work.peer}")
    for name, runs in found.items():
        wall, cpu = median(runs, "wall_s"), median(runs, "cpu_s")
        print(
            f"  {name:<10} {BATCH * LENGTH / wall:6.0f} tokens/s  {BATCH * LENGTH / cpu:5.0f} per CPU-s  "
            f"{median(runs, 'peak_gb'):.2f} GB  first step after {runs[0].start_s:.1f} s cold, "
            f"{median(runs[1:] or runs, 'start_s'):.1f} s warm"
        )
    mine, peer = found["ours"], found[work.peer]
    print(
        f"  ratio      {median(peer, 'wall_s') / median(mine, 'wall_s'):.2f} x tokens/s (bound {work.bound}), "
        f"{median(peer, 'cpu_s') / median(mine, 'cpu_s'):.2f} x per CPU-s, "
        f"{median(mine, 'peak_gb') / median(peer, 'peak_gb'):.2f} x memory, "
        f"{median(mine[1:] or mine, 'start_s') / median(peer[1:] or peer, 'start_s'):.2f} x start",
        flush=True,
    )


if __name__ == "__main__":
    peertable.run(__doc__, WORKS, compare, 10, None)
