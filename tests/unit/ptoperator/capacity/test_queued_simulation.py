"""Random lives of jobs in a Kueue queue whose node pools the operator makes.

On top of what `test_capacity_simulation` does to the operator: Kueue reserves quota late, takes it back at any moment,
and has other admission checks. At no time is a pool asked for without quota, or made twice for a slice, and no pod may
run on another job's pool. When the faults stop all jobs end right, and no pool and no quota is left.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.builders.gke.model import Fault, PoolRecord
from tests.builders.kueue.model import CHECK, QUEUE, KueueModel
from tests.builders.operator.world import NAMESPACE, job_manifest
from tests.unit.ptoperator.capacity.test_competing_simulation import NAMES, CompetingLife
from tests.unit.ptoperator.controller.test_simulation import Crash, live_all

from ptapi.status import PostTrainJobStatus
from ptkube.resources import JOBSETS, POSTTRAINJOBS, Manifest
from ptoperator.kube import labels

HISTORIES = int(os.environ.get("SIMULATIONS", "16"))
BATCHES = 2
CHIPS = 24
TAINT = "posttrain.dev/node-pool"


@dataclass
class QueuedLife(CompetingLife):
    """Up to four jobs, quota for three hosts."""

    kueue: KueueModel = field(init=False)
    is_late: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kueue = KueueModel(self.world.api, CHIPS, NAMESPACE)
        if self.rng.random() < 0.2:
            self.kueue.checks = (CHECK, "budget")

    def _moves(self) -> list[tuple[Callable[[], None], int]]:
        return [
            *((move, weight) for move, weight in super()._moves() if move != self.world.admit),
            (self.kueue.run, 20),
            (self._everybody, 30),
            (self._evict, 6),
            (self._pass_other_check, 3),
            (self._delete_workload, 1),
        ]

    def _create_one(self, name: str) -> None:
        capacity = [self._option(kind) for kind in self.rng.sample(("existing", "spot", "onDemand", "flexStart"), 2)]
        spec = {**self._spec(capacity), "output": {"uri": f"gs://lab/{name}"}, "queue": QUEUE}
        self.world.api.create(POSTTRAINJOBS, job_manifest(name, **spec))

    def _everybody(self) -> None:
        """A minute in which all do their part: without it few jobs would come so far as to lose something."""
        try:
            self.operator.work()
        except Crash:
            self._restart()
        self.kueue.run()
        self.world.run_jobsets()
        self._start()
        self.world.tick(60)

    def _evict(self) -> None:
        name = self._any()
        if name:
            self.kueue.evict(name, self.rng.choice(("Preempted", "PodsReadyTimeout", "ClusterQueueStopped")))

    def _pass_other_check(self) -> None:
        for workload in self.world.api.kinds("Workload"):
            for check in workload["status"]["admissionChecks"]:
                if check["name"] != CHECK and check["state"] == "Pending":
                    check["state"] = "Ready"
                    self.kueue.change(workload)
                    return

    def _delete_workload(self) -> None:
        items = self.world.api.kinds("Workload")
        if items and self.rng.random() < 0.3:
            self.world.api.remove(("Workload", NAMESPACE, self.rng.choice(items)["metadata"]["name"]))

    def _arrive(self) -> None:
        self.is_late = True
        super()._arrive()
        self.is_late = False

    def _fault(self, pool: PoolRecord) -> Fault | None:
        if not self.is_late:
            assert self.kueue.has_quota(self._job_of(pool)), f"{pool.name} is asked for without quota"
        return super()._fault(pool)

    def _job_of(self, pool: PoolRecord) -> str:
        return pool.labels["posttrain-job"]

    def _fits(self, pod: Manifest) -> bool:
        """By taints and labels of the pools' nodes; nodes that are there have none of ours."""
        if pod["spec"].get("nodeName"):
            return True
        if TAINT not in pod["spec"]["nodeSelector"]:
            return self.seed % 3 == 0
        self.model.advance()
        return any(pool.nodes and _tolerates(pod, pool) for pool in self.model.pools.values())

    def _check_always(self) -> None:
        assert self.world.overlaps == [], "two attempts at once"
        assert self.model.doubled == [], "two pools for one slice"
        assert self.kueue.used() <= CHIPS
        for pod in self.world.unfinished:
            uid = pod["metadata"]["labels"][labels.JOB_UID]
            others = [
                pool for pool in self.model.pools.values() if pool.labels.get("posttrain-job-uid") not in (uid, None)
            ]
            assert not any(_tolerates(pod, pool) for pool in others), "pods may run on another job's pool"

    def _finish(self) -> None:
        """Kueue goes on too, and nobody waits for other checks."""
        self.kueue.checks = (CHECK,)
        for workload in self.world.api.kinds("Workload"):
            checks = workload["status"]["admissionChecks"]
            workload["status"]["admissionChecks"] = [each for each in checks if each["name"] == CHECK]
            self.kueue.change(workload)
        run = self.world.run_jobsets

        def with_kueue() -> None:
            self.kueue.run()
            run()

        self.world.run_jobsets = with_kueue  # type: ignore[method-assign]
        super()._finish()

    def _check_end(self) -> None:
        assert self.model.pools == {}, "a pool is left"
        for job in self.world.api.kinds("PostTrainJob"):
            status = PostTrainJobStatus.model_validate(job["status"])
            assert str(status.phase) in ("Succeeded", "Failed", "Suspended"), status
            assert status.capacity.node_pools == [], "status names pools that are gone"
            if status.failure is not None:
                assert "without asking" not in status.failure.message
        assert self.world.unfinished == [], "pods run on"
        assert self.kueue.used() == 0, "quota is held for nothing"
        for name in NAMES:
            if self.world.api.find(POSTTRAINJOBS, name) is None:
                assert self.world.api.find(JOBSETS, name) is None


def _tolerates(pod: Manifest, pool: PoolRecord) -> bool:
    """Whether the pod may run on the pool's nodes."""
    tolerated = [(each["key"], each.get("value")) for each in pod["spec"].get("tolerations") or []]
    return all(
        (key, value) in tolerated or (key, None) in tolerated for key, value in pool.manifest["config"]["taints"]
    )


@pytest.mark.parametrize("batch", range(BATCHES))
def test_queued_jobs_never_hold_chips_without_quota_and_all_end(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    live_all(QueuedLife, range(batch, HISTORIES, BATCHES), monkeypatch)
