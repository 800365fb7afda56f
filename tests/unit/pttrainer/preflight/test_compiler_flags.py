"""What a TPU's compiler is told before it is loaded, and by whom."""

import jax
import pytest
from tests.builders.trainer.preflight import spec

from ptapi.accelerators import compiler_flags
from pttrainer.models.attention import splash_blocks
from pttrainer.models.attention.splash_blocks import Tile
from pttrainer.preflight.compiler.compile import flags_of
from pttrainer.preflight.shapes.job_shapes import shapes_of
from pttrainer.preflight.shapes.passes import DECODE, PREFILL, TRAIN_STEP
from pttrainer.rollout.native import decode_loop
from pttrainer.runtime.distributed.processes import prepare_environment

SUMS = "--xla_tpu_enable_sparse_core_collective_offload_all_reduce"
GATHERS = "--xla_tpu_enable_async_collective_fusion_fuse_all_gather"
VMEM = "xla_tpu_scoped_vmem_limit_kib"
WINDOWS = "xla_jf_spmd_threshold_for_windowed_einsum_mib"


def init_args(type: str, current: str = "", **fields: object) -> list[str]:
    """Return the words of LIBTPU_INIT_ARGS that a job's trainer sets on these chips."""
    job = spec("tiny", type, batchSize=64, sequenceLength=128)
    job = job.model_copy(update={"accelerator": job.accelerator.model_copy(update=fields)})
    environ = {"LIBTPU_INIT_ARGS": current} if current else {}
    prepare_environment(type, compiler_flags.of_job(job), environ)
    return environ.get("LIBTPU_INIT_ARGS", "").split()


@pytest.mark.parametrize("type", ["tpu7x-128", "ironwood-128", "tpu7x-4x4x4"])
def test_sums_stay_off_the_sparse_cores_where_libtpu_cannot_compile_them(type: str) -> None:
    assert f"{SUMS}=false" in init_args(type)


@pytest.mark.parametrize("type", ["v5p-16", "v6e-16"])
def test_windowed_einsums_are_off_where_they_cost_time(type: str) -> None:
    assert f"--{WINDOWS}=1000000" in init_args(type)


@pytest.mark.parametrize(("type", "is_hidden"), [("v5p-16", True), ("v6e-16", True), ("v5e-16", False)])
def test_gathers_run_inside_products_where_that_was_measured(type: str, is_hidden: bool) -> None:
    assert (f"{GATHERS}=true" in init_args(type)) is is_hidden


@pytest.mark.parametrize(
    ("type", "kib"), [("v5e-16", 49152), ("v5p-16", 49152), ("v6e-16", 98304), ("tpu7x-16", 61440)]
)
def test_products_have_more_of_the_cores_memory_unless_a_job_says_otherwise(type: str, kib: int) -> None:
    assert f"--{VMEM}={kib}" in init_args(type)
    own = [f"--{VMEM}=16384"]
    assert [word for word in init_args(type, xla_flags=own) if VMEM in word] == own


def test_a_compile_for_memory_alone_leaves_out_what_is_slow_unless_a_job_names_it() -> None:
    job = spec("tiny", "v6e-16", batchSize=64, sequenceLength=128)
    whole, fast = compiler_flags.of_job(job), compiler_flags.of_job(job, without_slow=True)
    assert {name: whole[name] for name in whole.keys() - fast.keys()} == {VMEM: "98304"}
    own = job.model_copy(update={"accelerator": job.accelerator.model_copy(update={"xla_flags": [f"--{VMEM}=65536"]})})
    assert compiler_flags.of_job(own, without_slow=True)[VMEM] == "65536"


@pytest.mark.parametrize("type", ["v5e-16", "v5p-16"])
def test_it_leaves_attention_of_wide_heads_the_memory_that_its_tiles_take(type: str) -> None:
    """19.64 MiB, more than the 16 that the compiler gives there by default, as it said of Gemma 3's gradients."""
    job = spec("gemma3-4b", type, batchSize=64, sequenceLength=1024)
    tiles = splash_blocks.tiles_for({"v5e-16": "TPU v5 lite", "v5p-16": "TPU v5"}[type], 256, 1024)
    assert tiles.backward == Tile(1024, 1024)
    assert 19.64 * 1024 < int(compiler_flags.of_job(job, without_slow=True)[VMEM]) < 49152


