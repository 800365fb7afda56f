"""A judge behind OpenAI-compatible endpoints: `POST <url>/chat/completions`, and a reply with `Score: N`.

reward = (N − lowest) / (highest − lowest)

A failure is no reward: no connection, a reply without a score, a spent budget. Temporary errors (429, 5xx, timeouts)
are retried with exponential backoff, or after the time that the service asks for; of several replicas by another one,
which has the fewest requests. Each prompt is sent once per run: its
reply is kept in the run directory (`reply_cache`), so a resumed run repeats nothing.

Left out: streaming, and any client library; a few blocking calls in threads suffice, and they wait on the network while
the devices work. The key goes into one header and into no file, message or cache.
"""

import hashlib
import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from ptapi.spec import JudgeReward
from pttrainer.rewards import Sample, Verdict
from pttrainer.rewards.llm_judge.judge_model import JudgeModel
from pttrainer.rewards.llm_judge.prompt import PLACEHOLDERS, parse_score, placeholders, question
from pttrainer.rewards.llm_judge.reply_cache import JudgeReply, ReplyCache
from pttrainer.runtime import http_client
from pttrainer.runtime.reporting.step_faults import Kind
from pttrainer.sandbox.pool import WAKE_S, Alive

MIN_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
MAX_REPLY_CHARS = 1 << 16
"""Characters kept from the end of a reply, where the score is."""
MAX_FAILURES_IN_A_ROW = 8
"""Per concurrent request: this many failures in a row end the requests of a step."""
_TEMPORARY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class _Failure(Exception):
    """No reply. stopped: not the judge's fault, a later request may succeed."""

    def __init__(self, message: str, *, stopped: bool, kind: Kind = Kind.SERVICE) -> None:
        super().__init__(message)
        self.stopped, self.kind = stopped, kind


class _PendingBatch(NamedTuple):
    """The requests of a step's samples: cache keys, pending replies, and what had been spent before."""

    keys: list[str]
    replies: dict[str, Future[JudgeReply | _Failure]]
    calls: int
    tokens: int


