"""Three slices of one process each, real trainers under real supervisors: slices are lost and come back."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer import forked, runs

from ptapi import run_directory
from ptapi.run_directory import Generation
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.slices import supervise, trainer_process
from pttrainer.runtime.slices.supervisor import Supervisor
from pttrainer.training.job_file import read_job

STEPS = 9
TOLERANCE = 1e-4
"""As of other changes of the mesh (`test_layouts`)."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("slices")
    runs.write_rows(directory / "train.jsonl", runs.SUMS)
    return directory


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> list[float]:
    """The losses of a run on one device."""
    runs.run(job(home, "undisturbed", {"type": "cpu-1"}))
    return runs.losses(home / "runs" / "undisturbed")


def job(home: Path, name: str, accelerator: dict[str, Any]) -> Path:
    training = {"steps": STEPS, "batchSize": 12, "sequenceLength": 64, "schedule": {"kind": "constant"}}
    parts: dict[str, Any] = {"tensorboard": {"enabled": False}, "export": {"format": "none"}}
    return runs.job(home, name, {"training": training, "accelerator": accelerator}, parts)


class Slices:
    """The supervisors of a job, in this process and with a clock of their own; its trainers are processes."""

    def __init__(self, home: Path, name: str, hold_at: Callable[[int], int]) -> None:
        self.path, self.directory = (
            job(home, name, {"type": "cpu-1", "slices": 3, "minSlices": 1}),
            home / "runs" / name,
        )
        self.hold_at, self.gate = hold_at, home / f"{name}-gate"
        self.clock = 0.0
        self.supervisors: dict[int, Supervisor] = {}
        self.trainers: dict[int, forked.Process] = {}
        self.errors: list[str] = []
        self.ends: list[tuple[int, str]] = []
        for index in range(3):
            self.come(index)

    def come(self, index: int) -> None:
        """A pod starts."""
        limits = supervise.limits(read_job(self.path), 1)
        address = f"127.0.0.1:{runs.free_port()}"

        def start(generation: Generation, rank: int) -> forked.Process:
            env = trainer_process.environment(generation, rank, index, {})
            del env[processes.SUPERVISOR]  # it is a child of the process that forks
            held = runs.gate(self.hold_at(generation.number), self.gate)
            self.trainers[index] = runs.command("run", str(self.path), env=env | held, program=runs.HELD)
            return self.trainers[index]

        place, token = Directory(self.directory), f"{index}-{self.clock}"
        self.supervisors[index] = Supervisor(
            place, (index, 0), address, limits, start, 30.0, 60.0, self.clock, token=token
        )

    def lose(self, index: int) -> None:
        """A host is gone."""
        self.supervisors.pop(index, None)
        if index in self.trainers:
            self._end(self.trainers.pop(index))

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass for the supervisors."""
        end = time.monotonic() + 300
        while not condition():
            assert self.supervisors, (self.generation(), self.ends, self.errors)
            assert time.monotonic() < end, (self.generation(), self.errors)
            self.clock += 2.0
            for index, supervisor in list(self.supervisors.items()):
                code = supervisor.step(self.clock)
                if code is not None:
                    self.ends.append((code, supervisor.verdict))
                    del self.supervisors[index]
            time.sleep(0.1)

    def generation(self) -> Generation:
        content = Directory(self.directory).read(run_directory.GENERATION)
        return Generation() if content is None else Generation.model_validate_json(content)

    def trains(self, *slices: int) -> Callable[[], bool]:
        """Whether exactly these slices have trainers."""
        return lambda: (
            self.generation().slices == list(slices)
            and self.generation().started
            and all(s in self.trainers and self.supervisors[s].member.state == "running" for s in slices)
        )

    def reached(self, step: int) -> None:
        """Wait for a step of the first process."""
        runs.reached(self.trainers[self.generation().slices[0]], step)

    def is_over(self) -> bool:
        return not self.supervisors

    def close(self) -> None:
        for trainer in self.trainers.values():
            self._end(trainer)

    def _end(self, trainer: forked.Process) -> None:
        trainer.kill()
        _, errors = trainer.communicate(timeout=60)
        self.errors.append(errors[-2000:])


def test_a_run_goes_on_with_two_of_three_slices_and_with_three_when_it_can(
    home: Path, undisturbed: list[float]
) -> None:
    slices = Slices(home, "lost", lambda generation: {1: 5, 2: 8}.get(generation, 1000))
    try:
        slices.until(slices.trains(0, 1, 2))
        slices.reached(4)
        slices.lose(0)  # the coordinator of JAX, the writer of the run directory, and perhaps the keeper
        slices.until(slices.trains(1, 2))
        slices.reached(7)
        slices.come(0)
        slices.until(lambda: slices.generation().stopping)
        slices.gate.touch()
        slices.until(slices.trains(0, 1, 2))
        slices.until(slices.is_over)
    finally:
        slices.close()
    assert slices.ends == [(0, "done")] * 3
    assert slices.generation().restarts == {"HostError": 1, "Resized": 1}
    assert runs.losses(slices.directory) == pytest.approx(undisturbed, rel=TOLERANCE)
    assert [line["step"] for line in runs.lines(slices.directory)] == list(range(1, STEPS + 1))
    progress = runs.progress(slices.directory)
    assert progress.slices is not None
    assert progress.slices.present == [0, 1, 2]
    assert progress.slices.generation == 3
    assert progress.time.fewer_slices > 0
