"""The accelerators table: names, chips, machines, and the traps that other tools fall into."""

import math

import pytest

from ptapi.accelerators import Slice, names, resolve, table
from ptapi.accelerators.slice import Chip
from ptapi.accelerators.table import gpu_sources
from ptapi.errors import SpecError


def refusal(type: str, topology: str | None = None, slices: int = 1) -> str:
    with pytest.raises(SpecError) as caught:
        resolve(type, topology, slices)
    return str(caught.value)


def test_v5p_counts_tensorcores_so_128_are_64_chips_on_16_machines() -> None:
    slice_ = resolve("v5p-128")
    assert (slice_.chips, slice_.tensorcores, slice_.vms, slice_.topology) == (64, 128, 16, "4x4x4")
    assert slice_.machine_type == "ct5p-hightpu-4t"
    assert slice_.gke_accelerator == "tpu-v5p-slice"
    assert slice_.pathways_instance_type == "tpuv5:4x4x4"
    assert slice_.multi_host
    assert slice_.devices == 64
    assert slice_.describe() == "v5p-128 (64 chips)"


def test_v6e_counts_chips() -> None:
    slice_ = resolve("v6e-16")
    assert (slice_.chips, slice_.tensorcores, slice_.vms, slice_.topology) == (16, 16, 4, "4x4")
    assert slice_.describe() == "v6e-16 (16 chips)"


def test_v5p_8_is_four_chips_and_not_eight_as_one_peer_means_it() -> None:
    assert resolve("v5p-8").chips == 4
    assert resolve("v5p-8").describe() == "v5p-8 (4 chips)"


@pytest.mark.parametrize(
    ("alias", "canonical"),
    [
        ("v5e-16", "v5litepod-16"),
        ("ironwood-128", "tpu7x-128"),
        ("v7x-128", "tpu7x-128"),
        ("trillium-16", "v6e-16"),
        ("v5p-4x4x4", "v5p-128"),
        ("v6e-4x4", "v6e-16"),
        ("v5e-2x2", "v5litepod-4"),
    ],
)
def test_aliases_are_one_thing(alias: str, canonical: str) -> None:
    assert resolve(alias) == resolve(canonical)
    assert resolve(alias).name == canonical


def test_one_chip_topology_gets_the_one_chip_machine() -> None:
    assert resolve("v6e-1").machine_type == "ct6e-standard-1t"
    assert resolve("v6e-1").chips_per_vm == 1
    assert resolve("v5e-1").machine_type == "ct5lp-hightpu-1t"
    assert resolve("v5e-1").pathways_instance_type is None
    assert resolve("tpu7x-2").machine_type == "tpu7x-standard-1t"


def test_a_single_machine_needs_no_placement() -> None:
    for name in ("v4-8", "v5p-8", "v5e-4", "v6e-4", "v6e-1", "tpu7x-8"):
        assert not resolve(name).multi_host, name
        assert not resolve(name).requires_workload_policy, name


def test_ironwood_has_two_devices_per_chip_two_containers_per_machine_and_a_workload_policy() -> None:
    slice_ = resolve("tpu7x-128")
    assert (slice_.chips, slice_.devices, slice_.vms) == (64, 128, 16)
    assert slice_.parallel_containers == 2
    assert slice_.requires_workload_policy
    assert resolve("tpu7x-2").parallel_containers == 1


def test_megacore_generations_show_one_device_per_chip() -> None:
    assert resolve("v4-8").devices == 4
    assert resolve("v5p-8").devices == 4


def test_speeds_are_per_chip() -> None:
    slice_ = resolve("v6e-256")
    assert slice_.chip == Chip(
        hbm_gib=32, hbm_gbytes_per_s=1638, peak_bf16_tflops=918, ici_gbytes_per_s=800, dcn_gbits_per_s=100
    )


def test_totals_count_all_slices() -> None:
    slice_ = resolve("v6e-16", slices=4)
    assert (slice_.total_chips, slice_.total_vms, slice_.total_devices) == (64, 16, 64)
    assert slice_.describe() == "4 x v6e-16 (64 chips)"


