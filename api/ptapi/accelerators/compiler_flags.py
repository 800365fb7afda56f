"""XLA flags of our programs on TPUs and GPUs, by generation: each with its reason and its source.

Given to trainer pods and Pathways' proxy, and to preflight, which compiles with the same. A job overrides them and adds
others (`spec.accelerator.xlaFlags`). Those of GPUs are what NVIDIA and JAX recommend, none measured by us. Left out for
TPUs: flags without a gain that the compiler's own estimates show
(`benchmarks/tpu/tpu_programs.py`), and programs of other runtimes, which know their own.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from ptapi.accelerators import resolve
from ptapi.spec import PostTrainJobSpec

LIBTPU_INIT_ARGS = "LIBTPU_INIT_ARGS"
"""The variable in which libtpu reads its flags, once, when it is loaded."""
XLA_FLAGS = "XLA_FLAGS"
"""The variable in which jaxlib and its CUDA plugin read theirs; an unknown one ends the process."""

VMEM = "xla_tpu_scoped_vmem_limit_kib"


class XlaFlag(NamedTuple):
    """A flag and why we set it.

    required: the compiler fails on our programs without it. quick: the value with which it takes less long, for the
    same memory; empty where that is without the flag, None where it is `value`.
    """

    name: str
    value: str
    generations: frozenset[str]
    reason: str
    source: str
    required: bool = False
    quick: str | None = None


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
    *(
        XlaFlag(
            VMEM,
            kib,
            frozenset(generations),
            "give a product more of the core's own memory (VMEM), so that its operands are read fewer times; the "
            "compiler takes up to three times as long",
            f"{recipes}; what it gains: docs/findings/compilers.md",
            quick=quick,
        )
        for kib, quick, generations, recipes in (
            (
                "98304",
                "",
                {"v6e"},
                "MaxText, benchmarks/xla_flags_library.py: DENSE_VMEM_LIMIT_FLAG, part of its recipes",
            ),
            # By default 16384 there, and splash attention's tiles for heads of 256 take 20112.
            ("49152", "24576", {"v5e", "v5p"}, "ours; MaxText's recipes have 98304"),
            ("61440", "", {"tpu7x"}, "tpu-recipes, training/ironwood/llama3.1-70b"),
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

SamplerProgram = Literal["prefill", "decode"]
"""The programs of a sampler in which a model runs."""
SAMPLING_KIB: Mapping[tuple[SamplerProgram, str], str] = {
    ("prefill", "v5p"): "32768",
    ("decode", "v5p"): "16384",
    ("decode", "tpu7x"): "32768",
}
"""`VMEM` of programs that are faster with less than the table's: few rows need little, and weights are copied ahead to
what is left. What it gains: docs/findings/compilers.md."""

_TOOLBOX = "NVIDIA/JAX-Toolbox, docs/GPU_performance.md"
_LINKED = frozenset({"h100", "h100-mega", "h200", "b200", "a100", "a100-80gb"})
GPU_TABLE: tuple[XlaFlag, ...] = (
    XlaFlag(
        "xla_gpu_enable_latency_hiding_scheduler",
        "true",
        _LINKED | {"rtx-pro-6000", "l4"},
        "start gathers and sums before their results are needed, so that they overlap products",
        f"{_TOOLBOX}; JAX, docs/gpu_performance_tips.md",
    ),
    *(
        XlaFlag(
            f"xla_gpu_enable_pipelined_{collective}",
            "true",
            _LINKED,
            "move a layer's gathers and scatters of weights into the loop step before it: fsdp waits less",
            f"{_TOOLBOX}: optimisations for FSDP",
        )
        for collective in ("all_gather", "reduce_scatter")
    ),
)
"""Known to jaxlib 0.10.2, which a test asks; without effect on one GPU."""


def variable(platform: str) -> str:
    """Return the variable that carries the flags on this platform (`tpu`, `gpu`)."""
    return XLA_FLAGS if platform == "gpu" else LIBTPU_INIT_ARGS


def flags(
    generation: str, own: Iterable[str] = (), *, required_only: bool = False, without_slow: bool = False
) -> dict[str, str]:
    """Return a generation's flags, then a job's own (`--name=value`), which override them; name -> value."""
    ours = {
        flag.name: value
        for flag in (*TABLE, *GPU_TABLE)
        if generation in flag.generations and (flag.required or not required_only)
        if (value := flag.quick if without_slow and flag.quick is not None else flag.value)
    }
    return ours | dict(_named(flag) for flag in own)


def of_job(spec: PostTrainJobSpec, *, without_slow: bool = False) -> dict[str, str]:
    """Return the flags of a job's programs: of programs that are not ours, those that the job names alone.

    without_slow: for a compile that only the memory is read from.
    """
    own = spec.accelerator.xla_flags
    if not spec.runtime.is_native or spec.pathways.headless:
        return dict(_named(flag) for flag in own)
    return flags(resolve(spec.accelerator.type).generation, own, without_slow=without_slow)


def of_sampling(program: SamplerProgram, generation: str, current: Mapping[str, str]) -> dict[str, str]:
    """Return the flags of one of the sampler's programs where they are not its generation's.

    current: what the compiler has; a value there that is not the table's is the user's own, and stays.
    """
    kib = SAMPLING_KIB.get((program, generation))
    ours = flags(generation).get(VMEM)
    return {VMEM: kib} if kib is not None and current.get(VMEM, ours) == ours else {}


def arguments(flags: Mapping[str, str]) -> list[str]:
    """Return flags as command-line arguments: `--name=value`."""
    return [f"--{name}={value}" for name, value in flags.items()]


def options(flags: Mapping[str, str]) -> dict[str, str | bool]:
    """Return flags as options of one compile; compilers other than a TPU's take booleans, and not their names."""
    words = {"true": True, "false": False}
    return {name: words.get(value, value) for name, value in flags.items()}


def named(text: str) -> dict[str, str]:
    """Return the flags of a variable's text; name -> value."""
    return dict(map(_named, text.split()))


def init_args(flags: Mapping[str, str], current: str = "") -> str:
    """Return a variable's text with these flags; current: its value in the job, whose flags have the last word."""
    theirs = named(current)
    ours = {name: value for name, value in flags.items() if name not in theirs}
    return " ".join([*arguments(ours), *current.split()])


def _named(flag: str) -> tuple[str, str]:
    name, _, value = flag.removeprefix("--").partition("=")
    return name, value
