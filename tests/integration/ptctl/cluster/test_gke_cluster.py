"""A cluster that GKE knows, whose API server answers: entered, installed in, and deleted when its jobs are over."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.gke.compute import ComputeServer
from tests.builders.gke.model import GkeModel
from tests.builders.gke.server import PROJECT, GkeServer
from tests.integration.ptctl.cluster.conftest import Api
from tests.integration.ptctl.cluster.test_install import IMAGES, empty, run_verb  # noqa: F401 (empty is a fixture)

from ptkube.resources import DEPLOYMENTS, POSTTRAINJOBS

JOB: dict[str, Any] = {
    "metadata": {"name": "runs", "namespace": "default"},
    "spec": {
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": "gs://lab/t.jsonl"}},
        "accelerator": {"type": "v6e-16"},
        "output": {"uri": "gs://lab/runs"},
    },
}


@dataclass
class Site:
    """Google's APIs, and the API server behind the cluster."""

    model: GkeModel
    api: Api

    def run(self, *words: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of a verb in this process."""
        return run_verb(*words)


@pytest.fixture
def site(empty: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:  # noqa: F811 (a fixture)
    """Its cluster runs; ptctl made it."""
    config = yaml.safe_load(empty.kubeconfig.read_text())
    entry, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    model = GkeModel(lambda: 0.0, seconds=0.0, cluster=None)
    with GkeServer(model) as gke, ComputeServer() as compute:
        for name, value in (
            ("GOOGLE_CLOUD_PROJECT", PROJECT),
            ("GOOGLE_OAUTH_ACCESS_TOKEN", user["token"]),
            ("PTCTL_GKE_ENDPOINT", gke.endpoint),
            ("PTCTL_COMPUTE_ENDPOINT", compute.endpoint),
            ("PTCTL_POLL_SECONDS", "0.01"),
            ("KUBECONFIG", str(tmp_path / "config")),
            ("PATH", str(tmp_path)),  # without the plugin of gcloud, where it is installed
        ):
            monkeypatch.setenv(name, value)
        site = Site(model, empty)
        assert site.run("cluster", "create", "tpus", "--zone", "us-east5-a")[0] == 0
        assert model.cluster is not None
        model.cluster.endpoint = entry["server"].removeprefix("https://")
        model.cluster.certificate = entry["certificate-authority-data"]
        yield site


def test_it_is_installed_in_entered_and_deleted_when_its_jobs_are_over(site: Site) -> None:
    code, _, err = site.run("cluster", "install", "tpus", *IMAGES, "--operator-service-account", "o@p.iam")
    assert code == 0, err
    deployment = site.api.kube.get(DEPLOYMENTS, "posttrain-operator", "posttrain-system")
    env = {each["name"]: each.get("value") for each in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert (env["POSTTRAIN_GKE_CLUSTER"], env["POSTTRAIN_GKE_LOCATION"]) == ("tpus", "us-east5")

    site.api.kube.create(POSTTRAINJOBS, JOB)
    assert site.run("cluster", "credentials", "tpus")[:2] == (0, "gke_p_us-east5_tpus\n")
    code, out, err = site.run("workload", "list", "-o", "name")  # by the token of `ptctl cluster token`
    assert (code, out) == (0, "posttrainjob.posttrain.dev/runs\n"), err

    code, _, err = site.run("cluster", "delete", "tpus", "--yes")
    assert (code, site.model.cluster is not None) == (1, True)
    assert "error: cluster tpus has 1 unfinished job: default/runs\n" in err
    job = site.api.kube.get(POSTTRAINJOBS, "runs", "default")
    site.api.kube.replace_status(POSTTRAINJOBS, {**job, "status": {"phase": "Succeeded"}})
    code, _, err = site.run("cluster", "delete", "tpus", "--yes")
    assert (code, site.model.cluster) == (0, None), err


def test_adapt_says_what_gke_lacks_and_changes_nothing_of_it(site: Site) -> None:
    assert site.model.cluster is not None
    site.model.cluster.manifest = {"name": "tpus", "resource_labels": {"gke_product_type": "xpk"}}
    code, _, err = site.run("cluster", "adapt", "tpus", *IMAGES)
    assert code == 0, err
    assert "warning: Workload Identity is off, so pods have no Google account of their own\n" in err
    assert "gcloud container clusters update tpus --location us-east5 --workload-pool=PROJECT.svc.id.goog" in err
    assert site.model.cluster.manifest == {"name": "tpus", "resource_labels": {"gke_product_type": "xpk"}}
    site.run("cluster", "credentials", "tpus")
    _, out, _ = site.run("cluster", "doctor")
    assert "Workload Identity is off: neither the operator nor trainers have a Google account" in out