def test_cpu_is_one_machine_with_virtual_devices() -> None:
    slice_ = resolve("cpu-8", slices=2)
    assert slice_.is_cpu
    assert (slice_.vms, slice_.devices, slice_.total_devices, slice_.multi_host) == (1, 8, 16, False)
    assert resolve("cpu-1").describe() == "cpu-1 (1 virtual device)"


@pytest.mark.parametrize("name", ["cpu-0", "cpu-65", "cpu-", "cpu-x", "cpu-08", "cpu"])
def test_cpu_has_1_to_64_devices(name: str) -> None:
    message = refusal(name)
    assert message.startswith(f"spec.accelerator.type: {name}: cpu-1 to cpu-64")
    assert message.endswith("hint: more devices: more slices")


def test_unknown_size_names_the_nearest_and_their_chips() -> None:
    message = refusal("v5p-9")
    assert "spec.accelerator.type: v5p-9:" in message
    assert "v5p-8 (4 chips), v5p-16 (8 chips)" in message
    assert "TensorCores" in message


def test_nearest_names_keep_the_users_alias() -> None:
    assert "v5e-8 (8 chips), v5e-16 (16 chips)" in refusal("v5e-12")
    assert "ironwood-2 (1 chip), ironwood-8 (4 chips)" in refusal("ironwood-4")


def test_size_beyond_the_largest_names_the_largest() -> None:
    assert "nearest: v6e-256 (256 chips)" in refusal("v6e-512")
    assert "nearest: v5p-12288 (6144 chips)" in refusal("v5p-17920")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("v5-8", "v5p-8 (4 chips)"),
        ("tpu7-8", "tpu7x-2 (1 chip)"),
        ("tpu-v6e-16", "did you mean v6e-16?"),
        ("ironwod-8", "ironwood-2 (1 chip)"),
        ("h800-8", "nearest: h200-8 (8 GPUs), h100-1 (1 GPU)"),
        ("t4", "v4-8 (4 chips)"),
        ("nvidia-l4", "did you mean l4-1"),
        ("a3-megagpu-8g", "did you mean h100-mega-8?"),
        ("h100-3", "nearest: h100-2 (2 GPUs), h100-4 (4 GPUs)"),
        ("rtx-pro-6000", "rtx-pro-6000-1 (1 GPU)"),
        ("v5p", "v5p-8 (4 chips)"),
        ("v5p-abc", "v5p-8 (4 chips)"),
        ("v5p-0128", "v5p-8 (4 chips)"),
    ],
)
def test_unknown_names_get_a_suggestion(wrong: str, expected: str) -> None:
    assert expected in refusal(wrong)


def test_topology_chooses_among_shapes_with_the_same_chips() -> None:
    assert resolve("v5p-512").topology != "4x4x16"
    slice_ = resolve("v5p-512", topology="4x4x16")
    assert (slice_.name, slice_.topology, slice_.chips) == ("v5p-512", "4x4x16", 256)
    assert slice_.pathways_instance_type == "tpuv5:4x4x16"


def test_topology_that_does_not_fit_names_those_that_do() -> None:
    message = refusal("v5p-512", topology="4x4x4")
    assert "spec.accelerator.topology: 4x4x4:" in message
    assert "v5p-512 (256 chips)" in message
    assert "4x8x8, 4x4x16" in message
    assert "accepted: 4x4" in refusal("v6e-16", topology="2x8")
    assert "accepted: 4x4" in refusal("v6e-16", topology="2x2x4")


def test_cubes_ascend_except_on_v4() -> None:
    assert "accepted for its chips: 4x4x8" in refusal("v5p-8x4x4")
    assert resolve("v4-8x4x4").topology == "8x4x4"


def test_v4_takes_the_shapes_that_one_peer_lists_and_another_lacks() -> None:
    assert resolve("v4-512", topology="4x4x16").chips == 256
    assert resolve("v4-4x16x16").chips == 1024
    assert resolve("v4-16x16x16").chips == 4096


def test_shape_and_topology_may_not_disagree() -> None:
    assert "accepted: 4x4x4, or unset" in refusal("v5p-4x4x4", topology="2x4x8")
    assert resolve("v5p-4x4x4", topology="4x4x4").chips == 64


def test_cpu_has_no_topology() -> None:
    assert "cpu-8 has no topology" in refusal("cpu-8", topology="2x4")


