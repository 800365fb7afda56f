"""A step of GRPO against its peers, in one run, on the same shapes: seconds, CPU-seconds, memory, time to the first.

Prompts of 64 tokens, completions of a fixed length (nobody's end token comes), float32, AdamW, one update per rollout,
a reward that costs nothing: 4 prompts x 8 samples x 128 tokens with a reference model (`random://bench-16m`), and
8 x 8 x 64 without (`bench-13m`). A step is everything from prompts to new weights. Every side is a process of its own,
watched from outside (`measure`); sides take turns, so that what else the machine does touches all of them. Ours is
`python -m pttrainer run`, its rewards in a process of their own as always.

    python benchmarks/peers/grpo.py --tunix .venv-tunix/bin/python --torch .venv-parity/bin/python

A row whose Python is not given is left out; with `--ours` our side of it is measured alone. The first turn of ours
compiles, the others find compiled functions, as a second run of a user does; JAX peers are given such a cache as well.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import Measured, median
from peer_table import SCRIPTS, Table, run_job, share

sys.path.insert(1, str(SCRIPTS))
sys.path.insert(1, str(SCRIPTS.parents[2]))

from benchmarks.jobs import REWARD, manifest
from grpo_shapes import LEARNING_RATE, PROMPT, prompts


@dataclass(frozen=True)
class Work:
    """A row of the table. bound: what our seconds may be, as a share of the peer's."""

    name: str
    model: str
    prompts: int
    group: int
    new_tokens: int
    beta: float
    peer: str
    script: str
    python: str
    bound: float = 0.7


WORKS = (
    Work(
        "4 prompts x 8, 128 new, beta 0.04, bench-16m", "bench-16m", 4, 8, 128, 0.04, "Tunix", "tunix_grpo.py", "tunix"
    ),
    Work("8 prompts x 8, 64 new, beta 0, bench-13m", "bench-13m", 8, 8, 64, 0.0, "TRL", "trl_grpo.py", "torch"),
)


def ours(work: Work, steps: int, cache: Path) -> Measured:
    """Run ours once."""
    rows = [{"prompt": "".join(map(chr, tokens[1:])), "answer": ""} for tokens in prompts(work.prompts * steps)]

    def files(here: Path) -> dict[str, str]:
        return {
            "data.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
            "reward.py": REWARD,
            "template.jinja": "{{ bos_token }}{{ messages[0]['content'] }}",
            "job.yaml": json.dumps(job(work, here, steps)),
        }

    return run_job(files, cache)


def job(work: Work, here: Path, steps: int) -> dict[str, object]:
    """The same work as a PostTrainJob. The tokenizer's first token and 63 letters are 64 tokens."""
    return manifest(
        "bench",
        data=(here / "data.jsonl").as_uri(),
        output=(here / "runs").as_uri(),
        model={"uri": f"random://{work.model}", "chatTemplate": (here / "template.jinja").as_uri()},
        algorithm={"grpo": {"groupSize": work.group, "beta": work.beta}},
        rewards=[{"python": {"uri": (here / "reward.py").as_uri(), "function": "reward"}}],
        rollout={"maxNewTokens": work.new_tokens, "minNewTokens": work.new_tokens},
        training={
            "steps": steps,
            "batchSize": work.prompts * work.group,
            "sequenceLength": PROMPT + work.new_tokens,
            "optimizer": {"learningRate": LEARNING_RATE},
            "precision": {"compute": "float32"},
        },
        checkpoint={"everySteps": 10**6},
        export={"format": "none"},
    )


def flags(work: Work, steps: int) -> list[object]:
    """Return the command line of the peer's script."""
    options = {
        "--model": work.model,
        "--steps": steps,
        "--prompts": work.prompts,
        "--group": work.group,
        "--new-tokens": work.new_tokens,
        "--beta": work.beta,
    }
    return [part for option in options.items() for part in option]


def speed(runs: Sequence[Measured]) -> str:
    """Word a side's seconds."""
    return f"{median(runs, 'wall_s'):5.2f} s a step  {median(runs, 'cpu_s'):5.2f} CPU-s"


def ratio(mine: Sequence[Measured], peer: Sequence[Measured], bound: float) -> str:
    """Word our seconds over the peer's; memory's bound is 0.6, that of the start 0.7."""
    return f"{share(mine, peer, 'wall_s'):.2f} x seconds (bound {bound}), {share(mine, peer, 'cpu_s'):.2f} x CPU-s"


if __name__ == "__main__":
    table = Table(WORKS, ours, flags, speed, ratio)
    table.main(__doc__, 6, "optimizer steps of each process; the first two do not count")
