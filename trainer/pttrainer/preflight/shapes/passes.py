"""The programs that a job runs on its chips, by name, and the rows of a scoring pass. `programs` lowers them.

train step       one optimizer step
scoring pass     log-probs without gradient: of the reference model, or of the policy before its first update; with
                 a critic, its values too
transfer         of weights to other devices, if others sample: two programs
rollout          weights, prompts, tokens: three programs one after the other; the last two if others sample
"""

import math

from pttrainer.losses.loss_traits import WITHOUT_REFERENCE
from pttrainer.preflight.shapes import rollout_shapes
from pttrainer.preflight.shapes.job_shapes import JobShapes

TRAIN_STEP = "train step"
SCORING = "scoring pass"
TRANSFER = "transfer"
CUT, PUT = f"{TRANSFER}/cut", f"{TRANSFER}/put"
ROLLOUT = "rollout"
WEIGHTS, PREFILL, DECODE = f"{ROLLOUT}/weights", f"{ROLLOUT}/prefill", f"{ROLLOUT}/decode"


def others(of: JobShapes) -> list[str]:
    """Return the programs that this job runs on its chips besides its step."""
    sampled = rollout_shapes.samples_rollouts(of)
    wanted = {
        SCORING: scored_rows(of) > 0,
        TRANSFER: sampled and of.sampler is not None and of.samplers is None,
        ROLLOUT: sampled,
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def scored_rows(of: JobShapes) -> int:
    """Return the rows of a scoring pass; 0 if the job has none."""
    algorithm = of.spec.algorithm
    if algorithm.ppo is not None:  # the critic is always asked before the first update
        return of.spec.training.batch_size
    if algorithm.grpo is not None and (algorithm.grpo.beta > 0 or algorithm.grpo.updates_per_batch > 1):
        return of.spec.training.batch_size
    if algorithm.kto is not None or (algorithm.dpo is not None and algorithm.dpo.loss not in WITHOUT_REFERENCE):
        # As many as the data have; here, more than fit one pass (`Context.rows_at_once`).
        return math.ceil(of.spec.evaluation.batch_size / of.row_shards) * of.row_shards
    return 0
