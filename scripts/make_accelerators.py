"""Condense the survey of TPU systems into the table that ships in the wheel.

    python scripts/make_accelerators.py path/to/tpu_systems.json

The survey has one row per slice with much that follows from its shape; the table keeps per-generation facts and
the usual shape of every size. `ptapi.accelerators` computes the rest.
"""

import json
import sys
from pathlib import Path
from typing import Any

from ptapi.accelerators.table import chip_count

TARGET = Path(__file__).parent.parent / "api" / "ptapi" / "accelerators" / "accelerators.json"
CUBE_CHIPS = 64
# XPK's bounds in cubes of 64 chips, but for v5p the vendor's: its largest slice is 16x16x24.
MAX_CHIPS = {"v4": 64 * CUBE_CHIPS, "v5p": 96 * CUBE_CHIPS, "tpu7x": 144 * CUBE_CHIPS, "v5e": 256, "v6e": 256}
# v4 is sold in any order of its dimensions, the others in ascending order only.
ANY_ORDER = {"v4"}
GKE_V5E = "https://cloud.google.com/kubernetes-engine/docs/concepts/tpus#v5e"
# vCPUs and GB of machines that the survey does not know. Nothing was found of v4's, nor of the 1- and 8-chip machines
# of v6e and tpu7x: those have none in the table.
HOSTS = {"ct5lp-hightpu-1t": (24, 48), "ct5lp-hightpu-4t": (112, 192)}
SURVEYED_CHIPS = 4


def machines(generation: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Machine types in use, with the shapes that need one in particular (`1x1` needs the one-chip machine)."""
    in_use = {row["machine_type"]: row["chips_per_vm"] for row in rows if "single host" not in row["device_type"]}
    pathways = {machine["machine_type"]: machine["pathways_version"] for machine in generation["machine_types"]}
    return [
        {"type": name, "chips": chips, "pathways": pathways[name], **host(generation, name, chips)}
        for name, chips in sorted(in_use.items(), key=lambda item: item[1])
    ]


def host(generation: dict[str, Any], machine: str, chips: int) -> dict[str, Any]:
    """vCPUs and memory of a machine, and where they were read; None where nothing says so."""
    vcpus, memory, source = None, None, None
    if machine in HOSTS:
        (vcpus, memory), source = HOSTS[machine], GKE_V5E
    elif chips == SURVEYED_CHIPS and "host_vcpus" in generation:
        vcpus, memory, source = generation["host_vcpus"], generation["host_ram_gb"], generation["sources"][0]
    return {"vcpus": vcpus, "memoryGb": memory, "hostSource": source}


def condense(generation: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One generation of the table."""
    name = generation["generation"]
    topologies = {row["topology"] for row in rows if row["chips"] <= MAX_CHIPS[name]}
    return {
        "names": generation["names"],
        "gkeAccelerator": generation["gke_accelerator"],
        "coresPerChip": generation["tensorcores_per_chip"],
        "jaxDevicesPerChip": generation.get("jax_devices_per_chip", 1),
        "containersPerVm": max(row.get("parallel_containers", 1) for row in rows),
        "workloadPolicy": bool(generation.get("requires_workload_policy")),
        "dims": generation["dims"],
        "anyOrder": name in ANY_ORDER,
        "maxChips": MAX_CHIPS[name],
        "hbmGib": generation["hbm_gib"],
        "hbmGbytesPerSecond": generation["hbm_bw_gbps"],
        "peakBf16Tflops": generation["peak_bf16_tflops"],
        "iciGbytesPerSecond": generation["ici_bidir_gbytes_per_s_per_chip"],
        "dcnGbitsPerSecond": generation["dcn_gbit_per_s_per_chip"],
        "machines": machines(generation, rows),
        "topologies": sorted(topologies, key=chip_count),
    }


def main(source: str) -> None:
    survey = json.loads(Path(source).read_text())
    table = {
        generation["generation"]: condense(
            generation, [row for row in survey["slices"] if row["generation"] == generation["generation"]]
        )
        for generation in survey["generations"]
    }
    lines = (f"  {json.dumps(name)}: {json.dumps(facts, ensure_ascii=False)}" for name, facts in table.items())
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_accelerators.py tpu_systems.json")
    main(sys.argv[1])
