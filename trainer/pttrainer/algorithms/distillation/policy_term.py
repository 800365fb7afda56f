"""The policy loss beside sdpo's divergence: grpo's, as `algorithm.sdpo.policy` sets it.

    loss = (1 − λ) · policy loss, reduced as its paper says  +  λ · mean over taught sequences of their mean divergence

A batch has one weight per token, the policy loss's; what the divergence needs beside it is `divergence_share`. TRL's
λ (`distillation_weight`) counts sequences that learn nothing from the teacher in the second mean; here they do not
count, as with λ = 1.
"""

import numpy as np

from ptapi.spec import Algorithm, Grpo, PostTrainJobSpec, Sdpo, SdpoPolicy
from pttrainer.algorithms.credit_assignment import advantages
from pttrainer.data import loss_weights
from pttrainer.losses import policy_gradient


def settings(spec: Sdpo) -> Grpo:
    """Return the policy loss as grpo's settings."""
    policy = spec.policy or SdpoPolicy()
    return Grpo(
        loss=policy.loss, advantage=policy.advantage, clip_low=policy.clip_low, clip_high=policy.clip_high,
        group_size=spec.group_size, updates_per_batch=spec.updates_per_batch,
    )  # fmt: skip


def job(spec: PostTrainJobSpec) -> PostTrainJobSpec:
    """Return the job with the policy loss as its algorithm."""
    assert spec.algorithm.sdpo is not None
    return spec.model_copy(update={"algorithm": Algorithm(grpo=settings(spec.algorithm.sdpo))})


def sample_advantages(spec: Sdpo, rewards_PG: np.ndarray) -> np.ndarray:
    """Return the advantages of samples with these rewards, [P, G]."""
    policy = settings(spec)
    return advantages.ESTIMATORS[policy.advantage or policy_gradient.VARIANTS[policy.loss].advantage](rewards_PG)


def weights(spec: Sdpo, mask_BT: np.ndarray, max_new_tokens: int) -> np.ndarray:
    """Return the weights of the policy loss's own mean."""
    return policy_gradient.VARIANTS[settings(spec).loss].weights(mask_BT, max_new_tokens)


def divergence_share(taught_BT: np.ndarray, weight_BT: np.ndarray, weight: float) -> np.ndarray:
    """Return what Σ weight_BT · share · D needs to be `weight` times the mean over taught sequences of their means."""
    mean_BT = np.float32(weight) * loss_weights.sequence_mean(taught_BT)
    share_BT: np.ndarray = np.divide(mean_BT, weight_BT, out=np.zeros_like(mean_BT), where=weight_BT > 0)
    return share_BT
