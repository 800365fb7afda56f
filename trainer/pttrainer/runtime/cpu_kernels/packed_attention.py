"""Causal attention within packed rows, and its gradient, without an array of scores.

out = softmax(q · k where visible) · v

A query sees itself and keys before it, of its own segment and at most a window's. Rows may begin with a prompt that all
other segments see, too: of tokens [0, shared) those of segment `score_blocks.PROMPT`. Scores exist for a block of
queries of a head at once (`score_blocks`); the gradient computes them again, from their log Σ exp.

Letters: B rows, T tokens, N query heads, K key heads, H size of queries and keys, V of values.

The unit of work is a block of queries of a head; for the gradient, a head of a row: it adds up the gradients of its
keys and values over all blocks. Heads that share keys have gradients of their own, which are added up afterwards.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from pttrainer.runtime.cpu_kernels import score_blocks, xla_ffi
from pttrainer.runtime.cpu_kernels.score_blocks import QUERIES

FORWARD, BACKWARD = "packed_attention", "packed_attention_gradient"
MIN_TERMS_PER_THREAD = 1 << 18
"""Multiply-adds per thread."""


class Calls(NamedTuple):
    """Names of the XLA calls (`jit`), and of what they keep.

    saved: a name, for rematerialisation, of the result and log Σ exp, which the gradient needs beside the inputs.
    """

    forward: str
    backward: str
    saved: str


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(calls: Calls, q_BTNH: Array, k_BTKH: Array, v_BTKV: Array, segments_BT: Array, limits_2: Array) -> Array:
    """Return [B, T, N, V], float32.

    q is scaled already. segments_BT: int32. limits_2: int32, the window, which hides nothing if it is T or more, and
    how many tokens the shared prompt has, 0 for none.
    """
    return _forward(calls, q_BTNH, k_BTKH, v_BTKV, segments_BT, limits_2)[0]


def _forward(
    calls: Calls, q_BTNH: Array, k_BTKH: Array, v_BTKV: Array, segments_BT: Array, limits_2: Array
) -> tuple[Array, tuple[Array, ...]]:
    B, T, N, _ = q_BTNH.shape
    shapes = (B, T, N, v_BTKV.shape[3]), (B, N, T)
    inputs = (q_BTNH, k_BTKH, v_BTKV, segments_BT, limits_2)
    results = jax.ffi.ffi_call(calls.forward, _float32(*shapes))(*inputs)
    out_BTNV, lse_BNT = checkpoint_name(results, calls.saved)
    return out_BTNV, (*inputs, out_BTNV, lse_BNT)


def _backward(calls: Calls, kept: tuple[Array, ...], d_out_BTNV: Array) -> tuple[Array, Array, Array, None, None]:
    q_BTNH, k_BTKH, v_BTKV = kept[:3]
    (B, T, N, H), V = q_BTNH.shape, v_BTKV.shape[3]
    shapes = q_BTNH.shape, k_BTKH.shape, v_BTKV.shape, (B, N, T, H), (B, N, T, V)
    d_q, d_k, d_v, *_ = jax.ffi.ffi_call(calls.backward, _float32(*shapes))(*kept, d_out_BTNV)
    return d_q, d_k, d_v, None, None


attend.defvjp(_forward, _backward)


def _float32(*shapes: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


def code() -> str:
    """Return the code of `@packed_attention(frame)` and `@packed_attention_gradient(frame)`."""
    return score_blocks.code() + _forward_code() + _backward_code()


_READ = ("q", "k", "v", "segments", "limits")
_SIZES = ("B", "T", "N", "K", "H", "V")


def _sizes() -> str:
    """Return code for the sizes of the inputs of both handlers."""
    at = {"B": ("q", 0), "T": ("q", 1), "N": ("q", 2), "H": ("q", 3), "K": ("k", 2), "V": ("v", 3)}
    sizes = [xla_ffi.size(name, *at[name]) for name in _SIZES]
    lines = """
  %window.32 = load i32, ptr %limits, align 4
  %at.shared = getelementptr i32, ptr %limits, i64 1
  %shared.32 = load i32, ptr %at.shared, align 4
  %window = sext i32 %window.32 to i64
  %shared = sext i32 %shared.32 to i64
  %others = sub i64 %T, %shared
  %blocks.of.shared = call i64 @blocks(i64 %shared)
  %blocks.of.others = call i64 @blocks(i64 %others)
  %blocks = add i64 %blocks.of.shared, %blocks.of.others
  %BN = mul i64 %B, %N
  %both = add i64 %H, %V
  %pairs = mul i64 %T, %T
  %terms.head = mul i64 %pairs, %both
  %terms = mul i64 %terms.head, %BN"""
    return "\n".join(sizes) + lines


_COUNTS = (*_SIZES, "window", "shared", "blocks")
"""What a job says in numbers: the sizes, both limits, and blocks of queries in a row."""

_UNIT = """
  %b = sdiv i64 %head, %N
  %n = srem i64 %head, %N
  %group = sdiv i64 %N, %K
  %kn = sdiv i64 %n, %group
  %NH = mul i64 %N, %H
  %NV = mul i64 %N, %V
  %KH = mul i64 %K, %H
  %KV = mul i64 %K, %V
  %bT = mul i64 %b, %T
  %q.b = mul i64 %bT, %NH
  %q.n = mul i64 %n, %H
  %q.offset = add i64 %q.b, %q.n
  %o.b = mul i64 %bT, %NV
  %o.n = mul i64 %n, %V
  %o.offset = add i64 %o.b, %o.n
  %k.b = mul i64 %bT, %KH
  %k.n = mul i64 %kn, %H
  %k.offset = add i64 %k.b, %k.n
  %v.b = mul i64 %bT, %KV
  %v.n = mul i64 %kn, %V
  %v.offset = add i64 %v.b, %v.n
  %l.offset = mul i64 %head, %T
  %qu = getelementptr float, ptr %q, i64 %q.offset
  %ku = getelementptr float, ptr %k, i64 %k.offset
  %vu = getelementptr float, ptr %v, i64 %v.offset
  %lu = getelementptr float, ptr %lse, i64 %l.offset
  %su = getelementptr i32, ptr %segments, i64 %bT
