"""A process of a sampler that does not speak to the trainer: it does what its leader is asked, and ends with it.

It learns the leader's port from the first message, and then holds a connection to it, whose end is the leader's. It
answers /health by itself, because all pods of a sampler have the same readiness probe.
"""

import http.client
import json
import socket
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from jax.errors import JaxRuntimeError

from ptapi.failures import ExitCode
from pttrainer.errors import TrainerError, first_line
from pttrainer.rollout.disaggregated.in_flight import remote_calls
from pttrainer.rollout.disaggregated.separate import messages
from pttrainer.rollout.disaggregated.separate.client import CONNECT_S, SILENT_S
from pttrainer.rollout.disaggregated.separate.held_weights import VersionMissing
from pttrainer.rollout.disaggregated.separate.messages import MessageError
from pttrainer.rollout.disaggregated.separate.sampler_group import leader
from pttrainer.rollout.disaggregated.separate.sampler_group.work import Progress, SamplerWork, TrainerGone
from pttrainer.runtime.distributed.leader_messages import LeaderMessages

REFUSED = (VersionMissing, MessageError, ValueError, KeyError, TypeError)
"""What the leader answers the trainer with, too, and goes on."""


class LeaderGone(TrainerError):
    """The sampler's process that speaks to the trainer has ended, and this one ends as if it had been told to."""

    exit_code = ExitCode.PREEMPTED_SAVED


class Follower:
    """Does `work` as the leader at `host` says. ended: called with the error that ends this process, on any thread."""

    def __init__(
        self,
        work: SamplerWork,
        from_leader: LeaderMessages,
        host: str,
        token: str,
        ended: Callable[[BaseException], None],
    ) -> None:
        self._work, self._from_leader, self._host, self._token, self._ended = work, from_leader, host, token, ended
        self._port, self._is_over = 0, threading.Event()
        self._watched: socket.socket | None = None

    def follow(self) -> None:
        """Do what the leader says, until it says that this is the end."""
        self._port = int(self._receive())
        threading.Thread(target=self._watch, name="leader", daemon=True).start()
        while True:
            message = self._receive()
            kind, how, body = message[:1], message[1:2], message[2:]
            if how == leader.FETCHED:
                body = self._fetch()
                self._from_leader.answer(b"")
            if kind == leader.END:
                self._end()
                return
            try:
                self._do(kind, body)
            except REFUSED:
                continue

    def _do(self, kind: bytes, body: bytes) -> None:
        work = self._work
        if kind == leader.BEGIN:
            work.begin(body)
        elif kind == leader.TENSORS:
            work.tensors(body)
        elif kind == leader.FINISH:
            work.finish(body, self._total)
        elif kind == leader.GENERATE:
            request = messages.decode_request(messages.decode(body))
            self._sample(partial(work.generate, request, work.weights.params(request.version), Progress()))
        elif kind == leader.GO_ON:
            call = remote_calls.decode_request(messages.decode(body))
            self._sample(partial(work.go_on, call, work.weights.params(call.version), Progress()))
        elif kind == leader.FORGET:
            self._sample(work.forget)

    def _sample(self, action: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                action()
            except TrainerGone:
                pass
            except BaseException as error:
                self._ended(error)

        self._work.sample(run)

    def _total(self, here: np.ndarray) -> np.ndarray:
        self._from_leader.answer(here.tobytes())
        whole: np.ndarray = np.frombuffer(self._receive(), here.dtype)
        return whole

    def _receive(self) -> bytes:
        try:
            return self._from_leader.receive(lambda: None)
        except JaxRuntimeError as error:
            raise LeaderGone(f"the sampler's first process cannot be reached: {first_line(error)}") from error

    def _fetch(self) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=SILENT_S)
        try:
            response = self._get(connection, "/member/request")
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise LeaderGone(f"what the trainer sent could not be fetched: {error}") from error
        finally:
            connection.close()
        return body

    def _watch(self) -> None:
        """Hold a connection until it breaks."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)
            self._watched = connection.sock
            self._get(connection, "/member").read(1)
        except (OSError, http.client.HTTPException):
            pass
        if not self._is_over.is_set():
            self._ended(LeaderGone("the sampler's first process has ended"))

    def _end(self) -> None:
        """Let the connection go, by which the leader knows that this process is done."""
        self._is_over.set()
        if self._watched is not None:
            try:
                self._watched.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the leader was faster

    def _get(self, connection: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
        connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
        response = connection.getresponse()
        if response.status != 200:
            raise http.client.HTTPException(f"{path}: {response.status}")
        return response


def serve_health(port: int) -> int:
    """Answer /health at this port, from a thread, as long as the process lives. Return the port."""
    server = ThreadingHTTPServer(("", port), _Health)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return int(server.server_address[1])


class _Health(BaseHTTPRequestHandler):
    """Answers that the process lives."""

    timeout = 60.0

    def do_GET(self) -> None:
        """Answer /health."""
        text = json.dumps({}).encode()
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
