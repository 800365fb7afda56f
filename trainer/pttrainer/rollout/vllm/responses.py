"""Parse the JSON of completions, strictly, because half a reply would be trained on.

Of `/v1/completions`:

choices[]  token_ids                          with `return_token_ids` (vLLM 0.10.2)
           logprobs.token_logprobs            one per token; at the temperature, or before it: see `weight_check`
           finish_reason                      `stop`, or `length`; `abort` and `error` are no reply
           prompt_logprobs[] {id: {logprob}}  with `prompt_logprobs`; null for the first token

Of `/inference/v1/generate`, for prompts with images:

choices[]  token_ids, finish_reason
           logprobs.content[] {token_id, logprob}
prompt_token_ids                              with `return_token_ids`: the prompt with all tokens of its images
prompt_logprobs[] {id: {logprob}}
"""

import math
from collections.abc import Mapping
from typing import Any

from pttrainer.rollout.vllm.image_prompts import check_tokens
from pttrainer.rollout.vllm.requests import VllmReply, VllmRequest, VllmSample, VllmUnavailable


def reply_of(document: Any, request: VllmRequest) -> VllmReply:
    """Return the reply to `request`. Raises VllmUnavailable if the document is none."""
    try:
        choices = sorted(document["choices"], key=lambda choice: int(choice["index"]))
        if [choice["index"] for choice in choices] != list(range(request.samples)):
            raise ValueError(f"{len(choices)} choices; asked for {request.samples}")
        samples = [_sample(choice, request) for choice in choices]
        scores = _scores(choices[0]["prompt_logprobs"], request.tokens) if request.is_scored else []
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise VllmUnavailable(f"not an answer of vLLM to a completion: {type(error).__name__}: {error}") from error
    return VllmReply(samples, scores)


def reply_with_images(document: Any, request: VllmRequest, name: str) -> VllmReply:
    """Return the reply to a request with images; name: vLLM's, for messages.

    Raises VllmUnavailable if the document is none, ConfigError if the prompt became other tokens than the trainer's.
    """
    try:
        received = [int(token) for token in document["prompt_token_ids"]]
        scored = {"prompt_logprobs": document["prompt_logprobs"]} if request.is_scored else {}
        completions = {"choices": [_as_completion(each, scored) for each in document["choices"]]}
    except (KeyError, TypeError, ValueError) as error:
        raise VllmUnavailable(
            f"not an answer of vLLM to a prompt with images: {type(error).__name__}: {error}"
        ) from error
    check_tokens(name, request.tokens, received)
    return reply_of(completions, request)


def _as_completion(choice: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice as `/v1/completions` has it."""
    logps = [each["logprob"] for each in choice["logprobs"]["content"]]
    return {**choice, "logprobs": {"token_logprobs": logps}, **more}


def _sample(choice: Mapping[str, Any], request: VllmRequest) -> VllmSample:
    tokens, logps, reason = choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]
    if tokens is None:
        raise ValueError("no token_ids; accepted: a vLLM server 0.10.2 or later, which knows return_token_ids")
    return checked(tokens, logps, reason, request)


def checked(tokens: Any, logps: Any, reason: str | None, request: VllmRequest) -> VllmSample:
    """Return a valid sample. Raises ValueError."""
    if reason not in ("stop", "length"):
        raise ValueError(f"finish_reason is {reason!r}; accepted: stop, length")
    if len(tokens) != len(logps):
        raise ValueError(f"{len(tokens)} tokens with {len(logps)} log-probs")
    if not 0 < len(tokens) <= request.fields["max_tokens"]:
        raise ValueError(f"{len(tokens)} tokens; asked for 1 to {request.fields['max_tokens']}")
    numbers = [float(logp) for logp in logps]
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("a log-prob that is not finite")
    return VllmSample([int(token) for token in tokens], numbers, reason == "stop")


def _scores(rows: list[Mapping[str, Any] | None], tokens: tuple[int, ...]) -> list[float]:
    if len(rows) != len(tokens):
        raise ValueError(f"log-probs of {len(rows)} prompt tokens; asked for {len(tokens)}")
    pairs = zip(tokens[1:], rows[1:], strict=True)
    return [float((row or {})[str(token)]["logprob"]) for token, row in pairs]
