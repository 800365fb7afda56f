"""Write the table of splash attention's tiles: `make tune-attention`; of one head size, `tune_attention.py 256`.

Compiles the kernels for every generation, head size and tile with the TPU compiler (`make aot` has it; no TPU is
needed; about 35 CPU-minutes) and counts the instructions (VLIW bundles, one cycle each) that it makes: those
of the longest piece of straight code, which runs for every pair of blocks, and all others, which run once for every row
of pairs. A tile that does not fit the chip's vector memory is refused by the compiler and left out.

Not compiled: tiles of 2,048 queries. Those take minutes each; the one that was tried (v6e, heads of 128, the fused
backward kernel) had 23,352 cycles a pair where four pairs of 1,024 have 23,948, and wastes more on the diagonal. Blocks
of 2,048 and 4,096 keys beside 1,024 queries are, of that kernel: long rows take them.
"""

import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).parents[1] / "trainer/pttrainer/models/attention/splash_table.py"
TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
HEADS = (128, 256, 512)
TILES = ((128, 128), (256, 256), (512, 512), (1024, 512), (1024, 1024))
WIDE = ((2048, 512), (4096, 512))
"""Tiles of the fused backward kernel with more keys than queries, of heads of 128: of 256 they take minutes."""
LENGTH = 4096
KERNELS = {"_fwd_": "forward", "_dkv_": "dkv", "_dq_": "dq"}
HEADER = '''"""Cycles of splash attention's kernels by tile, written by scripts/tune_attention.py.

(generation, head size) -> (kernel, tokens of a block, keys computed at once) -> (cycles of a pair of blocks, cycles
around a row of pairs). A block of queries has at most 1,024 tokens. Compiled with libtpu {libtpu}. What is not here did
not compile.
"""

Cycles = dict[tuple[str, int, int], tuple[int, int]]

CYCLES: dict[tuple[str, int], Cycles] = {{
'''


def main() -> None:
    if len(sys.argv) > 2:
        measure(sys.argv[1], int(sys.argv[2]))
        return
    import importlib.metadata

    only = {int(head) for head in sys.argv[1:]}
    lines = [HEADER.format(libtpu=importlib.metadata.version("libtpu"))]
    for head, generation in itertools.product(HEADS, TOPOLOGIES):
        of_pair = measured(generation, head) if head in only or not only else written(generation, head)
        lines.append(f'    ("{generation}", {head}): {{\n{of_pair}    }},\n')
    TABLE.write_text("".join([*lines, "}\n"]))


def measured(generation: str, head: int) -> str:
    """Return the table's lines for a generation and head size, measured in a process of their own."""
    child = subprocess.run(
        [sys.executable, __file__, generation, str(head)], stdout=subprocess.PIPE, check=True, text=True
    )
    print(generation, head, file=sys.stderr, flush=True)
    return child.stdout


def written(generation: str, head: int) -> str:
    """Return those that the table has."""
    from pttrainer.models.attention.splash_table import CYCLES

    return "".join(line(*tile, cycles) for tile, cycles in CYCLES[generation, head].items())


def line(kernel: str, tokens: int, compute: int, cycles: tuple[int, int]) -> str:
    """Return a line of the table."""
    return f'        ("{kernel}", {tokens}, {compute}): ({cycles[0]}, {cycles[1]}),\n'


def measure(generation: str, head: int) -> None:
    """Print the table's lines for a generation and head size."""
    with tempfile.TemporaryDirectory() as dump:
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={dump} --xla_jf_dump_llo_text=true"
        os.environ |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"}
        os.environ["TPU_STDERR_LOG_LEVEL"] = "3"
        for tokens, compute in (*TILES, *(WIDE if head == HEADS[0] else ())):
            for is_fused in (True,) if (tokens, compute) in WIDE else (True, False):
                why = compile_kernels(TOPOLOGIES[generation], head, tokens, compute, is_fused)
                for name, cycles in sorted(bundles(Path(dump)).items()):
                    name = "fused" if is_fused and name == "dkv" else name
                    if why is None and (name != "forward" or not is_fused):
                        print(line(name, tokens, compute, cycles), end="", flush=True)
                if why is not None:
                    print(generation, head, tokens, compute, is_fused, why, file=sys.stderr)


def compile_kernels(topology: str, head: int, tokens: int, compute: int, is_fused: bool) -> str | None:
    """Compile forward and backward pass of one head; return why the compiler refuses."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import topologies
    from jax.experimental.pallas.ops.tpu import splash_attention as splash
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from pttrainer.models.attention.splash_blocks import Tile

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    where = NamedSharding(Mesh(np.array(devices[:1]), ("x",)), PartitionSpec())
    own = (None, None) if is_fused else (tokens, tokens)
    queries = Tile(tokens, compute).queries
    sizes = splash.BlockSizes(queries, queries, compute, queries, tokens, compute, *own, use_fused_bwd_kernel=is_fused)
    mask = splash.MultiHeadMask([splash.CausalMask((LENGTH, LENGTH))])
    kernel = splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        return jnp.sum(kernel(q, k, v, splash.SegmentIds(segments, segments)).astype(jnp.float32))

    one = jax.ShapeDtypeStruct((1, LENGTH, head), jnp.bfloat16, sharding=where)
    segments = jax.ShapeDtypeStruct((LENGTH,), jnp.int32, sharding=where)
    try:
        jax.jit(jax.grad(loss, (0, 1, 2))).lower(one, one, one, segments).compile()
    except jax.errors.JaxRuntimeError as error:
        return str(error).splitlines()[0][:120]
    return None


def bundles(dump: Path) -> dict[str, tuple[int, int]]:
    """Return kernel -> (bundles of the longest straight piece, all others); empties the folder."""
    measured = {}
    for file in dump.iterdir():
        name = next((KERNELS[part] for part in KERNELS if f"splash_mha{part}" in file.name), None)
        if name is not None and re.search(r"-\d+-final_bundles\.txt$", file.name):
            measured[name] = _pieces(file.read_text())
        file.unlink()
    return measured


def _pieces(text: str) -> tuple[int, int]:
    lengths, start, last = [], 0, 0
    for line in text.splitlines():
        at = re.match(r"^\s*(0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:", line)
        if at is None:
            continue
        last = int(at[1], 16)
        if "sbr.rel" in line or re.search(r"(?:End|empty) region", line):
            lengths.append(last + 1 - start)
            start = last + 1
    return max(lengths), last + 1 - max(lengths)


if __name__ == "__main__":
    main()
