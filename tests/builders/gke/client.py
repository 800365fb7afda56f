"""google-cloud-container's client without gRPC, on top of `gkemodel`: for simulations that make thousands of calls.

It takes the real requests, answers with objects of the same attributes, and raises the real errors. `strike` is asked
before and after each call and may raise: a lost answer, a crash.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from google.api_core import exceptions
from google.cloud import container_v1 as container
from tests.builders.gke.model import GkeModel, OperationRecord, PoolRecord, Refusal

_ERRORS: dict[str, type[exceptions.GoogleAPICallError]] = {
    "ALREADY_EXISTS": exceptions.AlreadyExists,
    "NOT_FOUND": exceptions.NotFound,
    "ABORTED": exceptions.Aborted,
    "FAILED_PRECONDITION": exceptions.FailedPrecondition,
    "PERMISSION_DENIED": exceptions.PermissionDenied,
    "RESOURCE_EXHAUSTED": exceptions.ResourceExhausted,
    "INTERNAL": exceptions.InternalServerError,
    "UNAVAILABLE": exceptions.ServiceUnavailable,
    "DEADLINE_EXCEEDED": exceptions.DeadlineExceeded,
    "INVALID_ARGUMENT": exceptions.InvalidArgument,
}
_CLUSTER_PATH = "https://container.googleapis.com/v1/projects/p/locations/l/clusters/c"


class Late(Exception):
    """Raised by `strike`: the caller hears DEADLINE_EXCEEDED, and the call is carried out when `arrive` is called."""


class GkeClient:
    """The calls that the operator makes. late: those that are still on their way."""

    def __init__(self, model: GkeModel, strike: Callable[[str, bool], None] = lambda call, is_after: None) -> None:
        self._model = model
        self._strike = strike
        self.late: list[Callable[[], Any]] = []

    def get_cluster(self, **_: Any) -> Any:
        return self._serve("get_cluster", lambda: SimpleNamespace(locations=self._model.zones))

    def list_operations(self, **_: Any) -> Any:
        def listed() -> Any:
            self._model.advance()
            return SimpleNamespace(operations=[_operation(each) for each in self._model.operations[-40:]])

        return self._serve("list_operations", listed)

    def list_node_pools(self, **_: Any) -> Any:
        return self._serve(
            "list_node_pools", lambda: SimpleNamespace(node_pools=[_pool(each) for each in self._model.listed()])
        )

    def get_node_pool(self, *, request: Any, **_: Any) -> Any:
        return self._serve("get_node_pool", lambda: _pool(self._model.get(_last(request.name))))

    def create_node_pool(self, *, request: Any, **_: Any) -> Any:
        node_pool = request.node_pool
        manifest = {
            "name": node_pool.name,
            "locations": list(node_pool.locations),
            "initial_node_count": node_pool.initial_node_count,
            "autoscaling": {"total_max_node_count": node_pool.autoscaling.total_max_node_count},
            "queued_provisioning": {"enabled": node_pool.queued_provisioning.enabled},
            "config": {
                "resource_labels": dict(node_pool.config.resource_labels),
                "spot": node_pool.config.spot,
                "labels": dict(node_pool.config.labels),
                "taints": [(each.key, each.value) for each in node_pool.config.taints],
                "flex_start": node_pool.config.flex_start,
            },
        }
        return self._serve("create_node_pool", lambda: _operation(self._model.create(manifest)))

    def update_node_pool(self, *, request: Any, **_: Any) -> Any:
        wanted = dict(request.resource_labels.labels)
        return self._serve(
            "update_node_pool", lambda: _operation(self._model.label(_last(request.name), request.etag, wanted))
        )

    def delete_node_pool(self, *, request: Any, **_: Any) -> Any:
        return self._serve("delete_node_pool", lambda: _operation(self._model.delete(_last(request.name))))

    def arrive(self) -> None:
        """What was on its way is carried out; nobody hears the answer."""
        for call in self.late:
            try:
                call()
            except Refusal:
                pass  # as it would have been refused in time
        self.late.clear()

    def _serve(self, call: str, answer: Callable[[], Any]) -> Any:
        try:
            self._strike(call, False)
        except Late:
            self.late.append(answer)
            raise exceptions.DeadlineExceeded("504 Deadline Exceeded") from None
        try:
            response = answer()
        except Refusal as refusal:
            raise _ERRORS[refusal.code](refusal.message) from refusal  # type: ignore[no-untyped-call]
        self._strike(call, True)
        return response


def _pool(pool: PoolRecord) -> Any:
    conditions = []
    if pool.condition:
        code = container.StatusCondition.Code[pool.condition]
        conditions = [SimpleNamespace(code=code, canonical_code=0, message=pool.message)]
    return SimpleNamespace(
        name=pool.name,
        status=container.NodePool.Status[pool.state],
        status_message=pool.message,
        conditions=conditions,
        etag=str(pool.etag),
        config=SimpleNamespace(
            resource_labels=dict(pool.labels), flex_start=bool(pool.manifest["config"].get("flex_start"))
        ),
    )


def _operation(operation: OperationRecord) -> Any:
    has_details = operation.error and not operation.is_terse
    return SimpleNamespace(
        name=operation.name,
        target_link=f"{_CLUSTER_PATH}/nodePools/{operation.pool}" if operation.pool else _CLUSTER_PATH,
        status=container.Operation.Status["DONE" if operation.is_done else "RUNNING"],
        operation_type=container.Operation.Type[operation.kind],
        nodepool_conditions=[],
        status_message=operation.error,
        error=SimpleNamespace(code=8, message=operation.error) if has_details else SimpleNamespace(code=0, message=""),
    )


def _last(path: str) -> str:
    return str(path).rpartition("/")[2]
