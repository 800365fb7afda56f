"""Jobs on GPUs: golden files of each kind, what every type gets, and the networks of several machines."""

import json
from typing import Any

import pytest
from google.cloud import container_v1 as container
from tests.builders.operator.manifest_checks import assert_golden
from tests.unit.ptoperator.render.test_render import GOLDEN, OF_KIND, env_of, on, pod_spec

from ptapi import accelerators
from ptapi.spec import CapacityOption
from ptapi.text import kubectl_yaml
from ptkube.resources import Manifest
from ptoperator.kube import labels
from ptoperator.render import jobset, layout_of
from ptoperator.render.node_pool import node_pool, shape
from ptoperator.settings import Settings, SettingsError

RDMA = ", ".join(["gvnic-1=gpu-gvnic/gvnic", *(f"rdma-{nic}=gpu-rdma/rdma-{nic}" for nic in range(8))])
TCPXO = ", ".join(f"vpc{nic}=gpu-{nic}/gpu-{nic}-sub" for nic in range(1, 9))
CASES = {"rtx-pro-6000-1": "", "h100-16": "", "h100-mega-16": TCPXO, "h200-16": RDMA}
COMMAND = ["python", "-m", "pttrainer"]


def made(type: str, networks: str = "", **spec: Any) -> Manifest:
    return jobset(layout_of(on(type, **spec), Settings(gpu_networks=networks)))


def template(made: Manifest) -> Manifest:
    body: Manifest = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return body


@pytest.mark.parametrize("type", CASES)
def test_golden_jobsets_on_gpus(type: str) -> None:
    assert_golden(GOLDEN.parent / "render_gpus" / f"{type}.yaml", kubectl_yaml.write(made(type, CASES[type])))


@pytest.mark.parametrize("type", OF_KIND["gpu"])
def test_every_type_gets_all_gpus_of_its_machines_on_nodes_of_its_kind(type: str) -> None:
    known, rendered = accelerators.resolve(type), made(type)
    pod, replicated = pod_spec(rendered), rendered["spec"]["replicatedJobs"][0]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": known.gke_accelerator}
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == known.chips_per_vm
    assert replicated["template"]["spec"]["completions"] * known.chips_per_vm == known.chips
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert pod["containers"][0]["image"] == Settings().gpu_trainer_image
    assert labels.EXCLUSIVE_TOPOLOGY not in rendered["metadata"]["annotations"]
    env = env_of(rendered)
    assert env["JAX_PLATFORMS"] == "cuda,cpu"
    assert env["LD_LIBRARY_PATH"].split(":")[0] == "/usr/local/nvidia/lib64"  # of the driver, which no image has
    assert "LIBTPU_INIT_ARGS" not in env
    assert ("JAX_COORDINATOR_ADDRESS" in env) is (known.vms > 1)


def test_a_jobs_own_flags_come_last() -> None:
    env = env_of(made("h100-8", env=[{"name": "XLA_FLAGS", "value": "--xla_dump_to=/tmp/dump"}]))
    assert env["XLA_FLAGS"].startswith("--xla_gpu_enable_latency_hiding_scheduler=true ")
    assert env["XLA_FLAGS"].endswith(" --xla_dump_to=/tmp/dump")


@pytest.mark.parametrize("type", ["h100-8", "h100-16", "h100-mega-8", "h100-mega-16", "b200-16"])
def test_without_named_networks_a_pod_is_restricted_and_has_one_interface(type: str) -> None:
    rendered = made(type)
    assert not any(key.startswith("networking.gke.io") for key in template(rendered)["metadata"]["annotations"])
    assert "initContainers" not in pod_spec(rendered)
    assert pod_spec(rendered)["containers"][0]["command"] == COMMAND
    assert not any("hostPath" in volume for volume in pod_spec(rendered)["volumes"])


def test_a_machine_alone_needs_no_network_of_its_nics() -> None:
    assert pod_spec(made("h200-8", RDMA)) == pod_spec(made("h200-8"))


def test_rdma_pods_name_the_rdma_networks_by_the_place_of_their_nics() -> None:
    annotations = template(made("b200-16", RDMA))["metadata"]["annotations"]
    interfaces = json.loads(annotations["networking.gke.io/interfaces"])
    assert interfaces[0] == {"interfaceName": "eth0", "network": "default"}
    assert interfaces[1:] == [{"interfaceName": f"eth{nic + 2}", "network": f"rdma-{nic}"} for nic in range(8)]


