"""Kubernetes objects with a trainer's pod: what becomes a field is taken out, and the rest becomes notes."""

import copy
import shlex
from collections.abc import Iterator
from typing import Any

from ptctl.errors import InputError
from ptctl.importers import maxtext
from ptctl.importers.command_lines.flags import put_environment
from ptctl.importers.draft import Draft
from ptctl.importers.program import put_command_words, put_program
from ptctl.importers.secrets import is_secret, without_secrets
from ptctl.importers.tpus import put_labels
from ptkube.resources import Manifest

_TPU_LABELS = ("cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology")
_TPU = "google.com/tpu"
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash")
_OPERATOR = "the operator lays out the JobSet and its pods"
_PODS = "no counterpart; `spec.pod` overrides what the operator makes of pods"
_ADVICE = {
    "backoffLimit": _OPERATOR, "completionMode": _OPERATOR, "completions": _OPERATOR, "parallelism": _OPERATOR,
    "restartPolicy": _OPERATOR, "successPolicy": _OPERATOR, "startupPolicy": _OPERATOR, "network": _OPERATOR,
    "coordinator": _OPERATOR, "failurePolicy": "failures are classified; `runPolicy.maxRestarts` limits the rest",
    "podFailurePolicy": "failures are classified; `runPolicy.maxRestarts` limits the rest",
    "hostNetwork": "`pod: {hostNetwork: true}`", "dnsPolicy": _OPERATOR, "ports": _OPERATOR,
    "volumes": "add `volumes` of the job", "volumeMounts": "add `volumes` of the job", "tolerations": _OPERATOR,
    "mlPolicy": "the operator starts one process per host",
    "pathwaysDir": "Pathways' scratch files go next to the run directory", "deploymentMode": _OPERATOR,
    "alpha.jobset.sigs.k8s.io/exclusive-topology": _OPERATOR,
    "xpk.google.com/workload": "the job's name takes its place",
    "imagePullPolicy": "Kubernetes' default applies: Always for :latest, else IfNotPresent",
    "maxSliceRestarts": "`runPolicy.maxRestarts` limits restarts",
}  # fmt: skip
_OTHERS_LABELS = ("xpk.google.com/", "gcluster.google.com/", "kueue.x-k8s.io/", "jobset.sigs.k8s.io/")
_IDENTITY = ("apiVersion", "kind", "status")


class ObjectReader:
    """An object whose values are taken out one by one; what is left is not imported. A path's numbers are indices."""

    def __init__(self, body: Manifest) -> None:
        self.body = copy.deepcopy(body)
        for key in _IDENTITY:
            self.body.pop(key, None)

    def get(self, *path: str | int) -> Any:
        """Return a value and leave it there; None if it is not."""
        node: Any = self.body
        for step in path:
            node = _step(node, step)
        return node

    def take(self, *path: str | int) -> Any:
        """Take a value out; None if it is not there."""
        node = self.get(*path[:-1])
        value = _step(node, path[-1])
        if isinstance(node, dict):
            node.pop(path[-1], None)
        elif isinstance(node, list) and value is not None:
            node[int(path[-1])] = None
        return value

    def note_rest(self, draft: Draft) -> None:
        """Note every value that was not taken."""
        for path, value in _leaves(self.body, ()):
            advice = next((_ADVICE[step] for step in path if step in _ADVICE), _PODS)
            shown = "(not shown)" if is_secret(path[-1]) else without_secrets(str(value))[0]
            draft.note(f"{'.'.join(path)}: {shown}", advice)


def put_metadata(draft: Draft, reader: ObjectReader) -> None:
    """Write name, namespace, labels; Kueue's queue is a field of the job."""
    for key in ("name", "namespace"):
        if value := reader.take("metadata", key):
            draft.put(f"metadata.{key}", value, f"metadata.{key}")
    if queue := reader.take("metadata", "labels", "kueue.x-k8s.io/queue-name"):
        draft.put("spec.queue", queue, "kueue.x-k8s.io/queue-name")
    for key in list((reader.body.get("metadata") or {}).get("labels") or ()):
        if not key.startswith(_OTHERS_LABELS):
            draft.job["metadata"].setdefault("labels", {})[key] = str(reader.take("metadata", "labels", key))


