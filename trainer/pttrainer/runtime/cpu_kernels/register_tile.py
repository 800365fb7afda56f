"""The part of a product that stays in registers, and its code, as LLVM assembly.

A tile is some rows by one column block: for each term, the block's W numbers are read once and multiplied with one
number of each row, with one accumulator for each vector of the tile. There must be enough accumulators to hide the
latency of an addition, and no more than registers. At most `TERMS_PER_CHAIN` terms go into one accumulator, whose sum
is then added to the result: this loses less to rounding than one long sum, and that part of the block stays in the
fastest cache for all rows.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass

TERMS_PER_CHAIN = 256


@dataclass(frozen=True)
class RegisterTile:
    """rows by vectors · lanes float32 numbers."""

    lanes: int
    vectors: int
    rows: int

    @property
    def width(self) -> int:
        """Return the columns of a block."""
        return self.lanes * self.vectors

    @property
    def name(self) -> str:
        """Return the suffix of kernels with such tiles, among XLA's custom calls."""
        return f"posttrain_{self.lanes}x{self.vectors}x{self.rows}"


AVX512 = RegisterTile(lanes=16, vectors=2, rows=8)
AVX2 = RegisterTile(lanes=8, vectors=2, rows=6)
NEON = RegisterTile(lanes=4, vectors=4, rows=6)


def tile_for(features: Mapping[str, bool], machine: str | None = None) -> RegisterTile | None:
    """Return the tile for a processor with these features (LLVM's names); None without fused multiply-add."""
    if (machine or platform.machine()) in ("aarch64", "arm64"):
        return NEON
    if features.get("avx512f"):
        return AVX512
    return AVX2 if features.get("avx2") and features.get("fma") else None


def code(tile: RegisterTile) -> str:
    """Return `@panel(x, x.step, x.term, w, w.step, y, y.step, M, terms, first)`.

    It computes y[:M, :W] = x[:M, :terms] · w[:terms, :W], or adds to y. Steps: numbers from row to row; x.term: from
    term to term of a row.
    """
    vector = _vector(tile)
    counts = range(1, tile.rows + 1)
    return "\n".join(
        (
            f"declare {vector} @llvm.fmuladd.v{tile.lanes}f32({vector}, {vector}, {vector})",
            *(_block(tile, rows) for rows in counts),
            _panel(tile),
        )
    )


def _vector(tile: RegisterTile) -> str:
    return f"<{tile.lanes} x float>"


_ROWS = "ptr noalias %x, i64 %x.step, i64 %x.term, ptr noalias %w, i64 %w.step, ptr noalias %y, i64 %y.step"


def _panel(tile: RegisterTile) -> str:
    """Return code that loops over chunks of TERMS_PER_CHAIN terms and, within one, over tiles of rows."""
    counts = range(1, tile.rows + 1)
    cases = " ".join(f"i64 {rows}, label %do{rows}" for rows in counts[:-1])
    calls = "\n".join(
        f"do{rows}:\n"
        f"  call void @block{rows}(ptr %xm, i64 %x.step, i64 %x.term, ptr %wk, i64 %w.step,"
        " ptr %ym, i64 %y.step, i64 %count, i1 %is.first)\n"
        "  br label %done"
        for rows in counts
    )
    return f"""
declare i64 @llvm.smin.i64(i64, i64)
define private void @panel({_ROWS}, i64 %M, i64 %terms, i1 %first) {{
entry:
  br label %part
part:
  %k = phi i64 [0, %entry], [%k.next, %end]
  %k.left = sub i64 %terms, %k
  %count = call i64 @llvm.smin.i64(i64 %k.left, i64 {TERMS_PER_CHAIN})
  %is.begin = icmp eq i64 %k, 0
  %is.first = and i1 %is.begin, %first
  %w.offset = mul i64 %k, %w.step
  %wk = getelementptr float, ptr %w, i64 %w.offset
  %k.offset = mul i64 %k, %x.term
  %xk = getelementptr float, ptr %x, i64 %k.offset
  br label %rows
rows:
  %m = phi i64 [0, %part], [%m.next, %done]
  %m.left = sub i64 %M, %m
  %x.offset = mul i64 %m, %x.step
  %xm = getelementptr float, ptr %xk, i64 %x.offset
  %y.offset = mul i64 %m, %y.step
  %ym = getelementptr float, ptr %y, i64 %y.offset
  switch i64 %m.left, label %do{tile.rows} [{cases}]
{calls}
done:
  %m.next = add i64 %m, {tile.rows}
  %more.rows = icmp slt i64 %m.next, %M
  br i1 %more.rows, label %rows, label %end
end:
  %k.next = add i64 %k, {TERMS_PER_CHAIN}
  %more = icmp slt i64 %k.next, %terms
  br i1 %more, label %part, label %out
out:
  ret void
}}"""