"""
"""Where a head's numbers begin, and their steps."""


_BLOCK = """
  %span = call %Span @span(ptr %su, i64 %block, i64 %T, i64 %window, i64 %shared, ptr %of)
  %t = extractvalue %Span %span, 0
  %count = extractvalue %Span %span, 1
  %keys = extractvalue %Span %span, 4
  %qt.offset = mul i64 %t, %NH
  %qt = getelementptr float, ptr %qu, i64 %qt.offset
  %ot.offset = mul i64 %t, %NV
  %ot = getelementptr float, ptr %ou, i64 %ot.offset
  call void @turned(ptr %qt, i64 %NH, i64 %count, i64 %H, ptr %own)
  call void @scored(%Span %span, ptr %ku, i64 %KH, ptr %own, i64 %H, ptr %scores)
  call void @unseen(%Span %span, ptr %scores, ptr %su, ptr %of, i64 %window, ptr %high)
"""
"""The scores of a block of queries."""


def _forward_code() -> str:
    job = (*(("ptr", name) for name in (*_READ, "out", "lse")), *(("i64", name) for name in _COUNTS))
    unit = f"""
define private void @queries(ptr %job, i64 %unit) {{
entry:
{xla_ffi.read(job)}
  %head = sdiv i64 %unit, %blocks
  %block = srem i64 %unit, %blocks
{_UNIT}
  %ou = getelementptr float, ptr %out, i64 %o.offset
  %of = alloca [$QUERIES x i32], align 64
  %high = alloca [$QUERIES x float], align 64
  %sums = alloca [$QUERIES x float], align 64
  %size.queries = mul i64 %H, {4 * QUERIES}
  %size.scores = mul i64 %T, {4 * QUERIES}
  %size = add i64 %size.queries, %size.scores
  %own = call ptr @malloc(i64 %size)
  %scores = getelementptr i8, ptr %own, i64 %size.queries
{_BLOCK}
  call void @powers(ptr %scores, i64 %keys, ptr %high, ptr %sums)
  call void @weighed(%Span %span, ptr %scores, ptr %vu, i64 %KV, i64 %V, ptr %ot, i64 %NV)
  call void @free(ptr %own)
  br label %query
query:
  %c = phi i64 [0, %entry], [%c.next, %query]
  %at.sum = getelementptr float, ptr %sums, i64 %c
  %sum = load float, ptr %at.sum, align 4
  %at.high = getelementptr float, ptr %high, i64 %c
  %highest = load float, ptr %at.high, align 4
  %log = call float @llvm.log.f32(float %sum)
  %l = fadd float %log, %highest
  %tc = add i64 %t, %c
  %at.l = getelementptr float, ptr %lu, i64 %tc
  store float %l, ptr %at.l, align 4
  %oc.offset = mul i64 %c, %NV
  %oc = getelementptr float, ptr %ot, i64 %oc.offset
  call void @divided(ptr %oc, i64 %V, float %sum)
  %c.next = add i64 %c, 1
  %more = icmp slt i64 %c.next, %count
  br i1 %more, label %query, label %done
done:
  ret void
}}
"""
    body = f"""
{_sizes()}
{xla_ffi.job(job)}
  %units = mul i64 %BN, %blocks
  call void @share(ptr %functions, ptr %context, ptr @queries, ptr %job, i64 %units, i64 %terms,
    i64 {MIN_TERMS_PER_THREAD})"""
    return score_blocks.spread(unit) + xla_ffi.handler(FORWARD, _READ, ("out", "lse"), body)


