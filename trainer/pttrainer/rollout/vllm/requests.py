"""Requests to vLLM and its replies, in terms of its `SamplingParams`, which its server uses too.

Everything that would otherwise come from the model's `generation_config.json` is set: temperature, truncation,
penalties, end tokens. The end tokens are the tokenizer's, as for the native engine.

One request samples all completions of a prompt; vLLM gives sample g the seed plus g. The seed is folded from (seed,
step, prompt), so a resumed run sends the same requests. The same replies are not promised: vLLM's numbers depend on
what else it computes at the time, and its TPU backend ignores a request's seed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pttrainer.rollout.engine import Draw, Prompt, Sampling
from pttrainer.rollout.vllm.image_prompts import ImagePrompt

SEED_BYTES = 6
"""Below 2**48: a seed plus the sample's number is exact in any JSON reader."""


@dataclass(frozen=True)
class VllmRequest:
    """One prompt. is_scored: also return the log-probs of its own tokens. image_prompt: its images, if it has any."""

    tokens: tuple[int, ...]
    samples: int
    seed: int
    sampling: Sampling
    end_ids: tuple[int, ...]
    is_scored: bool = False
    image_prompt: ImagePrompt | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of `SamplingParams`. Only the sampled tokens get a log-prob."""
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


class VllmSample(NamedTuple):
    """One sample. stopped: it ended by itself, with an end token or a stop string."""

    tokens: list[int]
    logps: list[float]
    stopped: bool


class VllmReply(NamedTuple):
    """The samples of one prompt. prompt_logps: of all its tokens but the first, if they were requested."""

    samples: list[VllmSample]
    prompt_logps: list[float]


class VllmUnavailable(Exception):
    """No reply, or half of one: the server may be back soon, and then without the trainer's weights."""


class VllmForgot(VllmUnavailable):
    """The server no longer has the model or the adapter that is asked for: it was started again."""


def requests_of(
    prompts: Sequence[Prompt],
    with_images: Sequence[ImagePrompt | None],
    samples: int,
    sampling: Sampling,
    draw: Draw,
    eos: Sequence[int],
) -> list[VllmRequest]:
    """Return one request per prompt. A greedy one has one sample: all are equal, and vLLM refuses more."""
    count = 1 if sampling.greedy else samples
    return [
        VllmRequest(tuple(prompt.tokens), count, seed_of(draw, prompt.number), sampling, tuple(eos), image_prompt=own)
        for prompt, own in zip(prompts, with_images, strict=True)
    ]


def seed_of(draw: Draw, number: int) -> int:
    """Return the seed of a prompt's first sample."""
    text = f"{draw.seed} {draw.step} {number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:SEED_BYTES], "big")
