"""vLLM as the engine, against a stand-in for it: the answers are the native engine's, weights really arrive, and a
server that fails in any way is either waited for or named."""

import dataclasses
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.vllm import fake as vllm_fake
from tests.builders.vllm.context import context, moved
from tests.builders.vllm.fake import Brain, FakeServer, FakeWeightApi

from ptapi.spec import Vllm
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError, ServiceLost
from pttrainer.models import Model, Params, preset
from pttrainer.models.lora.adapters import ATTENTION, MLP, Adapters
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.vllm import http_server, in_process
from pttrainer.rollout.vllm import vllm_engine as vllm
from pttrainer.rollout.vllm.requests import VllmRequest, VllmUnavailable, requests_of, seed_of
from pttrainer.rollout.vllm.responses import reply_of
from pttrainer.rollout.vllm.vllm_engine import VllmEngine

PROMPTS = [Prompt([256, 259, *b"one"], 0), Prompt([256, 259, *b"two and more"], 1)]
SAMPLING = Sampling(max_new_tokens=16, max_length=64)
DRAW = Draw(7, 3)
KNOWN = {seed_of(DRAW, number): (DRAW, number) for number in range(8)}
LORA = Adapters(4, 8.0, (*ATTENTION, *MLP))


@lru_cache
def base() -> tuple[Model, Params]:
    """A scaled embedding makes a random model say something."""
    model = Model(preset("tiny"))
    params = jax.jit(model.init)(jax.random.key(1))
    return model, {**params, "embedding": params["embedding"] * 8.0}


