"""Filtered self-training (RAFT, arXiv 2304.06767): sample, keep the good samples, fine-tune on them, and again.

Also called rejection sampling fine-tuning (2308.01825), expert iteration, ReST-EM (2312.06585). A step draws P prompts,
samples G completions of each and keeps those whose reward is at least `minReward`, or of them the `keepBest` best of
each prompt; the loss is that of `sft` on their tokens:

    loss = − Σ_kept Σ_t log π(x_t | x_<t) / tokens of the kept samples

Nothing pushes bad samples down, so there is no ratio, clip or correction for the sampler: a good sample is one whoever
sampled it. What the model never gets right it does not learn. Rows that are not kept are computed and have no weight:
a step costs the same whatever is kept.

Left out: a KL to the reference, kept samples of earlier steps. Degenerate case: a step that keeps nothing has loss and
gradient 0.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ptapi import run_directory
from ptapi.spec import PostTrainJobSpec
from ptapi.spec import Raft as RaftSpec
from pttrainer.algorithms import prompt_sharing
from pttrainer.algorithms.on_policy import OnPolicyAlgorithm
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.loss_weights import Mean, Metric
from pttrainer.data.prompts import Question
from pttrainer.losses import policy_metrics
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.loss_traits import BY_TOKEN
from pttrainer.models import Params
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.evaluation import evaluator
from pttrainer.rollout.evaluation.evaluator import Evaluation
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.sampler import Sampler


class Loss:
    """Cross-entropy of kept samples (`Objective`)."""

    entropy = True
    level = False
    by_token = BY_TOKEN["raft"]
    temperature = 1.0

    def __init__(self, spec: PostTrainJobSpec) -> None:
        self._has_sampler_logps = spec.rollout.temperature == self.temperature

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return each token's negative log-likelihood, and metrics."""
        nll_BT = -stats.logps_BT
        metrics: dict[str, Metric] = {run_directory.NLL: Mean(nll_BT), run_directory.ENTROPY: Mean(stats.entropy_BT)}
        if self._has_sampler_logps:  # else they are of a distribution with another temperature
            own_BT = lax.stop_gradient(stats.logps_BT)
            metrics |= policy_metrics.of_sampler(own_BT, jnp.asarray(batch.sampler_logps_BT), jnp.ones_like(own_BT))
        return nll_BT, metrics


class Raft(Loss, OnPolicyAlgorithm):
    """Batches from rollouts, of which only good samples have a weight."""

    temperature = Loss.temperature

    def __init__(
        self,
        context: Context,
        spec: RaftSpec,
        train: list[Question],
        sampler: Sampler,
        evaluation: Evaluation | None,
        shared: int | None = None,
    ) -> None:
        """Initialise. shared: prompt slots shared by all samples of a prompt (`prompt_sharing`)."""
        Loss.__init__(self, context.spec)
        OnPolicyAlgorithm.__init__(self, context, train, sampler, evaluation)
        self._spec, self._shared = spec, shared

    def _lay_out(self, rollout: Rollout) -> Rollout:
        kept_PG = kept(groups.rewards(rollout.groups), self._spec.min_reward, self._spec.keep_best)
        length = self._context.spec.training.sequence_length
        batch = groups.lay_out(
            rollout.groups, kept_PG, self._context.tokenizer.pad_id, length, self._shared, self._images
        )
        mask_BT = batch.mask_BT * kept_PG.reshape(-1, 1).astype(np.float32)
        batch = batch._replace(mask_BT=mask_BT, weight_BT=loss_weights.token_mean(mask_BT))
        facts = {"samples/kept": float(kept_PG.mean()), "groups/kept": float(kept_PG.any(axis=1).mean())}
        return rollout.laid_out(batch, kept_PG, facts)

    def _with_policy_terms(self, rollout: Rollout, params: Params) -> Rollout:
        return rollout


def kept(rewards_PG: np.ndarray, min_reward: float, best: int | None) -> np.ndarray:
    """Return 1 for samples that are kept, else 0; of equal rewards the first sampled. A missing reward is NaN."""
    good_PG = rewards_PG >= min_reward  # False for NaN
    if best is None:
        return good_PG.astype(np.float64)
    order_PG = np.argsort(np.where(good_PG, -rewards_PG, np.inf), axis=1, kind="stable")
    place_PG = np.argsort(order_PG, axis=1)
    return (good_PG & (place_PG < best)).astype(np.float64)


def build(context: Context) -> Raft:
    """Read the prompts and load the rewards. Raises ConfigError, DataError or UserCodeError."""
    spec = context.spec.algorithm.raft
    assert spec is not None
    sampler = evaluator.job_sampler(context)
    train = evaluator.read_questions(context, "train", sampler)
    shared = prompt_sharing.prompt_slots(context, train, spec.samples_per_prompt)
    return Raft(context, spec, train, sampler, evaluator.evaluation(context, sampler), shared)
