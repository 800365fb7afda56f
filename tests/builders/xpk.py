"""What XPK's `workload create-pathways` applies, told from its sources and not taken from them.

Read at AI-Hypercomputer/xpk 367c838 (2026-06-25, PyPI 1.16.0): src/xpk/templates/pathways_workload_create.yaml.j2,
src/xpk/core/pathways.py, and recipes/Workload_create_pathways.md, which shows the result for a v5p-8. The fields are
what these say for the words of MaxText's tutorial docs/tutorials/posttraining/rl_on_multi_host.md (maxtext e591f30,
2026-08-22): one slice, `--priority=high`, defaults otherwise (grace 30 s, Google's images, queue `multislice-queue`).
"""

from typing import Any

Manifest = dict[str, Any]

TUTORIAL_ENV = {
    "HF_TOKEN": "${HF_TOKEN}",
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "JAX_PLATFORMS": "proxy",
    "JAX_BACKEND_TARGET": "grpc://127.0.0.1:29000",
    "ENABLE_PATHWAYS_PERSISTENCE": "1",
}
"""Variables that the tutorial's `--command` begins with."""


def tutorial_words(model: str, checkpoint: str, run: str, output: str) -> list[str]:
    """The words of the tutorial's GSPO command after `python3 -m maxtext.trainers.post_train.rl.train_rl`."""
    return [
        f"model_name={model}",
        f"load_parameters_path={checkpoint}",
        f"run_name={run}",
        f"base_output_directory={output}",
        "rollout_tensor_parallelism=8",
        "hf_access_token=${HF_TOKEN}",
        "loss_algo=gspo-token",
    ]


