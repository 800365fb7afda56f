"""A cluster, its pretended GKE and the operator, in memory: what tests of capacity do and see."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.builders.gke.client import GkeClient
from tests.builders.gke.model import ZONE_EXHAUSTED, Fault, GkeModel, PoolRecord
from tests.builders.operator.world import Operator, World, job_manifest

from ptapi.conditions import ConditionType
from ptapi.status import PostTrainJobStatus
from ptkube.resources import JOBSETS, POSTTRAINJOBS, Manifest
from ptoperator.capacity.gke.client import Gke
from ptoperator.settings import Settings

SETTINGS = Settings(gke_project="p", gke_location="l", gke_cluster="c", pool_idle_seconds=0.0)
STOCKOUT = Fault(outcome=ZONE_EXHAUSTED, condition="GCE_STOCKOUT", seconds=252.0)


@dataclass
class Site:
    """A cluster, its GKE and the operator."""

    world: World
    settings: Settings = SETTINGS
    faults: dict[str, Fault] = field(default_factory=dict)
    model: GkeModel = field(init=False)
    operator: Operator = field(init=False)
    client: GkeClient = field(init=False)
    gke: Gke = field(init=False)

    def __post_init__(self) -> None:
        def seconds() -> float:
            return self.world.api.now.timestamp()

        self.model = GkeModel(seconds, fault_for=self._fault)
        self.client = GkeClient(self.model)
        self.gke = Gke(self.settings, self.client, seconds)
        self.operator = Operator(self.world, self.settings, cloud=self.gke)

    def _fault(self, pool: PoolRecord) -> Fault | None:
        kind = "spot" if pool.manifest["config"]["spot"] else "other"
        return self.faults.get(f"{kind} {pool.zone}") or self.faults.get(kind) or self.faults.get(pool.zone)

    def create(self, name: str = "llama", capacity: list[Manifest] | None = None, **spec: Any) -> None:
        """Create a job."""
        accelerator = spec.pop("accelerator", {"type": "v6e-16"})
        options = capacity or [{"type": "onDemand", "zones": ["us-east5-a"]}]
        fields: Manifest = {"preflight": "Skip", "training": {"batchSize": 96}, **spec}
        manifest = job_manifest(name, accelerator=accelerator, capacity=options, **fields)
        self.world.api.create(POSTTRAINJOBS, manifest)

    def provision(self, name: str = "llama", capacity: list[Manifest] | None = None, **spec: Any) -> None:
        """Create a job, and let time pass until it has its chips."""
        self.create(name, capacity, **spec)
        self.run_until(lambda: jobset(self, name))

    def succeed(self, name: str = "llama") -> None:
        """Let the trainer succeed, and time pass until the operator says so."""
        self.finish()
        self.run_until(lambda: self.status(name).phase == "Succeeded")

    def run(self, seconds: float) -> None:
        """Time passes; everybody works."""
        for _ in range(int(seconds // 5)):
            self.operator.work()
            self.world.run_jobsets()
            self.world.collect()
            self.world.reap()
            self.world.tick(5)
        self.operator.work()

    def run_until(self, is_so: Callable[[], Any], limit_s: float = 7200) -> None:
        """Let time pass until a condition holds."""
        for _ in range(int(limit_s // 5)):
            if is_so():
                return
            self.run(5)
        raise AssertionError(f"it did not come to be: {self.status()}\n{self.model.pools}")

    def job(self, name: str = "llama") -> Manifest | None:
        """Return a job as the API server has it."""
        return self.world.api.find(POSTTRAINJOBS, name)

    def status(self, name: str = "llama") -> PostTrainJobStatus:
        """Return a job's status."""
        job = self.job(name)
        assert job is not None
        return PostTrainJobStatus.model_validate(job.get("status") or {})

    def outcomes(self, name: str = "llama") -> list[str]:
        """Return the outcomes of a job's attempts."""
        return [f"{each.option}: {each.outcome}" for each in self.status(name).capacity.attempts]

    def start_pods(self) -> None:
        """Schedule and start the pods."""
        self.run(10)
        for pod in self.world.unfinished:
            self.world.start(pod)

    def finish(self, name: str = "llama") -> None:
        """Let the trainer succeed."""
        self.start_pods()
        for pod in self.world.unfinished:
            self.world.exit(pod, 0)

    def waits_for(self, name: str = "llama") -> str:
        """Return the message of CapacityReady."""
        messages = (each.message for each in self.status(name).conditions if each.type == ConditionType.CAPACITY_READY)
        return next(messages, "")

    def kubelets(self) -> None:
        """Pods start while there are nodes, and run on."""
        nodes = sum(pool.nodes for pool in self.model.pools.values())
        started = [pod for pod in self.world.unfinished if pod["spec"].get("nodeName")]
        waiting = [pod for pod in self.world.unfinished if not pod["spec"].get("nodeName")]
        for pod in waiting[: max(0, nodes - len(started))]:
            self.world.start(pod)

    def run_with_nodes(self, seconds: float) -> None:
        """Time passes on a cluster whose nodes are those of its pools."""
        for _ in range(int(seconds // 5)):
            self.kubelets()
            self.run(5)


def jobset(site: Site, name: str = "llama") -> Manifest | None:
    """Return the job's JobSet."""
    return site.world.api.find(JOBSETS, name)
