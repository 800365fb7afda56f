"""Requests that wait are sampled together, and each gets what it would get alone: the model's own tokens."""

import asyncio
import threading
from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.commands.model.answers import Answer, Request, State
from pttrainer.commands.model.batches import Batches
from pttrainer.commands.model.dialogue import speakers
from pttrainer.commands.model.loaded_model import LoadedModel, load, uri_of
from pttrainer.commands.model.openai_api import http_server
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models import Model, preset

PROMPT = list(b"What is 2 plus 3?")
GREEDY = Request(PROMPT, 12, temperature=0.0)


@cache
def model(length: int = 256) -> LoadedModel:
    return load("random://tiny", None, length)


def answered(batches: Batches, *requests: Request) -> list[Answer]:
    changed = threading.Semaphore(0)
    answers = [Answer(request, model().chat.tokenizer, changed.release) for request in requests]
    for answer in answers:
        batches.submit(answer)
    while not all(answer.is_done for answer in answers):
        assert changed.acquire(timeout=300)
    return answers


def test_waiting_requests_are_one_batch_and_each_is_answered_as_alone() -> None:
    requests = [Request(PROMPT, 9, seed=1), Request(list(b"abc"), 21, seed=2), Request(PROMPT, 9, seed=3)]
    with Batches(model()) as batches:
        together = [answer.state for answer in answered(batches, *requests)]
        alone = answered(batches, requests[1])[0].state
    assert batches.begun == [3, 1]
    assert [len(state.tokens) for state in together] == [9, 21, 9]
    assert together[0].tokens != together[2].tokens
    assert (alone.tokens, alone.text) == (together[1].tokens, together[1].text)


def test_requests_join_one_under_way_and_end_before_it_each_answered_as_alone() -> None:
    long = Request(PROMPT, 150, seed=1)
    short = [Request(list(b"abc") * size, 5 + size, seed=size) for size in range(1, 6)]
    tall = Request(list(b"abcde") * 60, 4, seed=9)  # no room beside the others: it waits for their end
    changed = threading.Semaphore(0)
    with Batches(model(400)) as batches:
        first = Answer(long, model().chat.tokenizer, changed.release)
        batches.submit(first)
        assert changed.acquire(timeout=300)
        joined = answered(batches, *short)
        assert not first.is_done
        [last] = answered(batches, tall)
        assert first.is_done
        alone = [answered(batches, request)[0].state for request in (long, short[3], tall)]
    together = [answer.state for answer in (first, joined[3], last)]
    assert [(state.tokens, state.text) for state in together] == [(state.tokens, state.text) for state in alone]
    for state, same in zip(together, alone, strict=True):  # sums of other numbers of rows may end in other digits
        np.testing.assert_allclose(state.logps, same.logps, atol=1e-4)


def test_log_probs_are_those_of_the_model() -> None:
    with Batches(model()) as batches:
        [answer] = answered(batches, GREEDY)
    plain = Model(preset("tiny"))
    params = plain.init(jax.random.key(0))
    tokens_1T = jnp.array([[*PROMPT, *answer.state.tokens]])
    hidden = plain.forward(params, tokens_1T, jnp.arange(tokens_1T.shape[1])[None], jnp.ones_like(tokens_1T))
    logps_TV = jax.nn.log_softmax(plain.logits(params, hidden)[0].astype(jnp.float32))
    new_T = tokens_1T[0, len(PROMPT) :]
    assert new_T.tolist() == jnp.argmax(logps_TV[len(PROMPT) - 1 : -1], axis=1).tolist()
    expected = logps_TV[np.arange(len(PROMPT) - 1, tokens_1T.shape[1] - 1), new_T]
    np.testing.assert_allclose(answer.state.logps, expected, atol=1e-3)


def grown(text: str, *stop: str, most: int = 100) -> list[State]:
    """The states of an answer that gets a text byte by byte."""
    states: list[State] = []
    answer = Answer(Request([1], most, stop=stop), byte_tokenizer(), lambda: states.append(answer.state))
    for byte in text.encode():
        if not answer.is_done:
            answer.add(np.array([byte]), np.array([-1.0]))
    return states


def test_text_once_shown_never_changes_and_lacks_the_stop_string() -> None:
    texts = [state.text for state in grown("né€ STOP yes STOPS no", "STOPS", "unused")]
    assert texts[-1] == "né€ STOP yes "
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert grown("né€ STOP yes STOPS no", "STOPS")[-1].finish == "stop"
    assert grown("abcdef", most=3)[-1] == State("abc", (97, 98, 99), (-1.0, -1.0, -1.0), "length")


def fed(answer: Answer, text: str) -> None:
    for byte in text.encode():
        answer.add(np.array([byte]), np.array([-1.0]))


class AtOnce:
    """Answers before the one who asks looks again."""

    def submit(self, answer: Answer) -> None:
        fed(answer, "abc")


def test_a_chat_shows_the_end_of_an_answer_that_came_while_its_beginning_was_shown() -> None:
    states = speakers.states(AtOnce(), model(), Request([1], 3))  # type: ignore[arg-type]
    assert [state.text for state in states][-1] == "abc"


async def test_the_server_sends_the_last_state_that_came_while_the_one_before_was_sent() -> None:
    changed = asyncio.Event()
    answer = Answer(Request([1], 3), byte_tokenizer(), changed.set)
    fed(answer, "a")
    states = http_server._states(answer, changed)
    assert (await anext(states)).text == "a"
    fed(answer, "bc")  # the answer is done, and what was sent last is not its end
    assert [(state.text, state.finish) async for state in states] == [("abc", "length")]


@pytest.mark.parametrize("path", ["no/such/place", "s3://bucket/model"])
def test_a_path_that_is_no_model_is_refused_with_what_is_accepted(path: str) -> None:
    with pytest.raises(ConfigError, match=f"model: {path}: not a directory; accepted: an export or run directory"):
        uri_of(path)
