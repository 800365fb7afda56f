"""Proof that vLLM has the trainer's weights: its log-probs of a text of the job's own, beside the trainer's.

vLLM scores a few prompts in a row (their log-probs do not know the temperature) and goes on from there as the job
samples (those do). The trainer scores the same tokens. Then

    mean |server − trainer| ≤ tolerance            for both parts, else weights, model, precision or temperature differ
    the server's part changes                      when the trainer's did, to the last bit else: it kept the old weights

The second finds a renewal that is taken and ignored while weights are still so near that the first cannot see it.
Sensitivity: a change of the trainer's own log-probs below `STILL` is not looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pttrainer.batch import Batch
from pttrainer.errors import ConfigError
from pttrainer.models import Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Prompt, Sampling
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.rollout.vllm.requests import Ask, Reply
from pttrainer.runtime.distributed import sharding

TOKENS, NEW_TOKENS = 256, 32
"""Of the text, and of what is said after it."""
STILL = 1e-3
"""Mean change of the trainer's log-probs, in nats, below which a server's may stand still: bfloat16 rounds it away."""
SEED = 20


class Found(NamedTuple):
    """One look. server_T, trainer_T: log-probs of the text; difference: the larger mean of both parts."""

    server_T: np.ndarray
    trainer_T: np.ndarray
    difference: float


class Check:
    """Compares after every renewal; `name` is the server's, for its messages."""

    def __init__(self, context: Context, prompts: Sequence[Prompt], tolerance: float, name: str) -> None:
        self._context, self._tolerance, self._name = context, tolerance, name
        new = min(NEW_TOKENS, context.spec.rollout.max_new_tokens)
        length = context.spec.training.sequence_length
        text = [token for prompt in prompts for token in prompt.tokens][: min(TOKENS, length - new)]
        how = Sampling(new, length, temperature=context.spec.rollout.temperature)
        self.ask = Ask(tuple(text), 1, SEED, how, tuple(context.tokenizer.eos_ids), is_scored=True)
        self._before: Found | None = None

    def compare(self, params: Params, reply: Reply) -> float:
        """The difference; raises ConfigError where it is too large, or where nothing changed that should have."""
        said, text = reply.said[0], list(self.ask.tokens)
        ids, temperature = [*text, *said.tokens], self.ask.sampling.temperature
        trainer = self._trainer(params, ids, 1.0)
        heated = trainer if temperature == 1.0 else self._trainer(params, ids, temperature)
        server_T, trainer_T = np.array(reply.prompt_logps), trainer[: len(text) - 1]
        of_text = _mean_difference(server_T, trainer_T)
        of_said = _mean_difference(np.array(said.logps), heated[len(text) - 1 :])
        found = Found(server_T, trainer_T, max(of_text, of_said))
        self._judge(found, of_text)
        self._before = found
        return found.difference

    def _judge(self, found: Found, of_text: float) -> None:
        before = self._before
        if before is not None and np.array_equal(before.server_T, found.server_T):
            moved = _mean_difference(before.trainer_T, found.trainer_T)
            if moved > STILL:
                raise ConfigError(
                    f"spec.rollout.vllm: {self._name} says that it has the new weights and answers as before to the "
                    f"last bit, while the trainer's log-probs moved by {moved:.2g}; hint: an adapter or a reload that "
                    "this version of vLLM takes and ignores"
                )
        if not found.difference <= self._tolerance:
            raise ConfigError(
                f"spec.rollout.vllm: log-probs of {self._name} differ from the trainer's by {found.difference:.3g} "
                f"nats a token; accepted: tolerance: {self._tolerance:g}; hint: {self._hint(of_text)}"
            )

    def _hint(self, of_text: float) -> str:
        if of_text <= self._tolerance:  # of what it scored they agree, and not of what it sampled
            return "vllm serve --logprobs-mode processed_logprobs, because rollout.temperature is not 1"
        return "the server must serve spec.model.uri in its own precision, without quantization"

    def _trainer(self, params: Params, ids: Sequence[int], temperature: float) -> np.ndarray:
        """Log-probs of all tokens but the first."""
        rows = sharding.mesh_size(self._context.mesh, "batch")
        slots = slots_for(len(self.ask.tokens) + self.ask.sampling.max_new_tokens)
        count = len(ids) - 1
        tokens, targets, positions, segments = (np.zeros((rows, slots), np.int32) for _ in range(4))
        mask = np.zeros((rows, slots), np.float32)
        tokens[:, :count], targets[:, :count] = ids[:-1], ids[1:]
        positions[:, :count], segments[:, :count], mask[:, :count] = np.arange(count), 1, 1.0
        batch = Batch(tokens, targets, positions, segments, mask, np.zeros_like(mask))
        return np.asarray(self._context.score(params, batch, temperature).logps_BT[0, :count])


def _mean_difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean(np.abs(a - b))) if a.size else 0.0
