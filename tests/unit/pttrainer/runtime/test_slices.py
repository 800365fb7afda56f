"""Supervisors of several slices: which generation trains, in a world of their own clock, with losses at random."""

import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.builders.trainer import runs

from ptapi.failures import ExitCode
from ptapi.run_directory import GENERATION, Generation, Member
from pttrainer.commands import run
from pttrainer.errors import ConfigError, StorageError
from pttrainer.runtime.io.place import Place, Versioned, no_fence
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.runtime.slices import trainer_process
from pttrainer.runtime.slices.next_generation import Key, Limits, Report, Timing, decide
from pttrainer.runtime.slices.supervisor import Supervisor

LIMIT_S, PATIENCE_S, TICK_S = 30.0, 120.0, 1.0


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_a_container_runs_a_supervisor_where_a_trainer_could_go_on_with_fewer_slices(
    is_in_flight: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {
        "model": {"uri": "random://tiny"},
        "algorithm": {"grpo": {"groupSize": 2}},
        "data": {"train": {"uri": f"file://{tmp_path}/train.jsonl"}},
        "rewards": [{"builtin": "gsm8k"}],
        "training": {"steps": 1, "batchSize": 4, "sequenceLength": 64},
        "rollout": {"maxNewTokens": 8, **({"inFlightUpdates": True, "maxStaleness": 4} if is_in_flight else {})},
        "accelerator": {"type": "cpu-1", "slices": 1, "minSlices": 1},
    }
    started: list[str] = []

    def supervise(*_: object) -> ExitCode:
        started.append("supervisor")
        return ExitCode.OK

    def train(*_: object) -> None:
        started.append("trainer")
        raise ConfigError("far enough")

    for name, number in (("SLICE_INDEX", "0"), ("HOST_INDEX", "0"), ("HOSTS_PER_SLICE", "1")):
        monkeypatch.setenv(f"POSTTRAIN_{name}", number)
    monkeypatch.setattr(run.supervise, "run", supervise)
    monkeypatch.setattr(run.processes, "prepare_environment", train)
    run._run(runs.write_job(tmp_path, "few", spec), Attempt(), StopRequest(), is_fresh=False)
    assert started == ["trainer" if is_in_flight else "supervisor"]


class MemoryPlace:
    """Files in memory; `broken`: nothing can be written."""

    uri, fence = "memory://", staticmethod(no_fence)

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.versions: dict[str, int] = {}
        self.broken = False

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def write(self, name: str, content: bytes) -> None:
        if self.broken:
            raise StorageError("memory://: away")
        self.files[name] = content
        self.versions[name] = self.versions.get(name, 0) + 1

    def read_versioned(self, name: str) -> Versioned:
        return Versioned(self.read(name), self.versions.get(name, 0))

    def write_if(self, name: str, content: bytes, generation: int) -> int | None:
        if self.versions.get(name, 0) != generation:
            return None
        self.write(name, content)
        return self.versions[name]


@dataclass
class Trainer:
    """A trainer that never was: it ends when it is made to."""

    generation: Generation
    code: int | None = None
    is_stopping: bool = False

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int, /) -> None:
        self.is_stopping = number == signal.SIGTERM

    def kill(self) -> None:
        self.code = -9 if self.code is None else self.code


