"""Overrides of a job's pods, in Kubernetes' names and shapes.

Left out: what the operator decides itself (restart policy, service account token, chips, names), which stays as it is.
`ptapi.validation.rules.pods.overrides` refuses keys and names that are the operator's own.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from ptapi.spec.base import LABEL_KEY, AbsolutePath, DnsLabel, Image, LabelValue, SpecModel, Text, by_key
from ptapi.spec.openapi_schema import ANY_SCALAR
from ptapi.spec.pods.env import EnvVar
from ptapi.spec.pods.resources import ContainerResources
from ptapi.spec.pods.runtime import Word

UserId = Annotated[int, Field(ge=0, le=2_147_483_647)]
Capability = Annotated[str, Field(max_length=64, pattern=r"^[A-Z_]+$")]
Labels = Annotated[dict[str, LabelValue], Field(max_length=64)]


class SeccompProfile(SpecModel):
    """The system calls that are allowed."""

    type: Literal["RuntimeDefault", "Localhost", "Unconfined"]
    """`RuntimeDefault`: those that the container runtime allows."""
    localhost_profile: Text | None = None
    """File on the node, for `Localhost`."""


class _UserSecurity(SpecModel):
    """What a pod and a container can both say."""

    run_as_user: UserId | None = None
    """User of the processes; 0 is root."""
    run_as_group: UserId | None = None
    """Group of the processes."""
    run_as_non_root: bool | None = None
    """Refuse to start as root. Unset: true, unless `runAsUser` is 0."""
    seccomp_profile: SeccompProfile | None = None
    """The system calls that are allowed."""


class PodSecurityContext(_UserSecurity):
    """The security context of the pods. What is unset keeps its default: user, group and fsGroup 65532, not root."""

    fs_group: UserId | None = None
    """Group that owns mounted volumes."""
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] | None = None
    """When the files of a volume are given to `fsGroup`."""
    supplemental_groups: Annotated[list[UserId], Field(max_length=32)] = []
    """Further groups of the processes, such as one that owns the node's devices."""


class Capabilities(SpecModel):
    """Linux capabilities."""

    add: Annotated[list[Capability], Field(max_length=40)] = []
    """Capabilities to have, such as SYS_RESOURCE."""
    drop: Annotated[list[Capability], Field(max_length=40)] = ["ALL"]
    """Capabilities to give up."""


class ContainerSecurityContext(_UserSecurity):
    """The security context of a container. Unset: no privilege escalation, no capabilities."""

    privileged: bool | None = None
    """Give it all of the node's devices and capabilities."""
    allow_privilege_escalation: bool | None = None
    """Let a program get more rights than its parent. Unset: false, unless a privilege here implies it."""
    capabilities: Capabilities | None = None
    """Linux capabilities."""
    read_only_root_filesystem: bool | None = None
    """Make the image's files read-only."""


class Toleration(SpecModel):
    """A taint that the pods tolerate."""

    key: Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_KEY)]
    """The taint's key."""
    operator: Literal["Equal", "Exists"] | None = None
    """`Equal` compares the value, `Exists` does not. Unset: `Equal`."""
    value: LabelValue | None = None
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Unset: all."""
    toleration_seconds: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    """How long a `NoExecute` taint is tolerated."""


class VolumeMount(SpecModel):
    """A volume of the job in an init container."""

    name: DnsLabel
    """Name of a volume of `spec.volumes`."""
    mount_path: AbsolutePath
    """Mount path in the container."""
    sub_path: Text | None = None
    """Directory of the volume. Unset: all of it."""
    read_only: bool = False
    """Mount it read-only."""


class InitContainer(SpecModel):
    """A container that runs before the trainer's, or beside it."""

    name: DnsLabel
    """Name of the container."""
    image: Image | None = None
    """Its image. Unset: the trainer's."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled. Unset: Kubernetes' default."""
    command: Annotated[list[Word], Field(max_length=64)] = []
    """The command. Empty: the image's."""
    args: Annotated[list[Word], Field(max_length=64)] = []
    """Its arguments."""
    working_dir: AbsolutePath | None = None
    """Directory that it starts in."""
    env: Annotated[list[EnvVar], Field(max_length=32, json_schema_extra=by_key("name"))] = []
    """Environment variables."""
    resources: ContainerResources | None = None
    """Requests and limits."""
    security_context: ContainerSecurityContext | None = None
    """Its security context. Unset: the trainer's."""
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=32)] = []
    """Volumes of the job."""
    restart_policy: Literal["Always"] | None = None
    """`Always`: a sidecar, which runs beside the trainer until it ends. Unset: it ends before the trainer starts."""


class Pod(SpecModel):
    """Overrides of the job's pods, as in Kubernetes."""

    labels: Labels | None = None
    """Further labels of every pod."""
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)] | None = None
    """Further annotations of every pod. `cluster-autoscaler.kubernetes.io/safe-to-evict` is `false` unless it is here:
    an autoscaler that empties a node costs the run its progress since the newest checkpoint."""
    security_context: PodSecurityContext | None = None
    """User and groups of the pods of trainer, preflight and staging. What is unset keeps the default, which satisfies
    Pod Security "restricted"."""
    container_security_context: ContainerSecurityContext | None = None
    """The same, and privileges, of the trainer's container, Pathways' workers, preflight and staging."""
    host_network: bool | None = None
    """Use the node's network instead of the pod's, except in preflight and staging. Unset: false."""
    dns_policy: Literal["ClusterFirst", "ClusterFirstWithHostNet"] | None = None
    """How names are resolved. Unset: `ClusterFirstWithHostNet` with `hostNetwork`, else `ClusterFirst`. The others of
    Kubernetes would not find the job's own pods."""
    node_selector: Labels | None = None
    """Further labels of the nodes of the trainer's pods, and of Pathways' workers."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Further taints that every pod tolerates."""
    affinity: Annotated[dict[str, Any], Field(json_schema_extra={ANY_SCALAR: True})] | None = None
    """Affinity of the trainer's pods, and of Pathways' workers: nodeAffinity, podAffinity, podAntiAffinity."""
    init_containers: Annotated[list[InitContainer], Field(max_length=8, json_schema_extra=by_key("name"))] = []
    """Containers that run before trainer, preflight and staging, or beside them."""
