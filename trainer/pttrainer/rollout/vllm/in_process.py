"""vLLM beside the trainer: the package's own `LLM`, on the devices that train.

The first weights make the engine; later ones are read in place by its workers (`collective_rpc("reload_weights")`), and
the cache of prompts is dropped. Adapters are merged into the weights: they are on this machine anyway. The engine is a
child process, which ends with this one; one that died is made anew from the weights that are given next.

Run with the CPU build of vLLM 0.32.0; see docs/reference/not-run.md.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pttrainer.errors import ConfigError
from pttrainer.rollout.native.buckets import VLLM_SHARE
from pttrainer.rollout.vllm.requests import Ask, Lost, Reply
from pttrainer.rollout.vllm.responses import checked
from pttrainer.rollout.vllm.weight_files import Version


class InProcess:
    """The package as a client. longest: tokens of the longest row that the job asks for; dtype: what the trainer
    computes in."""

    takes_adapters = False
    name = "vLLM in this process"

    def __init__(self, memory_share: float | None, longest: int, dtype: str, temperature: float) -> None:
        self._vllm = _package()
        self._how = {
            "max_model_len": longest,
            "dtype": dtype,  # its own choice for float32 weights is another format
            "gpu_memory_utilization": memory_share or VLLM_SHARE,
            # At the temperature and after truncation, or before both: as the native engine's where one is enough.
            "logprobs_mode": "raw_logprobs" if temperature == 1.0 else "processed_logprobs",
        }
        self._llm: Any = None

    def wait(self, tell: Callable[[str], None]) -> None:
        """It is here."""

    def load(self, version: Version) -> None:
        """All weights: `takes_adapters` is false."""
        if self._llm is None:
            self._llm = self._started(version)
            return
        with self._alive():
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(version.directory)})
            if not self._llm.reset_prefix_cache():
                raise RuntimeError("its prefix cache stays in use")

    def ask(self, asks: Sequence[Ask]) -> list[Reply]:
        """Replies in order."""
        prompts = [self._vllm.TokensPrompt(prompt_token_ids=list(ask.tokens)) for ask in asks]
        params = [self._vllm.SamplingParams(**ask.fields) for ask in asks]
        with self._alive():
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [_reply(output, ask) for output, ask in zip(outputs, asks, strict=True)]

    def give_up(self) -> None:
        """`generate` ends by itself."""

    def _started(self, version: Version) -> Any:
        try:
            return self._vllm.LLM(model=str(version.directory), **self._how)
        except Exception as error:  # it raises its own kinds, RuntimeError, ValueError, and what torch raises
            raise ConfigError(
                f"spec.rollout.vllm: vLLM does not start in this process: {type(error).__name__}: {error}; hint: the "
                "lines of vLLM above say why; memoryShare, if its memory is too small or too large"
            ) from error

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """What fails here took the engine's process with it, or left it in doubt: the next load makes another."""
        try:
            yield
        except Exception as error:
            self._llm = None
            raise Lost(f"{self.name}: {type(error).__name__}: {error}") from error


def _package() -> Any:
    # A forked child would have JAX's locks without its threads, and on a GPU a CUDA that it cannot use.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
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
