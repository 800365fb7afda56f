"""A stand-in for Agent Sandbox's controller: a claim gets a pod of its pool's template, and the pod's conditions.

Images are not read here, so each pod runs the runtime of tests (`servers.sandbox_runtime`) on a port of this machine.
Warm pools keep nothing ready: every claim starts cold.
"""

import threading
from pathlib import Path

from tests.builders.cluster.api_access import find
from tests.builders.servers import sandbox_runtime

from ptkube.client import Kube
from ptkube.errors import AlreadyExists
from ptkube.informer import Informer
from ptkube.objects import holds, pod_phase
from ptkube.resources import PODS, SANDBOX_CLAIMS, SANDBOX_TEMPLATES, SANDBOX_WARM_POOLS, Manifest
from ptkube.timestamps import timestamp
from ptkube.watch import Key, key_of
from ptkube.workqueue import WorkQueue

_ENDED = ("Succeeded", "Failed")


class AgentSandboxController:
    """Reconciles the claims of a namespace, with a client of its own."""

    def __init__(self, kube: Kube, namespace: str, folder: Path) -> None:
        """folder: where each runtime writes its address."""
        self._kube, self._folder, self._stop = kube, folder, threading.Event()
        self._queue: WorkQueue[Key] = WorkQueue("agent-sandbox", lambda key, _: self._reconcile(key))
        self._informers = [Informer(kube, kind, self._stop, namespace=namespace) for kind in (SANDBOX_CLAIMS, PODS)]
        for informer in self._informers:
            informer.listen(lambda _, item: self._queue.add(key_of(item)))  # a pod has its claim's name

    def start(self) -> None:
        self._threads = [informer.start() for informer in self._informers]
        self._queue.start()

    def addresses(self) -> list[str]:
        """Return where runtimes listen that have begun."""
        return [each.read_text() for each in sorted(self._folder.iterdir()) if each.suffix == ""]

    def stop(self) -> None:
        """End the threads, and the client."""
        self._stop.set()
        self._queue.close()
        self._kube.close()
        for thread in self._threads:
            thread.join(60.0)

    def _reconcile(self, key: Key) -> float | None:
        namespace, name = key
        claim = find(self._kube, SANDBOX_CLAIMS, name, namespace)
        if claim is None or "deletionTimestamp" in claim["metadata"]:
            return None
        pod = find(self._kube, PODS, name, namespace) or self._create(claim)
        if pod is None:
            return 1.0  # its pool comes with it
        conditions = [
            _condition("Ready", pod_phase(pod) == "Running" and holds(pod, "Ready"), f"pod is {pod_phase(pod)}"),
            *([_condition("Finished", True, "pod has ended")] if pod_phase(pod) in _ENDED else []),
        ]
        known = {each["type"]: each["status"] for each in (claim.get("status") or {}).get("conditions") or []}
        if known != {each["type"]: each["status"] for each in conditions}:
            status = {"conditions": conditions, "sandbox": {"name": name}}
            self._kube.replace_status(SANDBOX_CLAIMS, {**claim, "status": status})
        return None

    def _create(self, claim: Manifest) -> Manifest | None:
        name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
        pool = find(self._kube, SANDBOX_WARM_POOLS, claim["spec"]["warmPoolRef"]["name"], namespace)
        template = pool and find(self._kube, SANDBOX_TEMPLATES, pool["spec"]["sandboxTemplateRef"]["name"], namespace)
        if not template:
            return None
        made = template["spec"]["podTemplate"]
        (container,) = made["spec"]["containers"]
        command = ["python", str(Path(sandbox_runtime.__file__)), "--port", "0", "--announce", str(self._folder / name)]
        added = claim["spec"].get("additionalPodMetadata") or {}
        uid = claim["metadata"]["uid"]
        owner = {"apiVersion": SANDBOX_CLAIMS.api_version, "kind": "SandboxClaim", "name": name, "uid": uid}
        body = {
            "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner],
                         "labels": made["metadata"]["labels"] | added.get("labels", {})},
            "spec": {**_on_this_machine(made["spec"]),
                     "containers": [{**_on_this_machine(container), "command": command}]},
        }  # fmt: skip
        try:
            return self._kube.create(PODS, body)
        except AlreadyExists:
            return find(self._kube, PODS, name, namespace)


def _on_this_machine(part: Manifest) -> Manifest:
    """Return a part of a pod without what this machine does not have: RuntimeClasses, ephemeral storage by the byte."""
    return {key: value for key, value in part.items() if key not in ("runtimeClassName", "resources")}


def _condition(kind: str, is_so: bool, message: str) -> Manifest:
    return {
        "type": kind,
        "status": "True" if is_so else "False",
        "reason": "DependenciesReady" if is_so else "DependenciesNotReady",
        "message": message,
        "lastTransitionTime": timestamp(),
    }