@pytest.mark.parametrize("slices", [0, -1, 513])
def test_slices_are_bounded(slices: int) -> None:
    assert "from 1 to 512" in refusal("v6e-16", slices=slices)


def test_every_usual_slice_is_consistent() -> None:
    tpus = [generation for generation, facts in table().items() if facts["kind"] == "tpu"]
    all_slices: list[Slice] = [resolve(name) for generation in tpus for name in names(generation)]
    assert len(all_slices) == 309
    for slice_ in all_slices:
        assert slice_.chips == math.prod(int(dim) for dim in slice_.topology.split("x"))
        assert slice_.vms * slice_.chips_per_vm == slice_.chips
        assert resolve(f"{slice_.name.rpartition('-')[0]}-{slice_.topology}") == slice_
        assert resolve(slice_.name, slice_.topology) == slice_


GPUS = {name: facts for name, facts in table().items() if facts["kind"] == "gpu"}


@pytest.mark.parametrize(
    ("type", "vms", "machine", "label", "fabric"),
    [
        ("h100-1", 1, "a3-highgpu-1g", "nvidia-h100-80gb", ""),
        ("h100-16", 2, "a3-highgpu-8g", "nvidia-h100-80gb", ""),
        ("h100-mega-8", 1, "a3-megagpu-8g", "nvidia-h100-mega-80gb", ""),
        ("h100-mega-80gb-16", 2, "a3-megagpu-8g", "nvidia-h100-mega-80gb", "tcpxo"),
        ("h200-141gb-64", 8, "a3-ultragpu-8g", "nvidia-h200-141gb", "rdma"),
        ("b200-16", 2, "a4-highgpu-8g", "nvidia-b200", "rdma"),
        ("rtx-pro-6000-4", 1, "g4-standard-192", "nvidia-rtx-pro-6000", ""),
        ("l4-2", 1, "g2-standard-24", "nvidia-l4", ""),
        ("a100-40gb-8", 1, "a2-highgpu-8g", "nvidia-tesla-a100", ""),
        ("a100-80gb-1", 1, "a2-ultragpu-1g", "nvidia-a100-80gb", ""),
    ],
)
def test_gpus_are_those_of_machines(type: str, vms: int, machine: str, label: str, fabric: str) -> None:
    slice_ = resolve(type)
    assert (slice_.vms, slice_.machine_type, slice_.gke_accelerator, slice_.fabric) == (vms, machine, label, fabric)
    assert slice_.is_gpu
    assert slice_.resource == "nvidia.com/gpu"
    assert slice_.devices == slice_.chips == int(type.rpartition("-")[2])
    assert not slice_.topology
    assert slice_.pathways_instance_type is None


@pytest.mark.parametrize("generation", GPUS)
def test_every_number_of_gpus_is_a_machine_or_several_of_the_largest(generation: str) -> None:
    machines = {machine["chips"]: machine["type"] for machine in GPUS[generation]["machines"]}
    for name in names(generation):
        slice_ = resolve(name)
        assert slice_.name == name
        assert slice_.vms * slice_.chips_per_vm == slice_.chips
        assert slice_.machine_type == machines.get(slice_.chips, machines[max(machines)])
        assert slice_.host is not None
        assert slice_.chip is not None
        assert slice_.vms == 1 or slice_.chip.dcn_gbits_per_s is not None


@pytest.mark.parametrize("generation", GPUS)
def test_every_figure_of_gpus_has_a_source(generation: str) -> None:
    sources, facts = gpu_sources()[generation], GPUS[generation]
    assert all(sources[figure] for figure in ("machines", "label", "memory", "speed"))
    assert bool(sources["link"]) == (facts["iciGbytesPerSecond"] is not None)
    assert bool(sources["network"]) == (facts["dcnGbitsPerSecond"] is not None)
    assert facts["usableGib"] is not None
    assert facts["usableGib"] < facts["hbmGib"]


def test_gpus_have_no_topology_and_one_slice() -> None:
    assert "h100-8 has no topology" in refusal("h100-8", topology="2x4")
    assert "two of eight" in refusal("h100-8", slices=2)
    assert "nearest: l4-1 (1 GPU)" in refusal("l4-4x4")
