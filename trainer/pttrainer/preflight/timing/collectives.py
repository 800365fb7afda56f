"""The collectives of a compiled program by kind, counted in the compiler's own text.

A collective in a loop counts once per iteration; the number of iterations is the constant in the loop's condition over
the step of its counter (the compiler unrolls some loops by two); for a loop that ends on a computed value, the caller
provides it. Of a conditional, the branch with more traffic counts. A collective that runs inside of other fusions
(async collective fusion) stands in each of them, and counts where it starts; one that a SparseCore runs is a call.
Bytes are the least that one device sends and receives: (n − 1)/n of a gathered or scattered array, twice that for a
sum, n devices.

Left out: arrays of less than a kilobyte.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

_CHAINED, _STARTED = "chain_id=", 'custom_call_target="AsyncCollectiveStart"'
"""Of each part of a collective that runs inside of fusions; of the fusion that starts it."""
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
SMALL = 1024
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_SHAPE = re.compile(r"\b([a-z]+[0-9]*(?:e[0-9]m[0-9]\w*)?)\[([0-9,]*)\]")
_OPERATION = re.compile(r"= (.*?) ([a-z][a-z\-]*)\(")
_NAME = re.compile(r"^  (?:ROOT )?%?([\w.\-]+) = ")
_CONSTANT = re.compile(r"[su]32\[\](?:\{[^}]*\})? constant\((\d+)\)")


@dataclass(frozen=True)
class Traffic:
    """One kind: how many run in a step, and the bytes that a device exchanges."""

    kind: str
    count: int
    bytes: int
    between_slices: bool = False

    def times(self, count: int) -> Traffic:
        """Return the traffic of so many runs."""
        return Traffic(self.kind, count * self.count, count * self.bytes, self.between_slices)


Sums = Counter[tuple[str, bool, str]]
"""(kind, between slices, "count" or "bytes") -> sum."""


def grown(few: Sequence[Traffic], more: Sequence[Traffic], steps: float) -> tuple[Traffic, ...]:
    """Extrapolate traffic to a program with `steps` times the additional layers of `more` over `few`."""
    sums: tuple[Sums, Sums] = (Counter(), Counter())
    for total, traffic in zip(sums, (few, more), strict=True):
        for one in traffic:
            total[one.kind, one.between_slices, "count"] += one.count
            total[one.kind, one.between_slices, "bytes"] += one.bytes
    at = {key: round(sums[0][key] + steps * (sums[1][key] - sums[0][key])) for key in sums[0] | sums[1]}
    return tuple(
        Traffic(kind, at[kind, slow, "count"], at[kind, slow, "bytes"], slow) for kind, slow in _largest_first(at)
    )


def _largest_first(sums: Mapping[tuple[str, bool, str], int]) -> list[tuple[str, bool]]:
    return sorted({key[:2] for key in sums}, key=lambda key: -sums[(*key, "bytes")])


def collectives(text: str, devices_per_slice: int, turns: int | None = None) -> list[Traffic]:
    """Return the traffic of one run of the program, largest first.

    turns: iterations of its loops, if they do not say.
    """
    bodies = computations(text)
    entry = next((name for name, (is_entry, _) in bodies.items() if is_entry), None)

    @cache
    def of(name: str) -> Sums:
        total: Sums = Counter()
        lines = bodies.get(name, (False, []))[1]
        is_start = any(_STARTED in line for line in lines)
        for line in lines:
            if is_start or _CHAINED not in line:
                total += _of_line(line)
        return total

    def _of_line(line: str) -> Sums:
        operation = _OPERATION.search(line)
        if operation is None:
            return Counter()
        shape, name = operation[1], operation[2].removesuffix("-start")
        if name in KINDS:
            moved, slow = exchanged(shape, name, line, devices_per_slice, is_start=operation[2].endswith("-start"))
            return Counter({(name, slow, "count"): 1, (name, slow, "bytes"): moved} if moved >= SMALL else {})
        if name == "while":
            condition, body = (named(line, key)[0] for key in ("condition", "body"))
            count = turns or iterations(*(bodies.get(name, (False, []))[1] for name in (condition, body)))
            return Counter({key: count * value for key, value in of(body).items()})
        if name == "conditional":
            branches = [of(branch) for key in BRANCHES for branch in named(line, key)]
            return max(branches, key=lambda sums: sum(v for k, v in sums.items() if k[2] == "bytes"), default=Counter())
        total: Sums = Counter()
        keys = ["calls", "called_computations", *(["to_apply"] if name == "call" else [])]
        for called in (each for key in keys for each in named(line, key)):
            total += of(called)
        return total

    sums = of(entry) if entry is not None else Counter()
    return [
        Traffic(kind, sums[kind, slow, "count"], sums[kind, slow, "bytes"], slow) for kind, slow in _largest_first(sums)
    ]


BRANCHES = ("branch_computations", "true_computation", "false_computation")


def exchanged(shape: str, kind: str, line: str, devices_per_slice: int, *, is_start: bool) -> tuple[int, bool]:
    """Return the bytes that a device exchanges in a collective, and whether it spans slices."""
    group = _group(line)
    sizes = [_bytes(dtype, dims) for dtype, dims in _SHAPE.findall(shape)]
    slow = len({device // devices_per_slice for device in group}) > 1
    if kind == "collective-permute":
        return (max(sizes, default=0) if is_start else sum(sizes)), slow
    # The start of a gather holds its operand and its result; of a sum, only the result.
    size = max(sizes, default=0) if is_start and kind == "all-gather" else sum(sizes)
    return _share(kind, size, len(group) or 1), slow


def _share(kind: str, size: int, n: int) -> int:
    """Return the bytes exchanged; size: of the result."""
    share = {"all-gather": size, "all-reduce": 2 * size, "reduce-scatter": size * n, "all-to-all": size}[kind]
    return share * (n - 1) // n


def _group(line: str) -> list[int]:
    """Return the devices of the first group; of a permutation, the first pair."""
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([0-9,]+)\}", line)
    if listed is not None:
        return [int(device) for device in listed[1].split(",")]
    iota = re.search(r"replica_groups=\[([0-9,]+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?", line)
    if iota is not None:
        return _iota(*(part and [int(x) for x in part.split(",")] for part in iota.groups()))  # type: ignore[arg-type]
    mesh = re.search(r"replica_groups=mesh\[([^\]]+)\](?:, device_ids=(\S+))? ?\{([^}]*)\}", line)
    return [] if mesh is None else _mesh(*mesh.groups())


def _iota(groups: list[int], dims: list[int], order: list[int] | None) -> list[int]:
    """Return `[groups, members]<=[dims]T(order)`: numbers 0, 1, … as `dims`, transposed, cut into groups."""
    import numpy as np

    ids = np.arange(math.prod(dims)).reshape(dims)
    ids = ids if order is None else ids.transpose(order)
    return [int(x) for x in ids.reshape(groups)[0]]


def _mesh(axes: str, order: str | None, over: str) -> list[int]:
    """Return the devices of `mesh['a'=2,'b'=8] {'b'}` that differ in `over` only.

    order: of the mesh's devices, if they are not in that of their numbers: these, or `([dims]T(order))`.
    """
    import numpy as np

    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    chosen = re.findall(r"'([^']+)'", over)
    listed, transposed = ([int(x) for x in re.findall(r"\d+", part)] for part in (order or "").partition("T")[::2])
    if transposed:
        listed = [int(x) for x in np.arange(math.prod(listed)).reshape(listed).transpose(transposed).ravel()]
    ids = np.array(listed or range(math.prod(sizes.values()))).reshape(tuple(sizes.values()))
    index = tuple(slice(None) if name in chosen else 0 for name in sizes)
    return [int(x) for x in ids[index].ravel()]


def iterations(condition: list[str], body: list[str]) -> int:
    """Return the iterations of a loop from 0: its limit over the step of its counter."""
    limit = max((int(number) for line in condition for number in _CONSTANT.findall(line)), default=1)
    return -(-limit // _step(condition, body))


def _step(condition: list[str], body: list[str]) -> int:
    """Return what the loop's counter grows by in an iteration; 1 if the text does not say."""
    at = {match[1]: line for line in body if (match := _NAME.match(line))}
    index = [int(number) for line in condition for number in re.findall(r" get-tuple-element\(.*index=(\d+)", line)]
    results = next((_operands(line) for line in body if line.startswith("  ROOT ") and " tuple(" in line), [])
    if len(index) != 1 or index[0] >= len(results):
        return 1
    counter = _origin(results[index[0]], at)
    added = [_CONSTANT.search(at.get(_origin(name, at), "")) for name in _operands(at.get(counter, ""))]
    return next((int(number[1]) for number in added if number is not None and " add(" in at[counter]), 1)


