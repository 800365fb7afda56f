"""Training of a reward model from preferences (Bradley-Terry, arXiv 1909.08593); the formula is in `losses.preference`.

The model without its output head reads a whole text, and a linear head of one output scores its last token. That head
is a critic's (`train_step.critic`): weights, optimizer, checkpoints and preflight are those of PPO's value head, at the
model's own learning rate and without a bias, which differences of scores do not see. A batch of 2P rows holds P pairs,
all chosen texts, then all rejected ones:

    loss = 1/P · Σ_pairs −log σ(s_c − s_r) + c·(s_c + s_r)²

Left out: packing, images, an average of the weights, process rewards. Degenerate case: a new head is 0, so the first
loss is log 2, and the first step changes the head alone.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ptapi.spec import PostTrainJobSpec
from pttrainer.algorithms.algorithm import Call
from pttrainer.batch import Batch
from pttrainer.data import rows
from pttrainer.data.loss_weights import Metric, RowMean
from pttrainer.data.preferences import pairs as preference_pairs
from pttrainer.data.preferences import scored_texts
from pttrainer.data.preferences.pairs import Pair
from pttrainer.data.prompts import Order
from pttrainer.losses import preference
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.loss_traits import BY_TOKEN
from pttrainer.models import Params
from pttrainer.models.loading import value_head
from pttrainer.rollout.context import Context
from pttrainer.runtime.background_compile import EarlyFunction
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step import critic as critics
from pttrainer.train_step import scoring
from pttrainer.train_step.critic import Critic
from pttrainer.train_step.optimizer.transformation import peak_rate, total_steps


class Loss:
    """The loss of scores (`Objective`, `HasCritic`)."""

    temperature = 1.0
    entropy = False
    level = False
    by_token = BY_TOKEN["reward"]

    def __init__(self, spec: PostTrainJobSpec, critic: Critic) -> None:
        assert spec.algorithm.reward is not None
        self._centering = spec.algorithm.reward.centering
        self.critic = critic
        self.critic_rate = peak_rate(spec.training, "reward")

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return 0: nothing is predicted, so a compiled step leaves the output head out."""
        return jnp.zeros_like(batch.weight_BT), {}

    def value_loss(self, values_BT: Array, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return the pair's loss on every token of both its rows; the weights pick the last one of each."""
        scores_2P = jnp.sum(values_BT * batch.mask_BT, axis=1).reshape(2, -1)
        loss_P, facts = self._of_pairs(*scores_2P)
        loss_BT = jnp.broadcast_to(_of_rows(loss_P)[:, None], batch.mask_BT.shape)
        return loss_BT, {name: RowMean(_of_rows(values_P)) for name, values_P in facts.items()}

    def _of_pairs(self, chosen_P: Array, rejected_P: Array) -> tuple[Array, dict[str, Array]]:
        """Return loss and metrics of each pair."""
        margin_P = chosen_P - rejected_P
        return preference.bradley_terry(chosen_P, rejected_P, self._centering), {
            "rewards/chosen": chosen_P,
            "rewards/rejected": rejected_P,
            "rewards/margins": margin_P,
            "rewards/accuracies": (margin_P > 0).astype(jnp.float32),
        }


class RewardModel(Loss):
    """Batches of pairs of texts."""

    needs_params = False

    def __init__(self, context: Context, train: list[Pair], held_out: list[Pair]) -> None:
        super().__init__(context.spec, Critic(context.model.config.d_model, has_bias=False))
        training = context.spec.training
        self._context, self._train, self._held_out = context, train, held_out
        self._order = Order(len(train), training.seed)
        self._pairs = training.batch_size // 2
        self._width = context.row_width(scored_texts.longest(train))
        self.total_steps = total_steps(training, len(train), self._pairs)
        whole = sharding.replicated(context.mesh)
        self._values = EarlyFunction(
            scoring.value_step(context.model, self.critic, whole, self.temperature, scored=False)
        )

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """Return the next pairs of the shuffled data."""
        drawn = [self._train[self._order[draw]] for draw in range(step * self._pairs, (step + 1) * self._pairs)]
        return scored_texts.batch_of(drawn, self._width), {}

    def expected_batch(self) -> Batch:
        """Return a batch of the shapes that all batches have."""
        return scored_texts.batch_of(self._train[:1] * self._pairs, self._width)

    def expected_calls(self, params: Params, *, held_out: bool) -> Iterator[Call]:
        """Yield the call that scores the first held-out batch; all have its shapes."""
        for batch in islice(self._held_out_batches(), 1 if held_out else 0):
            shapes = sharding.batch_shapes(self._context.mesh, scoring.scored_parts(batch))
            yield Call(self._values, (*critics.split_critic_params(params), shapes))

    def first_critic(self, shardings: Params) -> Params:
        """Return the head of the job's model, if that is a reward model, else zeros."""
        width = self.critic.width
        weight = value_head.score_weight(self._context.directory, width, "spec.model.uri")
        first = np.zeros(width, np.float32) if weight is None else weight
        return {"value": value_head.placed({"weight": first}, shardings["value"])}

    def evaluate(self, params: Params) -> Mapping[str, float]:
        """Return loss, margins and accuracy on held-out pairs."""
        if not self._held_out:
            return {}
        policy, critic = critics.split_critic_params(params)
        scores_2N = np.concatenate([self._scores(policy, critic, batch) for batch in self._held_out_batches()], axis=1)
        loss_N, facts = self._of_pairs(*map(jnp.asarray, scores_2N[:, : len(self._held_out)]))
        return {f"eval/{name}": RowMean(values_N).mean() for name, values_N in {"loss": loss_N, **facts}.items()}

    def state(self) -> dict[str, Any]:
        """Return nothing: the position in the data follows from the step."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def _scores(self, policy: Params, critic: Params, batch: Batch) -> np.ndarray:
        """Return the scores of a batch's pairs, [2, P]."""
        values_BT = np.asarray(self._values(policy, critic, self._context.place(scoring.scored_parts(batch)))[0])
        scores: np.ndarray = np.sum(values_BT * batch.mask_BT, axis=1).reshape(2, -1)
        return scores

    def _held_out_batches(self) -> Iterator[Batch]:
        if not self._held_out:
            return
        width = self._context.row_width(scored_texts.longest(self._held_out))
        at_once = -(-self._context.rows_at_once(2 * len(self._held_out)) // 2)
        for start in range(0, len(self._held_out), at_once):
            here = self._held_out[start : start + at_once]
            yield scored_texts.batch_of([*here, *[None] * (at_once - len(here))], width)


def build(context: Context) -> RewardModel:
    """Read and tokenise the pairs. Raises DataError on data that cannot be trained on."""
    return RewardModel(context, _pairs(context, "train"), _pairs(context, "eval"))


def _pairs(context: Context, part: str) -> list[Pair]:
    rows_read = rows.of_job(context.spec.data, part, context.note)
    if rows_read is None:
        return []
    # One token fewer than a prediction: all of them are read.
    made = preference_pairs.make(rows_read, context.chat, context.spec.training.sequence_length - 1, "reward")
    context.note(
        f"data.{part}: {len(made.pairs)} pairs ({rows_read.form}), {made.cut} longer than sequenceLength and "
        f"cut{rows.skipped(made.bad)}"
    )
    return scored_texts.of_pairs(made, context.tokenizer.pad_id)


def _of_rows(values_P: Array) -> Array:
    return jnp.concatenate([values_P, values_P])
