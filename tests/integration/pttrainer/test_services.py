"""A real, small GRPO run whose judge and environment are services of the job, with replicas that go away."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.builders.servers.openenv import serving
from tests.builders.trainer import runs
from tests.unit.pttrainer.rewards.test_llm_judge import Service

from ptapi.run_directory import SERVICES_ENV

JUDGE = {"name": "judge", "image": "registry/with-vllm:1", "model": {"uri": "hf://org/judge"}}
GAME = {"name": "game", "image": "registry/game:1"}
STEPS, ROWS = 6, 8


@pytest.fixture
def judges() -> Iterator[list[Service]]:
    made = [Service(), Service()]
    for one in made:
        one.reply = lambda prompt, call: f"Score: {len(prompt) % 10}"
    yield made
    for one in made:
        one.server.server_close()


def job(home: Path) -> Path:
    rows = runs.write_rows(home / "train.jsonl", runs.NUMBERS)
    return runs.job(
        home,
        "run",
        algorithm={"sft": None, "grpo": {"groupSize": 4}},
        data={"train": {"uri": f"file://{rows}"}},
        rewards=[{"name": "j", "judge": {"service": "judge", "prompt": "{prompt} {completion}"}, "timeoutSeconds": 20}],
        environment={"openenv": {"service": "game", "actionField": "message"}, "maxTurns": 2, "timeoutSeconds": 20},
        services=[JUDGE, GAME],
        training={"steps": STEPS, "batchSize": ROWS, "sequenceLength": 128},
        rollout={"maxNewTokens": 8},
        export={"format": "none"},
        tensorboard={"enabled": False},
    )


def test_a_run_goes_on_without_a_replica_of_its_judge_and_one_of_its_environment(
    tmp_path: Path, judges: list[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as (stays, game), ExitStack() as leaving:
        goes, other = leaving.enter_context(serving())
        where: dict[str, Any] = {
            "judge": [one.url.removesuffix("/v1") for one in judges],
            "game": [goes, stays],
        }
        monkeypatch.setenv(SERVICES_ENV, json.dumps(where))
        gate = tmp_path / "go"
        process = runs.held(job(tmp_path), 3, gate)
        runs.reached(process, 2)
        assert other.messages
        judges[0].server.shutdown()
        judges[0].server.server_close()
        leaving.close()
        before = len(game.messages)
        gate.touch()
        code, errors = runs.end(process)
    assert code == 0, errors
    lines = [line for line in runs.metrics(tmp_path / "runs" / "run") if "loss" in line]
    assert len(lines) == STEPS
    assert [line["reward/j"] for line in lines if line["reward/j"] is None] == []
    assert len(game.messages) >= before + (STEPS - 3) * ROWS  # all of the later episodes
