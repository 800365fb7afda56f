"""vLLM's OpenAI-compatible server: completions of token ids, and the endpoints that update its weights.

    GET  /health, /v1/models            its health, its model, the longest row
    POST /v1/completions                one request per prompt, many at once
    POST /inference/v1/generate         the same for prompts with images (--enable-scale-out)
    POST /v1/load_lora_adapter          a LoRA job: each version has a name of its own, and requests ask for that
         /v1/unload_lora_adapter        name, so a server without it cannot answer
         (VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora)
    POST /start_weight_update and more  all weights, with our backend: see `weight_transfer`
         (VLLM_SERVER_DEV_MODE=1, --weight-transfer-config)
    POST /collective_rpc                all weights, without it: the workers' `reload_weights` from a directory, then
         /reset_prefix_cache            the cache of prompts, whose keys and values came from the old weights
         (VLLM_SERVER_DEV_MODE=1)

Read in vLLM 0.32.0. Left out: streaming, redirects (they would carry the key elsewhere) and kept-alive connections. The
key goes into one header and into no file or message.
"""

import base64
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from posttrain_vllm import BACKEND
from pttrainer.errors import ConfigError
from pttrainer.rollout.vllm.image_prompts import ImagePrompt
from pttrainer.rollout.vllm.requests import VllmForgot, VllmReply, VllmRequest, VllmUnavailable
from pttrainer.rollout.vllm.responses import reply_of, reply_with_images
from pttrainer.rollout.vllm.weight_files import WeightVersion
from pttrainer.rollout.vllm.weight_transfer import NoBackend, NoDirectory, Refused, WeightTransfer

LOOK_S = 1.0
"""Seconds between polls for a server that is not up yet."""
LEAST_S, MOST_S = 1.0, 10.0
"""Timeout of a poll. Not shorter at the end of the wait: a timeout there would hide the server's reply."""
TELL_S = 60.0
"""Seconds between notes about the wait; they are signs of life for the watchdog, too."""
WATCH_S, SILENT_S = 10.0, 60.0
"""Seconds between polls of a watched server while it samples, and the longest time in which it may answer none."""
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_ENGINE_ERROR = 500
"""What the weight API answers whenever the engine raises; it names the reason, and asking again does not help."""
_OF_TEXT, _WITH_IMAGES = "/v1/completions", "/inference/v1/generate"
ENDPOINT = "spec.rollout.vllm.endpoint"
_LORA_HINT = "start the server with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora"
_IMAGES_HINT = "start the server, 0.32 or later, with --enable-scale-out: prompts with images go to that endpoint"
_RELOAD_HINT = "start the server with VLLM_SERVER_DEV_MODE=1"
_SHARED_HINT = "spec.rollout.vllm.weightsDirectory must be one volume, at the same path in both pods"


