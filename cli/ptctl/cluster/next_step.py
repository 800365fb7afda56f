"""What to do next for a requested cluster: compare it with what is in the cloud. Pure.

Everything is decided anew from what exists, so it does not matter which run began, or where it broke off. Doubts are
refused: something of that name that ptctl did not make, or made with other flags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ptctl.cluster.cloud.cloud_errors import described
from ptctl.cluster.cloud.gke import ClusterView, PoolView
from ptctl.cluster.definition.requests import (
    CPU_POOL,
    MAKER,
    Request,
    create_cluster,
    create_pool,
    pools,
    prerequisites,
    spec_hash,
)
from ptctl.cluster.definition.spec import ClusterSpec
from ptoperator.capacity.cloud import Operation
from ptoperator.capacity.cloud_errors import CloudFailure
from ptoperator.kube import labels

MAX_ATTEMPTS = 3
"""How often one run sends a request that GKE accepts without making anything."""
_READY = ("RUNNING", "RECONCILING")
_FAILED_POOL = ("ERROR", "RUNNING_WITH_ERROR")


@dataclass(frozen=True)
class Observed:
    """What is in the cloud now. prerequisites: kind and name of the requested ones that exist."""

    cluster: ClusterView | None
    operations: Sequence[Operation] = ()
    prerequisites: frozenset[tuple[str, str]] = frozenset()


@dataclass
class Attempts:
    """What this run has sent, by name: how often, the latest operation, and why a pool cannot be made."""

    created: Counter[str] = field(default_factory=Counter)
    operations: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Action:
    """One change. verb: create or delete. request: of a create."""

    verb: str
    kind: str
    name: str
    request: Request | None = None


@dataclass(frozen=True)
class Decision:
    """The next changes; what is waited for, by name; or why it cannot continue (problem and hint)."""

    actions: tuple[Action, ...] = ()
    waits: tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Return True if nothing is left to do or to wait for."""
        return not (self.actions or self.waits or self.problem)


def decide(spec: ClusterSpec, observed: Observed, attempts: Attempts) -> Decision:
    """Return the next step towards the cluster."""
    missing = [each for each in prerequisites(spec) if (each.kind, each.name) not in observed.prerequisites]
    if missing:
        return Decision(tuple(Action("create", each.kind, each.name, each) for each in missing))
    cluster = observed.cluster
    if cluster is None:
        return _without_cluster(spec, observed, attempts)
    if problem := _foreign(spec, cluster):
        return problem
    match cluster.state:
        case "PROVISIONING" | "STOPPING":
            return Decision(waits=(spec.name,))
        case "ERROR":
            return _broken(spec, cluster, attempts)
        case state if state not in _READY:
            return Decision(problem=f"cluster {spec.name} is {state}: {cluster.message or 'GKE gives no reason'}")
    return _pools(spec, cluster, observed, attempts)


def _without_cluster(spec: ClusterSpec, observed: Observed, attempts: Attempts) -> Decision:
    running = [each for each in observed.operations if not each.pool and not each.is_done]
    if running:
        return Decision(waits=(spec.name,))
    if failure := _failure(spec.name, observed, attempts):
        message, hint = described(failure)
        return Decision(problem=f"cluster {spec.name}: {message}", hint=hint)
    if attempts.created[spec.name] >= MAX_ATTEMPTS:
        return Decision(
            problem=f"cluster {spec.name}: GKE took {MAX_ATTEMPTS} requests and made no cluster",
            hint="see the operations of the project in the console",
        )
    return Decision((Action("create", "cluster", spec.name, create_cluster(spec)),))


def _foreign(spec: ClusterSpec, cluster: ClusterView) -> Decision | None:
    """Refuse a cluster that ptctl did not make, or made with other flags."""
    if not cluster.is_ours:
        return Decision(
            problem=f"cluster {spec.name} exists in {cluster.location}, and was not made by ptctl",
            hint=f"`ptctl cluster adapt {spec.name}` prepares it for posttrain; or choose another NAME",
        )
    if cluster.spec_hash == spec_hash(spec):
        return None
    return Decision(
        problem=f"cluster {spec.name} exists, and was made with other flags{_differences(spec, cluster)}",
        hint="repeat those flags (only --tpu-type, --num-slices, --gpu-networks, --enable-pathways and how chips are "
        "bought may change), or choose another NAME",
    )


