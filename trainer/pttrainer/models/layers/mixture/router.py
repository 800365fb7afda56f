"""The experts of each token: a router's choice, or one that is given, their weights, and how evenly they are used.

Letters: B rows, T tokens, E experts, k experts per token.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.models.config import Experts


class RouterUse(NamedTuple):
    """Sums over tokens that count: how many use each expert, its probability, and how many tokens there were.

    changed: of the share of a token's experts that the router itself would not have chosen.
    """

    chosen_E: Array
    probability_E: Array
    tokens: Array
    changed: Array


class Choice(NamedTuple):
    """The numbers and the weights of each token's experts, and those that the router chose, [B, T, k] all."""

    expert_BTk: Array
    weight_BTk: Array
    own_BTk: Array


class Routing(NamedTuple):
    """The experts of each token, and the router's use by tokens that count, if some do."""

    expert_BTk: Array
    use: RouterUse | None


def balance_loss(use: RouterUse, experts: Experts) -> Array:
    """Return E · Σ_e share(e) · mean probability(e), over tokens and layers; k if experts are used equally.

    `use` has a leading layer axis. From the Switch Transformer (arXiv 2101.03961, equations 4 to 6), for k > 1 as
    in transformers.
    """
    tokens = jnp.maximum(jnp.sum(use.tokens), 1.0)
    share_E, probability_E = (jnp.sum(x, axis=0) / tokens for x in (use.chosen_E, use.probability_E))
    return experts.count * jnp.sum(share_E * probability_E)


def joined_use(uses: Sequence[RouterUse]) -> RouterUse | None:
    """Return the use of all layers, from that of several stacks of them; None without any."""
    if len(uses) <= 1:
        return uses[0] if uses else None
    joined: RouterUse = jax.tree.map(lambda *parts: jnp.concatenate(parts), *uses)
    return joined


def choose(logits_BTE: Array, correction_E: Array | None, experts: Experts, given_BTk: Array | None = None) -> Choice:
    """Return each token's experts.

    given_BTk: experts to use in place of the router's choice, where they are known; their weights are the router's,
    and differentiable.
    """
    if experts.sigmoid:
        return _choose_by_sigmoid(logits_BTE, correction_E, experts, given_BTk)
    best_BTk, own_BTk = jax.lax.top_k(logits_BTE, experts.per_token)
    expert_BTk = own_BTk
    if given_BTk is not None:
        expert_BTk = _where_known(given_BTk, own_BTk, experts)
        best_BTk = jnp.take_along_axis(logits_BTE, expert_BTk, axis=-1)
    if experts.normalised:
        weight_BTk = jax.nn.softmax(best_BTk, axis=-1)
    else:
        weight_BTk = jnp.exp(best_BTk - jax.nn.logsumexp(logits_BTE, axis=-1, keepdims=True))
    return Choice(expert_BTk, weight_BTk if experts.scale == 1.0 else weight_BTk * experts.scale, own_BTk)


def _choose_by_sigmoid(
    logits_BTE: Array, correction_E: Array | None, experts: Experts, given_BTk: Array | None
) -> Choice:
    """Choose by corrected sigmoids within the best groups, weigh by the sigmoids (arXiv 2412.19437, section 2.1.2)."""
    score_BTE = jax.nn.sigmoid(logits_BTE)
    choice_BTE = score_BTE if correction_E is None else score_BTE + correction_E
    if experts.groups_used < experts.groups:
        choice_BTE = _in_best_groups(choice_BTE, experts)
    _, own_BTk = jax.lax.top_k(choice_BTE, experts.per_token)
    expert_BTk = own_BTk if given_BTk is None else _where_known(given_BTk, own_BTk, experts)
    weight_BTk = jnp.take_along_axis(score_BTE, expert_BTk, axis=-1)
    if experts.normalised:
        weight_BTk = weight_BTk / (jnp.sum(weight_BTk, axis=-1, keepdims=True) + 1e-20)
    return Choice(expert_BTk, weight_BTk * experts.scale, own_BTk)


def _where_known(given_BTk: Array, own_BTk: Array, experts: Experts) -> Array:
    given_BTk = given_BTk.astype(own_BTk.dtype)
    return jnp.where(given_BTk == experts.unknown_number, own_BTk, given_BTk)


def _in_best_groups(choice_BTE: Array, experts: Experts) -> Array:
    """Return the scores, minus infinity outside the groups whose two best experts sum to most."""
    in_groups = choice_BTE.reshape(*choice_BTE.shape[:-1], experts.groups, -1)
    of_group = jnp.sum(jax.lax.top_k(in_groups, min(2, in_groups.shape[-1]))[0], axis=-1)
    _, best = jax.lax.top_k(of_group, experts.groups_used)
    is_best = jnp.any(jax.nn.one_hot(best, experts.groups, dtype=bool), axis=-2)
    return jnp.where(is_best[..., None], in_groups, -jnp.inf).reshape(choice_BTE.shape)


def use_of(logits_BTE: Array, choice: Choice, counts_BT: Array) -> RouterUse:
    """Return the router's use by tokens that count."""
    E = logits_BTE.shape[-1]
    counts = counts_BT.astype(jnp.float32)
    chosen_BTE = jnp.sum(jax.nn.one_hot(choice.expert_BTk, E), axis=2)

    def sums(x_BTE: Array) -> Array:
        return jnp.einsum("bte,bt->e", x_BTE, counts)

    is_own_BTkk = choice.expert_BTk[..., None] == choice.own_BTk[..., None, :]
    changed_BT = 1.0 - jnp.mean(jnp.any(is_own_BTkk, axis=-1), axis=-1)
    probability_BTE = jax.nn.softmax(logits_BTE, axis=-1)
    return RouterUse(sums(chosen_BTE), sums(probability_BTE), jnp.sum(counts), jnp.sum(changed_BT * counts))
