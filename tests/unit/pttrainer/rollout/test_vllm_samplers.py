"""vLLM in pods of its own, against stand-ins for its server: samples are the native engine's, each server proves that
it has the version that it samples with, and one that is lost or started again costs its unfinished samples alone."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.builders.vllm.context import context, moved
from tests.builders.vllm.fake import Brain, FakeServer, FakeWeightApi
from tests.unit.pttrainer.rollout.test_vllm import (
    DRAW,
    KNOWN,
    PROMPTS,
    SAMPLING,
    adapted,
    assert_equal,
    base,
    native,
)

from ptapi.spec import Vllm
from pttrainer.errors import ConfigError, ServiceLost
from pttrainer.models import Model
from pttrainer.rollout.disaggregated.separate.prefix_routing import PrefixRouting
from pttrainer.rollout.disaggregated.separate.remote_engine import RemoteEngine
from pttrainer.rollout.disaggregated.separate.sampler_pods import SamplerPods
from pttrainer.rollout.engine import Completions, Prompt
from pttrainer.rollout.vllm import http_server
from pttrainer.rollout.vllm import separate_samplers as separate
from pttrainer.rollout.vllm.requests import VllmReply, requests_of, seed_of
from pttrainer.rollout.vllm.version_check import VersionCheck
from pttrainer.rollout.vllm.weight_files import WeightFiles

TOKEN = "of-this-job"
PATIENCE_S = 120.0
FOUR = [Prompt([256, 259, *text], number) for number, text in enumerate((b"one", b"two", b"three", b"four"))]


@pytest.fixture
def fakes() -> Iterator[list[FakeServer]]:
    """Two pods. They begin with the weights of the job's model, each under a name of its own."""
    made = [FakeServer(Brain(*base(), KNOWN), key=TOKEN) for _ in range(2)]
    for index, fake in enumerate(made):
        fake.served = {f"pod-{index}": fake.brain}
    yield made
    for fake in made:
        fake.close()


@pytest.fixture
def engines() -> Iterator[list[RemoteEngine]]:
    """What a test has built, closed when it ends."""
    made: list[RemoteEngine] = []
    yield made
    for engine in made:
        engine.close()


@pytest.fixture
def build(fakes: list[FakeServer], engines: list[RemoteEngine], tmp_path: Path) -> Callable[..., RemoteEngine]:
    def build(model: Model | None = None, token: str = TOKEN, **changes: Any) -> RemoteEngine:
        """Return an engine that has reached both: each draws its own share then."""
        vllm = Vllm.model_validate({"weights_directory": f"{tmp_path}/shared", "tolerance": 1e-4, **changes})
        addresses = ",".join(fake.url.removeprefix("http://") for fake in fakes)
        environ = {"POSTTRAIN_SAMPLERS": addresses, "POSTTRAIN_SAMPLER_TOKEN": token}
        engine = separate.vllm_samplers(context(tmp_path, model or base()[0])[0], vllm, environ)
        engines.append(engine)
        limit = time.monotonic() + PATIENCE_S
        while token == TOKEN and engine.facts()["samplers/away"]:
            assert time.monotonic() < limit
            threading.Event().wait(0.01)
        return engine

    return build


def samples(fake: FakeServer) -> list[Any]:
    """What a server was asked to sample, without the scored texts."""
    return [body for body in fake.bodies("/v1/completions") if "prompt_logprobs" not in body]


def drawn(engine: RemoteEngine, params: Any, prompts: list[Prompt] = PROMPTS) -> Completions:
    return engine.generate(engine.deliver(params), prompts, 2, SAMPLING, DRAW)


def test_two_servers_draw_what_the_native_engine_draws_with_every_version(
    fakes: list[FakeServer], build: Callable[..., RemoteEngine], tmp_path: Path
) -> None:
    model, params = base()
    engine = build()
    for trained in (params, moved(params, 0.2)):
        assert_equal(drawn(engine, trained), native(model, trained))
        drawn(engine, trained)
    assert [len(fake.brain.loaded) for fake in fakes] == [2, 2], "each version is read once"
    assert fakes[0].brain.loaded == fakes[1].brain.loaded
    assert [len(samples(fake)) for fake in fakes] == [4, 4], "one prompt each, in four calls"
    assert list((tmp_path / "shared" / "posttrain-job").iterdir()) == fakes[0].brain.loaded[-1:]
    facts = engine.facts()
    assert facts["weights/bytes"] > 1000
    assert facts["weights/seconds"] > 0
    assert (facts["samplers/away"], facts["samplers/drawn_again"]) == (0, 0)


def test_adapters_are_read_under_a_name_of_each_version(
    fakes: list[FakeServer], build: Callable[..., RemoteEngine]
) -> None:
    engine = build(adapted(0.1)[0])
    for size in (0.1, 0.2):  # the check after each is the test: the trainer's log-probs, to the tolerance
        drawn(engine, adapted(size)[1])
    for fake in fakes:
        names = [body["lora_name"] for body in fake.bodies("/v1/load_lora_adapter")]
        assert len(set(names)) == 2
        assert list(fake.served)[1:] == names[1:], "the one before is unloaded"
        assert samples(fake)[-1]["model"] == names[1]


