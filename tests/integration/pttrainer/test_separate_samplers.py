"""A trainer and its samplers as processes of their own: the same samples and losses as a colocated run, to the bit."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.pictures import drawn
from tests.builders.trainer import forked, runs

from ptapi import run_directory
from ptapi.failures import ExitCode

TOKEN = "of this test"
ENV = {"POSTTRAIN_SAMPLER_TOKEN": TOKEN}
STEPS = 4
SPLIT_SAMPLER = "tests.builders.trainer.split_sampler"
TOLERANCE = 2e-6
"""As of samplers on other devices (`test_disaggregated`): two samplers have half of the rows each, and matrices of
other shapes round differently."""
PATIENCE_S = 300.0
"""How long a trainer may take to its first reward on a busy machine."""
REWARD = """
import os, pathlib, time

def reward(prompt, completion, row):
    home = pathlib.Path({home!r})
    if (home / "hold").exists():
        (home / "held").touch()
    while (home / "hold").exists():
        time.sleep(0.02)
    return sum(completion.encode()) % 11 / 10
"""
"""Different for nearly every sample, so that every step has a gradient. It waits while there is a file `hold`."""


class Samplers:
    """The samplers of a job. Sockets that do not listen keep their ports for them while they are dead."""

    def __init__(self, job: Path, count: int) -> None:
        self._job, self._kept = job, [_reserved() for _ in range(count)]
        self.ports = [kept.getsockname()[1] for kept in self._kept]
        self.processes = [self._start(index) for index in range(count)]
        for process in self.processes:
            _wait_until_up(process)

    @property
    def environment(self) -> dict[str, str]:
        """Return what the operator gives the trainer."""
        return {**ENV, "POSTTRAIN_SAMPLERS": ",".join(f"127.0.0.1:{port}" for port in self.ports)}

    def kill(self, index: int) -> None:
        """End one with SIGKILL."""
        self.processes[index].kill()
        self.processes[index].communicate(timeout=60)

    def end(self) -> None:
        """End all."""
        for index in range(len(self.processes)):
            self.kill(index)
            self._kept[index].close()

    def start(self, index: int) -> None:
        """Start one again, at its port."""
        self.processes[index] = self._start(index)
        _wait_until_up(self.processes[index])

    def _start(self, index: int) -> forked.Process:
        words = ("sampler", "--spec", str(self._job), "--index", str(index), "--port", str(self.ports[index]))
        return runs.command(*words, env=ENV)


class Group:
    """One sampler of two processes, each with half of every weight. Its port is kept, as those of `Samplers` are."""

    def __init__(self, job: Path) -> None:
        self._job, self._kept = job, _reserved()
        self.port = self._kept.getsockname()[1]
        self.processes: list[forked.Process] = []
        self.start()

    def start(self) -> None:
        """Start both, at the sampler's port, and wait until they serve."""
        with _reserved() as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        shared = {**ENV, "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
        self.processes = [
            runs.command(
                *("sampler", "--spec", str(self._job), "--index", "0", "--port", str(port)),
                env={**shared, "JAX_PROCESS_ID": str(rank)},
                program=SPLIT_SAMPLER,
            )
            for rank, port in enumerate((self.port, 0))
        ]
        for process in self.processes:
            _wait_until_up(process)

    def kill(self, rank: int) -> tuple[int, str]:
        """End one with SIGKILL; the other ends by itself. Return its exit code, and what it wrote to stderr."""
        self.processes[rank].kill()
        runs.end(self.processes[rank])
        return runs.end(self.processes[1 - rank])

    def end(self) -> None:
        """End both."""
        for process in self.processes:
            process.kill()
            process.communicate(timeout=60)
        self._kept.close()


def _reserved() -> socket.socket:
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("", 0))
    return kept


def _wait_until_up(process: forked.Process) -> None:
    assert process.stderr is not None
    if not any(line.startswith("sampler ") and " port " in line for line in process.stderr):
        raise AssertionError(process.communicate())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("separate")
    runs.write_rows(directory / "train.jsonl", runs.NUMBERS)
    return directory


def job(home: Path, name: str, *changes: dict[str, Any], **rollout: Any) -> Path:
    return runs.job(
        home,
        name,
        {"algorithm": {"sft": None, "grpo": {"groupSize": 4}}},
        {"rewards": runs.own_reward(home, REWARD.format(home=str(home)), timeout_s=300)},
        {"training": {"batchSize": 16, "steps": STEPS, "sequenceLength": 32, "optimizer": {"learningRate": 1e-2}}},
        {"rollout": {"maxNewTokens": 8, **rollout}, "export": {"format": "none"}, "tensorboard": {"enabled": False}},
        {"checkpoint": {"everySteps": 1}},
        *changes,
    )


