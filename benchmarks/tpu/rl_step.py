"""One step of GRPO, phase by phase: by preflight's formula, and by the TPU compiler's estimates, without a TPU.

    .venv-aot/bin/python benchmarks/tpu/rl_step.py v5p-128 --model llama3.1-70b --rows 512 --micro 64 --length 1536
    .venv-aot/bin/python benchmarks/tpu/rl_step.py v5p-128 … --split 0.5 --only rollout

The update and the scoring pass are compiled whole, as training compiles them; prompts and tokens of a model with 2
and with 4 layers, from which the whole one's seconds follow, because every layer adds the same. A token is compiled
with the cache at its largest. Kernels that the compiler does not estimate are listed: a token's count as their bytes,
from the formula, others as nothing. How far to trust an estimate: `pttrainer.preflight.timing.program_time`. One to
three CPU-minutes for each phase of a large model.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ptapi.spec import PostTrainJobSpec
from pttrainer.preflight.memory import recomputation
from pttrainer.preflight.shapes import rollout_shapes, tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.shapes.passes import DECODE, PREFILL, PUT, ROLLOUT, SCORING, TRAIN_STEP, TRANSFER, WEIGHTS
from pttrainer.preflight.timing import weight_sync_time
from pttrainer.preflight.timing.program_time import ProgramTime, links, step_seconds
from pttrainer.preflight.timing.step_time import estimate

PHASES = ("rollout", "update", "scoring", "sync")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("accelerator")
    parser.add_argument("--model", default="llama3.1-8b")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--micro", type=int)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--new-tokens", type=int, default=1024)
    parser.add_argument("--split", type=float, help="share of the chips that only sample, one step ahead")
    parser.add_argument("--only", choices=PHASES, action="append", help="compile this phase; formula for the others")
    options = parser.parse_args()
    tpu_topology.prepare_environment()
    of = recomputation.settled(shapes_of(job_spec(options)))
    by_formula = {phase.name: phase.end - phase.start for phase in estimate(of, None).timeline}
    print(f"{options.model} on {of.slice.describe()}, remat {of.structure.remat}; estimates are not calibrated")
    print("| phase | formula, s | compiler, s | of them |\n| --- | --- | --- | --- |", flush=True)
    for phase in options.only or PHASES:
        started = time.process_time()
        for name, seconds, parts in MEASURED[phase](of):
            print(f"| {name} | {by_formula[name]:.3g} | {seconds:.3g} | {parts} |", flush=True)
        print(f"{phase}: {time.process_time() - started:.0f} CPU-seconds", flush=True)


Row = tuple[str, float, str]
"""A phase, its seconds, and what they consist of."""


def update(of: JobShapes) -> Iterator[Row]:
    """Yield the optimizer step."""
    yield "update", *_whole(of, TRAIN_STEP)


def scoring(of: JobShapes) -> Iterator[Row]:
    """Yield the reference model's pass."""
    yield "scoring", *_whole(of, SCORING)


