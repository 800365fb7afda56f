"""What a TPU's compiler is told before it is loaded."""

import pytest

from pttrainer.runtime.distributed.processes import prepare_environment

SUMS = "--xla_tpu_enable_sparse_core_collective_offload_all_reduce"


@pytest.mark.parametrize("type", ["tpu7x-128", "ironwood-128", "tpu7x-4x4x4"])
def test_sums_stay_off_the_sparse_cores_where_libtpu_cannot_compile_them(type: str) -> None:
    environ: dict[str, str] = {}
    prepare_environment(type, environ)
    assert environ == {"LIBTPU_INIT_ARGS": f"{SUMS}=false"}


def test_a_users_own_flags_have_the_last_word() -> None:
    environ = {"LIBTPU_INIT_ARGS": f"{SUMS}=true --xla_tpu_enable_latency_hiding_scheduler=true"}
    prepare_environment("tpu7x-128", environ)
    assert environ["LIBTPU_INIT_ARGS"].split() == [
        f"{SUMS}=false",
        f"{SUMS}=true",
        "--xla_tpu_enable_latency_hiding_scheduler=true",
    ]


def test_other_generations_need_no_flags() -> None:
    environ: dict[str, str] = {}
    prepare_environment("v6e-16", environ)
    assert environ == {}
