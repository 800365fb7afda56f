"""The example that a newcomer runs first: it starts as a script, and what it trains learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.builders.trainer import quick

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "minimal_grpo.py"
SMALLER = ["--steps", "40", "--tokens", "4"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": quick.FLAGS}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


def test_the_reward_rises_from_nothing_to_most_of_what_there_is() -> None:
    done = run(*SMALLER)
    assert done.returncode == 0, done.stderr
    rewards = [float(value) for value in re.findall(r"reward (\d\.\d+)", done.stdout)]
    assert len(rewards) == 40
    assert sum(rewards[:5]) / 5 < 0.1
    assert sum(rewards[-5:]) / 5 > 0.5


def test_its_help_says_what_it_does_and_a_group_of_one_is_refused() -> None:
    assert "--samples" in run("--help").stdout
    refused = run("--samples", "1")
    assert refused.returncode == 2
    assert refused.stderr.endswith("--samples: 1; accepted: 2 or more\n")
