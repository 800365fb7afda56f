"""Host memory that loading takes, beside what the devices hold: a synthetic sharded checkpoint, Llama style, 2 GB.

    peak - before <= weights on the devices + 1.3 x the largest tensor

On CPU the devices' memory is the host's, so the weights are part of the peak. Each load is a process of its own, by
the trainer's real path (config, safetensors index, table of names, shardings). Exits with 1 where a bound is broken.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from pttrainer.models import Model, from_hf
from pttrainer.models.weights.safetensors_file import write_header
from pttrainer.models.weights.weight import stored_shapes

ALLOWED = 1.3
FILE_BYTES = 500 * 10**6
WAYS = (("bfloat16", 1), ("float32", 1), ("bfloat16", 8), ("float32", 8))
"""Number format of the weights (the files hold bfloat16), and devices that share them."""

CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32_000, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 5632, "rms_norm_eps": 1e-5,
}  # fmt: skip
"""Without its depth, which follows from the size asked for."""


def write_checkpoint(directory: Path, total_bytes: int, config: dict[str, Any] | None = None) -> int:
    """Files in Hugging Face's layout of about this size; the size of the largest tensor is returned."""
    config = config or CONFIG
    one, two = (_bytes(_shapes(config | {"num_hidden_layers": layers})) for layers in (1, 2))
    raw = config | {"num_hidden_layers": max(1, round((total_bytes - one) / (two - one)) + 1)}
    shapes = _shapes(raw)
    (directory / "config.json").write_text(json.dumps(raw))
    places: dict[str, str] = {}
    for number, names in enumerate(_files(shapes), start=1):
        file = f"model-{number:05d}.safetensors"
        places |= dict.fromkeys(names, file)
        _write(directory / file, {name: shapes[name] for name in names})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return max(2 * int(np.prod(shape)) for shape in shapes.values())


def measured(directory: Path, dtype: str, devices: int) -> dict[str, int]:
    """A load in a process of its own: bytes of the weights, and how much its memory grew at most."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, __file__, "--load", str(directory), "--dtype", dtype]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


def _shapes(raw: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    config = from_hf(raw)
    return stored_shapes(config, Model(config).abstract())


def _bytes(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(2 * int(np.prod(shape)) for shape in shapes.values())


def _files(shapes: dict[str, tuple[int, ...]]) -> list[list[str]]:
    files: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        if size > FILE_BYTES:
            files.append([])
            size = 0
        files[-1].append(name)
        size += 2 * int(np.prod(shape))
    return files


def _write(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)
    dtype = np.dtype(ml_dtypes.bfloat16)
    with path.open("wb") as file:
        write_header(file, ((name, dtype, shape) for name, shape in shapes.items()))
        for shape in shapes.values():
            # Random bits of exponent 127: numbers between 1 and 2, quickly made.
            bits = random.integers(0, 128, shape, np.uint16) | np.uint16(0x3F80)
            file.write(bits.data)


def _load(directory: Path, dtype: str) -> dict[str, int]:
    import jax

    from pttrainer.models.loading.model_loader import load_params
    from pttrainer.models.loading.model_spec import open_source
    from pttrainer.runtime.distributed import sharding

    source = open_source(f"file://{directory}", "--load", lambda text: None)
    model = Model(source.config, param_dtype=dtype)
    mesh = sharding.make_mesh((1, jax.device_count()))
    shardings = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jax.numpy.zeros(8)))  # the compiler's own memory
    before = _status("VmRSS")
    params = jax.block_until_ready(load_params(source, model, shardings))
    return {"weights": sum(x.nbytes for x in jax.tree.leaves(params)), "grew": _status("VmHWM") - before}


def _status(name: str) -> int:
    """Bytes, as Linux counts this process's memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=2e9, help="bytes of the checkpoint")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        print(json.dumps(_load(arguments.load, arguments.dtype)))
        return
    with tempfile.TemporaryDirectory() as directory:
        largest = write_checkpoint(Path(directory), int(arguments.size))
        print(f"largest tensor {largest / 1e6:.0f} MB, allowed beside the weights {ALLOWED * largest / 1e6:.0f} MB")
        broken = 0
        for dtype, devices in WAYS:
            figures = measured(Path(directory), dtype, devices)
            beside = figures["grew"] - figures["weights"]
            broken += beside > ALLOWED * largest
            print(
                f"bfloat16 files as {dtype} on {devices} device(s): weights {figures['weights'] / 1e6:.0f} MB, "
                f"memory grew by {figures['grew'] / 1e6:.0f} MB: {beside / 1e6:.0f} MB ({beside / largest:.2f} x) "
                "beside"
            )
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
