"""What one optimizer step trains on: the only thing that an algorithm hands to the step.

Letters: B rows, T tokens. Entry t of every array speaks about the prediction made at input token t, that is
about `targets_BT[:, t]`, the token that follows. Arrays are the *global* batch in host memory (numpy), equal
on every process; the loop puts each device's part on that device.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Batch(NamedTuple):
    """mask_BT: 1 where the prediction is trained. weight_BT: its share of the loss (see `reduce`).

    ref_sums_B1: the reference's log-prob of all of a row's trained tokens together. teacher_…_BTK: K
    tokens that a teacher finds likely in the target's place, and their log-probs."""

    tokens_BT: Any
    targets_BT: Any
    positions_BT: Any
    segment_ids_BT: Any
    mask_BT: Any
    weight_BT: Any
    advantages_BT: Any = None
    old_logps_BT: Any = None
    sampler_logps_BT: Any = None
    ref_logps_BT: Any = None
    row_BT: Any = None
    """The number of the row in the whole batch; set inside the step where something is drawn per row."""
    ref_sums_B1: Any = None
    teacher_ids_BTK: Any = None
    teacher_logps_BTK: Any = None
