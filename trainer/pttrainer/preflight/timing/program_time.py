"""The time of a compiled TPU program by the compiler's own estimates: a walk through its schedule.

An instruction takes its `estimated_cycles`; a synchronous collective takes its bytes over the links; an asynchronous
one runs beside what stands between its start and its done, and only the rest is waited for. A loop is its body times
its iterations, a conditional its longest branch. For Pallas kernels the compiler estimates nothing; those of splash
attention take what their tiles take (`splash_table`), grouped products what a large product takes (`grouped_kernels`).
Left out: other kernels, and stalls of copies between memories.
Nothing is calibrated against a device: compare programs of one compiler for one chip with each other, never an estimate
with a measured second.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from ptapi.accelerators import Slice
from pttrainer.models.attention import splash_blocks
from pttrainer.models.config import Chunk
from pttrainer.preflight.shapes.job_shapes import JobShapes
from pttrainer.preflight.timing import grouped_kernels
from pttrainer.preflight.timing.collectives import BRANCHES, KINDS, computations, exchanged, iterations, named
from pttrainer.runtime.tpu_tiles import filled_up

CLOCK_HZ = {"v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "tpu7x": 2.2e9}
"""Cycles per second of a core; those of v6e and tpu7x are inferred, from the published rate and 2**19 FLOPs a cycle."""
LINK_BYTES_PER_S = 9e10
SPLASH: dict[splash_blocks.Kernel, str] = {
    "forward": "splash_mha_fwd", "fused": "splash_mha_dkv", "dkv": "splash_mha_dkv", "dq": "splash_mha_dq",
}  # fmt: skip
"""Kernel -> the beginning of its instructions' names."""
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\((.*)$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ARRAY = re.compile(r"\[(\d+(?:,\d+){2,})\]")
"""Axes of an array of a kernel's result with heads, tokens and numbers of a head; one row has no axis of rows."""
HEADS_TOKENS_NUMBERS = 3
_UNKNOWN_CYCLES = 2**63 - 1


class Instruction(NamedTuple):
    """One line of the schedule. cycles: None where the compiler estimates nothing."""

    name: str
    shape: str
    op: str
    rest: str
    cycles: int | None

    @property
    def kind(self) -> str:
        """Return its name without the suffix of an asynchronous half."""
        return self.op.removesuffix("-start").removesuffix("-done")

    @property
    def operands(self) -> list[str]:
        """Return the names of its operands."""
        return re.findall(r"%([\w.\-]+)", self.rest.split("), ")[0])


def step_seconds(text: str, of: JobShapes) -> float | None:
    """Return the seconds of a job's compiled train step; None for a generation whose clock is not known."""
    generation = of.slice.generation
    if generation not in CLOCK_HZ:
        return None
    return ProgramTime(text, generation, links(of.slice), row_seconds(of)).seconds


def links(slice_: Slice) -> float:
    """Return the links that carry a gather's traffic of a device at once: one way along each side of its slice.

    Devices of one chip share its links.
    """
    sides = sum(int(side) > 1 for side in slice_.topology.split("x"))
    return max(1, sides) / slice_.jax_devices_per_chip


def row_seconds(of: JobShapes, backward: splash_blocks.Backward | None = None) -> dict[str, float]:
    """Return the seconds of each splash kernel for a row, averaged over layers with a window and without.

    By the beginning of its name; of a group of heads, where each has a kernel of its own. The cores of a device (two of
    a v5p) share its heads, and the devices of `sequence` a row's queries, evenly. backward: of a program that does
    not choose its kernels as ours.
    """
    config, length, cores = of.config, of.spec.training.sequence_length, of.slice.tensorcores // of.slice.devices
    kinds = [(group.config, group.config.is_local(place)) for group, place in config.layer_places]
    seconds: defaultdict[str, float] = defaultdict(float)
    kinds_of_heads = Counter((one.window if is_local else None, one.head_dim) for one, is_local in kinds)
    for (window, head_dim), layers in kinds_of_heads.items():
        tokens = window.size if isinstance(window, Chunk) else window
        tokens = None if tokens is None or tokens >= length else tokens
        cycles = splash_blocks.head_cycles(of.slice.generation, head_dim, length, tokens, backward)
        heads, kv_heads = config.heads // of.axis("tensor"), max(1, config.kv_heads // of.axis("tensor"))
        tiles = splash_blocks.tiles_of(of.slice.generation, head_dim, filled_up(length), tokens)
        groups = 1 if backward else splash_blocks.head_groups(tiles, heads, kv_heads)
        for kernel, each in cycles.items():
            of_device = each * heads / groups / of.axis("sequence") / cores
            seconds[SPLASH[kernel]] += of_device * layers / config.layers / CLOCK_HZ[of.slice.generation]
    return dict(seconds)


class ProgramTime:
    """Seconds of a program's text for chips of this generation, joined by so many links that carry traffic at once.

    kernels: seconds of Pallas kernels for a row, by the beginning of their names. turns: iterations of its loops, if
    they do not say. unknown: instructions without an estimate, which took no time here, and how often they run.
    """

    def __init__(
        self,
        text: str,
        generation: str,
        links: float,
        kernels: Mapping[str, float] | None = None,
        turns: int | None = None,
    ) -> None:
        self._lines = computations(text)
        self._bodies = {name: _instructions(lines) for name, (_, lines) in self._lines.items()}
        self._generation, self._clock, self._link = generation, CLOCK_HZ[generation], links * LINK_BYTES_PER_S
        self._kernels, self._turns = kernels or {}, turns
        self.unknown: Counter[str] = Counter()
        self.by_kind: defaultdict[str, float] = defaultdict(float)

    @cached_property
    def seconds(self) -> float:
        """Return the seconds of one run; fills `by_kind`."""
        return self._run(next(name for name, (is_entry, _) in self._lines.items() if is_entry), 1)

    def _run(self, computation: str, times: int) -> float:
        """Return the seconds of one run of a computation; add those of all its runs to the sums."""
        now = link_free = 0.0
        arrivals: dict[str, tuple[float, str]] = {}
        for one in self._bodies.get(computation, []):
            source = one.operands[0] if one.operands else ""
            if one.op == "while":
                condition, body = (named(one.rest, key)[0] for key in ("condition", "body"))
                count = self._turns or iterations(self._lines[condition][1], self._lines[body][1])
                now += count * self._run(body, times * count)
            elif one.op == "conditional":
                branches = [branch for key in BRANCHES for branch in named(one.rest, key)]
                now += self._run(max(branches, key=self._cycles_in), times)
            elif one.op == "call":
                now += sum(self._run(name, times) for name in [*named(one.rest, "to_apply"), *named(one.rest, "calls")])
            elif source in arrivals and one.op.endswith("-done"):
                now = self._wait(now, *arrivals.pop(source), times)
            elif (sent := self._sent(one)) and one.op.endswith("-start"):
                link_free = max(now, link_free) + sent.total() / self._link
                arrivals[one.name] = link_free, next(iter(sent))
            elif one.op in KINDS:
                now = self._wait(now, now + sent.total() / self._link, one.kind, times)
            elif one.cycles is None:
                now += sum(self._kernel(kernel, times) for kernel in self._kernels_of(one))
            else:
                now += one.cycles / self._clock
                self.by_kind[self._kind(one)] += times * one.cycles / self._clock
        return now

    def _wait(self, now: float, until: float, kind: str, times: int) -> float:
        self.by_kind[f"waiting for {kind}"] += times * max(0.0, until - now)
        return max(now, until)

    def _kernels_of(self, one: Instruction) -> list[Instruction]:
        """Return a kernel, or one that is fused with the slice of an array that its result becomes."""
        if one.op == "fusion":
            return [inner for name in named(one.rest, "calls") for inner in self._bodies.get(name, [])
                    if inner.op == "custom-call"]  # fmt: skip
        return [one] if one.op == "custom-call" else []

    def _kernel(self, one: Instruction, times: int) -> float:
        if one.name.startswith(grouped_kernels.NAMES):
            seconds = grouped_kernels.cycles(one.shape, one.rest, self._generation) / self._clock
            self.by_kind["grouped products"] += times * seconds
            return seconds
        name = next((name for name in self._kernels if one.name.startswith(name)), None)
        if name is None:
            self.unknown[one.name.rstrip(".0123456789")] += times
            return 0.0
        *_, (rows, *of_row) = (array.split(",") for array in _ARRAY.findall(one.shape))
        seconds = (int(rows) if len(of_row) == HEADS_TOKENS_NUMBERS else 1) * self._kernels[name]
        self.by_kind["attention's kernels"] += times * seconds
        return seconds

    def _sent(self, one: Instruction) -> Counter[str]:
        """Return the bytes of a collective, or of those that an asynchronous computation or call wraps, by kind."""
        if one.kind in KINDS:
            bytes_, _ = exchanged(one.shape, one.kind, one.rest, _ONE_SLICE, is_start=one.op.endswith("-start"))
            return +Counter({one.kind: bytes_})
        names = [*named(one.rest, "calls"), *(named(one.rest, "to_apply") if one.op == "call-start" else ())]
        return sum((self._sent(inner) for name in names for inner in self._bodies.get(name, [])), Counter[str]())

    def _cycles_in(self, computation: str) -> int:
        return sum(one.cycles or 0 for one in self._bodies.get(computation, []))

    def _kind(self, one: Instruction) -> str:
        ops = self._ops(one)
        is_product = bool(ops & {"convolution", "dot", "ragged-dot"})
        if any(kind in ops for kind in KINDS):
            return "products with a collective inside" if is_product else "collectives in fusions"
        if is_product:
            return "products"
        return "copies" if ops <= _MOVES else "other"

    def _ops(self, one: Instruction) -> set[str]:
        inner = [self._ops(each) for name in named(one.rest, "calls") for each in self._bodies.get(name, [])]
        return {one.kind}.union(*inner) - {"fusion"}


_ONE_SLICE = 2**31
_MOVES = {"copy", "transpose", "reshape", "parameter", "bitcast", "tuple", "get-tuple-element", "constant"}


def _instructions(lines: list[str]) -> list[Instruction]:
    instructions = []
    for line in lines:
        parts = _INSTRUCTION.match(line)
        if parts is not None:
            cycles = _CYCLES.search(line)
            known = None if cycles is None or int(cycles[1]) == _UNKNOWN_CYCLES else int(cycles[1])
            instructions.append(Instruction(parts[1], parts[2], parts[3], parts[4], known))
    return instructions
