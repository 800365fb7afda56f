"""Configurations drawn at random, to hold the formula of preflight against the compiler where nobody chose.

    python benchmarks/preflight/preflight_draws.py 7            # what seed 7 draws, the formula's peaks
    python benchmarks/preflight/preflight_draws.py 7 --measure  # and the compiler's: a minute each
    … --only 3 --only 5    … --keep                             # add them to `preflight_draws.json`, so to the table

A seed gives the same list always: it depends on no formula. Drawn are family and size, what is trained, algorithm,
generation, length of rows, rows of a device and pass, micro-batches, recomputation and split; the slice is then the
smallest whose chips are half full of weights and moments, or a larger one. Those that are no job are drawn again.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import preflight_formula
from preflight_formula import DRAWN, GIB, Case, subject_of

from ptapi.accelerators import resolve
from ptapi.errors import SpecError
from pttrainer.errors import ConfigError
from pttrainer.models.families.presets import PRESETS, preset
from pttrainer.models.families.published_shapes import RAW
from pttrainer.models.shapes import parameters
from pttrainer.preflight.advice import changes
from pttrainer.preflight.memory import formula
from pttrainer.preflight.shapes import tpu_topology

MODELS = sorted(name for name in RAW if name not in PRESETS)
METHODS: dict[str, tuple[dict[str, Any], float]] = {
    "full": ({}, 12.0),
    "full, bfloat16": ({"precision": {"params": "bfloat16"}}, 6.0),
    "LoRA": ({"lora": {"rank": 16}}, 4.0),
    "LoRA on bfloat16": ({"lora": {"rank": 32}, "precision": {"params": "bfloat16"}}, 2.0),
    "QLoRA": ({"lora": {"rank": 16}, "quantization": {"weights": "nf4"}}, 0.6),
    "LoRA on int8": ({"lora": {"rank": 8, "targets": "attention"}, "quantization": {"weights": "int8"}}, 1.1),
}
"""What is trained, and bytes of a weight with what the optimizer keeps of it."""
OFTEN = (5, 1, 3, 1, 3, 1)
ALGORITHMS = {"sft": 3, "grpo": 3, "dpo": 3, "ppo": 2, "distill": 1}
TEACHERS = {"llama3": "llama3.1-8b", "qwen3": "qwen3-8b", "gemma3": "gemma3-12b"}
"""By the family's first letters: with the same tokens."""
MOST_TOKENS = 16_384
"""Of a device and pass."""
FULL = 0.5
"""Share of a chip that weights and moments take at most."""


def drawn(seed: int, count: int) -> list[Case]:
    """The seed's first configurations that are jobs."""
    dice = random.Random(seed)
    cases: list[Case] = []
    while len(cases) < count:
        case = _draw(dice)
        if case is not None and _is_a_job(case):
            cases.append(case)
    return cases


def _draw(dice: random.Random) -> Case | None:
    model, (method, each) = dice.choice(MODELS), dice.choices(list(METHODS.values()), OFTEN)[0]
    algorithm = dice.choices(list(ALGORITHMS), list(ALGORITHMS.values()))[0]
    generation, length = dice.choice(list(tpu_topology.USABLE_GIB)), dice.choice((1024, 2048, 3072, 4096, 8192))
    rows, micro, remat = dice.choice((1, 1, 2, 4)), dice.choice((1, 1, 2, 4)), dice.choices(("full", "none"), (4, 1))[0]
    axis = dice.choices((None, "tensor", "sequence", "expert"), (5, 2, 1, 1))[0]
    ways, slices, larger = dice.choice((2, 4)), dice.choices((1, 2), (7, 1))[0], dice.choice((0, 0, 1))
    if axis == "expert" and preset(model).experts is None:
        axis = None
    options = _options(algorithm, model, dice)
    needed = each * parameters.count(preset(model))
    fitting = [
        name
        for name in changes.usual(generation)
        if needed / resolve(name).devices <= FULL * tpu_topology.USABLE_GIB[generation] * GIB
    ]
    if options is None or rows * length > MOST_TOKENS or len(fitting) <= larger:
        return None
    name = fitting[larger]
    split = ways if axis is not None else 1
    devices = resolve(name).devices
    shards = slices * devices // (split if axis in ("tensor", "sequence") else 1)
    training: dict[str, Any] = {"batchSize": shards * rows * micro, "sequenceLength": length, **method}
    if micro > 1:
        training["microBatchSize"] = shards * rows
    if remat == "none":
        training["remat"] = remat
    if axis is not None:
        training["parallelism"] = {"data": slices, "fsdp": devices // split, axis: split}
    return Case(model, name, algorithm, training, slices, held=True, options=options)


def _options(algorithm: str, model: str, dice: random.Random) -> dict[str, Any] | None:
    """None where there is no teacher."""
    if algorithm == "grpo":
        return {"loss": dice.choice(("grpo", "dapo", "gspo", "cispo"))}
    if algorithm == "dpo":
        return {"loss": dice.choice(("sigmoid", "simpo", "orpo"))}
    if algorithm == "ppo":
        return {"critic": {"kind": dice.choice(("head", "model"))}}
    if algorithm == "distill":
        teacher = next((name for start, name in TEACHERS.items() if model.startswith(start)), None)
        return None if teacher is None else {"teacher": {"uri": f"random://{teacher}"}}
    return {}


def _is_a_job(case: Case) -> bool:
    try:
        subject_of(case)
    except (SpecError, ConfigError, ValueError):
        return False
    return True


def _measured(seed: int, number: int) -> dict[str, Any] | None:
    """In a process of its own, as in `preflight_formula`."""
    words = [sys.executable, __file__, str(seed), "--case", str(number)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def _compared(case: Case, measured: dict[str, Any] | None) -> str:
    """A line for people."""
    computed = formula.memory(subject_of(case)).program.peak / GIB
    if measured is None:
        return f"{computed:8.2f}  {case.name}"
    how = "" if measured["fits"] else " (refused)"
    return f"{computed:8.2f} {measured['peak']:8.2f}{how} {computed / measured['peak'] - 1:+.1%}  {case.name}"


def _chosen(options: argparse.Namespace) -> Iterator[tuple[int, Case]]:
    for number, case in enumerate(drawn(options.seed, options.count)):
        if not options.only or number in options.only:
            yield number, case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--only", type=int, action="append", help="of them this one; several times")
    parser.add_argument("--measure", action="store_true", help="ask the compiler")
    parser.add_argument("--keep", action="store_true", help="keep what was asked in the table")
    parser.add_argument("--case", type=int, help="compile this one and print what the compiler said")
    options = parser.parse_args()
    tpu_topology.prepare_environment()
    if options.case is not None:
        print(json.dumps(preflight_formula.measure(drawn(options.seed, options.case + 1)[-1])))
        return
    known = preflight_formula.measured()
    kept: list[dict[str, Any]] = json.loads(DRAWN.read_text()) if DRAWN.exists() else []
    for number, case in _chosen(options):
        measured = known.get(case.name) or (_measured(options.seed, number) if options.measure else None)
        print(f"{number:3} {_compared(case, measured)}", flush=True)
        if options.keep and measured is not None and case.name not in {Case(**each).name for each in kept}:
            kept.append(case._asdict())
            known[case.name] = measured
            DRAWN.write_text(json.dumps(kept, indent=1) + "\n")
            preflight_formula.MEASURED.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
