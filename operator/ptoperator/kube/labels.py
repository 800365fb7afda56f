"""Label and annotation keys, a sentence each, and the sets of labels that our objects carry.

Label values are at most 63 characters, which a job's name always is; child names are cut (`names`), labels never.
"""

from ptapi.accelerators import Slice
from ptkube.objects import label
from ptkube.resources import Manifest
from ptoperator.kube import names

JOB = "posttrain.dev/job"
"""The full name of the PostTrainJob, on everything made for it: the selector of logs, pods and watches."""
JOB_UID = "posttrain.dev/job-uid"
"""The PostTrainJob's uid: tells a job from an earlier one of the same name."""
RESTARTS_BEFORE = "posttrain.dev/restarts-before"
"""Annotation of a JobSet: restarts the job had with JobSets before this one (a JobSet counts from 0)."""

TENSORBOARD = "posttrain.dev/tensorboard"
"""Which TensorBoard a pod is of: the name of its Deployment."""
TENSORBOARD_UNTIL = "posttrain.dev/tensorboard-until"
"""Annotation of a job, and of the Deployment: somebody looks at TensorBoard until this time (RFC 3339)."""

SERVER = "posttrain.dev/server"
"""On every object and pod of a server of a model: the server's name."""
JOB_SERVED = "posttrain.dev/served-job"
"""On every object and pod of a server: the job whose model it serves. Not `JOB`, which selects a trainer's pods."""

SANDBOX = "posttrain.dev/sandbox"
"""On every object and pod of a run's sandboxes: their common name. They have no `JOB`, which selects a trainer's pods.
Annotation of a JobSet: its trainer looks for sandboxes of that name."""
SANDBOX_CLAIMED = "posttrain.dev/claimed-sandbox"
"""On the pods that are claimed, and on no warm one: the same name."""

NAME = "app.kubernetes.io/name"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
"""Kueue admits the JobSet through this LocalQueue."""

KUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
"""WorkloadPriorityClass of the JobSet: its place in the queue, whatever its pods' priority."""
KUEUE_PRIORITY_BOOST = "kueue.x-k8s.io/priority-boost"
"""Annotation of a Workload: what Kueue adds to its priority."""
KUEUE_JOB_UID = "kueue.x-k8s.io/job-uid"
"""Kueue's own label of a Workload: uid of what it was made for, which for us is the JobSet."""
POOLS_CHECK = "posttrain.dev/node-pools"
"""controllerName of the AdmissionCheck by which Kueue asks for node pools once quota is reserved."""

SLICE_CHECK = "accelerator.gke.io/slice"
"""controllerName of the AdmissionCheck by which Kueue has GKE form slices (dynamic slicing)."""

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""Kueue's dispatch to other clusters: `spec.managedBy` of a JobSet, and controllerName of the AdmissionCheck."""
JOBSET_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"
"""`spec.managedBy` of a JobSet of this cluster, where it is set at all."""

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
"""JobSet's own label on Jobs and pods."""
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
"""JobSet's own label: which replica of the replicated job, which for us is the slice."""
REPLICATED_JOB_NAME = "jobset.sigs.k8s.io/replicatedjob-name"
"""JobSet's own label and annotation: which replicated job a pod is of."""
REPLICATED_JOB_REPLICAS = "jobset.sigs.k8s.io/replicatedjob-replicas"
"""JobSet's own label: how many Jobs that replicated job has, which for us is how many slices."""
COORDINATOR = "jobset.sigs.k8s.io/coordinator"
"""JobSet's own label on every pod: the DNS name of the coordinator, Pathways' head."""
RESTART_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
"""JobSet's own label: how often the JobSet had restarted when the Job was made."""
EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
"""JobSet's annotation: one child Job per value of the named node label."""
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""The Job controller's annotation and label: which pod of the Job, which for us is the host."""

NODE_POOL = "cloud.google.com/gke-nodepool"
"""GKE's label of a node: the node pool it belongs to."""
TPU_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
"""GKE's label of a node: its chips."""
TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
"""GKE's label of a node: the shape of its slice."""
TPU_SLICE_TOPOLOGY = "cloud.google.com/gke-tpu-slice-topology"
"""GKE's annotation of a pod: the shape of the slice that is to be formed for it (dynamic slicing)."""
GPU_ACCELERATOR = "cloud.google.com/gke-accelerator"
"""GKE's label of a node: its GPUs."""
POOL_TAINT = "posttrain.dev/node-pool"
"""Taint of the nodes that the operator makes, with their pool's name: only pods of the job that holds it run there.
Also a label of those nodes, which is `true` on all of them."""
FINALIZER = "posttrain.dev/node-pools"
"""Finalizer of a job that may hold node pools: it goes after them."""

