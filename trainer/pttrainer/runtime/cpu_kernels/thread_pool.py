"""Work sharing over XLA's threads, as LLVM assembly.

Each worker takes the next units from a counter until none are left; the thread that XLA called is one of them. It waits
for units that others have taken, never for a thread to start: a pool may have none free for a long time. So a thread
may start after the call has returned: what it then reads, the counter and its end, belongs to all possible workers, and
the last one frees it. The job itself is read only by workers that have taken a unit of it.
"""

UNITS_PER_THREAD = 4
"""Units per thread: a thread that starts late or is interrupted leaves the rest to others."""
MAX_SPINS = 10_000
"""Spins on units that others have taken, before yielding the processor."""


def code() -> str:
    """Return `@share(functions, context, function, job, units, terms, enough)`.

    It calls function(job, unit) for each unit. functions, context: from XLA (`xla_ffi`). A thread gets at least
    `enough` of all terms: waking it takes some microseconds.
    """
    return _CODE.replace("$SHARES", str(UNITS_PER_THREAD)).replace("$LOOKS", str(MAX_SPINS))


_CODE = """
%Destroy = type { i64, ptr, ptr }                ; size, extensions, error:                 function 2
%Schedule = type { i64, ptr, ptr, ptr, ptr }     ; size, extensions, context, task, data:   function 11
%Count = type { i64, ptr, ptr, ptr }             ; size, extensions, context, threads:      function 12

; Counters that threads write are 64 bytes apart, so that no two share a line of a cache.
%Work = type { i64, [56 x i8], i64, [56 x i8], i64, [56 x i8], ptr, ptr, i64, i64 }
; 0 next unit, 2 units done, 4 who may still come, 6 function, 7 job, 8 units, 9 units of a share

declare i64 @llvm.smax.i64(i64, i64)
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()

define private void @units(ptr %work) {
entry:
  %done = getelementptr %Work, ptr %work, i64 0, i32 2
  %at.function = getelementptr %Work, ptr %work, i64 0, i32 6
  %function = load ptr, ptr %at.function
  %at.job = getelementptr %Work, ptr %work, i64 0, i32 7
  %job = load ptr, ptr %at.job
  %at.units = getelementptr %Work, ptr %work, i64 0, i32 8
  %units = load i64, ptr %at.units
  %at.share = getelementptr %Work, ptr %work, i64 0, i32 9
  %share = load i64, ptr %at.share
  br label %take
take:
  %from = atomicrmw add ptr %work, i64 %share monotonic
  %none = icmp sge i64 %from, %units
  br i1 %none, label %out, label %taken
taken:
  %beyond = add i64 %from, %share
  %to = call i64 @llvm.smin.i64(i64 %beyond, i64 %units)
  br label %one
one:
  %unit = phi i64 [%from, %taken], [%unit.next, %one]
  call void %function(ptr %job, i64 %unit)
  %unit.next = add i64 %unit, 1
  %more = icmp slt i64 %unit.next, %to
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
  call void @units(ptr %work)
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

define private void @share(
    ptr %functions, ptr %context, ptr %function, ptr %job, i64 %units, i64 %terms, i64 %enough) {
entry:
  %arguments = alloca %Schedule
  %worth = sdiv i64 %terms, %enough
  %few = call i64 @llvm.smin.i64(i64 %worth, i64 %units)
  %most = call i64 @llvm.smax.i64(i64 %few, i64 1)
  %alone = icmp eq i64 %most, 1
  br i1 %alone, label %begin, label %ask
ask:
  %pool = call i64 @threads(ptr %functions, ptr %context)
  br label %begin
begin:
  %many = phi i64 [1, %entry], [%pool, %ask]
  %threads = call i64 @llvm.smin.i64(i64 %many, i64 %most)
  %shares = mul i64 %threads, $SHARES
  %rounded = add i64 %units, %shares
  %less = sub i64 %rounded, 1
  %share = sdiv i64 %less, %shares
  %work = call ptr @malloc(i64 256)
  store i64 0, ptr %work
  %done = getelementptr %Work, ptr %work, i64 0, i32 2
  store i64 0, ptr %done
  %come = getelementptr %Work, ptr %work, i64 0, i32 4
  store i64 %threads, ptr %come
  %at.function = getelementptr %Work, ptr %work, i64 0, i32 6
  store ptr %function, ptr %at.function
  %at.job = getelementptr %Work, ptr %work, i64 0, i32 7
  store ptr %job, ptr %at.job
  %at.units = getelementptr %Work, ptr %work, i64 0, i32 8
  store i64 %units, ptr %at.units
  %at.share = getelementptr %Work, ptr %work, i64 0, i32 9
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
  call void @units(ptr %work)
  br label %wait
wait:
  %looks = phi i64 [0, %join], [%looks.next, %look], [%looks.next, %yield]
  %are.done = load atomic i64, ptr %done acquire, align 8
  %is.done = icmp sge i64 %are.done, %units
  br i1 %is.done, label %out, label %look
look:
  %looks.next = add i64 %looks, 1
  %is.long = icmp ugt i64 %looks.next, $LOOKS
  br i1 %is.long, label %yield, label %wait
yield:
  %ignored = call i32 @sched_yield()
  br label %wait
out:
  call void @leave(ptr %work)
  ret void
}
"""
