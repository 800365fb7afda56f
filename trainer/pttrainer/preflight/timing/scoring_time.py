"""Minimal time of the passes that score a step's rollout before its first update: forward alone, over all rows.

One of the policy, where a batch has several updates or a critic reads it; one of the reference model, where the
objective stays near it; one of a critic that is a model of its own. Left out: reward models, and DPO's and KTO's
reference, which is scored as the data are read.
"""

from collections.abc import Iterator, Sequence

from pttrainer.models import ModelConfig
from pttrainer.models.shapes import flops, parameters
from pttrainer.preflight.shapes.job_shapes import JobShapes
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.timing.roofline import Roofline, roofline


def scoring(of: JobShapes, traffic: Sequence[Traffic] | None) -> Roofline | None:
    """Return the time of all passes of one batch; None if it has none. traffic: of one compiled pass, per device."""
    configs = list(_passes(of))
    if not configs:
        return None
    rows, tokens = of.spec.training.batch_size, of.spec.training.sequence_length
    forward = sum(flops.row_flops(config, None, tokens) / 3 for config in configs)
    weights = sum(2 * parameters.count(config) for config in configs) / of.axis("tensor") / of.axis("expert")
    sent = None if traffic is None else [one.times(len(configs)) for one in traffic]
    return roofline(of.training_slice, rows * forward, weights, sent)


def _passes(of: JobShapes) -> Iterator[ModelConfig]:
    """Yield the model of each pass."""
    algorithm, has_reference = of.spec.algorithm, of.spec.algorithm.reference_coefficient > 0
    if algorithm.grpo is None and algorithm.ppo is None:
        return
    if has_reference:
        yield of.config
    own = None if of.critic is None or of.critic.structure is None else of.critic.structure.config
    if own is not None:
        yield own
    # A critic that is a head on the policy reads its hidden states.
    if algorithm.updates_per_batch > 1 or (algorithm.ppo is not None and (has_reference or own is None)):
        yield of.config
