"""Fused attention of packed rows: splash on TPU, cuDNN on GPU, machine code on one CPU; which to use, how to call it.

Letters: B rows, T tokens, N query heads, K key/value heads, H head size.

`choose_kernel` is a function of the computation and the device (`Problem`), so tests can read the decision as a table.
The chip is that of the mesh in context, not of this process: a step compiled here for a TPU takes the TPU's kernel.
Fused kernels never hold the scores, and skip blocks that a causal mask or a window hides. Everything else takes the
plain computation of `dot_product`, which is exact everywhere. Left out: decoding over a cache (`paged_kernel`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from pttrainer.models.attention import splash_blocks
from pttrainer.models.attention.dot_product import Scoring
from pttrainer.models.config import ModelConfig
from pttrainer.runtime import host_code
from pttrainer.runtime.distributed import balanced_rows, sharding
from pttrainer.runtime.distributed.logical_axes import PIECES, TOKENS_EACH
from pttrainer.runtime.layouts import row_major
from pttrainer.runtime.tpu_tiles import filled_up

Kernel = Literal["plain", "splash", "cudnn", "cpu"]
Rows = Literal["batch", "spread_batch"]

KERNEL_OUT = "attention kernel"
"""The name of a kernel's result, and of what its backward pass reads besides its inputs, for rematerialisation."""

CUDNN_HEAD = 128
CUDNN_HEAD_HOPPER = 256
_HOPPER_OR_LATER = ("H100", "H200", "H20", "H800", "GH200", "B100", "B200", "GB200", "B300", "GB300")


class _SharedRow(NamedTuple):
    """How devices share the tokens of a row: each has its own queries, and gathers the keys and values of all.

    These are the smallest part of attention (K heads, not N), so one gather is cheaper than a ring.
    """

    devices: int
    is_balanced: bool

    @property
    def pieces(self) -> int:
        """Return into how many pieces a row is cut, whose ends no block of a kernel crosses."""
        return self.devices * (PIECES if self.is_balanced else 1)

    def whole(self, own_BTX: Array) -> Array:
        """Return what belongs to all tokens, in their natural order."""
        if self.devices == 1:
            return own_BTX
        whole_BTX: Array = jax.lax.all_gather(own_BTX, "sequence", axis=1, tiled=True)
        return balanced_rows.natural_rows(whole_BTX, self.devices) if self.is_balanced else whole_BTX


@dataclass(frozen=True)
class Problem:
    """The inputs of the choice of a kernel.

    shards: how often the mesh splits rows, heads and a row's tokens. columns: of the blocks of this process's machine
    code, where the mesh is its one CPU.
    """

    platform: str
    device_kind: str
    dtype: str
    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    length: int = 1
    softcap: bool = False
    sinks: bool = False
    row_shards: int = 1
    head_shards: int = 1
    token_shards: int = 1
    columns: int | None = None


def choose_kernel(problem: Problem) -> Kernel:
    """Return the fastest kernel that computes exactly this."""
    p = problem
    # A kernel sees one device's part: whole rows and whole heads.
    if p.rows % p.row_shards or p.heads % p.head_shards or kv_repeats(p) is None:
        return "plain"
    if p.platform == "tpu" and (p.token_shards == 1 or p.length % (p.token_shards * TOKENS_EACH) == 0):
        return "splash"
    if p.token_shards > 1:
        return "plain"
    if p.platform in ("gpu", "cuda") and _cudnn_can(p):
        return "cudnn"
    return "cpu" if _machine_code_can(p) else "plain"


def shares_prompts(kernel: Kernel, config: ModelConfig) -> bool:
    """Return True if the kernel attends rows that share a prompt: machine code, whose window would count padding."""
    return kernel == "cpu" and config.window is None


def kv_repeats(problem: Problem) -> int | None:
    """Return how often to repeat each key head so that the mesh can split them; None if it cannot."""
    repeats = problem.head_shards // math.gcd(problem.kv_heads, problem.head_shards)
    return repeats if problem.heads % (problem.kv_heads * repeats) == 0 else None


def _cudnn_can(p: Problem) -> bool:
    """Return True if cuDNN's flash attention supports this problem.

    It needs 16-bit numbers, a head size that is a multiple of 8, even rows (for its bias), and nothing but a scale
    and a mask between product and softmax.
    """
    most = CUDNN_HEAD_HOPPER if any(name in p.device_kind for name in _HOPPER_OR_LATER) else CUDNN_HEAD
    fits = p.head_dim % 8 == 0 and p.head_dim <= most and p.length % 2 == 0
    return fits and p.dtype in ("bfloat16", "float16") and not p.softcap and not p.sinks


def _machine_code_can(p: Problem) -> bool:
    """Return True if `cpu_kernels` attends: float32, whole column blocks, nothing but a scale and a mask."""
    fits = p.columns is not None and p.head_dim % p.columns == 0
    return fits and p.dtype == "float32" and not p.softcap and not p.sinks


