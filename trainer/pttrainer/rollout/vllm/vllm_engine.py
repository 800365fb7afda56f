"""The engine that asks vLLM. Where weights changed since it was last asked, they are renewed first, and checked.

A rollout that is lost half-way (no connection, a broken answer) is asked again as a whole, weights included: a server
that comes back has those that it was started with. After the last try the run ends with `ServiceLost`, whose exit code
starts it again from its checkpoint.

What vLLM says of a token is not to the last bit what the trainer says of it; the loss corrects for that (importance
weights, truncated), and `sampler/…` shows how much.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from ptapi.spec import Vllm as VllmSpec
from pttrainer.errors import ConfigError, ServiceLost
from pttrainer.models import Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native.completion_buffer import Ledger
from pttrainer.rollout.vllm.http_server import Server
from pttrainer.rollout.vllm.in_process import InProcess
from pttrainer.rollout.vllm.requests import Ask, Lost, Reply, Said, asks_of
from pttrainer.rollout.vllm.weight_check import Check
from pttrainer.rollout.vllm.weight_files import Version, Weights
from pttrainer.runtime.distributed import processes

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class Client(Protocol):
    """A way to vLLM. Each method raises Lost where trying again may help, ConfigError where it cannot."""

    takes_adapters: bool
    name: str

    def wait(self, tell: Callable[[str], None]) -> None:
        """Until it can be asked; tells a person now and then."""
        ...

    def load(self, version: Version) -> None:
        """These weights, or this adapter, in place of those before."""
        ...

    def ask(self, asks: Sequence[Ask]) -> list[Reply]:
        """A reply to each, in order."""
        ...

    def give_up(self) -> None:
        """Ends what is under way."""
        ...


class VllmEngine:
    """Samples with vLLM. The facts of completions say what renewing the weights took."""

    def __init__(self, context: Context, client: Client, root: str | None, retries: int, tolerance: float) -> None:
        if jax.process_count() > 1:
            raise ConfigError(
                f"spec.rollout.engine: vllm: needs one process that drives all chips, and this run has "
                f"{jax.process_count()}; hint: pathways: {{enabled: true}}, or engine: native"
            )
        self._context, self._client, self._retries, self._tolerance = context, client, retries, tolerance
        as_adapters = client.takes_adapters and context.model.adapters is not None
        self._weights = Weights(context, root, as_adapters=as_adapters)
        self._held: list[weakref.ref[Any]] | None = None
        self._check: Check | None = None

    def generate(
        self, params: Params, prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw
    ) -> Completions:
        """`samples` completions of each prompt. A prompt that stands there twice is asked once."""
        asks = asks_of(prompts, samples, sampling, draw, self._context.tokenizer.eos_ids)
        once = dict.fromkeys(asks)
        sync_s = 0.0
        for attempt in range(self._retries + 1):
            try:
                sync_s += self._renew(params, prompts)
                replies = dict(zip(once, self._client.ask(list(once)), strict=True))
                done = self._completions([replies[ask] for ask in asks], samples, sampling)
                return done._replace(facts={"seconds/sync": sync_s})
            except Lost as lost:
                self._held = None
                self._client.give_up()
                self._pause(attempt, lost)
        raise AssertionError("the last try raised")

    def _pause(self, attempt: int, lost: Lost) -> None:
        if attempt == self._retries:
            raise ServiceLost(
                f"spec.rollout.vllm: {lost} ({attempt + 1} tries); hint: look at the server's log; the run goes on "
                "from its checkpoint when it is started again"
            ) from lost
        pause = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
        self._context.note(f"{lost}; asking again in {pause:g} s (try {attempt + 2} of {self._retries + 1})")
        time.sleep(pause)

    def _renew(self, params: Params, prompts: Sequence[Prompt]) -> float:
        """Gives vLLM these weights, unless it has them; the seconds that it took."""
        leaves = jax.tree.leaves(params)
        if self._held is not None and all(ref() is leaf for ref, leaf in zip(self._held, leaves, strict=True)):
            return 0.0
        began = time.monotonic()
        self._client.wait(self._context.note)
        version = self._weights.lay_down(params)
        self._client.load(version)
        self._compare(params, prompts)
        self._held = [weakref.ref(leaf) for leaf in leaves]
        self._weights.keep_only(version)
        return time.monotonic() - began

    def _compare(self, params: Params, prompts: Sequence[Prompt]) -> None:
        is_first = self._check is None
        if self._check is None:
            self._check = Check(self._context, prompts, self._tolerance, self._client.name)
        difference = self._check.compare(params, self._client.ask([self._check.ask])[0])
        if is_first:
            self._context.note(
                f"{self._client.name}: has the weights; its log-probs are the trainer's within {difference:.2g} nats"
            )

    def _completions(self, replies: Sequence[Reply], samples: int, sampling: Sampling) -> Completions:
        """Cut where the native engine would cut: the same end tokens, the same stop strings."""
        said: list[Said] = []
        for reply in replies:
            said += reply.said * (samples // len(reply.said))
        ledger = Ledger(self._context.tokenizer, sampling, len(said))
        for row, one in enumerate(said):
            tokens_T1, logps_T1 = np.array(one.tokens)[:, None], np.array(one.logps, np.float32)[:, None]
            ledger.record(tokens_T1, logps_T1, np.full_like(tokens_T1, row))
        found = ledger.completions()
        return found._replace(ended_N=found.ended_N | [one.stopped for one in said])


def vllm_engine(context: Context, spec: VllmSpec) -> VllmEngine:
    """As the job says; raises ConfigError."""
    longest = context.spec.training.sequence_length
    client: Client
    if spec.endpoint is None:
        temperature = context.spec.rollout.temperature
        client = InProcess(spec.memory_share, longest, context.model.compute_dtype, temperature)
    else:
        key = None if spec.api_key_env is None else processes.secret(spec.api_key_env, "spec.rollout.vllm.apiKeyEnv")
        client = Server(spec.endpoint, spec.model, key, spec.concurrency, spec.timeout_seconds, longest)
    return VllmEngine(context, client, spec.weights_directory, spec.retries, spec.tolerance)
