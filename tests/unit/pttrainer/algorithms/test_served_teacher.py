"""A teacher behind a server: what it is asked, what is taken of its answers, and what happens if it goes away."""

import json
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.vllm import teacher as builder
from tests.builders.vllm.fake import FakeServer

from pttrainer.algorithms.distillation import teacher_client, teacher_reply
from pttrainer.algorithms.distillation.teacher_client import TeacherClient, Text
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError, ServiceLost

TEXTS = [Text((256, 1, 2, 3), (0, 2)), Text((256, 9), (0,)), Text((256, 1, 2, 3), (0, 2)), Text((5, 6, 7), (1,))]
VOCABULARY = 264


@cache
def weights() -> Any:
    return builder.weights(1)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeServer]]:
    monkeypatch.setattr(teacher_client, "MIN_PAUSE_S", 0.01)
    made = [builder.serve("tutor", *weights()) for _ in range(2)]
    yield made
    for server in made:
        server.close()


def client(servers: list[FakeServer], top_k: int = 4, size: int = VOCABULARY, longest: int = 64) -> Any:
    notes: list[str] = []
    made = TeacherClient("tutor", [server.url for server in servers], top_k, size, longest, notes.append)
    return made, notes


def nothing() -> None: ...


def plain_logps(text: Text) -> np.ndarray:
    """The model's log-probs after each token of a text, by its logits."""
    model, params = weights()
    rows = np.array([text.tokens]), np.arange(len(text.tokens))[None], np.ones((1, len(text.tokens)), np.int32)
    return np.asarray(jax.nn.log_softmax(model.logits(params, model.forward(params, *rows))[0]))


def test_the_k_likeliest_tokens_after_each_wanted_place_come_with_their_log_probs(servers: list[FakeServer]) -> None:
    made, _ = client(servers)
    answers = made.likeliest(TEXTS, nothing)
    for text, answer in zip(TEXTS, answers, strict=True):
        assert (answer.ids.shape, answer.ids.dtype, answer.logps.dtype) == ((len(text.places), 4), np.int32, np.float32)
        for place, ids, logps in zip(text.places, *answer, strict=True):
            of_model = plain_logps(text)[place]
            assert ids.tolist() == np.argsort(-of_model, kind="stable")[:4].tolist()
            np.testing.assert_allclose(logps, of_model[ids], atol=2e-4)


def test_equal_texts_are_asked_once_and_replicas_share_the_work(servers: list[FakeServer]) -> None:
    gate = threading.Barrier(2, timeout=60)  # two texts are under way at once

    def meet(path: str, calls: int) -> None:
        gate.wait()

    for server in servers:
        server.trouble = meet
    made, _ = client(servers)
    made.likeliest([*TEXTS[:1], Text((256, 8), (0,)), *TEXTS[2:3]], nothing)
    assert [len(server.bodies("/v1/completions")) for server in servers] == [1, 1]


def test_a_text_of_a_replica_that_fails_goes_to_another_and_people_read_it(servers: list[FakeServer]) -> None:
    made, notes = client(servers)
    wanted = made.likeliest(TEXTS, nothing)
    servers[0].close()
    again = made.likeliest(TEXTS, nothing)
    jax.tree.map(np.testing.assert_array_equal, again, wanted)
    assert any(servers[0].url in line and "its texts go elsewhere" in line for line in notes), notes


@pytest.mark.parametrize("trouble", ["drop", "half", 503, 429, 500])
def test_what_passes_is_tried_again(servers: list[FakeServer], trouble: Any) -> None:
    for server in servers:
        server.trouble = lambda path, calls: trouble if calls <= 2 else None
    made, _ = client(servers)
    assert [len(answer.ids) for answer in made.likeliest(TEXTS, nothing)] == [2, 1, 2, 1]


def test_a_silent_service_is_lost_after_a_while_and_waiting_for_it_is_a_sign_of_life(
    servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_client, "LOST_S", 0.3)
    monkeypatch.setattr(teacher_client, "WAKE_S", 0.02)
    for server in servers:
        server.trouble = lambda path, calls: 503
    beats: list[int] = []
    with pytest.raises(ServiceLost, match=r"teacher.service: tutor: no answer for .* s; hint"):
        client(servers)[0].likeliest(TEXTS, lambda: beats.append(1))
    assert beats


def test_a_text_at_which_the_server_fails_again_and_again_ends_the_run(
    servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_client, "MAX_PAUSE_S", 0.01)
    for server in servers:
        server.trouble = lambda path, calls: 500
    with pytest.raises(ServiceLost, match="failed 5 times on one text"):
        client(servers)[0].likeliest(TEXTS[:1], nothing)


