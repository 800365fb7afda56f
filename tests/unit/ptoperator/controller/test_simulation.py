"""Thousands of random lives of a job: whatever happens, in whatever order, it ends right and nothing is doubled.

A life mixes what users, nodes, trainers and controllers do with what goes wrong for the operator: it crashes before
or after any single write, answers get lost, conflicts, old reads, news that arrives late or not at all. Then the
faults stop, the world runs on, and the end is checked against what happened.
"""

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.builders.operator.world import NAMESPACE, Api, Operator, World, job_manifest

from ptapi.failures import EXIT_CLASSES, FATAL_EXIT_CODES, REACTIONS
from ptapi.status import PostTrainJobStatus
from ptkube.client import ListResult
from ptkube.errors import ApiError, Conflict, Unreachable
from ptkube.resources import EVENTS, JOBSETS, PODS, POSTTRAINJOBS, Manifest, Resource
from ptoperator.kube import labels
from ptoperator.observe import run_directory
from ptoperator.observe.watch_caches import WATCHED

NAME = "llama"
KEY = (NAMESPACE, NAME)
HISTORIES = int(os.environ.get("SIMULATIONS", "1200"))
BATCHES = 8
STEPS = 60


class Crash(Exception):
    """The operator's process is gone."""


@dataclass
class Faults:
    """The operator's client, through a bad network, in a process that may be killed at any write."""

    api: Api
    rng: random.Random
    rate: float = 0.0

    def get(self, r: Resource, name: str, namespace: str | None = None) -> Manifest:
        return self.api.get(r, name, namespace)

    def list(
        self, r: Resource, namespace: str | None = None, *, labels: str | None = None, fields: str | None = None
    ) -> ListResult:
        return self.api.list(r, namespace, labels=labels, fields=fields)

    def get_subresource(self, r: Resource, name: str, subresource: str, namespace: str | None = None) -> Manifest:
        return self.api.get_subresource(r, name, subresource, namespace)

    def pod_logs(self, name: str, namespace: str, **options: Any) -> Iterator[str]:
        return self.api.pod_logs(name, namespace, **options)

    def create(self, r: Resource, body: Manifest) -> Manifest:
        return self._write(lambda: self.api.create(r, body))

    def apply(self, r: Resource, body: Manifest, *, field_manager: str) -> Manifest:
        return self._write(lambda: self.api.apply(r, body, field_manager=field_manager))

    def patch(self, r: Resource, name: str, namespace: str | None, body: Manifest) -> Manifest:
        return self._write(lambda: self.api.patch(r, name, namespace, body))

    def delete(self, r: Resource, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        self._write(lambda: self.api.delete(r, name, namespace, uid=uid))

    def replace_status(self, r: Resource, body: Manifest) -> Manifest:
        return self._write(lambda: self.api.replace_status(r, body))

    def _write(self, call: Callable[[], Any]) -> Any:
        if not self._strikes():
            return call()
        fault = self.rng.choice(("crash", "crash after", "lost", "lost after", "conflict"))
        if fault == "conflict":
            raise Conflict(409, "Conflict", "somebody was faster")
        if fault.endswith("after"):
            try:
                call()
            except ApiError:
                pass  # whatever it was, nobody hears of it
        if fault.startswith("crash"):
            raise Crash
        raise Unreachable(0, "Unreachable", "connection lost")

    def _strikes(self) -> bool:
        return self.rng.random() < self.rate


@dataclass
class Life:
    """One random history, and what it must lead to."""

    seed: int
    world: World
    operator: Operator = field(init=False)
    rng: random.Random = field(init=False)
    faults: Faults = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.faults = Faults(self.world.api, self.rng)
        self.operator = Operator(self.world, client=self.faults)

    def last_words(self) -> list[str]:
        """What helps to see why it went wrong."""
        return self.world.api.log[-40:]

    def live(self) -> None:
        self._create()
        self.faults.rate = self.rng.choice((0.0, 0.05, 0.2))
        moves = self._moves()
        for _ in range(STEPS):
            self.rng.choices([move for move, _ in moves], [weight for _, weight in moves])[0]()
            self.world.tick(self.rng.choice((0, 0, 1, 5, 30)))
            self._check_always()
        self.faults.rate = 0.0
        self._finish()

    def _moves(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self._look, 30),
            (self._hear, 20),
            (self.operator.hear, 4),
            (self._list_anew, 1),
            (self.operator.restart, 1),
            (self.world.run_jobsets, 15),
            (self.world.run_jobs, 6),
            (self.world.collect, 5),
            (self.world.reap, 5),
            (self.world.admit, 3),
            (self._start, 12),
            (self._progress, 6),
            (self._exit, 3),
            (self._disrupt, 2),
            (self._cannot_pull, 1),
            (self._suspend, 2),
            (self._edit, 1),
            (self._delete_jobset, 1),
            (self._delete_config_map, 1),
            (self._delete_job, 1),
        ]

    def _create(self) -> None:
        policy: Manifest = {"maxRestarts": self.rng.choice((0, 1, 3)), "suspend": self.rng.random() < 0.1}
        if self.rng.random() < 0.2:
            policy["activeDeadlineSeconds"] = self.rng.choice((60, 600))
        spec: Manifest = {"runPolicy": policy, "accelerator": {"type": "cpu-1", "slices": self.rng.choice((1, 2))}}
        if self.rng.random() < 0.2:
            spec["queue"] = "team"
        if self.rng.random() < 0.3:
            spec["preflight"] = self.rng.choice(("Enforce", "Enforce", "Warn", "Skip"))
        if self.rng.random() < 0.05:
            spec["accelerator"] = {"type": "v5p-9"}
        self.world.api.create(POSTTRAINJOBS, job_manifest(NAME, **spec))

    def _look(self) -> None:
        for key in self._keys():
            try:
                self.operator.look(key)
            except Crash:
                self._restart()

    def _keys(self) -> list[tuple[str, str]]:
        return (self.operator.due() or ([KEY] if self.rng.random() < 0.1 else []))[:1]

    def _restart(self) -> None:
        self.operator.restart()

    def _hear(self) -> None:
        """One watch is told more; the others may lag behind it by any number of changes."""
        self.operator.hear(self.rng.randint(0, 6), [self.rng.choice(WATCHED)])

    def _list_anew(self) -> None:
        """A watch was too late to go on (410 Gone), and is told of no deletion."""
        self.operator.list_anew(self.rng.choice(WATCHED))

    def _pod(self) -> Manifest | None:
        live = [pod for pod in self.world.unfinished if "deletionTimestamp" not in pod["metadata"] and self._fits(pod)]
        return self.rng.choice(live) if live else None

    def _fits(self, pod: Manifest) -> bool:
        """Whether there are nodes that the pod may run on."""
        return True

    def _start(self) -> None:
        pod = self._pod()
        if pod:
            self.world.start(pod)

    def _progress(self) -> None:
        if any(pod["status"]["phase"] == "Running" for pod in self.world.pods):
            self.world.progress(self.rng.randint(0, 9))

    def _exit(self) -> None:
        pod = self._pod()
        if pod and labels.is_of_preflight(pod):
            self._end_preflight(pod)
        elif pod:
            self.world.exit(pod, self.rng.choice((0, 0, 1, 75, 75, 137, 65, 70, self.rng.randint(1, 255))))

    def _end_preflight(self, pod: Manifest) -> None:
        """A verdict, a job that is wrong in itself, or no word but the formula's, or none at all."""
        outcome = self.rng.choice(("Fits", "Fits", "DoesNotFit", "Undecided"))
        code = self.rng.choice((None, None, None, 1, 137))
        if self.rng.random() < 0.2:
            self.world.exit(pod, self.rng.choice((0, 1, 2, 64, 137)), "no JSON")
        else:
            self.world.answer(pod, outcome, code)

    def _disrupt(self) -> None:
        pod = self._pod()
        if pod:
            self.world.disrupt(pod, self.rng.choice((137, 1, 75, 143)))

    def _cannot_pull(self) -> None:
        pod = self._pod()
        if pod and pod["status"]["phase"] == "Pending":
            self.world.cannot_pull(pod)

    def _suspend(self) -> None:
        job = self.world.api.find(POSTTRAINJOBS, NAME)
        if job:
            suspend = not job["spec"]["runPolicy"]["suspend"]
            self.world.api.patch(POSTTRAINJOBS, NAME, NAMESPACE, {"spec": {"runPolicy": {"suspend": suspend}}})

    def _edit(self) -> None:
        if self.world.api.find(POSTTRAINJOBS, NAME):
            policy = self.rng.choice(({"ttlSecondsAfterFinished": 60}, {"activeDeadlineSeconds": 900}))
            self.world.api.patch(POSTTRAINJOBS, NAME, NAMESPACE, {"spec": {"runPolicy": policy}})

    def _delete_jobset(self) -> None:
        if self.world.api.find(JOBSETS, NAME):
            self.world.api.delete(JOBSETS, NAME, NAMESPACE)

    def _delete_config_map(self) -> None:
        for item in self.world.api.kinds("ConfigMap")[:1]:
            self.world.api.remove(("ConfigMap", NAMESPACE, item["metadata"]["name"]))

    def _delete_job(self) -> None:
        if self.world.api.find(POSTTRAINJOBS, NAME) and self.rng.random() < 0.4:
            self.world.api.delete(POSTTRAINJOBS, NAME, NAMESPACE)
            if self.rng.random() < 0.5:
                self._create()

    def _check_always(self) -> None:
        assert self.world.overlaps == [], "two attempts at once"
        assert len(self.world.api.kinds("JobSet")) <= 1
        self._check_preflight()

    def _check_preflight(self) -> None:
        """No JobSet, and no chips, before the verdict is written; none at all against it."""
        job, jobset = self.world.api.find(POSTTRAINJOBS, NAME), self.world.api.find(JOBSETS, NAME)
        if job is None or jobset is None or jobset["metadata"]["ownerReferences"][0]["uid"] != job["metadata"]["uid"]:
            return
        mode, status = job["spec"].get("preflight", "Skip"), PostTrainJobStatus.model_validate(job.get("status") or {})
        reason = {each.type: each.reason for each in status.conditions}.get("Preflighted")
        assert mode == "Skip" or reason not in (None, "PreflightRunning"), "chips before the verdict"
        refused = status.preflight is not None and status.preflight.outcome == "DoesNotFit"
        assert not (mode == "Enforce" and refused), "chips against the verdict"

    def _finish(self) -> None:
        """No more faults; the network heals, the trainer ends well, time passes."""
        for _ in range(60):
            self.operator.work()
            self.world.admit()
            self.world.run_jobsets()
            self.world.run_jobs()
            self.world.collect()
            for pod in self.world.unfinished:
                if "deletionTimestamp" not in pod["metadata"] and not _is_stuck(pod):
                    self.world.exit(pod, 0)
            self.world.reap()
            self.world.tick(15)
            self._check_always()
        self.operator.work()
        self._check_end()

    def _check_end(self) -> None:
        api = self.world.api
        job = api.find(POSTTRAINJOBS, NAME)
        if job is None:
            assert {ref[0] for ref in api.objects} <= {"Event"}, "something is left"
            return
        status = PostTrainJobStatus.model_validate(job["status"])
        phase = str(status.phase)
        jobset = api.find(JOBSETS, NAME)
        if phase not in ("Succeeded", "Failed"):
            assert phase == "Suspended"
            assert job["spec"]["runPolicy"]["suspend"] is True
        assert self.world.unfinished == [], "pods run on"
        if job["spec"].get("preflight") == "Enforce" and status.preflight and status.preflight.outcome == "DoesNotFit":
            assert (phase, jobset) == ("Failed", None)
            assert status.failure.failure_class == "OutOfMemoryHBM"
        held = {condition.type: condition for condition in status.conditions if condition.status == "True"}
        assert ("Complete" in held) == (phase == "Succeeded")
        assert ("Failed" in held) == (phase == "Failed")
        assert "Running" not in held
        assert len(api.kinds("ConfigMap")) <= 1
        if jobset is not None:
            self._check_against(jobset, status, job)
        before = api.writes
        for _ in range(3):
            self.operator.news.add(KEY)
            self.operator.work()
        assert api.writes == before, f"still writes: {api.log[before:]}"
        assert _shown(api) == len(set(_shown_names(api)))

    def _check_against(self, jobset: Manifest, status: PostTrainJobStatus, job: Manifest) -> None:
        """The JobSet is the witness of what happened."""
        observed = jobset.get("status") or {"conditions": [], "restarts": 0, "restartsCountTowardsMax": 0}
        ends = {each["type"]: each for each in observed["conditions"]}
        if "Completed" in ends and status.phase == "Failed":
            late = next(each.reason for each in status.conditions if each.type == "Failed")
            assert late == "DeadlineExceeded"  # decided before it was heard that the trainer had just finished
        else:
            assert ("Completed" in ends) == (status.phase == "Succeeded")
        before = int(jobset["metadata"]["annotations"]["posttrain.dev/restarts-before"])
        if not job["spec"].get("suspend"):
            assert sum(status.restarts.values()) <= observed["restarts"] + before
        assert observed["restartsCountTowardsMax"] <= job["spec"]["runPolicy"]["maxRestarts"]
        if "Failed" in ends and status.failure:
            fatal = ends["Failed"]["reason"] == "FailJobSetFailurePolicyAction"
            if fatal and status.failure.exit_code is not None and status.failure.exit_code in FATAL_EXIT_CODES:
                kind = EXIT_CLASSES[status.failure.exit_code]
                assert status.failure.failure_class == kind
                assert not REACTIONS[kind].retried


