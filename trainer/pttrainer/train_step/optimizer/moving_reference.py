"""The reference model that follows the policy (TR-DPO's soft and hard updates, arXiv 2404.09656).

    reference ← reference + α · (policy − reference)      after every τ-th step of the run

in float32, kept in the weights' number format. The reference is part of the train state, hence of checkpoints. Steps
that were skipped count, as they do for schedules. With α = 1 the reference becomes the policy (hard). Degenerate case:
weights that are frozen stay what they are, to the bit. Left out: adapters, whose reference is the model without them
and holds nothing that could follow.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from ptapi.spec import Grpo
from pttrainer.models import Params
from pttrainer.models.shapes.structure import split_part, with_part

KEY = "reference"
"""Key of the reference's weights among those that an algorithm reads."""


@dataclass(frozen=True)
class MovingReference:
    """How the reference follows. every: τ, optimizer steps; mixup: α."""

    every: int
    mixup: float

    def updated(self, reference: Params, policy: Params, step: Array) -> Params:
        """Return the reference after a step. step: optimizer steps done, this one included."""

        def mixed(reference: Params, policy: Params) -> Params:
            new: Params = jax.tree.map(self._mixed, reference, policy)
            return new

        moved: Params = lax.cond(step % self.every == 0, mixed, lambda kept, _: kept, reference, policy)
        return moved

    def _mixed(self, reference: Array, policy: Array) -> Array:
        if self.mixup == 1.0:
            return policy
        before, now = reference.astype(jnp.float32), policy.astype(jnp.float32)
        return (before + self.mixup * (now - before)).astype(reference.dtype)


def moving_reference(spec: Grpo | None) -> MovingReference | None:
    """Return how the job's reference follows the policy, if it does."""
    if spec is None or spec.reference_sync is None:
        return None
    return MovingReference(spec.reference_sync.every_steps, spec.reference_sync.mixup)


def with_reference(params: Params, reference: Params | None) -> Params:
    """Return the weights that an algorithm reads: the policy's, and the moving reference's if there is one."""
    return with_part(params, KEY, reference)


def split_reference(params: Params) -> tuple[Params, Params | None]:
    """Split what `with_reference` returned into the policy's weights and the reference's."""
    return split_part(params, KEY)
