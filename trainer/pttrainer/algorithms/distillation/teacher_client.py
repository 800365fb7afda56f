"""A teacher behind a server of vLLM: what it finds likeliest in the place of each token of a text.

    GET  /v1/models         the model's name, the longest text
    POST /tokenize          whether it reads a text as the student does
    POST /v1/completions    token ids and `prompt_logprobs`: K; one token is generated, which nobody reads

Texts go to the replica with the fewest of them. One that does not answer is left out for a while, and its texts go
elsewhere, with growing pauses; if nothing is answered for long, the run ends with `ServiceLost`. Read in vLLM 0.32.0,
whose log-probs of a prompt are of the plain predictions, whatever the temperature.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from pttrainer.algorithms.distillation import teacher_reply
from pttrainer.data.distillation.teacher_logprobs import TeacherLogprobs
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError, ServiceLost
from pttrainer.runtime import http_client
from pttrainer.runtime.services import first_answer
from pttrainer.runtime.services.replicas import Replicas
from pttrainer.sandbox.pool import WAKE_S

FIELD = "spec.algorithm.distill.teacher.service"
AT_ONCE = 16
"""Texts that a replica computes at once."""
REQUEST_S = 600.0
"""Longest time of one text, behind `AT_ONCE` others."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
LOST_S = first_answer.LIMIT_S
"""Longest time without any answer."""
MAX_ENGINE_ERRORS = 5
"""Of one text, after which the run ends: the text is the cause."""
ENTRY_BYTES = 256
"""Most bytes of one token with its log-prob in an answer."""
PROBE = "Distil 1,234.5: déjà vu — 学生は先生から学ぶ;\n\tdef f(x): return x**2  # 🙂 "
"""A text that different tokenizers read differently."""
_TEMPORARY = frozenset({408, 409, 425, 429, 502, 503, 504})
_ENGINE_ERROR = 500


class Text(NamedTuple):
    """Tokens that the teacher reads. places: of those after which its prediction is wanted."""

    tokens: tuple[int, ...]
    places: tuple[int, ...]


class _Away(Exception):
    """No answer; another replica, or the same one later, may give one."""


class _EngineError(_Away):
    """The server is up and failed."""


