"""What a TPU's compiler is told before it is loaded, and by whom."""

import pytest
from tests.builders.trainer.preflight import spec

from ptapi.accelerators import compiler_flags
from pttrainer.runtime.distributed.processes import prepare_environment

SUMS = "--xla_tpu_enable_sparse_core_collective_offload_all_reduce"
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
    assert init_args(type) == [f"--{WINDOWS}=1000000"]


def test_a_jobs_flags_override_ours_and_its_environment_overrides_both() -> None:
    own = [f"--{WINDOWS}=0", "--xla_tpu_scoped_vmem_limit_kib=98304"]
    assert init_args("v6e-16", xla_flags=own) == own
    assert init_args("v6e-16", f"--{WINDOWS}=7", xla_flags=own) == [own[1], f"--{WINDOWS}=7"]


def test_every_flag_says_why_it_is_there_and_where_it_comes_from() -> None:
    for flag in compiler_flags.TABLE:
        assert flag.reason
        assert flag.source
        assert flag.generations
