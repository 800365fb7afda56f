"""Our client against the real `vllm serve`: log-probs, renewals, ends and cuts, and what it says when it refuses."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.vllm.context import context, moved
from tests.builders.vllm.real import PRESET, RealServer, weights

from ptapi.spec import Vllm
from pttrainer.batch import Batch
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models import Model, Params
from pttrainer.models.lora.adapters import ATTENTION, MLP, Adapters
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.vllm import separate_samplers
from pttrainer.rollout.vllm import vllm_engine as vllm

PROMPTS = [Prompt([256, 260, *b"one"], 0), Prompt([256, 260, *b"two and more"], 1)]
SAMPLING = Sampling(max_new_tokens=16, max_length=64)
DRAW = Draw(7, 3)
TOLERANCE = 1e-5
"""Mean difference of a log-prob, float32 on both sides. Not to be loosened."""


def engine(
    server: RealServer, tmp_path: Path, trained: Model, temperature: float = 1.0, **changes: Any
) -> vllm.VllmEngine:
    spec = {"endpoint": server.url, "weights_directory": f"{tmp_path}/shared", "tolerance": 1e-4, "retries": 1}
    return vllm.vllm_engine(context(tmp_path, trained, temperature)[0], Vllm.model_validate(spec | changes))


def trainer_logps(tmp_path: Path, model: Model, params: Params, done: Completions, temperature: float) -> np.ndarray:
    """The trainer's log-probs of what two samples of each prompt said, row after row."""
    score = context(tmp_path, model)[0].score
    rows = [[*PROMPTS[row // 2].tokens, *done.tokens(row)] for row in range(len(done.lengths_N))]
    tokens, targets, positions, segments = (np.zeros((len(rows), 64), np.int32) for _ in range(4))
    for row, ids in enumerate(rows):
        count = len(ids) - 1
        tokens[row, :count], targets[row, :count] = ids[:-1], ids[1:]
        positions[row, :count], segments[row, :count] = np.arange(count), 1
    mask = segments.astype(np.float32)
    batch = Batch(tokens, targets, positions, segments, mask, np.zeros_like(mask))
    logps_BT = np.asarray(score(params, batch, temperature).logps_BT)
    starts = [len(PROMPTS[row // 2].tokens) - 1 for row in range(len(rows))]
    return np.concatenate([logps_BT[row, start : len(rows[row]) - 1] for row, start in enumerate(starts)])


def sampled_logps(done: Completions) -> np.ndarray:
    return np.concatenate([done.logps_NT[row, :count] for row, count in enumerate(done.lengths_N)])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_its_log_probs_of_samples_are_the_trainer_s_after_every_renewal(
    server: RealServer, tmp_path: Path, temperature: float
) -> None:
    model, params = weights(1)
    ours = engine(server, tmp_path, model, temperature)
    sampling = dataclasses.replace(SAMPLING, temperature=temperature)
    for trained in (params, moved(params, 0.05)):  # the second within a step or two of the first
        done = ours.generate(trained, PROMPTS, 2, sampling, DRAW)
        assert done.facts["seconds/sync"] > 0
        differences = sampled_logps(done) - trainer_logps(tmp_path, model, trained, done, temperature)
        assert np.abs(differences).mean() < TOLERANCE


def test_adapters_are_taken_one_after_the_other(server: RealServer, tmp_path: Path) -> None:
    plain, params = weights(9)  # those that it was started with
    model = dataclasses.replace(plain, adapters=Adapters(4, 8.0, (*ATTENTION, *MLP)))
    ours, shapes = engine(server, tmp_path, model), model.trained(model.abstract())
    random = np.random.default_rng(1)
    lora = jax.tree.map(lambda x: random.standard_normal(x.shape, np.float32), shapes)
    engine(server, tmp_path, plain).generate(params, PROMPTS, 1, SAMPLING, DRAW)  # in case another test changed them
    for size in (0.1, 0.2):
        trained = model.join_params(params, moved(lora, size - 1.0))
        done = ours.generate(trained, PROMPTS, 2, SAMPLING, DRAW)
        differences = sampled_logps(done) - trainer_logps(tmp_path, model, trained, done, 1.0)
        assert np.abs(differences).mean() < TOLERANCE


def test_a_sampler_in_a_pod_of_its_own_takes_every_version_also_an_older_one(
    server: RealServer, tmp_path: Path
) -> None:
    model, params = weights(1)
    environ = {"POSTTRAIN_SAMPLERS": server.url.removeprefix("http://"), "POSTTRAIN_SAMPLER_TOKEN": "of this test"}
    vllm_spec = Vllm.model_validate({"weights_directory": f"{tmp_path}/shared", "tolerance": 1e-4})
    ours = separate_samplers.vllm_samplers(context(tmp_path, model)[0], vllm_spec, environ)
    try:
        for trained in (params, moved(params, 0.05), params):
            done = ours.generate(ours.deliver(trained), PROMPTS, 2, SAMPLING, DRAW)
            differences = sampled_logps(done) - trainer_logps(tmp_path, model, trained, done, 1.0)
            assert np.abs(differences).mean() < TOLERANCE
        assert ours.facts()["samplers/drawn_again"] == 0
    finally:
        ours.close()


def test_the_same_draw_gives_the_same_samples_and_another_gives_others(server: RealServer, tmp_path: Path) -> None:
    model, params = weights(1)
    ours = engine(server, tmp_path, model)
    first, again, other = (ours.generate(params, PROMPTS, 2, SAMPLING, draw) for draw in (DRAW, DRAW, Draw(7, 4)))
    assert [first.tokens(row) for row in range(4)] == [again.tokens(row) for row in range(4)]
    assert [first.tokens(row) for row in range(4)] != [other.tokens(row) for row in range(4)]
    assert first.tokens(0) != first.tokens(1)


def test_greedy_and_the_likeliest_one_of_top_k_are_the_trainer_s_likeliest(server: RealServer, tmp_path: Path) -> None:
    model, params = weights(1)
    ours = engine(server, tmp_path, model)
    greedy = ours.generate(params, PROMPTS, 2, dataclasses.replace(SAMPLING, greedy=True), DRAW)
    best = ours.generate(params, PROMPTS, 2, dataclasses.replace(SAMPLING, top_k=1), DRAW)
    least = ours.generate(params, PROMPTS, 2, dataclasses.replace(SAMPLING, min_p=1.0), DRAW)
    nucleus = ours.generate(params, PROMPTS, 2, dataclasses.replace(SAMPLING, top_p=1e-6), DRAW)
    wanted = [greedy.tokens(row) for row in range(4)]
    for done in (best, least, nucleus):
        assert [done.tokens(row) for row in range(4)] == wanted
    tokens = wanted[0]
    ids = [*PROMPTS[0].tokens, *tokens]
    logits = np.asarray(
        model.logits(
            params, model.forward(params, np.array([ids]), np.arange(len(ids))[None], np.ones((1, len(ids)), np.int32))
        )
    )[0]
    assert logits.argmax(axis=-1)[len(PROMPTS[0].tokens) - 1 : -1].tolist() == tokens


def test_ends_are_ours_end_tokens_stop_strings_and_lengths(server: RealServer, tmp_path: Path) -> None:
    model, params = weights(1)
    ours = engine(server, tmp_path, model)
    many = [Prompt(PROMPTS[0].tokens, number) for number in range(24)]
    free = ours.generate(params, many, 4, SAMPLING, DRAW)
    texts = [byte_tokenizer().decode(free.tokens(row)) for row in range(96)]
    letter = max("abcdefghijklmnopqrstuvwxyz", key=lambda one: sum(one in text for text in texts))
    stopped = ours.generate(params, many, 4, dataclasses.replace(SAMPLING, stop=(letter,)), DRAW)
    ends = 0
    for row in range(96):
        tokens = stopped.tokens(row)
        assert letter not in byte_tokenizer().decode(tokens[:-1])
        has_stop = letter in byte_tokenizer().decode(tokens)
        is_end = tokens[-1] in byte_tokenizer().eos_ids
        assert stopped.ended_N[row] == (has_stop or is_end)
        assert stopped.ended_N[row] or len(tokens) == 16
        assert tokens == free.tokens(row)[: len(tokens)], "the same tokens as without the string"
        ends += has_stop
    assert ends > 0
    eos = set(byte_tokenizer().eos_ids)
    assert any(set(free.tokens(row)) & eos for row in range(96)), "some end by themselves"
    assert not any(set(free.tokens(row)[:-1]) & eos for row in range(96))
    long = ours.generate(params, many, 4, dataclasses.replace(SAMPLING, min_new_tokens=16), DRAW)
    assert long.lengths_N.tolist() == [16] * 96


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "other"}, f"spec.rollout.vllm.model: 'other': not served; accepted: {PRESET}"),
        ({"weights_directory": "/proc/none"}, "weightsDirectory: /proc/none"),
    ],
)
def test_a_job_that_does_not_fit_is_told(
    server: RealServer, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    model, params = weights(1)
    with pytest.raises(ConfigError, match=words):
        engine(server, tmp_path, model, **changes).generate(params, PROMPTS, 1, SAMPLING, DRAW)
