"""The accelerators, and the facts of one slice of each: chips, VMs, machine type, shape, speed.

Numbers have the meaning of GKE and XPK: `v5p-128` counts TensorCores (64 chips), `v6e-16` counts chips. Messages
always show the chips with the name, because other tools use the same string for other hardware. `h100-8` counts GPUs:
those of one machine, or of several whole ones. `cpu-N` is one VM with N virtual devices, for laptops and CI. Left out:
sub-slices, super-slices, single-VM forms of 8 chips, TPU v2, v3 and v8; GPU machines with Arm processors (a4x), T4,
V100.

The one idea: facts per generation and the usual shapes are data (`ptapi.accelerators.table`); everything about one
slice follows from its generation and its shape.
"""

from ptapi.accelerators.slice import Slice
from ptapi.accelerators.table import Generation, names, sizes, table
from ptapi.accelerators.type_names import FAMILIES, TYPE_FIELD, near_name, resolve

__all__ = ["FAMILIES", "TYPE_FIELD", "Generation", "Slice", "names", "near_name", "resolve", "sizes", "table"]
