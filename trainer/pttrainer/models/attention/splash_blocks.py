"""The tiles in which splash attention reads a row on a TPU: the cheapest by the compiler's own code.

A kernel runs one piece of straight code for every pair of blocks of queries and keys that the mask leaves, and a little
around each row of pairs. `splash_table` has both in cycles, for every generation, head size and tile that the compiler
takes; here they are multiplied by the number of pairs. Larger tiles waste less around them and more on the diagonal; a
window makes small ones cheaper. Long rows may have the fused backward kernel with more keys than queries in a block:
it leaves fewer partial gradients to add up. Left out: what segments hide, which no program knows before it runs.
"""

from functools import lru_cache
from typing import Literal, NamedTuple

from pttrainer.models.attention.splash_table import CYCLES
from pttrainer.runtime.tpu_tiles import LANES, filled_up

UNMEASURED = (512, 256, LANES)
"""Tokens of a tile where the table has no such device or head size: the largest that divides a row."""
ADDED_PER_CYCLE = 50
"""The fused backward kernel writes a gradient of all queries for every block of keys; so many of their numbers a core
adds up in a cycle, by the compiler's estimate of whole train steps (43 on a v6e, 63 on a v5p). By the bandwidth of the
memory they would be six times as many, and the fused kernel would win more often."""
MOST_QUERIES = 1024
"""Tokens of a block of queries; beside it a block of the fused backward kernel may have more keys."""
LONG_ROW = 32_768
"""Least tokens of a row for blocks with more keys than queries, which take the compiler one to two CPU-minutes."""
HEADS_AT_ONCE = 4
"""Least query heads of a group that has a kernel of its own: the cores of a v5p share them."""
GENERATIONS = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e", "TPU7x": "tpu7x"}
"""JAX's name of a device -> the generation."""

Kernel = Literal["forward", "fused", "dkv", "dq"]
"""Kernels: forward; backward in one, or the gradients of keys and values apart from those of queries."""
Backward = Literal["fused", "apart"]
"""The backward pass in one kernel or in two."""


class Tile(NamedTuple):
    """Tokens of a block of queries and of one of keys, and how many keys are computed at once."""

    tokens: int
    compute: int

    @property
    def queries(self) -> int:
        """Return the tokens of a block of queries, which may be fewer than those of a block of keys."""
        return min(self.tokens, MOST_QUERIES)

    @property
    def has_more_keys(self) -> bool:
        """Return True if a block of keys has more tokens than the queries beside it."""
        return self.tokens > self.queries


class Tiles(NamedTuple):
    """The tiles of each kernel. backward_queries: None where one kernel computes the backward pass."""

    forward: Tile
    backward: Tile
    backward_queries: Tile | None


@lru_cache
def tiles_for(device_kind: str, head_dim: int, length: int, window: int | None = None, pieces: int = 1) -> Tiles:
    """Return the cheapest tiles for rows of this padded length, with a window if there is one.

    pieces: into which devices that share a row cut it, each of whole blocks.
    """
    return tiles_of(GENERATIONS.get(device_kind, ""), head_dim, length, window, pieces)


def tiles_of(generation: str, head_dim: int, length: int, window: int | None = None, pieces: int = 1) -> Tiles:
    """Return those of a generation."""
    cheapest = _cheapest(generation, head_dim, length, window, pieces=pieces)
    if cheapest is None:
        size = next(size for size in UNMEASURED if length // pieces % size == 0)
        return Tiles(*[Tile(size, size)] * 3)
    tiles = {kernel: tile for kernel, (_, tile) in cheapest.items()}
    if "fused" in tiles:
        return Tiles(tiles["forward"], tiles["fused"], None)
    return Tiles(tiles["forward"], tiles["dkv"], tiles["dq"])


def head_groups(tiles: Tiles, heads: int, kv_heads: int) -> int:
    """Return into how many groups a device's heads are cut, each with a kernel of its own.

    With more keys than queries in a block, for the memory of its partial gradients; else 1.
    """
    if not tiles.backward.has_more_keys:
        return 1
    return max(n for n in range(1, kv_heads + 1) if kv_heads % n == 0 and (n == 1 or heads // n >= HEADS_AT_ONCE))


def head_cycles(
    generation: str, head_dim: int, length: int, window: int | None = None, backward: Backward | None = None
) -> dict[Kernel, float]:
    """Return the cycles of each kernel that is chosen, for a head of one row, without what is added up behind it.

    backward: choose tiles of these kernels alone for the backward pass. Empty for a generation or a head size that the
    table does not have.
    """
    padded = filled_up(length)
    chosen = _cheapest(generation, head_dim, padded, window, backward) or {}
    return {
        kernel: cost - _added(kernel, padded // tile.tokens, padded, head_dim)
        for kernel, (cost, tile) in chosen.items()
    }


def _cheapest(
    generation: str,
    head_dim: int,
    length: int,
    window: int | None,
    backward: Backward | None = None,
    pieces: int = 1,
) -> dict[Kernel, tuple[float, Tile]] | None:
    """Return the cheapest tile of each kernel that is chosen, with its cycles; None if the table has none."""
    measured = CYCLES.get((generation, filled_up(head_dim)))
    if measured is None:
        return None

    def cheapest(kernel: Kernel) -> tuple[float, Tile]:
        costs = [
            (_cycles(kernel, Tile(tokens, compute), cycles, head_dim, length, window), Tile(tokens, compute))
            for (name, tokens, compute), cycles in measured.items()
            if name == kernel and _divides(Tile(tokens, compute), length, pieces)
        ]
        return min(costs, default=(float("inf"), Tile(LANES, LANES)))

    fused, keys, queries = cheapest("fused"), cheapest("dkv"), cheapest("dq")
    is_fused = fused[0] <= keys[0] + queries[0] if backward is None else backward == "fused"
    if is_fused:
        return {"forward": cheapest("forward"), "fused": fused}
    return {"forward": cheapest("forward"), "dkv": keys, "dq": queries}


def _divides(tile: Tile, length: int, pieces: int) -> bool:
    """Return True if blocks divide a row, those of queries each piece of it, too."""
    is_long_enough = not tile.has_more_keys or length >= LONG_ROW
    return is_long_enough and length % tile.tokens == 0 and length // pieces % tile.queries == 0


def _cycles(
    kernel: Kernel, tile: Tile, cycles: tuple[int, int], head_dim: int, length: int, window: int | None
) -> float:
    """Return the cycles of a head of one row."""
    blocks = length // tile.tokens
    ends = range(tile.queries, length + 1, tile.queries)
    nearest = ((end - 1) // tile.tokens for end in ends)
    farthest = (0 if window is None else max(0, (end - tile.queries - window + 1) // tile.tokens) for end in ends)
    pairs = sum(near - far + 1 for near, far in zip(nearest, farthest, strict=True))
    return pairs * cycles[0] + blocks * cycles[1] + _added(kernel, blocks, length, head_dim)


def _added(kernel: Kernel, blocks: int, length: int, head_dim: int) -> float:
    """Return the cycles in which the gradients of the fused kernel are added up, which are not the kernel's own."""
    return blocks * length * filled_up(head_dim) / ADDED_PER_CYCLE if kernel == "fused" and blocks > 1 else 0.0
