"""The PostTrainJob itself."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.algorithm import Algorithm
from ptapi.spec.base import DnsLabel, DnsName, Image, LabelValue, QueueName, SpecModel, by_key
from ptapi.spec.chips.accelerator import Accelerator
from ptapi.spec.chips.capacity import CapacityOption
from ptapi.spec.chips.pathways import Pathways
from ptapi.spec.data import DataSpec
from ptapi.spec.evaluation_checkpoint_export import Checkpoint, Evaluation, Export, Output, RunPolicy, Tensorboard
from ptapi.spec.model import ModelSpec
from ptapi.spec.pods.env import EnvVar
from ptapi.spec.pods.overrides import Pod
from ptapi.spec.pods.resources import Resources
from ptapi.spec.pods.runtime import Runtime
from ptapi.spec.pods.services import MOST_SERVICES, Service
from ptapi.spec.pods.volumes import Volume
from ptapi.spec.rollouts.environment import Environment
from ptapi.spec.rollouts.rewards import Reward
from ptapi.spec.rollouts.rollout import Rollout
from ptapi.spec.rollouts.sandbox import Sandbox
from ptapi.spec.serve import Serve
from ptapi.spec.tracking import Tracking
from ptapi.spec.training import Training

JOB_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""Stricter than Kubernetes' names: the job's pods are DNS labels, which start with a letter."""


class PostTrainJobSpec(SpecModel):
    """The model, data, algorithm, chips and output of a post-training run."""

    model: ModelSpec
    """The model that training starts from."""
    algorithm: Algorithm
    """Exactly one of sft, dpo, kto, reward, grpo, distill, ppo, raft, sdpo."""
    data: DataSpec
    """Training and held-out data."""
    rewards: Annotated[list[Reward], Field(max_length=16)] = []
    """Rewards of completions; grpo needs at least one, or a Python environment, which returns its own."""
    environment: Environment | None = None
    """Tools or an environment that reply to the model between its turns. Unset: one turn."""
    sandbox: Sandbox | None = None
    """Run code rewards and Python tools in Agent Sandbox's pods. Unset, or where the cluster does not serve them: in
    processes of the trainer's pod."""
    services: Annotated[list[Service], Field(max_length=MOST_SERVICES, json_schema_extra=by_key("name"))] = []
    """Models and programs beside the trainer, in pods of their own: judges, teachers, servers of environments."""
    training: Training = Training()
    """Length, batch, optimizer and layout of the run."""
    rollout: Rollout = Rollout()
    """Sampling of completions."""
    evaluation: Evaluation = Evaluation()
    """When `data.eval` is evaluated."""
    checkpoint: Checkpoint = Checkpoint()
    """Saved state to resume from."""
    export: Export = Export()
    """The trained model, in a format that other programs load."""
    accelerator: Accelerator
    """The chips of the job."""
    capacity: Annotated[list[CapacityOption], Field(min_length=1, max_length=16)] = [CapacityOption(type="existing")]
    """Ways to obtain the chips, tried in order."""
    pathways: Pathways = Pathways()
    """One controller for all chips."""
    runtime: Runtime = Runtime()
    """What runs: posttrain's trainer, or something else."""
    preflight: Literal["Enforce", "Warn", "Skip"] | None = None
    """Compile the job's step for its chips, on a CPU, before the chips are obtained. `Enforce`: a job that does not
    fit fails and costs nothing. `Warn`: it runs anyway. `Skip`: nothing is compiled and nothing refused. Unset:
    `Enforce` on TPUs, because running out of memory after a long queue is the commonest way to lose a day; `Skip` on
    CPU devices."""
    run_policy: RunPolicy = RunPolicy()
    """Limits and lifecycle of the run."""
    queue: QueueName | None = None
    """Kueue LocalQueue. Quota is reserved before `capacity` creates any node pools. Unset: not queued."""
    queue_priority_class_name: QueueName | None = None
    """Kueue WorkloadPriorityClass: the job's priority in `queue`. Unset: `priorityClassName` applies there too."""
    priority_class_name: DnsName | None = None
    """PriorityClass of every pod."""
    image: Image | None = None
    """Trainer image. Unset: the operator's setting."""
    image_pull_secrets: Annotated[list[DnsName], Field(max_length=16)] = []
    """Secrets to pull the image with."""
    env: Annotated[list[EnvVar], Field(max_length=128, json_schema_extra=by_key("name"))] = []
    """Environment variables of the trainer."""
    volumes: Annotated[list[Volume], Field(max_length=32, json_schema_extra=by_key("name"))] = []
    """Volumes and where they are mounted."""
    resources: Resources | None = None
    """Requests and limits of the containers."""
    pod: Pod | None = None
    """Overrides of the pods: labels, security, network, placement, init containers."""
    service_account_name: DnsName | None = None
    """ServiceAccount of the pods. Unset: the operator's setting (one without Kubernetes rights)."""
    tensorboard: Tensorboard = Tensorboard()
    """TensorBoard files in the run directory."""
    tracking: Tracking | None = None
    """Experiment trackers: Weights & Biases, MLflow, Trackio, OpenTelemetry. Unset: none."""
    serve: Serve | None = None
    """Serve the exported model in the cluster when the job has succeeded, for as long as the job exists; where the
    administrator allows it. Unset: not served. `ptctl serve JOB --on gke` does it at any time."""
    output: Output
    """Where results go."""

    @property
    def label(self) -> str:
        """Return what the job does, in a word: the algorithm or its variant, or `function`."""
        return self.algorithm.label if self.runtime.function is None else "function"


class ObjectMeta(SpecModel):
    """The part of Kubernetes' metadata that a job file contains."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=JOB_NAME)]
    """Name of the job."""
    namespace: DnsLabel | None = None
    """Its namespace."""
    uid: Annotated[str, Field(max_length=64)] | None = None
    """Set by the API server; identifies the run directory's owner."""
    labels: dict[str, LabelValue] = {}
    """Labels."""
    annotations: dict[str, str] = {}
    """Annotations."""


API_GROUP = "posttrain.dev"
API_VERSION = "v1alpha1"
KIND = "PostTrainJob"
PLURAL = "posttrainjobs"


class PostTrainJob(SpecModel):
    """One post-training run, as a user applies it."""

    api_version: Literal["posttrain.dev/v1alpha1"]
    """`posttrain.dev/v1alpha1`."""
    kind: Literal["PostTrainJob"]
    """`PostTrainJob`."""
    metadata: ObjectMeta
    """Name, namespace, labels."""
    spec: PostTrainJobSpec
    """The job."""
