"""The package `posttrain_vllm` in the pods of samplers that are vLLM.

It gives them a backend over files, and starts servers on several hosts. vLLM's images do not hold it, so it travels in
a ConfigMap and is mounted as an installed package would lie: its modules, and the metadata by which vLLM finds its
entry point. `PYTHONPATH` names the directory. The ConfigMap is not the job's, which stays as it was first written: pods
that a newer operator makes want the newer operator's files.
"""

import hashlib
from importlib import resources

import posttrain_vllm
from ptkube.resources import Manifest
from ptoperator.kube import labels
from ptoperator.render.layout import Layout

PATH = "/etc/posttrain-vllm"
_VOLUME, _PACKAGE = "vllm-plugin", posttrain_vllm.__name__
_METADATA = {
    "METADATA": f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: 1\n",
    "entry_points.txt": f"[vllm.general_plugins]\n{posttrain_vllm.BACKEND} = {_PACKAGE}:register\n",
}


def is_needed(layout: Layout) -> bool:
    """Return True if the job's samplers are vLLM, and take all weights or have several hosts; layout: of any pod."""
    spec = layout.job.spec
    samplers = layout.samplers if spec.rollout.sampling_engine == "vllm" else None
    return samplers is not None and (spec.training.lora is None or samplers.hosts > 1)


def files() -> dict[str, str]:
    """Return the text of each file by its path under `PATH`."""
    modules = [file for file in resources.files(posttrain_vllm).iterdir() if file.name.endswith(".py")]
    texts = {f"{_PACKAGE}/{module.name}": module.read_text() for module in sorted(modules, key=lambda one: one.name)}
    return texts | {f"{_PACKAGE}-1.dist-info/{name}": text for name, text in _METADATA.items()}


def plugin_config_map(layout: Layout) -> Manifest:
    """Return the ConfigMap of a job whose samplers need the plugin: a key is a path without slashes."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": _name(layout),
            "namespace": layout.namespace,
            "labels": labels.for_job(layout.name, layout.uid),
            "ownerReferences": layout.owner_references,
        },
        "immutable": True,
        "data": {_key(path): text for path, text in files().items()},
    }


def volumes(layout: Layout) -> list[Manifest]:
    """Return the volume."""
    if not is_needed(layout):
        return []
    items = [{"key": _key(path), "path": path} for path in files()]
    return [{"name": _VOLUME, "configMap": {"name": _name(layout), "items": items}}]


def mounts(layout: Layout) -> list[Manifest]:
    """Return its mount."""
    return [{"name": _VOLUME, "mountPath": PATH, "readOnly": True}] if is_needed(layout) else []


def _name(layout: Layout) -> str:
    """Return the ConfigMap's name, which tells the files of two operators apart."""
    digest = hashlib.sha256(repr(sorted(files().items())).encode()).hexdigest()
    return f"{layout.config_map}-vllm-{digest[:8]}"


def _key(path: str) -> str:
    return path.replace("/", ".")
