"""Reconcile a job's shared TensorBoard, also of a finished job. Pure.

Whoever opens it marks the job with a time (annotation). The Deployment carries the latest such time of all its jobs,
and has a pod until then. Each reconcile corrects one thing.
"""

from dataclasses import dataclass

from ptkube import timestamps
from ptkube.resources import DEPLOYMENTS, SERVICES, Manifest
from ptoperator.kube import labels
from ptoperator.kube.actions import Action, Create, Patch
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.render.tensorboard import (
    owner,
    route_kind,
    tensorboard_deployment,
    tensorboard_host,
    tensorboard_name,
    tensorboard_route,
    tensorboard_service,
)


@dataclass(frozen=True)
class TensorBoardPlan:
    """What to do, and the seconds until its pod's time is over."""

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None


def plan_tensorboard(state: Observed) -> TensorBoardPlan:
    """Return the next thing to do."""
    layout, tensorboard = state.layout, state.tensorboard
    if layout is None or tensorboard is None:
        return TensorBoardPlan()
    if tensorboard.deployment is None:
        return TensorBoardPlan((Create(DEPLOYMENTS, tensorboard_deployment(layout)),), 0.0)
    if tensorboard.service is None:
        return TensorBoardPlan((Create(SERVICES, tensorboard_service(layout)),), 0.0)
    if tensorboard.route is None and tensorboard_host(layout):
        return TensorBoardPlan((Create(route_kind(layout), tensorboard_route(layout)),), 0.0)
    adopted = [
        Patch(resource, tensorboard_name(layout.job.spec.output.uri), state.job.namespace, body)
        for resource, item in (
            (DEPLOYMENTS, tensorboard.deployment),
            (SERVICES, tensorboard.service),
            (route_kind(layout), tensorboard.route),
        )
        if item is not None and (body := _adoption(layout, item)) is not None
    ]
    if adopted:
        return TensorBoardPlan(tuple(adopted), 0.0)
    return _scale(state, tensorboard.deployment)


def _adoption(layout: Layout, item: Manifest) -> Manifest | None:
    """Add this job to the owners; the version keeps other entries from being lost."""
    owners = item["metadata"].get("ownerReferences") or []
    if any(each.get("uid") == layout.uid for each in owners):
        return None
    version = item["metadata"]["resourceVersion"]
    return {"metadata": {"ownerReferences": [*owners, owner(layout)], "resourceVersion": version}}


def _scale(state: Observed, deployment: Manifest) -> TensorBoardPlan:
    wanted = _requested_until(state.job.manifest)
    known = _requested_until(deployment)
    until = max(wanted, known)
    left = timestamps.seconds_since(timestamps.to_text(state.now), timestamps.from_text(until) or state.now) or 0.0
    replicas = 1 if left > 0 else 0
    is_so = (deployment.get("spec") or {}).get("replicas") == replicas and until == known
    body = {"metadata": {"annotations": {labels.TENSORBOARD_UNTIL: until}}, "spec": {"replicas": replicas}}
    patch = Patch(DEPLOYMENTS, deployment["metadata"]["name"], state.job.namespace, body)
    return TensorBoardPlan(() if is_so else (patch,), left or None)


def _requested_until(item: Manifest) -> str:
    """Return the time in the annotation; empty if it is none."""
    text = str((item["metadata"].get("annotations") or {}).get(labels.TENSORBOARD_UNTIL) or "")
    time = timestamps.from_text(text)
    return timestamps.to_text(time) if time else ""
