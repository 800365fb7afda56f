"""Flags of XPK and gcluster that do not exist here, and what to use instead.

They are refused with that sentence, never accepted and ignored: a flag that does nothing costs its user a run.
"""

from __future__ import annotations

_CONTEXT = "the cluster comes from kubeconfig: --context NAME, --kubeconfig PATH or KUBECONFIG"
_CREDENTIALS = "`gcloud container clusters get-credentials CLUSTER --location ZONE --project P`, then --context"
_IMAGE = "build an image (see Dockerfile) and give it with --docker-image"
_VOLUMES = "write `volumes` in the job file, for example a persistentVolumeClaim of a CSI driver, and give it with -f"

CLUSTER: dict[str, str] = {
    "--cluster": _CONTEXT,
    "--project": _CREDENTIALS,
    "--project-number": _CREDENTIALS,
    "--zone": _CREDENTIALS,
    "--sandbox-kubeconfig": "--kubeconfig PATH",
    "--dependency-auto-download": "nothing is downloaded; ptctl needs neither gcloud nor kubectl",
    "--quiet": "ptctl never asks; data goes to stdout, the rest to stderr: add 2>/dev/null",
    "--verbose": "`ptctl workload describe NAME` tells everything about a job",
}
"""Of every XPK command."""

CREATE: dict[str, str] = {
    **CLUSTER,
    "--name": "--workload NAME",
    "--compute-type": "--tpu-type TYPE",
    "--image": "--docker-image IMAGE",
    "--base-docker-image": _IMAGE,
    "--base-image": _IMAGE,
    "--build-context": _IMAGE,
    "--script-dir": _IMAGE,
    "--docker-name": "the container is always named trainer",
    "--num-nodes": "--tpu-type says the size of a slice (v5p-128), --num-slices how many slices",
    "--topology": "--set accelerator.topology=4x4x4",
    "--restarts": "--max-restarts N",
    "--restart-on-exit-codes": (
        "failures are told apart by class: preemption, maintenance and host errors restart free of charge, a wrong "
        "job or out of memory never; --max-restarts is for the rest"
    ),
    "--scheduler": "Kueue admits jobs: --queue NAME",
    "--storage": _VOLUMES,
    "--mount": _VOLUMES,
    "--ramdisk-directory": "checkpoints go to the run directory; --set checkpoint.everySteps=N says how often",
    "--mtc-enabled": "checkpoints go to the run directory; --set checkpoint.everySteps=N says how often",
    "--use-parallel-containers": "the operator lays out the containers for each TPU type",
    "--gke-disable-parallel-containers": "the operator lays out the containers for each TPU type",
    "--enable-debug-logs": "--env TPU_MIN_LOG_LEVEL=0 --env TF_CPP_MIN_LOG_LEVEL=0",
    "--debug-dump-gcs": "--env XLA_FLAGS=--xla_dump_to=DIRECTORY",
    "--deploy-stacktrace-sidecar": "hangs are detected; --set runPolicy.hangTimeoutSeconds=N sets the limit",
    "--use-vertex-tensorboard": "TensorBoard files are in the run directory: `ptctl workload tensorboard NAME`",
    "--experiment-name": "TensorBoard files are in the run directory: `ptctl workload tensorboard NAME`",
    "--skip-validation": "a job is always validated; `ptctl validate -f job.yaml` shows every finding",
    "--output-manifest-file": "--dry-run=client -o yaml > FILE; `ptctl workload render -f FILE` shows the pods",
    "--dry-run-out": "--dry-run=client -o yaml > FILE",
    "--await-job-completion": "`ptctl workload wait NAME` after it",
    "--timeout": "--set runPolicy.activeDeadlineSeconds=N limits the job; `ptctl workload wait --timeout` the waiting",
    "--gke-ttl-after-finished": "--ttl-seconds-after-finished N",
    "--grace-period": "--termination-grace-period-seconds N",
    "--node-constraint": "--tpu-type chooses the nodes",
    "--placement-policy": "--tpu-type chooses the nodes",
    "--cpu-affinity": "the operator lays out the containers for each TPU type",
    "--gke-nap-provisioning": "--set 'capacity=[{type: spot}, {type: onDemand}]': ways to obtain chips, tried in order",
    "--gke-nap-reservation": "--reservation NAME",
    "--pathways": "--set pathways.enabled=true",
    "--pathways-gcs-location": "Pathways' scratch files go beside the run directory: --output gs://BUCKET/DIR",
    "--custom-pathways-server-args": "--set 'pathways.serverArgs=[--flag=value]'",
    "--custom-pathways-proxy-server-args": "--set 'pathways.proxyArgs=[--flag=value]'",
    "--custom-pathways-worker-args": "--set 'pathways.workerArgs=[--flag=value]'",
    "--max-slice-restarts": "--max-restarts N",
    "--colocated-python-sidecar-image": "--set pathways.colocatedPythonImage=IMAGE",
}

LIST: dict[str, str] = {
    **CLUSTER,
    "--wait-for-job-completion": "`ptctl workload wait NAME --timeout 2h`",
    "--timeout": "`ptctl workload wait NAME --timeout 2h`",
    "--status": "--filter-by-status STATUS",
    "--name-contains": "--filter-by-job TEXT",
}

DELETE: dict[str, str] = {
    **CLUSTER,
    "--workload": "`ptctl workload delete NAME`",
    "--force": "nothing is asked; a finished deletion is awaited with --wait",
}

NAMED: dict[str, str] = {**CLUSTER, "--workload": "the name is an argument: `ptctl workload VERB NAME`"}
"""Of verbs on one job."""