def _backward_code() -> str:
    read, made = (*_READ, "out", "lse", "d.out"), ("d.q", "d.k", "d.v", "d.k.heads", "d.v.heads")
    job = (*(("ptr", name) for name in (*read, *made)), *(("i64", name) for name in _COUNTS))
    unit = f"""
define private void @gradient(ptr %job, i64 %head) {{
entry:
{xla_ffi.read(job)}
{_UNIT}
  %ou = getelementptr float, ptr %out, i64 %o.offset
  %du = getelementptr float, ptr %d.out, i64 %o.offset
  %dqu = getelementptr float, ptr %d.q, i64 %q.offset
  %TH = mul i64 %T, %H
  %TV = mul i64 %T, %V
  %dk.offset = mul i64 %head, %TH
  %dv.offset = mul i64 %head, %TV
  %dku = getelementptr float, ptr %d.k.heads, i64 %dk.offset
  %dvu = getelementptr float, ptr %d.v.heads, i64 %dv.offset
  %size.k = mul i64 %TH, 4
  %size.v = mul i64 %TV, 4
  call void @llvm.memset.p0.i64(ptr %dku, i8 0, i64 %size.k, i1 false)
  call void @llvm.memset.p0.i64(ptr %dvu, i8 0, i64 %size.v, i1 false)
  %of = alloca [$QUERIES x i32], align 64
  %high = alloca [$QUERIES x float], align 64
  %less = alloca [$QUERIES x float], align 64
  %in = alloca [$QUERIES x float], align 64
  %wide = call i64 @llvm.smax.i64(i64 %H, i64 %V)
  %size.turned = mul i64 %wide, {4 * QUERIES}
  %size.scores = mul i64 %T, {4 * QUERIES}
  %size.both = add i64 %size.scores, %size.scores
  %size = add i64 %size.turned, %size.both
  %own = call ptr @malloc(i64 %size)
  %scores = getelementptr i8, ptr %own, i64 %size.turned
  %slopes = getelementptr i8, ptr %scores, i64 %size.scores
  br label %some
some:
  %block = phi i64 [0, %entry], [%block.next, %some]
{_BLOCK}
  %dqt = getelementptr float, ptr %dqu, i64 %qt.offset
  %dt = getelementptr float, ptr %du, i64 %ot.offset
  %lt = getelementptr float, ptr %lu, i64 %t
  call void @turned(ptr %lt, i64 1, i64 %count, i64 1, ptr %less)
  call void @powers(ptr %scores, i64 %keys, ptr %less, ptr %high)
  call void @turned(ptr %dt, i64 %NV, i64 %count, i64 %V, ptr %own)
  call void @scored(%Span %span, ptr %vu, i64 %KV, ptr %own, i64 %V, ptr %slopes)
  call void @inner(ptr %ot, ptr %dt, i64 %NV, i64 %count, i64 %V, ptr %in)
  call void @slopes(ptr %scores, ptr %slopes, i64 %keys, ptr %in)
  call void @received(%Span %span, ptr %scores, ptr %dt, i64 %NV, i64 %V, ptr %dvu)
  call void @received(%Span %span, ptr %slopes, ptr %qt, i64 %NH, i64 %H, ptr %dku)
  call void @weighed(%Span %span, ptr %slopes, ptr %ku, i64 %KH, i64 %H, ptr %dqt, i64 %NH)
  %block.next = add i64 %block, 1
  %more = icmp slt i64 %block.next, %blocks
  br i1 %more, label %some, label %done
done:
  call void @free(ptr %own)
  ret void
}}

; The gradients of some tokens' keys and values: sums of those of their heads.
define private void @sums(ptr %job, i64 %unit) {{
{xla_ffi.read(job)}
  %b = sdiv i64 %unit, %T
  %t = srem i64 %unit, %T
  call void @summed(ptr %d.k.heads, ptr %d.k, i64 %b, i64 %t, i64 %T, i64 %N, i64 %K, i64 %H)
  call void @summed(ptr %d.v.heads, ptr %d.v, i64 %b, i64 %t, i64 %T, i64 %N, i64 %K, i64 %V)
  ret void
}}
"""
    body = f"""
{_sizes()}
{xla_ffi.job(job)}
  call void @share(ptr %functions, ptr %context, ptr @gradient, ptr %job, i64 %BN, i64 %terms,
    i64 {MIN_TERMS_PER_THREAD})
  %BT = mul i64 %B, %T
  %tokens.N = mul i64 %BT, %N
  %sums.terms = mul i64 %tokens.N, %both
  call void @share(ptr %functions, ptr %context, ptr @sums, ptr %job, i64 %BT, i64 %sums.terms,
    i64 {MIN_TERMS_PER_THREAD})"""
    return score_blocks.spread(unit) + xla_ffi.handler(BACKWARD, read, made, body)
