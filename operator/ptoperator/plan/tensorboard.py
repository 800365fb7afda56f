"""What is done about a job's shared TensorBoard: pure, beside `plan`, for it concerns finished jobs as well.

Somebody who looks marks the job with a time (annotation). The Deployment carries the latest such time of all its jobs,
and has a pod until then. Each step looks at what is there and makes one thing more as it should be.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptkube import timestamps
from ptkube.objects import is_deleting
from ptkube.resources import DEPLOYMENTS, SERVICES, Manifest
from ptoperator.kube import labels
from ptoperator.kube.actions import Action, Create, Patch
from ptoperator.observe.state import Observed, TensorBoardObjects
from ptoperator.render import Layout
from ptoperator.render.tensorboard import (
    board_deployment,
    board_entry,
    board_host,
    board_name,
    board_service,
    entry_kind,
    owner,
)


@dataclass(frozen=True)
class Serving:
    """What to do, and when its pod's time is over."""

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None


def wants_board(job: Manifest) -> bool:
    """Whether the job asks for it. The manifest is asked, for a finished job is not parsed any more."""
    board = (job.get("spec") or {}).get("tensorboard") or {}
    return isinstance(board, dict) and bool(board.get("server")) and not is_deleting(job)


def serving(layout: Layout, seen: Observed, board: TensorBoardObjects) -> Serving:
    """The next thing to do about it."""
    if board.deployment is None:
        return Serving((Create(DEPLOYMENTS, board_deployment(layout)),), 0.0)
    if board.service is None:
        return Serving((Create(SERVICES, board_service(layout)),), 0.0)
    if board.entry is None and board_host(layout):
        return Serving((Create(entry_kind(layout), board_entry(layout)),), 0.0)
    adopted = [
        Patch(resource, board_name(layout.job.spec.output.uri), seen.namespace, body)
        for resource, item in (
            (DEPLOYMENTS, board.deployment),
            (SERVICES, board.service),
            (entry_kind(layout), board.entry),
        )
        if item is not None and (body := _adoption(layout, item)) is not None
    ]
    if adopted:
        return Serving(tuple(adopted), 0.0)
    return _scaled(seen, board.deployment)


def _adoption(layout: Layout, item: Manifest) -> Manifest | None:
    """This job among the owners; the version makes sure that nobody else's entry is lost."""
    owners = item["metadata"].get("ownerReferences") or []
    if any(each.get("uid") == layout.uid for each in owners):
        return None
    version = item["metadata"]["resourceVersion"]
    return {"metadata": {"ownerReferences": [*owners, owner(layout)], "resourceVersion": version}}


def _scaled(seen: Observed, deployment: Manifest) -> Serving:
    wanted = _until(seen.job)
    known = _until(deployment)
    until = max(wanted, known)
    left = timestamps.seconds_since(timestamps.to_text(seen.now), timestamps.from_text(until) or seen.now) or 0.0
    replicas = 1 if left > 0 else 0
    is_so = (deployment.get("spec") or {}).get("replicas") == replicas and until == known
    body = {"metadata": {"annotations": {labels.BOARD_UNTIL: until}}, "spec": {"replicas": replicas}}
    patch = Patch(DEPLOYMENTS, deployment["metadata"]["name"], seen.namespace, body)
    return Serving(() if is_so else (patch,), left or None)


def _until(item: Manifest) -> str:
    """A time that somebody wrote; nothing if it is none."""
    text = str((item["metadata"].get("annotations") or {}).get(labels.BOARD_UNTIL) or "")
    time = timestamps.from_text(text)
    return timestamps.to_text(time) if time else ""