class _HttpRefusal(Exception):
    """A response that refuses the request. status: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ServerClient:
    """A client of a vLLM server. needs: tokens of the longest row that the job requests.

    field: what names the server in the job, for messages. is_pod: the server is a pod of the job's, whose model bears a
    name of the pod's own, and whose machine may be gone without a word. note: tells people how weights are given.
    """

    takes_adapters = True

    def __init__(
        self,
        endpoint: str,
        model: str | None,
        key: str | None,
        concurrency: int,
        timeout_s: float,
        needs: int,
        field: str = ENDPOINT,
        *,
        is_pod: bool = False,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        parts = urlsplit(endpoint)
        self._parts, self._root, self.name = parts, parts.path.rstrip("/"), f"vLLM at {endpoint}"
        self._requested_model, self._key, self._needs = model, key, needs
        self._concurrency, self._timeout_s = concurrency, timeout_s
        self._field, self._is_pod, self._is_closed = field, is_pod, False
        self._note, self._noted = note, ""
        self._transfer = WeightTransfer(self._call_weight_api)
        self._model: str | None = None
        self._adapter: str | None = None
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()

    def wait(self, note: Callable[[str], None]) -> None:
        """Wait until the server is healthy, with a note now and then, and look up its model.

        Raises VllmUnavailable if that takes too long.
        """
        began = last_note = time.monotonic()
        deadline = began + self._timeout_s
        while True:
            try:
                now = time.monotonic()
                self._call("GET", "/health", None, max(now + LEAST_S, min(deadline, now + MOST_S)))
                break
            except _HttpRefusal:
                break  # it responds; `_served` reports refusals
            except VllmUnavailable as unavailable:
                if time.monotonic() + LOOK_S >= deadline:
                    raise VllmUnavailable(f"{unavailable}; waited {self._timeout_s:g} s") from unavailable
                if time.monotonic() - last_note >= TELL_S:
                    last_note = time.monotonic()
                    note(f"{unavailable}; has been waiting for {last_note - began:.0f} s")
                time.sleep(LOOK_S)
        self._model = self._served()

    def reach(self) -> None:
        """Look once whether it is healthy, and up its model. Raises VllmUnavailable."""
        try:
            self._call("GET", "/health", None, time.monotonic() + MOST_S)
        except _HttpRefusal as refusal:
            raise VllmUnavailable(str(refusal)) from refusal
        model = self._served()
        if model != self._model:
            self._model, self._adapter = model, None

    def load(self, version: WeightVersion) -> None:
        """Replace the adapter, or all weights."""
        if version.is_adapter:
            self._load_adapter(version)
        else:
            self._load_model(version)

    def cancel(self) -> None:
        """Cancel what is in progress, so that nothing waits for it, not even exit."""
        with self._lock:
            left, self._open = self._open, set()
        for connection in left:
            if connection.sock is not None:
                try:
                    connection.sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # gone already

    def close(self) -> None:
        """Cancel what is in progress; every later call raises VllmUnavailable."""
        with self._lock:
            self._is_closed = True
        self.cancel()

    def _load_adapter(self, version: WeightVersion) -> None:
        body = {"lora_name": version.name, "lora_path": str(version.directory)}
        self._load("/v1/load_lora_adapter", body, version.directory, _LORA_HINT)
        before, self._adapter = self._adapter, version.name
        if before is not None:
            try:
                self._post("/v1/unload_lora_adapter", {"lora_name": before})
            except _HttpRefusal:
                pass  # a restarted server does not have it

    def _load_model(self, version: WeightVersion) -> None:
        try:
            self._transfer.load(version.name, version.directory, version.listed)
        except NoBackend as reason:
            self._reload_model(version.directory)
            if self._noted != str(reason):
                self._note(f"{self.name}: has no backend {BACKEND}, so it reads weights by reload_weights: {reason}")
                self._noted = str(reason)
        except NoDirectory as refused:
            raise ConfigError(f"{self._field}: {self.name}: {refused}; hint: {_SHARED_HINT}") from refused
        except Refused as refused:
            raise VllmUnavailable(f"{self.name} does not take the weights: {refused}") from refused

    def _call_weight_api(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        try:
            return self._call(method, path, body, time.monotonic() + self._timeout_s, is_weight_api=True)
        except _HttpRefusal as refusal:
            raise Refused(str(refusal)) from refusal

    def _reload_model(self, directory: Path) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}, "timeout": self._timeout_s}
        self._load("/collective_rpc", body, directory, _RELOAD_HINT)
        deadline = time.monotonic() + self._timeout_s
        while not self._load("/reset_prefix_cache", None, directory, _RELOAD_HINT).get("success", True):
            if time.monotonic() + LOOK_S >= deadline:  # a cancelled request may still run
                raise VllmUnavailable(f"{self.name}: its prefix cache stays in use")
            time.sleep(LOOK_S)

    def generate(
        self, requests: Sequence[VllmRequest], finished: Callable[[VllmRequest, VllmReply], None] | None = None
    ) -> list[VllmReply]:
        """Return replies in order. Raises VllmUnavailable at the first failure and cancels the other requests.

        finished: called with each reply as it comes, from several threads.
        """
        threads = ThreadPoolExecutor(min(self._concurrency, len(requests)), thread_name_prefix="vllm")
        tasks = [threads.submit(self._complete, request, finished) for request in requests]
        try:
            if self._is_pod:
                self._watch(tasks)
            wait(tasks, return_when=FIRST_EXCEPTION)
            return [task.result(timeout=0) for task in _failed_first(tasks)]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            self.cancel()

    def _watch(self, tasks: Sequence[Future[VllmReply]]) -> None:
        """Wait until all are done or one failed. Raises VllmUnavailable if the server is silent meanwhile.

        A machine that is gone breaks no connection, and a long completion is silent, too.
        """
        last_reached = time.monotonic()
        while True:
            done, others = wait(tasks, timeout=WATCH_S, return_when=FIRST_EXCEPTION)
            if not others or any(task.exception() is not None for task in done):
                return
            try:
                self._call("GET", "/health", None, time.monotonic() + MOST_S)
                last_reached = time.monotonic()
            except (VllmUnavailable, _HttpRefusal) as error:
                if time.monotonic() - last_reached > SILENT_S:
                    raise VllmUnavailable(f"{self.name}: no health for {SILENT_S:g} s: {error}") from error

    def _complete(self, request: VllmRequest, finished: Callable[[VllmRequest, VllmReply], None] | None) -> VllmReply:
        reply = self._reply(request)
        if finished is not None:
            finished(request, reply)
        return reply

    def _reply(self, request: VllmRequest) -> VllmReply:
        body = {"model": self._adapter or self._model, "return_token_ids": True}
        try:
            if request.image_prompt is not None:
                document = self._post(_WITH_IMAGES, body | _with_images(request, request.image_prompt))
                return reply_with_images(document, request, self.name)
            return reply_of(self._post(_OF_TEXT, body | {"prompt": list(request.tokens), **request.fields}), request)
        except _HttpRefusal as refusal:
            is_off = request.image_prompt is not None and (refusal.status == 403 or "Not Found" in str(refusal))
            if refusal.status == 404 and (self._adapter is not None or self._is_pod) and not is_off:
                what = "adapter" if self._adapter is not None else "weights, because it was started again"
                raise VllmForgot(f"{self.name}: no longer has the {what}: {refusal}") from refusal
            hint = f"; hint: {_IMAGES_HINT}" if is_off else ""
            raise ConfigError(f"{self._field}: {self.name} refuses a completion: {refusal}{hint}") from refusal

    def _served(self) -> str:
        try:
            listed = self._call("GET", "/v1/models", None, time.monotonic() + self._timeout_s)
            models = {str(card["id"]): card for card in listed["data"]}
        except _HttpRefusal as refusal:
            raise ConfigError(f"{self._field}: {self.name}: {refusal}{self._key_hint(refusal)}") from refusal
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{self._field}: {self.name} lists no models; accepted: a vLLM server") from error
        name = self._requested_model or next(iter(models), "")
        if name not in models:
            raise ConfigError(f"spec.rollout.vllm.model: {name!r}: not served; accepted: {', '.join(models) or 'none'}")
        longest = models[name].get("max_model_len")
        if longest is not None and longest < self._needs:
            raise ConfigError(
                f"{self._field}: {self.name} accepts {longest} tokens a request; accepted: {self._needs} or more; "
                f"hint: vllm serve --max-model-len {self._needs}"
            )
        return name

    def _load(self, path: str, body: Mapping[str, Any] | None, directory: Path, hint: str) -> dict[str, Any]:
        try:
            answer = self._post(path, body)
        except _HttpRefusal as refusal:
            is_missing = refusal.status in (404, 405) and "Not Found" in str(refusal)
            hint = self._key_hint(refusal) or f"; hint: {hint if is_missing else _SHARED_HINT}"
            raise ConfigError(f"{self._field}: {self.name} does not read {directory}: {refusal}{hint}") from refusal
        return answer if isinstance(answer, dict) else {}

    def _key_hint(self, refusal: _HttpRefusal) -> str:
        if refusal.status not in (401, 403):
            return ""
        return "; hint: " + ("its token must be the trainer's" if self._is_pod else "set spec.rollout.vllm.apiKeyEnv")

    def _post(self, path: str, body: Mapping[str, Any] | None) -> Any:
        return self._call("POST", path, body, time.monotonic() + self._timeout_s)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, deadline: float, *, is_weight_api: bool = False
    ) -> Any:
        """Return the response's JSON, or its text. Raises VllmUnavailable or _HttpRefusal."""
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        content = None if body is None else json.dumps(body).encode()
        connection = self._connection(deadline)
        try:
            connection.connect()
            if connection not in self._open:
                raise OSError("cancelled because another request failed")
            connection.request(method, self._root + path, content, headers)
            response = connection.getresponse()
            text = _read(response, deadline).decode(errors="replace")
            if is_weight_api and response.status == _ENGINE_ERROR:
                raise _HttpRefusal(response.status, self._without_key(f"{path}: {text[:300]}"))
            return self._parsed(response.status, path, text)
        except (OSError, ValueError, http.client.HTTPException) as error:
            message = f"{type(error).__name__}: {error}".rstrip(": ")
            raise VllmUnavailable(self._without_key(f"{self.name}: {path}: {message}")) from error
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _parsed(self, status: int, path: str, text: str) -> Any:
        if status in _PASSING:
            raise VllmUnavailable(self._without_key(f"{self.name}: {path}: {status}: {text[:300]}"))
        if status >= 300:
            raise _HttpRefusal(status, self._without_key(f"{path}: {status}: {text[:300]}"))
        is_json = path in (_OF_TEXT, _WITH_IMAGES) or text.startswith(("{", "["))
        return json.loads(text) if is_json else text

    def _connection(self, deadline: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=max(deadline - time.monotonic(), 0.05))
        with self._lock:
            if self._is_closed:
                raise VllmUnavailable(f"{self.name}: the run ends")
            self._open.add(connection)
        return connection

    def _without_key(self, text: str) -> str:
        return text if self._key is None else text.replace(self._key, "…")


def _with_images(request: VllmRequest, image_prompt: ImagePrompt) -> dict[str, Any]:
    """Return the fields of a request with images; the server decodes the pictures."""
    urls = [f"data:image/png;base64,{base64.b64encode(picture).decode()}" for picture in image_prompt.pictures]
    parts = [{"type": "image_url", "url": url} for url in urls]
    return {"token_ids": list(image_prompt.tokens), "content_parts": parts, "sampling_params": request.fields}


def _failed_first(tasks: Sequence[Any]) -> Sequence[Any]:
    """Return all tasks, or only the first that failed by itself: the others were cancelled for it."""
    failed = [task for task in tasks if task.done() and task.exception() is not None]
    return failed[:1] or tasks


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Return the whole response. Raises TimeoutError if it trickles, IncompleteRead if it breaks off."""
    parts = []
    while part := response.read1(1 << 20):
        parts.append(part)
        if time.monotonic() > deadline:
            raise TimeoutError("the answer took too long")
    content = b"".join(parts)
    wanted = response.getheader("Content-Length")
    if wanted is not None and len(content) < int(wanted):
        raise http.client.IncompleteRead(content, int(wanted) - len(content))
    return content