def test_the_fabrics_profile_is_sourced_and_the_trainer_takes_the_shells_place() -> None:
    command = pod_spec(made("b200-16", RDMA))["containers"][0]["command"]
    assert command[:3] == ["/bin/bash", "-c", 'source "$0" && exec "$@"']
    assert command[3:] == ["/usr/local/gib/scripts/set_nccl_env.sh", *COMMAND]


def test_tcpxos_daemon_is_a_sidecar_with_the_devices_and_every_volume_is_mounted() -> None:
    rendered = made("h100-mega-16", TCPXO)
    pod = pod_spec(rendered)
    daemon = pod["initContainers"][0]
    assert (daemon["name"], daemon["restartPolicy"]) == ("tcpxo-daemon", "Always")
    assert "--num_nics=8" in daemon["command"][2]
    assert "/dev/nvidia7" in template(rendered)["metadata"]["annotations"]["devices.gke.io/container.tcpxo-daemon"]
    mounted = {mount["name"] for each in (daemon, pod["containers"][0]) for mount in each["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("option", "placed"), [("onDemand", True), ("spot", True), ("flexStart", False), ("queuedProvisioning", False)]
)
def test_pools_of_gpus_are_what_the_api_takes(option: Any, placed: bool) -> None:
    layout = layout_of(on("h200-16"), Settings(gpu_networks=RDMA))
    pool = node_pool(layout, CapacityOption(type=option), "us-east5-a", 0)
    request = container.CreateNodePoolRequest(parent="projects/p/locations/l/clusters/c", node_pool=pool)
    back = container.CreateNodePoolRequest.deserialize(container.CreateNodePoolRequest.serialize(request)).node_pool
    (gpus,) = back.config.accelerators
    assert (gpus.accelerator_type, gpus.accelerator_count) == ("nvidia-h200-141gb", 8)
    assert gpus.gpu_driver_installation_config.gpu_driver_version.name == "LATEST"
    nics = back.network_config.additional_node_network_configs
    assert [(nic.network, nic.subnetwork) for nic in nics][:2] == [("gpu-gvnic", "gvnic"), ("gpu-rdma", "rdma-0")]
    assert len(nics) == 9
    assert (back.placement_policy.type_.name == "COMPACT") is placed
    assert not back.placement_policy.tpu_topology


def test_a_pool_from_before_the_networks_were_named_fits_no_job_that_uses_them() -> None:
    option = CapacityOption(type="onDemand")

    def fits(type: str, networks: str) -> str:
        return shape(layout_of(on(type), Settings(gpu_networks=networks)), option, "us-east5-a")

    assert fits("h200-16", "") != fits("h200-16", RDMA)
    assert fits("h200-8", "") == fits("h200-8", RDMA)


def test_machines_of_the_other_fabric_talk_over_their_first_nic() -> None:
    assert pod_spec(made("h100-mega-16", RDMA)) == pod_spec(made("h100-mega-16"))
    assert pod_spec(made("h200-16", TCPXO)) == pod_spec(made("h200-16"))
    layout = layout_of(on("h100-mega-16"), Settings(gpu_networks=RDMA))
    assert "network_config" not in node_pool(layout, CapacityOption(type="onDemand"), "us-east5-a", 0)


@pytest.mark.parametrize("text", ["rdma-0", "rdma-0=net", "rdma-0=net/sub,rdma-0=net/other", "RDMA=net/sub"])
def test_a_wrong_list_of_networks_is_refused_at_start(text: str) -> None:
    with pytest.raises(SettingsError, match=r"POSTTRAIN_GPU_NETWORKS: .*accepted: 'rdma-0=VPC/SUBNET"):
        Settings.from_env({"POSTTRAIN_GPU_NETWORKS": text})


def test_samplers_on_gpus_beside_a_trainer_on_a_tpu_have_their_own_image_and_chips() -> None:
    apart = {"placement": "separate", "separate": {"replicas": 2, "accelerator": {"type": "l4-1"}}}
    made_of = layout_of(
        on("v6e-4", algorithm={"grpo": {"groupSize": 2}}, rollout=apart, rewards=[{"builtin": "gsm8k"}]), Settings()
    )
    sampler = jobset(made_of)["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    assert sampler["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert sampler["containers"][0]["image"] == Settings().gpu_trainer_image
    assert sampler["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
