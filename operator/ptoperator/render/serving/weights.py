"""How a server's pod sees weights: directories of buckets by GKE's Cloud Storage FUSE, claims as the job mounted them.

A server reads only the directories that it serves: a bucket is mounted from that directory on, read-only.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ptapi.errors import Finding, SpecError
from ptapi.spec.pods.volumes import Volume
from ptkube.resources import Manifest

_ROOT = "/models"
BUCKET, _CLAIM, _HUB = "gs://", "file://", "hf://"
FUSE_ANNOTATION = "gke-gcsfuse/volumes"
"""GKE puts the sidecar that mounts buckets into pods with this annotation."""


class Mounted(NamedTuple):
    """Weights in a pod. name: an adapter's, empty for the model. path: what vLLM loads. volume: the bucket's."""

    name: str
    path: str
    volume: str = ""
    bucket: str = ""
    directory: str = ""
    claim: Volume | None = None


def mounted(name: str, uri: str, volumes: Sequence[Volume]) -> Mounted:
    """Return where the pod finds weights. Raises SpecError for those that no pod can reach."""
    if uri.startswith(_HUB):
        return Mounted(name, uri.removeprefix(_HUB))
    if uri.startswith(BUCKET):
        return bucket_weights(name, uri)
    path = uri.removeprefix(_CLAIM).rstrip("/")
    claim = next((each for each in volumes if _holds(each, path)), None)
    if claim is None:
        accepted = "weights on gs://, hf://, or below a PersistentVolumeClaim of the job's spec.volumes"
        raise SpecError([Finding("serve", uri, f"accepted: {accepted}", "set spec.output.uri to a bucket")])
    return Mounted(name, path, claim=claim)


def bucket_weights(name: str, uri: str) -> Mounted:
    """Return where the pod finds weights of a bucket. Raises SpecError for a name that cannot be mounted."""
    bucket, _, directory = uri.removeprefix(BUCKET).rstrip("/").partition("/")
    if "," in directory:
        raise SpecError([Finding("serve", uri, "accepted: a directory without commas, which separate mount options")])
    volume = f"adapter-{name}"[:63].rstrip("-") if name else "model"
    return Mounted(name, f"{_ROOT}/{volume}", volume, bucket, directory)


def volumes_of(weights: Sequence[Mounted]) -> list[Manifest]:
    """Return the pod's volumes."""
    buckets = [bucket_volume(each) for each in weights if each.bucket]
    claims = {each.claim.name: each.claim for each in weights if each.claim is not None}
    return [*buckets, *(_claim_volume(claim) for claim in claims.values())]


def mounts_of(weights: Sequence[Mounted]) -> list[Manifest]:
    """Return the container's mounts."""
    buckets = [{"name": each.volume, "mountPath": each.path, "readOnly": True} for each in weights if each.bucket]
    claims = {each.claim.name: each.claim for each in weights if each.claim is not None}
    return [
        *buckets,
        *({"name": claim.name, "mountPath": claim.mount_path, "readOnly": True} for claim in claims.values()),
    ]


def _holds(volume: Volume, path: str) -> bool:
    return volume.persistent_volume_claim is not None and f"{path}/".startswith(f"{volume.mount_path}/")


def bucket_volume(weights: Mounted, driver: str = "gcsfuse.csi.storage.gke.io") -> Manifest:
    """Return the volume of a bucket's directory."""
    options = ["implicit-dirs", *([f"only-dir={weights.directory}"] if weights.directory else [])]
    attributes = {"bucketName": weights.bucket, "mountOptions": ",".join(options)}
    csi = {"driver": driver, "readOnly": True, "volumeAttributes": attributes}
    return {"name": weights.volume, "csi": csi}


def _claim_volume(volume: Volume) -> Manifest:
    assert volume.persistent_volume_claim is not None
    # Not read-only as a volume: where the trainer has it attached to write, that would be refused.
    claim = {"claimName": volume.persistent_volume_claim.claim_name}
    return {"name": volume.name, "persistentVolumeClaim": claim}
