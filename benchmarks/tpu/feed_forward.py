"""A feed-forward part's products by the TPU compiler, with less and more of the core's own memory (VMEM): no TPU.

    .venv-aot/bin/python benchmarks/tpu/feed_forward.py v6e-8 0 98304 --rows 3 --length 8192

Compiles the forward pass, and the backward pass with the forward pass again, of x -> silu(x gate) * (x up) * down in
bfloat16 on one device, with `xla_tpu_scoped_vmem_limit_kib` at each value, 0 for the compiler's default. Prints the
milliseconds of all instructions by the compiler's estimates, beside what the FLOPs need at the peak. One to three
CPU-minutes for each value.

With `--split` the same as a step trains it, both passes in one: layers in a loop, each with its norm, whose matrices
are split over all chips and gathered (`explicit_collectives`). Three to six CPU-minutes.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ptapi.accelerators import Slice, compiler_flags, resolve
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.timing.program_time import ProgramTime, links

LAYERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("accelerator")
    parser.add_argument("kib", nargs="+", type=int, help="values of the flag; 0: unset")
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--d-model", type=int, default=4096)
    parser.add_argument("--d-ff", type=int, default=14336)
    parser.add_argument("--split", action="store_true", help="over all chips, in a loop over layers")
    options = parser.parse_args()
    tpu_topology.prepare_environment()
    slice_ = resolve(options.accelerator)
    assert slice_.chip is not None
    product = 2.0 * options.rows * options.length * options.d_model * options.d_ff
    peak = product / (slice_.chip.peak_bf16_tflops * 1e9 / slice_.jax_devices_per_chip)
    if options.split:
        print(f"| {options.accelerator}, KiB | a layer, both passes, ms ({11 * peak:.2f} at the peak) |\n| --- | --- |")
    else:
        print(f"| {options.accelerator}, KiB | forward, ms ({3 * peak:.2f} at the peak) | backward ({8 * peak:.2f}) |")
        print("| --- | --- | --- |", flush=True)
    for kib in options.kib:
        started = time.process_time()
        if options.split:
            print(f"| {kib} | {split_milliseconds(slice_, options, kib):.2f} |", flush=True)
        else:
            ahead, back = (milliseconds(slice_, options, kib, is_backward) for is_backward in (False, True))
            print(f"| {kib} | {ahead:.2f} | {back:.2f} |", flush=True)
        print(f"{time.process_time() - started:.0f} CPU-seconds", file=sys.stderr)


def milliseconds(slice_: Slice, options: argparse.Namespace, kib: int, is_backward: bool) -> float:
    """Compile one pass; return its estimated time."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    def part(x_BTD: Any, gate_DF: Any, up_DF: Any, down_FD: Any) -> Any:
        return (jax.nn.silu(x_BTD @ gate_DF) * (x_BTD @ up_DF)) @ down_FD

    def backward(out_BTD: Any, *inputs: Any) -> Any:
        return jax.vjp(jax.checkpoint(part), *inputs)[1](out_BTD)

    where = SingleDeviceSharding(tpu_topology.devices(slice_)[0])
    D, F = options.d_model, options.d_ff
    x, gate, down = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=where)
        for shape in ((options.rows, options.length, D), (D, F), (F, D))
    )
    weights = gate, gate, down
    lowered = jax.jit(backward).lower(x, x, *weights) if is_backward else jax.jit(part).lower(x, *weights)
    compiled = lowered.compile(compiler_options={compiler_flags.VMEM: str(kib)} if kib else None)
    return 1e3 * ProgramTime(compiled.as_text(), slice_.generation, links(slice_)).seconds


def split_milliseconds(slice_: Slice, options: argparse.Namespace, kib: int) -> float:
    """Compile the gradient of layers as a step trains them; return the estimated time of one."""
    import jax
    import jax.numpy as jnp

    from pttrainer.models.layers.norm import unit_rms
    from pttrainer.runtime.distributed import sharding
    from pttrainer.runtime.distributed.explicit_collectives import product

    def layer(x_BTD: Any, weights: Any) -> Any:
        gate_DF, up_DF, down_FD = (w.astype(jnp.bfloat16) for w in weights)
        gate, up = (product(unit_rms(x_BTD, 1e-6), w, ("embed", "mlp")) for w in (gate_DF, up_DF))
        return x_BTD + unit_rms(product(jax.nn.silu(gate) * up, down_FD, ("mlp", "embed")), 1e-6), None

    def loss(weights: Any, x_BTD: Any) -> Any:
        out_BTD, _ = jax.lax.scan(jax.checkpoint(layer), x_BTD, weights)
        return jnp.sum(jnp.sin(out_BTD.astype(jnp.float32)))

    mesh = sharding.make_mesh((1, slice_.total_devices), tpu_topology.devices(slice_))
    D, F = options.d_model, options.d_ff
    shapes = [jax.ShapeDtypeStruct((LAYERS, *one), jnp.float32) for one in ((D, F), (D, F), (F, D))]
    inner, outer = ("layer", "embed", "mlp"), ("layer", "mlp", "embed")
    where = sharding.weight_shardings(mesh, shapes, [inner, inner, outer])
    weights = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at) for x, at in zip(shapes, where, strict=True)]
    rows = (options.rows * slice_.total_devices, options.length, D)
    x = jax.ShapeDtypeStruct(rows, jnp.bfloat16, sharding=sharding.batch_sharding(mesh, rows))
    flags = compiler_flags.flags(slice_.generation)
    flags.pop(compiler_flags.VMEM, None)
    if kib:
        flags[compiler_flags.VMEM] = str(kib)
    with jax.set_mesh(mesh):
        compiled = jax.jit(jax.grad(loss)).lower(weights, x).compile(compiler_options=flags)
    return 1e3 * ProgramTime(compiled.as_text(), slice_.generation, links(slice_)).seconds / LAYERS


if __name__ == "__main__":
    main()
