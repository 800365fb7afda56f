"""vLLM inside the trainer's process: the package's own `LLM`, on the devices that train.

The first weights make the engine; later ones are read in place by its workers (`collective_rpc("reload_weights")`), and
the cache of prompts is dropped. Adapters are merged into the weights: they are on this machine anyway.

Written against vLLM 0.32.0's sources and never run with the package: see docs/reference/not-run.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from pttrainer.errors import ConfigError
from pttrainer.rollout.sizes import VLLM_SHARE
from pttrainer.rollout.vllm.answers import checked
from pttrainer.rollout.vllm.asking import Ask, Lost, Reply
from pttrainer.rollout.vllm.weights import Version


class InProcess:
    """The package as a client. longest: tokens of the longest row that the job asks for."""

    takes_adapters = False
    name = "vLLM in this process"

    def __init__(self, memory_share: float | None, longest: int) -> None:
        self._vllm = _package()
        self._memory_share, self._longest = memory_share or VLLM_SHARE, longest
        self._llm: Any = None

    def wait(self, tell: Callable[[str], None]) -> None:
        """It is here."""

    def load(self, version: Version) -> None:
        """All weights: `takes_adapters` is false."""
        if self._llm is not None:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(version.directory)})
            if not self._llm.reset_prefix_cache():
                raise Lost(f"{self.name}: its prefix cache stays in use")
            return
        self._llm = self._vllm.LLM(
            model=str(version.directory),
            max_model_len=self._longest,
            gpu_memory_utilization=self._memory_share,
            logprobs_mode="processed_logprobs",  # at the temperature, as the trainer's are
        )

    def ask(self, asks: Sequence[Ask]) -> list[Reply]:
        """Replies in order."""
        prompts = [self._vllm.TokensPrompt(prompt_token_ids=list(ask.tokens)) for ask in asks]
        params = [self._vllm.SamplingParams(**ask.fields) for ask in asks]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [_reply(output, ask) for output, ask in zip(outputs, asks, strict=True)]

    def give_up(self) -> None:
        """`generate` ends by itself."""


def _package() -> Any:
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise ConfigError(
            f"spec.rollout.engine: vllm: the package vllm cannot be imported here ({error}); hint: spec.image with "
            "`pip install vllm` (on TPUs vllm-tpu), or rollout.vllm.endpoint for a server beside the job"
        ) from error


def _reply(output: Any, ask: Ask) -> Reply:
    samples = sorted(output.outputs, key=lambda sample: sample.index)
    try:
        said = [
            checked(
                sample.token_ids,
                [row[token].logprob for token, row in zip(sample.token_ids, sample.logprobs, strict=True)],
                sample.finish_reason,
                ask,
            )
            for sample in samples
        ]
    except ValueError as error:
        raise Lost(f"{InProcess.name}: {error}") from error
    rows = output.prompt_logprobs[1:] if ask.is_scored else []
    return Reply(said, [row[token].logprob for token, row in zip(ask.tokens[1:], rows, strict=False)])
