"""How a job is laid out over pods: the input of every builder.

Derived from the job and the settings only; no I/O.
"""

from collections import Counter
from dataclasses import dataclass

from ptapi.accelerators import Slice, fewer_slices, resolve
from ptapi.accelerators.one_process import uses_pathways
from ptapi.accelerators.roles import Role, roles_beside, vms_beside
from ptapi.spec import API_GROUP, API_VERSION, KIND, PostTrainJob
from ptkube.resources import Manifest
from ptoperator.kube import names
from ptoperator.settings import Settings


@dataclass(frozen=True)
class Layout:
    """A job, its chips and the names of its objects.

    pools: the node pools created for it, if any. is_queued_provisioning: their nodes came by a ProvisioningRequest,
    which its pods name. staged_model: URI of the model's copy, once it is staged. beside: samplers with pods of
    their own, and services. has_sandboxes: the job wants some, and the cluster serves Agent Sandbox as far as is known.
    """

    job: PostTrainJob
    accelerator: Slice
    settings: Settings
    jobset: str
    config_map: str
    pools: tuple[str, ...] = ()
    is_queued_provisioning: bool = False
    staged_model: str = ""
    beside: tuple[Role, ...] = ()
    has_sandboxes: bool = False

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.job.metadata.name

    @property
    def namespace(self) -> str:
        """Return the job's namespace."""
        return self.job.metadata.namespace or "default"

    @property
    def uid(self) -> str:
        """Return the job's uid; empty for one that no API server has (`ptctl workload render`)."""
        return self.job.metadata.uid or ""

    @property
    def trainer_image(self) -> str:
        """Return the image with the trainer."""
        settings = self.settings
        default = settings.gpu_trainer_image if self.accelerator.is_gpu else settings.trainer_image
        return self.job.spec.image or default

    @property
    def is_progress_in_log(self) -> bool:
        """Return True if our trainer writes to a claim, where the operator cannot read."""
        path = self.job.spec.output.uri.removeprefix("file://")
        on_volume = any(path.startswith(f"{volume.mount_path}/") for volume in self.job.spec.volumes)
        is_apart = path.startswith("/") and (on_volume or not self.settings.shared_filesystem)
        return is_apart and self.job.spec.runtime.is_native

    @property
    def slices(self) -> int:
        """Return the number of slices."""
        return self.accelerator.slices

    @property
    def hosts(self) -> int:
        """Return the pods per slice."""
        return self.accelerator.vms

    @property
    def is_pathways(self) -> bool:
        """Return True if one process drives all chips."""
        return uses_pathways(self.job.spec)

    @property
    def is_supervised(self) -> bool:
        """Return True if supervisors restart the trainer in place, on fewer slices if some are lost."""
        return fewer_slices.is_supervised(self.job.spec)

    @property
    def is_dynamic(self) -> bool:
        """Return True if GKE forms the slices when Kueue admits the job."""
        return self.job.spec.accelerator.dynamic_slicing

    @property
    def has_tensorboard_server(self) -> bool:
        """Return True if the job asks for a TensorBoard in the cluster and the operator may start one."""
        return self.job.spec.tensorboard.server and self.settings.tensorboard_servers

    @property
    def has_server(self) -> bool:
        """Return True if the job asks for a server of its model and the operator may start one."""
        return self.job.spec.serve is not None and self.settings.model_servers

    @property
    def is_headless(self) -> bool:
        """Return True if Pathways' servers run alone, for a program elsewhere."""
        return self.job.spec.pathways.headless

    @property
    def chip_pods(self) -> str:
        """Return the name of the replicated job whose pods have the chips."""
        return names.PATHWAYS_WORKER if self.is_pathways else names.REPLICATED_JOB

    @property
    def provisioning_request(self) -> str:
        """Return the name of the ProvisioningRequest for its nodes."""
        return names.provisioning_request(self.name, self.uid)

    @property
    def samplers(self) -> Role | None:
        """Return the samplers with pods of their own; None if there are none."""
        return next((role for role in self.beside if role.name == names.SAMPLER), None)

    def backoff_limit(self, role: Role) -> int:
        """Return how many failures of its pods a Job of a role forgives: a lost host may cost one of each."""
        return role.hosts * self.job.spec.run_policy.max_restarts

    @property
    def held_chips(self) -> dict[str, int]:
        """Return how many chips of each generation the job holds: the trainer's, and those of all roles beside it."""
        held: Counter[str] = Counter()
        for each in (self.accelerator, *(role.chips for role in self.beside)):
            if not each.is_cpu:
                held[each.generation] += each.total_chips
        return dict(held)

    @property
    def pool_count(self) -> int:
        """Return how many node pools the job needs: one per slice, and one for each of the others with chips."""
        return len(self._pools)

    def pool_chips(self, index: int) -> Slice:
        """Return the chips of one of its node pools: first those of the slices, then those of each role."""
        return self._pools[index]

    @property
    def _pools(self) -> list[Slice]:
        chips = (role.chips for role in self.beside if not role.chips.is_cpu)
        return [each for kind in (self.accelerator, *chips) for each in [kind] * kind.slices]

    @property
    def line_hosts(self) -> int:
        """Return how many VMs it wants in the waiting line for the trainer's kind of chips."""
        return self.accelerator.total_vms + vms_beside(self.accelerator, self.beside)

    @property
    def described(self) -> str:
        """Return the job's chips in words: `v6e-4 (4 chips) and 3 samplers on v5p-8 (4 chips) each`."""
        return " and ".join(filter(None, (self.accelerator.describe(), *(role.described for role in self.beside))))

    @property
    def sampler_secret(self) -> str:
        """Return the name of the Secret with the token that trainer and samplers share."""
        return names.sampler_secret(self.name, self.uid)

    @property
    def sampler_addresses(self) -> list[str]:
        """Return where the samplers listen, in their order: `host:port`."""
        return self._addresses(self.samplers, names.SAMPLER_PORT) if self.samplers else []

    @property
    def service_urls(self) -> dict[str, list[str]]:
        """Return the base URLs of each service's replicas, in their order."""
        return {
            role.name: [f"http://{address}" for address in self._addresses(role, role.service.port)]
            for role in self.beside
            if role.service is not None
        }

    def _addresses(self, role: Role, port: int) -> list[str]:
        return [f"{names.role_host(self.jobset, role.name, index)}:{port}" for index in range(role.count)]

    @property
    def sandboxes(self) -> str:
        """Return the name of its sandboxes' objects."""
        return names.sandboxes(self.name, self.uid)

    @property
    def sandbox_address(self) -> str:
        """Return where the trainer finds them: `host:port`, of as many addresses as there are sandboxes."""
        return f"{self.sandboxes}.{self.namespace}.svc:{names.SANDBOX_PORT}"

    @property
    def pods(self) -> int:
        """Return the number of pods: one per VM, Pathways' head, and those beside them."""
        return self.slices * self.hosts + int(self.is_pathways) + self.pods_beside

    @property
    def pods_beside(self) -> int:
        """Return the number of the pods of samplers and services."""
        return sum(role.pods for role in self.beside)

    @property
    def processes_per_host(self) -> int:
        """Return the containers per pod: two on tpu7x, where each takes one NUMA node and half of the chips."""
        return self.accelerator.parallel_containers

    @property
    def processes(self) -> int:
        """Return the number of JAX processes."""
        return self.slices * self.hosts * self.processes_per_host

    @property
    def computes_process_id(self) -> bool:
        """Return True if a process's number is none of Kubernetes' indices, so that it must be computed."""
        return self.processes > 1 and (self.processes_per_host > 1 or (self.slices > 1 and self.hosts > 1))

    @property
    def preflight(self) -> str:
        """Return `Enforce`, `Warn` or `Skip`; programs of others cannot be compiled."""
        is_ours = self.job.spec.runtime.is_native and not self.is_headless
        return self.job.spec.preflight or ("Enforce" if is_ours and not self.accelerator.is_cpu else "Skip")

    @property
    def is_staged(self) -> bool:
        """Return True if the model is copied into a bucket first."""
        return self.job.spec.model.stage

    @property
    def quota_first(self) -> bool:
        """Return True if Kueue's quota comes before the job's node pools."""
        spec = self.job.spec
        return spec.queue is not None and any(option.type != "existing" for option in spec.capacity)

    @property
    def owner_references(self) -> list[Manifest]:
        """Return the job as the owner of all its objects, so that deleting it deletes them."""
        if not self.uid:
            return []
        owner = {"apiVersion": f"{API_GROUP}/{API_VERSION}", "kind": KIND, "name": self.name, "uid": self.uid}
        return [{**owner, "controller": True, "blockOwnerDeletion": True}]


def jobset_name(job: PostTrainJob, accelerator: Slice) -> str:
    """Return the name of the job's JobSet."""
    if job.spec.accelerator.dynamic_slicing:
        longest = names.PATHWAYS_JOBSET if uses_pathways(job.spec) else names.SLICED_JOBSET
        return names.cut(job.metadata.name, longest)
    if uses_pathways(job.spec):
        return names.cut(job.metadata.name, names.PATHWAYS_JOBSET)
    beside = {role.name: (role.count, role.hosts) for role in roles_beside(job.spec)}
    return names.jobset(job.metadata.name, {names.REPLICATED_JOB: (accelerator.slices, accelerator.vms), **beside})


def layout_of(job: PostTrainJob, settings: Settings) -> Layout:
    """Return the layout of a job. Raises SpecError for an accelerator that does not exist."""
    requested = job.spec.accelerator
    accelerator = resolve(requested.type, requested.topology, requested.slices)
    return Layout(
        job=job,
        accelerator=accelerator,
        settings=settings,
        jobset=jobset_name(job, accelerator),
        config_map=names.config_map(job.metadata.name, job.metadata.uid or ""),
        beside=roles_beside(job.spec),
        has_sandboxes=job.spec.sandbox is not None,
    )
