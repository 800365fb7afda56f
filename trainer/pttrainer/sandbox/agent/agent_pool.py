"""A `Pool` whose children are in sandboxes of the cluster: the same requests, replies and limits.

A sandbox is leased by one bundle of requests at a time, and released with its answer. One that does not answer is left
out for the rest of the call, and its requests go to another one; after `ATTEMPTS` they are *lost*: no value, and no
fault of the program, which would be a value of its own (a reward of 0, an error that the model reads). Sandboxes are
looked up by name for every call, so those that replace others join.
"""

import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from secrets import token_hex
from typing import Any

from ptapi.run_directory import SANDBOXES_ENV
from pttrainer.errors import ConfigError, ServiceLost, UserCodeError
from pttrainer.sandbox.agent.bundle import KINDS, Bundle
from pttrainer.sandbox.agent.runtime_client import SandboxLost, execute, upload
from pttrainer.sandbox.captured_output import OutputLimiter
from pttrainer.sandbox.pool import LOAD_TIMEOUT_S, STDERR, WAKE_S, Alive, Pool, Reply, Request

ATTEMPTS = 2
"""Sandboxes that are tried for a request."""
MAX_REQUESTS = 8
"""Requests that one execution answers: the start of an interpreter is shared, a lost sandbox loses few."""
START_S, DELAY_S = 900.0, 2.0
"""How long the first sandbox may take to come up, with a node that is made for it; and the time between two tries."""
UPLOAD_S = 30.0

Address = tuple[str, int]


def open_pool(field: str, source: Mapping[str, Any], sandboxes: str) -> "Pool | AgentPool":
    """Return what answers the requests of a source: sandboxes of the cluster, if there are any, or child processes.

    sandboxes: as in `SANDBOXES_ENV`; empty if there are none. Raises UserCodeError, ServiceLost or ConfigError.
    """
    if not sandboxes or source["kind"] not in KINDS:
        return Pool(field, source)
    return AgentPool(field, source, sandboxes)


class AgentPool:
    """Answers requests in sandboxes. field: the job's field that it serves, for messages."""

    def __init__(self, field: str, source: Mapping[str, Any], sandboxes: str, start_s: float = START_S) -> None:
        self._names = _named(sandboxes)
        self._bundle = Bundle(field, source)
        self._sandboxes, self._start_s = sandboxes, start_s
        self._gate, self._gate_lock = OutputLimiter(), threading.Lock()

    @cached_property
    def loaded(self) -> dict[str, Any]:
        """Return what a child process tells of the source, once a sandbox is up.

        Raises ServiceLost if none comes up, UserCodeError if the user's file cannot be loaded.
        """
        return self._load(self._sandboxes, self._start_s)

    def __len__(self) -> int:
        return max(1, len(_addresses(self._names)))

    def call(self, requests: Sequence[Request], alive: Alive) -> list[Reply]:
        """Return a reply per request, in order. alive: called while waiting."""
        if not requests:
            return []
        leases = _Leases(_addresses(self._names))
        size = min(MAX_REQUESTS, math.ceil(len(requests) / max(1, len(leases))))
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        with ThreadPoolExecutor(max(1, len(leases)), "sandbox") as threads:
            pending = [threads.submit(self._answered, part, leases) for part in parts]
            while wait(pending, WAKE_S).not_done:
                alive()  # each has a limit, so the wait is no hang
        return [reply for part in pending for reply in part.result()]

    def close(self) -> None:
        """Do nothing: sandboxes belong to the job."""

    def _load(self, sandboxes: str, start_s: float) -> dict[str, Any]:
        began = time.monotonic()
        is_announced = False
        while True:
            why = f"{sandboxes} has no address"
            for address in _addresses(self._names):
                try:
                    answer = self._run(address, [])
                except SandboxLost as lost:
                    why = str(lost)
                    continue
                if "broken" in answer:
                    raise UserCodeError(answer["broken"])
                loaded: dict[str, Any] = answer["loaded"]
                return loaded
            if time.monotonic() + DELAY_S >= began + start_s:
                raise ServiceLost(
                    f"spec.sandbox: no sandbox answered within {start_s:g} s: {why}; hint: `kubectl get "
                    "sandboxclaims,pods` says what they wait for; without spec.sandbox processes of this pod are used"
                )
            if not is_announced:
                print(f"waiting for a sandbox, {start_s:g} s at most: {why}", file=sys.stderr)
                is_announced = True
            time.sleep(DELAY_S)

    def _answered(self, requests: Sequence[Request], leases: "_Leases") -> list[Reply]:
        """Return the replies to the requests of one bundle; runs in a thread."""
        why = "no sandbox is up"
        for _ in range(ATTEMPTS):
            address = leases.take()
            if address is None:
                break
            try:
                answer = self._run(address, requests)
                leases.release(address)
            except SandboxLost as lost:
                leases.leave_out(address)
                why = str(lost)
                continue
            if "broken" in answer:
                return [Reply(None, answer["broken"], stopped=True)] * len(requests)
            return [Reply(*reply) for reply in answer["replies"]]
        return [Reply(None, f"lost with its sandbox: {why}", stopped=True, is_lost=True)] * len(requests)

    def _run(self, address: Address, requests: Sequence[Request]) -> dict[str, Any]:
        """Return the answer of one sandbox. Raises SandboxLost."""
        name = f"posttrain-{token_hex(16)}.zip"
        limit_s = LOAD_TIMEOUT_S + sum(request.limit_s for request in requests)
        try:
            upload(address, name, self._bundle.of([(each.message, each.limit_s) for each in requests]), UPLOAD_S)
            ended = execute(address, f"python3 {name}", limit_s)
        except SandboxLost as lost:
            raise SandboxLost(f"{address[0]}:{address[1]}: {lost}") from lost
        self._show(ended.stderr)
        try:
            answer = json.loads(ended.stdout)
            if "broken" in answer or len(answer["replies"]) == len(requests):
                return dict(answer)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        last = " ".join(ended.stderr.split())[-300:]
        raise SandboxLost(f"{address[0]}:{address[1]}: python3 ended with {ended.exit_code}: {last or 'no answer'}")

    def _show(self, printed: str) -> None:
        """Show what the user's code printed, at the rate of a child process."""
        with self._gate_lock:
            if printed and (passed := self._gate.allow(printed.encode(), time.monotonic())):
                os.write(STDERR, passed)


class _Leases:
    """The sandboxes of one call: free, taken, or left out."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._free, self._count = list(addresses), len(addresses)
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._count

    def take(self) -> Address | None:
        """Return a free sandbox, once there is one; None if all are left out."""
        with self._changed:
            while not self._free and self._count:
                self._changed.wait()
            return self._free.pop(0) if self._free else None

    def release(self, address: Address) -> None:
        """Let others have it."""
        with self._changed:
            self._free.append(address)
            self._changed.notify()

    def leave_out(self, address: Address) -> None:
        """Let nobody have it in this call."""
        with self._changed:
            self._count -= 1
            self._changed.notify_all()


def _named(sandboxes: str) -> list[Address]:
    """Return names and ports. Raises ConfigError."""
    named = []
    for text in sandboxes.split(","):
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"environment: {SANDBOXES_ENV}: {text!r}: accepted: host:port, separated by commas")
        named.append((host, int(port)))
    return named


def _addresses(names: Sequence[Address]) -> list[Address]:
    """Return every address of these names, each once; of an unknown name none, because it may come."""
    addresses: dict[Address, None] = {}
    for host, port in names:
        try:
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            continue
        addresses |= {(str(each[4][0]), port): None for each in resolved}
    return sorted(addresses)
