"""XLA's call of the product, as LLVM's assembly: what it is given, and how strips are shared out over threads.

XLA calls a handler with a frame of buffers and a table of its own functions: the C interface of
`jaxlib/include/xla/ffi/api/c_api.h` (https://docs.jax.dev/en/latest/ffi.html), version 0.3, which this is written for.

Whoever works takes the next strips from a counter until none are left; the thread that XLA called is one of them. It
waits for strips that others have taken, never for a thread to begin: a pool may have none free for long. So the work's
description may be read after the call has returned, and belongs to all who may come: the last one frees it. All that
latecomers read of it is the counter.
"""

from __future__ import annotations

from pttrainer.strips.tile import Tile

ALONE = 1 << 19
"""Multiplications that one thread does sooner than another one wakes up (some microseconds)."""
SHARES = 4
"""Of a thread: one that came late, or was interrupted, leaves the rest to others."""


def code(tile: Tile) -> str:
    """`@handler(frame)`, for a product of x [M, K] and strips [S, K, W] to [M, S · W]."""
    return _CODE.replace("$WIDTH", str(tile.width)).replace("$ALONE", str(ALONE)).replace("$SHARES", str(SHARES))


_CODE = """
%Version = type { i64, ptr, i32, i32 }
%Metadata = type { i64, %Version, i32, i64 }
%Extension = type { i64, i32, ptr, ptr }                ; size, type, next, metadata
%List = type { i64, ptr, i64, ptr, ptr }                ; size, extensions, length, types, values
%Frame = type { i64, ptr, ptr, ptr, i32, %List, %List } ; size, extensions, functions, context, stage, inputs, results
%Buffer = type { i64, ptr, i32, ptr, i64, ptr }         ; size, extensions, type, data, rank, dimensions
%Functions = type { i64, ptr, %Version, ptr, [13 x ptr] }
%Destroy = type { i64, ptr, ptr }                       ; size, extensions, error:                 function 2
%Schedule = type { i64, ptr, ptr, ptr, ptr }            ; size, extensions, context, task, data:   function 11
%Count = type { i64, ptr, ptr, ptr }                    ; size, extensions, context, threads:      function 12

; Counters that threads write are 64 bytes apart, so that no two share a line of a cache.
%Work = type { i64, [56 x i8], i64, [56 x i8], i64, [56 x i8], ptr, ptr, ptr, i64, i64, i64, i64 }
; 0 next strip, 2 strips done, 4 who may still come, 6 x, 7 w, 8 y, 9 M, 10 K, 11 S, 12 strips of a share

declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()

define private void @strips(ptr %work) {
entry:
  %done = getelementptr %Work, ptr %work, i64 0, i32 2
  %at.x = getelementptr %Work, ptr %work, i64 0, i32 6
  %x = load ptr, ptr %at.x
  %at.w = getelementptr %Work, ptr %work, i64 0, i32 7
  %w = load ptr, ptr %at.w
  %at.y = getelementptr %Work, ptr %work, i64 0, i32 8
  %y = load ptr, ptr %at.y
  %at.M = getelementptr %Work, ptr %work, i64 0, i32 9
  %M = load i64, ptr %at.M
  %at.K = getelementptr %Work, ptr %work, i64 0, i32 10
  %K = load i64, ptr %at.K
  %at.S = getelementptr %Work, ptr %work, i64 0, i32 11
  %S = load i64, ptr %at.S
  %at.share = getelementptr %Work, ptr %work, i64 0, i32 12
  %share = load i64, ptr %at.share
  %N = mul i64 %S, $WIDTH
  %size = mul i64 %K, $WIDTH
  br label %take
take:
  %from = atomicrmw add ptr %work, i64 %share monotonic
  %none = icmp sge i64 %from, %S
  br i1 %none, label %out, label %taken
taken:
  %beyond = add i64 %from, %share
  %to = call i64 @llvm.smin.i64(i64 %beyond, i64 %S)
  br label %one
one:
  %s = phi i64 [%from, %taken], [%s.next, %one]
  %w.offset = mul i64 %s, %size
  %ws = getelementptr float, ptr %w, i64 %w.offset
  %y.offset = mul i64 %s, $WIDTH
  %ys = getelementptr float, ptr %y, i64 %y.offset
  call void @strip(ptr %x, ptr %ws, ptr %ys, i64 %K, i64 %N, i64 %M)
  %s.next = add i64 %s, 1
  %more = icmp slt i64 %s.next, %to
  br i1 %more, label %one, label %counted
counted:
  %count = sub i64 %to, %from
  %before = atomicrmw add ptr %done, i64 %count release
  br label %take
out:
  ret void
}

define private void @leave(ptr %work) {
  %come = getelementptr %Work, ptr %work, i64 0, i32 4
  %left = atomicrmw sub ptr %come, i64 1 acq_rel
  %is.last = icmp eq i64 %left, 1
  br i1 %is.last, label %last, label %out
last:
  call void @free(ptr %work)
  br label %out
out:
  ret void
}

define private void @task(ptr %work) {
  call void @strips(ptr %work)
  call void @leave(ptr %work)
  ret void
}

define private i1 @failed(ptr %functions, ptr %error) {
entry:
  %arguments = alloca %Destroy
  %is.none = icmp eq ptr %error, null
  br i1 %is.none, label %out, label %drop
drop:
  %at.destroy = getelementptr %Functions, ptr %functions, i64 0, i32 4, i64 2
  %destroy = load ptr, ptr %at.destroy
  store %Destroy { i64 24, ptr null, ptr null }, ptr %arguments
  %at.error = getelementptr %Destroy, ptr %arguments, i64 0, i32 2
  store ptr %error, ptr %at.error
  call void %destroy(ptr %arguments)
  br label %out
out:
  %failed = xor i1 %is.none, true
  ret i1 %failed
}

define private i64 @threads(ptr %functions, ptr %context) {
entry:
  %arguments = alloca %Count
  %threads = alloca i64
  store %Count { i64 32, ptr null, ptr null, ptr null }, ptr %arguments
  %at.context = getelementptr %Count, ptr %arguments, i64 0, i32 2
  store ptr %context, ptr %at.context
  %at.threads = getelementptr %Count, ptr %arguments, i64 0, i32 3
  store ptr %threads, ptr %at.threads
  %at.count = getelementptr %Functions, ptr %functions, i64 0, i32 4, i64 12
  %function = load ptr, ptr %at.count
  %error = call ptr %function(ptr %arguments)
  %failed = call i1 @failed(ptr %functions, ptr %error)
  br i1 %failed, label %none, label %some
none:
  ret i64 1
some:
  %count = load i64, ptr %threads
  ret i64 %count
}

define private void @product(ptr %functions, ptr %context, ptr %x, ptr %w, ptr %y, i64 %M, i64 %K, i64 %S) {
entry:
  %arguments = alloca %Schedule
  %MK = mul i64 %M, %K
  %N = mul i64 %S, $WIDTH
  %terms = mul i64 %MK, %N
  %is.small = icmp slt i64 %terms, $ALONE
  br i1 %is.small, label %begin, label %ask
ask:
  %pool = call i64 @threads(ptr %functions, ptr %context)
  br label %begin
begin:
  %many = phi i64 [1, %entry], [%pool, %ask]
  %threads = call i64 @llvm.smin.i64(i64 %many, i64 %S)
  %shares = mul i64 %threads, $SHARES
  %rounded = add i64 %S, %shares
  %less = sub i64 %rounded, 1
  %share = sdiv i64 %less, %shares
  %work = call ptr @malloc(i64 256)
  store i64 0, ptr %work
  %done = getelementptr %Work, ptr %work, i64 0, i32 2
  store i64 0, ptr %done
  %come = getelementptr %Work, ptr %work, i64 0, i32 4
  store i64 %threads, ptr %come
  %at.x = getelementptr %Work, ptr %work, i64 0, i32 6
  store ptr %x, ptr %at.x
  %at.w = getelementptr %Work, ptr %work, i64 0, i32 7
  store ptr %w, ptr %at.w
  %at.y = getelementptr %Work, ptr %work, i64 0, i32 8
  store ptr %y, ptr %at.y
  %at.M = getelementptr %Work, ptr %work, i64 0, i32 9
  store i64 %M, ptr %at.M
  %at.K = getelementptr %Work, ptr %work, i64 0, i32 10
  store i64 %K, ptr %at.K
  %at.S = getelementptr %Work, ptr %work, i64 0, i32 11
  store i64 %S, ptr %at.S
  %at.share = getelementptr %Work, ptr %work, i64 0, i32 12
  store i64 %share, ptr %at.share
  store %Schedule { i64 40, ptr null, ptr null, ptr @task, ptr null }, ptr %arguments
  %at.context = getelementptr %Schedule, ptr %arguments, i64 0, i32 2
  store ptr %context, ptr %at.context
  %at.data = getelementptr %Schedule, ptr %arguments, i64 0, i32 4
  store ptr %work, ptr %at.data
  %at.schedule = getelementptr %Functions, ptr %functions, i64 0, i32 4, i64 11
  br label %call
call:
  %called = phi i64 [1, %begin], [%called.next, %next]
  %are.all = icmp sge i64 %called, %threads
  br i1 %are.all, label %join, label %another
another:
  %schedule = load ptr, ptr %at.schedule
  %error = call ptr %schedule(ptr %arguments)
  %failed = call i1 @failed(ptr %functions, ptr %error)
  br i1 %failed, label %fewer, label %next
fewer:
  call void @leave(ptr %work)
  br label %next
next:
  %called.next = add i64 %called, 1
  br label %call
join:
  call void @strips(ptr %work)
  br label %wait
wait:
  %looks = phi i64 [0, %join], [%looks.next, %again], [%looks.next, %yield]
  %are.done = load atomic i64, ptr %done acquire, align 8
  %is.done = icmp sge i64 %are.done, %S
  br i1 %is.done, label %out, label %look
look:
  %looks.next = add i64 %looks, 1
  %is.long = icmp ugt i64 %looks.next, 10000
  br i1 %is.long, label %yield, label %again
yield:
  %ignored = call i32 @sched_yield()
  br label %wait
again:
  br label %wait
out:
  call void @leave(ptr %work)
  ret void
}

define ptr @handler(ptr %frame) {
entry:
  %at.extension = getelementptr %Frame, ptr %frame, i64 0, i32 1
  %extension = load ptr, ptr %at.extension
  %is.plain = icmp eq ptr %extension, null
  br i1 %is.plain, label %run, label %extended
extended:
  %at.type = getelementptr %Extension, ptr %extension, i64 0, i32 1
  %type = load i32, ptr %at.type
  %is.question = icmp eq i32 %type, 1
  br i1 %is.question, label %answer, label %run
answer:
  ; What version this is written for, when it is registered; it has no traits.
  %at.metadata = getelementptr %Extension, ptr %extension, i64 0, i32 3
  %metadata = load ptr, ptr %at.metadata
  %at.major = getelementptr %Metadata, ptr %metadata, i64 0, i32 1, i32 2
  store i32 0, ptr %at.major
  %at.minor = getelementptr %Metadata, ptr %metadata, i64 0, i32 1, i32 3
  store i32 3, ptr %at.minor
  %at.traits = getelementptr %Metadata, ptr %metadata, i64 0, i32 2
  store i32 0, ptr %at.traits
  ret ptr null
run:
  %at.functions = getelementptr %Frame, ptr %frame, i64 0, i32 2
  %functions = load ptr, ptr %at.functions
  %at.context = getelementptr %Frame, ptr %frame, i64 0, i32 3
  %context = load ptr, ptr %at.context
  %at.arguments = getelementptr %Frame, ptr %frame, i64 0, i32 5, i32 4
  %arguments = load ptr, ptr %at.arguments
  %buffer.x = load ptr, ptr %arguments
  %at.w = getelementptr ptr, ptr %arguments, i64 1
  %buffer.w = load ptr, ptr %at.w
  %at.results = getelementptr %Frame, ptr %frame, i64 0, i32 6, i32 4
  %results = load ptr, ptr %at.results
  %buffer.y = load ptr, ptr %results
  %at.data.x = getelementptr %Buffer, ptr %buffer.x, i64 0, i32 3
  %x = load ptr, ptr %at.data.x
  %at.data.w = getelementptr %Buffer, ptr %buffer.w, i64 0, i32 3
  %w = load ptr, ptr %at.data.w
  %at.data.y = getelementptr %Buffer, ptr %buffer.y, i64 0, i32 3
  %y = load ptr, ptr %at.data.y
  %at.rows = getelementptr %Buffer, ptr %buffer.x, i64 0, i32 5
  %rows = load ptr, ptr %at.rows
  %M = load i64, ptr %rows
  %at.sizes = getelementptr %Buffer, ptr %buffer.w, i64 0, i32 5
  %sizes = load ptr, ptr %at.sizes
  %S = load i64, ptr %sizes
  %at.K = getelementptr i64, ptr %sizes, i64 1
  %K = load i64, ptr %at.K
  call void @product(ptr %functions, ptr %context, ptr %x, ptr %w, ptr %y, i64 %M, i64 %K, i64 %S)
  ret ptr null
}
"""
