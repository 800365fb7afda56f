"""Kubeflow's TrainJob (trainer.kubeflow.org), with its TrainingRuntime in the same stream."""

from ptctl.errors import InputError
from ptctl.importers.documents.jobset import put_replicated_jobs
from ptctl.importers.documents.object_reader import ObjectReader, put_metadata
from ptctl.importers.draft import Draft
from ptkube.resources import Manifest

KINDS = ("TrainJob",)
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
_POD = ("template", "spec", "template", "spec")


def draft_of(body: Manifest, others: list[Manifest]) -> Draft:
    """Return the job of an object; the runtime among the others is part of it."""
    draft, reader = Draft("a TrainJob"), ObjectReader(body)
    put_metadata(draft, reader)
    name = reader.take("spec", "runtimeRef", "name")
    runtime = next((one for one in others if _is_runtime(one, name)), None)
    if runtime is None:
        raise InputError(
            f"spec.runtimeRef.name: {name}: not in the file; accepted: the TrainJob with its runtime",
            f"kubectl get clustertrainingruntime {name} -o yaml, after a line of ---",
        )
    others.remove(runtime)
    for key in ("apiGroup", "kind"):
        reader.take("spec", "runtimeRef", key)
    _put_initializers(draft, reader)
    if reader.take("spec", "suspend"):
        draft.put("spec.runPolicy.suspend", True, "suspend")
    if (deadline := reader.take("spec", "activeDeadlineSeconds")) is not None:
        draft.put("spec.runPolicy.activeDeadlineSeconds", deadline, "activeDeadlineSeconds")
    _put_runtime(draft, reader, ObjectReader(runtime))
    reader.note_rest(draft)
    return draft


def _is_runtime(body: Manifest, name: str) -> bool:
    return body.get("kind") in _RUNTIMES and (body.get("metadata") or {}).get("name") == name


def _put_initializers(draft: Draft, reader: ObjectReader) -> None:
    if model := reader.take("spec", "initializer", "model", "storageUri"):
        draft.put("spec.model.uri", model, "initializer.model")
    if data := reader.take("spec", "initializer", "dataset", "storageUri"):
        hub = data.removeprefix("hf://") if data.startswith("hf://") else None
        draft.put("spec.data.train.uri", f"hf://datasets/{hub}" if hub else data, "initializer.dataset")
    for kind in ("model", "dataset"):
        if secret := reader.take("spec", "initializer", kind, "secretRef", "name"):
            draft.put("spec.model.tokenSecretRef", {"name": secret, "key": "ACCESS_TOKEN"}, "secretRef")


def _put_runtime(draft: Draft, job: ObjectReader, runtime: ObjectReader) -> None:
    """Lay the trainer of the TrainJob over the container of its runtime, as Kubeflow does, and read the result."""
    jobs = runtime.get("spec", "template", "spec", "replicatedJobs") or []
    node = next((at for at, one in enumerate(jobs) if one.get("name") == "node"), None)
    if node is None:
        raise InputError("spec.template.spec.replicatedJobs: no job `node`; accepted: a runtime of Kubeflow Trainer")
    container = runtime.get("spec", "template", "spec", "replicatedJobs", node, *_POD, "containers", 0)
    for key in ("image", "command", "args"):
        if (value := job.take("spec", "trainer", key)) is not None:
            container[key] = value
    variables = {
        one["name"]: one for one in (*(container.get("env") or ()), *(job.take("spec", "trainer", "env") or ()))
    }
    container["env"] = list(variables.values())
    if (resources := job.take("spec", "trainer", "resourcesPerNode")) is not None:
        container["resources"] = resources
    for key in ("name", "labels"):
        runtime.take("metadata", key)
    put_replicated_jobs(draft, runtime, ("spec", "template", "spec", "replicatedJobs"))
    runtime.note_rest(draft)