PROVISIONING_REQUEST = "autoscaling.x-k8s.io/consume-provisioning-request"
"""The cluster autoscaler's annotation of a pod: the ProvisioningRequest whose nodes it runs on."""
PROVISIONING_CLASS = "autoscaling.x-k8s.io/provisioning-class-name"
"""The cluster autoscaler's annotation of a pod: the class of that request."""

POOL_MANAGER = "posttrain-managed-by"
"""Label of a node pool: that it is ours. (Google allows small letters, digits, `-` and `_` in these.)"""
POOL_NAMESPACE = "posttrain-namespace"
"""Label of a node pool: namespace of the job it is, or was, for."""
POOL_JOB = "posttrain-job"
"""Label of a node pool: the job's name; for people and for the bill."""
POOL_JOB_UID = "posttrain-job-uid"
"""Label of a node pool: uid of the job that holds it; absent from a pool that waits for its next job."""
POOL_SLICE = "posttrain-slice"
"""Label of a node pool: which slice of its job it is."""
POOL_SHAPE = "posttrain-shape"
"""Label of a node pool: hash of what cannot be changed about it, and of nothing else."""
POOL_IDLE_SINCE = "posttrain-idle-since"
"""Label of a node pool without a job: Unix time at which the last job let go of it."""
POOL_ROLE = "posttrain-role"
"""Label of a node pool that all jobs share: what it is for."""
MADE_BY = "posttrain-made-by"
"""Label of a cluster and of its lasting node pools: `ptctl cluster create` made them, and the operator leaves them."""

PREFLIGHT = "preflight"
"""Value of COMPONENT: a pod that compiles and does not train."""
STAGE = "stage"
"""Value of COMPONENT: a pod that stages a model and does not train."""
MANAGER = "posttrain"
"""Value of MANAGED_BY."""


SERVICE = "service"
"""Value of COMPONENT: a pod that serves the trainer."""
_TRAINERS = (names.REPLICATED_JOB, names.PATHWAYS_HEAD, names.PATHWAYS_WORKER)
"""Replicated jobs without which nothing trains."""


def nodes_of(accelerator: Slice) -> dict[str, str]:
    """Return GKE's labels of nodes with these chips; a GPU machine's size is what a pod requests."""
    if accelerator.is_gpu:
        return {GPU_ACCELERATOR: accelerator.gke_accelerator}
    return {TPU_ACCELERATOR: accelerator.gke_accelerator, TPU_TOPOLOGY: accelerator.topology}


def for_job(name: str, uid: str) -> dict[str, str]:
    """Return the labels of an object that belongs to a job."""
    return {NAME: "posttrain", MANAGED_BY: MANAGER, JOB: name, JOB_UID: uid}


def for_pod(name: str, uid: str) -> dict[str, str]:
    """Return the labels of a pod that trains or samples: a NetworkPolicy lets those reach each other."""
    return {**for_job(name, uid), COMPONENT: "trainer"}


def for_service(name: str, uid: str) -> dict[str, str]:
    """Return the labels of a service's pod: NetworkPolicies let trainers reach it, and it none of them."""
    return {**for_job(name, uid), COMPONENT: SERVICE}


def for_preflight(name: str, uid: str) -> dict[str, str]:
    """Return the labels of the Job that compiles a job before it has chips, and of its pods."""
    return {**for_job(name, uid), COMPONENT: PREFLIGHT}


def for_stage(name: str, uid: str) -> dict[str, str]:
    """Return the labels of the Job that stages a model before the job has chips, and of its pods."""
    return {**for_job(name, uid), COMPONENT: STAGE}


def is_before_chips(pod: Manifest) -> bool:
    """Return True for a pod of preflight or of staging: it runs before the job's own and trains nothing."""
    return is_of_preflight(pod) or is_of_stage(pod)


def is_of_stage(pod: Manifest) -> bool:
    """Return True for a pod that stages a model."""
    return label(pod, COMPONENT) == STAGE


def is_of_preflight(pod: Manifest) -> bool:
    """Return True for preflight's pod."""
    return label(pod, COMPONENT) == PREFLIGHT


def is_of_service(pod: Manifest) -> bool:
    """Return True for a pod of a service."""
    return label(pod, COMPONENT) == SERVICE


def is_beside(pod: Manifest) -> bool:
    """Return True for a pod beside the trainer's: of a sampler or a service."""
    return label(pod, REPLICATED_JOB_NAME) not in ("", *_TRAINERS)


def is_of_job(pod: Manifest, uid: str) -> bool:
    """Return True if the pod belongs to this very job, not to an earlier one of its name."""
    return label(pod, JOB_UID) == uid


def selector(name: str) -> str:
    """Return the label selector for everything of a job, by its full name."""
    return f"{JOB}={name}"
