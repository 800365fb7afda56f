"""Requests answered together: one thread samples, and a request that comes joins those under way.

The engine compiles temperature and top_p, and the room for prompts, so those answered together share them
(`running_rows`); one that does not fit waits for the others' end, and none overtakes it. An answer depends on its
request alone, whoever it is answered with: its random keys come from its seed.
"""

import threading
import time
from typing import Self

from pttrainer.commands.model.answers import Answer
from pttrainer.commands.model.loaded_model import LoadedModel
from pttrainer.rollout.engine import Prompt, Sampling
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.rollout.native.running_rows import RunningRows, Tokens

MOST_ROWS = 32
"""Most requests answered at the same time."""
TOKENS_AT_ONCE = 4
"""Tokens of an answer between two looks at it: what a stream brings at once, and how long a request waits to join."""
GATHER_S = 0.005
"""Wait for requests sent at the same time before the first are answered."""
PROMPT_TOKENS = 256
"""Room for prompts that no waiting request needs: a longer one would wait for the end of those under way."""


class Batches:
    """A queue of answers to sample, and the thread that samples them while the block runs."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._waiting: list[Answer] = []
        self._changed = threading.Condition()
        self.begun: list[int] = []
        """Requests that began together, the newest last; at most a thousand."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="sampling")

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread after the requests under way: Python must not end while JAX computes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def submit(self, answer: Answer) -> None:
        """Queue an answer."""
        with self._changed:
            self._waiting.append(answer)
            self._changed.notify()

    def _run(self) -> None:
        while self._has_request():
            started: list[Answer] = []
            try:
                self._sample(started)
            except Exception as error:  # a thread that ends would leave its requests waiting: they get the error
                for answer in started:
                    if not answer.is_done:
                        answer.fail(error)

    def _has_request(self) -> bool:
        """Wait for a request; return False when the block has ended."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
        time.sleep(0.0 if self._is_closed else GATHER_S)
        return not self._is_closed

    def _sample(self, started: list[Answer]) -> None:
        """Answer requests alike to the oldest one, and those that join them, until none is under way."""
        with self._changed:
            key = self._waiting[0].request.batch_key
            alike = [len(answer.request.prompt) for answer in self._waiting if answer.request.batch_key == key]
        slots = slots_for(max(PROMPT_TOKENS, *alike))
        rows = self._rows(key, slots)
        running: dict[int, Answer] = {}
        while True:
            joined = 0
            while rows.has_room and (answer := self._joining(key, slots)):
                started.append(answer)
                request = answer.request
                running[rows.add(Prompt(request.prompt, request.seed, request.images), request.max_tokens)] = answer
                joined += 1
            self.begun = [*self.begun[-999:], *[joined] * bool(joined)]
            if not running:
                return
            ended = _record(rows.advance(TOKENS_AT_ONCE), running)
            rows.stop(ended)
            for number in ended:
                started.remove(running.pop(number))

    def _rows(self, key: tuple[float, float], slots: int) -> RunningRows:
        temperature, top_p = key
        model = self._model
        sampling = Sampling(
            model.length,
            model.length,
            temperature=temperature or 1.0,
            top_p=top_p if temperature else 1.0,
            greedy=temperature == 0.0,
        )
        most = min(MOST_ROWS, model.engine.most_rows(slots + model.length))
        return RunningRows(model.engine, model.weights, sampling, slots, most)

    def _joining(self, key: tuple[float, float], slots: int) -> Answer | None:
        """Take the oldest waiting answer if it may join those under way."""
        with self._changed:
            if self._is_closed or not self._waiting:
                return None
            request = self._waiting[0].request
            if request.batch_key != key or len(request.prompt) > slots:
                return None
            return self._waiting.pop(0)


def _record(tokens: Tokens, running: dict[int, Answer]) -> list[int]:
    """Give each answer its tokens; return the numbers of those that are done."""
    for number, answer in running.items():
        is_own_TB = tokens.owners_TB == number
        if not answer.is_done and is_own_TB.any():
            answer.add(tokens.tokens_TB[is_own_TB], tokens.logps_TB[is_own_TB])
    return [number for number, answer in running.items() if answer.is_done]
