"""One server on two hosts, both of this machine: its weights are the trainer's on both, and both end together."""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.builders.vllm.context import context, moved
from tests.builders.vllm.real import RealHosts, weights
from tests.vllm.test_server import DRAW, PROMPTS, SAMPLING, TOLERANCE, sampled_logps, trainer_logps

from ptapi.spec import Vllm
from pttrainer.rollout.vllm import vllm_engine as vllm


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[RealHosts]:
    made = RealHosts(tmp_path)
    made.start()
    yield made
    made.kill()


def test_all_hosts_of_a_server_take_new_weights_and_end_when_one_is_stopped(
    hosts: RealHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_TEST", hosts.KEY)
    model, params = weights(1)
    spec = {"endpoint": hosts.url, "api_key_env": "KEY_OF_TEST", "weights_directory": f"{tmp_path}/shared"}
    ours = vllm.vllm_engine(context(tmp_path, model)[0], Vllm.model_validate({**spec, "tolerance": 1e-4, "retries": 0}))
    last_layer = {**params, "layers": jax.tree.map(lambda x: x.at[-1:].multiply(1.05), params["layers"])}
    for trained in (params, moved(params, 0.05), params, last_layer):  # of the last one layer is given
        done = ours.generate(trained, PROMPTS, 2, SAMPLING, DRAW)
        differences = sampled_logps(done) - trainer_logps(tmp_path, model, trained, done, 1.0)
        assert np.abs(differences).mean() < TOLERANCE
    hosts.hosts[1].terminate()
    assert [host.wait(60) for host in hosts.hosts] == [75, 75]
