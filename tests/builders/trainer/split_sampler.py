"""`python -m pttrainer`, whose samplers cut the weights into a part for each device, as they do on small chips.

CPUs have no memory of their own to be too small, so there each device would have all weights.
"""

import runpy

from ptapi.accelerators import Slice
from pttrainer.models.shapes.structure import ModelStructure
from pttrainer.rollout.disaggregated import placement
from pttrainer.rollout.native.sizes.sampling_time import Rollout
from pttrainer.runtime.distributed import logical_axes


def _cut(model: ModelStructure, slice_: Slice, versions: int, rollout: Rollout | None) -> logical_axes.Shape:
    return (1, 1, slice_.total_devices, 1, 1)


if __name__ == "__main__":
    placement.for_decoding = _cut
    runpy.run_module("pttrainer", run_name="__main__", alter_sys=True)
