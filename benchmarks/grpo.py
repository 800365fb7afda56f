"""A step of GRPO against its peers, in one run, on the same shapes: seconds, CPU-seconds, memory, time to the first.

Prompts of 64 tokens, completions of a fixed length (nobody's end token comes), float32, AdamW, one update per rollout,
a reward that costs nothing: 4 prompts x 8 samples x 128 tokens with a reference model (`random://bench-16m`), and
8 x 8 x 64 without (`bench-13m`). A step is everything from prompts to new weights. Every side is a process of its own,
watched from outside (`measure`); sides take turns, so that what else the machine does touches all of them. Ours is
`python -m pttrainer run`, its rewards in a process of their own as always.

    python benchmarks/grpo.py --tunix .venv-tunix/bin/python --torch .venv-parity/bin/python

A side whose Python is not given is left out. The first turn of ours compiles, the others find compiled functions;
JAX peers are given such a cache as well.
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

PEERS = Path(__file__).parent / "peers"
sys.path.insert(0, str(PEERS))
from grpo_shapes import LEARNING_RATE, PROMPT, prompts  # noqa: E402  # of scripts that run in a peer's environment

REWARD = '''"""The reward of every side."""

import zlib


def reward(prompt, completion, row):
    return zlib.crc32(completion.encode()) % 1000 / 1000
'''


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
    """One run of ours, in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        rows = [{"prompt": "".join(map(chr, tokens[1:])), "answer": ""} for tokens in prompts(work.prompts * steps)]
        (here / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (here / "reward.py").write_text(REWARD)
        (here / "template.jinja").write_text("{{ bos_token }}{{ messages[0]['content'] }}")
        (here / "job.yaml").write_text(json.dumps(job(work, here, steps)))
        command = [sys.executable, "-m", "pttrainer", "run", str(here / "job.yaml")]
        return measure(command, {"JAX_COMPILATION_CACHE_DIR": str(cache)})


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


def theirs(work: Work, python: str, steps: int, cache: Path) -> Measured:
    """One run of the peer's."""
    flags = {
        "--model": work.model,
        "--steps": steps,
        "--prompts": work.prompts,
        "--group": work.group,
        "--new-tokens": work.new_tokens,
        "--beta": work.beta,
    }
    command = [python, str(PEERS / work.script), *(str(part) for flag in flags.items() for part in flag)]
    return measure(command, {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PLATFORMS": "cpu"})


def compare(work: Work, python: str, steps: int, turns: int) -> None:
    """Both sides in turns, and the row that comes of it."""
    sides: dict[str, Callable[[Path], Measured]] = {
        "ours": partial(ours, work, steps),
        work.peer: partial(theirs, work, python, steps),
    }
    found = in_turns(sides, turns)
    print(f"\nGRPO, {work.name}, against {work.peer}")
    for name, runs in found.items():
        print(
            f"  {name:<6} {median(runs, 'wall_s'):5.2f} s a step  {median(runs, 'cpu_s'):5.2f} CPU-s  "
            f"{median(runs, 'peak_gb'):.2f} GB  first update after {runs[0].start_s:.1f} s cold, "
            f"{median(runs[1:] or runs, 'start_s'):.1f} s warm"
        )
    mine, peer = found["ours"], found[work.peer]
    print(
        f"  ratio  {_share(mine, peer, 'wall_s'):.2f} x seconds (bound {work.bound}), "
        f"{_share(mine, peer, 'cpu_s'):.2f} x CPU-s, {_share(mine, peer, 'peak_gb'):.2f} x memory (bound 0.6), "
        f"{mine[0].start_s / peer[0].start_s:.2f} x start cold, "
        f"{_share(mine[1:] or mine, peer[1:] or peer, 'start_s'):.2f} x warm (bound 0.7)",
        flush=True,
    )


def _share(mine: list[Measured], peer: list[Measured], field: str) -> float:
    return median(mine, field) / median(peer, field)


if __name__ == "__main__":
    peertable.run(__doc__, WORKS, compare, 6, "optimizer steps of each process; the first two are not counted")
