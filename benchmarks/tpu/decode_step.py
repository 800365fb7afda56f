"""A layer of a rollout's programs by the TPU compiler, against what its bytes and FLOPs need: no TPU.

    .venv-aot/bin/python benchmarks/tpu/decode_step.py v5e-8 v5p-8 v6e-8 tpu7x-8 --rows 128 --length 2048

Prompts and tokens are compiled with few layers and with twice as many, the cache at its largest; a layer is the
difference. Products by the compiler's estimates beside the layer's weights at the memory's published bandwidth. An
estimate below that is of products whose weights come to the core ahead of time, by copies that are in no estimate, so
the larger of the two counts. The kernel that reads pages has no estimate: its bytes at the bandwidth, once for every
row, and in brackets once for every prompt. Nor has that of experts: their weights at the bandwidth, too. Prefill is of
a prompt for each eight rows. A whole-cache copy is an instruction that writes all pages of a layer. Beside the layers
is what else a token takes: the head, and drawing it. How far to trust an estimate:
`pttrainer.preflight.timing.program_time`.
Two to eight CPU-minutes for each slice.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tpu.rl_step import compiled_programs, job_spec

from pttrainer.preflight.compiler.programs import shallow
from pttrainer.preflight.shapes import rollout_shapes, tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.shapes.passes import DECODE, PREFILL, ROLLOUT
from pttrainer.preflight.timing.collectives import Traffic, collectives
from pttrainer.preflight.timing.program_time import ProgramTime, links
from pttrainer.preflight.timing.rollout_time import generation
from pttrainer.rollout.native.sizes import sampler_shape, sampling_time

HEAD = (
    "| slice, sampler's fsdp x tensor | weights, MiB: µs at bandwidth | products, µs | other, µs "
    "| pages, µs at bandwidth (prompts once) | collectives, KiB | cache copies | beside the layers, µs "
    "| prefill, of peak |"
)


class Programs(NamedTuple):
    """A rollout's programs of one depth.

    decode: seconds of a token by kind; kernels: of it, without an estimate, and how many; sent: its traffic by kind.
    """

    decode: Mapping[str, float]
    prefill_seconds: float
    kernels: dict[str, int]
    sent: dict[str, Traffic]
    cache_copies: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("accelerators", nargs="+")
    parser.add_argument("--model", default="llama3.1-8b")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--new-tokens", type=int, default=1024)
    parser.add_argument(
        "--weights-share",
        type=float,
        default=sampler_shape.WEIGHTS_SHARE,
        help="most of a chip's memory for the sampler's weights; with less, `tensor` is larger",
    )
    parser.add_argument("--by-memory", action="store_true", help="no more `tensor` than memory needs")
    options = parser.parse_args()
    sampler_shape.WEIGHTS_SHARE = options.weights_share
    if options.by_memory:
        sampler_shape.GAIN = 0.0
    if len(options.accelerators) == 1:
        options.accelerator, options.micro, options.split = options.accelerators[0], None, None
        print(row(options), flush=True)
        return
    print(HEAD, "| --- " * HEAD.count(" | "), sep="\n", end="| --- |\n", flush=True)
    shared = [word for word in sys.argv[1:] if word not in options.accelerators]
    for accelerator in options.accelerators:  # a process each, because compilers keep memory
        subprocess.run([sys.executable, __file__, accelerator, *shared], check=True)


def row(options: argparse.Namespace) -> str:
    """Compile a slice's programs; return its row of the table, each figure of one layer."""
    tpu_topology.prepare_environment()
    started, of = time.process_time(), shapes_of(job_spec(options))
    pair = shallow(of)
    assert pair is not None, "a model of few layers"
    few, more = (measured(each) for each in pair)
    layers = pair[1].config.layers - pair[0].config.layers
    there = rollout_shapes.sampler(of)
    rows, chip = rollout_shapes.plan_of(there).rows, of.slice.chip
    assert rows == options.rows, f"memory for {rows} rows at once"
    assert chip is not None

    def of_layer(quantity: Callable[[JobShapes], float]) -> float:
        return (quantity(pair[1]) - quantity(pair[0])) / layers

    def at_bandwidth(bytes_: float) -> float:
        return bytes_ * of.slice.jax_devices_per_chip / chip.hbm_gbytes_per_s / 1e3

    weights, once_a_row, once_a_prompt = (of_layer(each) for each in (_weights, _once_a_row, _once_a_prompt))
    kinds = {kind: 1e6 * (seconds - few.decode[kind]) / layers for kind, seconds in more.decode.items()}
    products = sum(us for kind, us in kinds.items() if kind.startswith("products"))
    sent = (
        f"{(traffic.count - few.sent[kind].count) / layers:g} {kind} "
        f"{(traffic.bytes - few.sent[kind].bytes) / layers / 1024:.0f}"
        for kind, traffic in more.sent.items()
        if traffic.count > few.sent[kind].count
    )
    ideal = of_layer(_prefill_at_peak) * layers / (more.prefill_seconds - few.prefill_seconds)
    parts = (
        f"{options.accelerator}, {there.axis('fsdp')} x {there.axis('tensor')}",
        f"{weights / 2**20:.1f}: {at_bandwidth(weights):.0f}",
        f"{products:.0f}",
        f"{sum(kinds.values()) - products:.0f}",
        f"{at_bandwidth(once_a_row):.0f} ({at_bandwidth(once_a_prompt):.0f})",
        "; ".join(sent),
        str(len(more.cache_copies)),
        f"{1e6 * sum(few.decode.values()) - pair[0].config.layers * sum(kinds.values()):.0f}",
        f"{100 * ideal:.0f} %",
    )
    print(more.kernels, kinds, f"{time.process_time() - started:.0f} CPU-seconds", file=sys.stderr)
    return f"| {' | '.join(parts)} |"


