"""What the trainer asks of a sampler, as every process of the sampler does it.

Processes that are given the same requests in the same order hold the same versions, refuse the same requests and start
the same programs. Only the calls that sample run programs of all processes together, so they are made one after the
other, on a thread of their own (`sample`); all else may overlap with them.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.models import Params
from pttrainer.rollout.disaggregated.in_flight import remote_calls, rows
from pttrainer.rollout.disaggregated.in_flight.remote_calls import Continuation
from pttrainer.rollout.disaggregated.separate import messages
from pttrainer.rollout.disaggregated.separate.held_weights import HeldWeights, Total
from pttrainer.rollout.disaggregated.separate.messages import Request
from pttrainer.rollout.engine import Completions
from pttrainer.rollout.native.completion_buffer import CompletionBuffer
from pttrainer.rollout.native.native_engine import NativeEngine

Agreement = Callable[[bool], bool]
"""Returns True on every process of a sampler if it is given True on any."""


class TrainerGone(Exception):
    """Nobody waits for these samples any more."""


class Progress:
    """How often anything was sampled in a call, and whether it shall go on."""

    def __init__(self) -> None:
        self.count, self.is_cancelled = 0, False


class _WatchedBuffer(CompletionBuffer):
    """Counts what is sampled, and ends a call that nobody waits for, on all processes at the same tokens."""

    def __init__(self, tokenizer: Tokenizer, request: Request, progress: Progress, agreed: Agreement) -> None:
        super().__init__(tokenizer, request.sampling, len(request.prompts) * request.samples)
        self._progress, self._agreed = progress, agreed

    def record(
        self, tokens_TB: np.ndarray, logps_TB: np.ndarray, owners_TB: np.ndarray, routes_TBLk: np.ndarray | None = None
    ) -> list[int]:
        """Take tokens as the buffer does. Raises TrainerGone."""
        self._progress.count += 1
        if self._agreed(self._progress.is_cancelled):
            raise TrainerGone
        return super().record(tokens_TB, logps_TB, owners_TB, routes_TBLk)


class SamplerWork:
    """Samples with `engine` and the versions in `weights`. agreed: among the processes of the sampler."""

    def __init__(
        self,
        engine: NativeEngine,
        tokenizer: Tokenizer,
        weights: HeldWeights,
        agreed: Agreement = lambda flag: flag,
    ) -> None:
        self._engine, self._tokenizer, self.weights, self._agreed = engine, tokenizer, weights, agreed
        self._sampling = ThreadPoolExecutor(1, "sampling")

    def begin(self, body: bytes) -> None:
        """Begin a version. Raises VersionMissing, or an error of what is no request."""
        head = json.loads(body)
        self.weights.begin(head["version"], head["base"], head["keep"])

    def tensors(self, body: bytes) -> None:
        """Take weights. Raises VersionMissing or MessageError."""
        message = messages.decode(body)
        at = 0
        for name, layer, form, count in message.head["weights"]:
            self.weights.put(message.head["version"], (name, layer), form, list(message.arrays[at : at + count]))
            at += count

    def finish(self, body: bytes, total: Total) -> None:
        """End a version. Raises VersionMissing."""
        head = json.loads(body)
        self.weights.finish(head["version"], {(name, layer): value for name, layer, value in head["sums"]}, total)

    def sample(self, action: Callable[[], Any]) -> Future[Any]:
        """Run an action after those before it."""
        return self._sampling.submit(action)

    def generate(self, request: Request, params: Params, progress: Progress) -> Sequence[bytes | memoryview]:
        """Return completions, as `NativeEngine.generate` does. Only in `sample`. Raises TrainerGone."""
        buffer = _WatchedBuffer(self._tokenizer, request, progress, self._agreed)
        prompt_routes: list[np.ndarray] = []
        facts = self._engine.generate_into(
            buffer, params, request.prompts, request.samples, request.sampling, request.draw, prompt_routes
        )
        done: Completions = buffer.completions()._replace(facts=facts)
        return messages.encode_completions(done if done.routes is None else done._replace(prompt_routes=prompt_routes))

    def go_on(self, request: Continuation, params: Params, progress: Progress) -> Sequence[bytes | memoryview]:
        """Return what is added to samples until the call's goal is reached. Only in `sample`. Raises TrainerGone."""
        before = [len(sample.tokens) for group in request.groups for sample in group.samples]

        def is_enough() -> bool:
            progress.count += 1
            if self._agreed(progress.is_cancelled):
                raise TrainerGone
            return request.goal.is_reached(request.groups)

        of = request.groups, request.sampling, request.seed, request.at_once
        rows.go_on(self._engine, params, 0, *of, is_enough)
        return remote_calls.encode_reply(remote_calls.added(request.groups, before))

    def forget(self) -> None:
        """Drop kept prompts. Only in `sample`."""
        self._engine.forget()

    def close(self) -> None:
        """Take no more calls that sample."""
        self._sampling.shutdown(wait=False, cancel_futures=True)
