"""PathwaysJob (pathways-job.pathways.domain/v1)."""

from typing import Any

from ptctl.errors import InputError
from ptctl.importers.documents.object_reader import ObjectReader, put_metadata, put_pod
from ptctl.importers.draft import Draft
from ptctl.importers.program import put_program
from ptctl.importers.tpus import put_machine
from ptkube.resources import Manifest

KINDS = ("PathwaysJob",)
_COMPONENTS = {
    "pathways_server": ("serverImage", "serverArgs"),
    "proxy_server": ("proxyImage", "proxyArgs"),
    "worker": (None, "workerArgs"),
    "colocated_python_sidecar": ("colocatedPythonImage", None),
}


def draft_of(body: Manifest, others: list[Manifest]) -> Draft:
    """Return the job of an object."""
    draft, reader = Draft("a PathwaysJob"), ObjectReader(body)
    draft.put("spec.pathways.enabled", True, "kind")
    put_metadata(draft, reader)
    if (restarts := reader.take("spec", "maxRestarts")) is not None:
        draft.put("spec.runPolicy.maxRestarts", restarts, "maxRestarts")
    _put_workers(draft, reader)
    for index in range(len(reader.body.get("spec", {}).get("customComponents") or [])):
        _put_component(draft, reader, ("spec", "customComponents", index))
    _put_controller(draft, reader)
    reader.note_rest(draft)
    return draft


def _put_workers(draft: Draft, reader: ObjectReader) -> None:
    workers = ("spec", "workers", 0)
    machine, topology = reader.take(*workers, "type"), reader.take(*workers, "topology")
    if machine and not put_machine(draft, machine, topology):
        raise InputError(f"spec.workers[0].type: {machine}; accepted: a TPU machine type, such as ct5p-hightpu-4t")
    for key, path in (("numSlices", "accelerator.slices"), ("priorityClassName", "priorityClassName"),
                      ("terminationGracePeriodSeconds", "runPolicy.terminationGracePeriodSeconds")):  # fmt: skip
        if (value := reader.take(*workers, key)) is not None:
            draft.put(f"spec.{path}", value, key)


def _put_component(draft: Draft, reader: ObjectReader, path: tuple[Any, ...]) -> None:
    kind = reader.take(*path, "componentType")
    image, arguments = _COMPONENTS.get(kind, (None, None))
    if image and (value := reader.take(*path, "image")):
        draft.put(f"spec.pathways.{image}", value, "image")
    if arguments and (value := reader.take(*path, "customFlags")):
        draft.put(f"spec.pathways.{arguments}", value, "customFlags")


def _put_controller(draft: Draft, reader: ObjectReader) -> None:
    controller = ("spec", "controller")
    if slices := reader.take(*controller, "elasticSlices"):
        draft.put("spec.pathways.elasticSlices", slices, "elasticSlices")
    name = reader.take(*controller, "mainContainerName") or "main"
    containers = reader.body["spec"].get("controller", {}).get("template", {}).get("spec", {}).get("containers")
    if not containers:
        draft.put("spec.pathways.headless", True, "controller.template")
        return put_program(draft, None)
    index = next((at for at, one in enumerate(containers) if one.get("name") == name), 0)
    put_pod(draft, reader, (*controller, "template", "spec"), index)
    return None
