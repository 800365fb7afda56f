"""Read how busy this host's TensorCores are: the share of recent time in which they compute, as `tpu-info` shows it.

libtpu serves it on each host while a program runs (port 8431). Read by `tpu-info`'s own protocol, so only where that
package is, in the image for TPUs. What cannot be read is left out: no run depends on it.
"""

import logging
import os
from functools import cache
from typing import Any

import jax

logger = logging.getLogger(__name__)

_ADDRESS = "localhost:8431"
_METRIC = "tpu.runtime.tensorcore.dutycycle.percent"
_TIMEOUT_S = 1.0


def duty_cycle() -> float | None:
    """Return the mean share of this host's chips, 0 to 1; None where there are no TPUs or nobody tells."""
    if jax.default_backend() != "tpu":
        return None
    ports = os.environ.get("TPU_RUNTIME_METRICS_PORTS", "").split(",")
    service = _service(f"localhost:{ports[0]}" if ports[0] else _ADDRESS)
    return None if service is None else service.read()


class RuntimeMetrics:
    """libtpu's service at an address. After a failure it is not asked again: it would cost every step the wait."""

    def __init__(self, address: str) -> None:
        """Connect when first asked. Raises ImportError without `tpu-info`."""
        import grpc
        from tpu_info.proto import tpu_metric_service_pb2, tpu_metric_service_pb2_grpc

        self._request = tpu_metric_service_pb2.MetricRequest(metric_name=_METRIC)
        self._stub: Any = tpu_metric_service_pb2_grpc.RuntimeMetricServiceStub(grpc.insecure_channel(address))
        self._error = grpc.RpcError
        self._is_silent = False

    def read(self) -> float | None:
        """Return the mean share of all chips, or None."""
        if self._is_silent:
            return None
        try:
            metrics = self._stub.GetRuntimeMetric(self._request, timeout=_TIMEOUT_S).metric.metrics
        except self._error as error:
            self._is_silent = True
            logger.info("the duty cycle of the chips cannot be read: %s", error)
            return None
        shares = [each.gauge.as_double / 100 for each in metrics]
        return sum(shares) / len(shares) if shares else None


@cache
def _service(address: str) -> RuntimeMetrics | None:
    try:
        return RuntimeMetrics(address)
    except ImportError:
        return None