def problem_of(q_BTNH: Array | jax.ShapeDtypeStruct, kv_heads: int, scoring: Scoring, rows: Rows = "batch") -> Problem:
    """Return the problem of these queries, on the devices of the mesh in context.

    rows: their logical name; each device has whole heads of those that the devices of `tensor` divide, too.
    """
    B, T, N, H = q_BTNH.shape
    platform, kind = sharding.chip()
    return Problem(
        platform=platform,
        device_kind=kind,
        dtype=str(q_BTNH.dtype),
        rows=B,
        length=T,
        heads=N,
        kv_heads=kv_heads,
        head_dim=H,
        softcap=scoring.softcap is not None,
        sinks=scoring.sinks_N is not None,
        row_shards=sharding.parts(rows),
        head_shards=1 if rows == "spread_batch" else sharding.parts("heads"),
        token_shards=sharding.parts("sequence"),
        columns=_columns(platform),
    )


def _columns(platform: str) -> int | None:
    tile = host_code.tile() if platform == "cpu" and sharding.devices() == 1 else None
    return None if tile is None else tile.width


def model_problem(config: ModelConfig, rows: int, length: int, dtype: str, of_rows: Rows = "batch") -> Problem:
    """Return the problem of a model's queries. of_rows: the rows' logical name."""
    queries = jax.ShapeDtypeStruct((rows, length, config.heads, config.head_dim), dtype)
    sinks_N: Any = jax.ShapeDtypeStruct((config.heads,), "float32") if config.sinks else None
    return problem_of(queries, config.kv_heads, Scoring(config.scale, config.attention_softcap, sinks_N), of_rows)


def attend(
    kernel: Kernel,
    q_BTNH: Array,
    k_BTKH: Array,
    v_BTKH: Array,
    segment_ids_BT: Array,
    window: int | None,
    scoring: Scoring,
    *,
    is_local: Array | None = None,
    rows: Rows = "batch",
    shared: int = 0,
    is_balanced: bool = False,
    interpret: bool = False,
) -> Array:
    """Attend causally within the examples of a row by a fused kernel; the result is [B, T, N, H].

    is_local: whether there is the window, a flag where layers with and without it share a program. rows: their logical
    name (`problem_of`). shared: tokens of a prompt at the rows' beginning that all examples see, by machine code alone
    (`shared_prefix.segments`). is_balanced: tokens are in the order of `balanced_rows`, by splash alone. interpret: run
    splash's kernel as ordinary operations, for tests without a TPU.
    """
    row = _SharedRow(sharding.parts("sequence"), is_balanced)

    def local(q: Array, k: Array, v: Array, segments: Array, sinks_N: Array | None, is_local: Array | None) -> Array:
        if kernel == "cpu":
            return _machine_code(q, k, v, segments, window, is_local, scoring.scale, shared)
        if kernel == "cudnn":

            def of_window(window: int | None) -> Callable[..., Array]:
                return lambda q, k, v, segments: _cudnn(q, k, v, segments, window, scoring.scale)

            return _either(of_window, window, is_local, q, k, v, segments)
        k, v, of_keys = (row.whole(x) for x in (k, v, segments))
        with_sinks = scoring._replace(sinks_N=sinks_N)
        return _splash(q, k, v, (segments, of_keys), window, is_local, with_sinks, row, interpret)

    repeats = kv_repeats(problem_of(q_BTNH, k_BTKH.shape[2], scoring, rows)) or 1
    k_BTKH, v_BTKH = (x if repeats == 1 else jnp.repeat(x, repeats, axis=2) for x in (k_BTKH, v_BTKH))
    shorter = q_BTNH.shape[-1] - v_BTKH.shape[-1]
    if shorter:  # the kernels take keys and values of one size
        v_BTKH = jnp.pad(v_BTKH, ((0, 0), (0, 0), (0, 0), (0, shorter)))
    out_BTNH = _by_device(local, rows)(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, scoring.sinks_N, is_local)
    return out_BTNH[..., :-shorter] if shorter else out_BTNH


def _either(
    of_window: Callable[[int | None], Callable[..., Array]], window: int | None, is_local: Array | None, *inputs: Array
) -> Array:
    """Return what a function with the window computes, or the one without it where the flag says so."""
    if is_local is None:
        return of_window(window)(*inputs)
    out: Array = jax.lax.cond(is_local, of_window(window), of_window(None), *inputs)
    return out


def _by_device(local: Callable[..., Array], of_rows: Rows) -> Callable[..., Array]:
    """Run the kernel on each device's rows and heads: the compiler cannot split a kernel by itself."""
    if sharding.devices() == 1:
        return local
    names = "heads" if of_rows == "batch" else None
    heads, rows = sharding.spec_of((of_rows, "sequence", names, None)), sharding.spec_of((of_rows, "sequence"))
    sinks: PartitionSpec = sharding.spec_of((names,))
    split: Callable[..., Array] = jax.shard_map(
        local, in_specs=(heads, heads, heads, rows, sinks, PartitionSpec()), out_specs=heads, check_vma=False
    )
    return split


