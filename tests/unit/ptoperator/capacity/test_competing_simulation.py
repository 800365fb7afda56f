"""Random lives of several jobs that want the same chips: one reservation, of known or of unknown size; one set of nodes
that are there; spot pools of one shape, kept for the next job or not. Some have a higher priority.

On top of what `test_capacity_simulation` does to the operator. At no time do those whose turn has come need more than
the reservation has, where its size is known; where it is not, one asks at a time; of nodes that are there, one job more
than they take may ask. No pool has pods of two jobs. When the faults stop, all of them come to their end.

`SIMULATIONS=10000 python -m pytest -q tests/unit/ptoperator/capacity/test_competing_simulation.py` runs ten thousand
histories.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.builders.operator.world import NAMESPACE, job_manifest
from tests.unit.ptoperator.capacity.test_capacity_simulation import CloudLife, pools_of
from tests.unit.ptoperator.controller.test_simulation import Faults, live_all

from ptkube.resources import JOBSETS, NODES, POSTTRAINJOBS, PRIORITY_CLASSES, Manifest
from ptoperator.capacity.cloud import Reservation
from ptoperator.capacity.gke.client import Gke
from ptoperator.capacity.waiting_line.fair_order import Claim, claim_of
from ptoperator.job import JobObject, read_job
from ptoperator.kube import labels
from ptoperator.observe.cache import JobCache

HISTORIES = int(os.environ.get("SIMULATIONS", "48"))
BATCHES = 4
NAMES = ("one", "two", "three", "four")
HOSTS = 6
"""Of the reservation: three slices."""
THERE = 6
"""Nodes that are there: three slices."""
ENDS = ("Succeeded", "Failed", "Suspended")
KINDS = ("reservation", "existing", "spot", "mixed")


@dataclass
class CompetingLife(CloudLife):
    """Up to four jobs. kind: what they want."""

    is_known: bool = field(init=False)
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kind = KINDS[self.seed // 4 % len(KINDS)]
        self._add_nodes()
        self.faults = Faults(self.world.api, self.rng)
        self.operator.client = self.faults
        high = {"metadata": {"name": "high", "namespace": NAMESPACE, "uid": "high"}, "value": 100}
        self.world.api.put(PRIORITY_CLASSES, high)

    def _add_nodes(self) -> None:
        """v6e-8, two of them a slice."""
        marks = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "2x4"}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        for index in range(THERE):
            meta = {"name": f"n{index}", "namespace": "", "uid": f"n{index}"}
            pool = {"cloud.google.com/gke-nodepool": f"there-{index // 2}"}
            self.world.api.put(NODES, {"metadata": {**meta, "labels": {**marks, **pool}}, "status": ready})

    def _moves(self) -> list[tuple[Callable[[], None], int]]:
        return [*super()._moves(), (self._forget, 4)]

    def _forget(self) -> None:
        """What was heard is lost, and not yet listed again."""
        self.operator.cache = JobCache()

    def _new_gke(self) -> Gke:
        self.is_known = self.seed % 3 != 0
        return Gke(self.settings, self.client, self._seconds, self._reservation)

    def _reservation(self, name: str, zone: str) -> Reservation | None:
        """As the Compute API tells it."""
        if not self.is_known:
            return None
        return Reservation(name, zone, HOSTS, sum(pool.nodes for pool in self.model.pools.values()))

    def _create(self) -> None:
        for name in NAMES[: self.rng.randint(2, 4)]:
            if self.world.api.find(POSTTRAINJOBS, name) is None:
                self._create_one(name)

    def _create_one(self, name: str) -> None:
        capacity = self._capacity()
        spec = self._spec(capacity)
        if self.rng.random() < 0.2:
            spec["priorityClassName"] = "high"
        if self.rng.random() < 0.3:
            capacity[0]["waitSeconds"] = 600
        self.world.api.create(POSTTRAINJOBS, job_manifest(name, **spec))

    def _spec(self, capacity: list[Manifest]) -> Manifest:
        return {
            "runPolicy": {"maxRestarts": self.rng.choice((0, 3)), "suspend": self.rng.random() < 0.1},
            "accelerator": {"type": "v6e-8", "slices": self.rng.choice((1, 1, 2, 3))},
            "capacity": capacity,
            "preflight": "Skip",
            "training": {"steps": 10, "batchSize": 48},
        }

    def _capacity(self) -> list[Manifest]:
        reservation: Manifest = {"type": "reservation", "reservation": "r1", "zones": ["us-east5-a"]}
        existing: Manifest = {"type": "existing"}
        spot: Manifest = {"type": "spot", "zones": ["us-east5-a"]}
        every = {"reservation": [reservation], "existing": [existing], "spot": [spot]}
        return every.get(self.kind) or self.rng.sample([reservation, existing, spot], self.rng.randint(1, 3))

    def _fits(self, pod: Manifest) -> bool:
        """Nodes that are there have one pod each."""
        if pod["spec"].get("nodeName") or pod["spec"].get("affinity"):
            return super()._fits(pod)
        return len(self._on_nodes_that_are_there()) < THERE

    def _on_nodes_that_are_there(self) -> list[Manifest]:
        scheduled = [pod for pod in self.world.unfinished if pod["spec"].get("nodeName")]
        return [pod for pod in scheduled if not pod["spec"].get("affinity")]

    def _any(self) -> str | None:
        jobs = [job["metadata"]["name"] for job in self.world.api.kinds("PostTrainJob")]
        return self.rng.choice(jobs) if jobs else None

    def _keys(self) -> list[tuple[str, str]]:
        due = self.operator.due()
        name = self._any()
        return [self.rng.choice(due)] if due else [(NAMESPACE, name)] if name and self.rng.random() < 0.1 else []

    def _progress(self) -> None:
        """Nothing is heard of steps."""

    def _suspend(self) -> None:
        name = self._any()
        if name:
            job = self.world.api.find(POSTTRAINJOBS, name)
            suspend = not job["spec"]["runPolicy"]["suspend"]
            self.world.api.patch(POSTTRAINJOBS, name, NAMESPACE, {"spec": {"runPolicy": {"suspend": suspend}}})

    def _edit(self) -> None:
        """Left to the lives of one job."""

    def _delete_jobset(self) -> None:
        for item in self.world.api.kinds("JobSet")[:1]:
            self.world.api.delete(JOBSETS, item["metadata"]["name"], NAMESPACE)

    def _delete_job(self) -> None:
        name = self._any()
        if name and self.rng.random() < 0.4:
            self.world.api.delete(POSTTRAINJOBS, name, NAMESPACE)

    def _check_always(self) -> None:
        assert self.world.overlaps == [], "two attempts at once"
        assert self.model.doubled == [], "two pools for one slice"
        granted = [claim for job in self._jobs() if (claim := claim_of(job)) and claim.granted]
        reserved = [claim for claim in granted if claim.queue.startswith("reservation ")]
        if self.is_known:
            assert sum(each.hosts for each in reserved) <= HOSTS, "more turns than the reservation has VMs"
        else:
            assert sum(each.is_provisioning for each in reserved) <= 1, "two jobs ask at once"
        self._check_nodes([claim for claim in granted if claim.queue.startswith("existing ")])
        self._check_pools()

    def _check_nodes(self, there: list[Claim]) -> None:
        """Of nodes that are there; those whose pods have ended need none, although nobody has heard of it yet."""
        live = {pod["metadata"]["labels"][labels.JOB_UID] for pod in self.world.unfinished}
        needed = sum(each.hosts for each in there if each.is_provisioning or each.uid in live)
        one_too_many = max((each.hosts for each in there if each.is_provisioning), default=0)
        assert needed - one_too_many <= THERE, "more than one job too many asks for nodes"

    def _check_pools(self) -> None:
        """A pool has pods of one job."""
        jobs: dict[str, set[str]] = {}
        for pod in self.world.unfinished:
            if pod["spec"].get("nodeName") and pod["spec"].get("affinity"):
                for pool in pools_of(pod):
                    jobs.setdefault(pool, set()).add(pod["metadata"]["labels"][labels.JOB_UID])
        shared = {pool: uids for pool, uids in jobs.items() if len(uids) > 1}
        assert shared == {}, "a pool has pods of two jobs"

    def _is_over(self) -> bool:
        return all(job.status.phase in ENDS and claim_of(job) is None for job in self._jobs())

    def _jobs(self) -> list[JobObject]:
        return [read_job(manifest) for manifest in self.world.api.kinds("PostTrainJob")]

    def _check_end(self) -> None:
        assert self.model.pools == {}, "a pool is left"
        for job in self._jobs():
            assert job.status.phase in ENDS, job.status
            assert claim_of(job) is None, "a job that is over stands in line"
        assert self.world.unfinished == [], "pods run on"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_jobs_that_compete_for_one_reservation_never_get_more_than_it_has_and_all_end(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_all(CompetingLife, range(batch, HISTORIES, BATCHES), monkeypatch)