def apart(**rollout: Any) -> dict[str, Any]:
    return {"placement": "separate", "separate": {"replicas": 2}, **rollout}


def trained(home: Path, name: str, env: dict[str, str], **rollout: Any) -> Path:
    code, errors = runs.end(runs.command("run", str(job(home, name, **apart(**rollout))), env=env))
    assert code == 0, errors
    return home / "runs" / name


def wait_for(file: Path, process: forked.Process) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert time.monotonic() < limit, f"{file.name} did not come in {PATIENCE_S:.0f} s"
        try:
            process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(runs.end(process))


def samples(run: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in json.loads(line).items() if name != "version"}
        for file in sorted((run / run_directory.SAMPLES).iterdir())
        for line in file.read_text().splitlines()
    ]


def figures(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.startswith("staleness")} for line in runs.metrics(run)]


def assert_close(run: Path, other: Path) -> None:
    for one, wanted in zip(figures(run), figures(other), strict=True):
        for name in wanted:
            np.testing.assert_allclose(one[name], wanted[name], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


@pytest.fixture(scope="module")
def colocated(home: Path) -> Path:
    runs.run(job(home, "colocated"))
    return home / "runs" / "colocated"


@pytest.fixture(scope="module")
def samplers(home: Path) -> Iterator[Samplers]:
    """Two samplers of a job; they serve any trainer of the same model."""
    both = Samplers(job(home, "samplers", **apart()), 2)
    yield both
    both.end()


@pytest.fixture(scope="module")
def undisturbed(home: Path, samplers: Samplers) -> Path:
    return trained(home, "undisturbed", samplers.environment)


def test_two_samplers_draw_what_a_colocated_run_draws_and_one_to_the_bit(
    home: Path, colocated: Path, samplers: Samplers, undisturbed: Path
) -> None:
    assert samples(undisturbed) == samples(colocated)
    assert len(samples(undisturbed)) == 16 * STEPS
    assert_close(undisturbed, colocated)
    first = samplers.environment["POSTTRAIN_SAMPLERS"].partition(",")[0]
    alone = trained(home, "alone", {**ENV, "POSTTRAIN_SAMPLERS": first}, separate={"replicas": 1})
    assert samples(alone) == samples(colocated)
    assert figures(alone) == figures(colocated)
    first, *later = runs.lines(alone)
    assert first["weights/bytes"] > 0
    assert "weights/changed_share" not in first
    assert all(line["weights/bytes"] > 0 and 0 < line["weights/changed_share"] <= 1 for line in later)


def test_a_lost_samplers_share_is_drawn_again_and_one_that_returns_gets_the_weights(
    home: Path, samplers: Samplers, undisturbed: Path
) -> None:
    for name, returns in (("returned", True), ("lost", False)):
        hold, held = home / "hold", home / "held"
        hold.touch()
        held.unlink(missing_ok=True)
        trainer = runs.command("run", str(job(home, name, **apart())), env=samplers.environment)
        wait_for(held, trainer)
        samplers.kill(1)
        if returns:
            samplers.start(1)
        hold.unlink()
        code, errors = runs.end(trainer)
        assert code == 0, errors
        run = home / "runs" / name
        assert samples(run) == samples(undisturbed)
        assert figures(run) == figures(undisturbed)
        lines = runs.lines(run)
        drawn_again = sum(line["samplers/drawn_again"] for line in lines)
        assert (drawn_again, lines[-1]["samplers/away"]) == ((0, 0) if returns else (1, 1))
        assert ("its 2 prompts are drawn again" in errors) == (not returns)
    samplers.start(1)


@pytest.fixture(scope="module")
def ahead(home: Path, samplers: Samplers) -> Path:
    return trained(home, "ahead", samplers.environment, maxStaleness=1)


def test_a_run_ahead_of_its_samplers_that_is_killed_and_resumed_equals_one_that_is_not(
    home: Path, samplers: Samplers, ahead: Path
) -> None:
    path = job(home, "ahead-killed", **apart(maxStaleness=1))
    trainer = runs.command("run", str(path), env=samplers.environment)
    runs.reached(trainer, 2)
    trainer.kill()
    runs.end(trainer)
    code, errors = runs.end(runs.command("run", str(path), env=samplers.environment))
    assert code == 0, errors
    assert samples(home / "runs" / "ahead-killed") == samples(ahead)
    assert figures(home / "runs" / "ahead-killed") == figures(ahead)
    assert [line["staleness"] for line in runs.metrics(ahead)] == [0, 1, 1, 1]


IN_FLIGHT: dict[str, Any] = {"inFlightUpdates": True, "maxStaleness": 2, "maxNewTokens": 24}


def test_samples_in_flight_survive_a_sampler_and_the_trainer_and_are_counted_once(
    home: Path, samplers: Samplers
) -> None:
    whole = trained(home, "in-flight", samplers.environment, **IN_FLIGHT)
    path = job(home, "in-flight-killed", **apart(**IN_FLIGHT))
    hold, held = home / "hold", home / "held"
    hold.touch()
    held.unlink(missing_ok=True)
    trainer = runs.command("run", str(path), env=samplers.environment)
    wait_for(held, trainer)
    samplers.kill(1)
    hold.unlink()
    runs.reached(trainer, 2)
    trainer.kill()
    _, errors = runs.end(trainer)
    assert "prompts are drawn again" in errors
    samplers.start(1)
    code, errors = runs.end(runs.command("run", str(path), env=samplers.environment))
    assert code == 0, errors
    killed = home / "runs" / "in-flight-killed"
    assert samples(killed) == samples(whole)
    assert runs.metrics(killed) == runs.metrics(whole)
    lines = runs.metrics(whole)
    assert all(line["staleness/max"] <= 2 and line["staleness/dropped"] == 0 for line in lines)
    assert any(line["staleness/versions/max"] > 1 for line in lines)
    rows = samples(whole)
    assert len(rows) == 16 * STEPS
    assert all(sum(count for _, count in row["versions"]) == row["tokens"] for row in rows)


SPLIT = {"accelerator": {"type": "cpu-1", "slices": 2}, "training": {"parallelism": {"fsdp": 2}}}
"""Two processes with half of the weights each."""


def train_together(path: Path, samplers: Samplers) -> list[tuple[int, str]]:
    """Train with two processes; their exit codes, and what they wrote to stderr."""
    return [runs.end(process) for process in runs.start(path, 2, samplers.environment)]


def test_two_processes_train_with_the_samples_that_one_trains_with(
    home: Path, samplers: Samplers, undisturbed: Path
) -> None:
    ends = train_together(job(home, "together", SPLIT, **apart()), samplers)
    assert [code for code, _ in ends] == [0, 0], ends
    run = home / "runs" / "together"
    assert samples(run) == samples(undisturbed)
    assert_close(run, undisturbed)


def test_two_processes_that_run_ahead_and_are_killed_go_on_without_a_sampler_with_the_same_samples(
    home: Path, samplers: Samplers, ahead: Path
) -> None:
    path = job(home, "ahead-together", SPLIT, **apart(maxStaleness=1))
    held = {**samplers.environment, **runs.gate(3, home / "never")}
    both = runs.start(path, 2, held, runs.HELD)
    runs.reached(both[0], 2)
    for process in reversed(both):
        process.kill()
    for process in both:
        runs.end(process)
    samplers.kill(1)
    ends = train_together(path, samplers)
    samplers.start(1)
    assert [code for code, _ in ends] == [0, 0], ends
    run = home / "runs" / "ahead-together"
    assert samples(run) == samples(ahead)
    assert_close(run, ahead)
    assert runs.lines(run)[-1]["samplers/away"] == 1


@pytest.fixture(scope="module")
def group(home: Path) -> Iterator[Group]:
    both = Group(job(home, "group", **apart(separate={"replicas": 1})))
    yield both
    both.end()


def test_a_sampler_of_two_processes_draws_what_one_draws_and_ends_with_either_and_comes_back(
    home: Path, group: Group, undisturbed: Path
) -> None:
    hold, held = home / "hold", home / "held"
    hold.touch()
    held.unlink(missing_ok=True)
    env = {**ENV, "POSTTRAIN_SAMPLERS": f"127.0.0.1:{group.port}"}
    trainer = runs.command("run", str(job(home, "grouped", **apart(separate={"replicas": 1}))), env=env)
    wait_for(held, trainer)
    code, errors = group.kill(1)
    assert (code, "another of its processes is gone" in errors) == (ExitCode.PREEMPTED_SAVED, True), errors
    group.start()
    hold.unlink()
    code, errors = runs.end(trainer)
    assert code == 0, errors
    run = home / "runs" / "grouped"
    assert samples(run) == samples(undisturbed)
    assert_close(run, undisturbed)
    assert all(0 < line["weights/changed_share"] <= 1 for line in runs.lines(run)[1:])
    code, errors = group.kill(0)
    assert code in (ExitCode.PREEMPTED_SAVED, -signal.SIGABRT), errors  # JAX aborts, if it is the first to know


def test_all_processes_of_a_trainer_end_with_the_leaders_reason(home: Path, samplers: Samplers) -> None:
    strangers = {**samplers.environment, "POSTTRAIN_SAMPLER_TOKEN": "another"}
    path = job(home, "strangers-together", SPLIT, **apart())
    for code, errors in [runs.end(process) for process in runs.start(path, 2, strangers)]:
        assert (code, "refuses the trainer's token" in errors) == (ExitCode.CONFIG_ERROR, True), errors


WORLD = """
class Environment:
    def reset(self, row):
        self.turns = 0
    def step(self, text):
        self.turns += 1
        return f"of {len(text)}", len(text) % 3, self.turns == 2
"""


def test_turns_of_episodes_with_experts_and_adapters_are_drawn_as_a_colocated_run_draws_them(home: Path) -> None:
    (home / "world.py").write_text(WORLD)
    changes: dict[str, Any] = {
        "model": {"uri": "random://tiny-moe"},
        "environment": {"python": {"uri": f"file://{home}/world.py"}, "maxTurns": 2},
        "training": {"batchSize": 16, "sequenceLength": 64, "steps": 2, "lora": {"rank": 4}},
    }
    rollout = {"routingReplay": True, "stop": list("abcdefghijklmpqr")}
    runs.run(job(home, "turns-here", changes, **rollout))
    path = job(home, "turns", changes, **apart(**rollout))
    of_two, of_one = Group(path), Samplers(path, 1)
    addresses = f"127.0.0.1:{of_two.port},{of_one.environment['POSTTRAIN_SAMPLERS']}"
    code, errors = runs.end(runs.command("run", str(path), env={**ENV, "POSTTRAIN_SAMPLERS": addresses}))
    for each in (of_two, of_one):
        each.end()
    assert code == 0, errors
    run = home / "runs" / "turns"
    assert samples(run) == samples(home / "runs" / "turns-here")
    assert all(line["episodes/turns"] > 1 for line in runs.metrics(run))
    first, *later = runs.lines(run)
    assert all(0 < line["weights/bytes"] < first["weights/bytes"] / 5 for line in later)


def test_a_sampler_that_sees_pictures_and_guesses_with_a_draft_draws_what_a_colocated_run_draws(home: Path) -> None:
    rows = []
    for number in range(8):
        drawn(24 + number, 32, seed=number).save(home / f"{number}.png")
        rows.append({"prompt": "?" * (number % 3 + 1), "image": f"{number}.png"})
    runs.write_rows(home / "pictures.jsonl", rows)
    changes: dict[str, Any] = {
        "model": {"uri": "random://tiny-gemma3", "images": True},
        "data": {"train": {"uri": f"file://{home}/pictures.jsonl"}},
        "training": {"batchSize": 16, "sequenceLength": 96, "steps": 2},
    }
    guessed: dict[str, Any] = {"speculative": {"draft": {"uri": "random://tiny-gemma3", "tokens": 2}}}
    runs.run(job(home, "pictures-here", changes, **guessed))
    path = job(home, "pictures", changes, **apart(separate={"replicas": 1}, **guessed))
    there = Samplers(path, 1)
    code, errors = runs.end(runs.command("run", str(path), env=there.environment))
    there.end()
    assert code == 0, errors
    run = home / "runs" / "pictures"
    assert samples(run) == samples(home / "runs" / "pictures-here")
    assert figures(run) == figures(home / "runs" / "pictures-here")
    assert all("speculation/accepted_share" in line for line in runs.lines(run))
    assert len({sample["completion"] for sample in samples(run)}) > 8


def test_neither_side_works_without_the_token(home: Path, samplers: Samplers) -> None:
    path = job(home, "strangers", **apart())
    words = ("sampler", "--spec", str(path), "--index", "0", "--port", "0")
    code, errors = runs.end(runs.command(*words))
    assert (code, "POSTTRAIN_SAMPLER_TOKEN" in errors) == (ExitCode.CONFIG_ERROR, True)
    runs.refused(path, ExitCode.CONFIG_ERROR, "POSTTRAIN_SAMPLERS: not set")
    other = {**samplers.environment, "POSTTRAIN_SAMPLER_TOKEN": "another"}
    runs.refused(path, ExitCode.CONFIG_ERROR, "refuses the trainer's token", env=other)
