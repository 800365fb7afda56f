"""A teacher behind a server, in this process or in one of its own: the stand-in for vLLM with a model of ours.

python -m tests.builders.vllm.teacher NAME SEED SHARPNESS PORT      # prints its port
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from tests.builders.vllm.fake import Brain, FakeServer

from pttrainer.models import Model, Params, preset


def weights(seed: int, sharpness: float = 20.0) -> tuple[Model, Params]:
    """Those of `random://tiny`, with predictions that are far from uniform where `sharpness` is more than 1."""
    model = Model(preset("tiny"))
    params = jax.jit(model.init)(jax.random.key(seed))
    return model, {**params, "embedding": params["embedding"] * sharpness}


def serve(name: str, model: Model, params: Params, port: int = 0) -> FakeServer:
    """`vllm serve --served-model-name NAME --max-logprobs 20`."""
    brain = Brain(model, params)
    made = FakeServer(brain, port=port)
    made.served = {name: brain}
    return made


class TeacherProcess:
    """A server in a process of its own, which may be killed and started again on its port."""

    def __init__(self, name: str, seed: int, sharpness: float) -> None:
        self._words, self._port = [name, str(seed), str(sharpness)], 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when it listens."""
        command = [sys.executable, "-m", __spec__.name, *self._words, str(self._port)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            command, cwd=Path(__file__).parents[3], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """At once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def teachers(name: str, count: int, seed: int = 1, sharpness: float = 20.0) -> Iterator[list[TeacherProcess]]:
    """Replicas of a service, while they run."""
    made: list[TeacherProcess] = []
    try:
        for _ in range(count):
            made.append(TeacherProcess(name, seed, sharpness))
        yield made
    finally:
        for one in made:
            one.kill()


if __name__ == "__main__":
    name, seed, sharpness, port = sys.argv[1:]
    print(serve(name, *weights(int(seed), float(sharpness)), int(port)).url.rpartition(":")[2], flush=True)
    threading.Event().wait()
