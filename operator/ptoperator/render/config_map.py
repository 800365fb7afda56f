"""The ConfigMap that carries the job to its pods, complete and immutable.

The trainer reads this file and nothing else. It holds the defaults and the job's uid, by which the trainer recognises
its own run directory. Secrets stay references. A staged model is named by its copy, so that the trainer reads that one.
"""

from ptapi import load
from ptapi.run_directory import JOB_FILE
from ptapi.text import kubectl_yaml
from ptkube.resources import Manifest
from ptoperator.kube import labels
from ptoperator.render.layout import Layout

MOUNT_PATH, _, KEY = JOB_FILE.rpartition("/")


def config_map(layout: Layout) -> Manifest:
    """Return the manifest."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": layout.config_map,
            "namespace": layout.namespace,
            "labels": labels.for_job(layout.name, layout.uid),
            "ownerReferences": layout.owner_references,
        },
        "immutable": True,
        "data": {KEY: job_file(layout)},
    }


def job_file(layout: Layout) -> str:
    """Return the job as YAML."""
    document = load.manifest(layout.job)
    if layout.staged_model:
        document["spec"]["model"] |= {"uri": layout.staged_model, "stage": False}
        document["spec"]["model"].pop("revision", None)
    document["metadata"] = {"name": layout.name, "namespace": layout.namespace, "uid": layout.uid}
    return kubectl_yaml.write(document)