class _Refused(Exception):
    """The server refuses the request. status: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class TeacherClient:
    """Asks the replicas of a service. top_k: tokens per place; size: of the student's vocabulary; longest: of texts."""

    def __init__(
        self, name: str, urls: Sequence[str], top_k: int, size: int, longest: int, note: Callable[[str], None]
    ) -> None:
        self._name, self._top_k, self._size, self._longest, self._note = name, top_k, size, longest, note
        self._replicas = Replicas(urls)
        self._opener = http_client.build_opener()
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._last_answer = 0.0

    def begin(self, tokenizer: Tokenizer, alive: Callable[[], None]) -> None:
        """Wait until the service answers, and check that it is a teacher of this student.

        Raises ServiceLost or ConfigError.
        """
        for attempt in range(MAX_ENGINE_ERRORS):
            replica = first_answer.wait(self._name, FIELD, self._replicas, self._note, alive)
            url = self._replicas.urls[replica]
            try:
                self._check(url, tokenizer)
                break
            except _Away as away:
                if attempt + 1 == MAX_ENGINE_ERRORS:
                    raise ServiceLost(f"{FIELD}: {self._name}: {away}") from away
                time.sleep(MIN_PAUSE_S * 2**attempt)
        self._note(f"teacher: service {self._name}, {len(self._replicas.urls)} replicas, first answer from {url}")

    def likeliest(self, texts: Sequence[Text], alive: Callable[[], None]) -> list[TeacherLogprobs]:
        """Return the teacher's tokens at the wanted places of each text. alive: called while waiting.

        Raises ServiceLost or ConfigError.
        """
        threads = ThreadPoolExecutor(AT_ONCE * len(self._replicas.urls), thread_name_prefix="teacher")
        over = threading.Event()
        self._last_answer = time.monotonic()
        once = list(dict.fromkeys(texts))
        try:
            tasks = [threads.submit(self._ask, text, over) for text in once]
            self._wait(tasks, alive)
            answers = {text: task.result() for text, task in zip(once, tasks, strict=True)}
        finally:
            over.set()
            threads.shutdown(wait=False, cancel_futures=True)
        return [answers[text] for text in texts]

    def _wait(self, tasks: Sequence[Future[TeacherLogprobs]], alive: Callable[[], None]) -> None:
        while True:
            done, others = wait(tasks, timeout=WAKE_S, return_when=FIRST_EXCEPTION)
            with self._lock:
                lines, self._lines = self._lines, []
                silent_s = time.monotonic() - self._last_answer
            for line in lines:
                self._note(line)
            for task in done:
                task.result()
            if not others:
                return
            if silent_s > LOST_S:
                raise ServiceLost(
                    f"{FIELD}: {self._name}: no answer for {silent_s:.0f} s; hint: look at the log of the service's "
                    "pods; the run resumes from its checkpoint when it is started again"
                )
            alive()

    def _ask(self, text: Text, over: threading.Event) -> TeacherLogprobs:
        """Return the answer to one text, from whichever replica; runs in a thread."""
        attempt, engine_errors = 0, 0
        while not over.is_set():
            replica = self._replicas.take()
            try:
                answer = self._answer(self._replicas.urls[replica], text)
            except _Away as away:
                self._lost(replica, away)
                engine_errors += isinstance(away, _EngineError)
                if engine_errors >= MAX_ENGINE_ERRORS:
                    raise ServiceLost(
                        f"{FIELD}: {self._name}: failed {engine_errors} times on one text: {away}"
                    ) from away
                over.wait(min(MIN_PAUSE_S * 2**attempt, MAX_PAUSE_S))
                attempt += 1
                continue
            finally:
                self._replicas.release(replica)
            self._answered(replica)
            return answer
        raise ServiceLost(f"{FIELD}: {self._name}: another text failed")

    def _answer(self, url: str, text: Text) -> TeacherLogprobs:
        body = {
            "model": self._name, "prompt": list(text.tokens), "prompt_logprobs": self._top_k,
            "max_tokens": 1, "temperature": 0.0, "add_special_tokens": False,
        }  # fmt: skip
        max_bytes = http_client.MAX_REPLY_BYTES + len(text.tokens) * (self._top_k + 1) * ENTRY_BYTES
        try:
            document = self._call(url, "/v1/completions", body, max_bytes)
            return teacher_reply.read(document, len(text.tokens), text.places, self._top_k, self._size)
        except _Refused as refused:
            raise ConfigError(
                f"{FIELD}: {self._name}: refuses a text: {refused}; hint: vLLM takes topK up to its --max-logprobs "
                f"({self._top_k} here), and texts shorter than its --max-model-len"
            ) from refused
        except teacher_reply.Unusable as unusable:
            raise ConfigError(f"{FIELD}: {self._name}: {unusable}") from unusable

    def _lost(self, replica: int, away: _Away) -> None:
        if self._replicas.lost(replica):
            with self._lock:
                self._lines.append(f"teacher {self._name}: {away}; its texts go elsewhere, and there again later")

    def _answered(self, replica: int) -> None:
        is_back = self._replicas.answered(replica)
        with self._lock:
            self._last_answer = time.monotonic()
            if is_back:
                self._lines.append(f"teacher {self._name}: {self._replicas.urls[replica]} answers")

    def _check(self, url: str, tokenizer: Tokenizer) -> None:
        try:
            self._check_model(url)
            self._check_tokenizer(url, tokenizer)
        except (_Refused, AttributeError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{FIELD}: {self._name}: {type(error).__name__.strip('_')}: {error}; accepted: a server of vLLM's"
            ) from error

    def _check_model(self, url: str) -> None:
        cards = {str(card["id"]): card for card in self._call(url, "/v1/models", None).get("data", ())}
        if self._name not in cards:
            raise ConfigError(
                f"{FIELD}: {self._name}: {url} serves {', '.join(cards) or 'nothing'}; hint: vllm serve "
                f"--served-model-name {self._name}"
            )
        longest = cards[self._name].get("max_model_len")
        if longest is not None and longest < self._longest + 1:
            raise ConfigError(
                f"{FIELD}: {self._name}: takes {longest} tokens; accepted: {self._longest + 1} or more: the longest "
                f"text, and one that vLLM generates; hint: services: [{{name: {self._name}, maxModelLen: "
                f"{self._longest + 1}}}]"
            )

    def _check_tokenizer(self, url: str, tokenizer: Tokenizer) -> None:
        text = PROBE + "".join(tokenizer.token(token) for token in tokenizer.eos_ids)
        body = {"model": self._name, "prompt": text, "add_special_tokens": False}
        try:
            tokens = self._call(url, "/tokenize", body).get("tokens")
        except _Refused as refused:
            self._note(f"teacher {self._name}: whether it has the student's tokenizer is not known: {refused}")
            return
        if tokens != tokenizer.encode(text):
            raise ConfigError(
                f"{FIELD}: {self._name}: reads a text as other tokens than the student; accepted: a teacher with the "
                "student's tokenizer; hint: a model of the same family"
            )

    def _call(
        self, url: str, path: str, body: Mapping[str, Any] | None, max_bytes: int = http_client.MAX_REPLY_BYTES
    ) -> Any:
        """Return the JSON object of an answer. Raises _Away or _Refused."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{url}{path}", content, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=REQUEST_S) as response:
                return json.loads(http_client.read(response, max_bytes))
        except urllib.error.HTTPError as error:
            with error:
                message = f"{url}{path}: {error.code} {error.reason}: {http_client.body_excerpt(error)}"
            if error.code == _ENGINE_ERROR:
                raise _EngineError(message) from error
            raise (_Away(message) if error.code in _TEMPORARY else _Refused(error.code, message)) from error
        except (OSError, ValueError, http_client.HttpError) as error:
            raise _Away(f"{url}{path}: {getattr(error, 'reason', repr(error))}") from error