def _cudnn(q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, segments_BT: Array, window: int | None, scale: float) -> Array:
    """Attend with cuDNN.

    Causality and window are cuDNN's own (hidden blocks are skipped); examples of a row come as a mask, [B, 1, T, T]
    of 16 bits, which all heads share.
    """
    same_B1TT = (segments_BT[:, :, None] == segments_BT[:, None, :])[:, None]
    return jax.nn.dot_product_attention(
        q_BTNH,
        k_BTKH,
        v_BTKH,
        mask=same_B1TT,
        scale=scale,
        is_causal=True,
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    )


def _machine_code(
    q_BTNH: Array,
    k_BTKH: Array,
    v_BTKH: Array,
    segments_BT: Array,
    window: int | None,
    is_local: Array | None,
    scale: float,
    shared: int,
) -> Array:
    """Attend with `cpu_kernels`, whose window is a number that the call reads."""
    from pttrainer.runtime.cpu_kernels import jit, packed_attention

    tile, T = host_code.tile(), q_BTNH.shape[1]
    assert tile is not None, "a problem with columns"
    forward, backward = (jit.target(name, tile) for name in (packed_attention.FORWARD, packed_attention.BACKWARD))
    near = T if window is None else window if is_local is None else jnp.where(is_local, window, T)
    limits_2 = jnp.stack([jnp.asarray(near, jnp.int32), jnp.asarray(shared, jnp.int32)])
    scaled = q_BTNH * jnp.asarray(scale, q_BTNH.dtype)
    calls = packed_attention.Calls(forward, backward, KERNEL_OUT)
    return packed_attention.attend(calls, scaled, k_BTKH, v_BTKH, segments_BT.astype(jnp.int32), limits_2)


def _splash(
    q_BTNH: Array,
    k_BTKH: Array,
    v_BTKH: Array,
    segments: tuple[Array, Array],
    window: int | None,
    is_local: Array | None,
    scoring: Scoring,
    row: _SharedRow,
    interpret: bool,
) -> Array:
    """Attend with splash, which supports grouped queries, segments, windows, soft caps, sinks and any head size.

    segments: of the queries' tokens and of the keys'. Arrays are turned to its order before the choice of a window, and
    their layout is said: a branch's inputs and results have an order of their own, and would be copied to the kernel's.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    from pttrainer.models.attention import splash_mask

    (T, N, H), K = q_BTNH.shape[1:], k_BTKH.shape[2]
    padded = filled_up(T)
    length = padded * row.devices
    sinks_N = None if scoring.sinks_N is None else scoring.sinks_N.astype(jnp.float32)

    def rows(window: int | None) -> Callable[..., Array]:
        # Tokens of an example stand side by side, so a window of positions is one of slots.
        tiles = splash_blocks.tiles_for(sharding.chip()[1], H, length, window, row.pieces)
        groups = splash_blocks.head_groups(tiles, N, K)
        made = splash_mask.RowKernel(
            N // groups, length, window, tiles, scoring.softcap, KERNEL_OUT, row.devices, row.is_balanced, interpret
        )
        kernel = splash_mask.own_part(splash_mask.kernel(made), row.devices)

        def one(q_NTH: Array, k_KTH: Array, v_KTH: Array, of_queries_T: Array, of_keys_T: Array) -> Array:
            def of_heads(inputs: tuple[Array, Array, Array, Array | None]) -> Array:
                *qkv, sinks = inputs
                out: Array = kernel(*qkv, SegmentIds(of_queries_T, of_keys_T), sinks=sinks)
                return out

            if groups == 1:
                return of_heads((q_NTH, k_KTH, v_KTH, sinks_N))
            # The backward kernel's partial gradients of queries are there for one group of heads at a time.
            by_group = jax.tree.map(lambda x: x.reshape(groups, -1, *x.shape[1:]), (q_NTH, k_KTH, v_KTH, sinks_N))
            out_NTH: Array = jax.lax.map(of_heads, by_group).reshape(q_NTH.shape)
            return out_NTH

        return jax.vmap(one)

    def in_order(x_BNTH: Array) -> Array:
        return x_BNTH if is_local is None or interpret else row_major(x_BNTH)

    scaled = q_BTNH * jnp.asarray(scoring.scale, q_BTNH.dtype)
    inputs = (
        in_order(jnp.swapaxes(_filled_up(x, to), 1, 2))
        for x, to in ((scaled, padded), (k_BTKH, length), (v_BTKH, length))
    )
    of_queries_BT, of_keys_BT = segments
    filled = _filled_up(of_queries_BT, padded), _filled_up(of_keys_BT, length)
    out_BNTH = in_order(_either(rows, window, is_local, *inputs, *filled))
    return jnp.swapaxes(out_BNTH, 1, 2)[:, :T].astype(q_BTNH.dtype)


def _filled_up(x_BTX: Array, length: int) -> Array:
    return jnp.pad(x_BTX, ((0, 0), (0, length - x_BTX.shape[1])) + ((0, 0),) * (x_BTX.ndim - 2))
