"""Verify that vLLM has the trainer's weights: its log-probs of some of the job's text, against the trainer's.

vLLM scores a few concatenated prompts (their log-probs do not depend on the temperature) and samples on from there with
the job's parameters (those do). With images it is the first prompt that has some, whole, so that the vision tower is
compared, too; the tokens of its images are not. The trainer scores the same tokens. Then

    mean |server − trainer| ≤ tolerance            for both parts, else weights, model, precision or temperature differ
    the server's part changes                      when the trainer's did; bit-equal values mean it kept the old weights

The second finds an update that is accepted and ignored while weights are still too close for the first to notice.
Sensitivity: a change of the trainer's own log-probs below `STILL` is not checked.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pttrainer.batch import Batch, Images
from pttrainer.errors import ConfigError
from pttrainer.models import Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Prompt, Sampling
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.rollout.vllm.image_prompts import image_prompts
from pttrainer.rollout.vllm.requests import VllmReply, VllmRequest
from pttrainer.runtime.distributed import sharding

TOKENS, NEW_TOKENS = 256, 32
"""Tokens of the text, and of the sample after it."""
STILL = 1e-3
"""Mean change of the trainer's log-probs, in nats, below which the server's may stay equal: bfloat16 rounds it away."""
SEED = 20


class Comparison(NamedTuple):
    """One comparison. server_T, trainer_T: log-probs of the text; difference: the larger mean of both parts."""

    server_T: np.ndarray
    trainer_T: np.ndarray
    difference: float


class WeightCheck:
    """Compares after every weight update; `name` is the server's, for messages."""

    def __init__(self, context: Context, prompts: Sequence[Prompt], tolerance: float, name: str) -> None:
        self._context, self._tolerance, self._name = context, tolerance, name
        new = min(NEW_TOKENS, context.spec.rollout.max_new_tokens)
        length = context.spec.training.sequence_length
        text = [token for prompt in prompts for token in prompt.tokens][: min(TOKENS, length - new)]
        how = Sampling(new, length, temperature=context.spec.rollout.temperature)
        of_text = Prompt(text, SEED)
        self._prompt = next((prompt for prompt in prompts if prompt.images is not None), of_text)
        [image_prompt] = image_prompts(context.chat, [self._prompt])
        ends = tuple(context.tokenizer.eos_ids)
        self.request = VllmRequest(
            tuple(self._prompt.tokens), 1, SEED, how, ends, is_scored=True, image_prompt=image_prompt
        )
        self._before: Comparison | None = None

    def compare(self, params: Params, reply: VllmReply) -> float:
        """Return the difference. Raises ConfigError if it is too large, or if nothing changed that should have."""
        sample, text = reply.samples[0], list(self.request.tokens)
        ids, temperature = [*text, *sample.tokens], self.request.sampling.temperature
        trainer = self._trainer(params, ids, 1.0)
        heated = trainer if temperature == 1.0 else self._trainer(params, ids, temperature)
        is_text_T = self._is_text(text[1:])
        server_T, trainer_T = np.array(reply.prompt_logps)[is_text_T], trainer[: len(text) - 1][is_text_T]
        text_difference = mean_difference(server_T, trainer_T)
        sample_difference = mean_difference(np.array(sample.logps), heated[len(text) - 1 :])
        comparison = Comparison(server_T, trainer_T, max(text_difference, sample_difference))
        self._judge(comparison, text_difference)
        self._before = comparison
        return comparison.difference

    def _judge(self, comparison: Comparison, text_difference: float) -> None:
        hint = "the server must serve spec.model.uri in its own precision, without quantization"
        if text_difference <= self._tolerance:  # scored tokens agree, sampled ones do not
            hint = "vllm serve --logprobs-mode processed_logprobs, because rollout.temperature is not 1"
        judge(self._name, comparison, self._before, self._tolerance, hint)

    def _is_text(self, ids: Sequence[int]) -> np.ndarray:
        """Return which of the tokens are not of an image."""
        parts = self._context.chat.images if self._prompt.images is not None else None
        return np.isin(ids, [] if parts is None else list(parts.ids), invert=True)

    def _images(self, rows: int, slots: int) -> Images | None:
        """Return the prompt's images for rows of so many tokens, all alike."""
        own = self._prompt.images
        if own is None:
            return None
        slots_T = np.zeros(slots, np.int32)
        slots_T[: len(own.slots_BT[0])] = own.slots_BT[0]
        return Images(np.repeat(own.pixels_BMSSC, rows, axis=0), np.tile(slots_T, (rows, 1)))

    def _trainer(self, params: Params, ids: Sequence[int], temperature: float) -> np.ndarray:
        """Return the log-probs of all tokens but the first."""
        slots = slots_for(len(self.request.tokens) + self.request.sampling.max_new_tokens)
        return trainer_logps(self._context, params, ids, temperature, slots, self._images)


def judge(name: str, now: Comparison, before: Comparison | None, tolerance: float, hint: str) -> None:
    """Raise ConfigError if log-probs differ too much, or nothing changed that should have. name: the server's."""
    if before is not None and np.array_equal(before.server_T, now.server_T):
        moved = mean_difference(before.trainer_T, now.trainer_T)
        if moved > STILL:
            raise ConfigError(
                f"spec.rollout.vllm: {name} says that it has the new weights and answers as before to the "
                f"last bit, while the trainer's log-probs moved by {moved:.2g}; hint: an adapter or a reload that "
                "this version of vLLM takes and ignores"
            )
    if not now.difference <= tolerance:
        raise ConfigError(
            f"spec.rollout.vllm: log-probs of {name} differ from the trainer's by "
            f"{now.difference:.3g} nats a token; accepted: tolerance: {tolerance:g}; hint: {hint}"
        )


def trainer_logps(
    context: Context,
    params: Params,
    ids: Sequence[int],
    temperature: float,
    slots: int,
    images: Callable[[int, int], Images | None] = lambda rows, slots: None,
) -> np.ndarray:
    """Return the trainer's log-probs of all tokens but the first. images: of so many rows of so many slots."""
    rows = sharding.mesh_size(context.mesh, "batch")
    count = len(ids) - 1
    tokens, targets, positions, segments = (np.zeros((rows, slots), np.int32) for _ in range(4))
    mask = np.zeros((rows, slots), np.float32)
    tokens[:, :count], targets[:, :count] = ids[:-1], ids[1:]
    positions[:, :count], segments[:, :count], mask[:, :count] = np.arange(count), 1, 1.0
    batch = Batch(tokens, targets, positions, segments, mask, np.zeros_like(mask), images=images(rows, slots))
    return np.asarray(context.score(params, batch, temperature).logps_BT[0, :count])


def mean_difference(a: np.ndarray, b: np.ndarray) -> float:
    """Return the mean absolute difference; 0 of nothing."""
    return float(np.mean(np.abs(a - b))) if a.size else 0.0