def pathways_jobset(name: str, image: str, accelerator: str, topology: str, instance: str, vms: int) -> Manifest:
    """The JobSet; the command, which XPK wraps in a shell, is left out."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "labels": {"kueue.x-k8s.io/queue-name": "multislice-queue", "xpk.google.com/workload": name},
        },
        "spec": {
            "coordinator": {"replicatedJob": "pathways-head"},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"restartStrategy": "Recreate"},
            "replicatedJobs": [_head(image, instance), _workers(name, accelerator, topology, vms)],
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["pathways-head"]},
            "suspend": False,
        },
    }


_SCRATCH = "--gcs_scratch_location=gs://cloud-pathways-staging/tmp"
_IMAGES = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways"
_HOST = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
_TMP_VOLUME = [{"name": "shared-tmp", "hostPath": {"path": "/tmp", "type": "DirectoryOrCreate"}}]
_TMP_MOUNT = [{"name": "shared-tmp", "mountPath": "/tmp"}]


def _head(image: str, instance: str) -> Manifest:
    pod = {
        **_HOST,
        "nodeSelector": {"cloud.google.com/gke-nodepool": "cpu-np"},
        "initContainers": [_proxy(), _resource_manager(instance)],
        "containers": [_user(image)],
        "restartPolicy": "Never",
        "volumes": _TMP_VOLUME,
    }
    return _replicated("pathways-head", 1, "kubernetes.io/hostname", 1, 0, {"spec": pod})


def _workers(name: str, accelerator: str, topology: str, vms: int) -> Manifest:
    pod = {
        **_HOST,
        "terminationGracePeriodSeconds": 30,
        "priorityClassName": "high",
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": accelerator,
            "cloud.google.com/gke-tpu-topology": topology,
        },
        "containers": [_worker()],
        "restartPolicy": "OnFailure",
        "tolerations": [{"operator": "Exists", "key": "google.com/tpu"}],
        "volumes": _TMP_VOLUME,
    }
    template = {"metadata": {"labels": {"xpk.google.com/workload": name}}, "spec": pod}
    return _replicated("worker", vms, "cloud.google.com/gke-nodepool", 1, vms * 4, template)


def _replicated(name: str, pods: int, one_per: str, replicas: int, backoff: int, template: Manifest) -> Manifest:
    spec = {
        "backoffLimit": backoff, "completionMode": "Indexed", "completions": pods, "parallelism": pods,
        "template": template,
    }  # fmt: skip
    metadata = {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": one_per}}
    return {"name": name, "replicas": replicas, "template": {"metadata": metadata, "spec": spec}}


def _proxy() -> Manifest:
    return {
        "name": "pathways-proxy",
        "image": f"{_IMAGES}/proxy_server:latest",
        "imagePullPolicy": "Always",
        "args": ["--server_port=29000", "--resource_manager_address=$(PATHWAYS_HEAD):29001", _SCRATCH],
        "env": [_label("PATHWAYS_HEAD", "coordinator")],
        "ports": _ports(29000),
        "resources": {"limits": {"cpu": "16", "memory": "100G"}},
        "restartPolicy": "Always",
    }


def _resource_manager(instance: str) -> Manifest:
    return {
        "name": "pathways-rm",
        "image": f"{_IMAGES}/server:latest",
        "imagePullPolicy": "Always",
        "args": [
            "--server_port=29001", _SCRATCH, "--node_type=resource_manager", "--instance_count=1",
            f"--instance_type={instance}",
        ],
        "env": [
            _annotation("REPLICATED_JOB_NAME", "replicatedjob-name"),
            _annotation("JOBSET_NAME", "jobset-name"),
            _label("HOST_ADDRESS", "coordinator"),
            _value("TPU_SKIP_MDS_QUERY", "true"),
        ],
        "ports": _ports(29001, 29002),
        "resources": {"limits": {"cpu": "8", "memory": "32G"}},
        "restartPolicy": "Always",
    }  # fmt: skip


def _user(image: str) -> Manifest:
    return {
        "name": "jax-tpu",
        "image": image,
        "imagePullPolicy": "Always",
        "env": [
            _label("PATHWAYS_HEAD", "coordinator"),
            _value("JAX_PLATFORMS", "proxy"),
            _value("XCLOUD_ENVIRONMENT", "GCP"),
            _value("JAX_BACKEND_TARGET", "grpc://$(PATHWAYS_HEAD):29000"),
        ],
        "securityContext": {"privileged": True},
        "resources": {"limits": {"cpu": "24", "memory": "100G"}},
        "volumeMounts": _TMP_MOUNT,
    }


def _worker() -> Manifest:
    return {
        "name": "pathways-worker",
        "image": f"{_IMAGES}/server:latest",
        "imagePullPolicy": "Always",
        "args": ["--server_port=29005", "--resource_manager_address=$(PATHWAYS_HEAD):29001", _SCRATCH],
        "env": [
            _value("TPU_MIN_LOG_LEVEL", "0"),
            _value("TF_CPP_MIN_LOG_LEVEL", "0"),
            _value("XCLOUD_ENVIRONMENT", "GCP"),
            _value("MEGASCALE_GRPC_ENABLE_XOR_TRACER", "false"),
            _label("MEGASCALE_NUM_SLICES", "replicatedjob-replicas"),
            _annotation("JOBSET_NAME", "jobset-name"),
            _annotation("REPLICATED_JOB_NAME", "replicatedjob-name"),
            _label("MEGASCALE_SLICE_ID", "job-index"),
            _label("PATHWAYS_HEAD", "coordinator"),
            _label("MEGASCALE_COORDINATOR_ADDRESS", "coordinator"),
        ],
        "ports": _ports(29005, 29006, 8471, 8080),
        "resources": {"limits": {"google.com/tpu": "4"}},
        "volumeMounts": _TMP_MOUNT,
    }


def _value(name: str, text: str) -> Manifest:
    return {"name": name, "value": text}


def _label(name: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['jobset.sigs.k8s.io/{key}']"}}}


def _annotation(name: str, key: str) -> Manifest:
    path = f"metadata.annotations['jobset.sigs.k8s.io/{key}']"
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _ports(*numbers: int) -> list[Manifest]:
    return [{"containerPort": number, "protocol": "TCP"} for number in numbers]
