"""Losses and their gradients on small fixed tensors, as ours compute them: what TRL's numbers are compared with.

Letters: B rows, T tokens, P pairs, D model, V vocabulary. Every case is a loss and its gradient with respect to the
log-probs (policy and preference losses) or to hidden states and head (divergences).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pttrainer.algorithms import policy_loss, preference_loss
from pttrainer.algorithms.policy_loss import Clip
from pttrainer.algorithms.preference_loss import Numbers, Side
from pttrainer.algorithms.traits import WITHOUT_REFERENCE
from pttrainer.batch import Batch
from pttrainer.divergence import Guide
from pttrainer.models import Model, preset

_random = np.random.default_rng(7)
B, T = 6, 9
LENGTHS_B = np.array([9, 4, 1, 7, 2, 5])
MASK_BT = (np.arange(T) < LENGTHS_B[:, None]).astype(np.float32)
LOGPS_BT = -_random.exponential(1.2, (B, T)).astype(np.float32) * MASK_BT
OLD_BT = (LOGPS_BT + _random.normal(0, 0.35, (B, T)).astype(np.float32)) * MASK_BT
REF_BT = (LOGPS_BT + _random.normal(0, 0.5, (B, T)).astype(np.float32)) * MASK_BT
ADVANTAGES_B = np.array([1.3, -0.7, 0.0, 2.1, -1.6, 0.4], np.float32)
MAX_NEW = 11
BETA_KL = 0.3

POLICY: dict[str, tuple[str, Clip]] = {
    "grpo": ("grpo", Clip(0.2, 0.2)),
    "grpo-two-sided": ("grpo", Clip(0.2, 0.2)),
    "grpo-kl": ("grpo", Clip(0.2, 0.2)),
    "dr-grpo": ("dr-grpo", Clip(0.2, 0.2)),
    "dapo": ("dapo", Clip(0.2, 0.28)),
    "cispo": ("cispo", Clip(0.2, 1.3)),
    "gspo": ("gspo", Clip(3e-2, 4e-2)),
}
"""Our variant and clip of each case."""

PREFERENCE: dict[str, tuple[str, Numbers]] = {
    "sigmoid": ("sigmoid", Numbers(0.4)),
    "robust": ("robust", Numbers(0.4, 0.15)),
    "hinge": ("hinge", Numbers(0.4)),
    "ipo": ("ipo", Numbers(0.4)),
    "simpo": ("simpo", Numbers(2.0, 0.0, 0.6)),
    "simpo-smoothed": ("simpo", Numbers(2.0, 0.1, 0.6)),
    "orpo": ("orpo", Numbers(0.4)),
}
"""ORPO is compared without its likelihood term: TRL's is over prompt and answer, the paper's over the answer."""

D, V = 5, 23
HIDDEN_BTD = _random.normal(0, 1, (B, T, D)).astype(np.float32)
TEACHER_BTD = _random.normal(0, 1, (B, T, D)).astype(np.float32)
HEAD_VD = _random.normal(0, 1, (V, D)).astype(np.float32)
TEACHER_HEAD_VD = _random.normal(0, 1, (V, D)).astype(np.float32)
DIVERGENCE = {"forward-kl": 0.0, "jsd-0.1": 0.1, "jsd-0.5": 0.5, "reverse-kl": 1.0}


def ours() -> dict[str, np.ndarray]:
    """Everything, by `case/loss` and `case/gradient…`."""
    found: dict[str, Any] = {}
    for case in POLICY:
        found[f"policy/{case}/loss"], found[f"policy/{case}/gradient"] = jax.value_and_grad(_policy)(LOGPS_BT, case)
    for case in PREFERENCE:
        loss, gradient = jax.value_and_grad(_preference)(LOGPS_BT, case)
        found[f"preference/{case}/loss"], found[f"preference/{case}/gradient"] = loss, gradient
    for case, beta in DIVERGENCE.items():
        loss, (hidden, head) = jax.value_and_grad(_divergence, argnums=(0, 1))(HIDDEN_BTD, HEAD_VD, beta)
        found |= {f"divergence/{case}/loss": loss, f"divergence/{case}/hidden": hidden, f"divergence/{case}/head": head}
    return {name: np.asarray(value) for name, value in found.items()}


def _policy(logps_BT: Array, case: str) -> Array:
    name, clip = POLICY[case]
    variant = policy_loss.VARIANTS[name]
    loss_BT, _ = variant.loss(
        logps_BT, jnp.asarray(OLD_BT), ADVANTAGES_B[:, None] * MASK_BT, jnp.asarray(MASK_BT), clip
    )
    if case == "grpo-two-sided":
        # TRL bounds the ratio itself, for A < 0 the same as bounding −c·A; for A > 0 the clip is below it anyway.
        loss_BT = policy_loss.surrogate(
            jnp.exp(policy_loss.log_ratio(logps_BT, OLD_BT)), ADVANTAGES_B[:, None] * MASK_BT, clip._replace(dual=1.4)
        )
    if case == "grpo-kl":
        ratio_BT = jnp.exp(policy_loss.log_ratio(logps_BT, jnp.asarray(OLD_BT)))
        loss_BT = loss_BT + BETA_KL * policy_loss.kl("k3", logps_BT, jnp.asarray(REF_BT), ratio_BT)
    return jnp.sum(loss_BT * variant.weights(MASK_BT, MAX_NEW))


def _preference(logps_BT: Array, case: str) -> Array:
    name, numbers = PREFERENCE[case]
    variant = preference_loss.VARIANTS[name]
    sums_B = jnp.sum(logps_BT * MASK_BT, axis=1)
    refs_B = REF_BT.sum(axis=1) if name not in WITHOUT_REFERENCE else np.zeros(B, np.float32)
    P = B // 2
    chosen, rejected = (Side(sums_B[s], jnp.asarray(refs_B[s]), MASK_BT.sum(1)[s]) for s in (slice(P), slice(P, B)))
    loss_P = variant.loss(chosen, rejected, numbers)
    return jnp.mean(loss_P + chosen.mean_P if name == "orpo" else loss_P)


class _Told(Model):
    """A teacher that says what it is given."""

    def forward(self, params: Any, tokens_BT: Array, positions_BT: Array, segment_ids_BT: Array) -> Array:
        return jnp.asarray(TEACHER_BTD)

    def head(self, params: Any) -> Array:
        return jnp.asarray(TEACHER_HEAD_VD)


def _divergence(hidden_BTD: Array, head_VD: Array, beta: float) -> Array:
    config = preset("tiny")
    zeros = np.zeros((B, T), np.int32)
    batch = Batch(zeros, zeros, zeros, zeros, jnp.asarray(MASK_BT), None)
    guide = Guide(_Told(config), beta, chunk=2)
    stats = guide.stats({}, Model(config), jnp.asarray(hidden_BTD), jnp.asarray(head_VD), batch)
    return jnp.sum(stats.divergence_BT) / MASK_BT.sum()