def put_pod(draft: Draft, reader: ObjectReader, pod: tuple[str | int, ...], container: int) -> None:
    """Write the trainer's pod and container."""
    put_node_selection(draft, reader, pod, container)
    for key in ("serviceAccountName",):
        if value := reader.take(*pod, key):
            draft.put(f"spec.{key}", value, key)
    for index, secret in enumerate(reader.take(*pod, "imagePullSecrets") or []):
        draft.job["spec"].setdefault("imagePullSecrets", [])[index:] = [secret["name"]]
    put_container(draft, reader, (*pod, "containers", container))


def put_node_selection(draft: Draft, reader: ObjectReader, pod: tuple[str | int, ...], container: int) -> None:
    """Write what chooses the nodes: TPUs, spot, reservation, priority, grace."""
    labels = {key: reader.take(*pod, "nodeSelector", key) for key in _TPU_LABELS}
    resources = (*pod, "containers", container, "resources")
    chips = [reader.take(*resources, kind, _TPU) for kind in ("limits", "requests")]
    known = {key: str(value) for key, value in labels.items() if value is not None}
    put_labels(draft, known, next((int(count) for count in chips if count is not None), None))
    if reservation := reader.take(*pod, "nodeSelector", "cloud.google.com/reservation-name"):
        draft.put("spec.capacity", [{"type": "reservation", "reservation": reservation}], "reservation-name")
    elif str(reader.take(*pod, "nodeSelector", "cloud.google.com/gke-spot")).lower() == "true":
        draft.put("spec.capacity", [{"type": "spot"}], "gke-spot")
    if priority := reader.take(*pod, "priorityClassName"):
        draft.put("spec.priorityClassName", priority, "priorityClassName")
    if (grace := reader.take(*pod, "terminationGracePeriodSeconds")) is not None:
        draft.put("spec.runPolicy.terminationGracePeriodSeconds", grace, "terminationGracePeriodSeconds")


def put_container(draft: Draft, reader: ObjectReader, path: tuple[str | int, ...]) -> None:
    """Write image, environment and command of the trainer's container."""
    reader.take(*path, "name")
    if image := reader.take(*path, "image"):
        draft.put("spec.image", image, "image")
    put_variables(draft, reader.take(*path, "env") or [])
    put_command(draft, reader.take(*path, "command") or [], reader.take(*path, "args") or [])


def put_variables(draft: Draft, variables: list[Manifest]) -> None:
    """Write variables; a Secret's key stays one, and other sources become notes."""
    for one in variables:
        name, reference = one["name"], (one.get("valueFrom") or {}).get("secretKeyRef")
        if "valueFrom" not in one:
            put_environment(draft, {name: str(one.get("value") or "")})
        elif reference:
            source = {"secretKeyRef": {"name": reference["name"], "key": reference["key"]}}
            draft.job["spec"].setdefault("env", []).append({"name": name, "valueFrom": source})
        elif name != "PATHWAYS_HEAD":  # the target that names it is known
            draft.note(f"env {name}: {one['valueFrom']}", "the operator's own variables hold what it says")


def put_command(draft: Draft, command: list[str], args: list[str]) -> None:
    """Write a container's command; commands of a shell and of MaxText are parsed."""
    words = [str(word) for word in (*command, *args)]
    if not words:
        raise InputError("command: not set; accepted: a command, because the one of the image is not known here")
    if len(words) == 3 and words[0] in _SHELLS and words[1] in ("-c", "-lc", "-ec"):
        put_program(draft, words[2], (words[0], words[1]))
    elif maxtext.program_of(shlex.join(words)):
        put_program(draft, shlex.join(words))
    else:
        put_command_words(draft, words)


def _step(node: Any, step: str | int) -> Any:
    if isinstance(node, dict):
        return node.get(step)
    return node[int(step)] if isinstance(node, list) and len(node) > int(step) else None


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for step, below in pairs:
        yield from _leaves(below, (*path, str(step)))
    if not isinstance(node, dict | list) and node is not None:
        yield path or ("",), node