class LlmJudge:
    """Scores samples with a language model."""

    def __init__(
        self, spec: JudgeReward, model: JudgeModel, timeout_s: float, key: str | None, answers: ReplyCache
    ) -> None:
        self._spec, self._model, self._timeout_s, self._key, self._replies = spec, model, timeout_s, key, answers
        self._opener = http_client.build_opener()
        self._threads = ThreadPoolExecutor(spec.concurrency, thread_name_prefix="judge")
        self._lock = threading.Lock()
        self._calls, self._tokens = answers.calls, answers.tokens
        self._failures_in_a_row = 0
        self._pending_batch: _PendingBatch | None = None
        self._facts: dict[str, float] = {}
        self._unchecked = placeholders(spec)

    def start(self, samples: Sequence[Sample]) -> bool:
        """Send the requests of these samples; they run in threads."""
        self._pending_batch = self._submit(samples)
        return True

    def score(self, samples: Sequence[Sample], alive: Alive) -> list[Verdict]:
        """Return a verdict per sample, waiting for pending replies."""
        pending, self._pending_batch = self._pending_batch or self._submit(samples), None
        while wait(pending.replies.values(), timeout=WAKE_S).not_done:
            alive()
        replies = {key: reply.result() for key, reply in pending.replies.items()}
        self._replies.add(
            {key: answer for key, answer in replies.items() if isinstance(answer, JudgeReply)},
            self._calls,
            self._tokens,
        )
        self._facts = {
            "calls": float(self._calls - pending.calls),
            "kept": float(len(pending.keys) - len(pending.replies)),
            "tokens": float(self._tokens - pending.tokens),
        }
        return [self._verdict(replies.get(key) or self._replies[key]) for key in pending.keys]

    def _submit(self, samples: Sequence[Sample]) -> _PendingBatch:
        """Send the prompts that are not cached, in threads."""
        self._warn_of_unknown_placeholders(samples)
        questions = [question(self._spec, sample) for sample in samples]
        keys = [self._cache_key(prompt) for prompt in questions]
        new_prompts = {key: prompt for key, prompt in zip(keys, questions, strict=True) if key not in self._replies}
        calls, tokens, self._failures_in_a_row = self._calls, self._tokens, 0
        replies = {key: self._threads.submit(self._ask, prompt) for key, prompt in new_prompts.items()}
        return _PendingBatch(keys, replies, calls, tokens)

    def _warn_of_unknown_placeholders(self, samples: Sequence[Sample]) -> None:
        """Warn once of placeholders without a value: they stay in the prompt, and a judge would not complain."""
        names, self._unchecked = self._unchecked, set()
        accepted = {*PLACEHOLDERS}.union(*(sample.row for sample in samples))
        for name in sorted(names - accepted):
            print(
                f"warning: the prompt of judge {self._model.name} says {{{name}}}, which no row has: it is sent "
                f"unchanged; accepted: {', '.join(sorted(accepted))}",
                file=sys.stderr,
            )

    def facts(self) -> Mapping[str, float]:
        """Return calls, cache hits and tokens of the last step."""
        facts, self._facts = self._facts, {}
        return facts

    def close(self) -> None:
        """Cancel pending requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _verdict(self, reply: JudgeReply | _Failure) -> Verdict:
        if isinstance(reply, _Failure):
            return Verdict(None, str(reply), reply.stopped, reply.kind)
        value = parse_score(reply.text)
        low, high = self._spec.lowest, self._spec.highest
        if value is None:
            return Verdict(None, f"the judge gave no score: {reply.text[-80:]!r}", stopped=True, kind=Kind.JUDGE)
        if not low <= value <= high:
            message = f"the judge gave {value:g}; accepted: {low:g} to {high:g}"
            return Verdict(None, message, stopped=True, kind=Kind.JUDGE)
        return Verdict((value - low) / (high - low))

    def _cache_key(self, prompt: str) -> str:
        document = [self._model.origin, self._model.name, self._spec.max_tokens, prompt]
        return hashlib.sha256(json.dumps(document).encode()).hexdigest()

    def _ask(self, prompt: str) -> JudgeReply | _Failure:
        """Return the reply to one prompt; runs in a thread. Gives up at once while the service is down.

        Raises ServiceLost if a service of the job never answered.
        """
        self._model.wait()
        if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW * self._spec.concurrency:
            return _Failure(f"not asked: {self._failures_in_a_row} questions in a row had no answer", stopped=True)
        reply = self._ask_with_retries(prompt)
        with self._lock:
            self._failures_in_a_row = (
                self._failures_in_a_row + 1 if isinstance(reply, _Failure) and reply.stopped else 0
            )
        return reply

    def _ask_with_retries(self, prompt: str) -> JudgeReply | _Failure:
        deadline = time.monotonic() + self._timeout_s
        for attempt in range(self._spec.retries + 1):
            try:
                return self._ask_replica(prompt, deadline)
            except _TemporaryError as again:
                pause = max(again.wait_s, min(MIN_BACKOFF_S * 2**attempt, MAX_BACKOFF_S) * random.uniform(0.5, 1.0))
                last = attempt == self._spec.retries
                if last or time.monotonic() + pause >= deadline:
                    return _Failure(f"{again} ({attempt + 1} tries)", stopped=True)
                time.sleep(pause)
            except _Failure as failure:
                return failure
        raise AssertionError("the last try returned")

    def _ask_replica(self, prompt: str, deadline: float) -> JudgeReply:
        replicas = self._model.replicas
        replica = replicas.take()
        try:
            reply = self._post(replicas.urls[replica], prompt, deadline)
            replicas.answered(replica)
        except _TemporaryError:
            replicas.lost(replica)
            raise
        finally:
            replicas.release(replica)
        return reply

    def _post(self, base: str, prompt: str, deadline: float) -> JudgeReply:
        self._count_call()
        body = {
            "model": self._model.name,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self._spec.max_tokens,
            "temperature": 0,
        }
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        url = f"{base}/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
        try:
            with self._opener.open(request, timeout=max(deadline - time.monotonic(), 0.05)) as response:
                reply = _parse_reply(json.loads(http_client.read(response)))
        except urllib.error.HTTPError as error:
            body_text = http_client.body_excerpt(error)
            message = self._redacted(f"{url}: {error.code} {error.reason}{': ' if body_text else ''}{body_text}")
            if error.code in _TEMPORARY:
                raise _TemporaryError(message, http_client.retry_after(error)) from error
            raise _Failure(message, stopped=False, kind=Kind.JUDGE) from error
        except json.JSONDecodeError as error:
            raise _TemporaryError(self._redacted(f"{url}: the reply is not JSON: {error.doc[:80]!r}")) from error
        except Exception as error:  # no connection, a broken one, or a malformed reply
            raise _TemporaryError(self._redacted(f"{url}: {type(error).__name__}: {error}")) from error
        with self._lock:
            self._tokens += reply.tokens
        return reply

    def _count_call(self) -> None:
        """Count a request against the budget; raise _Failure if it is spent."""
        budget = self._spec.budget
        with self._lock:
            if budget.calls is not None and self._calls >= budget.calls:
                raise _Failure(f"the judge's budget of {budget.calls} calls is spent", stopped=True, kind=Kind.BUDGET)
            if budget.tokens is not None and self._tokens >= budget.tokens:
                raise _Failure(f"the judge's budget of {budget.tokens} tokens is spent", stopped=True, kind=Kind.BUDGET)
            self._calls += 1

    def _redacted(self, text: str) -> str:
        """Return the text on one line, without the key."""
        return " ".join((text if self._key is None else text.replace(self._key, "…")).split())


class _TemporaryError(Exception):
    """An error that may go away. wait_s: delay that the service asks for."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def _parse_reply(document: Any) -> JudgeReply:
    text = document["choices"][0]["message"]["content"]
    tokens = (document.get("usage") or {}).get("total_tokens") or 0
    if not isinstance(text, str):
        raise TypeError(f"the reply's content is a {type(text).__name__}")
    return JudgeReply(text[-MAX_REPLY_CHARS:], max(0, int(tokens)))
