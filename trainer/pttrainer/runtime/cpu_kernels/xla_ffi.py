"""XLA's calling convention for custom calls, as LLVM assembly: its arguments, and the initial version query.

XLA passes a frame of buffers and a table of its own functions: the C interface of `jaxlib/include/xla/ffi/api/c_api.h`
(https://docs.jax.dev/en/latest/ffi.html), version 0.3, which this is written for.
"""

from collections.abc import Iterator, Sequence


def code() -> str:
    """Return the interface's structures, and `@is.question(frame)`.

    It returns true if XLA only queries a handler's version, after answering.
    """
    return _CODE


def handler(name: str, inputs: Sequence[str], outputs: Sequence[str], body: str) -> str:
    """Return `@<name>(frame)`.

    body: code with `%functions`, `%context`, and for each buffer its data, `%<its name>`, and `%<its name>.sizes`,
    an array of i64.
    """
    lines = [
        f"define ptr @{name}(ptr %frame) {{",
        "entry:",
        "  %question = call i1 @is.question(ptr %frame)",
        "  br i1 %question, label %answered, label %run",
        "answered:",
        "  ret ptr null",
        "run:",
        "  %at.functions = getelementptr %Frame, ptr %frame, i64 0, i32 2",
        "  %functions = load ptr, ptr %at.functions",
        "  %at.context = getelementptr %Frame, ptr %frame, i64 0, i32 3",
        "  %context = load ptr, ptr %at.context",
    ]
    for field, names in ((5, inputs), (6, outputs)):
        lines += [f"  %at.list{field} = getelementptr %Frame, ptr %frame, i64 0, i32 {field}, i32 4"]
        lines += [f"  %list{field} = load ptr, ptr %at.list{field}"]
        for index, of in enumerate(names):
            lines += [f"  %at.{of} = getelementptr ptr, ptr %list{field}, i64 {index}"]
            lines += [f"  %{of}.buffer = load ptr, ptr %at.{of}"]
            lines += [f"  %{of}.at.data = getelementptr %Buffer, ptr %{of}.buffer, i64 0, i32 3"]
            lines += [f"  %{of} = load ptr, ptr %{of}.at.data"]
            lines += [f"  %{of}.at.sizes = getelementptr %Buffer, ptr %{of}.buffer, i64 0, i32 5"]
            lines += [f"  %{of}.sizes = load ptr, ptr %{of}.at.sizes"]
    return "\n".join((*lines, body, "  ret ptr null", "}"))


def size(name: str, of: str, axis: int) -> str:
    """Return code for `%<name>`: the size of a buffer's axis."""
    return (
        f"  %{name}.at = getelementptr i64, ptr %{of}.sizes, i64 {axis}\n"
        f"  %{name} = load i64, ptr %{name}.at"
    )  # fmt: skip


def job(fields: Sequence[tuple[str, str]]) -> str:
    """Return code for `%job`: a structure on the stack with these (type, name) fields, in order, and their values."""
    stored = (f"{at}\n  store {of} %{name}, ptr %job.{name}" for at, of, name in _fields(fields))
    return "\n".join((f"  %job = alloca {_structure(fields)}", *stored))


def read(fields: Sequence[tuple[str, str]]) -> str:
    """Return code that loads the fields of `%job` into values of the same names."""
    return "\n".join(f"{at}\n  %{name} = load {of}, ptr %job.{name}" for at, of, name in _fields(fields))


def _fields(fields: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield each field's address code, type and name."""
    for index, (of, name) in enumerate(fields):
        yield f"  %job.{name} = getelementptr {_structure(fields)}, ptr %job, i64 0, i32 {index}", of, name


def _structure(fields: Sequence[tuple[str, str]]) -> str:
    return f"{{ {', '.join(of for of, _ in fields)} }}"


_CODE = """
%Version = type { i64, ptr, i32, i32 }
%Metadata = type { i64, %Version, i32, i64 }
%Extension = type { i64, i32, ptr, ptr }                ; size, type, next, metadata
%List = type { i64, ptr, i64, ptr, ptr }                ; size, extensions, length, types, values
%Frame = type { i64, ptr, ptr, ptr, i32, %List, %List } ; size, extensions, functions, context, stage, inputs, results
%Buffer = type { i64, ptr, i32, ptr, i64, ptr }         ; size, extensions, type, data, rank, dimensions
%Functions = type { i64, ptr, %Version, ptr, [13 x ptr] }

define private i1 @is.question(ptr %frame) {
entry:
  %at.extension = getelementptr %Frame, ptr %frame, i64 0, i32 1
  %extension = load ptr, ptr %at.extension
  %is.plain = icmp eq ptr %extension, null
  br i1 %is.plain, label %no, label %look
look:
  %at.type = getelementptr %Extension, ptr %extension, i64 0, i32 1
  %type = load i32, ptr %at.type
  %is.question = icmp eq i32 %type, 1
  br i1 %is.question, label %yes, label %no
yes:
  ; The version that this is written for; it has no traits.
  %at.metadata = getelementptr %Extension, ptr %extension, i64 0, i32 3
  %metadata = load ptr, ptr %at.metadata
  %at.major = getelementptr %Metadata, ptr %metadata, i64 0, i32 1, i32 2
  store i32 0, ptr %at.major
  %at.minor = getelementptr %Metadata, ptr %metadata, i64 0, i32 1, i32 3
  store i32 3, ptr %at.minor
  %at.traits = getelementptr %Metadata, ptr %metadata, i64 0, i32 2
  store i32 0, ptr %at.traits
  ret i1 true
no:
  ret i1 false
}
"""