def rollout(of: JobShapes) -> Iterator[Row]:
    """Yield the prompts and the tokens; where the same chips sample, the weights before them."""
    from pttrainer.preflight.compiler.programs import shallow

    pair = shallow(of)
    few, more = ([_seconds(each, ROLLOUT) for each in pair]) if pair else (_seconds(of, ROLLOUT),) * 2
    added = (
        0
        if pair is None
        else (of.config.layers - pair[0].config.layers) / (pair[1].config.layers - pair[0].config.layers)
    )
    plan = rollout_shapes.plan_of(rollout_shapes.sampler(of))
    runs = {WEIGHTS: 1, PREFILL: -(-plan.prompts // plan.pool), DECODE: plan.tokens}
    unseen = {DECODE: _cache_seconds(of)}
    for program, name in ((WEIGHTS, "sync"), (PREFILL, "prefill"), (DECODE, "decode")):
        if program in few:
            once = few[program][0] + added * (more[program][0] - few[program][0])
            beside = unseen.get(program, 0.0) if more[program][1] else 0.0
            parts = f"{runs[program]:,} of {1000 * (once + beside):.3g} ms"
            kernels = ", ".join(f"{count} {kernel}" for kernel, count in more[program][1].items())
            parts += f", {1000 * beside:.3g} by the formula for {kernels}" if kernels else ""
            yield name, runs[program] * (once + beside), parts


def sync(of: JobShapes) -> Iterator[Row]:
    """Yield the way of the weights to other chips: the largest chunk's programs for all of them, and the network."""
    if of.sampler is None:
        return
    moved = _seconds(of, TRANSFER)
    network = weight_sync_time.network_seconds(of)
    chunks = weight_sync_time.moved_bytes(of) / moved[PUT][2]
    seconds = chunks * sum(one[0] for one in moved.values())
    yield "sync", seconds + network, f"{seconds:.3g} in programs, {network:.3g} on links by the formula"


MEASURED = dict(zip(PHASES, (rollout, update, scoring, sync), strict=True))


def _cache_seconds(of: JobShapes) -> float:
    """Return the seconds in which a device reads its prompts and half-filled rows once."""
    there = rollout_shapes.sampler(of)
    plan, chip = rollout_shapes.plan_of(there), of.slice.chip
    assert chip is not None
    cache = rollout_shapes.prompts_bytes(there, plan) + rollout_shapes.rows_bytes(there, plan.rows, plan.slots) / 2
    return cache * of.slice.jax_devices_per_chip / (chip.hbm_gbytes_per_s * 1e9)


def _whole(of: JobShapes, name: str) -> tuple[float, str]:
    (_, compiled, _, _), *_ = compiled_programs(of, name)
    text = compiled.as_text()
    seconds = step_seconds(text, of)
    if seconds is None:
        raise SystemExit(f"{of.slice.generation}: its clock is not known")
    time_ = ProgramTime(text, of.slice.generation, links(of.slice))
    without = time_.seconds
    kinds = sorted(time_.by_kind.items(), key=lambda pair: -pair[1])[:5]
    kernels = [("attention's kernels", seconds - without)]
    return seconds, "; ".join(f"{kind} {each:.2f}" for kind, each in kinds + kernels)


def _seconds(of: JobShapes, name: str) -> dict[str, tuple[float, Counter[str], int]]:
    """Return seconds of the programs of a name, kernels without an estimate, and bytes of the result.

    Of two programs with one name the last counts, unless they say how many times they run.
    """
    answers: dict[str, tuple[float, Counter[str], int]] = {}
    for program, compiled, turns, times in compiled_programs(of, name):
        time_ = ProgramTime(compiled.as_text(), of.slice.generation, links(of.sampling_slice), None, turns)
        seconds = time_.seconds * (times or 1)
        before = answers[program][0] if times is not None and program in answers else 0.0
        answers[program] = before + seconds, time_.unknown, _result_bytes(compiled)
    return answers


def compiled_programs(of: JobShapes, name: str) -> Iterator[tuple[str, Any, int | None, int | None]]:
    import jax

    from pttrainer.preflight.compiler.compile import flags_of
    from pttrainer.preflight.compiler.programs import LOWERED
    from pttrainer.runtime.distributed import sharding

    mesh = sharding.make_mesh(of.shape, tpu_topology.devices(of.training_slice))
    with jax.set_mesh(mesh):
        programs, made = LOWERED[name](of, mesh), None
        while True:
            try:
                lowered = programs.send(made)
            except StopIteration:
                return
            made = lowered.program.compile(compiler_options=flags_of(of, lowered.name))
            yield lowered.name, made, lowered.turns, lowered.times


def _result_bytes(compiled: Any) -> int:
    import jax

    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(compiled.out_info))


def job_spec(options: argparse.Namespace) -> PostTrainJobSpec:
    rollout = {"maxNewTokens": options.new_tokens}
    if options.split is not None:
        rollout |= {"placement": "disaggregated", "samplerShare": options.split, "maxStaleness": 1}
    training = {"batchSize": options.rows, "sequenceLength": options.length}
    return PostTrainJobSpec.model_validate(
        {
            "model": {"uri": f"random://{options.model}"},
            "algorithm": {"grpo": {"beta": 0.05}},
            "data": {"train": {"uri": "file:///data.jsonl"}},
            "rewards": [{"builtin": "exact"}],
            "training": training | ({} if options.micro is None else {"microBatchSize": options.micro}),
            "rollout": rollout,
            "accelerator": {"type": options.accelerator},
            "pathways": {"enabled": True},
            "output": {"uri": "gs://bucket/runs"},
        }
    )


if __name__ == "__main__":
    main()
