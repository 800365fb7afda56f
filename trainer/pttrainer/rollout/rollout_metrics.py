"""What the log says of a rollout: rewards, completions, episodes, seconds."""

from collections.abc import Sequence

import numpy as np

from ptapi import run_directory
from pttrainer.rollout.engine import Completions, Prompt, Sampling
from pttrainer.rollout.groups import Group, Sample
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.runtime.reporting import spans

GENERATE_SECONDS, REWARD_SECONDS = "seconds/generate", "seconds/reward"


def generate_attributes(
    prompts: Sequence[Prompt], completions: Completions, sampling: Sampling
) -> dict[str, spans.Attribute]:
    """Return what a span says of a call of the engine, in the terms of OpenTelemetry's conventions for GenAI."""
    return {
        "gen_ai.request.temperature": 0.0 if sampling.greedy else sampling.temperature,
        "gen_ai.request.max_tokens": sampling.max_new_tokens,
        "gen_ai.usage.input_tokens": sum(len(prompt.tokens) for prompt in prompts),
        "gen_ai.usage.output_tokens": int(completions.lengths_N.sum()),
        "posttrain.prompts": len(prompts),
        "posttrain.completions": len(completions.lengths_N),
    }


def rollout_facts(rollout: Rollout) -> dict[str, float]:
    """Return rewards and completion metrics, and the rollout's own facts."""
    sampled = sum(sample.length for sample in rollout.samples)
    return {
        **reward_facts(rollout.groups),
        **completion_facts(rollout.groups),
        **rollout.facts,
        "sampled_tokens_per_second": sampled / rollout.facts[GENERATE_SECONDS],
    }


def reward_facts(groups: Sequence[Group]) -> dict[str, float]:
    """Return statistics of the reward and of each of its parts, and the share of samples without it."""
    samples = [sample for group in groups for sample in group.samples]
    facts = _of_rewards(run_directory.REWARD, np.array([sample.reward for sample in samples]))
    for name in samples[0].rewards:
        facts |= _of_rewards(f"{run_directory.REWARD}/{name}", np.array([sample.rewards[name] for sample in samples]))
    return facts


def completion_facts(groups: Sequence[Group]) -> dict[str, float]:
    """Return completion length, truncation and episode metrics."""
    samples = [sample for group in groups for sample in group.samples]
    lengths = [sample.length for sample in samples]
    ended = [sample.length for sample in samples if sample.ended]
    return {
        "completion_length": float(np.mean(lengths)),
        "completion_length/min": float(min(lengths)),
        "completion_length/max": float(max(lengths)),
        **({"completion_length/terminated": float(np.mean(ended))} if ended else {}),
        "truncated": float(np.mean([not sample.ended for sample in samples])),
        **_episode_facts(samples),
    }


def summary(name: str, values: np.ndarray) -> dict[str, float]:
    """Return mean, deviation and extremes; zeros if there are no values."""
    present = values if values.size else np.zeros(1)
    return {f"{name}/mean": float(present.mean()), **_spread(name, present)}


def _of_rewards(name: str, values: np.ndarray) -> dict[str, float]:
    """Return statistics; NaN, a gap in the curve, if no sample has the reward: 0 could be the best value."""
    is_missing = np.isnan(values)
    present = values[~is_missing] if not is_missing.all() else values
    return {name: float(present.mean()), **_spread(name, present, ddof=1), f"{name}/missing": float(is_missing.mean())}


def _spread(name: str, values: np.ndarray, *, ddof: int = 0) -> dict[str, float]:
    """Return deviation, with n − ddof in its denominator, and extremes; zeros if there are too few values."""
    return {
        f"{name}/std": float(values.std(ddof=ddof)) if values.size > ddof else 0.0,
        f"{name}/min": float(values.min()) if values.size else 0.0,
        f"{name}/max": float(values.max()) if values.size else 0.0,
    }


def _episode_facts(samples: Sequence[Sample]) -> dict[str, float]:
    episodes = [sample.episode for sample in samples if sample.episode is not None]
    if not episodes:
        return {}
    calls = sum(episode.calls for episode in episodes)
    return {
        "episodes/turns": float(np.mean([episode.turns for episode in episodes])),
        "episodes/failed": float(np.mean([bool(episode.error) for episode in episodes])),
        "tools/calls": calls / len(episodes),
        "tools/used": float(np.mean([episode.calls > 0 for episode in episodes])),
        "tools/failed": sum(episode.failed for episode in episodes) / max(calls, 1),
    }