def measured(of: JobShapes) -> Programs:
    """Compile the rollout of a job with few layers."""
    answers: dict[str, tuple[Any, int | None]] = {}
    for name, compiled, turns, _ in compiled_programs(of, ROLLOUT):
        answers[name] = compiled, turns  # the last program of a name counts
    decode, prefill = (_time(of, *answers[name]) for name in (DECODE, PREFILL))
    token, _ = answers[DECODE]
    text = token.as_text()
    return Programs(
        decode.by_kind,
        prefill.seconds,
        dict(decode.unknown),
        {one.kind: one for one in collectives(text, of.slice.total_devices, turns=1)},
        cache_copies(text, token),
    )


def _time(of: JobShapes, compiled: Any, turns: int | None) -> ProgramTime:
    made = ProgramTime(compiled.as_text(), of.slice.generation, links(of.sampling_slice), None, turns)
    assert made.seconds > 0  # computed here, and its kinds with it
    return made


def cache_copies(text: str, compiled: Any) -> list[str]:
    """Return the instructions of a token's program that write all of a layer's cache anew, on one device."""
    import jax

    arrays, where = (jax.tree.leaves(each[0].cache) for each in (compiled.out_info, compiled.output_shardings))
    local = [one.shard_shape(array.shape) for array, one in zip(arrays, where, strict=True)]
    largest = max(local, key=lambda shape: (len(shape), shape))
    shapes = "|".join(",".join(map(str, shape)) for shape in (largest, largest[1:]))
    return re.findall(rf"= \w+\[(?:{shapes})\]\S* (?:copy|copy-start|transpose|convert)\(.*", text)


def _weights(of: JobShapes) -> int:
    return sampling_time.weights_bytes(of.structure, rollout_shapes.sampler(of).shape)


def _once_a_prompt(of: JobShapes) -> int:
    there = rollout_shapes.sampler(of)
    plan = rollout_shapes.plan_of(there)
    return rollout_shapes.prompts_bytes(there, plan) + rollout_shapes.rows_bytes(there, plan.rows, plan.slots)


def _once_a_row(of: JobShapes) -> int:
    there = rollout_shapes.sampler(of)
    plan = rollout_shapes.plan_of(there)
    return rollout_shapes.rows_bytes(there, plan.rows, plan.prompt_slots + plan.slots)


def _prefill_at_peak(of: JobShapes) -> float:
    sampled = generation(of, {})
    assert sampled is not None
    return sampled.programs[PREFILL].compute_seconds


if __name__ == "__main__":
    main()
