"""Child processes that answer requests with a wall-clock limit each.

Every child answers one request at a time. One that takes too long is killed, with what it started, and
replaced; so is one that dies. The pool lives as long as the run: no process is started per request, and none
is forked from this one (which has jax's threads). What a request is, the child's source says (`handlers`).

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
MAX_CHILDREN = 8


class Request(NamedTuple):
    """message: JSON for the child. home: the number of the child that must answer; unset, any."""

    message: Any
    limit_s: float
    home: int | None = None


class Reply(NamedTuple):
    """A value, or why there is none. stopped: the limit passed, or the child died. seconds: that it took."""

    value: Any
    error: str = ""
    stopped: bool = False
    seconds: float = 0.0


def default_children() -> int:
    """As many as there are cores, up to `MAX_CHILDREN`."""
    return min(os.cpu_count() or 1, MAX_CHILDREN)


class Pool:
    """Answers requests. field: what of the job it serves, for messages."""

    def __init__(self, field: str, source: Mapping[str, Any], children: int | None = None) -> None:
        self._field, self._source = field, dict(source)
        self._children = [_Child() for _ in range(children or default_children())]
        self.loaded: dict[str, Any] = {}
        """What the child said about its source."""
        for child in self._children:
            child.send(self._source)
        for child in self._children:
            error = self._finish_loading(child)
            if error:
                self.close()
                raise UserCodeError(f"{self._field}: {error}")

    def __len__(self) -> int:
        return len(self._children)

    def call(self, requests: Sequence[Request]) -> list[Reply]:
        """A reply per request, in order; requests of one home are answered in order."""
        replies: list[Reply | None] = [None] * len(requests)
        waiting: dict[int | None, deque[int]] = {None: deque()}
        for index, request in enumerate(requests):
            waiting.setdefault(request.home, deque()).append(index)
        running: dict[_Child, tuple[int, float, float]] = {}
        idle = set(range(len(self._children)))
        with selectors.DefaultSelector() as selector:
            while running or any(waiting.values()):
                for place in sorted(idle):
                    queue = waiting.get(place) or waiting[None]
                    if not queue:
                        continue
                    child, index = self._children[place], queue.popleft()
                    idle.discard(place)
                    sent = child.send(requests[index].message)
                    running[child] = index, time.monotonic(), requests[index].limit_s if sent else 0.0
                    selector.register(child.stdout, selectors.EVENT_READ, child)
                soonest = min(began + limit_s for _, began, limit_s in running.values())
                ready = {key.data for key, _ in selector.select(max(0.0, soonest - time.monotonic()))}
                now = time.monotonic()
                for child in [c for c, (_, began, limit_s) in running.items() if c in ready or began + limit_s <= now]:
                    index, began, _ = running.pop(child)
                    selector.unregister(child.stdout)
                    reply = self._reply(child, child in ready, requests[index].limit_s)
                    replies[index] = reply._replace(seconds=now - began)
                    idle.add(self._children.index(child))
        return [reply for reply in replies if reply is not None]

    def close(self) -> None:
        """Ends all children."""
        for child in self._children:
            child.kill()

    def _reply(self, child: _Child, ready: bool, limit_s: float) -> Reply:
        answer = child.receive() if ready else None
        if answer is not None:
            return Reply(answer.get("value"), answer.get("error", ""))
        why = "its process died" if ready else f"no answer within {limit_s:g} s"
        child.restart()
        child.send(self._source)
        self._finish_loading(child)  # where it fails, the child is gone and the next request starts another
        return Reply(None, why, stopped=True)

    def _finish_loading(self, child: _Child) -> str:
        """Waits until a child is ready; what is wrong where it never will be."""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            in_time = bool(selector.select(LOAD_TIMEOUT_S))
        answer = child.receive() if in_time else {"error": f"not loaded within {LOAD_TIMEOUT_S:g} s"}
        if answer is None:
            answer = {"error": "its process died while the file was loaded"}
        if "error" in answer:
            return str(answer["error"])
        self.loaded = answer
        return ""


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