@dataclass
class World:
    """The supervisors of a job, and trainers that need all of their generation: `steps` of progress end the run."""

    limits: Limits
    steps: int = 400
    place: MemoryPlace = field(default_factory=MemoryPlace)
    now: float = 1000.0
    done: int = 0
    supervisors: dict[Key, Supervisor] = field(default_factory=dict)
    trainers: dict[Key, Trainer] = field(default_factory=dict)
    exits: dict[Key, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for slice_index in range(self.limits.slices):
            self.come(slice_index)

    def come(self, slice_index: int) -> None:
        """New pods of a slice start."""
        for process in range(self.limits.per_slice):
            key = (slice_index, process)
            if key not in self.supervisors:
                self.exits.pop(key, None)
                self.supervisors[key] = self.supervisor(key)

    def supervisor(self, key: Key) -> Supervisor:
        def start(generation: Generation, rank: int) -> Trainer:
            assert key not in self.trainers or self.trainers[key].code is not None, "two trainers on one host"
            assert generation.members[rank] == self.supervisors[key].token
            self.trainers[key] = Trainer(generation)
            return self.trainers[key]

        place: Place = self.place  # type: ignore[assignment]  # what supervisors use of one
        return Supervisor(place, key, f"host-{key[0]}:1", self.limits, start, LIMIT_S, PATIENCE_S, self.now)

    def lose(self, key: Key) -> None:
        """A host is gone, without a word."""
        self.supervisors.pop(key, None)
        self.trainers.pop(key, None)

    def pass_time(self, seconds: float = TICK_S) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.now += TICK_S
            self.train()
            for key, supervisor in list(self.supervisors.items()):
                code = supervisor.step(self.now)
                if code is not None:
                    self.exits[key] = code
                    assert key not in self.trainers or self.trainers[key].code is not None, "a trainer without anybody"
                    self.lose(key)

    def train(self) -> None:
        running = [(key, trainer) for key, trainer in self.trainers.items() if trainer.code is None]
        for number in {trainer.generation.number for _, trainer in running}:
            of = {key: trainer for key, trainer in running if trainer.generation.number == number}
            generation = next(iter(of.values())).generation
            if len(of) < len(generation.members):  # they wait for one that is not there
                continue
            self.sizes.append(len(generation.slices))
            if any(trainer.is_stopping for trainer in of.values()):
                codes = ExitCode.PREEMPTED_SAVED
            elif self.done >= self.steps:
                codes = ExitCode.OK
            else:
                self.done += 1
                continue
            for trainer in of.values():
                trainer.code = int(codes)

    def generation(self) -> Generation:
        return Generation.model_validate_json(self.place.files[GENERATION])

    def fail(self, key: Key, code: int) -> None:
        """A trainer ends with a code; its peers notice soon, as gloo's do."""
        generation = self.trainers[key].generation.number
        for other, trainer in self.trainers.items():
            if trainer.generation.number == generation and trainer.code is None:
                trainer.code = code if other == key else 1


def limits(slices: int = 3, minimum: int = 1, per_slice: int = 1, **changes: object) -> Limits:
    usable = tuple(range(1, slices + 1))
    made = {"slices": slices, "minimum": minimum, "usable": usable, "per_slice": per_slice, "max_restarts": 3}
    return Limits("uid", **(made | changes))  # type: ignore[arg-type]


def test_all_slices_start_together_and_end_with_the_run() -> None:
    world = World(limits(per_slice=2), steps=50)
    world.pass_time(120)
    assert set(world.sizes) == {3}
    assert world.exits == dict.fromkeys([(s, p) for s in range(3) for p in range(2)], 0)
    assert world.generation().restarts == {}


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_the_others_go_on_without_a_lost_slice_and_it_joins_when_it_is_back(lost: int) -> None:
    world = World(limits(per_slice=2))
    world.pass_time(60)
    world.lose((lost, 1))
    world.pass_time(60)
    assert world.generation().slices == [s for s in range(3) if s != lost]
    assert (lost, 0) in world.supervisors, "the other hosts of that slice wait"
    world.come(lost)
    world.pass_time(PATIENCE_S / 2)
    assert len(world.generation().slices) == 2, "a slice that comes and goes would stop the run each time"
    world.pass_time(PATIENCE_S)
    assert world.generation().slices == [0, 1, 2]
    assert world.generation().restarts == {"HostError": 1, "Resized": 1}
    world.pass_time(400)
    assert set(world.exits.values()) == {0}


def test_a_trainer_that_fails_is_restarted_in_place_and_charged() -> None:
    world = World(limits(max_restarts=2))
    for restarts in (1, 2):
        world.pass_time(40)
        world.fail((1, 0), int(ExitCode.HANG))
        world.pass_time(20)
        assert world.generation().slices == [0, 1, 2]
        assert world.generation().restarts == {"Hang": restarts}
    world.fail((2, 0), int(ExitCode.HANG))
    world.pass_time(30)
    assert set(world.exits.values()) == {int(ExitCode.HANG)}
    assert "slice 2, process 0" in world.generation().message


def test_an_error_that_would_repeat_ends_all() -> None:
    world = World(limits())
    world.pass_time(40)
    world.fail((1, 0), int(ExitCode.DATA_ERROR))
    world.pass_time(30)
    assert world.exits == {(s, 0): int(ExitCode.DATA_ERROR) for s in range(3)}


def test_a_trainer_that_ended_because_a_host_is_gone_is_not_charged() -> None:
    world = World(limits(max_restarts=0))
    world.pass_time(40)
    world.fail((0, 0), 134)
    world.lose((0, 0))
    world.pass_time(60)
    assert world.generation().slices == [1, 2]
    assert world.generation().restarts == {"HostError": 1}


def test_a_pod_that_is_asked_to_stop_saves_for_all() -> None:
    world = World(limits())
    world.pass_time(40)
    world.supervisors[0, 0].leave()
    world.pass_time(20)
    assert world.exits == {(0, 0): int(ExitCode.PREEMPTED_SAVED)}
    assert world.generation().slices == [1, 2]
    assert world.generation().restarts == {"Preempted": 1}


def test_with_too_few_slices_the_run_waits() -> None:
    world = World(limits(minimum=2))
    world.pass_time(40)
    world.lose((0, 0))
    world.lose((2, 0))
    world.pass_time(60)
    assert world.generation().slices == []
    assert all(trainer.code is not None for trainer in world.trainers.values())
    done = world.done
    world.pass_time(300)
    assert world.done == done
    world.come(2)
    world.pass_time(30)
    assert world.generation().slices == [1, 2]


def test_only_numbers_of_slices_that_divide_the_batch_train() -> None:
    world = World(limits(slices=4, usable=(1, 2, 4)))
    world.pass_time(40)
    world.lose((0, 0))
    world.pass_time(60)
    assert world.generation().slices == [1, 2]


def test_at_first_it_waits_for_all_slices_but_not_for_ever() -> None:
    world = World(limits())
    world.lose((2, 0))
    world.pass_time(PATIENCE_S - 10)
    assert world.sizes == []
    world.pass_time(30)
    assert world.generation().slices == [0, 1]


def test_pods_that_are_all_new_do_not_count_those_before_them() -> None:
    world = World(limits())
    world.pass_time(60)
    for slice_index in range(3):
        world.lose((slice_index, 0))
    world.pass_time(10)
    for slice_index in range(3):
        world.come(slice_index)
        world.pass_time(7)
    world.pass_time(100)
    assert world.generation().slices == [0, 1, 2]
    assert set(world.sizes) == {3}


def test_an_outage_of_storage_stops_no_trainer() -> None:
    world = World(limits())
    world.pass_time(40)
    world.place.broken, done = True, world.done
    world.pass_time(100)
    world.place.broken = False
    world.pass_time(20)
    assert world.done >= done + 120
    assert world.generation().number == 1


@pytest.mark.parametrize("seed", range(20))
def test_every_history_of_losses_ends_with_the_run_done(seed: int) -> None:
    draw = random.Random(seed)
    world = World(limits(draw.randint(2, 4), 1, draw.randint(1, 2), max_restarts=1000), steps=300)
    keys = list(world.supervisors)
    for _ in range(draw.randint(1, 12)):
        world.pass_time(draw.choice([1, 3, 10, 40, 100]))
        key = draw.choice(keys)
        match draw.randint(0, 4):
            case 0 | 1:
                world.lose(key)
            case 2 if key in world.supervisors:
                world.supervisors[key].leave()
            case 3 if key in world.trainers:
                world.fail(key, draw.choice([1, 72, -9]))
            case _:
                world.come(draw.randrange(world.limits.slices))
        if 0 in world.exits.values():
            break
    for _ in range(40):
        if 0 in world.exits.values():
            break
        for slice_index in range(world.limits.slices):
            world.come(slice_index)
        world.pass_time(50)
    world.pass_time(100)
    assert world.done == 300
    assert world.generation().verdict == 0
    assert not world.supervisors
    assert all(trainer.code is not None for trainer in world.trainers.values())


def test_a_new_supervisor_in_the_place_of_a_member_is_a_loss() -> None:
    now = Generation(number=3, job_uid="uid", slices=[0, 1], members=["a", "b"], started=True)
    reports = {(0, 0): Report(Member(token="a", generation=3)), (1, 0): Report(Member(token="c"))}
    then = decide(now, reports, limits(2), Timing())
    assert (then.number, then.members, then.started) == (4, ["a", "c"], False)


BASE = {
    "MEGASCALE_NUM_SLICES": "3",
    "MEGASCALE_SLICE_ID": "2",
    "MEGASCALE_COORDINATOR_ADDRESS": "host-0",
    "JAX_COORDINATOR_ADDRESS": "host-0:1",
    "JAX_NUM_PROCESSES": "6",
    "HOME": "/tmp",
}


def test_a_trainer_gets_its_place_among_the_slices_that_are_there() -> None:
    generation = Generation(number=2, slices=[1, 2], members=list("abcd"), coordinator="host-1:1")
    made = trainer_process.environment(generation, 3, 2, BASE)
    wanted = {"JAX_COORDINATOR_ADDRESS": "host-1:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
    slices = {"NUM_SLICES": "2", "SLICE_ID": "1", "COORDINATOR_ADDRESS": "host-1"}
    assert {name: made[name] for name in wanted} == wanted
    assert {name: made[f"MEGASCALE_{name}"] for name in slices} == slices
    assert made["HOME"] == "/tmp"


def test_the_only_process_left_joins_nobody() -> None:
    made = trainer_process.environment(Generation(number=2, slices=[2], members=["a"]), 0, 2, BASE)
    assert [name for name in made if name.startswith(("JAX_", "MEGASCALE_"))] == []


def test_the_termination_message_of_an_earlier_generation_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_text('{"exitCode": 72, "message": "hang: for an hour"}')
    monkeypatch.setenv("POSTTRAIN_TERMINATION_LOG", str(log))
    assert trainer_process.message() == "hang: for an hour"
    trainer_process.clear_message()
    assert trainer_process.message() == ""
