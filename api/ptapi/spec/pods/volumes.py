"""Volumes, and where they are mounted, as in Kubernetes."""

from ptapi.spec.base import AbsolutePath, DnsLabel, DnsName, SpecModel


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
