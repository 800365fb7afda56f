"""vLLM next to the trainer: the package's own `LLM`, on the devices that train.

The first weights create the engine; later ones are read in place by its workers (`collective_rpc("reload_weights")`),
and the cache of prompts is dropped. Adapters are merged into the weights: they are on this machine anyway. The engine
is a child process, which ends with this one; if it dies, it is created again from the next weights.

Run with the CPU build of vLLM 0.32.0; see docs/reference/not-run.md.
"""

import importlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pttrainer.errors import ConfigError
from pttrainer.rollout.native.buckets import VLLM_SHARE
from pttrainer.rollout.vllm.image_prompts import check_tokens
from pttrainer.rollout.vllm.requests import VllmReply, VllmRequest, VllmUnavailable
from pttrainer.rollout.vllm.responses import checked
from pttrainer.rollout.vllm.weight_files import WeightVersion


class InProcessClient:
    """The package as a client. longest: tokens of the longest row; dtype: the trainer's compute format."""

    takes_adapters = False
    name = "vLLM in this process"

    def __init__(self, memory_share: float | None, longest: int, dtype: str, temperature: float) -> None:
        self._vllm = _package()
        self._engine_args = {
            "max_model_len": longest,
            "dtype": dtype,  # its own choice for float32 weights is another format
            "gpu_memory_utilization": memory_share or VLLM_SHARE,
            # At the temperature and after truncation, or before both: as the native engine's where one is enough.
            "logprobs_mode": "raw_logprobs" if temperature == 1.0 else "processed_logprobs",
        }
        self._llm: Any = None

    def wait(self, note: Callable[[str], None]) -> None:
        """Return at once: the package is here."""

    def load(self, version: WeightVersion) -> None:
        """Load all weights: `takes_adapters` is False."""
        if self._llm is None:
            self._llm = self._started(version)
            return
        with self._alive():
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(version.directory)})
            if not self._llm.reset_prefix_cache():
                raise RuntimeError("its prefix cache stays in use")

    def generate(self, requests: Sequence[VllmRequest]) -> list[VllmReply]:
        """Return replies in order."""
        prompts = [self._vllm.TokensPrompt(**_prompt(request)) for request in requests]
        params = [self._vllm.SamplingParams(**request.fields) for request in requests]
        with self._alive():
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [_reply(output, request) for output, request in zip(outputs, requests, strict=True)]

    def cancel(self) -> None:
        """Do nothing: `generate` ends by itself."""

    def _started(self, version: WeightVersion) -> Any:
        try:
            return self._vllm.LLM(model=str(version.directory), **self._engine_args)
        except Exception as error:  # it raises its own types, RuntimeError, ValueError, and torch's errors
            raise ConfigError(
                f"spec.rollout.vllm: vLLM does not start in this process: {type(error).__name__}: {error}; hint: the "
                "log of vLLM above gives the reason; set memoryShare if its memory is too small or too large"
            ) from error

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Drop the engine on any error: its process died or is in doubt, and the next load creates another."""
        try:
            yield
        except Exception as error:
            self._llm = None
            raise VllmUnavailable(f"{self.name}: {type(error).__name__}: {error}") from error


def _package() -> Any:
    # A forked child would have JAX's locks without its threads, and on a GPU a CUDA that it cannot use.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise ConfigError(
            f"spec.rollout.engine: vllm: the package vllm cannot be imported here ({error}); hint: set "
            "spec.image to one with `pip install vllm` (on TPUs vllm-tpu), or "
            "rollout.vllm.endpoint for a server next to the job"
        ) from error


def _prompt(request: VllmRequest) -> dict[str, Any]:
    """Return the fields of vLLM's prompt."""
    if request.image_prompt is None:
        return {"prompt_token_ids": list(request.tokens)}
    from PIL import Image

    pictures = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in request.image_prompt.pictures]
    return {"prompt_token_ids": list(request.image_prompt.tokens), "multi_modal_data": {"image": pictures}}


def _reply(output: Any, request: VllmRequest) -> VllmReply:
    if request.image_prompt is not None:
        check_tokens(InProcessClient.name, request.tokens, output.prompt_token_ids)
    samples = sorted(output.outputs, key=lambda sample: sample.index)
    try:
        samples = [
            checked(
                sample.token_ids,
                [row[token].logprob for token, row in zip(sample.token_ids, sample.logprobs, strict=True)],
                sample.finish_reason,
                request,
            )
            for sample in samples
        ]
    except ValueError as error:
        raise VllmUnavailable(f"{InProcessClient.name}: {error}") from error
    rows = output.prompt_logprobs[1:] if request.is_scored else []
    return VllmReply(samples, [row[token].logprob for token, row in zip(request.tokens[1:], rows, strict=False)])
