"""Reward models of a job: sequence classifiers of one output, on the training devices beside the policy.

Each reads prompt and completion as a conversation, by its own tokenizer and chat template, and its score of the last
token is the reward (`data.preferences.scored_texts`). Weights are split as the policy's are and compute in its format.
The passes are collective: every process calls `score` with the same samples, and has the same scores.

Left out: images, devices of their own, samples drawn while others are trained on.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ptapi.spec import ModelReward, ModelSpec
from pttrainer.data.preferences import scored_texts
from pttrainer.data.preferences.pairs import answers_batch
from pttrainer.data.sft_examples import Example
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.errors import ConfigError, DataError
from pttrainer.models import Model, Params
from pttrainer.models.loading import value_head
from pttrainer.models.loading.model_loader import chat_of, load_params
from pttrainer.models.loading.model_spec import SCORE, ModelSource, auxiliary_structure, headless, open_source
from pttrainer.models.shapes import parameters
from pttrainer.rewards import Sample, Verdict
from pttrainer.rollout.context import Context
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step import scoring
from pttrainer.train_step.critic import Critic


class ModelScores(NamedTuple):
    """A reward model's verdict on each sample, and how long it took."""

    verdicts: Sequence[Verdict]
    seconds: float


class RewardModel:
    """One reward model, loaded. Raises ConfigError if it cannot be."""

    def __init__(self, context: Context, field: str, spec: ModelReward) -> None:
        source = headless(open_source(spec.uri, field, context.note, spec.revision))
        model = Model.from_structure(auxiliary_structure(source.config, context.model))
        critic = Critic(source.config.d_model, has_bias=False)
        where = sharding.weight_shardings(context.mesh, model.abstract(), model.logical_axes())
        seed = context.spec.training.seed + 3  # random weights: of another seed than the policy's
        whole = sharding.replicated(context.mesh)
        self._context = context
        self._chat: Chat = chat_of(ModelSpec(uri=spec.uri, revision=spec.revision), source, context.note)
        self._limit = model.config.longest
        self._params: Params = load_params(source, model, where, seed=seed)
        self._head = value_head.placed({"value": {"weight": _head(source, seed)}}, {"value": {"weight": whole}})
        self._values = scoring.value_step(model, critic, whole, 1.0, scored=False)
        shards = sharding.mesh_size(context.mesh, "batch")
        self._rows = math.ceil(spec.batch_size / shards) * shards
        context.note(f"reward model: {spec.uri}, {parameters.count(source.config):,} weights")

    def score(self, samples: Sequence[Sample]) -> list[Verdict]:
        """Return a verdict per sample, in order."""
        texts = [self._text(sample) for sample in samples]
        examples = [text for text in texts if isinstance(text, Example)]
        scores = iter(self._scores(examples))
        return [_verdict(next(scores)) if isinstance(text, Example) else Verdict(None, text) for text in texts]

    def _text(self, sample: Sample) -> Example | str:
        """Return what the model reads, or why it cannot."""
        try:
            ids = self._chat.ids([self._plain(message) for message in sample.messages], sample.tools)
        except DataError as error:
            return str(error)
        if len(ids) > self._limit:
            return f"the conversation has {len(ids)} tokens; accepted: at most the reward model's {self._limit}"
        return scored_texts.example(ids, self._chat.tokenizer.pad_id)

    def _plain(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the message without special tokens: one that a policy spells out would end its turn."""
        content = message.get("content")
        return {**message, "content": self._chat.without_specials(content) if isinstance(content, str) else content}

    def _scores(self, examples: Sequence[Example]) -> list[float]:
        width = min(slots_for(max((example.length for example in examples), default=1)), self._limit)
        scores: list[float] = []
        for start in range(0, len(examples), self._rows):
            here = examples[start : start + self._rows]
            batch = answers_batch([*here, *[None] * (self._rows - len(here))], width)
            values_BT = self._values(self._params, self._head, self._context.place(batch))[0]
            scores += np.sum(np.asarray(values_BT) * batch.mask_BT, axis=1)[: len(here)].tolist()
            self._context.alive()
        return scores


def load(context: Context) -> dict[str, RewardModel]:
    """Return the job's reward models by the names of their rewards."""
    return {
        reward.label: RewardModel(context, f"spec.rewards[{index}].model.uri", reward.model)
        for index, reward in enumerate(context.spec.rewards)
        if reward.model is not None
    }


def score(models: Mapping[str, RewardModel], samples: Sequence[Sample]) -> dict[str, ModelScores]:
    """Return every model's scores. All processes call it together."""
    scores = {}
    for name, model in models.items():
        began = time.monotonic()
        scores[name] = ModelScores(model.score(samples), time.monotonic() - began)
    return scores


def _head(source: ModelSource, seed: int) -> np.ndarray:
    """Return the weights of the output; random ones for a random model."""
    width = source.config.d_model
    if source.directory is None:
        return np.asarray(jax.random.normal(jax.random.key(seed), (width,))) / math.sqrt(width)
    weight = value_head.score_weight(source.directory, width, source.display_name)
    if weight is None:
        raise ConfigError(
            f"{source.display_name}: no {SCORE}; accepted: a reward model: the export of a run with algorithm.reward, "
            "or one that transformers loads as AutoModelForSequenceClassification"
        )
    return weight


def _verdict(score: float) -> Verdict:
    return Verdict(score) if math.isfinite(score) else Verdict(None, f"the reward model's score is {score}")
