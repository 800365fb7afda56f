"""Attention of one new token per row over the cache: the prompt's slots and the row's own, in one call.

out = softmax(q · K + mask) · V

Letters: B rows, K key heads, R queries of one, H head size, S own slots, X slots of a prompt that B / P rows share.

The unit of work is a key head of a row, whose scores stay in a CPU cache.
"""

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.runtime.cpu_kernels import softmax, xla_ffi
from pttrainer.runtime.cpu_kernels.register_tile import RegisterTile

NAME = "attention"
MIN_TERMS_PER_THREAD = 1 << 17
"""Multiply-adds of queries and keys per thread."""


def fits(head_size: int, slots: tuple[int, ...], tile: RegisterTile) -> bool:
    """Return True if heads are whole column blocks, and slots whole vectors and none or at least a block."""
    are_slots_fit = all(count % softmax.LANES == 0 and (count == 0 or count >= tile.width) for count in slots)
    return head_size % tile.width == 0 and are_slots_fit


def attend(q_BKRH: Array, own: tuple[Array, Array, Array], prompt: tuple[Array, Array, Array], target: str) -> Array:
    """Return [B, K, R, H], float32.

    own: keys [B, K, H, S], values [B, K, S, H], visibility [B, S]; prompt: the same of P prompts, X slots,
    visibility [B, X]. target: name of the XLA call (`jit`).
    """
    B, K, R, H = q_BKRH.shape
    slots = own[0].shape[3] + prompt[0].shape[3]
    shapes = jax.ShapeDtypeStruct((B, K, R, H), jnp.float32), jax.ShapeDtypeStruct((B, K, R, slots), jnp.float32)
    out: Array = jax.ffi.ffi_call(target, shapes)(q_BKRH, *own, *prompt)[0]
    return out


