"""XLA flags of our programs on TPUs, by generation: each with its reason and its source.

Given to trainer pods and Pathways' proxy, and to preflight, which compiles with the same. A job overrides them and adds
others (`spec.accelerator.xlaFlags`). Left out: flags without a gain that the compiler's own estimates show
(`benchmarks/tpu/tpu_programs.py`), and programs of other runtimes, which know their own.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ptapi.accelerators import resolve
from ptapi.spec import PostTrainJobSpec

LIBTPU_INIT_ARGS = "LIBTPU_INIT_ARGS"
"""The variable in which libtpu reads its flags, once, when it is loaded."""


class XlaFlag(NamedTuple):
    """A flag and why we set it. required: the compiler fails on our programs without it."""

    name: str
    value: str
    generations: frozenset[str]
    reason: str
    source: str
    required: bool = False


TABLE: tuple[XlaFlag, ...] = (
    XlaFlag(
        "xla_jf_spmd_threshold_for_windowed_einsum_mib",
        "1000000",
        frozenset({"v5p", "v6e"}),
        "never replace a gather and its product by a loop of small products (windowed einsum): slices of 256 to 512 "
        "leave the matrix unit idle",
        "MaxText, benchmarks/xla_flags_library.py: DISABLE_COLLECTIVE_MATMUL, part of its recipes for v6e",
    ),
    *(
        XlaFlag(
            name,
            "true",
            frozenset({"v5p", "v6e"}),
            "gather a layer's weights inside the products before them: without it every product waits for its gather",
            "MaxText, benchmarks/xla_flags_library.py: CF_FOR_ALL_GATHER, part of its recipes",
        )
        for name in (
            "xla_tpu_enable_async_collective_fusion",
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
            "xla_tpu_enable_async_collective_fusion_multiple_steps",
            "xla_tpu_overlap_compute_collective_tc",
            "xla_enable_async_all_gather",
        )
    ),
    XlaFlag(
        "xla_tpu_enable_sparse_core_collective_offload_all_reduce",
        "false",
        frozenset({"tpu7x"}),
        "libtpu 0.0.42 aborts on our train steps where sparse cores may sum over devices "
        "(offload_collective_strategies.cc: Check failed: std::abs(inc) < core_count())",
        "seen here: docs/reference/preflight.md",
        required=True,
    ),
)


def flags(generation: str, own: Iterable[str] = (), *, required_only: bool = False) -> dict[str, str]:
    """Return a generation's flags, then a job's own (`--name=value`), which override them; name -> value."""
    ours = {
        flag.name: flag.value
        for flag in TABLE
        if generation in flag.generations and (flag.required or not required_only)
    }
    return ours | dict(_named(flag) for flag in own)


def of_job(spec: PostTrainJobSpec) -> dict[str, str]:
    """Return the flags of a job's programs: of programs that are not ours, those that the job names alone."""
    own = spec.accelerator.xla_flags
    if not spec.runtime.is_native or spec.pathways.headless:
        return dict(_named(flag) for flag in own)
    return flags(resolve(spec.accelerator.type).generation, own)


def arguments(flags: Mapping[str, str]) -> list[str]:
    """Return flags as command-line arguments: `--name=value`."""
    return [f"--{name}={value}" for name, value in flags.items()]


def init_args(flags: Mapping[str, str], current: str = "") -> str:
    """Return LIBTPU_INIT_ARGS with these flags; current: its value in the job, whose flags have the last word."""
    named = {word.partition("=")[0].removeprefix("--") for word in current.split()}
    return " ".join([*arguments({name: flags[name] for name in flags if name not in named}), *current.split()])


def _named(flag: str) -> tuple[str, str]:
    name, _, value = flag.removeprefix("--").partition("=")
    return name, value
