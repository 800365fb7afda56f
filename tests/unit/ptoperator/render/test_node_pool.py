"""The node pool of every accelerator and every way to buy it: golden requests, and rules that hold for all."""

from pathlib import Path
from typing import Any

import pytest
from google.cloud import container_v1 as container
from tests.builders.operator.manifest_checks import assert_golden
from tests.builders.operator.world import job_manifest

from ptapi import accelerators
from ptapi.load import parse_job
from ptapi.spec import CapacityOption
from ptapi.text import kubectl_yaml
from ptkube.resources import Manifest
from ptoperator.capacity.node_pools.pathways_head_pool import head_pool
from ptoperator.render import Layout, layout_of
from ptoperator.render.node_pool import node_pool, shape
from ptoperator.settings import Settings

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "nodepools"
SETTINGS = Settings(gke_node_service_account="nodes@my-project.iam.gserviceaccount.com")
UID = "0b5e2a4c-8f0e-4f5e-9d1c-2f6f1c9a7e11"
BLOCK = "projects/my-project/reservations/r1/reservationBlocks/b2"
OPTIONS: dict[str, CapacityOption] = {
    "on-demand": CapacityOption(type="onDemand"),
    "spot": CapacityOption(type="spot"),
    "flex-start": CapacityOption(type="flexStart"),
    "queued-provisioning": CapacityOption(type="queuedProvisioning"),
    "reservation": CapacityOption(type="reservation", reservation="r1"),
    "reservation-block": CapacityOption(type="reservation", reservation=BLOCK),
}
CASES = [
    ("v4-8", "on-demand"),
    ("v4-128", "on-demand"),
    ("v5p-8", "spot"),
    ("v5p-128", "reservation-block"),
    ("v5e-8", "on-demand"),
    ("v5e-16", "flex-start"),
    ("v6e-1", "spot"),
    ("v6e-16", "spot"),
    ("v6e-16", "queued-provisioning"),
    ("v6e-256", "reservation"),
    ("tpu7x-8", "on-demand"),
    ("tpu7x-128", "flex-start"),
    ("tpu7x-128", "queued-provisioning"),
    ("tpu7x-128", "reservation"),
    ("rtx-pro-6000-1", "spot"),
    ("h100-8", "flex-start"),
    ("h100-mega-16", "reservation"),
    ("b200-16", "queued-provisioning"),
    ("h200-16", "on-demand"),
]
ALL = [name for generation in accelerators.table() for name in accelerators.names(generation)]


def layout(accelerator: str, slices: int = 1, name: str = "llama") -> Layout:
    devices = accelerators.resolve(accelerator, slices=slices).total_devices
    spec: dict[str, Any] = {"accelerator": {"type": accelerator, "slices": slices}, "training": {"batchSize": devices}}
    manifest = job_manifest(name, **spec)
    manifest["metadata"]["uid"] = UID
    return layout_of(parse_job(manifest), SETTINGS)


def pool(accelerator: str, option: str = "on-demand", index: int = 0, slices: int = 1) -> Manifest:
    return node_pool(layout(accelerator, slices), OPTIONS[option], "us-east5-a", index)


@pytest.mark.parametrize(("accelerator", "option"), CASES)
def test_golden_node_pools(accelerator: str, option: str) -> None:
    assert_golden(GOLDEN / f"{accelerator}-{option}.yaml", kubectl_yaml.write(pool(accelerator, option)))


def test_the_golden_pool_of_pathways_heads_is_what_the_api_takes() -> None:
    rendered = head_pool(SETTINGS)
    assert_golden(GOLDEN / "pathways-heads.yaml", kubectl_yaml.write(rendered))
    request = container.CreateNodePoolRequest(parent="projects/p/locations/l/clusters/c", node_pool=rendered)
    back = container.CreateNodePoolRequest.deserialize(container.CreateNodePoolRequest.serialize(request))
    assert back.node_pool.autoscaling.total_max_node_count == 20


def test_there_is_no_golden_pool_of_a_case_that_is_gone() -> None:
    known = {f"{name}-{option}" for name, option in CASES}
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == {*known, "pathways-heads"}


@pytest.mark.parametrize("accelerator", ALL)
def test_a_pool_is_one_whole_slice(accelerator: str) -> None:
    rendered, chips = pool(accelerator), accelerators.resolve(accelerator)
    assert rendered["initial_node_count"] * chips.chips_per_vm == chips.chips
    assert rendered["config"]["machine_type"] == chips.machine_type
    placement = rendered.get("placement_policy")
    if not chips.multi_host:
        assert placement is None
    elif chips.is_gpu:
        assert placement == {"type_": "COMPACT"}
    elif chips.generation == "tpu7x":
        assert placement == {"policy_name": f"posttrain-tpu7x-{chips.topology}"}
    else:
        assert placement == {"type_": "COMPACT", "tpu_topology": chips.topology}


@pytest.mark.parametrize("option", OPTIONS)
def test_pools_are_what_the_api_takes(option: str) -> None:
    """Unknown fields and enum values are errors of the protobuf."""
    rendered = pool("v6e-16", option)
    request = container.CreateNodePoolRequest(parent="projects/p/locations/l/clusters/c", node_pool=rendered)
    back = container.CreateNodePoolRequest.deserialize(container.CreateNodePoolRequest.serialize(request))
    assert back.node_pool.config.spot is (option == "spot")
    assert back.node_pool.config.flex_start is (option in ("flex-start", "queued-provisioning"))
    assert back.node_pool.queued_provisioning.enabled is (option == "queued-provisioning")
    assert list(back.node_pool.config.reservation_affinity.values) == {
        "reservation": ["r1"], "reservation-block": [BLOCK]
    }.get(option, [])  # fmt: skip
    assert back.node_pool.management.auto_upgrade is True  # in a release channel GKE takes no other
    assert back.node_pool.max_pods_constraint.max_pods_per_node == 15


def test_slices_have_pools_of_their_own() -> None:
    made = [pool("v6e-16", index=index, slices=12) for index in range(12)]
    assert len({each["name"] for each in made}) == 12
    assert [each["config"]["resource_labels"]["posttrain-slice"] for each in made] == [str(i) for i in range(12)]


def test_names_of_pools_fit_and_tell_jobs_apart() -> None:
    long = node_pool(layout("v6e-16", slices=512, name="a" * 63), OPTIONS["spot"], "us-east5-a", 511)["name"]
    assert len(long) == 40
    assert long.endswith("-511")


def test_the_shape_is_what_cannot_be_changed_and_nothing_else() -> None:
    spot, other_zone = OPTIONS["spot"], "us-east5-b"
    same = shape(layout("v6e-16", name="one"), spot, "us-east5-a")
    assert same == shape(layout("v6e-16", slices=2, name="two"), spot, "us-east5-a")
    assert same != shape(layout("v6e-16"), spot, other_zone)
    assert same != shape(layout("v6e-32"), spot, "us-east5-a")
    assert same != shape(layout("v6e-16"), OPTIONS["on-demand"], "us-east5-a")
    flex = {shape(layout("v6e-16"), OPTIONS[each], "us-east5-a") for each in ("flex-start", "queued-provisioning")}
    assert len(flex) == 2
    reserved = {shape(layout("v6e-16"), OPTIONS[each], "us-east5-a") for each in ("reservation", "reservation-block")}
    assert len(reserved) == 2
