"""A game in a package of its own, installed by name and version, learned by a real, small run."""

from pathlib import Path

from tests.builders.trainer import packages, runs
from tests.builders.trainer.runs import command, end

from ptapi import run_directory
from ptapi.failures import ExitCode

SHARE = 0.4
"""The bar, written before the first run: the mean reward of an episode, which is the share of letters `a`."""
GAME = """
import gymnasium
from gymnasium.spaces import Text

class Letters(gymnasium.Env):
    action_space = observation_space = Text(200, charset=gymnasium.spaces.text.alphanumeric)

    def reset(self, *, seed=None, options=None):
        return "say a", {}

    def step(self, action):
        return "", action.count("a") / max(len(action), 1), True, False, {}

gymnasium.register("Letters-v0", Letters)
"""


def job(home: Path, version: str, steps: int) -> Path:
    runs.write_rows(home / "train.jsonl", runs.NUMBERS)
    return runs.job(
        home,
        "letters",
        algorithm={"sft": None, "grpo": {"groupSize": 8}},
        environment={
            "gymnasium": {"id": "letters_game:Letters-v0", "arguments": {"disable_env_checker": True}},
            "packages": [f"letters_game=={version}"],
            "maxTurns": 2,
        },
        training={
            "steps": steps,
            "batchSize": 32,
            "sequenceLength": 64,
            "optimizer": {"learningRate": 1e-2},
            "schedule": {"kind": "constant"},
        },
        rollout={"maxNewTokens": 12},
        export={"format": "none"},
        tensorboard={"enabled": False},
    )


def test_a_game_from_a_package_is_learned_and_one_that_is_not_there_ends_the_run(tmp_path: Path) -> None:
    env = packages.only(packages.wheel(tmp_path / "wheels", "letters_game", "0.3", GAME))
    code, errors = end(command("run", str(job(tmp_path, "0.4", 1)), env=env))
    assert code == ExitCode.USER_CODE, errors
    assert "spec.environment.packages: letters_game==0.4: pip cannot install them" in errors

    code, errors = end(command("run", str(job(tmp_path, "0.3", 40)), env=env))
    assert code == 0, errors
    lines = runs.metrics(tmp_path / "runs" / "letters")
    assert lines[0][run_directory.REWARD] < 0.05
    assert lines[-1][run_directory.REWARD] > SHARE, lines[-1]
    assert lines[-1]["episodes/failed"] == 0
