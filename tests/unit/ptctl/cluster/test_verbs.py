"""The verbs of `ptctl cluster` as a user types them."""

import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud import container_v1 as container
from tests.builders.gke.model import RUNNING, ClusterRecord, PoolRecord

from ptctl.cluster.kubeconfig import document, merge_into
from ptctl.commands.cluster.create import create
from ptctl.ui.command_line import xpk_flags
from ptkube import kubeconfig

Invoke = Callable[..., Any]
ZONE = ("--zone", "us-east5-a")


def dry_run(invoke: Invoke, *flags: str) -> list[dict[str, Any]]:
    result = invoke("cluster", "create", "tpus", *flags, "--project", "p", "--dry-run", "-o", "json")
    assert (result.code, result.err) == (0, "")
    requests: list[dict[str, Any]] = json.loads(result.out)
    return requests


CASES = {
    "pools per job": (ZONE, []),
    "zonal": (("--location", "us-east5-a"), []),
    "spot": ((*ZONE, "--tpu-type", "v6e-16", "--num-slices", "2", "--spot"), ["v6e-16-spot-0", "v6e-16-spot-1"]),
    "one host": ((*ZONE, "--tpu-type", "v5e-4", "--on-demand"), ["v5litepod-4-demand-0"]),
    "flex": ((*ZONE, "--tpu-type", "tpu7x-128", "--flex"), ["tpu7x-128-flex-0"]),
    "sub-blocks": (
        (*ZONE, "--tpu-type", "v5p-128", "--num-slices", "2", "--reservation",
         "projects/q/reservations/r/reservationBlocks/b/reservationSubBlocks/s0,r/reservationBlocks/b2"),
        ["v5p-128-reserved-0", "v5p-128-reserved-1"],
    ),
    "GPUs": ((*ZONE, "--device-type", "rtx-pro-6000-2", "--num-slices", "2", "--spot"),
             ["rtx-pro-6000-2-spot-0", "rtx-pro-6000-2-spot-1"]),
    "GPUs over TCPXO": ((*ZONE, "--device-type", "h100-mega-16", "--flex"), ["h100-mega-16-flex-0"]),
    "GPUs over RDMA": ((*ZONE, "--device-type", "h200-16", "--reservation", "r"), ["h200-16-reserved-0"]),
    "GPUs over the first NIC": (
        (*ZONE, "--device-type", "h200-16", "--reservation", "r", "--gpu-networks", "none"), ["h200-16-reserved-0"]),
    "networks alone": ((*ZONE, "--gpu-networks", "rdma"), []),
    "everything else": (
        (*ZONE, "--enable-pathways", "--private", "--enable-private-endpoint", "--authorized-networks", "10.0.0.0/8",
         "--maintenance-window-start", "2026-01-03T02:00:00Z", "--maintenance-window-end", "2026-01-03T08:00:00Z",
         "--maintenance-window-recurrence", "FREQ=WEEKLY;BYDAY=SA,SU", "--release-channel", "STABLE", "--labels",
         "team=a,cost=b", "--network", "n", "--subnetwork", "s", "--node-service-account", "n@p.iam",
         "--enable-parallelstore-csi-driver", "--enable-gcpfilestore-csi-driver", "--enable-lustre-csi-driver"),
        ["cpu-np"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_request_of_a_dry_run_is_one_that_the_real_protobufs_take(invoke: Invoke, case: str) -> None:
    flags, pools = CASES[case]
    requests: dict[str, list[Any]] = {"cluster": [], "pool": [], "policy": []}
    for each in dry_run(invoke, *flags):
        kind = {"CreateCluster": "cluster", "CreateNodePool": "pool"}.get(each["method"].rpartition("/")[2], "policy")
        requests[kind].append(each["request"])
    (cluster,) = (container.CreateClusterRequest(body).cluster for body in requests["cluster"])
    made = [container.CreateNodePoolRequest(body).node_pool for body in requests["pool"]]
    assert [pool.name for pool in made] == pools
    assert cluster.workload_identity_config.workload_pool == "p.svc.id.goog"
    assert len(requests["policy"]) == {"flex": 1, **dict.fromkeys(("GPUs over RDMA", "networks alone"), 12),
                                       "GPUs over TCPXO": 24}.get(case, 0)  # fmt: skip
    for pool in made:
        assert dict(pool.config.resource_labels)["posttrain-made-by"] == "ptctl"
        assert "posttrain-managed-by" not in pool.config.resource_labels  # the operator collects those


def test_reservations_go_one_to_a_slice(invoke: Invoke) -> None:
    flags, _ = CASES["sub-blocks"]
    pools = [each["request"]["node_pool"] for each in dry_run(invoke, *flags)[1:]]
    paths = [pool["config"]["reservation_affinity"]["values"][0] for pool in pools]
    assert [path.rpartition("/")[2] for path in paths] == ["s0", "b2"]


WRONG = {
    "no place": ((), "--zone: not set; accepted: the zone of the chips"),
    "a region for a zone": (("--zone", "us-east5"), "--zone: 'us-east5'; accepted: a zone, us-east5-b"),
    "another region": ((*ZONE, "--location", "us-west1"), "--zone: 'us-east5-a' is not in --location us-west1"),
    "no capacity": ((*ZONE, "--tpu-type", "v6e-16"), "--tpu-type: no capacity; accepted: one of --reservation NAME"),
    "two capacities": ((*ZONE, "--tpu-type", "v6e-16", "--spot", "--flex"), "--spot and --flex together"),
    "a type that is none": ((*ZONE, "--tpu-type", "v6e-17", "--spot"), "--tpu-type"),
    "chips without a type": ((*ZONE, "--spot"), "--spot: set without --tpu-type"),
    "cpu": ((*ZONE, "--tpu-type", "cpu-8", "--spot"), "--tpu-type: 'cpu-8' has no chips"),
    "a wrong path": ((*ZONE, "--tpu-type", "v6e-16", "--reservation", "a b"), "--reservation: 'a b'; accepted: NAME"),
    "too many": ((*ZONE, "--tpu-type", "v6e-16", "--num-slices", "3", "--reservation", "a,b"), "2 reservations for 3"),
    "no network": ((*ZONE, "--authorized-networks", "10.0.0.1/8"), "--authorized-networks: 10.0.0.1/8 has host bits"),
    "half private": ((*ZONE, "--enable-private-endpoint"), "--enable-private-endpoint: set without --private"),
    "other networks": (
        (*ZONE, "--device-type", "h200-16", "--spot", "--gpu-networks", "tcpxo"),
        "--gpu-networks: tcpxo; accepted with this --tpu-type: rdma",
    ),
    "networks that are none": ((*ZONE, "--gpu-networks", "fast"), "--gpu-networks: 'fast' is not a network"),
    "networks of no zone": (("--location", "us-east5", "--gpu-networks", "rdma"), "0 zones with --gpu-networks rdma"),
    "no channel": ((*ZONE, "--release-channel", "beta"), "--release-channel: 'beta'; accepted: rapid, regular"),
    "half a window": ((*ZONE, "--maintenance-window-start", "2026-01-03T02:00:00Z"), "-end: not set"),
    "no time": ((*ZONE, "--maintenance-window", "25:00"), "--maintenance-window: '25:00'; accepted: a time of day"),
    "no label": ((*ZONE, "--labels", "a"), "--labels: 'a'; accepted: key=value"),
    "our label": ((*ZONE, "--labels", "posttrain-made-by=x"), "--labels: 'posttrain-made-by' is one of ptctl's own"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_what_is_accepted(invoke: Invoke, case: str) -> None:
    flags, words = WRONG[case]
    result = invoke("cluster", "create", "tpus", *flags, "--dry-run")
    assert (result.code, result.out) == (2, "")
    assert words in result.err


@pytest.mark.parametrize("name", ["Tpus", "9tpus", "t" * 41, "tpus-"])
def test_a_name_that_gke_refuses_is_refused_here(invoke: Invoke, name: str) -> None:
    result = invoke("cluster", "create", name, *ZONE, "--dry-run")
    assert (result.code, f"NAME: '{name}' is not a cluster's name" in result.err) == (2, True)


@pytest.mark.parametrize("flag", xpk_flags.CLUSTER_CREATE)
def test_a_flag_of_xpk_that_means_nothing_here_is_refused_with_what_to_use(invoke: Invoke, flag: str) -> None:
    result = invoke("cluster", "create", "--cluster", "tpus", *ZONE, flag)
    assert (result.code, f"{flag} does not exist here" in result.err) == (2, True)
    assert xpk_flags.CLUSTER_CREATE[flag] in result.err


def test_no_foreign_flag_is_one_of_ours() -> None:
    assert {word for param in create.params for word in param.opts} & set(xpk_flags.CLUSTER_CREATE) == set()


def test_a_dry_run_costs_less_than_two_seconds_of_cpu() -> None:
    words = ["cluster", "create", "t", *ZONE, "--tpu-type", "v6e-256", "--num-slices", "64", "--spot", "--dry-run"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "ptctl", *words], capture_output=True, timeout=900, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 2.0


def test_a_policy_is_made_once_for_shapes_that_are_placed_by_one(invoke: Invoke, google: Any) -> None:
    words = ("cluster", "create", "tpus", *ZONE, "--tpu-type", "tpu7x-128", "--flex")
    assert invoke(*words).code == 0
    assert invoke(*words).code == 0
    path = "/compute/v1/projects/p/regions/us-east5/resourcePolicies"
    assert google.compute.calls.count(("POST", path)) == 1
    policy = google.compute.there[f"{path}/posttrain-tpu7x-4x4x4"]
    assert policy["workloadPolicy"] == {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4x4"}


def test_a_policy_that_may_not_be_made_ends_before_the_cluster_is(invoke: Invoke, google: Any) -> None:
    google.compute.script = lambda method, path: (403, "Required permission") if method == "POST" else None
    result = invoke("cluster", "create", "tpus", *ZONE, "--tpu-type", "tpu7x-128", "--flex")
    assert (result.code, google.model.clusters_made) == (4, [])
    assert "error: Required permission\nhint: your account needs roles/compute.admin" in result.err


def test_a_cluster_is_made_listed_described_and_deleted(invoke: Invoke, google: Any) -> None:
    made = invoke("cluster", "create", "--cluster", "tpus", *ZONE)
    assert (made.code, made.out) == (0, "cluster tpus in us-east5 runs, 1 node pools\n")
    assert "next: ptctl cluster credentials tpus --project p --location us-east5" in made.err
    _, line = invoke("cluster", "list").out.splitlines()
    assert line.split() == ["tpus", "us-east5", "RUNNING", "1.34.1-gke.1829001", "1", "1", "ptctl"]
    assert invoke("cluster", "list", "-o", "name").out == "tpus\n"
    page = invoke("cluster", "describe", "tpus").out
    assert "Workload Identity: p.svc.id.goog" in page
    assert "cpu-system   e2-standard-16" in page
    raw = json.loads(invoke("cluster", "describe", "tpus", "-o", "json").out)
    assert (raw["status"], raw["nodePools"][0]["name"]) == ("RUNNING", "cpu-system")
    gone = invoke("cluster", "delete", "tpus", "--yes", "--force")
    assert (gone.code, gone.out) == (0, "cluster tpus deleted\n")
    missing = invoke("cluster", "describe", "tpus")
    assert (missing.code, "cluster tpus in project p does not exist" in missing.err) == (3, True)


@pytest.mark.parametrize(("typed", "code"), [("tpus\n", 0), ("yes\n", 2), ("", 2)])
def test_a_deletion_asks_for_the_name(
    invoke: Invoke, google: Any, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    invoke("cluster", "create", "tpus", *ZONE)
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    result = invoke("cluster", "delete", "tpus", "--force")
    assert (result.code, google.model.cluster is None) == (code, code == 0)
    assert "This deletes cluster tpus in us-east5 with 1 node pools, 1 nodes and everything in it." in result.err


def test_a_cluster_that_cannot_be_asked_for_jobs_is_not_deleted(invoke: Invoke, google: Any) -> None:
    google.model.cluster = ClusterRecord(
        {"name": "tpus", "resource_labels": {"posttrain-made-by": "ptctl"}}, endpoint="127.0.0.1:9"
    )
    result = invoke("cluster", "delete", "tpus", "--yes")
    assert (result.code, google.model.cluster is not None) == (1, True)
    assert "the jobs of cluster tpus cannot be listed" in result.err
    assert "hint: --force deletes it without looking at its jobs" in result.err


def test_credentials_keep_the_contexts_of_others(invoke: Invoke, google: Any, tmp_path: Path) -> None:
    invoke("cluster", "create", "tpus", *ZONE)
    path = tmp_path / "config"
    merge_into(path, document("mine", {"server": "https://mine"}, {"token": "t"}), "team")
    result = invoke("cluster", "credentials", "tpus", "--kubeconfig", str(path), "-n", "ns")
    assert (result.code, result.out) == (0, "gke_p_us-east5_tpus\n")
    config = yaml.safe_load(path.read_text())
    assert config["current-context"] == "gke_p_us-east5_tpus"
    assert [each["name"] for each in config["contexts"]] == ["mine", "gke_p_us-east5_tpus"]
    assert config["contexts"][0]["context"]["namespace"] == "team"
    assert config["clusters"][1]["cluster"]["server"] == "https://203.0.113.7"
    again = invoke("cluster", "credentials", "tpus", "--kubeconfig", str(path))  # the namespace stays
    assert (again.code, yaml.safe_load(path.read_text())) == (0, config)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_the_plugin_of_the_kubeconfig_gives_a_token_without_gcloud(
    invoke: Invoke, google: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    invoke("cluster", "create", "tpus", *ZONE)
    google.model.cluster.certificate = "bm8="
    path = tmp_path / "config"
    invoke("cluster", "credentials", "tpus", "--kubeconfig", str(path))
    config = yaml.safe_load(path.read_text())
    del config["clusters"][0]["cluster"]["certificate-authority-data"]  # that of this GKE is none
    path.write_text(yaml.safe_dump(config))
    assert kubeconfig.load(str(path)).authorization == "Bearer ya29.token"


@pytest.mark.parametrize("text", ["a: [", "- no kubeconfig", "clusters: 5"])
def test_a_file_that_is_no_kubeconfig_is_left_as_it_is(invoke: Invoke, google: Any, tmp_path: Path, text: str) -> None:
    invoke("cluster", "create", "tpus", *ZONE)
    path = tmp_path / "config"
    path.write_text(text)
    result = invoke("cluster", "credentials", "tpus", "--kubeconfig", str(path))
    assert (result.code, path.read_text()) == (1, text)
    assert "so it is left as it is" in result.err


def test_ctrl_c_says_what_goes_on_and_how_to_go_on(google: Any) -> None:
    google.model.seconds = 3600.0
    words = ["cluster", "create", "tpus", *ZONE, "--project", "p"]
    with subprocess.Popen(
        [sys.executable, "-m", "ptctl", *words], stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("waiting") and line.endswith("left: cluster tpus\n"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "Google continues with the requests it has: cluster tpus in us-east5.\n" in rest
    assert f"to continue: ptctl {' '.join(words)}\n" in rest
    assert "to undo:     ptctl cluster delete tpus --project p --location us-east5\n" in rest
    assert google.model.clusters_made == ["tpus"]


def test_a_pool_of_others_shows_who_made_it(invoke: Invoke, google: Any) -> None:
    invoke("cluster", "create", "tpus", *ZONE)
    google.model.pools["x"] = PoolRecord({"name": "x", "locations": ["us-east5-a"], "config": {}}, RUNNING)
    lines = invoke("cluster", "describe", "tpus").out.splitlines()
    assert [line.rpartition("   ")[2] for line in lines[-2:]] == ["ptctl", "somebody else"]
