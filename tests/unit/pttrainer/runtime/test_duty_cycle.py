"""How busy the chips are is read by tpu-info's own protocol, from a server of the test in libtpu's place."""

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from tpu_info.proto import tpu_metric_service_pb2 as messages
from tpu_info.proto import tpu_metric_service_pb2_grpc as service

from ptapi import run_directory
from pttrainer.runtime.reporting import duty_cycle
from pttrainer.training import throughput


class Libtpu(service.RuntimeMetricServiceServicer):  # type: ignore[misc]
    """Four chips; asked for anything else it fails as an older libtpu does."""

    def __init__(self) -> None:
        self.calls = 0

    def GetRuntimeMetric(self, request: Any, context: Any) -> Any:
        self.calls += 1
        if request.metric_name != "tpu.runtime.tensorcore.dutycycle.percent":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unknown metric")
        gauges = [messages.Metric(gauge=messages.Gauge(as_double=value)) for value in (80.0, 90.0, 100.0, 70.0)]
        return messages.MetricResponse(metric=messages.TPUMetric(name=request.metric_name, metrics=gauges))


@pytest.fixture
def libtpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Libtpu]:
    server, answers = grpc.server(futures.ThreadPoolExecutor(1)), Libtpu()
    service.add_RuntimeMetricServiceServicer_to_server(answers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", f"{port},8432")
    yield answers
    server.stop(None)


def test_the_mean_of_all_chips_is_a_metric_of_each_step(libtpu: Libtpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax.default_backend", lambda: "tpu")
    assert throughput.memory()[run_directory.DUTY_CYCLE] == pytest.approx(0.85)
    assert run_directory.is_of_machine(run_directory.DUTY_CYCLE)


def test_it_is_not_asked_for_where_there_are_no_tpus(libtpu: Libtpu) -> None:
    assert duty_cycle.duty_cycle() is None
    assert libtpu.calls == 0


def test_a_service_that_does_not_answer_is_asked_once() -> None:
    metrics = duty_cycle.RuntimeMetrics("127.0.0.1:1")
    assert metrics.read() is None
    assert metrics._is_silent
    assert metrics.read() is None
