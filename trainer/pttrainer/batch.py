"""What one optimizer step trains on: the only thing that an algorithm hands to the step.

Letters: B rows, T tokens. Entry t of every array speaks about the prediction made at input token t, that is
about `targets_BT[:, t]`, the token that follows. Arrays are the *global* batch in host memory (numpy), equal
on every process; the loop puts each device's part on that device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np


class Prompts(NamedTuple):
    """What rows of a batch continue, computed once for each G of them: row b continues prompt b // G.

    The prompt's last token is not here but at the beginning of each of its rows: its prediction is theirs.
    """

    tokens_PT: Any
    positions_PT: Any
    segment_ids_PT: Any
    """1, and 0 for padding."""


class Images(NamedTuple):
    """The images of rows, at most M of a row: what their tokens are embedded by.

    pixels_BMSSC: of S x S pixels, as the vision tower reads them; where images have sizes of their own, their patches
    [B, M, N, X] (`data.tokenization.image_patches`); zeros where a row has fewer. Rows that follow each other may share
    them: with U sets of pixels for B rows, row b has set b // (B / U). slots_BT: 0 for text, else 1 + the place of the
    token's embedding among those of the row's images, each of which has `config.vision.tokens` places; where prompts
    are shared, of the prompts. sets_B: the set of each row, where that is another one.
    """

    pixels_BMSSC: Any
    slots_BT: Any
    sets_B: Any = None


class Batch(NamedTuple):
    """One batch of rows, as arrays.

    mask_BT: 1 where the prediction is trained. weight_BT: its share of the loss (`data.loss_weights`). ref_sums_B1: the
    reference's log-prob of all of a row's trained tokens together. teacher_…_BTK: the K tokens that a teacher finds
    most likely in the target's place, and their log-probs.
    """

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
    desirable_B1: Any = None
    """1 for a row whose answer is labelled good, else 0; and the KL that kto compares it with, equal in all rows."""
    kl_B1: Any = None
    teacher_ids_BTK: Any = None
    teacher_logps_BTK: Any = None
    values_BT: Any = None
    """What the critic expected before the batch's first update, and what it should have: its targets."""
    returns_BT: Any = None
    teacher_tokens_BU: Any = None
    """What a self-teacher reads, which is told more, with positions and segments; and where in its row of U tokens it
    predicts what entry t predicts."""
    teacher_positions_BU: Any = None
    teacher_segment_ids_BU: Any = None
    teacher_slots_BT: Any = None
    prompts: Prompts | None = None
    """Set where rows hold completions alone: at most one example each, whose positions go on after the prompt's."""
    routes_BTLk: Any = None
    """The k experts that the sampler chose for each input token, in the L layers that have some; or
    `Experts.unknown_number`."""
    images: Images | None = None
    entropy_bonus_BT: Any = None
    """What a token's entropy takes off its loss, per nat; and N / K for the K of N tokens chosen by their entropy, else
    0, set inside the step where micro-batches must agree on it."""
    chosen_BT: Any = None
    divergence_share_BT: Any = None
    """What a token's divergence adds to its loss, per nat, where that is not its loss alone."""

    @property
    def samples(self) -> int:
        """Rows of a prompt, where rows share prompts or images."""
        shared = self.prompts if self.prompts is not None else self.images
        return 1 if shared is None else int(self.tokens_BT.shape[0] // shared[0].shape[0])

    def split(self, parts: int) -> Batch:
        """Return the batch as [parts, rows / parts, …].

        A part has every parts-th row, so that it is spread over all devices without moving rows between them; rows of
        one prompt stay together.
        """

        def groups(x: Any, size: int) -> Any:
            many = x.shape[0] // (parts * size)
            return x.reshape(many, parts, size, *x.shape[1:]).swapaxes(0, 1).reshape(parts, many * size, *x.shape[1:])

        rows = jax.tree.map(partial(groups, size=self.samples), self._replace(prompts=None, images=None))
        prompts: Any = jax.tree.map(partial(groups, size=1), self.prompts)
        images = self.images
        if images is not None:
            rows_of_set = images.slots_BT.shape[0] // images.pixels_BMSSC.shape[0]
            images = Images(groups(images.pixels_BMSSC, 1), groups(images.slots_BT, rows_of_set))
        whole: Batch = rows._replace(prompts=prompts, images=images)
        return whole

    def by_parts(self, parts: int, function: Callable[[Batch], Any]) -> Any:
        """Return the arrays that a function of rows returns, [B, …], computed part after part (`split`)."""
        if parts == 1:
            return function(self)
        pieces = self.split(parts)
        done = [function(jax.tree.map(lambda x, part=part: x[part], pieces)) for part in range(parts)]
        return jax.tree.map(partial(_joined, size=self.samples), *done)


def _joined(*parts: Any, size: int) -> Any:
    """Invert `Batch.split` for one array; size: rows that stayed together."""
    stacked = np.stack(parts)
    P, rows, *rest = stacked.shape
    return stacked.reshape(P, rows // size, size, *rest).swapaxes(0, 1).reshape(P * rows, *rest)
