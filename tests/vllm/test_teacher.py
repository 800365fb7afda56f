"""A real `vllm serve` as a teacher: its likeliest tokens are those of the same weights here, and what it refuses."""

from pathlib import Path

import jax
import numpy as np
import pytest
from tests.builders.vllm.real import PRESET, RealServer, weights
from tests.vllm.test_server import DRAW, PROMPTS, SAMPLING, engine

from pttrainer.algorithms.distillation.teacher_client import TeacherClient, Text
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError

K = 20
TEXTS = [Text((256, 260, *b"one", 261, *b"two", 257), (5, 6, 7, 8)), Text((256, 260, *range(200)), tuple(range(150)))]
TOLERANCE = 1e-4
"""Largest difference of a log-prob, float32 on both sides. Not to be loosened."""


def client(server: RealServer, top_k: int = K, longest: int = 255) -> TeacherClient:
    return TeacherClient(PRESET, [server.url], top_k, 264, longest, lambda line: None)


def test_the_likeliest_tokens_are_those_of_the_same_weights_here(server: RealServer, tmp_path: Path) -> None:
    model, params = weights(9)
    engine(server, tmp_path, model).generate(params, PROMPTS, 1, SAMPLING, DRAW)  # in case another test changed them
    ours = client(server)
    ours.begin(byte_tokenizer(), lambda: None)
    for text, answer in zip(TEXTS, ours.likeliest(TEXTS, lambda: None), strict=True):
        rows = np.array([text.tokens]), np.arange(len(text.tokens))[None], np.ones((1, len(text.tokens)), np.int32)
        logps_TV = np.asarray(jax.nn.log_softmax(model.logits(params, model.forward(params, *rows))[0]))
        of_places_nV = logps_TV[list(text.places)]
        wanted_nK = -np.sort(-of_places_nV, axis=1)[:, :K]
        assert answer.ids.shape == (len(text.places), K)
        assert all(len(set(ids)) == K for ids in answer.ids.tolist())
        np.testing.assert_allclose(answer.logps, wanted_nK, atol=TOLERANCE)
        np.testing.assert_allclose(answer.logps, np.take_along_axis(of_places_nV, answer.ids, axis=1), atol=TOLERANCE)


def test_more_tokens_or_longer_texts_than_it_takes_are_refused(server: RealServer) -> None:
    with pytest.raises(ConfigError, match=r"greater than max allowed: 20.*--max-logprobs \(21 here\)"):
        client(server, top_k=21).likeliest(TEXTS[:1], lambda: None)
    with pytest.raises(ConfigError, match=r"takes 256 tokens; accepted: 257 or more"):
        client(server, longest=256).begin(byte_tokenizer(), lambda: None)
    with pytest.raises(ConfigError, match=r"refuses a text: .* 400"):
        client(server).likeliest([Text((256,) * 256, (0,))], lambda: None)


def test_another_tokenizer_is_noticed(server: RealServer) -> None:
    with pytest.raises(ConfigError, match="reads a text as other tokens than the student"):
        client(server).begin(byte_tokenizer(more=("Distil",)), lambda: None)
