"""Sample completions and score them: prompts in, scored groups out; for training and for evaluation.

Letters: P prompts, G samples per prompt, N = P·G.

Rewards may depend on the clock (a limit passes or not), so with several processes one of them scores and the others
receive the result (`scoring.leader_scores`): every process must train on the same numbers.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ptapi import run_directory
from ptapi.spec import PostTrainJobSpec
from pttrainer import rewards
from pttrainer.batch import Images
from pttrainer.data.prompts import Order, Question
from pttrainer.data.tokenization import row_images
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.models import Params
from pttrainer.rewards.runner import Runner, Scores
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Completions, Draw, Engine, Prompt, SamplerWeights, Sampling
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.rollout_metrics import GENERATE_SECONDS, REWARD_SECONDS, generate_attributes
from pttrainer.rollout.scoring import leader_scores, reward_models
from pttrainer.rollout.scoring.reward_models import RewardModel
from pttrainer.rollout.speculative.verify import with_rates
from pttrainer.runtime.reporting import spans


class Sampler:
    """Samples with an engine and scores with the job's rewards."""

    tools: Sequence[Mapping[str, Any]] = ()
    """Schemas of the tools that the model may call."""

    def __init__(
        self, context: Context, engine: Engine, runner: Runner, models: Mapping[str, RewardModel] = MappingProxyType({})
    ) -> None:
        self._context, self._runner, self._models = context, runner, models
        self.engine = engine

    def sample(
        self,
        params: Params,
        questions: Sequence[Question],
        numbers: Sequence[int],
        samples: int,
        sampling: Sampling,
        draw: Draw,
    ) -> Rollout:
        """Return `samples` scored completions of each question; their keys are folded from `numbers`."""
        started = time.monotonic()
        images = self._images(questions)
        prompts = [Prompt(q.tokens, number, own) for q, number, own in zip(questions, numbers, images, strict=True)]
        completions = self._generate(params, prompts, samples, sampling, draw)
        return self.scored(questions, images, completions, sampling.stop, draw.step, started)

    def _generate(
        self, params: Params, prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw
    ) -> Completions:
        with spans.span("generate") as attributes:
            completions = self.engine.generate(params, prompts, samples, sampling, draw)
            attributes |= generate_attributes(prompts, completions, sampling)
        return completions

    def scored(
        self,
        questions: Sequence[Question],
        images: Sequence[Images | None],
        completions: Completions,
        stop: Sequence[str],
        step: int,
        started: float,
    ) -> Rollout:
        """Return the completions with their rewards. started: when sampling them began, in seconds (monotonic)."""
        sampled = time.monotonic()
        samples = len(completions.tokens_NT) // len(questions)
        rows = [completions.tokens(row) for row in range(len(completions.tokens_NT))]
        texts = [completion_text(self._context.tokenizer, tokens, stop) for tokens in rows]
        repeated = [question for question in questions for _ in range(samples)]
        lengths = completions.lengths_N.tolist()
        answered = zip(repeated, texts, lengths, strict=True)
        scores = self._score(
            [
                rewards.Sample(
                    q.text, text, q.fields, n, [*q.messages, {"role": "assistant", "content": text}], q.tools
                )
                for q, text, n in answered
            ]
        )
        scored = groups.samples_of(completions, texts, scores)
        seconds = {GENERATE_SECONDS: sampled - started, REWARD_SECONDS: time.monotonic() - sampled}
        facts = {**scores.facts, **with_rates(completions.facts), **seconds}
        return Rollout(step, groups.grouped(questions, scored, samples, images), facts, scores.failures)

    def _images(self, questions: Sequence[Question]) -> list[Images | None]:
        """Return each question's images, as a batch of one row."""
        return row_images.of_prompts(self._context.chat, [(question.tokens, question.images) for question in questions])

    def _score(self, samples: Sequence[rewards.Sample]) -> Scores:
        with spans.span("reward"):
            return self._verdicts(samples)

    def _verdicts(self, samples: Sequence[rewards.Sample]) -> Scores:
        of_models = reward_models.score(self._models, samples)
        verdicts = {name: scores.verdicts for name, scores in of_models.items()}
        scores = leader_scores.score(self._context, self._runner, samples, verdicts)
        seconds = {f"{run_directory.SECONDS}reward/{name}": one.seconds for name, one in of_models.items()}
        return replace(scores, facts={**scores.facts, **seconds})


class PromptStream:
    """The prompts of a run in their order, drawn a few at a time. prompts: at once; samples: of each; drawn: so far.

    A prompt's number is its place in the whole run's order, and its samples' random keys are folded from it. So a
    checkpoint keeps only how many were drawn.
    """

    def __init__(
        self, questions: Sequence[Question], sampler: Sampler, sampling: Sampling, seed: int, prompts: int, samples: int
    ) -> None:
        self._questions, self._order, self._seed = questions, Order(len(questions), seed), seed
        self._sampler, self._sampling = sampler, sampling
        self._prompts, self._samples = prompts, samples
        self.drawn = 0

    @property
    def upcoming(self) -> list[Question]:
        """Return the next prompts without drawing them."""
        return [self._questions[self._order[number]] for number in self._numbers()]

    def draw(self, step: int, weights: SamplerWeights) -> Rollout:
        """Draw the next prompts, sample and score them."""
        numbers, questions = self._numbers(), self.upcoming
        self.drawn += self._prompts
        draw = Draw(self._seed, step)
        return self._sampler.sample(weights.params, questions, numbers, self._samples, self._sampling, draw)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as JSON."""
        return {"drawn": self.drawn}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.drawn = int(state["drawn"])

    def _numbers(self) -> list[int]:
        return list(range(self.drawn, self.drawn + self._prompts))


def sampling_of(spec: PostTrainJobSpec) -> Sampling:
    """Return the sampling parameters of training."""
    rollout = spec.rollout
    return Sampling(
        max_new_tokens=rollout.max_new_tokens,
        max_length=spec.training.sequence_length,
        temperature=rollout.temperature,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        min_p=rollout.min_p,
        min_new_tokens=rollout.min_new_tokens,
        stop=tuple(rollout.stop),
        routes=rollout.routing_replay,
    )


def training_sampling(context: Context) -> Sampling:
    """Return the same, and warn if the sampler's distribution is not the one that is trained."""
    sampling = sampling_of(context.spec)
    if sampling.truncates or sampling.min_new_tokens:
        context.note(
            "warning: spec.rollout.topP, topK, minP and minNewTokens cut the sampler's distribution and not the "
            "trainer's, so the two differ; hint: leave them at 1, 0, 0 and 0"
        )
    return sampling


def completion_text(tokenizer: Tokenizer, tokens: Sequence[int], stop: Sequence[str]) -> str:
    """Return the text of the tokens, up to the end of the stop string that ends first.

    The last token may extend beyond it; the rest is no part of the text, though the token was sampled and is
    trained on.
    """
    text = tokenizer.decode(tokens)
    ends = [text.index(string) + len(string) for string in stop if string in text]
    return text[: min(ends)] if ends else text
