"""How a job is laid out over pods: the value that every builder gets.

Everything here follows from the job and the settings; nothing is looked up.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptapi.accelerators import Slice, resolve
from ptapi.spec import API_GROUP, API_VERSION, KIND, PostTrainJob
from ptkube.resources import Manifest
from ptoperator.kube import names
from ptoperator.settings import Settings


@dataclass(frozen=True)
class Layout:
    """A job, its chips and the names of its objects. pools: the node pools that were made for it, if any were.
    is_booked: their nodes came by a ProvisioningRequest, which its pods name."""

    job: PostTrainJob
    accelerator: Slice
    settings: Settings
    jobset: str
    config_map: str
    pools: tuple[str, ...] = ()
    is_queued_provisioning: bool = False

    @property
    def name(self) -> str:
        return self.job.metadata.name

    @property
    def namespace(self) -> str:
        return self.job.metadata.namespace or "default"

    @property
    def uid(self) -> str:
        """Empty for a job that no API server has seen (`ptctl workload render`)."""
        return self.job.metadata.uid or ""

    @property
    def slices(self) -> int:
        return self.accelerator.slices

    @property
    def hosts(self) -> int:
        """Pods per slice."""
        return self.accelerator.vms

    @property
    def is_pathways(self) -> bool:
        """Whether one process drives all chips."""
        return self.job.spec.pathways.enabled is True

    @property
    def is_headless(self) -> bool:
        """Whether Pathways' servers run alone, for a program elsewhere."""
        return self.job.spec.pathways.headless

    @property
    def chip_pods(self) -> str:
        """Name of the replicated job whose pods have the chips."""
        return names.PATHWAYS_WORKER if self.is_pathways else names.REPLICATED_JOB

    @property
    def provisioning_request(self) -> str:
        """Name of the ProvisioningRequest for its nodes, where there is one."""
        return names.provisioning_request(self.name, self.uid)

    @property
    def pods(self) -> int:
        """Pods of the run: one per VM, and Pathways' head."""
        return self.slices * self.hosts + int(self.is_pathways)

    @property
    def processes_per_host(self) -> int:
        """Containers per pod: two on tpu7x, where each takes one NUMA node and half of the chips."""
        return self.accelerator.parallel_containers

    @property
    def processes(self) -> int:
        """JAX processes of the run."""
        return self.slices * self.hosts * self.processes_per_host

    @property
    def computes_process_id(self) -> bool:
        """Whether a process's number is none of Kubernetes' indices, so that it must be computed."""
        return self.processes > 1 and (self.processes_per_host > 1 or (self.slices > 1 and self.hosts > 1))

    @property
    def preflight(self) -> str:
        """`Enforce`, `Warn` or `Skip`; what runs in the place of our trainer cannot be compiled."""
        is_ours = self.job.spec.runtime.is_native and not self.is_headless
        return self.job.spec.preflight or ("Enforce" if is_ours and not self.accelerator.is_cpu else "Skip")

    @property
    def quota_first(self) -> bool:
        """Whether Kueue's quota comes before the node pools that are made for the job."""
        spec = self.job.spec
        return spec.queue is not None and any(option.type != "existing" for option in spec.capacity)

    @property
    def owner_references(self) -> list[Manifest]:
        """The job owns all its objects, so that deleting it deletes them."""
        if not self.uid:
            return []
        owner = {"apiVersion": f"{API_GROUP}/{API_VERSION}", "kind": KIND, "name": self.name, "uid": self.uid}
        return [{**owner, "controller": True, "blockOwnerDeletion": True}]


def jobset_name(job: PostTrainJob, accelerator: Slice) -> str:
    """Name of the job's JobSet."""
    if job.spec.pathways.enabled is True:
        return names.cut(job.metadata.name, names.PATHWAYS_JOBSET)
    return names.jobset(job.metadata.name, accelerator.slices, accelerator.vms)


def layout_of(job: PostTrainJob, settings: Settings) -> Layout:
    """Raises SpecError for an accelerator that does not exist."""
    asked = job.spec.accelerator
    accelerator = resolve(asked.type, asked.topology, asked.slices)
    return Layout(
        job=job,
        accelerator=accelerator,
        settings=settings,
        jobset=jobset_name(job, accelerator),
        config_map=names.config_map(job.metadata.name, job.metadata.uid or ""),
    )
