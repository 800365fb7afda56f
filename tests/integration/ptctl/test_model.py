"""`ptctl chat`, `ptctl eval` and `ptctl serve`: the trainer's verbs on a model, in a child process."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.builders.trainer import quick, runs

PTCTL = [sys.executable, "-m", "ptctl"]
CHAT = [*PTCTL, "chat", "random://tiny", "--max-tokens", "8", "--seed", "3", "--system", "Be brief."]


def streams() -> dict[str, Any]:
    cache = {"JAX_COMPILATION_CACHE_DIR": runs.compiled(), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return {"text": True, "timeout": 300, "env": {**os.environ, **cache, "XLA_FLAGS": quick.FLAGS}}


def test_a_chat_remembers_until_it_is_reset_and_answers_one_message_alike() -> None:
    lines = "\n".join(["hi", "hi", "/reset", "hi", "/help", "/exit", "never"])
    session = subprocess.run(CHAT, input=lines, capture_output=True, **streams())
    assert session.returncode == 0, session.stderr
    assert "/help: no such command; accepted: /reset, /exit" in session.stderr
    one = subprocess.run([*CHAT, "--message", "hi"], capture_output=True, **streams())
    assert (one.returncode, one.stderr) == (0, "")
    first, rest = one.stdout, session.stdout.removeprefix(one.stdout)
    assert first != "\n"
    assert session.stdout == first + rest
    assert rest.endswith(first)
    second = rest.removesuffix(first)
    assert second.endswith("\n")
    assert second != first


def test_a_message_that_is_too_long_is_refused_with_its_tokens() -> None:
    long = subprocess.run([*CHAT, "--message", "hi" * 40, "--max-length", "64"], capture_output=True, **streams())
    assert long.returncode == 1
    assert not long.stdout
    assert "tokens; accepted: 1 to 63" in long.stderr
    assert "Traceback" not in long.stderr


def test_models_are_measured_side_by_side_and_pass_at_k_needs_a_reward(tmp_path: Path) -> None:
    data = runs.write_rows(tmp_path / "test.jsonl", runs.SUMS[:3])
    command = [*PTCTL, "eval", "random://tiny", "--data", str(data), "--samples", "2", "--max-tokens", "4"]
    refused = subprocess.run(command, capture_output=True, **streams())
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "--samples: 2: needs --reward, which decides what passes; accepted: 1" in refused.stderr
    done = subprocess.run([*command, "--reward", "gsm8k"], capture_output=True, **streams())
    assert done.returncode == 0, done.stderr
    lines = dict(line.split() for line in done.stdout.splitlines())
    assert lines["metric"] == "random://tiny"
    assert (lines["pass@1"], lines["pass@2"], lines["completion_length/max"]) == ("0", "0", "4")


def test_ctrl_c_ends_ptctl_serve_with_one_line() -> None:
    environment = streams()["env"]
    command = [*PTCTL, "serve", "random://tiny", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment)
    assert server.stderr is not None
    assert "tiny: serving OpenAI's API at http://127.0.0.1:" in server.stderr.readline()
    os.killpg(server.pid, signal.SIGINT)
    _, errors = server.communicate(timeout=60)
    assert (server.returncode, errors.strip()) == (130, "Interrupted.")
