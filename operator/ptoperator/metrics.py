"""Prometheus metrics of the operator itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One registry per operator, so that several may live in one process."""

    def __init__(self, phases: Callable[[], dict[str, int]]) -> None:
        self.registry = CollectorRegistry()
        self._looks = Counter("posttrain_reconciles", "Looks at a job", registry=self.registry)
        self._errors = Counter(
            "posttrain_reconcile_errors", "Looks that failed and are repeated", ["error"], registry=self.registry
        )
        self._seconds = Histogram(
            "posttrain_reconcile_seconds", "Duration of a look", buckets=_BUCKETS, registry=self.registry
        )
        self.registry.register(_Jobs(phases))

    def on_look(self, seconds: float, error: Exception | None) -> None:
        self._looks.inc()
        self._seconds.observe(seconds)
        if error is not None:
            self._errors.labels(type(error).__name__).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Jobs:
    """Counted when asked, so that there is no second book to keep."""

    def __init__(self, phases: Callable[[], dict[str, int]]) -> None:
        self._phases = phases

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily("posttrain_jobs", "PostTrainJobs by phase", labels=["phase"])
        for phase, count in sorted(self._phases().items()):
            family.add_metric([phase], count)
        yield family
