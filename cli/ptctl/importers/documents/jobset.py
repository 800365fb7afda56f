"""A bare JobSet, such as XPK and gcluster apply: TPU workers, and with Pathways a head with the user's container."""

from typing import Any

from ptctl.errors import InputError
from ptctl.importers.documents.object_reader import ObjectReader, put_metadata, put_node_selection, put_pod
from ptctl.importers.draft import Draft
from ptctl.importers.program import put_program
from ptkube.resources import Manifest

KINDS = ("JobSet",)
_POD = ("template", "spec", "template", "spec")
Path = tuple[str | int, ...]
_SERVERS = {
    "pathways-proxy": ("proxyImage", "proxyArgs"),
    "pathways-rm": ("serverImage", "serverArgs"),
    "pathways-worker": ("serverImage", "workerArgs"),
}
_OPERATORS_FLAGS = ("--server_port", "--resource_manager_address", "--gcs_scratch_location", "--node_type",
                    "--instance_count", "--instance_type")  # fmt: skip


def draft_of(body: Manifest, others: list[Manifest]) -> Draft:
    """Return the job of an object."""
    draft, reader = Draft("a JobSet"), ObjectReader(body)
    put_metadata(draft, reader)
    if (ttl := reader.take("spec", "ttlSecondsAfterFinished")) is not None:
        draft.put("spec.runPolicy.ttlSecondsAfterFinished", ttl, "ttlSecondsAfterFinished")
    if (restarts := reader.take("spec", "failurePolicy", "maxRestarts")) is not None:
        draft.put("spec.runPolicy.maxRestarts", restarts, "maxRestarts")
    put_replicated_jobs(draft, reader, ("spec", "replicatedJobs"))
    reader.note_rest(draft)
    return draft


def put_replicated_jobs(draft: Draft, reader: ObjectReader, path: tuple[str, ...]) -> None:
    """Write the workers, and the trainer's container, which is a head's with Pathways."""
    jobs: Any = reader.body
    for step in path:
        jobs = jobs.get(step) or {}
    tpus = [at for at, job in enumerate(jobs) if "gke-tpu-accelerator" in str(job) or "google.com/tpu" in str(job)]
    if len(tpus) != 1:
        raise InputError(f"{'.'.join(path)}: {len(tpus)} jobs with TPUs; accepted: one")
    workers: Path = (*path, tpus[0])
    if (slices := reader.take(*workers, "replicas")) is not None:
        draft.put("spec.accelerator.slices", slices, "replicas")
    reader.take(*workers, "name")
    heads = [at for at, job in enumerate(jobs) if at != tpus[0] and "pathways" in str(job.get("name"))]
    if not heads:
        return put_pod(draft, reader, (*workers, *_POD), _container(jobs[tpus[0]]))
    put_node_selection(draft, reader, (*workers, *_POD), 0)
    draft.put("spec.pathways.enabled", True, "pathways-head")
    _put_servers(draft, reader, (*workers, *_POD))
    _put_servers(draft, reader, (*path, heads[0], *_POD))
    reader.take(*path, heads[0], "name")
    containers = reader.get(*path, heads[0], *_POD, "containers") or []
    own = [at for at, one in enumerate(containers) if one is not None]
    if own:
        return put_pod(draft, reader, (*path, heads[0], *_POD), own[0])
    draft.put("spec.pathways.headless", True, "pathways-head")
    return put_program(draft, None)


def _container(job: Manifest) -> int:
    containers = job["template"]["spec"]["template"]["spec"]["containers"]
    return next((at for at, one in enumerate(containers) if "google.com/tpu" in str(one)), 0)


def _put_servers(draft: Draft, reader: ObjectReader, pod: Path) -> None:
    """Take Pathways' own containers: their images and further flags have fields, and the operator knows the rest."""
    for kind in ("initContainers", "containers"):
        for at in range(_length(reader, (*pod, kind))):
            if _name(reader, (*pod, kind, at)) in _SERVERS:
                _put_server(draft, reader.take(*pod, kind, at))


def _put_server(draft: Draft, server: Manifest) -> None:
    image, arguments = _SERVERS[server["name"]]
    if server.get("image"):
        draft.put(f"spec.pathways.{image}", server["image"], server["name"])
    for word in server.get("args") or []:
        flag, _, value = word.partition("=")
        if flag == "--num_elastic_slices":
            draft.put("spec.pathways.elasticSlices", int(value), flag)
        elif flag not in _OPERATORS_FLAGS:
            draft.job["spec"]["pathways"].setdefault(arguments, []).append(word)
    draft.note(server["name"], "the operator starts it; its variables, ports and resources are the operator's")


def _length(reader: ObjectReader, path: Path) -> int:
    return len(reader.get(*path) or ())


def _name(reader: ObjectReader, path: Path) -> str:
    return str((reader.get(*path) or {}).get("name"))
