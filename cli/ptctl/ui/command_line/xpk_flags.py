"""Flags of XPK and gcluster that do not exist here, and what to use instead.

They are refused with that hint, never accepted and ignored: a flag that does nothing costs its user a run.
"""

_CONTEXT = "the cluster comes from kubeconfig: --context NAME, --kubeconfig PATH or KUBECONFIG"
_CREDENTIALS = "`ptctl cluster credentials CLUSTER --location ZONE --project ID`, once"
_IMAGE = "`ptctl image build DIRECTORY --base IMAGE --tag IMAGE` builds one; pass it with --docker-image"
_VOLUMES = "add `volumes` to the job file (for example a persistentVolumeClaim of a CSI driver), passed with -f"

CLUSTER: dict[str, str] = {
    "--cluster": _CONTEXT,
    "--project": _CREDENTIALS,
    "--project-number": _CREDENTIALS,
    "--zone": _CREDENTIALS,
    "--sandbox-kubeconfig": "--kubeconfig PATH",
    "--dependency-auto-download": "nothing is downloaded; ptctl needs neither gcloud nor kubectl",
    "--quiet": "ptctl never prompts; data goes to stdout, the rest to stderr: add 2>/dev/null",
    "--verbose": "`ptctl workload describe NAME` shows everything about a job",
}
"""Flags of every XPK command."""

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
    "--num-nodes": "--tpu-type sets a slice's size (v5p-128), or all GPUs (h100-mega-16); --num-slices counts slices",
    "--topology": "--set accelerator.topology=4x4x4",
    "--restarts": "--max-restarts N",
    "--restart-on-exit-codes": (
        "failures are classified: preemptions, maintenance and host errors restart without using the budget, an "
        "invalid job or out of memory never restarts; --max-restarts limits the rest"
    ),
    "--scheduler": "Kueue admits jobs: --queue NAME",
    "--storage": _VOLUMES,
    "--mount": _VOLUMES,
    "--ramdisk-directory": "checkpoints go to the run directory; --set checkpoint.everySteps=N sets the interval",
    "--mtc-enabled": "checkpoints go to the run directory; --set checkpoint.everySteps=N sets the interval",
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
    "--await-job-completion": "run `ptctl workload wait NAME` afterwards",
    "--timeout": "--set runPolicy.activeDeadlineSeconds=N limits the job; `ptctl workload wait --timeout` the wait",
    "--gke-ttl-after-finished": "--ttl-seconds-after-finished N",
    "--grace-period": "--termination-grace-period-seconds N",
    "--node-constraint": "--tpu-type chooses the nodes",
    "--placement-policy": "--tpu-type chooses the nodes",
    "--cpu-affinity": "the operator lays out the containers for each TPU type",
    "--gke-nap-provisioning": "--set 'capacity=[{type: spot}, {type: onDemand}]': capacity options, tried in order",
    "--gke-nap-reservation": "--reservation NAME",
    "--pathways": "--set pathways.enabled=true",
    "--pathways-gcs-location": "Pathways' scratch files go next to the run directory: --output gs://BUCKET/DIR",
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
    "--force": "deletion never prompts; --wait waits until the job is gone",
}

NAMED: dict[str, str] = {**CLUSTER, "--workload": "the name is an argument: `ptctl workload VERB NAME`"}
"""Flags of verbs on one job."""

_ALWAYS = "every cluster has it"
_NO_ARGUMENTS = "set it afterwards with gcloud; `ptctl cluster create` never changes what is there"
_POOLS_PER_JOB = "leave out --tpu-type: the operator makes node pools for each job, by its `capacity`"
_OPERATOR_LAYS_OUT = "the operator makes pools of the size that each job asks for"
_TENSORBOARD = "TensorBoard files are in the run directory: `ptctl workload tensorboard NAME`"
_CONTROLLERS = "the resources of Kueue's controller are its own manifest's"

CLUSTER_OTHERS: dict[str, str] = {
    "--zone": "--location PLACE, where the name alone is not enough",
    "--project-number": "--project ID",
    "--sandbox-kubeconfig": "`ptctl cluster credentials NAME --kubeconfig PATH`",
    "--dependency-auto-download": "nothing is downloaded; ptctl needs neither gcloud nor kubectl",
    "--quiet": "--yes, where a verb asks",
    "--verbose": "-o yaml shows everything that GKE reports",
}
"""Flags of `xpk cluster`, for the verbs that read or delete."""

_CHIPS = "--quota TYPE=SLICES for Kueue; chips come from the cluster's pools, or by each job's `capacity`"
_BUY = "each job's `capacity` says how chips are bought; lasting pools: `ptctl cluster create NAME --tpu-type TYPE`"
_DRIVERS = "GKE's own settings stay as they are: gcloud container clusters update NAME --update-addons DRIVER=ENABLED"

