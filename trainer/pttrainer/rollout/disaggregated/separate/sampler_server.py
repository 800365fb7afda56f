"""The HTTP server of a sampler's process (`client` lists its requests).

Requests for weights and samples may overlap: the trainer sends the next version while batches of older ones are drawn.
Calls of the engine are made one after the other, on a thread of their own; while one runs, its connection carries
beats. A trainer that goes away stops its call at the next tokens. An error of the engine is answered and then ends the
process: its pod restarts, and the failure's class is known by its exit code. Of a sampler of several processes one
serves, and passes on what it is asked (`sampler_group`).
"""

import hmac
import json
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pttrainer.errors import first_line
from pttrainer.models import Params
from pttrainer.rollout.disaggregated.in_flight import remote_calls
from pttrainer.rollout.disaggregated.separate import messages
from pttrainer.rollout.disaggregated.separate.client import BEAT, FAILURE, FRAME, REPLY
from pttrainer.rollout.disaggregated.separate.held_weights import VersionMissing
from pttrainer.rollout.disaggregated.separate.messages import MessageError
from pttrainer.rollout.disaggregated.separate.sampler_group import leader
from pttrainer.rollout.disaggregated.separate.sampler_group.leader import SamplerGroup
from pttrainer.rollout.disaggregated.separate.sampler_group.work import Progress, SamplerWork, TrainerGone

BEAT_S = 2.0
LOST_S = 5.0
"""How long the end of one of a sampler's processes may take to reach the others."""
MOST_BYTES = 16 << 30
"""Longest body: one weight in full, at most."""


class SamplerServer:
    """Serves what `work` does at a port; `port` is the one taken.

    shapes: digest of the model. group: the other processes of the sampler.
    """

    def __init__(
        self, work: SamplerWork, token: str, shapes: str, port: int, group: SamplerGroup | None = None
    ) -> None:
        self._work, self._weights, self.group = work, work.weights, group or SamplerGroup()
        self._token, self._shapes, self._instance = token, shapes, secrets.token_hex(8)
        self._placer = ThreadPoolExecutor(1, "weights")
        self._failure: BaseException | None = None
        self._is_draining, self._in_progress = False, 0
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("", port), self._handler())
        self._http.daemon_threads = True
        self.port = int(self._http.server_address[1])

    def serve(self) -> None:
        """Serve until `drain` has ended what is in progress. Raises an error of the engine."""
        try:
            self._http.serve_forever(poll_interval=0.1)
        finally:
            self._http.server_close()
            self._work.close()
            self._placer.shutdown(wait=False, cancel_futures=True)
        if self._failure is not None:
            self.group.is_lost_within(LOST_S)  # what failed may be a program of all, because one of them is gone
            self.group.break_up(LOST_S)
            raise self._failure
        self.group.end(LOST_S)

    def drain(self) -> None:
        """Take no more requests, and end when nothing is in progress."""
        with self._lock:
            self._is_draining = True
        self._end_if_idle()

    def status(self) -> dict[str, Any]:
        """Return what the trainer asks before it sends anything."""
        return {
            "instance": self._instance,
            "shapes": self._shapes,
            "versions": self._weights.versions,
            "newest": self._weights.newest,
            "static": self._weights.has_static,
            "draining": self._is_draining,
        }

    def health(self) -> dict[str, Any]:
        """Return what everybody may know."""
        return {"draining": self._is_draining, "version": self._weights.newest}

    def begin(self, body: bytes) -> None:
        """Begin a version."""
        with self.group.order:
            self.group.tell(leader.BEGIN, body)
            self._work.begin(body)

    def tensors(self, body: bytes) -> None:
        """Take weights."""
        with self.group.order:
            self.group.tell(leader.TENSORS, body)
            self._work.tensors(body)

    def finish(self, body: bytes, _: Progress) -> list[bytes | memoryview]:
        """End a version."""
        with self.group.order:
            self.group.tell(leader.FINISH, body)
            self._work.finish(body, self.group.total)
        return []

    def generate(self, body: bytes, progress: Progress) -> Sequence[bytes | memoryview]:
        """Return completions."""
        request = messages.decode_request(messages.decode(body))
        return self._work.generate(request, self._begun(leader.GENERATE, request.version, body, progress), progress)

    def go_on(self, body: bytes, progress: Progress) -> Sequence[bytes | memoryview]:
        """Return what was added to samples that had begun."""
        request = remote_calls.decode_request(messages.decode(body))
        return self._work.go_on(request, self._begun(leader.GO_ON, request.version, body, progress), progress)

    def _begun(self, kind: bytes, version: str, body: bytes, progress: Progress) -> Params:
        """Have the others make this call, too; return its weights. Raises TrainerGone or VersionMissing."""
        with self.group.order:
            if progress.is_cancelled:
                raise TrainerGone
            params = self._weights.params(version)
            self.group.tell(kind, body)
        return params

    def forget(self, _: bytes) -> None:
        """Drop kept prompts, when nothing is sampled."""

        def forget() -> None:
            with self.group.order:
                self.group.tell(leader.FORGET)
            self._work.forget()

        self._work.sample(forget).result()

    def admit(self) -> bool:
        """Count a call that samples; return False if no more are taken."""
        with self._lock:
            if self._is_draining or self._failure is not None:
                return False
            self._in_progress += 1
            return True

    def ended(self) -> None:
        """Count the end of such a call."""
        with self._lock:
            self._in_progress -= 1
        self._end_if_idle()

    def failed(self, error: BaseException) -> None:
        """Keep the engine's error, with which the process ends."""
        with self._lock:
            self._failure = self._failure or error

    def submit(self, action: Callable[[bytes, Progress], Any], body: bytes, progress: Progress) -> Future[Any]:
        """Run an action after those of its kind: weights need not wait for samples."""
        if action in (self.generate, self.go_on):
            return self._work.sample(partial(action, body, progress))
        return self._placer.submit(action, body, progress)

    def _end_if_idle(self) -> None:
        with self._lock:
            is_over = (self._is_draining or self._failure is not None) and self._in_progress == 0
        if is_over:
            threading.Thread(target=self._http.shutdown, daemon=True).start()  # it waits for the loop that calls us

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(_Handler):
            sampler = server

        return Handler


