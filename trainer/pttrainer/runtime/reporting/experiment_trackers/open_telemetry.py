"""OpenTelemetry: a trace of each step, sent to a collector by OTLP over HTTP.

    step                      all metrics of the step, as posttrain.metric.NAME
      rollout                 a batch of samples: waiting for them, and scoring
        generate              a call of the engine, with the attributes of GenAI (semantic conventions 1.37)
        reward, score, …      what else takes time (docs/guides/training.md)

Spans are recorded where they happen (`runtime.reporting.spans`). What ends after its step was sent (a checkpoint, a
rollout ahead of training) is sent later, into the same trace. A collector that does not answer is named once; its
spans are dropped, and the run neither waits for it nor ends.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span as OpenSpan
from opentelemetry.trace import set_span_in_context

from ptapi import run_directory
from ptapi.spec import PostTrainJobSpec
from ptapi.spec.tracking import OpenTelemetry
from pttrainer.runtime.reporting import spans
from pttrainer.runtime.reporting.experiment_trackers.tracked_run import TrackedRun

EXPORT_S = 5.0
"""Longest try to send a batch of spans; then they are dropped."""
TRACES = "/v1/traces"
_OPEN_STEPS = 64
"""Steps whose traces may still get spans: more than any rollout is ahead."""


def start(spec: OpenTelemetry, note: Callable[[str], None], run: TrackedRun) -> "OpenTelemetryRun":
    """Start to send. Headers come from OTEL_EXPORTER_OTLP_HEADERS, which the exporter reads."""
    address = f"{spec.endpoint.rstrip('/')}{TRACES}"
    exporter = _NamedOnce(OTLPSpanExporter(endpoint=address, timeout=EXPORT_S), address, note)
    of_run = {"posttrain.job": run.name, "posttrain.job.uid": run.job.metadata.uid or ""}
    about = {"service.name": "posttrain", "posttrain.algorithm": run.job.spec.label, **of_run}
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OpenTelemetryRun(provider, generate_attributes(run.job.spec))


def generate_attributes(spec: PostTrainJobSpec) -> dict[str, spans.Attribute]:
    """Return what is true of every call of the engine."""
    return {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "vllm" if spec.rollout.sampling_engine == "vllm" else "posttrain",
        "gen_ai.request.model": spec.model.uri,
    }


class OpenTelemetryRun:
    """A run's traces."""

    def __init__(self, provider: TracerProvider, of_generate: Mapping[str, spans.Attribute]) -> None:
        self._provider, self._tracer = provider, provider.get_tracer("posttrain")
        self._of_generate = of_generate
        self._steps: OrderedDict[int, OpenSpan] = OrderedDict()

    def log(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Send the step, and what is recorded up to it."""
        parts = spans.taken(step)
        own = [part for part in parts if part.step == step]
        ended_ns = max([int(time_s * 1e9), *(part.ended_ns for part in own)])
        began_ns = int((time_s - values.get(run_directory.STEP_SECONDS, 0.0)) * 1e9)
        metrics = {f"posttrain.metric.{name}": value for name, value in values.items()}
        root = self._root(step, min([began_ns, *(part.began_ns for part in own)]), metrics)
        root.end(ended_ns)
        self._send(parts)

    def finish(self, *, is_failed: bool) -> None:
        """Send what is left: what happened after the last step."""
        self._send(spans.taken(2**62))
        self._provider.shutdown()

    def _root(self, step: int, began_ns: int, metrics: Mapping[str, float]) -> OpenSpan:
        attributes: dict[str, Any] = {"posttrain.step": step, **metrics}
        root = self._tracer.start_span("step", start_time=began_ns, attributes=attributes)
        self._steps[step] = root
        while len(self._steps) > _OPEN_STEPS:
            self._steps.popitem(last=False)
        return root

    def _send(self, parts: Sequence[spans.Span]) -> None:
        """Send parts of steps, each below the one around it or its step."""
        sent: dict[int, OpenSpan] = {}
        for part in parts:  # those around others began before them
            parent = sent.get(part.parent) if part.parent is not None else None
            parent = parent or self._steps.get(part.step)
            attributes: dict[str, Any] = {"posttrain.step": part.step, **part.attributes}
            if part.name == "generate":
                attributes |= self._of_generate
            within = None if parent is None else set_span_in_context(parent)
            span = self._tracer.start_span(part.name, within, start_time=part.began_ns, attributes=attributes)
            span.end(part.ended_ns)
            sent[part.number] = span


class _NamedOnce(SpanExporter):
    """An exporter whose failures are named when they begin, in place of its own warnings and tracebacks."""

    def __init__(self, exporter: OTLPSpanExporter, address: str, note: Callable[[str], None]) -> None:
        self._exporter, self._address, self._note = exporter, address, note
        self._is_failing = False
        log = logging.getLogger("opentelemetry")
        log.addHandler(logging.NullHandler())
        log.propagate = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; drop them if that fails."""
        result = self._exporter.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            self._note(
                f"warning: OpenTelemetry: {self._address} does not take spans; they are dropped while it does not, and "
                "the run goes on"
            )
        self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        """End the connection."""
        self._exporter.shutdown()