def test_a_jobs_flags_override_ours_and_its_environment_overrides_both() -> None:
    own = [f"--{WINDOWS}=0", "--xla_tpu_enable_latency_hiding_scheduler=true"]
    ours = [word for word in init_args("v6e-16") if WINDOWS not in word]
    assert init_args("v6e-16", xla_flags=own) == [own[0], *ours, own[1]]
    assert init_args("v6e-16", f"--{WINDOWS}=7", xla_flags=own) == [*ours, own[1], f"--{WINDOWS}=7"]


def test_every_flag_says_why_it_is_there_and_where_it_comes_from() -> None:
    for flag in compiler_flags.TABLE:
        assert flag.reason
        assert flag.source
        assert flag.generations


@pytest.mark.parametrize("flag", compiler_flags.GPU_TABLE, ids=lambda flag: flag.name)
def test_jaxlib_knows_each_flag_of_gpus(flag: compiler_flags.XlaFlag) -> None:
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    lowered.compile(compiler_options=compiler_flags.options({flag.name: flag.value}))
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        lowered.compile(compiler_options={f"{flag.name}_of_nobody": flag.value})


@pytest.mark.parametrize(("type", "count"), [("h100-8", 3), ("b200-16", 3), ("rtx-pro-6000-1", 1)])
def test_gpus_read_their_flags_and_their_memory_from_jaxs_variables(type: str, count: int) -> None:
    environ = {"XLA_FLAGS": "--xla_dump_to=/tmp/dump"}
    job = spec("tiny", type, batchSize=64, sequenceLength=128)
    prepare_environment(type, compiler_flags.of_job(job), environ)
    ours = [f"--{flag.name}={flag.value}" for flag in compiler_flags.GPU_TABLE]
    assert environ["XLA_FLAGS"].split() == [*ours[:count], "--xla_dump_to=/tmp/dump"]
    assert environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.9"
    assert "LIBTPU_INIT_ARGS" not in environ


@pytest.mark.parametrize(
    ("type", "own", "threads"), [("cpu-8", {}, "32"), ("cpu-8", {"NPROC": "9"}, "9"), ("cpu-1", {}, None)]
)
def test_virtual_devices_have_threads_to_spare_for_collectives_that_wait(
    type: str, own: dict[str, str], threads: str | None
) -> None:
    environ = dict(own)
    prepare_environment(type, {}, environ)
    assert environ["XLA_FLAGS"].endswith(f"device_count={type.removeprefix('cpu-')}")
    assert environ.get("NPROC") == threads


def sampler_options(monkeypatch: pytest.MonkeyPatch, kind: str, current: str = "") -> list[str | None]:
    """Return the memory for products that a sampler's two programs name."""
    monkeypatch.setenv("LIBTPU_INIT_ARGS", current)
    return [(decode_loop._options(program, kind) or {}).get(VMEM) for program in ("prefill", "decode")]


@pytest.mark.parametrize(
    ("kind", "kib"),
    [
        ("TPU v5", ["32768", "16384"]),
        ("TPU7x", [None, "32768"]),
        ("TPU v6 lite", [None, None]),
        ("TPU v5 lite", [None, None]),
        ("cpu", [None, None]),
    ],
)
def test_sampling_has_less_of_the_cores_memory_for_products_where_that_is_faster(
    kind: str, kib: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sampler_options(monkeypatch, kind) == kib


def test_sampling_keeps_the_memory_for_products_that_a_job_names(monkeypatch: pytest.MonkeyPatch) -> None:
    of_table, own = (" ".join(init_args("v5p-16", xla_flags=flags)) for flags in ([], [f"--{VMEM}=8192"]))
    assert sampler_options(monkeypatch, "TPU v5", of_table) == ["32768", "16384"]
    assert sampler_options(monkeypatch, "TPU v5", own) == [None, None]


@pytest.mark.parametrize(("own", "sampled"), [([], ["32768", "16384"]), ([f"--{VMEM}=8192"], ["8192", "8192"])])
def test_preflight_compiles_each_program_with_the_flags_that_the_trainer_has(
    own: list[str], sampled: list[str]
) -> None:
    job = spec("qwen3-0.6b", "v5p-8", algorithm="grpo", batchSize=64, sequenceLength=128)
    job = job.model_copy(update={"accelerator": job.accelerator.model_copy(update={"xla_flags": own})})
    of = shapes_of(job)
    assert flags_of(of, TRAIN_STEP)[VMEM] == (own[0].partition("=")[2] if own else "49152")
    assert [flags_of(of, program)[VMEM] for program in (PREFILL, DECODE)] == sampled
    assert VMEM in flags_of(of, DECODE, without_slow=True)
