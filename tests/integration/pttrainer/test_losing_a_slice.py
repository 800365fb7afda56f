"""Two slices of one process each, real trainers under real supervisors: one is lost, comes back, and leaves."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer import forked, runs

from ptapi import run_directory
from ptapi.run_directory import Generation
from ptlocal.kubelet.ports import PortMap
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.slices import supervise, trainer_process
from pttrainer.runtime.slices.supervisor import Supervisor
from pttrainer.training.job_file import read_job

STEPS = 9
HELD = {1: 4, 2: 6, 3: 8}
"""The step after which the first process of a generation waits for its gate: at a checkpoint."""
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

    def __init__(self, home: Path, name: str) -> None:
        self.path = job(home, name, {"type": "cpu-1", "slices": 2, "minSlices": 1})
        self.directory, self.gates = home / "runs" / name, home / f"{name}-gates"
        self.gates.mkdir()
        self.ports = PortMap(home / f"{name}-ports.json", seed=str(home))
        self.clock = 0.0
        self.supervisors: dict[int, Supervisor] = {}
        self.trainers: dict[int, forked.Process] = {}
        self.errors: list[str] = []
        self.ends: list[tuple[int, str]] = []
        for index in range(2):
            self.come(index)

    def come(self, index: int) -> None:
        """A pod starts."""
        limits = supervise.limits(read_job(self.path), 1)
        address = f"127.0.0.1:{self.ports.port_for('slices', f'slice-{index}-{self.clock}', 1)}"

        def start(generation: Generation, rank: int) -> forked.Process:
            env = trainer_process.environment(generation, rank, index, {})
            del env[processes.SUPERVISOR]  # it is a child of the process that forks
            gate, step = self.gates / str(generation.number), HELD.get(generation.number, STEPS + 1)
            held = runs.gate(step, gate)
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
        end = time.monotonic() + 600
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

    def some_steps(self) -> None:
        """Let every supervisor do what is due, as sending a signal."""
        end = self.clock + 20.0
        self.until(lambda: self.clock >= end)

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


def test_a_run_goes_on_without_a_lost_slice_and_with_it_when_it_is_back(home: Path, undisturbed: list[float]) -> None:
    slices = Slices(home, "lost")
    try:
        slices.until(slices.trains(0, 1))
        slices.reached(HELD[1] - 1)
        slices.lose(0)  # the coordinator of JAX, the writer of the run directory, and perhaps the keeper
        slices.until(slices.trains(1))
        slices.reached(HELD[2] - 1)
        slices.come(0)
        slices.until(lambda: slices.generation().stopping)
        slices.some_steps()
        (slices.gates / "2").touch()
        slices.until(slices.trains(0, 1))
        slices.reached(HELD[3] - 1)
        slices.supervisors[1].leave()
        slices.some_steps()
        (slices.gates / "3").touch()
        slices.until(slices.is_over)
    finally:
        slices.close()
    assert slices.ends == [(75, "stopped"), (0, "done")]
    assert slices.generation().restarts == {"HostError": 1, "Resized": 1, "Preempted": 1}
    assert runs.losses(slices.directory) == pytest.approx(undisturbed, rel=TOLERANCE)
    assert [line["step"] for line in runs.lines(slices.directory)] == list(range(1, STEPS + 1))
    progress = runs.progress(slices.directory)
    assert progress.slices is not None
    assert (progress.slices.present, progress.slices.generation) == ([0], 4)
    assert progress.time.fewer_slices > 0