CLUSTER_ADAPT: dict[str, str] = {
    **CLUSTER_OTHERS,
    "--quiet": "it never asks, and changes nothing of others",
    "--tpu-type": _CHIPS,
    "--device-type": _CHIPS,
    "--num-slices": _CHIPS,
    "--num-nodes": _CHIPS,
    "--num-cubes": _CHIPS,
    "--sub-slicing": _CHIPS,
    "--super-slicing": _CHIPS,
    "--reservation": _BUY,
    "--spot": _BUY,
    "--flex": _BUY,
    "--on-demand": _BUY,
    "--enable-workload-identity": "the command is printed if the cluster lacks it",
    "--enable-gcsfuse-csi-driver": "the command is printed if the cluster lacks it",
    "--enable-gcpfilestore-csi-driver": _DRIVERS,
    "--enable-parallelstore-csi-driver": _DRIVERS,
    "--enable-pd-csi-driver": _DRIVERS,
    "--enable-lustre-csi-driver": _DRIVERS,
    "--default-pool-cpu-machine-type": "nothing of the cluster's own pools is changed",
    "--default-pool-cpu-num-nodes": "nothing of the cluster's own pools is changed",
    "--enable-pathways": "the operator makes their pool with the first Pathways job",
    "--memory-limit": _CONTROLLERS,
    "--cpu-limit": _CONTROLLERS,
    "--create-vertex-tensorboard": _TENSORBOARD,
    "--tensorboard-region": _TENSORBOARD,
    "--tensorboard-name": _TENSORBOARD,
    "--managed-mldiagnostics": _NO_ARGUMENTS,
    "--ray-version": "posttrain needs no Ray",
}
"""Flags of `xpk cluster adapt`."""

CLUSTER_CREATE: dict[str, str] = {
    **{flag: hint for flag, hint in CLUSTER_OTHERS.items() if flag != "--zone"},
    "--quiet": "it never asks, and never deletes",
    "--force": "it never asks, and never deletes",
    "--num-nodes": "--num-slices N with --tpu-type; the operator makes pools of GPUs for each job",
    "--enable-workload-identity": _ALWAYS,
    "--enable-gcsfuse-csi-driver": _ALWAYS,
    "--enable-pd-csi-driver": _ALWAYS,
    "--enable-autoprovisioning": _POOLS_PER_JOB,
    "--autoprovisioning-min-chips": _POOLS_PER_JOB,
    "--autoprovisioning-max-chips": _POOLS_PER_JOB,
    "--host-maintenance-interval": "a reservation's own interval counts; GKE's v1 API has no such field",
    "--cluster-cpu-machine-type": "--default-pool-cpu-machine-type TYPE",
    "--managed-mldiagnostics": _NO_ARGUMENTS,
    "--custom-cluster-arguments": "flags of their own, such as --network; for the rest: " + _NO_ARGUMENTS,
    "--custom-nodepool-arguments": _NO_ARGUMENTS,
    "--custom-tpu-nodepool-arguments": _NO_ARGUMENTS,
    "--private-endpoint-subnetwork": "--subnetwork NAME; the control plane is reached by its DNS name",
    "--enable-master-global-access": "the control plane is reached by its DNS name from every region",
    "--adapt-from-ct": "`ptctl cluster adapt NAME`",
    "--enable-legacy-lustre-port": _NO_ARGUMENTS,
    "--create-vertex-tensorboard": _TENSORBOARD,
    "--tensorboard-region": _TENSORBOARD,
    "--tensorboard-name": _TENSORBOARD,
    "--enable-mtc": "checkpoints go to the run directory; no node keeps any",
    "--mtc-ramdisk-size": "checkpoints go to the run directory; no node keeps any",
    "--mtc-gcs-bucket": "checkpoints go to the run directory; no node keeps any",
    "--mtc-toleration-key": "checkpoints go to the run directory; no node keeps any",
    "--memory-limit": _CONTROLLERS,
    "--cpu-limit": _CONTROLLERS,
    "--sub-slicing": _OPERATOR_LAYS_OUT,
    "--super-slicing": _OPERATOR_LAYS_OUT,
    "--num-cubes": _OPERATOR_LAYS_OUT,
    "--ignore-nodepool-creation-errors": "every pool is tried, whatever becomes of the others",
    "--cluster-state-gcs-bucket": "a cluster's state is the cluster",
    "--ray-version": "posttrain needs no Ray",
}
"""Flags of `xpk cluster create` and its relatives."""
