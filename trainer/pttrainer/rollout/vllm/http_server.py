"""vLLM's OpenAI-compatible server: completions of token ids, and the endpoints that renew its weights.

    GET  /health, /v1/models            is it there, which model, how long a row
    POST /v1/completions                one request per prompt, many at once
    POST /v1/load_lora_adapter          a LoRA job: each version under a name of its own, which is then asked for by
         /v1/unload_lora_adapter        that name, so a server without it cannot answer
         (VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora)
    POST /collective_rpc                all weights: the workers' `reload_weights` from a directory, then the cache
         /reset_prefix_cache            of prompts, whose keys and values came from the old weights
         (VLLM_SERVER_DEV_MODE=1)

Read in vLLM 0.32.0. Left out: streaming, redirects (they would carry the key elsewhere) and connections that are kept.
The key goes into one header and into no file or message.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pttrainer.errors import ConfigError
from pttrainer.rollout.vllm.requests import Ask, Lost, Reply
from pttrainer.rollout.vllm.responses import reply_of
from pttrainer.rollout.vllm.weight_files import Version

LOOK_S = 1.0
"""Between two looks for a server that is not there yet."""
LEAST_S, MOST_S = 1.0, 10.0
"""What a look has for its answer. Not less at the end of the wait: a time-out there would hide what the server says."""
TELL_S = 60.0
"""Between two lines that say so; they are signs of life for the watchdog, too."""
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_ENDPOINT = "spec.rollout.vllm.endpoint"
_LORA_HINT = "start the server with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora"
_RELOAD_HINT = "start the server with VLLM_SERVER_DEV_MODE=1"
_SHARED_HINT = "spec.rollout.vllm.weightsDirectory must be one volume, at the same path in both pods"


class _Refused(Exception):
    """An answer that says no. status: of HTTP."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Server:
    """A client. needs: tokens of the longest row that the job asks for."""

    takes_adapters = True

    def __init__(
        self, endpoint: str, model: str | None, key: str | None, concurrency: int, timeout_s: float, needs: int
    ) -> None:
        parts = urlsplit(endpoint)
        self._parts, self._root, self.name = parts, parts.path.rstrip("/"), f"vLLM at {endpoint}"
        self._asked_for, self._key, self._needs = model, key, needs
        self._concurrency, self._timeout_s = concurrency, timeout_s
        self._model: str | None = None
        self._adapter: str | None = None
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()

    def wait(self, tell: Callable[[str], None]) -> None:
        """Until it is healthy, and says now and then that it waits; raises Lost when that takes too long. Then looks
        which model it serves."""
        began = told = time.monotonic()
        deadline = began + self._timeout_s
        while True:
            try:
                now = time.monotonic()
                self._call("GET", "/health", None, max(now + LEAST_S, min(deadline, now + MOST_S)))
                break
            except _Refused:
                break  # it answers; what it refuses is said below
            except Lost as lost:
                if time.monotonic() + LOOK_S >= deadline:
                    raise Lost(f"{lost}; waited {self._timeout_s:g} s for it") from lost
                if time.monotonic() - told >= TELL_S:
                    told = time.monotonic()
                    tell(f"{lost}; waiting for it since {told - began:.0f} s")
                time.sleep(LOOK_S)
        self._model = self._served()

    def load(self, version: Version) -> None:
        """An adapter, or all weights, in place of those before."""
        if version.is_adapter:
            self._load_adapter(version)
        else:
            self._load_model(version.directory)

    def give_up(self) -> None:
        """Ends what is still under way, so that nothing waits for it, at exit either."""
        with self._lock:
            left, self._open = self._open, set()
        for connection in left:
            if connection.sock is not None:
                try:
                    connection.sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # gone already

    def _load_adapter(self, version: Version) -> None:
        body = {"lora_name": version.name, "lora_path": str(version.directory)}
        self._load("/v1/load_lora_adapter", body, version.directory, _LORA_HINT)
        before, self._adapter = self._adapter, version.name
        if before is not None:
            try:
                self._post("/v1/unload_lora_adapter", {"lora_name": before})
            except _Refused:
                pass  # a server that came back does not have it

    def _load_model(self, directory: Path) -> None:
        body = {
            "method": "reload_weights",
            "kwargs": {"weights_path": str(directory)},
            "timeout": self._timeout_s,
        }
        self._load("/collective_rpc", body, directory, _RELOAD_HINT)
        deadline = time.monotonic() + self._timeout_s
        while not self._load("/reset_prefix_cache", None, directory, _RELOAD_HINT).get("success", True):
            if time.monotonic() + LOOK_S >= deadline:  # a request that we gave up may still run
                raise Lost(f"{self.name}: its prefix cache stays in use")
            time.sleep(LOOK_S)

    def ask(self, asks: Sequence[Ask]) -> list[Reply]:
        """Replies in order. Raises Lost as soon as one is missing, and ends the other requests."""
        threads = ThreadPoolExecutor(min(self._concurrency, len(asks)), thread_name_prefix="vllm")
        tasks = [threads.submit(self._complete, ask) for ask in asks]
        try:
            wait(tasks, return_when=FIRST_EXCEPTION)
            return [task.result(timeout=0) for task in _failed_first(tasks)]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            self.give_up()

    def _complete(self, ask: Ask) -> Reply:
        body = {
            "model": self._adapter or self._model,
            "prompt": list(ask.tokens),
            "return_token_ids": True,
            **ask.fields,
        }
        try:
            return reply_of(self._post("/v1/completions", body), ask)
        except _Refused as refused:
            if refused.status == 404 and self._adapter is not None:
                raise Lost(f"{self.name}: does not have the adapter any more: {refused}") from refused
            raise ConfigError(f"{_ENDPOINT}: {self.name} refuses a completion: {refused}") from refused

    def _served(self) -> str:
        try:
            listed = self._call("GET", "/v1/models", None, time.monotonic() + self._timeout_s)
            models = {str(card["id"]): card for card in listed["data"]}
        except _Refused as refused:
            raise ConfigError(f"{_ENDPOINT}: {self.name}: {refused}{_key_hint(refused)}") from refused
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{_ENDPOINT}: {self.name} lists no models; accepted: a server of vLLM") from error
        name = self._asked_for or next(iter(models), "")
        if name not in models:
            raise ConfigError(f"spec.rollout.vllm.model: {name!r}: not served; accepted: {', '.join(models) or 'none'}")
        longest = models[name].get("max_model_len")
        if longest is not None and longest < self._needs:
            raise ConfigError(
                f"{_ENDPOINT}: {self.name} takes rows of {longest} tokens; accepted: {self._needs} or more; hint: vllm "
                f"serve --max-model-len {self._needs}"
            )
        return name

    def _load(self, path: str, body: Mapping[str, Any] | None, directory: Path, hint: str) -> dict[str, Any]:
        try:
            answer = self._post(path, body)
        except _Refused as refused:
            is_missing = refused.status in (404, 405) and "Not Found" in str(refused)
            hint = _key_hint(refused) or f"; hint: {hint if is_missing else _SHARED_HINT}"
            raise ConfigError(f"{_ENDPOINT}: {self.name} does not read {directory}: {refused}{hint}") from refused
        return answer if isinstance(answer, dict) else {}

    def _post(self, path: str, body: Mapping[str, Any] | None) -> Any:
        return self._call("POST", path, body, time.monotonic() + self._timeout_s)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None, deadline: float) -> Any:
        """The answer's JSON, or its text; raises Lost or _Refused."""
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        content = None if body is None else json.dumps(body).encode()
        connection = self._connection(deadline)
        try:
            connection.connect()
            if connection not in self._open:
                raise OSError("given up, because another request failed")
            connection.request(method, self._root + path, content, headers)
            response = connection.getresponse()
            text = _read(response, deadline).decode(errors="replace")
            return self._judged(response.status, path, text)
        except (OSError, ValueError, http.client.HTTPException) as error:
            words = f"{type(error).__name__}: {error}".rstrip(": ")
            raise Lost(self._without_key(f"{self.name}: {path}: {words}")) from error
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _judged(self, status: int, path: str, text: str) -> Any:
        if status in _PASSING:
            raise Lost(self._without_key(f"{self.name}: {path}: {status}: {text[:300]}"))
        if status >= 300:
            raise _Refused(status, self._without_key(f"{path}: {status}: {text[:300]}"))
        is_json = path.startswith("/v1/completions") or text.startswith(("{", "["))
        return json.loads(text) if is_json else text

    def _connection(self, deadline: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        made = kind(self._parts.hostname or "", self._parts.port, timeout=max(deadline - time.monotonic(), 0.05))
        with self._lock:
            self._open.add(made)
        return made

    def _without_key(self, text: str) -> str:
        return text if self._key is None else text.replace(self._key, "…")


def _failed_first(tasks: Sequence[Any]) -> Sequence[Any]:
    """All, unless one failed: its error is the one to tell, not that of those that were hung up."""
    failed = [task for task in tasks if task.done() and task.exception() is not None]
    return failed[:1] or tasks


def _key_hint(refused: _Refused) -> str:
    return "; hint: spec.rollout.vllm.apiKeyEnv" if refused.status in (401, 403) else ""


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """All of an answer; raises TimeoutError where it trickles, IncompleteRead where it breaks off."""
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
