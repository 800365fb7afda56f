"""PPO's rewards, advantages, losses and gradients on small fixed tensors, as ours compute them: what TRL's numbers are
compared with. TRL knows no tokens of tools, so a row's tokens stand together here.

Letters: B rows, T tokens.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ptapi.spec import Ppo
from pttrainer.algorithms.ppo import RolloutValues, with_returns
from pttrainer.batch import Batch
from pttrainer.losses import policy_gradient, value_loss
from pttrainer.losses.policy_gradient import Clip

_random = np.random.default_rng(11)
B, T = 5, 8
MASK_BT = (np.arange(T) < np.array([8, 3, 1, 6, 4])[:, None]).astype(np.float32)
LOGPS_BT = -_random.exponential(1.2, (B, T)).astype(np.float32) * MASK_BT
OLD_BT = (LOGPS_BT + _random.normal(0, 0.3, (B, T)).astype(np.float32)) * MASK_BT
REF_BT = (LOGPS_BT + _random.normal(0, 0.5, (B, T)).astype(np.float32)) * MASK_BT
OLD_VALUES_BT = _random.normal(0, 0.5, (B, T)).astype(np.float32) * MASK_BT
VALUES_BT = OLD_VALUES_BT + _random.normal(0, 0.4, (B, T)).astype(np.float32) * MASK_BT
REWARDS_B = np.array([1.0, -0.5, 0.25, 0.0, 2.0])

CASES = {
    "usual": Ppo(kl_coefficient=0.2),
    "discounted": Ppo(gamma=0.97, gae_lambda=0.8, kl_coefficient=0.05, clip=0.1, value_clip=0.3, value_coefficient=0.5),
    "reward-alone": Ppo(gae_lambda=1.0, kl_coefficient=0.0),
}


def ours() -> dict[str, np.ndarray]:
    """By `case/…`."""
    results: dict[str, Any] = {}
    for case, spec in CASES.items():
        batch = _batch(spec)
        results[f"{case}/advantages"], results[f"{case}/returns"] = batch.advantages_BT, batch.returns_BT * MASK_BT
        of_policy, of_critic = (
            jax.jit(jax.value_and_grad(partial(loss, batch=batch, spec=spec)))(x)
            for loss, x in ((_policy, LOGPS_BT), (_critic, VALUES_BT))
        )
        results[f"{case}/policy/loss"], results[f"{case}/policy/gradient"] = of_policy
        results[f"{case}/value/loss"], results[f"{case}/value/gradient"] = of_critic
    return {name: np.asarray(value) for name, value in results.items()}


def _batch(spec: Ppo) -> Batch:
    ids = np.zeros((B, T), np.int32)
    laid = Batch(ids, ids, ids, ids, MASK_BT, MASK_BT)
    ref = REF_BT if spec.kl_coefficient else None
    return with_returns(laid, REWARDS_B, RolloutValues(OLD_VALUES_BT, OLD_BT, ref, None), spec)[0]


def _policy(logps_BT: Array, batch: Batch, spec: Ppo) -> Array:
    clip = Clip(spec.clip, spec.clip)
    loss_BT, _ = policy_gradient.token(logps_BT, jnp.asarray(OLD_BT), batch.advantages_BT, jnp.asarray(MASK_BT), clip)
    return jnp.sum(loss_BT * batch.weight_BT)


def _critic(values_BT: Array, batch: Batch, spec: Ppo) -> Array:
    loss_BT, _ = value_loss.clipped(values_BT, batch.values_BT, batch.returns_BT, spec.value_clip)
    return spec.value_coefficient * jnp.sum(loss_BT * batch.weight_BT)
