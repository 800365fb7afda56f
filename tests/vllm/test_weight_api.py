"""vLLM's weight API with our backend over files, against the real `vllm serve`: a model whose head is its embedding,
trained in full. The server has the plugin as the operator mounts it."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.vllm.context import context, moved
from tests.builders.vllm.real import RealServer, weights
from tests.vllm.test_runs import assert_sampled_from_the_trainer_s_weights, job, start
from tests.vllm.test_server import DRAW, PROMPTS, SAMPLING, TOLERANCE, sampled_logps, trainer_logps

from posttrain_vllm.tensor_files import Expected
from ptapi.spec import Vllm
from pttrainer.models import Model, Params
from pttrainer.rollout.vllm import vllm_engine as vllm
from pttrainer.rollout.vllm.weight_files import WeightFiles
from pttrainer.rollout.vllm.weight_transfer import update_info

Call = Callable[[str, Any], tuple[int, Any]]


@pytest.fixture(scope="module")
def tied() -> tuple[Model, Params]:
    return weights(1, is_tied=True)


@pytest.fixture(scope="module")
def transferring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    made = RealServer(tmp_path_factory.mktemp("transferring"), is_tied=True, has_plugin=True)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def call(transferring: RealServer) -> Call:
    """Status and JSON of a path: a POST, or a GET without a body."""

    def call(path: str, body: Any = None) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(transferring.url + path, content, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return call


def engine(server: RealServer, tmp_path: Path, model: Model) -> tuple[vllm.VllmEngine, list[str]]:
    made, notes = context(tmp_path, model)
    spec = {"endpoint": server.url, "weights_directory": f"{tmp_path}/shared", "tolerance": 1e-4, "retries": 0}
    return vllm.vllm_engine(made, Vllm.model_validate(spec)), notes


def assert_has(ours: vllm.VllmEngine, tmp_path: Path, model: Model, params: Params) -> None:
    done = ours.generate(params, PROMPTS, 2, SAMPLING, DRAW)
    differences = sampled_logps(done) - trainer_logps(tmp_path, model, params, done, 1.0)
    assert np.abs(differences).mean() < TOLERANCE


def test_a_tied_model_that_is_trained_in_full_is_the_trainer_s_after_every_update(
    transferring: RealServer, call: Call, tmp_path: Path, tied: tuple[Model, Params]
) -> None:
    model, params = tied
    ours, notes = engine(transferring, tmp_path, model)
    last_layer = {**params, "layers": jax.tree.map(lambda x: x.at[-1:].multiply(1.05), params["layers"])}
    for trained in (params, moved(params, 0.05), params, last_layer):  # of the last one layer is given
        assert_has(ours, tmp_path, model, trained)
    assert not any("reload_weights" in note for note in notes)
    assert call("/weight_info")[1]["weight_version"].endswith("-3")


def test_a_run_trains_all_weights_of_a_tied_model(transferring: RealServer, call: Call, tmp_path: Path) -> None:
    vllm_fields = {"endpoint": transferring.url, "weightsDirectory": f"{tmp_path}/weights", "timeoutSeconds": 1200}
    process = start(job(tmp_path, transferring.model, vllm_fields))
    errors = process.communicate()[1]
    assert process.returncode == 0, errors
    assert "reload_weights" not in errors
    assert_sampled_from_the_trainer_s_weights(tmp_path)
    assert call("/weight_info")[1]["weight_version"].startswith("posttrain-job-")


def update(call: Call, directory: Path, tensors: list[Expected]) -> list[tuple[int, Any]]:
    info = update_info(directory, tensors)
    paths = {"/start_weight_update": {}, "/update_weights": {"update_info": info}, "/finish_weight_update": {}}
    return [call(path, body) for path, body in paths.items()]


def test_what_does_not_fit_is_refused_and_an_update_that_broke_off_is_mended_by_the_next(
    transferring: RealServer, call: Call, tmp_path: Path, tied: tuple[Model, Params]
) -> None:
    model, params = tied
    ours, _ = engine(transferring, tmp_path, model)
    ours.generate(params, PROMPTS, 1, SAMPLING, DRAW)
    version = call("/weight_info")
    files = WeightFiles(context(tmp_path, model)[0], f"{tmp_path}/other", as_adapters=False).write(moved(params, 0.1))
    tensors = list(files.listed.tensors())
    _, (status, refusal), _ = update(call, files.directory, [*tensors[:-1], tensors[-1]._replace(sha256="0" * 64)])
    assert (status, call("/weight_info")) == (500, version)
    assert f"{tensors[-1].name} in model.safetensors has another sha256" in refusal["error"]["message"]
    assert_has(ours, tmp_path, model, params)  # the weights that it had, which are not given again

    file = files.directory / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"layers.1.mlp.up_proj", b"layers.1.mlp.no_proj"))
    unknown = [tensor._replace(name=tensor.name.replace("layers.1.mlp.up", "layers.1.mlp.no")) for tensor in tensors]
    *_, (status, refusal) = update(call, files.directory, unknown)
    assert status == 500
    assert "weights are half loaded" in refusal["error"]["message"]
    assert_has(ours, tmp_path, model, moved(params, 0.2))  # an update is open still, of a trainer that is gone
