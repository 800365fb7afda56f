"""The CPU pool for Pathways' heads, shared by all jobs and created with the first that asks for chips. Pure.

It scales from zero and back with its pods, so no job releases it and the orphan collector ignores it. An existing pool
of that name is used, whoever created it: clusters made by XPK have one.
"""

from ptkube.resources import Manifest
from ptoperator.capacity.attempts import Candidate, fail_attempt
from ptoperator.capacity.cloud import Cloud, CreateShared
from ptoperator.capacity.node_pools.slice_pool import may_be_permission_delay
from ptoperator.capacity.request import CapacityRequest, Decision
from ptoperator.kube import labels
from ptoperator.render.node_pool import BASIC_CONFIG, service_account
from ptoperator.settings import Settings

MAX_PATHWAYS_HEADS = 20
"""Nodes, one per job; as many as XPK allows."""


def head_pool(settings: Settings) -> Manifest:
    """Return the pool's manifest, in every zone of the cluster: a machine type may be missing in one."""
    return {
        "name": settings.pathways_head_nodes,
        "initial_node_count": 0,
        "config": {
            "machine_type": settings.pathways_head_machine,
            **BASIC_CONFIG,
            "resource_labels": {labels.POOL_ROLE: "pathways-heads"},
            **service_account(settings),
        },
        "autoscaling": {"enabled": True, "total_max_node_count": MAX_PATHWAYS_HEADS, "location_policy": "ANY"},
        "management": {"auto_upgrade": True, "auto_repair": True},
    }


def ensure_pathways_head_pool(request: CapacityRequest, cloud: Cloud, candidate: Candidate) -> Decision | None:
    """Create the pool for the head if it is missing; None if it exists or is not needed.

    It comes before the chips, which cost money while a head has no node.
    """
    settings = request.layout.settings
    name = settings.pathways_head_nodes
    if not request.layout.is_pathways or name in cloud.names:
        return None
    answer = cloud.answer(name)
    if answer is None:
        actions = () if cloud.busy else (CreateShared(head_pool(settings)),)
        return Decision(
            False, request.capacity, actions, message=f"node pool {name} for Pathways' heads must be created first"
        )
    if answer.failure is None:
        return Decision(False, request.capacity, message=f"node pool {name} for Pathways' heads is being created")
    if answer.failure.is_definite and not may_be_permission_delay(request, candidate, answer.failure):
        return fail_attempt(request, answer.failure)
    return Decision(False, request.capacity, message=f"pool {name}: {answer.failure.code}: {answer.failure.message}")