def _block(tile: RegisterTile, rows: int) -> str:
    """Return code like `@panel`, for this many rows and few terms."""
    vector, lanes = _vector(tile), tile.lanes
    cells = [(m, j) for m in range(rows) for j in range(tile.vectors)]
    fma = f"@llvm.fmuladd.v{lanes}f32"
    lines = [f"define private void @block{rows}({_ROWS}, i64 %terms, i1 %first) {{", "entry:"]
    for m in range(rows):
        lines += [f"  %xo{m} = mul i64 %x.step, {m}", f"  %x{m} = getelementptr float, ptr %x, i64 %xo{m}"]
    lines += ["  br label %loop", "loop:"]
    lines += ["  %k = phi i64 [0, %entry], [%k.next, %loop]", "  %p = phi ptr [%w, %entry], [%p.next, %loop]"]
    lines += ["  %t = phi i64 [0, %entry], [%t.next, %loop]"]
    lines += [f"  %a{m}.{j} = phi {vector} [zeroinitializer, %entry], [%s{m}.{j}, %loop]" for m, j in cells]
    for j in range(tile.vectors):
        lines += [f"  %q{j} = getelementptr float, ptr %p, i64 {j * lanes}"]
        lines += [f"  %w{j} = load {vector}, ptr %q{j}, align 4"]
    for m in range(rows):
        lines += [f"  %xp{m} = getelementptr float, ptr %x{m}, i64 %t", f"  %e{m} = load float, ptr %xp{m}, align 4"]
        lines += [f"  %i{m} = insertelement {vector} poison, float %e{m}, i64 0"]
        lines += [f"  %v{m} = shufflevector {vector} %i{m}, {vector} poison, <{lanes} x i32> zeroinitializer"]
        for j in range(tile.vectors):
            lines += [f"  %s{m}.{j} = call {vector} {fma}({vector} %w{j}, {vector} %v{m}, {vector} %a{m}.{j})"]
    lines += ["  %k.next = add nuw nsw i64 %k, 1", "  %p.next = getelementptr float, ptr %p, i64 %w.step"]
    lines += ["  %t.next = add i64 %t, %x.term"]
    lines += ["  %more = icmp ult i64 %k.next, %terms", "  br i1 %more, label %loop, label %where"]
    lines += ["where:"]
    for m in range(rows):
        lines += [f"  %yo{m} = mul i64 %y.step, {m}", f"  %y{m} = getelementptr float, ptr %y, i64 %yo{m}"]
        for j in range(tile.vectors):
            lines += [f"  %yp{m}.{j} = getelementptr float, ptr %y{m}, i64 {j * lanes}"]
    lines += ["  br i1 %first, label %put, label %add", "add:"]
    for m, j in cells:
        lines += [f"  %o{m}.{j} = load {vector}, ptr %yp{m}.{j}, align 4"]
        lines += [f"  %t{m}.{j} = fadd {vector} %o{m}.{j}, %s{m}.{j}"]
    lines += ["  br label %put", "put:"]
    lines += [f"  %r{m}.{j} = phi {vector} [%s{m}.{j}, %where], [%t{m}.{j}, %add]" for m, j in cells]
    lines += [f"  store {vector} %r{m}.{j}, ptr %yp{m}.{j}, align 4" for m, j in cells]
    return "\n".join((*lines, "  ret void", "}"))