def _differences(spec: ClusterSpec, cluster: ClusterView) -> str:
    """Return the flags that differ, where GKE shows their values as they were requested."""
    raw = cluster.raw
    private = bool(raw.network_config.default_enable_private_nodes)
    table = (
        ("--zone", sorted(spec.zones), sorted(raw.locations) if spec.zones else []),
        ("--release-channel", spec.channel.upper(), getattr(raw.release_channel.channel, "name", "")),
        ("--private", spec.network.is_private, private),
        ("--network", spec.network.name or "default", raw.network or "default"),
        ("--subnetwork", spec.network.subnetwork, raw.subnetwork if spec.network.subnetwork else ""),
    )
    parts = [f"{flag}: it has {actual}, not {wanted}" for flag, wanted, actual in table if wanted != actual]
    return f": {'; '.join(parts)}" if parts else ""


def _broken(spec: ClusterSpec, cluster: ClusterView, attempts: Attempts) -> Decision:
    """Replace a cluster that never ran: nothing is in it. Report one that this run made."""
    reason = cluster.message or "GKE gives no reason"
    others = [pool.name for pool in cluster.pools if pool.maker != MAKER]
    if attempts.created[spec.name] or cluster.nodes or others:
        return Decision(
            problem=f"cluster {spec.name} is in ERROR: {reason}",
            hint="run the same command again when the reason is gone; it creates the cluster again",
        )
    return Decision((Action("delete", "cluster", spec.name),))


def _pools(spec: ClusterSpec, cluster: ClusterView, observed: Observed, attempts: Attempts) -> Decision:
    existing = {pool.name: pool for pool in cluster.pools}
    steps = [_cpu_pool(existing, attempts)]
    steps += [_pool(create_pool(spec, pool), existing.get(pool["name"]), observed, attempts) for pool in pools(spec)]
    problem = next((step for step in steps if step.problem), None)
    if problem is not None:
        return problem
    return Decision(
        tuple(action for step in steps for action in step.actions),
        tuple(name for step in steps for name in step.waits),
        failed={name: reason for step in steps for name, reason in step.failed.items()},
    )


def _cpu_pool(existing: dict[str, PoolView], attempts: Attempts) -> Decision:
    """Return what the first pool waits for; GKE makes it with the cluster."""
    pool = existing.get(CPU_POOL)
    if pool is None or pool.state in _READY:
        return Decision()
    if pool.state in _FAILED_POOL:
        return Decision(failed={pool.name: _reason(pool)})
    return Decision(waits=(pool.name,))


def _pool(request: Request, pool: PoolView | None, observed: Observed, attempts: Attempts) -> Decision:
    name = request.name
    if name in attempts.failed:
        return Decision(failed={name: attempts.failed[name]})
    if pool is None:
        return _without_pool(request, observed, attempts)
    own_labels = request.body["node_pool"]["config"]["resource_labels"]
    if labels.POOL_SHAPE in own_labels:  # Pathways' pool is used whoever made it
        if pool.maker != MAKER:
            return Decision(
                problem=f"node pool {name} exists, and was not made by ptctl", hint="delete or rename that pool"
            )
        if pool.shape != own_labels[labels.POOL_SHAPE]:
            return Decision(
                problem=f"node pool {name} exists with another zone, machine, reservation or networks",
                hint=f"repeat the flags that it was made with, or delete it: gcloud container node-pools delete {name}",
            )
    if pool.state in _READY:
        return Decision()
    if pool.state not in _FAILED_POOL or pool.maker != MAKER:
        return Decision(waits=(name,))
    if attempts.created[name]:
        return Decision(failed={name: _reason(pool)})
    return Decision((Action("delete", "pool", name),))


def _without_pool(request: Request, observed: Observed, attempts: Attempts) -> Decision:
    name = request.name
    operations = [each for each in observed.operations if each.pool == name]
    if any(not each.is_done for each in operations):
        return Decision(waits=(name,))
    if failure := _failure(name, observed, attempts):
        return Decision(failed={name: _in_words(failure)})
    if attempts.created[name] >= MAX_ATTEMPTS:
        return Decision(failed={name: f"GKE took {MAX_ATTEMPTS} requests and made no node pool"})
    return Decision((Action("create", "pool", name, request),))


def _failure(name: str, observed: Observed, attempts: Attempts) -> CloudFailure | None:
    """Return why the operation that this run started has failed; not what earlier ones left in the list."""
    started = attempts.operations.get(name)
    return next((each for op in observed.operations if op.name == started for each in op.failures), None)


def _reason(pool: PoolView) -> str:
    return _in_words(pool.failures[0]) if pool.failures else f"{pool.state} without a reason"


def _in_words(failure: CloudFailure) -> str:
    return ". ".join(filter(None, described(failure)))
