"""A job with services in its pods, and a real trainer that is judged by one and plays with the other."""

import os
import sys
from pathlib import Path
from typing import Any

import psutil
from tests.builders.cluster.operator_process import OperatorProcess
from tests.builders.trainer import quick, runs

from ptapi.run_directory import REWARD
from ptapi.status import ServiceStatus

ROOT = Path(__file__).parents[3]
JUDGE = ROOT / "tests" / "builders" / "servers" / "judge.py"
GAME = """
import os
import sys
from aiohttp import web
from tests.builders.servers.openenv import EchoServer

with open(sys.argv[1], "a") as games:
    games.write(f"{os.environ['HOSTNAME']} {os.getpid()}\\n")
app = web.Application()
app.router.add_get("/ws", EchoServer(64).session)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[sys.argv.index("--port") + 1]), print=None)
"""


def spec(home: Path) -> dict[str, Any]:
    """A GRPO job; `vllm` is a stand-in on the path of the judge's pods."""
    (home / "bin").mkdir()
    vllm = home / "bin" / "vllm"
    vllm.write_text(f'#!/bin/sh\nexec {sys.executable} {JUDGE} {home} "$@"\n')
    vllm.chmod(0o755)
    (home / "game.py").write_text(GAME)
    own_path = {"name": "PATH", "value": f"{home / 'bin'}:{os.environ['PATH']}"}
    return {
        "algorithm": {"grpo": {"groupSize": 2}},
        "data": {"train": {"uri": f"file://{runs.write_rows(home / 'train.jsonl', runs.NUMBERS)}"}},
        "services": [
            {"name": "judge", "replicas": 2, "model": {"uri": "hf://org/judge"}, "image": "vllm", "env": [own_path]},
            {
                "name": "game",
                "image": "game",
                "command": ["python", str(home / "game.py"), str(home / "games")],
                "args": ["--port", "8000"],
                "env": [{"name": "PYTHONPATH", "value": str(ROOT)}],
            },
        ],
        "rewards": [{"name": "helpful", "judge": {"service": "judge"}, "timeoutSeconds": 600}],
        "environment": {
            "openenv": {"service": "game", "actionField": "message", "observationField": "echoed_message"},
            "maxTurns": 1,
        },
        "training": {"steps": 3, "batchSize": 8, "sequenceLength": 96},
        "rollout": {"maxNewTokens": 8},
        "export": {"format": "none"},
        "tensorboard": {"enabled": False},
        "preflight": "Skip",
    }


def test_a_judge_and_a_game_serve_the_trainer_and_come_back_when_they_are_killed_or_stopped(
    operator: OperatorProcess, jobs: Any, tmp_path: Path
) -> None:
    env = {
        "JAX_COMPILATION_CACHE_DIR": runs.compiled(),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": quick.FLAGS,
    }
    variables = [{"name": name, "value": text} for name, text in env.items()]
    jobs.create("judged", **spec(tmp_path) | {"env": variables})

    def shown() -> Any:
        return jobs.status("judged"), jobs.pods("judged")

    def processes(file: str) -> dict[str, list[int]]:
        """The processes of each replica, in order."""
        lines = (tmp_path / file).read_text().splitlines() if (tmp_path / file).exists() else []
        of_host: dict[str, list[int]] = {}
        for host, process in (line.split() for line in lines):
            of_host.setdefault(host, []).append(int(process))
        return of_host

    jobs.wait(lambda: len(processes("asked")) == 2, shown=shown)
    assert set(processes("judges")) == {"judged-judge-0-0", "judged-judge-1-0"}
    psutil.Process(processes("judges")["judged-judge-1-0"][0]).kill()
    psutil.Process(processes("games")["judged-game-0-0"][0]).terminate()  # it ends with 0, and its Job is done
    jobs.wait(lambda: len(processes("judges")["judged-judge-1-0"]) == 2, shown=shown)
    jobs.wait(lambda: len(processes("games")["judged-game-0-0"]) == 2, shown=shown)
    up = [ServiceStatus(name="judge", total=2, ready=2), ServiceStatus(name="game", total=1, ready=1)]
    jobs.wait(lambda: jobs.status("judged").services == up, shown=shown)
    assert len(processes("judges")["judged-judge-0-0"]) == 1
    (tmp_path / "open").touch()
    status = jobs.wait_phase("judged", "Succeeded")
    assert status.restarts == {}
    lines = runs.metrics(jobs.runs / "judged")
    assert [line["step"] for line in lines if REWARD in line] == [1, 2, 3]
    assert lines[-1]["episodes/failed"] == 0
    assert [line["reward/helpful/missing"] for line in lines if REWARD in line] == [0, 0, 0]
    jobs.wait(lambda: [pod for pod in jobs.pods("judged") if pod["status"]["phase"] == "Running"] == [], shown=shown)
    jobs.delete("judged")
    jobs.wait(lambda: jobs.left("judged") == [], shown=lambda: jobs.left("judged"))