def test_servers_with_the_weight_api_take_one_version_s_files_each(
    fakes: list[FakeServer], build: Callable[..., RemoteEngine]
) -> None:
    model, params = base()
    apis = [FakeWeightApi(fake.brain) for fake in fakes]
    for fake, api in zip(fakes, apis, strict=True):
        fake.weight_api = api
    engine = build()
    for trained in (params, moved(params, 0.2)):
        assert_equal(drawn(engine, trained), native(model, trained))
    assert [len(api.updates) for api in apis] == [2, 2]
    assert not any(fake.bodies("/collective_rpc") for fake in fakes)


def test_a_lost_server_loses_what_it_has_not_finished(
    fakes: list[FakeServer], build: Callable[..., RemoteEngine], tmp_path: Path
) -> None:
    params = base()[1]
    undisturbed = drawn(build(), params, FOUR)
    for fake in fakes:
        fake.requests.clear()
    engine = build(concurrency=1)
    fakes[0].trouble = lambda path, calls: "drop" if len(samples(fakes[0])) > 1 else None
    assert_equal(drawn(engine, params, FOUR), undisturbed)
    finished, lost = samples(fakes[0])
    elsewhere = [body["seed"] for body in samples(fakes[1])]
    assert finished["seed"] not in elsewhere
    assert lost["seed"] in elsewhere
    assert sorted([finished["seed"], *elsewhere]) == sorted(seed_of(DRAW, number) for number in range(4))
    assert engine.facts()["samplers/drawn_again"] == 1


def test_a_reply_that_came_too_late_is_forgotten_with_its_version() -> None:
    finished = separate.FinishedReplies()
    one, other = requests_of(PROMPTS, [None, None], 2, SAMPLING, DRAW, [])
    finished.keep("first", one, VllmReply([], []))
    assert finished.missing("first", [one, other]) == [other]
    assert finished.missing("second", [one]) == [one]
    assert finished.missing("first", [one]) == [one]


def test_a_server_that_was_started_again_gets_the_weights_before_it_samples(
    fakes: list[FakeServer], build: Callable[..., RemoteEngine]
) -> None:
    model, params = base()
    engine, changed = build(), moved(params, 0.2)
    first = drawn(engine, changed)
    fakes[0].brain.params = params
    fakes[0].served = {"pod-0-again": fakes[0].brain}
    assert_equal(drawn(engine, changed), first)
    assert [len(fake.brain.loaded) for fake in fakes] == [2, 1]
    assert samples(fakes[0])[-1]["model"] == "pod-0-again"
    assert_equal(first, native(model, changed))


def test_a_version_that_is_still_in_use_can_be_read_after_a_newer_one(
    fakes: list[FakeServer], engines: list[RemoteEngine], tmp_path: Path
) -> None:
    model, params = base()
    made = context(tmp_path, model)[0]
    files = WeightFiles(made, f"{tmp_path}/shared", as_adapters=False)
    sender = separate.FileSender(files, VersionCheck(made, 1e-4), copies=2)
    client = http_server.ServerClient(fakes[0].url, None, TOKEN, 8, 60.0, 64, separate.FIELD, is_pod=True)
    sampler = separate.VllmSampler("one", client, made.tokenizer, separate.FinishedReplies())
    pods = SamplerPods([sampler], sender, made.note)
    engines.append(RemoteEngine(pods, sender, PrefixRouting(1, keeps_prompts=False), made.alive))
    older, newer = (engines[0].deliver(trained) for trained in (params, moved(params, 0.2)))
    for version, trained in ((newer, moved(params, 0.2)), (older, params)):
        assert_equal(engines[0].generate(version, PROMPTS, 2, SAMPLING, DRAW), native(model, trained))


def test_a_server_that_keeps_its_old_weights_ends_the_run(
    fakes: list[FakeServer], build: Callable[..., RemoteEngine]
) -> None:
    params = base()[1]
    engine = build(tolerance=10.0)
    drawn(engine, params)
    fakes[1].brain.is_deaf = True
    with pytest.raises(ConfigError, match="has the new weights and answers as before to the last bit"):
        drawn(engine, moved(params, 0.2))


def test_a_server_with_other_weights_ends_the_run(fakes: list[FakeServer], build: Callable[..., RemoteEngine]) -> None:
    fakes[0].brain.is_deaf = True
    with pytest.raises(ConfigError, match=r"differ from the trainer's by .*; accepted: tolerance"):
        drawn(build(), moved(base()[1], 0.2))


def test_a_server_of_another_job_is_refused(build: Callable[..., RemoteEngine]) -> None:
    with pytest.raises(ConfigError, match=r"spec.rollout.separate: .* its token must be the trainer's"):
        drawn(build(token="another"), base()[1])


def test_servers_that_fail_again_and_again_end_the_run(
    fakes: list[FakeServer], build: Callable[..., RemoteEngine]
) -> None:
    engine = build(retries=1)
    for fake in fakes:
        fake.trouble = lambda path, calls, fake=fake: 500 if samples(fake) and "completions" in path else None
    with pytest.raises(ServiceLost, match="samplers failed 2 times in a step"):
        drawn(engine, base()[1])


def test_a_machine_that_is_gone_without_a_word_is_noticed(
    fakes: list[FakeServer], build: Callable[..., RemoteEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "WATCH_S", 0.01)
    monkeypatch.setattr(http_server, "SILENT_S", 0.05)
    gone = threading.Event()

    def trouble(path: str, calls: int) -> str | None:
        if samples(fakes[0]):
            gone.set()
        return None if not gone.is_set() else "drop" if path == "/health" else "hang"

    fakes[0].trouble = trouble
    model, params = base()
    assert_equal(drawn(build(), params), native(model, params))
    assert gone.is_set()
