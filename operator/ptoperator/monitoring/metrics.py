"""Prometheus metrics of the operator, its jobs, and its node pools."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from ptapi.conditions import Phase
from ptapi.failures import FailureClass
from ptapi.status import PostTrainJobStatus
from ptoperator.capacity.cloud import Cloud, PoolState
from ptoperator.monitoring.job_gauges import GAUGES, JobNumbers, shown

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One registry per operator, so that several can live in one process. jobs: returns the current numbers."""

    def __init__(self, jobs: Callable[[], list[JobNumbers]], pools: Callable[[], Cloud | None] = lambda: None) -> None:
        self.registry = CollectorRegistry()
        self._looks = Counter("posttrain_reconciles", "Reconciles", registry=self.registry)
        self._errors = Counter(
            "posttrain_reconcile_errors", "Reconciles that failed and are retried", ["error"], registry=self.registry
        )
        self._seconds = Histogram(
            "posttrain_reconcile_seconds", "Duration of a reconcile", buckets=_BUCKETS, registry=self.registry
        )
        self._cpu = Counter("posttrain_reconcile_cpu_seconds", "Processor time of reconciles", registry=self.registry)
        self._calls = Counter(
            "posttrain_api_calls",
            "Calls of the Kubernetes API by the operator's own code",
            ["verb", "resource", "outcome"],
            registry=self.registry,
        )
        self._failures = Counter(
            "posttrain_failures",
            "Failures by class and by what followed: restarted, or failed for good",
            ["failure_class", "outcome"],
            registry=self.registry,
        )
        self._swept = Counter("posttrain_node_pools_swept", "Orphaned node pools deleted", registry=self.registry)
        self._orphans = Gauge(
            "posttrain_orphan_node_pools", "Node pools without a job at the last collection", registry=self.registry
        )
        self._leads = Gauge("posttrain_leader", "Whether this replica leads (1) or waits (0)", registry=self.registry)
        self.registry.register(_Jobs(jobs))
        self.registry.register(_Pools(pools))

    def on_reconcile(self, seconds: float, error: Exception | None) -> None:
        """Count a reconcile, its duration and its error."""
        self._looks.inc()
        self._seconds.observe(seconds)
        if error is not None:
            self._errors.labels(type(error).__name__).inc()

    def on_cpu(self, seconds: float) -> None:
        """Add the processor time of one reconcile, which does not depend on how busy the machine is."""
        self._cpu.inc(seconds)

    def on_call(self, verb: str, resource: str, outcome: str) -> None:
        """Count a call of the Kubernetes API."""
        self._calls.labels(verb, resource, outcome).inc()

    def on_report(self, old: PostTrainJobStatus, new: PostTrainJobStatus) -> None:
        """Count the failures that a new status adds."""
        for kind, count in new.restarts.items():
            more = count - old.restarts.get(kind, 0)
            if more > 0 and kind in set(FailureClass):  # a slice that joined is no failure
                self._failures.labels(kind, "restarted").inc(more)
        if new.phase is Phase.FAILED and old.phase is not Phase.FAILED:
            self._failures.labels(new.failure.failure_class if new.failure else "Unknown", "failed").inc()

    def on_sweep(self, orphans: int) -> None:
        """Record the orphaned pools of one collection."""
        self._orphans.set(orphans)
        self._swept.inc(orphans)

    def on_leading(self, leads: bool) -> None:
        """Record whether this replica leads."""
        self._leads.set(1 if leads else 0)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Jobs:
    """Counts jobs when Prometheus scrapes, so that no second count is kept."""

    def __init__(self, jobs: Callable[[], list[JobNumbers]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterable[GaugeMetricFamily]:
        jobs = self._jobs()
        counts = {str(phase): 0 for phase in Phase}
        for job in jobs:
            counts[job.phase] = counts.get(job.phase, 0) + 1
        by_phase = GaugeMetricFamily("posttrain_jobs", "PostTrainJobs by phase", labels=["phase"])
        for phase, count in sorted(counts.items()):
            by_phase.add_metric([phase], count)
        yield by_phase
        living = shown(jobs)
        for gauge, text in GAUGES.items():
            family = GaugeMetricFamily(gauge, text, labels=["namespace", "job", "phase"])
            for job in living:
                if gauge in job.values:
                    family.add_metric([job.namespace, job.name, job.phase], job.values[gauge])
            yield family


class _Pools:
    """Reads the latest snapshot of the cloud: a scrape makes no call."""

    def __init__(self, pools: Callable[[], Cloud | None]) -> None:
        self._pools = pools

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily("posttrain_node_pools", "The operator's node pools, by state", labels=["state"])
        cloud = self._pools()
        if cloud is not None and cloud.failure is None:
            for state in PoolState:
                family.add_metric([str(state)], sum(pool.state is state for pool in cloud.pools))
        yield family
