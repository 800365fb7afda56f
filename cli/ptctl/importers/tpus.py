"""TPUs as GKE names them: machine types, node labels and topologies."""

import math
import re

from ptapi.accelerators.table import Generation, table
from ptctl.errors import InputError
from ptctl.importers.draft import Draft


def put_machine(draft: Draft, machine: str, topology: str | None) -> bool:
    """Write the TPUs of a machine type (`ct5p-hightpu-4t`) and a topology; False if it is no TPU machine."""
    for facts in _tpus():
        chips = next((one["chips"] for one in facts["machines"] if one["type"] == machine), None)
        if chips is not None:
            return _put(draft, facts["names"][0], facts["coresPerChip"], topology, chips, machine)
    return False


def put_labels(draft: Draft, labels: dict[str, str], chips: int | None) -> bool:
    """Write the TPUs of a pod's node selector; False if it has none."""
    label = labels.get("cloud.google.com/gke-tpu-accelerator")
    for facts in _tpus():
        if facts["gkeAccelerator"] == label:
            topology = labels.get("cloud.google.com/gke-tpu-topology")
            return _put(draft, facts["names"][0], facts["coresPerChip"], topology, chips, label)
    if label is not None:
        raise InputError(f"cloud.google.com/gke-tpu-accelerator: {label}: accepted: "
                         + ", ".join(facts["gkeAccelerator"] for facts in _tpus()))  # fmt: skip
    return False


def _tpus() -> list[Generation]:
    return [facts for facts in table().values() if facts["kind"] == "tpu"]


def _put(draft: Draft, family: str, cores: int, topology: str | None, chips: int | None, origin: str) -> bool:
    if topology is None and chips is None:
        raise InputError(f"{origin}: no topology; accepted: with a topology, such as 4x4x4")
    if topology and not re.fullmatch(r"\d+(x\d+){1,2}", topology):
        raise InputError(f"topology: {topology}; accepted: such as 4x4 or 4x4x4")
    count = math.prod(map(int, topology.split("x"))) if topology else chips or 0
    draft.put("spec.accelerator.type", f"{family}-{count * cores}", origin)
    if topology:
        draft.put("spec.accelerator.topology", topology, origin)
    return True
