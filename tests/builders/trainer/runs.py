"""Real runs of the trainer in processes of their own: the job's file, one process or several, what they left behind."""

import atexit
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from tests.builders.trainer import forked, quick

from ptapi import run_directory
from pttrainer.algorithms import MODULES
from pttrainer.commands import huge_pages

Attempt = forked.Process | subprocess.Popen[str]
TRAINER = ("pttrainer.__main__", "pttrainer.training.loop", *sorted(MODULES.values()))
"""What a trainer's process imports before it does anything."""
HELD = "tests.builders.trainer.held"


NUMBERS = [{"question": f"{i}?", "answer": str(i)} for i in range(40)]
SUMS = [{"question": f"What is {a} plus {b}?", "answer": f"{a + b}"} for a in range(12) for b in range(10)]
SHARE_OF_LETTER_A = "def reward(prompt, completion, row):\n    return completion.count('a') / max(len(completion), 1)\n"


def write_rows(file: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def own_reward(home: Path, source: str, timeout_s: float = 1) -> list[dict[str, Any]]:
    """A job's `rewards`: a Python file of this source."""
    (home / "own.py").write_text(source)
    return [{"name": "own", "python": {"uri": f"file://{home}/own.py"}, "timeoutSeconds": timeout_s}]


def job(home: Path, name: str, /, *changes: dict[str, Any], **parts: Any) -> Path:
    """A job's file: SFT of the tiny model on `home/train.jsonl`. Changes and parts replace what a part of the spec
    says, one level deep."""
    spec: dict[str, Any] = {
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": f"file://{home}/train.jsonl"}},
        "training": {"batchSize": 8, "sequenceLength": 96, "optimizer": {"learningRate": 3e-3}},
        "checkpoint": {"everySteps": 2},
        "accelerator": {"type": "cpu-1"},
    }
    for change in (*changes, parts):
        for part, value in change.items():
            spec[part] = {**spec.get(part, {}), **value} if isinstance(value, dict) else value
    return write_job(home, name, spec)


def write_job(home: Path, name: str, spec: dict[str, Any]) -> Path:
    """A job's file in `home`; its run directory is `home/runs/<name>`, unless the spec says otherwise."""
    document = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": name}}
    path = home / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**document, "spec": {"output": {"uri": f"file://{home}/runs"}, **spec}}))
    return path


@lru_cache
def compiled() -> str:
    """Where the runs of this test session keep compiled steps: what one has compiled no other compiles again."""
    directory = tempfile.mkdtemp(prefix="posttrain-tests-xla-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def command(
    *words: str, env: dict[str, str] | None = None, stderr: int = subprocess.PIPE, program: str = "pttrainer"
) -> forked.Process:
    """`python -m pttrainer WORDS`, with nothing of jax's that these tests were started with. env: more variables."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))}
    kept = {"JAX_COMPILATION_CACHE_DIR": compiled(), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    pages = {huge_pages.VARIABLE: f"{huge_pages.TUNABLE}=0"}  # a fork cannot begin once more
    own = {"XLA_FLAGS": quick.FLAGS, **kept, **pages}
    return forked.start(TRAINER, (program, *words), clean | own | (env or {}), stderr=stderr)


def held(path: Path, step: int, until: Path, env: dict[str, str] | None = None, **streams: int) -> forked.Process:
    """The trainer, which does not go past a step before there is a file `until`."""
    return command("run", str(path), env={**(env or {}), **gate(step, until)}, program=HELD, **streams)


def gate(step: int, until: Path) -> dict[str, str]:
    """The variables of the program `HELD`."""
    return {"HOLD_AT_STEP": str(step), "HOLD_UNTIL": str(until)}


def start(
    path: Path, processes: int = 1, env: dict[str, str] | None = None, program: str = "pttrainer"
) -> list[forked.Process]:
    """The trainer's processes. env: more variables."""
    if processes == 1:
        return [command("run", str(path), env=env)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(processes)}
    envs = [{**shared, **(env or {}), "JAX_PROCESS_ID": str(rank)} for rank in range(processes)]
    return [command("run", str(path), env=own, program=program) for own in envs]


