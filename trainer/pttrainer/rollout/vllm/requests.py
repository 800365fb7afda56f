"""What vLLM is asked and what it answers, in the words of its `SamplingParams`, which its server uses too.

Everything that would come from the model's `generation_config.json` otherwise is said: temperature, truncation,
penalties, end tokens. The end tokens are the tokenizer's, as for the native engine.

A prompt is asked for all its samples at once; vLLM gives sample g the seed plus g. The seed is folded from (seed, step,
prompt), so a run that comes back asks the same. That the same comes back is not promised: vLLM's numbers depend on
what else it computes at the time, and its TPU backend knows no seed of a request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pttrainer.rollout.engine import Draw, Prompt, Sampling

SEED_BYTES = 6
"""Below 2**48: a seed plus the sample's number is exact in any JSON reader."""


@dataclass(frozen=True)
class Ask:
    """One prompt. is_scored: the log-probs of its own tokens are wanted, too."""

    tokens: tuple[int, ...]
    samples: int
    seed: int
    sampling: Sampling
    end_ids: tuple[int, ...]
    is_scored: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """By the names of `SamplingParams`. The tokens sampled get a log-prob, and no other."""
        sampling = self.sampling
        most = min(sampling.max_new_tokens, sampling.max_length - len(self.tokens))
        return {
            "n": self.samples,
            "seed": self.seed,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": most,
            "min_tokens": min(sampling.min_new_tokens, most),
            "stop": list(sampling.stop),
            "stop_token_ids": list(self.end_ids),
            "ignore_eos": True,  # the server's own; ours are in stop_token_ids
            "skip_special_tokens": True,  # in the text that stop strings are looked for in
            "logprobs": 0,
            **({"prompt_logprobs": 0} if self.is_scored else {}),
        }


class Said(NamedTuple):
    """One sample. stopped: it ended by itself, by an end token or a stop string."""

    tokens: list[int]
    logps: list[float]
    stopped: bool


class Reply(NamedTuple):
    """The samples of one prompt. prompt_logps: of all its tokens but the first, where they were asked for."""

    said: list[Said]
    prompt_logps: list[float]


class Lost(Exception):
    """No answer, or half of one: the server may be back soon, and then without the weights that it was given."""


def asks_of(prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw, eos: Sequence[int]) -> list[Ask]:
    """One per prompt. A greedy prompt is asked for one sample: all are the same, and vLLM refuses to give more."""
    count = 1 if sampling.greedy else samples
    return [Ask(tuple(prompt.tokens), count, seed_of(draw, prompt.number), sampling, tuple(eos)) for prompt in prompts]


def seed_of(draw: Draw, number: int) -> int:
    """Of a prompt's first sample."""
    text = f"{draw.seed} {draw.step} {number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:SEED_BYTES], "big")