@lru_cache
def adapted(size: float) -> tuple[Model, Params]:
    model, params = base()
    with_adapters = dataclasses.replace(model, adapters=LORA)
    random = np.random.default_rng(1)
    shapes = with_adapters.trained(with_adapters.abstract())
    lora = jax.tree.map(lambda x: (size * random.standard_normal(x.shape)).astype(np.float32), shapes)
    return with_adapters, with_adapters.join_params(params, jax.tree.map(jax.numpy.asarray, lora))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setattr(vllm, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(http_server, "LOOK_S", 0.01)
    made = FakeServer(Brain(*base(), KNOWN))
    yield made
    made.close()


def engine(
    fake: FakeServer, tmp_path: Path, trained: Model | None = None, temperature: float = 1.0, **changes: Any
) -> VllmEngine:
    return with_notes(fake, tmp_path, trained, temperature, **changes)[0]


def with_notes(
    fake: FakeServer, tmp_path: Path, trained: Model | None = None, temperature: float = 1.0, **changes: Any
) -> tuple[VllmEngine, list[str]]:
    spec = Vllm.model_validate(
        {"endpoint": fake.url, "weights_directory": f"{tmp_path}/shared", "retries": 1, "timeout_seconds": 300.0}
        | changes
    )
    made, notes = context(tmp_path, trained or base()[0], temperature)
    return vllm.vllm_engine(made, spec), notes


@lru_cache
def native_engine(model: Model) -> NativeEngine:
    return NativeEngine(model, byte_tokenizer())


def native(model: Model, params: Params, sampling: Sampling = SAMPLING) -> Completions:
    """Two samples of each prompt: the one shape that is compiled."""
    return native_engine(model).generate(params, PROMPTS, 2, sampling, DRAW)


def assert_equal(completions: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(completions.lengths_N, wanted.lengths_N)
    np.testing.assert_array_equal(completions.ended_N, wanted.ended_N)
    for row in range(len(wanted.lengths_N)):
        assert completions.tokens(row) == wanted.tokens(row)
        count = wanted.lengths_N[row]
        np.testing.assert_allclose(completions.logps_NT[row, :count], wanted.logps_NT[row, :count], atol=1e-5)


@pytest.mark.parametrize(
    "sampling", [SAMPLING, dataclasses.replace(SAMPLING, stop=("e", "\x10"))], ids=["plain", "stop strings"]
)
def test_a_rollout_through_the_server_is_the_native_one(fake: FakeServer, tmp_path: Path, sampling: Sampling) -> None:
    model, params = base()
    completions = engine(fake, tmp_path).generate(params, PROMPTS, 2, sampling, DRAW)
    assert_equal(completions, native(model, params, sampling))
    assert completions.facts["seconds/sync"] > 0


def test_new_weights_arrive_and_change_the_answers(fake: FakeServer, tmp_path: Path) -> None:
    model, params = base()
    changed = moved(params, 0.2)
    ours = engine(fake, tmp_path)
    first = ours.generate(params, PROMPTS, 2, SAMPLING, DRAW)
    second = ours.generate(changed, PROMPTS, 2, SAMPLING, DRAW)
    assert_equal(second, native(model, changed))
    assert [first.tokens(row) for row in range(4)] != [second.tokens(row) for row in range(4)]
    again = ours.generate(changed, PROMPTS, 2, SAMPLING, DRAW)
    assert again.facts["seconds/sync"] == 0.0
    assert len(fake.bodies("/collective_rpc")) == 2, "weights that it has are not given again"
    assert [path.name for path in (tmp_path / "shared" / "posttrain-job").iterdir()] == [fake.brain.loaded[-1].name]


def test_weights_of_a_server_with_the_weight_api_are_files_with_checksums(fake: FakeServer, tmp_path: Path) -> None:
    model, params = base()
    api = fake.weight_api = FakeWeightApi(fake.brain)
    ours, notes = with_notes(fake, tmp_path)
    frozen = {**moved(params, 0.2), "embedding": params["embedding"]}
    for trained in (params, frozen):
        assert_equal(ours.generate(trained, PROMPTS, 2, SAMPLING, DRAW), native(model, trained))
    assert [set(api.updates[0]) - set(names) for names in api.updates] == [set(), {"model.embed_tokens.weight"}]
    assert (api.version.rpartition("-")[2], api.is_paused) == ("1", False)
    assert fake.bodies("/collective_rpc") == []
    api.version, fake.brain.params, fake.brain.tensors = "default", params, {}  # started again, with its first weights
    trained = {**frozen, "norm": moved(params["norm"], 0.3)}
    assert_equal(ours.generate(trained, PROMPTS, 2, SAMPLING, DRAW), native(model, trained))
    assert api.updates[2] == api.updates[0]
    assert len(notes) == 1, "no word about another way"


def test_a_server_without_the_backend_reads_weights_as_before_with_a_word(fake: FakeServer, tmp_path: Path) -> None:
    ours, notes = with_notes(fake, tmp_path)
    for trained in (base()[1], moved(base()[1], 0.2)):
        ours.generate(trained, PROMPTS, 1, SAMPLING, DRAW)
    assert len(fake.bodies("/collective_rpc")) == 2
    words = "has no backend posttrain-files, so it reads weights by reload_weights: /init_weight_transfer_engine"
    assert [words in note for note in notes] == [True, False]


def test_a_file_that_reaches_the_server_changed_is_written_and_given_again(fake: FakeServer, tmp_path: Path) -> None:
    api = fake.weight_api = FakeWeightApi(fake.brain)
    api.is_active = True  # an update of a trainer that is gone

    def trouble(path: str, calls: int) -> None:
        if path == "/update_weights" and calls == 1:
            [file] = tmp_path.glob("shared/*/*/model.safetensors")
            content = file.read_bytes()
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    fake.trouble = trouble
    model, params = base()
    ours, notes = with_notes(fake, tmp_path)
    assert_equal(ours.generate(params, PROMPTS, 2, SAMPLING, DRAW), native(model, params))
    assert "in model.safetensors has another sha256 than the trainer's; nothing was changed" in notes[0]
    assert [len(fake.bodies(path)) for path in ("/update_weights", "/resume")] == [2, 2]


def test_a_server_of_the_weight_api_that_sees_no_files_is_told_what_it_lacks(fake: FakeServer, tmp_path: Path) -> None:
    fake.weight_api = FakeWeightApi(fake.brain)
    ours = engine(fake, tmp_path)
    fake.weight_api.routes["/init_weight_transfer_engine"] = lambda _: (
        500,
        {"error": {"message": "Worker failed with error 'posttrain-files: the server sees no directory /shared'"}},
    )
    with pytest.raises(
        ConfigError, match=r"sees no directory .*; hint: spec.rollout.vllm.weightsDirectory must be one"
    ):
        ours.generate(base()[1], PROMPTS, 1, SAMPLING, DRAW)


def test_a_lora_job_gives_adapters_each_under_a_name_of_its_own(fake: FakeServer, tmp_path: Path) -> None:
    model = adapted(0.1)[0]
    ours = engine(fake, tmp_path, model, tolerance=1e-4)
    for size in (0.1, 0.2):  # the check after each is the test: the trainer's log-probs, to the tolerance
        ours.generate(adapted(size)[1], PROMPTS, 2, SAMPLING, DRAW)
    names = [body["lora_name"] for body in fake.bodies("/v1/load_lora_adapter")]
    assert len(set(names)) == 2
    assert list(fake.served) == ["tiny", names[-1]], "the adapter before is unloaded"
    assert not fake.bodies("/collective_rpc")
    assert fake.bodies("/v1/completions")[-1]["model"] == names[-1]


def test_a_server_that_ignores_new_weights_is_found_out(fake: FakeServer, tmp_path: Path) -> None:
    params = base()[1]
    ours = engine(fake, tmp_path)
    ours.generate(params, PROMPTS, 1, SAMPLING, DRAW)
    fake.brain.is_deaf = True
    with pytest.raises(ConfigError, match=r"answers as before to the last bit.*moved by"):
        ours.generate(moved(params, 0.002), PROMPTS, 1, SAMPLING, DRAW)


def test_a_server_with_another_model_is_found_out_before_anything_is_trained(fake: FakeServer, tmp_path: Path) -> None:
    fake.brain.is_deaf = True
    with pytest.raises(ConfigError, match=r"differ from the trainer's by .* accepted: tolerance: 0.1.*precision"):
        engine(fake, tmp_path).generate(moved(base()[1], 0.5), PROMPTS, 1, SAMPLING, DRAW)
    assert len(fake.bodies("/v1/completions")) == 1


def test_log_probs_from_before_the_temperature_are_found_out(fake: FakeServer, tmp_path: Path) -> None:
    cool = dataclasses.replace(SAMPLING, temperature=0.5)
    params = base()[1]
    engine(fake, tmp_path, temperature=0.5).generate(params, PROMPTS, 1, cool, DRAW)
    fake.brain.is_raw = True
    with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
        engine(fake, tmp_path, temperature=0.5).generate(params, PROMPTS, 1, cool, DRAW)


@pytest.mark.parametrize("trouble", [500, 503, "drop", "half"])
def test_a_rollout_that_is_lost_is_asked_again_with_weights_given_again(
    fake: FakeServer, tmp_path: Path, trouble: int | str
) -> None:
    model, params = base()
    ours = engine(fake, tmp_path)
    fake.trouble = lambda path, calls: trouble if path == "/v1/completions" and calls == 3 else None
    assert_equal(ours.generate(params, PROMPTS, 2, SAMPLING, DRAW), native(model, params))
    assert len(fake.bodies("/collective_rpc")) == 2, "a server that came back has the weights that it was started with"


def test_a_server_that_stays_away_ends_the_run_with_a_class_of_its_own(fake: FakeServer, tmp_path: Path) -> None:
    ours = engine(fake, tmp_path)
    ours.generate(base()[1], PROMPTS, 1, SAMPLING, DRAW)
    fake.close()
    ours._client._timeout_s = 0.3
    with pytest.raises(ServiceLost, match=r"vLLM at http.*\(2 tries\)") as lost:
        ours.generate(base()[1], PROMPTS, 1, SAMPLING, DRAW)
    assert lost.value.exit_code == 69


def test_a_server_that_is_not_up_yet_is_waited_for_with_a_line_now_and_then(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "TELL_S", 0.0)
    ours, notes = with_notes(fake, tmp_path)
    fake.trouble = lambda path, calls: 503 if path == "/health" and calls < 3 else None
    ours.generate(base()[1], PROMPTS, 1, SAMPLING, DRAW)
    assert ["has been waiting for" in note for note in notes] == [True, True, False, False]
    assert "its log-probs match the trainer's within" in notes[-1]


def test_a_server_that_hangs_is_given_up_after_the_limit(fake: FakeServer, tmp_path: Path) -> None:
    ours = engine(fake, tmp_path, retries=0)
    ours.generate(base()[1], PROMPTS, 1, SAMPLING, DRAW)
    ours._client._timeout_s = 1.0
    fake.trouble = lambda path, calls: "hang" if path == "/v1/completions" else None
    with pytest.raises(ServiceLost, match=r"timed out|too long"):
        ours.generate(base()[1], PROMPTS, 1, SAMPLING, DRAW)


def test_an_adapter_that_a_restarted_server_lost_is_given_again(fake: FakeServer, tmp_path: Path) -> None:
    model, params = adapted(0.1)
    ours = engine(fake, tmp_path, model)
    ours.generate(params, PROMPTS, 1, SAMPLING, DRAW)
    fake.served = {"tiny": fake.brain}
    ours.generate(params, PROMPTS, 1, SAMPLING, DRAW)
    assert len(fake.served) == 2


@pytest.mark.parametrize(
    ("server_is", "job_is", "words"),
    [
        ({"dev_mode": False}, {}, "VLLM_SERVER_DEV_MODE=1"),
        ({"key": "sesame"}, {}, "401.*apiKeyEnv"),
        ({"max_model_len": 32}, {}, "accepts 32 tokens a request; accepted: 64 or more"),
        ({}, {"model": "other"}, r"spec.rollout.vllm.model: 'other': not served; accepted: tiny"),
    ],
)
def test_a_server_that_was_started_wrongly_is_told_how(
    fake: FakeServer, tmp_path: Path, server_is: dict[str, Any], job_is: dict[str, Any], words: str
) -> None:
    vars(fake).update(server_is)
    with pytest.raises(ConfigError, match=words):
        engine(fake, tmp_path, **job_is).generate(base()[1], PROMPTS, 1, SAMPLING, DRAW)


def test_a_server_without_adapters_is_told_how(fake: FakeServer, tmp_path: Path) -> None:
    fake.lora = False
    with pytest.raises(ConfigError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora"):
        engine(fake, tmp_path, adapted(0.1)[0]).generate(adapted(0.1)[1], PROMPTS, 1, SAMPLING, DRAW)


def test_the_key_comes_from_the_environment_and_is_in_no_message(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.key = "sesame"
    monkeypatch.setenv("VLLM_KEY", "sesame")
    params = base()[1]
    ours = engine(fake, tmp_path, api_key_env="VLLM_KEY", retries=0)
    assert_equal(ours.generate(params, PROMPTS, 2, SAMPLING, DRAW), native(base()[0], params))
    fake.answer = lambda path, body, key: (500, {"error": key})  # type: ignore[method-assign]
    ours._client._timeout_s = 0.05
    with pytest.raises(ServiceLost, match="Bearer …"):
        ours.generate(moved(params, 0.1), PROMPTS, 1, SAMPLING, DRAW)


def test_a_request_asks_for_the_same_after_a_restart_and_for_nothing_twice(fake: FakeServer, tmp_path: Path) -> None:
    params = base()[1]
    ours = engine(fake, tmp_path)
    ours.generate(params, [*PROMPTS, PROMPTS[1]], 2, SAMPLING, DRAW)
    first, second = sorted(fake.bodies("/v1/completions")[1:], key=lambda body: len(body["prompt"]))
    assert (first["prompt"], first["n"], first["max_tokens"]) == (list(PROMPTS[0].tokens), 2, 16)
    assert first["seed"] == seed_of(DRAW, 0) != second["seed"]
    assert len({seed_of(Draw(a, b), c) for a in (0, 1) for b in (0, 1) for c in range(50)}) == 200
    assert (first["temperature"], first["top_p"], first["top_k"], first["min_p"]) == (1.0, 1.0, 0, 0.0)
    assert (first["ignore_eos"], first["stop_token_ids"]) == (True, list(byte_tokenizer().eos_ids))


def test_greedy_samples_of_a_prompt_are_one_sample(fake: FakeServer, tmp_path: Path) -> None:
    greedy = dataclasses.replace(SAMPLING, greedy=True)
    done = engine(fake, tmp_path).generate(base()[1], PROMPTS, 3, greedy, DRAW)
    assert [body["n"] for body in fake.bodies("/v1/completions")] == [1, 1, 1]
    for p in (0, 1):
        assert done.tokens(3 * p) == done.tokens(3 * p + 1) == done.tokens(3 * p + 2)


def test_a_prompt_is_given_no_more_room_than_its_row_has() -> None:
    how = dataclasses.replace(SAMPLING, min_new_tokens=9)
    [ask] = requests_of([Prompt(range(60), 0)], [None], 1, how, DRAW, (257,))
    assert (ask.fields["max_tokens"], ask.fields["min_tokens"]) == (4, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_ids": None}, "no token_ids"),
        ({"token_ids": [5]}, "1 tokens with 2 log-probs"),
        ({"token_ids": [5] * 17, "logprobs": {"token_logprobs": [-1.0] * 17}}, "17 tokens; asked for 1 to 16"),
        ({"finish_reason": "abort"}, "finish_reason is 'abort'"),
        ({"finish_reason": None}, "finish_reason is None"),
        ({"logprobs": {"token_logprobs": [None, -1.0]}}, "TypeError"),
        ({"logprobs": {"token_logprobs": [float("nan"), -1.0]}}, "not finite"),
        ({"logprobs": None}, "TypeError"),
        ({"index": 1}, "1 choices; asked for 1"),
    ],
)
def test_half_an_answer_is_none(change: dict[str, Any], words: str) -> None:
    good = {"index": 0, "token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0, -2.0]}, "finish_reason": "stop"}
    ask = VllmRequest((1, 2, 3), 1, 0, SAMPLING, (257,))
    assert reply_of({"choices": [good]}, ask).samples[0] == ([5, 6], [-1.0, -2.0], True)
    with pytest.raises(VllmUnavailable, match=words):
        reply_of({"choices": [good | change]}, ask)
    for document in ({}, [], {"choices": []}, {"error": {"message": "no"}}, None):
        with pytest.raises(VllmUnavailable, match="not an answer of vLLM"):
            reply_of(document, ask)


def test_a_prompt_s_log_probs_must_be_of_its_own_tokens() -> None:
    choice = {"index": 0, "token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}
    ask = VllmRequest((1, 2, 3), 1, 0, SAMPLING, (257,), is_scored=True)
    rows: list[Any] = [None, {"2": {"logprob": -0.5}}, {"9": {"logprob": -4.0}, "3": {"logprob": -0.25}}]
    assert reply_of({"choices": [choice | {"prompt_logprobs": rows}]}, ask).prompt_logps == [-0.5, -0.25]
    for wrong in (rows[:2], [None, {"7": {"logprob": -1.0}}, rows[2]], None):
        with pytest.raises(VllmUnavailable, match="not an answer"):
            reply_of({"choices": [choice | {"prompt_logprobs": wrong}]}, ask)


def test_in_this_process_the_package_s_engine_gets_merged_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the package."""
    monkeypatch.setattr(in_process.importlib, "import_module", lambda name: vllm_fake.package(Brain(*base(), KNOWN)))
    ours = vllm.vllm_engine(context(tmp_path, adapted(0.1)[0])[0], Vllm(memory_share=0.3, tolerance=1e-4))
    for size in (0.1, 0.2):  # merged into the weights; the check after each compares with the trainer's
        done = ours.generate(adapted(size)[1], PROMPTS, 2, SAMPLING, DRAW)
        assert done.lengths_N.shape == (4,)
    how = {"max_model_len": 64, "dtype": "float32", "gpu_memory_utilization": 0.3, "logprobs_mode": "raw_logprobs"}
    assert vllm_fake.FakeLLM.made == [how]


def test_in_this_process_log_probs_are_asked_for_at_the_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process.importlib, "import_module", lambda name: vllm_fake.package(Brain(*base(), KNOWN)))
    ours = vllm.vllm_engine(context(tmp_path, base()[0], 0.5)[0], Vllm(tolerance=1e-4))
    ours.generate(base()[1], PROMPTS, 2, dataclasses.replace(SAMPLING, temperature=0.5), DRAW)
    assert [made["logprobs_mode"] for made in vllm_fake.FakeLLM.made] == ["processed_logprobs"]


def test_an_engine_in_this_process_that_dies_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process.importlib, "import_module", lambda name: vllm_fake.package(Brain(*base(), KNOWN)))
    monkeypatch.setattr(vllm, "FIRST_PAUSE_S", 0.01)
    model, params = base()
    ours = vllm.vllm_engine(context(tmp_path, model)[0], Vllm(tolerance=1e-4, retries=1))
    dead = RuntimeError("EngineCore encountered an issue.")
    vllm_fake.FakeLLM.trouble = lambda calls: dead if calls == 2 else None
    assert_equal(ours.generate(params, PROMPTS, 2, SAMPLING, DRAW), native(model, params))
    assert len(vllm_fake.FakeLLM.made) == 2
    vllm_fake.FakeLLM.trouble = lambda calls: dead
    with pytest.raises(ServiceLost, match=r"vLLM in this process: RuntimeError: EngineCore .*\(2 tries\)"):
        ours.generate(moved(params, 0.1), PROMPTS, 2, SAMPLING, DRAW)


def test_an_engine_in_this_process_that_does_not_start_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = vllm_fake.package(Brain(*base(), KNOWN))
    package.LLM = lambda **_: (_ for _ in ()).throw(ValueError("No available memory for the cache blocks."))
    monkeypatch.setattr(in_process.importlib, "import_module", lambda name: package)
    with pytest.raises(ConfigError, match=r"does not start .* No available memory .*; hint: .*memoryShare"):
        vllm.vllm_engine(context(tmp_path, base()[0])[0], Vllm()).generate(base()[1], PROMPTS, 1, SAMPLING, DRAW)


def test_a_missing_package_is_one_sentence_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"vllm cannot be imported here .*hint: set spec.image to one with .*rollout.vllm.endpoint"
    ):
        vllm.vllm_engine(context(tmp_path, base()[0])[0], Vllm())


def test_a_directory_that_cannot_be_written_is_named(fake: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("a file")
    with pytest.raises(ConfigError, match=r"spec.rollout.vllm.weightsDirectory: .*shared"):
        engine(fake, tmp_path)
