"""Log-probs and values of a batch without gradient, each as one compiled function."""

from collections.abc import Callable

import jax
from jax import Array
from jax.sharding import NamedSharding

from pttrainer.batch import Batch
from pttrainer.losses.chunked_logprobs import Head, TokenStats, token_stats
from pttrainer.models import Model, Params
from pttrainer.train_step.critic import Critic


def scored_parts(batch: Batch) -> Batch:
    """Return what the pass reads of a batch, and nothing else: batches that differ elsewhere share its program."""
    read = batch.tokens_BT, batch.targets_BT, batch.positions_BT, batch.segment_ids_BT, batch.mask_BT
    of_prompts = {"prompts": batch.prompts, "images": batch.images, "routes_BTLk": batch.routes_BTLk}
    return Batch(*read, weight_BT=None, **of_prompts)


def score_step(model: Model, whole: NamedSharding) -> Callable[[Params, Batch, float], TokenStats]:
    """Return the jitted log-probs of a batch's targets, without gradient; replicated on every process."""

    def score(params: Params, batch: Batch, temperature: float) -> TokenStats:
        rows = batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT
        hidden_BTD = model.forward(
            params, *rows, prompts=batch.prompts, images=batch.images, routes_BTLk=batch.routes_BTLk
        )
        head = model.head(params).astype(hidden_BTD.dtype)
        how = Head(temperature, model.config.final_softcap)
        return token_stats(hidden_BTD, head, batch.targets_BT, batch.mask_BT, how)

    return jax.jit(score, out_shardings=whole, static_argnums=2)


def value_step(
    model: Model, critic: Critic, whole: NamedSharding, temperature: float, *, scored: bool
) -> Callable[[Params, Params, Batch], tuple[Array, Array | None]]:
    """Return the jitted critic values of all tokens and, if `scored`, the policy's log-probs, without gradient.

    Both are replicated on every process. A critic that reads the policy's hidden states shares its one forward pass.
    """

    def values(params: Params, critic_params: Params, batch: Batch) -> tuple[Array, Array | None]:
        hidden_BTD, logps_BT = None, None
        if scored or critic.model is None:
            rows = batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT
            hidden_BTD = model.forward(params, *rows, images=batch.images, routes_BTLk=batch.routes_BTLk)
        if scored and hidden_BTD is not None:
            head, how = model.head(params).astype(hidden_BTD.dtype), Head(temperature, model.config.final_softcap)
            logps_BT = token_stats(hidden_BTD, head, batch.targets_BT, batch.mask_BT, how).logps_BT
        return critic.values(critic_params, hidden_BTD, batch, model.frozen(params)), logps_BT

    return jax.jit(values, out_shardings=whole)
