"""What attention within packed rows does with the scores of a block of queries, as LLVM assembly.

Scores are [keys, QUERIES]: what belongs to a query stands in one lane of a vector, whatever the processor's width.
Keys are those of a shared prompt, if there is one, and the queries' own, from the first that any of them can see.
"""

from pttrainer.runtime.cpu_kernels import softmax

QUERIES = 32
"""Queries of a block, a multiple of 16."""
PROMPT = 1
"""The segment of a shared prompt's tokens."""


def code() -> str:
    """Return the functions below, which use `@panels`, `@exponential`, `@malloc` and others of their neighbours."""
    return spread(_CODE.replace("$TURN", _sixteen_turned()).replace("$OWN", _OWN))


def spread(text: str) -> str:
    """Repeat each line that names $J for all vectors of a block, $L being the vector's first lane; set constants."""

    def repeated(line: str) -> str:
        if "$J" not in line:
            return line
        return "\n".join(line.replace("$J", str(j)).replace("$L", str(16 * j)) for j in range(QUERIES // 16))

    whole = "\n".join(map(repeated, text.splitlines()))
    for name, value in _CONSTANTS.items():
        whole = whole.replace(f"${name}", value)
    return whole


_CONSTANTS = {
    "QUERIES": str(QUERIES),
    "MORE": str(QUERIES - 1),
    "NUMBERS": ", ".join(f"i32 {lane}" for lane in range(16)),
    "PROMPT": str(PROMPT),
    "HIDDEN": softmax.HIDDEN,
}


def _sixteen_turned() -> str:
    """Return code that turns 16 rows of 16 numbers, at %xh with %step, to columns at %to.h.

    In four rounds vectors 1, 2, 4 and 8 apart exchange halves of what they have.
    """
    lines = []
    for i in range(16):
        lines += [f"  %o{i} = mul i64 %step, {i}", f"  %p{i} = getelementptr float, ptr %xh, i64 %o{i}"]
        lines += [f"  %t0.{i} = load <16 x float>, ptr %p{i}, align 4"]
    names = [f"%t0.{i}" for i in range(16)]
    for apart in (1, 2, 4, 8):
        low = [lane if not lane & apart else 16 + lane - apart for lane in range(16)]
        for i in (i for i in range(16) if not i & apart):
            pair = f"<16 x float> {names[i]}, <16 x float> {names[i + apart]}"
            for which, order in ((i, low), (i + apart, [lane + apart for lane in low])):
                mask = ", ".join(f"i32 {lane}" for lane in order)
                lines += [f"  %t{apart}.{which} = shufflevector {pair}, <16 x i32> <{mask}>"]
        names = [f"%t{apart}.{i}" for i in range(16)]
    for i, name in enumerate(names):
        lines += [f"  %w{i} = getelementptr float, ptr %to.h, i64 {i * QUERIES}"]
        lines += [f"  store <16 x float> {name}, ptr %w{i}, align 4"]
    return "\n".join(lines)


_OWN = """  %count = extractvalue %Span %span, 1
  %ahead = extractvalue %Span %span, 2
  %parts = call { ptr, ptr, i64 } @own(%Span %span, ptr %rows, i64 %step, ptr %scores)
  %own.rows = extractvalue { ptr, ptr, i64 } %parts, 0
  %own.scores = extractvalue { ptr, ptr, i64 } %parts, 1
  %own.keys = extractvalue { ptr, ptr, i64 } %parts, 2
  %is.shared = icmp sgt i64 %ahead, 0
  br i1 %is.shared, label %shared, label %own"""
"""What is read for the queries' own keys, after that of the shared prompt, if there is one."""

_CODE = """
declare float @llvm.log.f32(float)
declare float @llvm.vector.reduce.fadd.v16f32(float, <16 x float>)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; A block of queries: the first, how many, keys of the shared prompt, the first key of their own, keys of both.
%Span = type { i64, i64, i64, i64, i64 }

define private i64 @blocks(i64 %tokens) {
  %more = add i64 %tokens, $MORE
  %blocks = sdiv i64 %more, $QUERIES
  ret i64 %blocks
}

; The span of a block, and its queries' segments, -1 for queries that do not exist. Tokens of the prompt are in other
; blocks than those after it. Keys are skipped up to the first whose segment is neither smaller than all of the queries'
; nor larger.
define private %Span @span(ptr %segments, i64 %block, i64 %T, i64 %window, i64 %shared, ptr %of) {
entry:
  %first.blocks = call i64 @blocks(i64 %shared)
  %is.after = icmp sge i64 %block, %first.blocks
  %before = select i1 %is.after, i64 %first.blocks, i64 0
  %ahead = select i1 %is.after, i64 %shared, i64 0
  %stop = select i1 %is.after, i64 %T, i64 %shared
  %number = sub i64 %block, %before
  %begin = mul i64 %number, $QUERIES
  %t = add i64 %ahead, %begin
  %left = sub i64 %stop, %t
  %count = call i64 @llvm.smin.i64(i64 %left, i64 $QUERIES)
  br label %query
query:
  %c = phi i64 [0, %entry], [%c.next, %query]
  %low = phi i32 [2147483647, %entry], [%low.next, %query]
  %high = phi i32 [-2147483648, %entry], [%high.next, %query]
  %exists = icmp slt i64 %c, %count
  %row = select i1 %exists, i64 %c, i64 0
  %tc = add i64 %t, %row
  %at = getelementptr i32, ptr %segments, i64 %tc
  %segment = load i32, ptr %at, align 4
  %own = select i1 %exists, i32 %segment, i32 -1
  %into = getelementptr i32, ptr %of, i64 %c
  store i32 %own, ptr %into, align 4
  %low.next = call i32 @llvm.smin.i32(i32 %low, i32 %segment)
  %high.next = call i32 @llvm.smax.i32(i32 %high, i32 %segment)
  %c.next = add i64 %c, 1
  %more = icmp slt i64 %c.next, $QUERIES
  br i1 %more, label %query, label %near
near:
  %after = add i64 %t, 1
  %oldest = sub i64 %after, %window
  %nearest = call i64 @llvm.smax.i64(i64 %oldest, i64 %ahead)
  br label %key
key:
  %s = phi i64 [%nearest, %near], [%s.next, %key]
  %at.key = getelementptr i32, ptr %segments, i64 %s
  %of.key = load i32, ptr %at.key, align 4
  %is.below = icmp slt i32 %of.key, %low.next
  %is.above = icmp sgt i32 %of.key, %high.next
  %is.other = or i1 %is.below, %is.above
  %s.next = add i64 %s, 1
  br i1 %is.other, label %key, label %out
out:
  %end = add i64 %t, %count
  %own.keys = sub i64 %end, %s
  %keys = add i64 %ahead, %own.keys
  %span.0 = insertvalue %Span poison, i64 %t, 0
  %span.1 = insertvalue %Span %span.0, i64 %count, 1
  %span.2 = insertvalue %Span %span.1, i64 %ahead, 2
  %span.3 = insertvalue %Span %span.2, i64 %s, 3
  %span.4 = insertvalue %Span %span.3, i64 %keys, 4
  ret %Span %span.4
}

; What a product reads and writes behind the shared prompt: of rows [tokens, step], and of scores [keys, QUERIES].
define private { ptr, ptr, i64 } @own(%Span %span, ptr %rows, i64 %step, ptr %scores) {
  %ahead = extractvalue %Span %span, 2
  %from = extractvalue %Span %span, 3
  %keys = extractvalue %Span %span, 4
  %own.keys = sub i64 %keys, %ahead
  %offset = mul i64 %from, %step
  %own.rows = getelementptr float, ptr %rows, i64 %offset
  %scores.offset = mul i64 %ahead, $QUERIES
  %own.scores = getelementptr float, ptr %scores, i64 %scores.offset
  %own.0 = insertvalue { ptr, ptr, i64 } poison, ptr %own.rows, 0
  %own.1 = insertvalue { ptr, ptr, i64 } %own.0, ptr %own.scores, 1
  %own.2 = insertvalue { ptr, ptr, i64 } %own.1, i64 %own.keys, 2
  ret { ptr, ptr, i64 } %own.2
}

; scores[keys, QUERIES] = rows[keys, :terms] · turned[:terms, QUERIES]
define private void @scored(%Span %span, ptr %rows, i64 %step, ptr %turned, i64 %terms, ptr %scores) {
$OWN
shared:
  call void @panels(ptr %rows, i64 %step, i64 1, ptr %turned, i64 $QUERIES, ptr %scores, i64 $QUERIES, i64 %ahead,
    i64 %terms, i64 $QUERIES, i1 true)
  br label %own
own:
  call void @panels(ptr %own.rows, i64 %step, i64 1, ptr %turned, i64 $QUERIES, ptr %own.scores, i64 $QUERIES,
    i64 %own.keys, i64 %terms, i64 $QUERIES, i1 true)
  ret void
}

; y[:count, :n] = scores[keys, :count] turned · rows[keys, :n]
define private void @weighed(%Span %span, ptr %scores, ptr %rows, i64 %step, i64 %n, ptr %y, i64 %y.step) {
$OWN
shared:
  call void @panels(ptr %scores, i64 1, i64 $QUERIES, ptr %rows, i64 %step, ptr %y, i64 %y.step, i64 %count,
    i64 %ahead, i64 %n, i1 true)
  br label %own
own:
  %is.first = icmp eq i64 %ahead, 0
  call void @panels(ptr %own.scores, i64 1, i64 $QUERIES, ptr %own.rows, i64 %step, ptr %y, i64 %y.step, i64 %count,
    i64 %own.keys, i64 %n, i1 %is.first)
  ret void
}

; rows[keys, :n] += scores[keys, :count] · x[:count, :n]; rows are n apart.
define private void @received(%Span %span, ptr %scores, ptr %x, i64 %x.step, i64 %step, ptr %rows) {
$OWN
shared:
  call void @panels(ptr %scores, i64 $QUERIES, i64 1, ptr %x, i64 %x.step, ptr %rows, i64 %step, i64 %ahead,
    i64 %count, i64 %step, i1 false)
  br label %own
own:
  call void @panels(ptr %own.scores, i64 $QUERIES, i64 1, ptr %x, i64 %x.step, ptr %own.rows, i64 %step,
    i64 %own.keys, i64 %count, i64 %step, i1 false)
  ret void
}

; x[:count, :H] as [H, QUERIES]: 0 for queries that do not exist.
define private void @turned(ptr %x, i64 %step, i64 %count, i64 %H, ptr %to) {
entry:
  %are.sixteen = srem i64 %H, 16
  %is.divided = icmp eq i64 %are.sixteen, 0
  br label %some
some:
  %c = phi i64 [0, %entry], [%c.next, %done]
  %left = sub i64 %count, %c
  %xc.offset = mul i64 %c, %step
  %xc = getelementptr float, ptr %x, i64 %xc.offset
  %to.c = getelementptr float, ptr %to, i64 %c
  %are.all = icmp sge i64 %left, 16
  %are.whole = and i1 %are.all, %is.divided
  br i1 %are.whole, label %whole, label %single
whole:
  %h = phi i64 [0, %some], [%h.next, %whole]
  %xh = getelementptr float, ptr %xc, i64 %h
  %to.offset = mul i64 %h, $QUERIES
  %to.h = getelementptr float, ptr %to.c, i64 %to.offset
$TURN
  %h.next = add i64 %h, 16
  %more.h = icmp slt i64 %h.next, %H
  br i1 %more.h, label %whole, label %done
single:
  %lane = phi i64 [0, %some], [%lane.next, %next]
  %exists = icmp slt i64 %lane, %left
  %xl.offset = mul i64 %lane, %step
  %xl.own = getelementptr float, ptr %xc, i64 %xl.offset
  %xl = select i1 %exists, ptr %xl.own, ptr %x
  %to.l = getelementptr float, ptr %to.c, i64 %lane
  br label %number
number:
  %i = phi i64 [0, %single], [%i.next, %number]
  %at = getelementptr float, ptr %xl, i64 %i
  %value = load float, ptr %at, align 4
  %kept = select i1 %exists, float %value, float 0.0
  %i.offset = mul i64 %i, $QUERIES
  %into = getelementptr float, ptr %to.l, i64 %i.offset
  store float %kept, ptr %into, align 4
  %i.next = add i64 %i, 1
  %more.i = icmp slt i64 %i.next, %H
  br i1 %more.i, label %number, label %next
next:
  %lane.next = add i64 %lane, 1
  %more.lanes = icmp slt i64 %lane.next, 16
  br i1 %more.lanes, label %single, label %done
done:
  %c.next = add i64 %c, 16
  %more = icmp slt i64 %c.next, $QUERIES
  br i1 %more, label %some, label %out
out:
  ret void
}

; Of each query, the sum of x · y; 16 divides n.
define private void @inner(ptr %x, ptr %y, i64 %step, i64 %count, i64 %n, ptr %to) {
entry:
  br label %query
query:
  %c = phi i64 [0, %entry], [%c.next, %put]
  %offset = mul i64 %c, %step
  %xc = getelementptr float, ptr %x, i64 %offset
  %yc = getelementptr float, ptr %y, i64 %offset
  br label %part
part:
  %i = phi i64 [0, %query], [%i.next, %part]
  %sum = phi <16 x float> [zeroinitializer, %query], [%sum.next, %part]
  %xi = getelementptr float, ptr %xc, i64 %i
  %yi = getelementptr float, ptr %yc, i64 %i
  %xv = load <16 x float>, ptr %xi, align 4
  %yv = load <16 x float>, ptr %yi, align 4
  %sum.next = call <16 x float> @llvm.fma.v16f32(<16 x float> %xv, <16 x float> %yv, <16 x float> %sum)
  %i.next = add i64 %i, 16
  %more.i = icmp slt i64 %i.next, %n
  br i1 %more.i, label %part, label %put
put:
  %total = call float @llvm.vector.reduce.fadd.v16f32(float 0.0, <16 x float> %sum.next)
  %into = getelementptr float, ptr %to, i64 %c
  store float %total, ptr %into, align 4
  %c.next = add i64 %c, 1
  %more = icmp slt i64 %c.next, %count
  br i1 %more, label %query, label %out
out:
  ret void
}

; y[b, t, :K, :n] = the sums over each key head's query heads of x[b, :N, t, :n]; 16 divides n.
define private void @summed(ptr %x, ptr %y, i64 %b, i64 %t, i64 %T, i64 %N, i64 %K, i64 %n) {
entry:
  %group = sdiv i64 %N, %K
  %Tn = mul i64 %T, %n
  %Kn = mul i64 %K, %n
  %bT = mul i64 %b, %T
  %bt = add i64 %bT, %t
  %y.offset = mul i64 %bt, %Kn
  %yt = getelementptr float, ptr %y, i64 %y.offset
  %bN = mul i64 %b, %N
  %b.offset = mul i64 %bN, %Tn
  %t.offset = mul i64 %t, %n
  %x.offset = add i64 %b.offset, %t.offset
  %xt = getelementptr float, ptr %x, i64 %x.offset
  br label %some
some:
  %i = phi i64 [0, %entry], [%i.next, %put]
  %k = sdiv i64 %i, %n
  %h = srem i64 %i, %n
  %first = mul i64 %k, %group
  br label %add
add:
  %r = phi i64 [0, %some], [%r.next, %add]
  %sum = phi <16 x float> [zeroinitializer, %some], [%sum.next, %add]
  %head = add i64 %first, %r
  %head.offset = mul i64 %head, %Tn
  %from = add i64 %head.offset, %h
  %at = getelementptr float, ptr %xt, i64 %from
  %value = load <16 x float>, ptr %at, align 4
  %sum.next = fadd <16 x float> %sum, %value
  %r.next = add i64 %r, 1
  %more.r = icmp slt i64 %r.next, %group
  br i1 %more.r, label %add, label %put
put:
  %into = getelementptr float, ptr %yt, i64 %i
  store <16 x float> %sum.next, ptr %into, align 4
  %i.next = add i64 %i, 16
  %more = icmp slt i64 %i.next, %Kn
  br i1 %more, label %some, label %out
out:
  ret void
}

; Scores of keys that a query does not see become HIDDEN; the highest of each query.
define private void @unseen(%Span %span, ptr %scores, ptr %segments, ptr %of, i64 %window, ptr %highest) {
entry:
  %prompt = alloca [$QUERIES x i32], align 64
  %lowest$J = getelementptr float, ptr %highest, i64 $L
  store <16 x float> splat (float 0xFFF0000000000000), ptr %lowest$J, align 4
  %prompt$J = getelementptr i32, ptr %prompt, i64 $L
  store <16 x i32> splat (i32 $PROMPT), ptr %prompt$J, align 4
  %t = extractvalue %Span %span, 0
  %ahead = extractvalue %Span %span, 2
  %from = extractvalue %Span %span, 3
  %is.shared = icmp sgt i64 %ahead, 0
  br i1 %is.shared, label %shared, label %own
shared:
  call void @masked(ptr %scores, ptr %segments, ptr %prompt, i64 %t, i64 0, i64 %ahead, i64 %window, ptr %highest)
  br label %own
own:
  %keys = extractvalue %Span %span, 4
  %own.keys = sub i64 %keys, %ahead
  %to = add i64 %from, %own.keys
  %offset = mul i64 %ahead, $QUERIES
  %own.scores = getelementptr float, ptr %scores, i64 %offset
  call void @masked(ptr %own.scores, ptr %segments, ptr %of, i64 %t, i64 %from, i64 %to, i64 %window, ptr %highest)
  ret void
}

; t: the first query; from, to: the keys; segments: of the row, of: that a query sees. A distance below 0 is, without
; its sign, larger than any window.
define private void @masked(
    ptr %scores, ptr %segments, ptr %of, i64 %t, i64 %from, i64 %to, i64 %window, ptr %highest) {
entry:
  %window.32 = trunc i64 %window to i32
  %window.0 = insertelement <16 x i32> poison, i32 %window.32, i64 0
  %window.all = shufflevector <16 x i32> %window.0, <16 x i32> poison, <16 x i32> zeroinitializer
  %high.at$J = getelementptr float, ptr %highest, i64 $L
  %before$J = load <16 x float>, ptr %high.at$J, align 4
  %of.at$J = getelementptr i32, ptr %of, i64 $L
  %of$J = load <16 x i32>, ptr %of.at$J, align 4
  br label %key
key:
  %s = phi i64 [%from, %entry], [%s.next, %key]
  %row = phi ptr [%scores, %entry], [%row.next, %key]
  %high$J = phi <16 x float> [%before$J, %entry], [%higher$J, %key]
  %at.segment = getelementptr i32, ptr %segments, i64 %s
  %segment = load i32, ptr %at.segment, align 4
  %segment.0 = insertelement <16 x i32> poison, i32 %segment, i64 0
  %segment.all = shufflevector <16 x i32> %segment.0, <16 x i32> poison, <16 x i32> zeroinitializer
  %far = sub i64 %t, %s
  %far.32 = trunc i64 %far to i32
  %far.0 = insertelement <16 x i32> poison, i32 %far.32, i64 0
  %far.all = shufflevector <16 x i32> %far.0, <16 x i32> poison, <16 x i32> zeroinitializer
  %far.first = add <16 x i32> %far.all, <$NUMBERS>
  %far$J = add <16 x i32> %far.first, splat (i32 $L)
  %near$J = icmp ult <16 x i32> %far$J, %window.all
  %same$J = icmp eq <16 x i32> %of$J, %segment.all
  %seen$J = and <16 x i1> %near$J, %same$J
  %at$J = getelementptr float, ptr %row, i64 $L
  %x$J = load <16 x float>, ptr %at$J, align 4
  %kept$J = select <16 x i1> %seen$J, <16 x float> %x$J, <16 x float> splat (float $HIDDEN)
  store <16 x float> %kept$J, ptr %at$J, align 4
  %higher$J = call <16 x float> @llvm.maxnum.v16f32(<16 x float> %high$J, <16 x float> %kept$J)
  %s.next = add i64 %s, 1
  %row.next = getelementptr float, ptr %row, i64 $QUERIES
  %more = icmp slt i64 %s.next, %to
  br i1 %more, label %key, label %out
out:
  store <16 x float> %higher$J, ptr %high.at$J, align 4
  ret void
}

; e^(s - less) in place, and its sums over keys.
define private void @powers(ptr %scores, i64 %keys, ptr %less, ptr %sums) {
entry:
  %less.at$J = getelementptr float, ptr %less, i64 $L
  %less$J = load <16 x float>, ptr %less.at$J, align 4
  br label %key
key:
  %s = phi i64 [0, %entry], [%s.next, %key]
  %row = phi ptr [%scores, %entry], [%row.next, %key]
  %sum$J = phi <16 x float> [zeroinitializer, %entry], [%more$J, %key]
  %at$J = getelementptr float, ptr %row, i64 $L
  %x$J = load <16 x float>, ptr %at$J, align 4
  %d$J = fsub <16 x float> %x$J, %less$J
  %e$J = call <16 x float> @exponential(<16 x float> %d$J)
  store <16 x float> %e$J, ptr %at$J, align 4
  %more$J = fadd <16 x float> %sum$J, %e$J
  %s.next = add i64 %s, 1
  %row.next = getelementptr float, ptr %row, i64 $QUERIES
  %more = icmp slt i64 %s.next, %keys
  br i1 %more, label %key, label %out
out:
  %into$J = getelementptr float, ptr %sums, i64 $L
  store <16 x float> %more$J, ptr %into$J, align 4
  ret void
}

; d = weights · (d - inner) in place.
define private void @slopes(ptr %weights, ptr %d, i64 %keys, ptr %inner) {
entry:
  %inner.at$J = getelementptr float, ptr %inner, i64 $L
  %inner$J = load <16 x float>, ptr %inner.at$J, align 4
  br label %key
key:
  %s = phi i64 [0, %entry], [%s.next, %key]
  %offset = mul i64 %s, $QUERIES
  %w.row = getelementptr float, ptr %weights, i64 %offset
  %d.row = getelementptr float, ptr %d, i64 %offset
  %w.at$J = getelementptr float, ptr %w.row, i64 $L
  %w$J = load <16 x float>, ptr %w.at$J, align 4
  %d.at$J = getelementptr float, ptr %d.row, i64 $L
  %d$J = load <16 x float>, ptr %d.at$J, align 4
  %less$J = fsub <16 x float> %d$J, %inner$J
  %slope$J = fmul <16 x float> %w$J, %less$J
  store <16 x float> %slope$J, ptr %d.at$J, align 4
  %s.next = add i64 %s, 1
  %more = icmp slt i64 %s.next, %keys
  br i1 %more, label %key, label %out
out:
  ret void
}
"""