def test_a_service_is_checked_once_it_answers(servers: list[FakeServer]) -> None:
    made, notes = client(servers)
    made.begin(byte_tokenizer(), nothing)
    assert notes == [f"teacher: service tutor, 2 replicas, first answer from {servers[0].url}"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_model_len": 64}, r"tutor: takes 64 tokens; accepted: 65 or more: .*maxModelLen: 65"),
        ({"served": {"other": None}}, r"tutor: http://\S+ serves other; hint: vllm serve --served-model-name tutor"),
    ],
)
def test_a_server_of_something_else_is_refused(servers: list[FakeServer], change: dict[str, Any], words: str) -> None:
    for name, value in change.items():
        setattr(servers[0], name, value)
    with pytest.raises(ConfigError, match=words):
        client(servers)[0].begin(byte_tokenizer(), nothing)


def test_a_server_that_is_no_vllm_is_refused(servers: list[FakeServer]) -> None:
    servers[0].trouble = lambda path, calls: 404 if path == "/v1/models" else None
    with pytest.raises(
        ConfigError, match=r"tutor: Refused: http://\S+/v1/models: 404 .*; accepted: a server of vLLM's"
    ):
        client(servers)[0].begin(byte_tokenizer(), nothing)


def test_a_replica_that_goes_away_while_it_is_checked_is_no_end(servers: list[FakeServer]) -> None:
    servers[0].trouble = lambda path, calls: 503 if path == "/v1/models" and calls == 1 else None
    made, notes = client(servers)
    made.begin(byte_tokenizer(), nothing)
    assert "first answer from" in notes[0]


def test_a_teacher_of_another_tokenizer_is_refused(servers: list[FakeServer]) -> None:
    other = byte_tokenizer(more=("Distil",))
    with pytest.raises(ConfigError, match="reads a text as other tokens than the student"):
        client(servers)[0].begin(other, nothing)


def test_a_server_that_does_not_tokenize_is_taken_and_people_read_what_is_not_known(
    servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers[0].trouble = lambda path, calls: 404 if path == "/tokenize" else None
    made, notes = client(servers)
    made.begin(byte_tokenizer(), nothing)
    assert "whether it has the student's tokenizer is not known" in notes[0]


def test_more_tokens_than_the_server_gives_are_refused_with_its_flag(servers: list[FakeServer]) -> None:
    with pytest.raises(ConfigError, match=r"greater than max allowed: 20.*hint: .*--max-logprobs \(21 here\)"):
        client(servers, top_k=21)[0].likeliest(TEXTS, nothing)


def test_a_token_beyond_the_student_s_vocabulary_is_refused(servers: list[FakeServer]) -> None:
    with pytest.raises(ConfigError, match=r"finds token \d+ likely, and the student's vocabulary has 2; accepted"):
        client(servers, size=2)[0].likeliest(TEXTS, nothing)


def entry(**logps: float) -> dict[str, Any]:
    return {token[1:]: {"logprob": logp} for token, logp in logps.items()}


def reply(*entries: Any) -> dict[str, Any]:
    return json.loads(json.dumps({"choices": [{"prompt_logprobs": [None, *entries]}]}))


def test_the_text_s_own_token_is_left_out_unless_it_is_among_the_likeliest() -> None:
    document = reply(entry(t7=-9.0, t3=-0.5, t1=-1.0), entry(t1=-1.0, t3=-0.5))
    answer = teacher_reply.read(document, 3, (0, 1), 2, 10)
    assert answer.ids.tolist() == [[3, 1], [3, 1]]
    assert answer.logps.tolist() == [[-0.5, -1.0], [-0.5, -1.0]]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"choices": [{"text": "?"}]}, "no log-probs of a prompt: KeyError"),
        ([], "no log-probs of a prompt"),
        (reply(entry(t1=-1.0, t2=-2.0)), "log-probs of 2 tokens; there are 3"),
        (reply(entry(t1=-1.0), entry(t1=-1.0)), "1 tokens in one place; accepted: 2"),
        (reply(entry(t1=-1.0, t2=0.5), entry(t1=-1.0, t2=-2.0)), "not all finite numbers up to 0"),
    ],
)
def test_half_an_answer_is_none(document: Any, words: str) -> None:
    with pytest.raises(teacher_reply.Unusable, match=words):
        teacher_reply.read(document, 3, (0, 1), 2, 10)
