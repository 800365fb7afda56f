"""Sample completions and score them: prompts in, scored groups out; for training and for evaluation.

Letters: P prompts, G samples per prompt, N = P·G.

Rewards may depend on the clock (a limit passes or not), so with several processes one of them scores and the others
receive the result (`reward_scoring`): every process must train on the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ptapi import run_directory
from ptapi.spec import PostTrainJobSpec
from pttrainer import rewards
from pttrainer.data.prompts import Question
from pttrainer.models import Params
from pttrainer.rewards.runner import Runner, Scores
from pttrainer.rollout import groups, reward_scoring
from pttrainer.rollout.completion_text import completion_text
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Draw, Engine, Prompt, Sampling
from pttrainer.rollout.groups import Group
from pttrainer.rollout.quantiles import spread
from pttrainer.rollout.speculative.verify import add_counts, with_rates


@dataclass(frozen=True)
class Judged:
    """Scored groups, and the seconds spent on them. failures: by reward, the first verdict without one."""

    groups: list[Group]
    generate_s: float
    reward_s: float
    facts: Mapping[str, float] = field(default_factory=dict)
    """Seconds and counts of rewards and environment; those of several draws add up."""
    failures: Mapping[str, rewards.Verdict] = field(default_factory=dict)

    def with_more(self, chosen: list[Group], more: Judged) -> Judged:
        """Return the groups chosen from both, with the cost of both."""
        seconds = self.generate_s + more.generate_s, self.reward_s + more.reward_s
        facts = with_rates(add_counts(self.facts, more.facts))
        return Judged(chosen, *seconds, facts, {**self.failures, **more.failures})


class Sampler:
    """Samples with an engine and scores with the job's rewards."""

    tools: Sequence[Mapping[str, Any]] = ()
    """Schemas of the tools that the model may call."""

    def __init__(self, context: Context, engine: Engine, runner: Runner) -> None:
        self._context, self._engine, self._runner = context, engine, runner

    def sample(
        self,
        params: Params,
        questions: Sequence[Question],
        numbers: Sequence[int],
        samples: int,
        sampling: Sampling,
        draw: Draw,
    ) -> Judged:
        """Return `samples` scored completions of each question; their keys are folded from `numbers`."""
        started = time.monotonic()
        prompts = [Prompt(question.tokens, number) for question, number in zip(questions, numbers, strict=True)]
        completions = self._engine.generate(params, prompts, samples, sampling, draw)
        sampled = time.monotonic()
        rows = [completions.tokens(row) for row in range(len(prompts) * samples)]
        texts = [completion_text(self._context.tokenizer, tokens, sampling.stop) for tokens in rows]
        repeated = [question for question in questions for _ in range(samples)]
        lengths = completions.lengths_N.tolist()
        scores = self._judge(
            [rewards.Sample(q.text, text, q.fields, n) for q, text, n in zip(repeated, texts, lengths, strict=True)]
        )
        judged_samples = groups.samples_of(completions, texts, scores)
        grouped = [Group(q, judged_samples[p * samples : (p + 1) * samples]) for p, q in enumerate(questions)]
        facts = {**scores.facts, **with_rates(completions.facts)}
        return Judged(grouped, sampled - started, time.monotonic() - sampled, facts, scores.failures)

    def _judge(self, samples: Sequence[rewards.Sample]) -> Scores:
        if jax.process_count() == 1:
            return self._runner.score(samples, self._context.alive)
        return reward_scoring.judge(self._context, self._runner, samples)


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


def rollout_facts(judged: Judged) -> dict[str, float]:
    """Return rewards, completion metrics and the seconds spent on them, for the log."""
    sampled = sum(sample.length for group in judged.groups for sample in group.samples)
    return {
        **reward_facts(judged.groups),
        **groups.facts(judged.groups),
        **judged.facts,
        "seconds/generate": judged.generate_s,
        "seconds/reward": judged.reward_s,
        "sampled_tokens_per_second": sampled / judged.generate_s,
    }


def reward_facts(judged: Sequence[Group]) -> dict[str, float]:
    """Return statistics of the reward and of each of its parts, and the share of samples without it."""
    samples = [sample for group in judged for sample in group.samples]
    facts = _of_rewards(run_directory.REWARD, np.array([sample.reward for sample in samples]))
    for name in samples[0].rewards:
        facts |= _of_rewards(f"{run_directory.REWARD}/{name}", np.array([sample.rewards[name] for sample in samples]))
    return facts


def _of_rewards(name: str, values: np.ndarray) -> dict[str, float]:
    """Return statistics; NaN, a gap in the curve, if no sample has the reward: 0 could be the best value."""
    is_missing = np.isnan(values)
    present = values[~is_missing] if not is_missing.all() else values
    return {
        name: float(present.mean()),
        **spread(name, present, ddof=1),
        f"{name}/missing": float(is_missing.mean()),
    }