def _is_stuck(pod: Manifest) -> bool:
    states = pod["status"].get("containerStatuses") or []
    return any("waiting" in each["state"] for each in states)


def _shown(api: Api) -> int:
    return len(api.kinds(EVENTS.kind))


def _shown_names(api: Api) -> list[str]:
    return [event["metadata"]["name"] for event in api.kinds(EVENTS.kind)]


def live_all(kind: type[Life], seeds: Iterable[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives of these seeds, each in a world of its own; the first that goes wrong says what it did last."""
    for seed in seeds:
        world = World(Api())
        monkeypatch.setattr(run_directory, "_read_bytes", world.files.get)
        life = kind(seed, world)
        try:
            life.live()
        except AssertionError as error:
            raise AssertionError("\n".join((f"seed {seed}: {error}", *life.last_words()))) from error


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_lives_end_right(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    live_all(Life, range(batch, HISTORIES, BATCHES), monkeypatch)


_BEFORE: dict[str, Manifest] = {
    "Skip": {"preflight": "Skip"},
    "Enforce": {"preflight": "Enforce"},
    "Stage": {"model": {"uri": "hf://o/m", "stage": True}, "output": {"uri": "gs://lab/runs"}},
}
"""What a job has before its JobSet."""


@pytest.mark.parametrize("before", ["Skip", "Enforce", "Stage"])
def test_every_single_write_may_be_the_last_of_an_operator(monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """A whole life, with a restart, once per write: killed before it, and once more after it."""
    total = _life_with_crash(monkeypatch, None, before, after=False)
    assert total > 10
    for number in range(total):
        for after in (False, True):
            _life_with_crash(monkeypatch, number, before, after=after)


def _life_with_crash(monkeypatch: pytest.MonkeyPatch, number: int | None, before: str, *, after: bool) -> int:
    world = World(Api())
    monkeypatch.setattr(run_directory, "_read_bytes", lambda uri: world.files.get(uri.replace("gs://lab/", "file:///")))
    client = _CrashAt(world.api, random.Random(0), number=number, after=after)
    operator = Operator(world, client=client)
    world.api.create(POSTTRAINJOBS, job_manifest(NAME, **_BEFORE[before]))

    def work() -> None:
        while True:
            try:
                operator.work()
                return
            except Crash:
                operator.restart()

    for _ in range(4):
        work()
        world.run_jobs()
        for pod in world.preflights:
            if pod["status"]["phase"] == "Pending":
                world.answer(pod, "Fits")
        for pod in filter(labels.is_of_stage, world.unfinished):
            world.exit(pod, 0, json.dumps({"exitCode": 0, "staged": "gs://lab/runs/.models/m"}))
    assert len(world.preflights) == (before == "Enforce"), "compiled twice"
    assert len([pod for pod in world.pods if labels.is_of_stage(pod)]) == (before == "Stage"), "staged twice"
    for exit_code in (75, 0):
        for _ in range(4):
            work()
            world.run_jobsets()
        world.tick(5)
        for pod in world.unfinished:
            world.start(pod)
        work()
        world.tick(11)
        world.progress(10 if exit_code == 0 else 4)
        work()
        for pod in world.unfinished:
            world.exit(pod, exit_code)
        for _ in range(4):
            work()
            world.run_jobsets()
            world.collect()
            world.reap()
    work()
    job = world.api.find(POSTTRAINJOBS, NAME)
    assert job is not None
    where = f"crash {'after' if after else 'before'} write {number}"
    assert job["status"]["phase"] == "Succeeded", where
    assert job["status"]["restarts"] == {"Preempted": 1}, where
    assert world.overlaps == [], where
    assert len(world.api.kinds("JobSet")) == len(world.api.kinds("ConfigMap")) == 1, where
    reasons = [event["reason"] for event in world.api.kinds("Event")]
    assert reasons.count("Restarting") == 1, where
    assert reasons.count("Created") == reasons.count("Accepted") == reasons.count("Succeeded") == 1, where
    (pod,) = (pod for pod in world.api.kinds(PODS.kind) if not labels.is_before_chips(pod))
    number_of_jobset = {"Skip": 3, "Enforce": 7, "Stage": 8}[before]  # of the objects before it
    assert pod["metadata"]["name"] == f"llama-slice-0-0-1-{number_of_jobset}" or number is not None
    return client.count


@dataclass
class _CrashAt(Faults):
    """Crashes at one write of the operator's, by its number."""

    number: int | None = None
    after: bool = False
    count: int = 0

    def _write(self, call: Callable[[], Any]) -> Any:
        is_last = self.count == self.number
        self.count += 1
        if is_last and not self.after:
            raise Crash
        answer = call()
        if is_last:
            raise Crash
        return answer
