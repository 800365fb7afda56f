"""One accelerator type, resolved: how many chips and VMs a slice has, its machines, its speed."""

from dataclasses import dataclass

from ptapi.accelerators.table import Fabric, Machine, chip_count, name_of, table

TPU_RESOURCE, GPU_RESOURCE = "google.com/tpu", "nvidia.com/gpu"


@dataclass(frozen=True)
class Chip:
    """The published figures of one chip; None: not published."""

    hbm_gib: int
    hbm_gbytes_per_s: int
    peak_bf16_tflops: float
    ici_gbytes_per_s: float | None
    dcn_gbits_per_s: float | None
    peak_fp8_tflops: float | None = None


@dataclass(frozen=True)
class Host:
    """The size of a VM."""

    vcpus: int
    memory_gb: int


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One accelerator type, resolved. Counts are per slice; `total_…` are over all slices of the job.

    The defaults describe devices of a host, which are not sold by the slice. host: None where no source has its size.
    chip: None for virtual devices. platform: JAX's name of it, `cpu`, `tpu` or `gpu`. fabric: of several GPU machines.
    """

    name: str
    generation: str
    slices: int
    topology: str = ""
    chips: int
    tensorcores: int
    vms: int
    chips_per_vm: int
    machine_type: str = ""
    host: Host | None = None
    gke_accelerator: str = ""
    pathways_instance_type: str | None = None
    requires_workload_policy: bool = False
    parallel_containers: int = 1
    jax_devices_per_chip: int = 1
    chip: Chip | None = None
    platform: str = "cpu"
    fabric: Fabric = ""

    @property
    def is_cpu(self) -> bool:
        """Return True if these are virtual devices of a host instead of chips."""
        return self.generation == "cpu"

    @property
    def is_gpu(self) -> bool:
        """Return True if the chips are GPUs."""
        return self.platform == "gpu"

    @property
    def resource(self) -> str:
        """Return the name by which Kubernetes counts the chips; empty for virtual devices."""
        return {"tpu": TPU_RESOURCE, "gpu": GPU_RESOURCE}.get(self.platform, "")

    @property
    def multi_host(self) -> bool:
        """Return True if a slice has several VMs."""
        return self.vms > 1

    @property
    def devices(self) -> int:
        """Return the number of JAX devices of one slice."""
        return self.chips * self.jax_devices_per_chip

    @property
    def total_chips(self) -> int:
        """Return the number of chips of the job."""
        return self.chips * self.slices

    @property
    def total_vms(self) -> int:
        """Return the number of VMs of the job: one pod each, if a VM runs one."""
        return self.vms * self.slices

    @property
    def total_devices(self) -> int:
        """Return the number of JAX devices of the job."""
        return self.devices * self.slices

    def describe(self) -> str:
        """Return the name with its chips, for messages: `v5p-128 (64 chips)`, `2 x v6e-16 (32 chips)`."""
        count = f"{self.name} ({chips_in_words(self.generation, self.total_chips)})"
        return count if self.slices == 1 else f"{self.slices} x {count}"


def chips_in_words(generation: str, chips: int) -> str:
    """Return `64 chips`, `8 GPUs`, `1 virtual device`."""
    is_gpu = generation != "cpu" and table()[generation]["kind"] == "gpu"
    unit = "virtual device" if generation == "cpu" else "GPU" if is_gpu else "chip"
    return f"{chips} {unit}{'' if chips == 1 else 's'}"


def slice_of(generation: str, topology: str, slices: int) -> Slice:
    """Return the slice of a generation with this shape; of GPUs, which have no shape, with so many."""
    facts = table()[generation]
    chips, is_gpu = chip_count(topology), facts["kind"] == "gpu"
    # The machine with exactly the slice's chips, else the one that large slices consist of: `1x1` on a
    # four-chip machine would request four chips of a one-chip slice.
    machine = next((m for m in facts["machines"] if m["chips"] == chips), facts["machines"][-1])
    vms = chips // machine["chips"]
    return Slice(
        name=name_of(generation, topology),
        generation=generation,
        slices=slices,
        topology="" if is_gpu else topology,
        chips=chips,
        tensorcores=0 if is_gpu else chips * facts["coresPerChip"],
        vms=vms,
        chips_per_vm=machine["chips"],
        machine_type=machine["type"],
        host=_host(machine),
        gke_accelerator=facts["gkeAccelerator"],
        pathways_instance_type=f"{machine['pathways']}:{topology}" if machine["pathways"] else None,
        requires_workload_policy=facts["workloadPolicy"] and vms > 1,
        parallel_containers=min(facts["containersPerVm"], machine["chips"]),
        jax_devices_per_chip=facts["jaxDevicesPerChip"],
        chip=Chip(
            hbm_gib=facts["hbmGib"],
            hbm_gbytes_per_s=facts["hbmGbytesPerSecond"],
            peak_bf16_tflops=facts["peakBf16Tflops"],
            ici_gbytes_per_s=facts["iciGbytesPerSecond"],
            dcn_gbits_per_s=facts["dcnGbitsPerSecond"],
            peak_fp8_tflops=facts["peakFp8Tflops"],
        ),
        platform=facts["kind"],
        fabric=facts["fabric"] if vms > 1 else "",
    )


def _host(machine: Machine) -> Host | None:
    vcpus, memory_gb = machine["vcpus"], machine["memoryGb"]
    return None if vcpus is None or memory_gb is None else Host(vcpus, memory_gb)


def host_devices(type: str, devices: int, slices: int) -> Slice:
    """Return the virtual devices of a host, `cpu-N`, as a slice."""
    return Slice(
        name=type,
        generation="cpu",
        slices=slices,
        chips=devices,
        tensorcores=0,
        vms=1,
        chips_per_vm=devices,
    )
