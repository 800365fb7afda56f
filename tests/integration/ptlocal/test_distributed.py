"""Two processes of one jax.distributed job find each other by pod name, also while a second such job runs."""

from collections.abc import Callable
from typing import Any

from ptkube.client import Kube
from ptkube.resources import JOBSETS, PODS, Manifest

_PROGRAM = """
import os, jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank = int(os.environ["JAX_PROCESS_ID"])
jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["JAX_NUM_PROCESSES"]), rank)
import numpy
from jax.experimental.multihost_utils import process_allgather
print("sum", process_allgather(numpy.array([rank + 1.0])).sum(), flush=True)
"""


def two_processes(name: str, namespace: str) -> Manifest:
    rank = {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/job-index']"}}
    env = [
        {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{name}-slice-0-0.{name}:1234"},
        {"name": "JAX_NUM_PROCESSES", "value": "2"},
        {"name": "JAX_PROCESS_ID", "valueFrom": rank},
    ]
    container = {"name": "main", "image": "none", "command": ["python", "-c", _PROGRAM], "env": env}
    pod = {"restartPolicy": "Never", "containers": [container]}
    replicated = {"name": "slice", "replicas": 2, "template": {"spec": {"backoffLimit": 0, "template": {"spec": pod}}}}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"replicatedJobs": [replicated]}}


def test_two_jobs_of_two_processes_each(kube: Kube, namespace: str, eventually: Callable[..., Any]) -> None:
    for name in ("one", "two"):
        kube.create(JOBSETS, two_processes(name, namespace))
    for name in ("one", "two"):
        done = eventually(JOBSETS, name, namespace, lambda j: j and (j.get("status") or {}).get("terminalState"))
        pods = kube.list(PODS, namespace, labels=f"jobset.sigs.k8s.io/jobset-name={name}").items
        logs = [list(kube.pod_logs(pod["metadata"]["name"], namespace)) for pod in pods]
        assert done["status"]["terminalState"] == "Completed", logs
        assert [lines[-1] for lines in logs] == ["sum 3.0", "sum 3.0"]
