"""Softmax over rows of scores in place, as LLVM assembly: sixteen lanes, whatever the processor's vector width.

The lanes are summed pairwise at the end; XLA's order differs, its result is the same up to rounding.
"""

import struct

LANES = 16
MASKED_SCORE = -1e30
"""Score of what a query does not see: finite, so that the weights of a row that sees nothing are no NaN."""


def _constant(value: float) -> str:
    """Return a float32 in LLVM's exact notation: the bits of the equal double."""
    [single] = struct.unpack("f", struct.pack("f", value))
    return "0x" + struct.pack(">d", single).hex()


HIDDEN = _constant(MASKED_SCORE)


def code() -> str:
    """Return `@hidden(s, visible, n, before)`, `@weights(s, n, highest)`, `@divided(s, n, sum)`; LANES divides n."""
    return _exponential() + _CODE.replace("$HIDDEN", HIDDEN)


def _exponential() -> str:
    """Return `@exponential(x)` for x <= 0.

    2^n · e^r, |r| <= ln 2 / 2, by the polynomial of Cephes' expf (2 units in the last place); 0 below -87, where
    float32 is no longer normal.
    """
    powers = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
    fma = "call <16 x float> @llvm.fma.v16f32"

    def splat(value: float) -> str:
        return f"splat (float {_constant(value)})"

    lines = [
        "define private <16 x float> @exponential(<16 x float> %x) alwaysinline {",
        f"  %turns = fmul <16 x float> %x, {splat(1.44269504088896341)}",
        "  %n = call <16 x float> @llvm.roundeven.v16f32(<16 x float> %turns)",
        f"  %r0 = {fma}(<16 x float> %n, <16 x float> {splat(-0.693359375)}, <16 x float> %x)",
        f"  %r = {fma}(<16 x float> %n, <16 x float> {splat(2.12194440e-4)}, <16 x float> %r0)",
        f"  %p0 = {fma}(<16 x float> %r, <16 x float> {splat(powers[0])}, <16 x float> {splat(powers[1])})",
    ]
    for i, power in enumerate(powers[2:], 1):
        lines += [f"  %p{i} = {fma}(<16 x float> %p{i - 1}, <16 x float> %r, <16 x float> {splat(power)})"]
    lines += [
        "  %rr = fmul <16 x float> %r, %r",
        f"  %p = {fma}(<16 x float> %p{len(powers) - 2}, <16 x float> %rr, <16 x float> %r)",
        f"  %e = fadd <16 x float> %p, {splat(1.0)}",
        f"  %m = call <16 x float> @llvm.maxnum.v16f32(<16 x float> %n, <16 x float> {splat(-127.0)})",
        "  %i = fptosi <16 x float> %m to <16 x i32>",
        "  %biased = add <16 x i32> %i, splat (i32 127)",
        "  %bits = shl <16 x i32> %biased, splat (i32 23)",
        "  %power = bitcast <16 x i32> %bits to <16 x float>",
        "  %y = fmul <16 x float> %e, %power",
        f"  %is.none = fcmp olt <16 x float> %x, {splat(-87.0)}",
        "  %result = select <16 x i1> %is.none, <16 x float> zeroinitializer, <16 x float> %y",
        "  ret <16 x float> %result",
        "}",
    ]
    return "\n".join(lines)


_CODE = """
declare float @llvm.vector.reduce.fmax.v16f32(<16 x float>)
declare <16 x float> @llvm.maxnum.v16f32(<16 x float>, <16 x float>)
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.roundeven.v16f32(<16 x float>)

; Scores of slots that are not visible become HIDDEN; the highest so far, lane by lane.
define private <16 x float> @hidden(ptr %s, ptr %visible, i64 %n, <16 x float> %before) {
entry:
  %none = icmp sle i64 %n, 0
  br i1 %none, label %out, label %loop
loop:
  %i = phi i64 [0, %entry], [%i.next, %loop]
  %high = phi <16 x float> [%before, %entry], [%higher, %loop]
  %at = getelementptr float, ptr %s, i64 %i
  %x = load <16 x float>, ptr %at, align 4
  %at.visible = getelementptr i8, ptr %visible, i64 %i
  %byte = load <16 x i8>, ptr %at.visible, align 1
  %is.visible = icmp ne <16 x i8> %byte, zeroinitializer
  %kept = select <16 x i1> %is.visible, <16 x float> %x, <16 x float> splat (float $HIDDEN)
  store <16 x float> %kept, ptr %at, align 4
  %higher = call <16 x float> @llvm.maxnum.v16f32(<16 x float> %high, <16 x float> %kept)
  %i.next = add i64 %i, 16
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %loop, label %out
out:
  %result = phi <16 x float> [%before, %entry], [%higher, %loop]
  ret <16 x float> %result
}

; e^(s - highest) in place, and their sum.
define private float @weights(ptr %s, i64 %n, float %highest) {
entry:
  %i0 = insertelement <16 x float> poison, float %highest, i64 0
  %top = shufflevector <16 x float> %i0, <16 x float> poison, <16 x i32> zeroinitializer
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i.next, %loop]
  %sum = phi <16 x float> [zeroinitializer, %entry], [%sum.next, %loop]
  %at = getelementptr float, ptr %s, i64 %i
  %x = load <16 x float>, ptr %at, align 4
  %d = fsub <16 x float> %x, %top
  %e = call <16 x float> @exponential(<16 x float> %d)
  store <16 x float> %e, ptr %at, align 4
  %sum.next = fadd <16 x float> %sum, %e
  %i.next = add i64 %i, 16
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %loop, label %out
out:
  %a = shufflevector <16 x float> %sum.next, <16 x float> poison,
      <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %b = shufflevector <16 x float> %sum.next, <16 x float> poison,
      <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %c = fadd <8 x float> %a, %b
  %c0 = shufflevector <8 x float> %c, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %c1 = shufflevector <8 x float> %c, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %f = fadd <4 x float> %c0, %c1
  %f0 = extractelement <4 x float> %f, i64 0
  %f1 = extractelement <4 x float> %f, i64 1
  %f2 = extractelement <4 x float> %f, i64 2
  %f3 = extractelement <4 x float> %f, i64 3
  %g0 = fadd float %f0, %f1
  %g1 = fadd float %f2, %f3
  %total = fadd float %g0, %g1
  ret float %total
}

define private void @divided(ptr %s, i64 %n, float %sum) {
entry:
  %i0 = insertelement <16 x float> poison, float %sum, i64 0
  %by = shufflevector <16 x float> %i0, <16 x float> poison, <16 x i32> zeroinitializer
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i.next, %loop]
  %at = getelementptr float, ptr %s, i64 %i
  %x = load <16 x float>, ptr %at, align 4
  %y = fdiv <16 x float> %x, %by
  store <16 x float> %y, ptr %at, align 4
  %i.next = add i64 %i, 16
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""
