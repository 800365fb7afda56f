"""What the JSON of `/v1/completions` says; read strictly, because half an answer would be trained on.

choices[]  token_ids                          with `return_token_ids` (vLLM 0.10.2)
           logprobs.token_logprobs            one per token; at the temperature, or before it: `check` finds out
           finish_reason                      `stop`, or `length`; `abort` and `error` are no answer
           prompt_logprobs[] {id: {logprob}}  with `prompt_logprobs`; null for the first token
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pttrainer.rollout.vllm.requests import Ask, Lost, Reply, Said


def reply_of(document: Any, ask: Ask) -> Reply:
    """Raises Lost where the document is not the answer to `ask`."""
    try:
        choices = sorted(document["choices"], key=lambda choice: int(choice["index"]))
        if [choice["index"] for choice in choices] != list(range(ask.samples)):
            raise ValueError(f"{len(choices)} choices; asked for {ask.samples}")
        said = [_said(choice, ask) for choice in choices]
        scores = _scores(choices[0]["prompt_logprobs"], ask.tokens) if ask.is_scored else []
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Lost(f"not an answer of vLLM to a completion: {type(error).__name__}: {error}") from error
    return Reply(said, scores)


def _said(choice: Mapping[str, Any], ask: Ask) -> Said:
    tokens, logps, reason = choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]
    if tokens is None:
        raise ValueError("no token_ids; accepted: a server of vLLM 0.10.2 or later, which knows return_token_ids")
    return checked(tokens, logps, reason, ask)


def checked(tokens: Any, logps: Any, reason: str | None, ask: Ask) -> Said:
    """A sample, if it can be one; raises ValueError."""
    if reason not in ("stop", "length"):
        raise ValueError(f"finish_reason is {reason!r}; accepted: stop, length")
    if len(tokens) != len(logps):
        raise ValueError(f"{len(tokens)} tokens with {len(logps)} log-probs")
    if not 0 < len(tokens) <= ask.fields["max_tokens"]:
        raise ValueError(f"{len(tokens)} tokens; asked for 1 to {ask.fields['max_tokens']}")
    numbers = [float(logp) for logp in logps]
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("a log-prob that is not finite")
    return Said([int(token) for token in tokens], numbers, reason == "stop")


def _scores(rows: list[Mapping[str, Any] | None], tokens: tuple[int, ...]) -> list[float]:
    if len(rows) != len(tokens):
        raise ValueError(f"log-probs of {len(rows)} prompt tokens; asked for {len(tokens)}")
    pairs = zip(tokens[1:], rows[1:], strict=True)
    return [float((row or {})[str(token)]["logprob"]) for token, row in pairs]
