"""The HTTP server of a sampler's process (`client` lists its requests).

Requests for weights and samples may overlap: the trainer sends the next version while batches of older ones are drawn.
Calls of the engine are made one after the other, on a thread of their own; while one runs, its connection carries
beats. A trainer that goes away stops its call at the next tokens. An error of the engine is answered and then ends the
process: its pod restarts, and the failure's class is known by its exit code.
"""

import hmac
import json
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import first_line
from pttrainer.rollout.disaggregated.separate import messages
from pttrainer.rollout.disaggregated.separate.client import BEAT, FAILURE, FRAME, REPLY
from pttrainer.rollout.disaggregated.separate.held_weights import HeldWeights, VersionMissing
from pttrainer.rollout.disaggregated.separate.messages import MessageError, Request
from pttrainer.rollout.engine import Completions
from pttrainer.rollout.native.completion_buffer import CompletionBuffer
from pttrainer.rollout.native.native_engine import NativeEngine

BEAT_S = 2.0
MOST_BYTES = 16 << 30
"""Longest body: one weight in full, at most."""


class TrainerGone(Exception):
    """Nobody waits for these samples any more."""


class _Progress:
    """How often anything was sampled in a call, and whether it shall go on."""

    def __init__(self) -> None:
        self.count, self.is_cancelled = 0, False


class _WatchedBuffer(CompletionBuffer):
    """Counts what is sampled, and ends a call that nobody waits for."""

    def __init__(self, tokenizer: Tokenizer, request: Request, progress: _Progress) -> None:
        super().__init__(tokenizer, request.sampling, len(request.prompts) * request.samples)
        self._progress = progress

    def record(
        self, tokens_TB: np.ndarray, logps_TB: np.ndarray, owners_TB: np.ndarray, routes_TBLk: np.ndarray | None = None
    ) -> list[int]:
        """Take tokens as the buffer does. Raises TrainerGone."""
        self._progress.count += 1
        if self._progress.is_cancelled:
            raise TrainerGone
        return super().record(tokens_TB, logps_TB, owners_TB, routes_TBLk)


class SamplerServer:
    """Serves `engine` with `weights` at a port; `port` is the one taken. shapes: digest of the model."""

    def __init__(
        self, engine: NativeEngine, tokenizer: Tokenizer, weights: HeldWeights, token: str, shapes: str, port: int
    ) -> None:
        self._engine, self._tokenizer, self._weights = engine, tokenizer, weights
        self._token, self._shapes, self._instance = token, shapes, secrets.token_hex(8)
        self._worker, self._placer = ThreadPoolExecutor(1, "sampling"), ThreadPoolExecutor(1, "weights")
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
            for threads in (self._worker, self._placer):
                threads.shutdown(wait=False, cancel_futures=True)
        if self._failure is not None:
            raise self._failure

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
        head = json.loads(body)
        self._weights.begin(head["version"], head["base"], head["keep"])

    def tensors(self, body: bytes) -> None:
        """Take weights."""
        message = messages.decode(body)
        at = 0
        for name, layer, form, count in message.head["weights"]:
            self._weights.put(message.head["version"], (name, layer), form, list(message.arrays[at : at + count]))
            at += count

    def finish(self, body: bytes, _: _Progress) -> list[bytes | memoryview]:
        """End a version."""
        head = json.loads(body)
        self._weights.finish(head["version"], {(name, layer): value for name, layer, value in head["sums"]})
        return []

    def generate(self, body: bytes, progress: _Progress) -> list[bytes | memoryview]:
        """Return completions, as `NativeEngine.generate` does."""
        if progress.is_cancelled:
            raise TrainerGone
        request = messages.decode_request(messages.decode(body))
        params = self._weights.params(request.version)
        buffer = _WatchedBuffer(self._tokenizer, request, progress)
        prompt_routes: list[np.ndarray] = []
        facts = self._engine.generate_into(
            buffer, params, request.prompts, request.samples, request.sampling, request.draw, prompt_routes
        )
        done: Completions = buffer.completions()._replace(facts=facts)
        return messages.encode_completions(done if done.routes is None else done._replace(prompt_routes=prompt_routes))

    def forget(self, _: bytes) -> None:
        """Drop kept prompts, when nothing is sampled."""
        self._worker.submit(self._engine.forget).result()

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

    def submit(self, action: Callable[[bytes, _Progress], Any], body: bytes, progress: _Progress) -> Future[Any]:
        """Run an action after those of its kind: weights need not wait for samples."""
        threads = self._worker if action == self.generate else self._placer
        return threads.submit(action, body, progress)

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
        """Answer /health and /status."""
        if self.path == "/health":
            health = self.sampler.health()
            self._answer(503 if health["draining"] else 200, health)
        elif self._is_trainer():
            self._answer(200, self.sampler.status()) if self.path == "/status" else self._answer(404, {})

    def do_POST(self) -> None:
        """Answer the trainer."""
        if not self._is_trainer():
            return
        sampler = self.sampler
        streams = {"/generate": sampler.generate, "/weights/finish": sampler.finish}
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

    def _stream(self, action: Callable[[bytes, _Progress], Sequence[bytes | memoryview]], body: bytes) -> None:
        if not self.sampler.admit():
            self._answer(503, {"error": "draining"})
            return
        progress = _Progress()
        try:
            self._beat_until(self.sampler.submit(action, body, progress), progress)
        except OSError as error:
            progress.is_cancelled = True
            print(f"the trainer went away during {self.path}: {first_line(error)}", file=sys.stderr)
        finally:
            self.sampler.ended()

    def _beat_until(self, reply: Future[Any], progress: _Progress) -> None:
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
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)
