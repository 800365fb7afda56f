"""The engine that samples with vLLM. If the weights have changed since its last call, it updates and checks them first.

A rollout that is lost half-way (no connection, a broken reply) is requested again as a whole, weights included: a
restarted server has those that it was started with. After the last try the run ends with `ServiceLost`, whose exit code
restarts it from its checkpoint.

vLLM's log-probs are not bit-equal to the trainer's; the loss corrects for that (truncated importance weights), and
`sampler/…` shows the difference.
"""

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from ptapi.spec import Vllm as VllmSpec
from pttrainer.data.tokenization.crops import CropFormat
from pttrainer.data.tokenization.tiles import TileFormat
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError, ServiceLost
from pttrainer.models import Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native.completion_buffer import CompletionBuffer
from pttrainer.rollout.vllm.http_server import ServerClient
from pttrainer.rollout.vllm.image_prompts import image_prompts
from pttrainer.rollout.vllm.in_process import InProcessClient
from pttrainer.rollout.vllm.requests import VllmReply, VllmRequest, VllmSample, VllmUnavailable, requests_of
from pttrainer.rollout.vllm.weight_check import WeightCheck
from pttrainer.rollout.vllm.weight_files import WeightFiles, WeightVersion
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.reporting import spans

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class Client(Protocol):
    """A way to reach vLLM. Each method raises VllmUnavailable if a retry may help, ConfigError if not."""

    takes_adapters: bool
    name: str

    def wait(self, note: Callable[[str], None]) -> None:
        """Wait until it can be used, with a note to people now and then."""
        ...

    def load(self, version: WeightVersion) -> None:
        """Replace the weights, or the adapter."""
        ...

    def generate(self, requests: Sequence[VllmRequest]) -> list[VllmReply]:
        """Return a reply to each request, in order."""
        ...

    def cancel(self) -> None:
        """Cancel what is in progress."""
        ...


class VllmEngine:
    """Samples with vLLM. The facts of completions include the seconds of a weight update."""

    def __init__(self, context: Context, client: Client, root: str | None, retries: int, tolerance: float) -> None:
        if jax.process_count() > 1:
            raise ConfigError(
                f"spec.rollout.engine: vllm: needs one process that drives all chips, and this run has "
                f"{jax.process_count()}; hint: pathways: {{enabled: true}}, or engine: native"
            )
        self._context, self._client, self._retries, self._tolerance = context, client, retries, tolerance
        as_adapters = client.takes_adapters and context.model.adapters is not None
        self._weights = WeightFiles(context, root, as_adapters=as_adapters)
        self._sent: list[weakref.ref[Any]] | None = None
        self._check: WeightCheck | None = None

    def generate(
        self, params: Params, prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw
    ) -> Completions:
        """Sample `samples` completions of each prompt. A repeated prompt is requested once."""
        with_images, eos = image_prompts(self._context.chat, prompts), self._context.tokenizer.eos_ids
        requests = requests_of(prompts, with_images, samples, sampling, draw, eos)
        once = dict.fromkeys(requests)
        sync_s = 0.0
        for attempt in range(self._retries + 1):
            try:
                sync_s += self._renew(params, prompts)
                replies = dict(zip(once, self._client.generate(list(once)), strict=True))
                ordered = [replies[request] for request in requests]
                done = completions_of(self._context.tokenizer, ordered, samples, sampling)
                return done._replace(facts={"seconds/sync": sync_s})
            except VllmUnavailable as unavailable:
                self._sent = None
                self._client.cancel()
                self._pause(attempt, unavailable)
        raise AssertionError("the last try raised")

    def forget(self) -> None:
        """Do nothing: vLLM makes room for other prompts by itself, and forgets them all with the old weights."""

    def _pause(self, attempt: int, unavailable: VllmUnavailable) -> None:
        if attempt == self._retries:
            raise ServiceLost(
                f"spec.rollout.vllm: {unavailable} ({attempt + 1} tries); hint: check the server's log; the run "
                "resumes from its checkpoint when it is started again"
            ) from unavailable
        pause = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
        self._context.note(f"{unavailable}; retrying in {pause:g} s (try {attempt + 2} of {self._retries + 1})")
        time.sleep(pause)

    def _renew(self, params: Params, prompts: Sequence[Prompt]) -> float:
        """Send these weights to vLLM, unless it has them; return the seconds that took."""
        leaves = jax.tree.leaves(params)
        if self._sent is not None and all(ref() is leaf for ref, leaf in zip(self._sent, leaves, strict=True)):
            return 0.0
        began = time.monotonic()
        with spans.span("sync"):
            self._client.wait(self._context.note)
            version = self._weights.write(params)
            self._client.load(version)
            self._compare(params, prompts)
        self._sent = [weakref.ref(leaf) for leaf in leaves]
        self._weights.keep_only(version)
        return time.monotonic() - began

    def _compare(self, params: Params, prompts: Sequence[Prompt]) -> None:
        is_first = self._check is None
        if self._check is None:
            self._check = WeightCheck(self._context, prompts, self._tolerance, self._client.name)
        difference = self._check.compare(params, self._client.generate([self._check.request])[0])
        if is_first:
            self._context.note(
                f"{self._client.name}: has the weights; its log-probs match the trainer's within {difference:.2g} nats"
            )


def completions_of(tokenizer: Tokenizer, replies: Sequence[VllmReply], samples: int, sampling: Sampling) -> Completions:
    """Cut where the native engine would cut: the same end tokens, the same stop strings."""
    outputs: list[VllmSample] = []
    for reply in replies:
        outputs += reply.samples * (samples // len(reply.samples))
    ledger = CompletionBuffer(tokenizer, sampling, len(outputs))
    for row, one in enumerate(outputs):
        tokens_T1, logps_T1 = np.array(one.tokens)[:, None], np.array(one.logps, np.float32)[:, None]
        ledger.record(tokens_T1, logps_T1, np.full_like(tokens_T1, row))
    completions = ledger.completions()
    return completions._replace(ended_N=completions.ended_N | [one.stopped for one in outputs])


def vllm_engine(context: Context, spec: VllmSpec) -> VllmEngine:
    """Build the engine that the job describes. Raises ConfigError."""
    if isinstance(context.chat.pixels, TileFormat):
        raise ConfigError(
            "spec.rollout.engine: vllm: cannot be sent pictures cut into tiles (Llama 4): the trainer's arrays do not "
            "give back the whole picture; accepted with spec.model.images: native"
        )
    if isinstance(context.chat.pixels, CropFormat):
        raise ConfigError(
            "spec.rollout.engine: vllm: cannot be sent pictures with crops, which its own processor cuts; accepted "
            "with spec.model.panAndScan: native"
        )
    longest = context.spec.training.sequence_length
    client: Client
    if spec.endpoint is None:
        temperature = context.spec.rollout.temperature
        client = InProcessClient(spec.memory_share, longest, context.model.compute_dtype, temperature)
    else:
        key = None if spec.api_key_env is None else processes.secret(spec.api_key_env, "spec.rollout.vllm.apiKeyEnv")
        client = ServerClient(
            spec.endpoint, spec.model, key, spec.concurrency, spec.timeout_seconds, longest, note=context.note
        )
    return VllmEngine(context, client, spec.weights_directory, spec.retries, spec.tolerance)