def end(process: Attempt) -> tuple[int, str]:
    """Waits; the exit code, and what was said on stderr."""
    _, errors = process.communicate(timeout=900)
    assert process.returncode is not None
    return process.returncode, errors


def run(path: Path, processes: int = 1) -> str:
    """Runs to the end; what the leader said on stderr."""
    ends = [end(process) for process in start(path, processes)]
    assert [code for code, _ in ends] == [0] * processes, ends
    return ends[0][1]


def refused(path: Path, code: int, *words: str, env: dict[str, str] | None = None) -> str:
    """Runs to an end with this code and these words, no traceback; what was said on stderr."""
    status, errors = end(command("run", str(path), env=env))
    assert status == code, errors
    assert "Traceback" not in errors
    assert [each for each in words if each not in errors] == [], errors
    return errors


def reached(process: Attempt, step: int) -> None:
    """Waits for the line of a step, or one after it."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step ") and int(line.split()[1].partition("/")[0]) >= step:
            return
    raise AssertionError(end(process))


def paced(process: Attempt) -> None:
    """Let it go on for some fifty steps, and then only as its lines are read: for programs that cannot be `held`."""
    assert process.stdout is not None
    fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)


def killed(path: Path, steps: int) -> None:
    """Kills the job after so many of its steps. With two checkpoints begun by then, the first of them is whole."""
    process = held(path, steps + 1, path.with_name("never"))
    reached(process, steps)
    process.kill()
    code, errors = end(process)
    assert code == -signal.SIGKILL, errors


def killed_and_resumed(path: Path, steps: int) -> str:
    """Kills the job after so many of its steps, and runs it again to its end; what it then said on stderr."""
    killed(path, steps)
    errors = run(path)
    assert "resuming after step" in errors
    assert "waiting for" not in errors, "a process that was killed here holds nothing"
    return errors


def killed_again_and_again(begin: Callable[[], Attempt], moments: random.Random) -> int:
    """Runs to the end with kills after one to four steps of each attempt, and after more if they were many; how many
    there were. begin: starts an attempt."""
    kills = 0
    while True:
        process = begin()
        assert process.stdout is not None
        wanted = moments.randint(1, 4) + kills // 4  # a slow machine needs longer until something is saved
        for lines, _ in enumerate(process.stdout, start=1):
            if lines == wanted:
                time.sleep(moments.random() * 0.1)  # also while a checkpoint is being written
                process.kill()
                kills += 1
                break
        code, errors = end(process)
        assert code in (0, -signal.SIGKILL), errors
        if code == 0:
            return kills


def lines(run: Path) -> list[dict[str, Any]]:
    """The lines of the metrics of a run directory."""
    return [json.loads(line) for line in (run / run_directory.METRICS).read_text().splitlines()]


def metrics(run: Path) -> list[dict[str, Any]]:
    """What of them does not depend on the clock."""
    return [{k: v for k, v in line.items() if not run_directory.is_of_machine(k)} for line in lines(run)]


def losses(run: Path) -> list[float]:
    """The loss of every step."""
    return [line["loss"] for line in metrics(run) if "loss" in line]


def exported(run: Path, name: str = "model.safetensors") -> bytes:
    """A file of the export: the weights."""
    return (run / run_directory.EXPORT / name).read_bytes()


def termination(run: Path) -> run_directory.Termination:
    """What the run left for the operator."""
    return run_directory.Termination.model_validate_json((run / run_directory.TERMINATION).read_text())


def progress(run: Path) -> run_directory.Progress:
    """Where the run says that it is."""
    return run_directory.Progress.model_validate_json((run / run_directory.PROGRESS).read_text())


def lineage(run: Path) -> Any:
    """Of what the run says that it was made."""
    return json.loads((run / run_directory.LINEAGE).read_text())
