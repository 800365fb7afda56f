"""Convert GKE's protobufs, wrapped by Google's library or not, to the operator's own values. Pure.

A server may be newer than the client: a status or code that the client does not know arrives as a number, is ignored,
and breaks nothing.
"""

from enum import IntEnum
from typing import Any

import grpc
from google.api_core import exceptions
from google.cloud import container_v1 as container
from google.rpc import error_details_pb2

from ptoperator.capacity import cloud_errors
from ptoperator.capacity.cloud import Operation, Pool, PoolState
from ptoperator.capacity.cloud_errors import CloudFailure
from ptoperator.kube import labels

_DELETE = container.Operation.Type.DELETE_NODE_POOL
_DONE = container.Operation.Status.DONE
_STATES = frozenset(PoolState)


def pool_of(pool: Any) -> Pool:
    """Convert a node pool."""
    marks = dict(pool.config.resource_labels)
    name = _name(container.NodePool.Status, pool.status)
    state = PoolState(name) if name in _STATES else PoolState.UNKNOWN
    failures = [cloud_errors.of_condition(_status_code(each), each.message) for each in pool.conditions]
    if state is PoolState.ERROR and (pool.status_message or not any(failures)):
        failures.append(cloud_errors.of_outcome("ERROR", pool.status_message))
    return Pool(
        name=pool.name,
        state=state,
        shape=marks.get(labels.POOL_SHAPE, ""),
        namespace=marks.get(labels.POOL_NAMESPACE, ""),
        job_uid=marks.get(labels.POOL_JOB_UID, ""),
        slice=_number(marks.get(labels.POOL_SLICE)),
        idle_since=_number(marks.get(labels.POOL_IDLE_SINCE)),
        etag=pool.etag,
        failures=tuple(filter(None, failures)),
        is_flex=pool.config.flex_start,
    )


def operation_of(operation: Any, cluster: str) -> Operation | None:
    """Convert an operation on this cluster or its node pools; None for other clusters."""
    _, is_ours, rest = operation.target_link.partition(f"/clusters/{cluster}")
    if not is_ours or (rest and not rest.startswith("/nodePools/")):
        return None
    is_done = operation.status == _DONE
    return Operation(
        name=operation.name,
        pool=rest.rpartition("/")[2],
        is_done=is_done,
        is_deletion=operation.operation_type == _DELETE,
        failures=tuple(_failures(operation, is_done)),
    )


def is_ours(pool: Any) -> bool:
    """Return True if this operator created the pool."""
    return bool(pool.config.resource_labels.get(labels.POOL_MANAGER) == labels.MANAGER)


def belongs_to(pool: Any, job_uid: str) -> bool:
    """Return True if the job holds the pool."""
    return bool(pool.config.resource_labels.get(labels.POOL_JOB_UID, "") == job_uid)


def error_code(error: exceptions.GoogleAPICallError) -> str:
    """Return gRPC's name of the error."""
    return str(error.grpc_status_code.name) if error.grpc_status_code else "UNKNOWN"


def refusal_of(error: exceptions.GoogleAPICallError) -> CloudFailure:
    """Classify the error of a call."""
    return cloud_errors.of_call(error_code(error), error.message or str(error))


def retry_delay_s(error: exceptions.GoogleAPICallError) -> float | None:
    """Return the retry delay that Google names (google.rpc.RetryInfo or Retry-After), or None."""
    for detail in error.details:
        if isinstance(detail, error_details_pb2.RetryInfo):
            return float(detail.retry_delay.ToTimedelta().total_seconds())
    call = next(iter(error.errors), None)
    trailing = call.trailing_metadata() if isinstance(call, grpc.Call) else ()
    delay = next((str(value) for key, value in trailing or () if key == "retry-after"), "")
    return float(delay) if delay.isdigit() else None


def _failures(operation: Any, is_done: bool) -> list[CloudFailure]:
    """Return the operation's errors. `status_message` is older than `error`, and sometimes the only one."""
    failures = [cloud_errors.of_outcome(_status_code(each), each.message) for each in operation.nodepool_conditions]
    if operation.error.code:
        failures.append(cloud_errors.of_outcome(_grpc_name(operation.error.code), operation.error.message))
    elif is_done and (message := operation.error.message or operation.status_message):
        failures.append(cloud_errors.of_outcome("ERROR", message))
    return failures


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _status_code(condition: Any) -> str:
    """Return the specific code (`GCE_STOCKOUT`), or the general one if GKE has none."""
    code = container.StatusCondition.Code
    return _name(code, condition.code) if condition.code else _grpc_name(condition.canonical_code)


def _name(kind: type[IntEnum], value: int) -> str:
    """Return the name of an enum value; a number that the client does not know stays a number."""
    number = int(value)
    return kind(number).name if number in kind.__members__.values() else str(number)


def _grpc_name(code: Any) -> str:
    number = int(code)
    return next((each.name for each in grpc.StatusCode if each.value[0] == number), "UNKNOWN")
