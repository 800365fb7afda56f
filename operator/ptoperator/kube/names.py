"""Names of child objects: short enough for what Kubernetes makes of them, unique, and the same every time.

The limits come from what others append. A pod of a JobSet is `<jobset>-<replicated job>-<job>-<pod>-xxxxx` and must
be a DNS label of 63 characters; JobSet's webhook refuses the rest. Pathways' coordinator label holds the JobSet's
name twice, which leaves it 22. A job name that is too long is cut and ends in five characters of its hash.
"""

import hashlib
from collections.abc import Mapping

from ptapi.accelerators.roles import SAMPLER as SAMPLER_ROLE

DNS_LABEL = 63
PATHWAYS_JOBSET = 22
"""`<name>-pathways-head-0-0.<name>` must be a label value."""
SLICED_JOBSET = 28
"""GKE's `Slice` objects are named after Kueue's workload, and that after the JobSet; XPK's limit, too."""
NODE_POOL_LIMIT = 40
"""What GKE allows."""
REPLICATED_JOB = "slice"
"""Name of the replicated job of a multi-controller JobSet: one child Job per slice."""
PATHWAYS_HEAD = "pathways-head"
"""Name of the replicated job with Pathways' servers and the trainer."""
PATHWAYS_WORKER = "pathways-worker"
"""Name of the replicated job with Pathways' workers: one child Job per slice."""
SAMPLER = SAMPLER_ROLE
"""Name of the replicated job of samplers with pods of their own, one child Job each; also their container's name."""
SERVICE = "service"
"""Name of a service's container. Its replicated job, one child Job per replica, is named as the service."""
SAMPLER_PORT = 8477
"""Where a sampler listens. Not 8471, which libtpu takes on TPU machines."""
SANDBOX = "sandbox"
"""Ends the names of a run's sandboxes; also their container's name."""
SANDBOX_PORT = 8888
"""Where Agent Sandbox's Python runtime listens."""
PATHWAYS_PROXY_PORT = 29000
"""Where the trainer reaches the chips."""
PATHWAYS_RM_PORT = 29001
"""Where workers and proxy find the resource manager."""
PATHWAYS_WORKER_PORT = 29005
"""A worker's own port."""
PATHWAYS_SIDECAR_PORT = 50051
"""Where a worker's colocated Python listens."""
PREFLIGHT = "preflight"
"""Ends the name of the Job that compiles a job before it has chips; also its container's name."""
STAGE = "stage"
"""Ends the name of the Job that stages a model before the job has chips; also its container's name."""
CONTAINER = "trainer"
"""Name of the trainer's container; with several per VM `trainer-0`, `trainer-1`."""
COORDINATOR_PORT = 8476
"""Port of JAX's coordination service on process 0; libtpu uses 8471 and 8080."""
_HASH = 5


def jobset(job: str, roles: Mapping[str, tuple[int, int]]) -> str:
    """Return the name of a multi-controller JobSet: the job's own name if its longest pod name fits.

    roles: how many Jobs each replicated job has, and the pods of each.
    """
    tails = [f"-{role}-{count - 1}-{hosts - 1}-xxxxx" for role, (count, hosts) in roles.items()]
    return cut(job, DNS_LABEL - max(map(len, tails)))


def config_map(job: str, uid: str) -> str:
    """Return the name of the job's ConfigMap. It holds the uid, because an earlier job's may still be being deleted."""
    return f"{job}-{_digest(uid)}"


def pod_group(jobset: str, uid: str) -> str:
    """Return the name of the gang of a JobSet's pods. It holds the job's uid, as the ConfigMap's does."""
    return f"{jobset}-{_digest(uid)}"


def sampler_secret(job: str, uid: str) -> str:
    """Return the name of the Secret with the samplers' token. It holds the uid, as the ConfigMap's does."""
    return f"{job}-{_digest(uid)}-{SAMPLER}"


def preflight(job: str, uid: str) -> str:
    """Return the name of the preflight Job."""
    return _before_chips(job, uid, PREFLIGHT)


def stage(job: str, uid: str) -> str:
    """Return the name of the Job that stages the model."""
    return _before_chips(job, uid, STAGE)


def _before_chips(job: str, uid: str, role: str) -> str:
    """Return a Job's name. It holds the uid, because an earlier job's may still be being deleted."""
    tail = f"-{_digest(uid)}-{role}"
    return f"{job[: DNS_LABEL - len(f'{tail}-xxxxx')].rstrip('-')}{tail}"


def provisioning_request(job: str, uid: str) -> str:
    """Return the name of the job's ProvisioningRequest, and of its PodTemplate.

    It holds the uid, because an earlier job's may still be being deleted. GKE may use it as a label value.
    """
    tail = f"-{_digest(uid)}"
    return f"{job[: DNS_LABEL - len(tail)].rstrip('-')}{tail}"


def sandboxes(job: str, uid: str) -> str:
    """Return the name of the template, warm pool and Service of a job's sandboxes.

    It holds the uid, because an earlier job's may still be being deleted; it leaves room for what claims add.
    """
    tail = f"-{_digest(uid)}-{SANDBOX}"
    return f"{job[: DNS_LABEL - len(f'{tail}-99999')].rstrip('-')}{tail}"


def sandbox_claim(sandboxes: str, number: int) -> str:
    """Return the name of a claim, which is its pod's unless a warm one is taken."""
    return f"{sandboxes}-{number}"


def node_pool(job: str, uid: str, slice_index: int) -> str:
    """Return the name of the node pool of one slice. GKE lets it exist once, so a slice never has two."""
    tail = f"-{_digest(uid, 8)}-{slice_index}"
    return f"{job[: NODE_POOL_LIMIT - len(tail)].rstrip('-')}{tail}"


def workload_policy(generation: str, topology: str) -> str:
    """Return the name of the workload policy for one shape of slice; an administrator creates one per region."""
    return f"posttrain-{generation}-{topology}"


def first_host(jobset: str) -> str:
    """Return the DNS name of the first slice's first pod within its namespace."""
    return slice_host(jobset, "0")


def slice_host(jobset: str, slice_index: str) -> str:
    """Return the DNS name of a slice's first pod within its namespace."""
    return role_host(jobset, REPLICATED_JOB, slice_index)


def role_job(jobset: str, role: str, index: int | str) -> str:
    """Return the name of one of the Jobs of a replicated job."""
    return f"{jobset}-{role}-{index}"


def role_host(jobset: str, role: str, index: int | str) -> str:
    """Return the DNS name of the first pod of one of the Jobs of a replicated job, within its namespace."""
    return f"{role_job(jobset, role, index)}-0.{jobset}"


def containers(per_vm: int) -> list[str]:
    """Return the names of the trainer's containers in one pod."""
    return [CONTAINER] if per_vm == 1 else [f"{CONTAINER}-{index}" for index in range(per_vm)]


def cut(name: str, limit: int) -> str:
    """Return `name` if it fits, else its beginning and its hash."""
    if len(name) <= limit:
        return name
    return f"{name[: limit - _HASH - 1].rstrip('-')}-{_digest(name)}"


def _digest(text: str, length: int = _HASH) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
