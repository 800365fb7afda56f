"""`ptctl chat`, `ptctl eval` and `ptctl serve`: the trainer's verbs on a model, in a child process."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orbax.checkpoint as ocp
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
    assert "/help: no such command; accepted: /reset, /image FILE, /exit" in session.stderr
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
    (tmp_path / "own.py").write_text(
        "def brief(prompt, completion, row):\n    return float(row['question'] in prompt)\n"
    )
    own = ["--reward", f"{tmp_path}/own.py:brief", "--limit", "2"]
    done = subprocess.run([*command, "--task", "gsm8k", *own], capture_output=True, **streams())
    assert done.returncode == 0, done.stderr
    lines = dict(line.split() for line in done.stdout.splitlines())
    assert lines["metric"] == "random://tiny"
    assert (lines["reward/brief"], lines["reward/gsm8k"]) == ("1", "0")
    assert (lines["pass@1"], lines["pass@2"], lines["completion_length/max"]) == ("0", "0", "4")


def test_ctrl_c_ends_ptctl_serve_with_one_line() -> None:
    environment = streams()["env"]
    command = [*PTCTL, "serve", "random://tiny", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment)
    assert server.stderr is not None
    assert "tiny: serving OpenAI's API at http://127.0.0.1:" in server.stderr.readline()
    os.killpg(server.pid, signal.SIGINT)
    _, errors = server.communicate(timeout=300)
    assert (server.returncode, errors.strip()) == (130, "Interrupted.")


def test_checkpoints_of_a_run_answer_and_are_measured_side_by_side(tmp_path: Path) -> None:
    runs.write_rows(tmp_path / "train.jsonl", runs.SUMS[:16])
    columns = {"prompt": "question", "completion": "answer"}
    data = {"train": {"uri": f"file://{tmp_path}/train.jsonl", "format": "prompt-completion", "columns": columns}}
    training = {"steps": 2, "optimizer": {"learningRate": 0.01}}
    job = runs.job(tmp_path, "sums", data=data, training=training, checkpoint={"everySteps": 1, "keep": 2})
    runs.run(job)
    run = str(tmp_path / "runs" / "sums")
    card = (tmp_path / "runs" / "sums" / "export" / "README.md").read_text()
    assert "Post-trained from `random://tiny` with sft: step 2, all weights." in card
    assert "- train: `file://" in card
    assert re.search(r"\| loss \| [\d.]+ \| `[▁-█]{2}` \| [\d.]+ \|", card), card
    options = ["--message", "hi", "--max-tokens", "6", "--temperature", "0"]
    first = subprocess.run([*PTCTL, "chat", run, "--step", "1", *options], capture_output=True, **streams()).stdout
    places = [f"{run}/checkpoints/{step}" for step in "12"]
    both = subprocess.run([*PTCTL, "chat", "--compare", *places, *options], capture_output=True, **streams())
    before, heading, second = both.stdout.partition("[sums@2]\n")
    assert (before, heading) == (f"[sums@1]\n{first}", "[sums@2]\n"), both.stderr
    assert second not in ("", first)
    for words, step in ((["--step", "1"], 1), ([], 2)):
        to = tmp_path / f"maxtext-{step}"
        command = [*PTCTL, "workload", "export", run, str(to), "--layout", "maxtext", *words]
        done = subprocess.run(command, capture_output=True, **streams())
        assert (done.returncode, done.stdout) == (0, f"{to}\n"), done.stderr
    with ocp.PyTreeCheckpointer() as checkpointer:
        one, two = (checkpointer.restore(tmp_path / f"maxtext-{step}" / "0" / "items") for step in "12")
    kernels = [each["params"]["params"]["decoder"]["layers"]["self_attention"]["out"]["kernel"] for each in (one, two)]
    assert kernels[0].shape == kernels[1].shape == (4, 2, 16, 64)
    assert (kernels[0] != kernels[1]).any()
    evaluation = [*PTCTL, "eval", run, "--data", str(tmp_path / "train.jsonl"), "--max-tokens", "4"]
    drawing = tmp_path / "eval.svg"
    steps = ["--step", "1", "--step", "2", "--plot", str(drawing)]
    table = subprocess.run([*evaluation, *steps], capture_output=True, **streams())
    assert table.stdout.splitlines()[0].split() == ["metric", "sums@1", "sums@2"], table.stderr
    texts = [element.text or "" for element in ElementTree.parse(drawing).iter() if element.tag.endswith("text")]
    assert "exact_match" in texts
    assert sum(text.endswith("sums@2") for text in texts) == len(table.stdout.splitlines()) - 1
    absent = subprocess.run([*evaluation, "--step", "7"], capture_output=True, **streams())
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "no checkpoint of step 7; accepted: 1, 2" in absent.stderr
