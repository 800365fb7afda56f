"""The collectives of a compiled program by kind, counted in the compiler's own text.

A collective in a loop counts once per iteration; the number of iterations is the constant in the loop's condition; for
a loop that ends on a computed value, the caller provides it. Of a conditional, the branch with more traffic counts.
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

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
SMALL = 1024
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_SHAPE = re.compile(r"\b([a-z]+[0-9]*(?:e[0-9]m[0-9]\w*)?)\[([0-9,]*)\]")
_OPERATION = re.compile(r"= (.*?) ([a-z][a-z\-]*)\(")
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
    bodies = _computations(text)
    entry = next((name for name, (is_entry, _) in bodies.items() if is_entry), None)

    @cache
    def of(name: str) -> Sums:
        total: Sums = Counter()
        for line in bodies.get(name, (False, []))[1]:
            total += _of_line(line)
        return total

    def _of_line(line: str) -> Sums:
        operation = _OPERATION.search(line)
        if operation is None:
            return Counter()
        shape, name = operation[1], operation[2].removesuffix("-start")
        if name in KINDS:
            return _one(shape, name, line, devices_per_slice, is_start=operation[2].endswith("-start"))
        if name == "while":
            condition, body = (_named(line, key)[0] for key in ("condition", "body"))
            count = turns or _turns(bodies.get(condition, (False, []))[1])
            return Counter({key: count * value for key, value in of(body).items()})
        if name == "conditional":
            branches = [of(branch) for key in _BRANCHES for branch in _named(line, key)]
            return max(branches, key=lambda sums: sum(v for k, v in sums.items() if k[2] == "bytes"), default=Counter())
        total: Sums = Counter()
        for called in [*_named(line, "calls"), *_named(line, "called_computations")]:
            total += of(called)
        return total

    sums = of(entry) if entry is not None else Counter()
    return [
        Traffic(kind, sums[kind, slow, "count"], sums[kind, slow, "bytes"], slow) for kind, slow in _largest_first(sums)
    ]


_BRANCHES = ("branch_computations", "true_computation", "false_computation")


def _one(shape: str, kind: str, line: str, devices_per_slice: int, *, is_start: bool) -> Sums:
    group = _group(line)
    sizes = [_bytes(dtype, dims) for dtype, dims in _SHAPE.findall(shape)]
    if kind == "collective-permute":
        n, moved = 2, (max(sizes, default=0) if is_start else sum(sizes))
    else:
        n = len(group) or 1
        # The start of a gather holds its operand and its result; of a sum, only the result.
        size = max(sizes, default=0) if is_start and kind == "all-gather" else sum(sizes)
        moved = _exchanged(kind, size, n)
    if n <= 1 or moved < SMALL:
        return Counter()
    slow = len({device // devices_per_slice for device in group}) > 1
    return Counter({(kind, slow, "count"): 1, (kind, slow, "bytes"): moved})


def _exchanged(kind: str, size: int, n: int) -> int:
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
    mesh = re.search(r"replica_groups=mesh\[([^\]]+)\](?:, device_ids=\(?\[?([^\])]*)\]?\)?)? ?\{([^}]*)\}", line)
    return [] if mesh is None else _mesh(mesh[1], mesh[3])


def _iota(groups: list[int], dims: list[int], order: list[int] | None) -> list[int]:
    """Return `[groups, members]<=[dims]T(order)`: numbers 0, 1, … as `dims`, transposed, cut into groups."""
    import numpy as np

    ids = np.arange(math.prod(dims)).reshape(dims)
    ids = ids if order is None else ids.transpose(order)
    return [int(x) for x in ids.reshape(groups)[0]]


def _mesh(axes: str, over: str) -> list[int]:
    """Return the devices of `mesh['a'=2,'b'=8] {'b'}` that differ in `over` only."""
    import numpy as np

    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    chosen = re.findall(r"'([^']+)'", over)
    ids = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    index = tuple(slice(None) if name in chosen else 0 for name in sizes)
    return [int(x) for x in ids[index].ravel()]


def _turns(condition: list[str]) -> int:
    """Return the iterations of a loop from 0 in steps of 1."""
    found = [int(number) for line in condition for number in _CONSTANT.findall(line)]
    return max(found, default=1)


def _named(line: str, key: str) -> list[str]:
    found = re.search(rf"\b{key}=(?:\{{([^}}]*)\}}|%?([\w.\-]+))", line)
    if found is None:
        return [""] if key in ("condition", "body") else []
    return [name.strip().lstrip("%") for name in (found[1] or found[2]).split(",")]


def _computations(text: str) -> dict[str, tuple[bool, list[str]]]:
    """Return name -> (is the entry, lines)."""
    found: dict[str, tuple[bool, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            lines = []
            found[head[1]] = (line.startswith("ENTRY"), lines)
        elif line.startswith("  "):
            lines.append(line)
    return found


def _bytes(dtype: str, dims: str) -> int:
    size = 1 if dtype.startswith("f8") else _BYTES.get(dtype, 4)
    return size * math.prod(int(n) for n in dims.split(",") if n)