def _origin(name: str, at: Mapping[str, str]) -> str:
    """Return the instruction that a name stands for, behind copies."""
    while name in at and re.search(r" (?:copy|bitcast)\(", at[name]):
        name = _operands(at[name])[0]
    return name


def _operands(line: str) -> list[str]:
    """Return the names between an instruction's parentheses."""
    return re.findall(r"%([\w.\-]+)", re.sub(r"^.*? = .*? [a-z][a-z\-]*\(", "", line).split("), ")[0])


def named(line: str, key: str) -> list[str]:
    """Return the computations that an instruction names under a key."""
    match = re.search(rf"\b{key}=(?:\{{([^}}]*)\}}|%?([\w.\-]+))", line)
    if match is None:
        return [""] if key in ("condition", "body") else []
    return [name.strip().lstrip("%") for name in (match[1] or match[2]).split(",")]


def computations(text: str) -> dict[str, tuple[bool, list[str]]]:
    """Return name -> (is the entry, lines)."""
    bodies: dict[str, tuple[bool, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            lines = []
            bodies[head[1]] = (line.startswith("ENTRY"), lines)
        elif line.startswith("  "):
            lines.append(line)
    return bodies


def _bytes(dtype: str, dims: str) -> int:
    size = 1 if dtype.startswith("f8") else _BYTES.get(dtype, 4)
    return size * math.prod(int(n) for n in dims.split(",") if n)
