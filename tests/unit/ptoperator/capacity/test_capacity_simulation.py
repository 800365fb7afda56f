"""Random lives of a job whose chips come from a GKE that fails in every way it knows.

On top of what `test_simulation` does to the operator: pools that are refused, run out, break, take for ever or vanish;
calls that fail before or after they were carried out, or arrive late; spot machines that go away; ProvisioningRequests
that are answered well, badly or not. When the faults stop, the job ends right and no pool, request, JobSet or finalizer
is left. At no time has a slice two pools.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from google.api_core import exceptions
from tests.builders.gke.client import GkeClient, Late
from tests.builders.gke.model import QUOTA, RUNNING, ZONE_EXHAUSTED, Fault, GkeModel, PoolRecord
from tests.builders.gke.provisioning import Queue
from tests.builders.operator.world import NAMESPACE, Operator, job_manifest
from tests.unit.ptoperator.controller.test_simulation import NAME, Crash, Life, live_all

from ptapi.status import PostTrainJobStatus
from ptkube.resources import JOBSETS, POSTTRAINJOBS, Manifest
from ptoperator.capacity.gke.client import Gke
from ptoperator.capacity.provisioning_request_state import ProvisioningRequestState
from ptoperator.controller.orphan_collector import OrphanCollector
from ptoperator.settings import Settings

HISTORIES = int(os.environ.get("SIMULATIONS", "400"))
BATCHES = 8
_FAULTS = (
    Fault(outcome=ZONE_EXHAUSTED, condition="GCE_STOCKOUT"),
    Fault(outcome=ZONE_EXHAUSTED, condition="GCE_STOCKOUT", leaves_nothing=True),
    Fault(outcome="Internal error.", state="ERROR"),
    Fault(condition="GCE_QUOTA_EXCEEDED"),
    Fault(refuse=("PERMISSION_DENIED", QUOTA)),
    Fault(refuse=("RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'Write requests'.")),
    Fault(refuse=("INTERNAL", "Internal error.")),
    Fault(state="RUNNING_WITH_ERROR"),
    Fault(seconds=5000.0),
    Fault(leaves_nothing=True),
    Fault(nodes=0),
    Fault(refuse=("PERMISSION_DENIED", 'Required "container.clusters.update" permission(s).')),
)
_ERRORS = (
    exceptions.ServiceUnavailable,
    exceptions.InternalServerError,
    exceptions.ResourceExhausted,
    exceptions.DeadlineExceeded,
)


@dataclass
class CloudLife(Life):
    """One random history on one random GKE."""

    model: GkeModel = field(init=False)
    client: GkeClient = field(init=False)
    settings: Settings = field(init=False)
    queue: Queue = field(init=False)
    fault_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        idle_s = self.rng.choice((0.0, 0.0, 900.0))
        self.settings = Settings(gke_project="p", gke_location="l", gke_cluster="c", pool_idle_seconds=idle_s)
        self.model = GkeModel(self._seconds, is_serial=self.rng.random() < 0.3, fault_for=self._fault)
        self.queue = Queue(self.world.api, self.model)
        self.client = GkeClient(self.model, self._strike)
        self.operator = Operator(self.world, self.settings, client=self.faults, cloud=self._new_gke())
        self.fault_rate = self.rng.choice((0.0, 0.3, 0.7))

    def last_words(self) -> list[str]:
        return [*super().last_words(), *map(str, self.model.pools.values())]

    def _new_gke(self) -> Gke:
        return Gke(self.settings, self.client, self._seconds)

    def _seconds(self) -> float:
        return self.world.api.now.timestamp()

    def _fault(self, pool: PoolRecord) -> Fault | None:
        return self.rng.choice(_FAULTS) if self.rng.random() < self.fault_rate else None

    def _strike(self, call: str, is_after: bool) -> None:
        if self.rng.random() >= self.faults.rate / 2:
            return
        is_write = call.split("_")[0] in ("create", "update", "delete")
        kind = self.rng.choice(("crash", "error", "late") if is_write else ("error",))
        if kind == "crash":
            raise Crash
        if kind == "late" and not is_after:
            raise Late
        raise self.rng.choice(_ERRORS)("out of order")

    def _moves(self) -> list[tuple[Callable[[], None], int]]:
        ours: list[tuple[Callable[[], None], int]] = [
            (self._arrive, 2),
            (self._sweep, 2),
            (self._vanish, 1),
            (self._lose_nodes, 1),
            (self._answer, 3),
            (lambda: self.world.tick(self.rng.choice((60, 300, 1000))), 6),
        ]
        return [*super()._moves(), *ours]

    def _create(self) -> None:
        if self.world.api.find(POSTTRAINJOBS, NAME):
            return  # the one of before is still giving its pools back
        kinds = ("existing", "spot", "onDemand", "flexStart", "queuedProvisioning", "reservation")
        capacity = [self._option(kind) for kind in self.rng.sample(kinds, self.rng.randint(1, 3))]
        if all(option["type"] == "existing" for option in capacity):
            capacity.append({"type": "spot"})
        policy: Manifest = {"maxRestarts": self.rng.choice((0, 1, 3)), "suspend": self.rng.random() < 0.1}
        is_queued = any(option["type"] == "queuedProvisioning" for option in capacity)
        accelerator = {"type": "v6e-8", "slices": 1 if is_queued else self.rng.choice((1, 1, 2))}
        spec: Manifest = {"runPolicy": policy, "accelerator": accelerator, "capacity": capacity}
        spec["preflight"] = "Skip"  # its own lives: test_simulation
        self.world.api.create(POSTTRAINJOBS, job_manifest(NAME, **spec))

    def _option(self, kind: str) -> Manifest:
        option: Manifest = {"type": kind}
        if kind == "reservation":
            option["reservation"] = "r1"
        if kind == "existing" or self.rng.random() < 0.5:
            option["waitSeconds"] = self.rng.choice((120, 600))
        return option

    def _restart(self) -> None:
        self.operator.restart()
        self.operator.cloud = self._new_gke()

    def _sweep(self) -> None:
        assert self.operator.cloud is not None
        sweeper = OrphanCollector(
            self.world.api, self.operator.cloud, self.settings, [NAMESPACE], lambda: self.world.api.now
        )
        try:
            sweeper.collect()
        except Crash:
            self._restart()

    def _arrive(self) -> None:
        """A late create may come beside a pool that was taken over meanwhile; it is found and deleted."""
        known = list(self.model.doubled)
        self.client.arrive()
        self.model.doubled = known

    def _vanish(self) -> None:
        if self.model.pools and self.rng.random() < 0.3:
            self.model.vanish(self.rng.choice(sorted(self.model.pools)))

    def _lose_nodes(self) -> None:
        running = [pool for pool in self.model.pools.values() if pool.state == RUNNING]
        if running and self.rng.random() < 0.5:
            self.model.lose_nodes(self.rng.choice(running).name, self.rng.choice(("ERROR", "RECONCILING")))

    def _answer(self) -> None:
        """GKE and its ProvisioningRequests."""
        queue = self.queue
        for request in queue.requests[:1]:
            answer = self.rng.choice((queue.accept, queue.provision, queue.provision, queue.revoke, self._refuse))
            answer(request)

    def _refuse(self, request: Manifest) -> None:
        self.queue.say(request, self.rng.choice(("Failed", "BookingExpired")), "Told", "for no reason")

    def _fits(self, pod: Manifest) -> bool:
        if pod["spec"].get("nodeName"):
            return True
        if not pod["spec"].get("affinity"):
            return self.seed % 3 == 0  # nodes that are there
        self.model.advance()
        return any(name in self.model.pools and self.model.pools[name].nodes for name in pools_of(pod))

    def _check_always(self) -> None:
        super()._check_always()
        assert self.model.doubled == [], "two pools for one slice"

    def _finish(self) -> None:
        """No more faults; pools come, pods end well, time passes."""
        self.fault_rate = 0.0
        self._arrive()
        self.model.seconds = 10.0  # less than the shortest waitSeconds
        for pool in [pool for pool in self.model.pools.values() if pool.state == "RECONCILING"]:
            self.model.lose_nodes(pool.name)  # a repair that goes on for ever would be waited for for ever
        for _ in range(600):
            self.operator.work()
            self._sweep()
            for request in self.queue.requests:
                if not (ProvisioningRequestState(request).is_provisioned or ProvisioningRequestState(request).refusal):
                    self.queue.provision(request)
            self.world.run_jobsets()
            self.world.collect()
            for pod in self.world.unfinished:
                if "deletionTimestamp" not in pod["metadata"] and self._fits(pod):
                    self.world.exit(pod, 0)
            self.world.reap()
            self.world.tick(20)
            self._check_always()
            if self._is_over() and not self.model.pools:
                break
        self.operator.work()
        self._check_end()

    def _is_over(self) -> bool:
        job = self.world.api.find(POSTTRAINJOBS, NAME)
        if job is None:
            return not self.world.pods and not self.world.api.kinds("JobSet")
        return str((job.get("status") or {}).get("phase")) in ("Succeeded", "Failed", "Suspended")

    def _check_end(self) -> None:
        assert self.model.pools == {}, "a pool is left"
        api = self.world.api
        assert not {"ProvisioningRequest", "PodTemplate"} & {ref[0] for ref in api.objects}, "a request is left"
        for _ in range(4):  # a time to live may still have to pass
            self.world.tick(60)
            self.operator.work()
            self.world.collect()
        job = api.find(POSTTRAINJOBS, NAME)
        if job is None:
            assert {ref[0] for ref in api.objects} <= {"Event"}, "something is left"
            return
        status = PostTrainJobStatus.model_validate(job["status"])
        assert str(status.phase) in ("Succeeded", "Failed", "Suspended"), status
        assert self.world.unfinished == [], "pods run on"
        assert status.capacity.node_pools == [], "status names pools that are gone"
        assert all(each.ended for each in status.capacity.attempts)
        jobset = api.find(JOBSETS, NAME)
        if status.phase == "Suspended":
            assert jobset is None
        before, calls = api.writes, len(self.model.operations)
        self.world.tick(60)
        self.operator.news.add((NAMESPACE, NAME))
        self.operator.work()
        assert (api.writes, len(self.model.operations)) == (before, calls), f"still writes: {api.log[before:]}"
        api.delete(POSTTRAINJOBS, NAME, NAMESPACE)
        for _ in range(5):
            self.operator.work()
            self.world.collect()
            self.world.tick(20)
        assert api.find(POSTTRAINJOBS, NAME) is None, "the finalizer holds the job"


def pools_of(pod: Manifest) -> list[str]:
    """The node pools that a pod may run on."""
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    names: list[str] = affinity["nodeSelectorTerms"][0]["matchExpressions"][0]["values"]
    return names


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_lives_on_gke_end_right_and_leave_no_pool(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    live_all(CloudLife, range(batch, HISTORIES, BATCHES), monkeypatch)
