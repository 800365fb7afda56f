"""A PostTrainJob as the API server returned it: the only module that reads a job's manifest.

Spec and status are parsed here, once per change; everything else takes the parsed values. Of a spec that this operator
refuses only the run directory and the TTL are read: nobody else may write the one, and the other still deletes the job.
Both are kept for as long as the job is there, so what many jobs have in common is kept once.
"""

from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ptapi.accelerators import Slice, resolve
from ptapi.accelerators.roles import roles_beside, vms_beside
from ptapi.conditions import ConditionType
from ptapi.errors import SpecError
from ptapi.load import parse_accepted, parse_job
from ptapi.run_directory import run_uri
from ptapi.spec import CapacityOption, PostTrainJob, PostTrainJobSpec
from ptapi.status import PostTrainJobStatus
from ptkube.objects import is_deleting
from ptkube.resources import Manifest
from ptoperator.kube import labels

M = TypeVar("M", bound=BaseModel)
_FIELD_SETS: dict[frozenset[str], set[str]] = {}
"""pydantic gives each of a job's forty models a set of its own, the names of the fields that were given."""


@dataclass(frozen=True)
class JobObject:
    """A job's manifest, its spec or what is wrong with that, and its status.

    status: as the operator last wrote it; the default if another writer made it unreadable.
    """

    manifest: Manifest
    parsed: PostTrainJob | SpecError
    status: PostTrainJobStatus
    name: str
    namespace: str
    uid: str
    generation: int
    created: str
    version: str
    finalizers: list[str]

    @property
    def key(self) -> tuple[str, str]:
        """Return the job's namespace and name."""
        return self.namespace, self.name

    @property
    def spec(self) -> PostTrainJobSpec | None:
        """Return the spec; None if this operator refuses it."""
        return None if isinstance(self.parsed, SpecError) else self.parsed.spec

    @property
    def is_deleting(self) -> bool:
        """Return True if the job is being deleted."""
        return is_deleting(self.manifest)

    @property
    def has_finalizer(self) -> bool:
        """Return True if the job may hold node pools, and stays until they are gone."""
        return labels.FINALIZER in self.finalizers

    @property
    def run_uri(self) -> str:
        """Return the job's run directory; empty if it names none."""
        uri = (self._raw_spec.get("output") or {}).get("uri")
        return run_uri(uri, self.name) if isinstance(uri, str) else ""

    @property
    def ttl_seconds(self) -> int | None:
        """Return how long the job stays after it finished; None: for ever."""
        ttl = (self._raw_spec.get("runPolicy") or {}).get("ttlSecondsAfterFinished")
        return ttl if isinstance(ttl, int) else None

    @property
    def _raw_spec(self) -> Manifest:
        return self.manifest.get("spec") or {}

    @property
    def capacity(self) -> list[CapacityOption]:
        """Return spec.capacity."""
        return self.spec.capacity if self.spec else []

    @property
    def uses_pools(self) -> bool:
        """Return True if the job may hold node pools."""
        return (self.spec is None and self.has_finalizer) or any(each.type != "existing" for each in self.capacity)

    @property
    def accelerator(self) -> Slice | None:
        """Return the job's chips."""
        if self.spec is None:
            return None
        requested = self.spec.accelerator
        return resolve(requested.type, requested.topology, requested.slices)

    @property
    def hosts(self) -> int:
        """Return how many VMs of its chips the job wants; 0 while they are unknown."""
        accelerator = self.accelerator
        if self.spec is None or accelerator is None:
            return 0
        return accelerator.total_vms + vms_beside(accelerator, roles_beside(self.spec))


def read_job(manifest: Manifest, known: JobObject | None = None) -> JobObject:
    """Read a job. known: an earlier reading of it, whose spec is taken if that did not change since."""
    meta = manifest["metadata"]
    uid, generation = str(meta.get("uid") or ""), int(meta.get("generation") or 0)
    status = _status(manifest)
    is_same = known is not None and 0 < generation == known.generation and uid == known.uid
    return JobObject(
        manifest=manifest,
        parsed=known.parsed if known and is_same else _parse(manifest, status, generation),
        status=status,
        name=str(meta["name"]),
        namespace=str(meta["namespace"]),
        uid=uid,
        generation=generation,
        created=str(meta.get("creationTimestamp") or ""),
        version=str(meta.get("resourceVersion") or ""),
        finalizers=list(meta.get("finalizers") or []),
    )


def _parse(manifest: Manifest, status: PostTrainJobStatus, generation: int) -> PostTrainJob | SpecError:
    """Return the job; of one that an earlier operator let begin, whatever this one would refuse."""
    try:
        return _sharing_sets(parse_job(manifest))
    except SpecError as error:
        has_begun = status.holds(ConditionType.VALIDATED) and status.observed_generation == generation
        return _sharing_sets(parse_accepted(manifest)) if has_begun else error


def _status(manifest: Manifest) -> PostTrainJobStatus:
    try:
        return _sharing_sets(PostTrainJobStatus.model_validate(manifest.get("status") or {}))
    except ValidationError:
        return PostTrainJobStatus()


def _sharing_sets(model: M) -> M:
    """Let equal sets of field names of this frozen model, and of those in it, be one object."""
    names = model.__pydantic_fields_set__
    object.__setattr__(model, "__pydantic_fields_set__", _FIELD_SETS.setdefault(frozenset(names), names))
    for value in model.__dict__.values():
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, BaseModel):
                _sharing_sets(each)
    return model
