"""Pod settings as in Kubernetes: environment, volumes, runtime."""

from typing import Annotated

from pydantic import Field

from ptapi.spec.base import AbsolutePath, DnsLabel, DnsName, EnvName, SpecModel
from ptapi.spec.model import SecretKeyRef

Word = Annotated[str, Field(max_length=4096)]


class EnvSource(SpecModel):
    """The source of a variable's value."""

    secret_key_ref: SecretKeyRef
    """A key of a Secret."""


class EnvVar(SpecModel):
    """An environment variable of the trainer."""

    name: EnvName
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Its value; tokens belong in a Secret."""
    value_from: EnvSource | None = None
    """A Secret's key, instead of `value`."""


class ConfigMapVolume(SpecModel):
    """Files from a ConfigMap."""

    name: DnsName
    """Name of the ConfigMap."""


class SecretVolume(SpecModel):
    """Files from a Secret."""

    secret_name: DnsName
    """Name of the Secret."""


class ClaimVolume(SpecModel):
    """A PersistentVolumeClaim."""

    claim_name: DnsName
    """Name of the claim."""


class EmptyDirVolume(SpecModel):
    """Scratch space that lives as long as the pod."""


class Volume(SpecModel):
    """A volume and where it is mounted; exactly one source."""

    name: DnsLabel
    """Name of the volume."""
    mount_path: AbsolutePath
    """Mount path in the trainer's container."""
    read_only: bool = False
    """Mount it read-only."""
    config_map: ConfigMapVolume | None = None
    """Files from a ConfigMap."""
    secret: SecretVolume | None = None
    """Files from a Secret."""
    persistent_volume_claim: ClaimVolume | None = None
    """A PersistentVolumeClaim."""
    empty_dir: EmptyDirVolume | None = None
    """Scratch space."""


class NativeRuntime(SpecModel):
    """posttrain's own trainer."""


class MaxTextRuntime(SpecModel):
    """MaxText's `train_sft` (for sft) or `train_rl` (for grpo) in `image`, configured from this spec.

    `model.uri` is a MaxText checkpoint (`gs://…/0/items`).
    """

    model_name: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """MaxText's name of the architecture, such as `llama3.1-70b-Instruct`."""
    args: Annotated[
        list[Annotated[str, Field(max_length=4096, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*=")]], Field(max_length=256)
    ] = []
    """Further MaxText options as `key=value`, such as `rollout_tensor_parallelism=8`; they override this spec."""


class ContainerRuntime(SpecModel):
    """Any command in `image`.

    It gets the job at /etc/posttrain/job.yaml, its run directory in POSTTRAIN_RUN_DIRECTORY, and JAX's variables for
    several processes; its exit codes have the native trainer's meaning.
    """

    command: Annotated[list[Word], Field(min_length=1, max_length=64)]
    """The command and its first arguments; it runs without a shell unless it starts one."""
    args: Annotated[list[Word], Field(max_length=256)] = []
    """Further arguments."""


class Runtime(SpecModel):
    """The trainer that runs: exactly one of these; unset is `native`."""

    native: NativeRuntime | None = None
    """posttrain's own trainer."""
    maxtext: MaxTextRuntime | None = None
    """MaxText."""
    container: ContainerRuntime | None = None
    """Any command."""

    @property
    def is_native(self) -> bool:
        """Return True if posttrain's own trainer runs."""
        return self.maxtext is None and self.container is None