class _Handler(BaseHTTPRequestHandler):
    """One request, on a thread of its own."""

    sampler: SamplerServer
    timeout = 600.0
    """Longest wait for the rest of a request."""

    def do_GET(self) -> None:
        """Answer /health and /status, and the other processes of this sampler."""
        if self.path == "/health":
            health = self.sampler.health()
            is_ready = self.sampler.group.is_whole and not health["draining"]
            self._answer(200 if is_ready else 503, health)
        elif self._is_trainer():
            self._answer_member_or_trainer()

    def _answer_member_or_trainer(self) -> None:
        group = self.sampler.group
        if self.path == "/member":
            self.send_response(200)
            self.end_headers()
            group.watch(self.connection)
        elif self.path == "/member/request":
            self._send(200, group.fetched())
        elif self.path == "/status":
            status = self.sampler.status()
            self._answer(200 if group.is_whole else 503, status)
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        """Answer the trainer."""
        if not self._is_trainer():
            return
        sampler = self.sampler
        streams = {"/generate": sampler.generate, "/go_on": sampler.go_on, "/weights/finish": sampler.finish}
        calls = {"/weights/begin": sampler.begin, "/weights/tensors": sampler.tensors, "/forget": sampler.forget}
        body = self._body()
        if body is None:
            self._answer(400, {"error": "no body of the length that was announced"})
        elif self.path in streams:
            self._stream(streams[self.path], body)
        elif self.path in calls:
            self._call(calls[self.path], body)
        elif self.path == "/drain":
            self._answer(200, {})
            sampler.drain()
        else:
            self._answer(404, {})

    def log_message(self, *_: Any) -> None:
        """Log nothing: the trainer says what matters."""

    def _is_trainer(self) -> bool:
        given = self.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {self.sampler._token}".encode()):
            return True
        self._answer(401, {"error": "the job's token is needed"})
        return False

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return None
        body = self.rfile.read(int(length))
        return body if len(body) == int(length) else None

    def _call(self, action: Callable[[bytes], None], body: bytes) -> None:
        try:
            action(body)
        except VersionMissing as missing:
            self._answer(409, {"error": str(missing)})
        except (MessageError, ValueError, KeyError, TypeError) as error:
            self._answer(400, {"error": first_line(error)})
        else:
            self._answer(200, {})

    def _stream(self, action: Callable[[bytes, Progress], Sequence[bytes | memoryview]], body: bytes) -> None:
        if not self.sampler.admit():
            self._answer(503, {"error": "draining"})
            return
        progress = Progress()
        try:
            self._beat_until(self.sampler.submit(action, body, progress), progress)
        except OSError as error:
            progress.is_cancelled = True
            print(f"the trainer went away during {self.path}: {first_line(error)}", file=sys.stderr)
        finally:
            self.sampler.ended()

    def _beat_until(self, reply: Future[Any], progress: Progress) -> None:
        """Beat until the reply is there, and write it."""
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        while True:
            try:
                parts = reply.result(timeout=BEAT_S)
            except (VersionMissing, MessageError) as error:
                self._fail(error, conflict=isinstance(error, VersionMissing))
                return
            except Exception as error:
                if not reply.done():  # it only takes longer than a beat
                    self.wfile.write(FRAME.pack(BEAT, progress.count))
                    continue
                self.sampler.failed(error)
                self._fail(error, conflict=False)
                return
            self.wfile.write(FRAME.pack(REPLY, messages.size(parts)))
            for part in parts:
                self.wfile.write(part)
            return

    def _fail(self, error: BaseException, *, conflict: bool) -> None:
        text = json.dumps({"conflict": conflict, "error": first_line(error)}).encode()
        self.wfile.write(FRAME.pack(FAILURE, len(text)) + text)

    def _answer(self, status: int, content: Any) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
