"""Child processes that run one reward with a wall-clock limit per sample.

Every child answers one sample at a time. One that takes too long is killed, with what it started, and
replaced; so is one that dies. The pool lives as long as the run: no process is started per sample, and none
is forked from this one (which has jax's threads). What is left out: limits on memory, files and network.

A pool is used from the thread that made it: on Linux, children die with that thread.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pttrainer.errors import UserCodeError

LOAD_TIMEOUT_S = 120.0
"""For the child's start and the import of the user's file, which may import much."""


class Sample(NamedTuple):
    """What a reward judges."""

    prompt: str
    completion: str
    row: Mapping[str, Any]


class Verdict(NamedTuple):
    """A reward, or why there is none. stopped: the limit passed, or the child died."""

    reward: float | None
    error: str = ""
    stopped: bool = False


class Pool:
    """Judges samples with one reward."""

    def __init__(self, name: str, source: Mapping[str, Any], timeout_s: float, children: int) -> None:
        self._name, self._source, self._timeout_s = name, dict(source), timeout_s
        self._children = [_Child() for _ in range(children)]
        for child in self._children:
            child.send(self._source)
        for child in self._children:
            self._finish_loading(child)

    def judge(self, samples: Sequence[Sample]) -> list[Verdict]:
        """A verdict per sample, in order."""
        verdicts: list[Verdict | None] = [None] * len(samples)
        waiting = deque(range(len(samples)))
        running: dict[_Child, tuple[int, float]] = {}
        idle = list(self._children)
        with selectors.DefaultSelector() as selector:
            while waiting or running:
                while waiting and idle:
                    child, index = idle.pop(), waiting.popleft()
                    sent = child.send(samples[index])
                    running[child] = index, time.monotonic() + (self._timeout_s if sent else 0.0)
                    selector.register(child.stdout, selectors.EVENT_READ, child)
                soonest = min(deadline for _, deadline in running.values())
                ready = {key.data for key, _ in selector.select(max(0.0, soonest - time.monotonic()))}
                for child in [c for c, (_, deadline) in running.items() if c in ready or deadline <= time.monotonic()]:
                    index, _ = running.pop(child)
                    selector.unregister(child.stdout)
                    verdicts[index] = self._verdict(child, child in ready)
                    idle.append(child)
        return [verdict for verdict in verdicts if verdict is not None]

    def close(self) -> None:
        """Ends all children."""
        for child in self._children:
            child.kill()

    def _verdict(self, child: _Child, ready: bool) -> Verdict:
        answer = child.receive() if ready else None
        if answer is not None:
            return Verdict(answer.get("reward"), answer.get("error", ""))
        why = "its process died" if ready else f"no answer within {self._timeout_s:g} s"
        child.restart()
        child.send(self._source)
        self._finish_loading(child)
        return Verdict(None, why, stopped=True)

    def _finish_loading(self, child: _Child) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            in_time = bool(selector.select(LOAD_TIMEOUT_S))
        answer = child.receive() if in_time else {"error": f"not loaded within {LOAD_TIMEOUT_S:g} s"}
        if answer is None:
            answer = {"error": "its process died while the file was loaded"}
        if "error" in answer:
            self.close()
            raise UserCodeError(f"spec.rewards[{self._name}]: {answer['error']}")


class _Child:
    """One process; its own process group, so that what it starts dies with it."""

    def __init__(self) -> None:
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "pttrainer.rewards.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    @property
    def stdout(self) -> Any:
        return self._process.stdout

    def send(self, message: Any) -> bool:
        """False where the child is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next answer; None where the child died in the middle of one."""
        line: bytes = self.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def restart(self) -> None:
        self.kill()
        self._process = self._start()

    def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass
