"""Which process of the run this is, from what the operator says."""

import pytest

from pttrainer.runtime.distributed.processes import process_id


def indices(slice_index: int, host: int, hosts: int, per_host: int = 1, in_host: int = 0) -> dict[str, str]:
    variables = {
        "POSTTRAIN_SLICE_INDEX": str(slice_index),
        "POSTTRAIN_HOST_INDEX": str(host),
        "POSTTRAIN_HOSTS_PER_SLICE": str(hosts),
    }
    if per_host > 1:
        variables |= {"POSTTRAIN_PROCESSES_PER_HOST": str(per_host), "POSTTRAIN_PROCESS_IN_HOST": str(in_host)}
    return variables


def test_a_given_number_is_taken() -> None:
    assert process_id({"JAX_PROCESS_ID": "3", **indices(9, 9, 9)}) == 3


@pytest.mark.parametrize(("slices", "hosts", "per_host"), [(2, 4, 1), (1, 4, 2), (3, 2, 2)])
def test_processes_are_numbered_without_gap_and_a_slices_stay_together(slices: int, hosts: int, per_host: int) -> None:
    numbers = [
        process_id(indices(slice_index, host, hosts, per_host, in_host))
        for slice_index in range(slices)
        for host in range(hosts)
        for in_host in range(per_host)
    ]
    assert numbers == list(range(slices * hosts * per_host))


def test_missing_indices_are_an_error() -> None:
    with pytest.raises(KeyError):
        process_id({"POSTTRAIN_SLICE_INDEX": "0"})
