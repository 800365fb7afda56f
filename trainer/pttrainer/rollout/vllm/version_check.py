"""Verify that a server in a pod of its own has a version of the weights, when the trainer may have taken more steps.

A fixed text is scored by the trainer when it makes the version, because its weights may be gone later, and by each
server when it has taken the version over (`weight_check.judge` compares). Left out: how a server samples at another
temperature than 1, because its pod's flags are the operator's.
"""

import numpy as np

from pttrainer.models import Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Sampling
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.rollout.vllm.requests import VllmReply, VllmRequest
from pttrainer.rollout.vllm.weight_check import SEED, TOKENS, Comparison, judge, mean_difference, trainer_logps

TEXT = (
    "A train leaves the town at nine and travels for three hours at eighty kilometres an hour, so it is "
    "two hundred and forty kilometres away at noon. def area(width, height): return width * height. Water"
    " freezes at 0 °C, and it boils at 100 °C. The sum of 17 and 25 is 42, because 17 + 20 = 37 and 37 + "
    "5 = 42. She asked whether the bridge was open, and he said that it had been closed since March. "
    '{"name": "test", "value": [1, 2, 3]} Therefore x = 4 or x = -4, and only the first of them is larger'
    " than zero. The capital of France is Paris, and that of Japan is Tokyo."
)
"""Some of everything that models write: it is likely enough that log-probs mean something."""
_HINT = "the image's vLLM must be 0.32 or later, and serve spec.model.uri without quantization"


class VersionCheck:
    """Compares one server after the other; `trainer` first, for each version."""

    def __init__(self, context: Context, tolerance: float) -> None:
        self._context, self._tolerance = context, tolerance
        length = context.spec.training.sequence_length
        tokens = tuple(context.tokenizer.encode(TEXT)[: min(TOKENS, length - 1)])
        sampling, ends = Sampling(1, length, greedy=True), tuple(context.tokenizer.eos_ids)
        self.request = VllmRequest(tokens, 1, SEED, sampling, ends, is_scored=True)

    def trainer(self, params: Params) -> np.ndarray:
        """Return the trainer's log-probs of the text."""
        tokens = self.request.tokens
        return trainer_logps(self._context, params, tokens, 1.0, slots_for(len(tokens)))

    def compare(self, name: str, trainer_T: np.ndarray, reply: VllmReply, before: Comparison | None) -> Comparison:
        """Return the comparison. before: that of the server's last version. Raises ConfigError if it is too large."""
        server_T = np.array(reply.prompt_logps)
        now = Comparison(server_T, trainer_T, mean_difference(server_T, trainer_T))
        judge(name, now, before, self._tolerance, _HINT)
        return now