def code(tile: RegisterTile) -> str:
    """Return the code of `@attention(frame)`."""
    job = (
        *(("ptr", name) for name in ("q", "k", "v", "visible", "pk", "pv", "pvisible", "out", "scores")),
        *(("i64", name) for name in ("K", "R", "H", "S", "X", "G")),
    )
    unit = f"""
define private void @head(ptr %job, i64 %unit) {{
entry:
{xla_ffi.read(job)}
  %b = sdiv i64 %unit, %K
  %h = srem i64 %unit, %K
  %p = sdiv i64 %b, %G
  %pK = mul i64 %p, %K
  %prompt = add i64 %pK, %h
  %all = add i64 %X, %S
  %RH = mul i64 %R, %H
  %SH = mul i64 %S, %H
  %XH = mul i64 %X, %H
  %Rall = mul i64 %R, %all
  %q.offset = mul i64 %unit, %RH
  %qu = getelementptr float, ptr %q, i64 %q.offset
  %ou = getelementptr float, ptr %out, i64 %q.offset
  %s.offset = mul i64 %unit, %Rall
  %su = getelementptr float, ptr %scores, i64 %s.offset
  %so = getelementptr float, ptr %su, i64 %X
  %own.offset = mul i64 %unit, %SH
  %ku = getelementptr float, ptr %k, i64 %own.offset
  %vu = getelementptr float, ptr %v, i64 %own.offset
  %prompt.offset = mul i64 %prompt, %XH
  %pku = getelementptr float, ptr %pk, i64 %prompt.offset
  %pvu = getelementptr float, ptr %pv, i64 %prompt.offset
  %visible.offset = mul i64 %b, %S
  %visible.u = getelementptr i8, ptr %visible, i64 %visible.offset
  %pvisible.offset = mul i64 %b, %X
  %pvisible.u = getelementptr i8, ptr %pvisible, i64 %pvisible.offset
  %has.prompt = icmp sgt i64 %X, 0
  call void @panels(ptr %qu, i64 %H, i64 1, ptr %pku, i64 %X, ptr %su, i64 %all, i64 %R, i64 %H, i64 %X, i1 true)
  call void @panels(ptr %qu, i64 %H, i64 1, ptr %ku, i64 %S, ptr %so, i64 %all, i64 %R, i64 %H, i64 %S, i1 true)
  br label %row
row:
  %r = phi i64 [0, %entry], [%r.next, %row]
  %row.offset = mul i64 %r, %all
  %sr = getelementptr float, ptr %su, i64 %row.offset
  %sro = getelementptr float, ptr %sr, i64 %X
  %low = call <16 x float> @hidden(ptr %sr, ptr %pvisible.u, i64 %X, <16 x float> splat (float 0xFFF0000000000000))
  %high = call <16 x float> @hidden(ptr %sro, ptr %visible.u, i64 %S, <16 x float> %low)
  %highest = call float @llvm.vector.reduce.fmax.v16f32(<16 x float> %high)
  %sum = call float @weights(ptr %sr, i64 %all, float %highest)
  call void @divided(ptr %sr, i64 %all, float %sum)
  %r.next = add i64 %r, 1
  %more = icmp slt i64 %r.next, %R
  br i1 %more, label %row, label %values
values:
  %own.first = xor i1 %has.prompt, true
  br i1 %has.prompt, label %shared, label %own
shared:
  call void @panels(ptr %su, i64 %all, i64 1, ptr %pvu, i64 %H, ptr %ou, i64 %H, i64 %R, i64 %X, i64 %H, i1 true)
  br label %own
own:
  call void @panels(ptr %so, i64 %all, i64 1, ptr %vu, i64 %H, ptr %ou, i64 %H, i64 %R, i64 %S, i64 %H, i1 %own.first)
  ret void
}}
"""
    body = "\n".join(
        (
            xla_ffi.size("B", "q", 0),
            xla_ffi.size("K", "q", 1),
            xla_ffi.size("R", "q", 2),
            xla_ffi.size("H", "q", 3),
            xla_ffi.size("S", "k", 3),
            xla_ffi.size("X", "pk", 3),
            xla_ffi.size("P", "pk", 0),
            "  %G = sdiv i64 %B, %P",
            xla_ffi.job(job),
            "  %BK = mul i64 %B, %K",
            "  %slots = add i64 %S, %X",
            "  %RHu = mul i64 %R, %H",
            "  %of.unit = mul i64 %RHu, %slots",
            "  %terms = mul i64 %of.unit, %BK",
            "  call void @share(ptr %functions, ptr %context, ptr @head, ptr %job, i64 %BK, i64 %terms,",
            f"    i64 {MIN_TERMS_PER_THREAD})",
        )
    )
    inputs = ("q", "k", "v", "visible", "pk", "pv", "pvisible")
    return (
        softmax.code()
        + _PANELS.replace("$WIDTH", str(tile.width))
        + unit
        + xla_ffi.handler(NAME, inputs, ("out", "scores"), body)
    )


_PANELS = """
; y[:M, :N] = x · w, or added, panel by panel; a last one that is not whole begins sooner, which serves for what is not
; added.
define private void @panels(
    ptr %x, i64 %x.step, i64 %x.term, ptr %w, i64 %w.step, ptr %y, i64 %y.step,
    i64 %M, i64 %terms, i64 %N, i1 %first) {
entry:
  %none = icmp sle i64 %N, 0
  br i1 %none, label %out, label %one
one:
  %begin = phi i64 [0, %entry], [%n.next, %one]
  %last = sub i64 %N, $WIDTH
  %n = call i64 @llvm.smin.i64(i64 %begin, i64 %last)
  %wn = getelementptr float, ptr %w, i64 %n
  %yn = getelementptr float, ptr %y, i64 %n
  call void @panel(ptr %x, i64 %x.step, i64 %x.term, ptr %wn, i64 %w.step, ptr %yn, i64 %y.step,
    i64 %M, i64 %terms, i1 %first)
  %n.next = add i64 %n, $WIDTH
  %more = icmp slt i64 %n.next, %N
  br i1 %more, label %one, label %out
out:
  ret void
}
"""
