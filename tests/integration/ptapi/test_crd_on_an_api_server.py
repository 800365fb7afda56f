"""The CRD on an API server: it accepts what Python accepts, refuses what Python refuses, and says the same.

The wrong manifests are those of tests/unit/ptapi, so that a mistake is added once.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.cluster.api_access import Answer, Cluster, find
from tests.builders.cluster.manifests import eventually, is_established
from tests.unit.ptapi import test_wrong_manifests as table

from ptapi.crd.definition import crd
from ptapi.crd.immutable_fields import MESSAGE, QUEUE_MESSAGE
from ptapi.load import load_job, manifest, parse_job
from ptapi.status import PostTrainJobStatus
from ptkube.errors import Invalid
from ptkube.resources import CRDS, POSTTRAINJOBS

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))


@pytest.fixture(autouse=True, scope="module")
def definition(api: Cluster) -> None:
    api.kube.apply(CRDS, crd(), field_manager="tests")
    name = crd()["metadata"]["name"]
    eventually(lambda: is_established(api.kube.get(CRDS, name)))


def send(api: Cluster, namespace: str, document: Any, *, dry_run: bool = True) -> Answer:
    path = f"/apis/posttrain.dev/v1alpha1/namespaces/{namespace}/posttrainjobs?fieldValidation=Strict"
    return api.http("POST", f"{path}{'&dryRun=All' if dry_run else ''}", document)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_accepted_and_its_defaults_are_ours(api: Cluster, namespace: str, path: Path) -> None:
    job = load_job(path.read_text())
    for document in (yaml.safe_load(path.read_text()), manifest(job)):
        assert parse_job(send(api, namespace, document).expect(201)).spec == job.spec


@pytest.mark.parametrize("wrong", table.WRONG, ids=lambda wrong: wrong.name)
def test_mistake_is_refused_where_the_table_says_so(api: Cluster, namespace: str, wrong: Any) -> None:
    answer = send(api, namespace, table.patched(wrong.patch))
    assert (answer.status >= 400) == wrong.at_server, answer.text[:2000]
    if wrong.at_server:
        # A double is named by its entry, a mistake in a union of maps by the map.
        field = wrong.field.partition("[")[0].rpartition(".")[2] if wrong.field != "apiVersion" else "v1"
        assert field in answer.json["message"]


@pytest.mark.parametrize(
    ("type", "neighbours"),
    [
        ("v5p-9", "v5p-8 (4 chips), v5p-16 (8 chips)"),
        ("v5e-12", "v5e-8 (8 chips), v5e-16 (16 chips)"),
        ("v6e-512", "v6e-256 (256 chips)"),
        ("ironwood-4", "ironwood-2 (1 chips), ironwood-8 (4 chips)"),
    ],
)
def test_unknown_accelerator_is_refused_with_its_neighbours(
    api: Cluster, namespace: str, type: str, neighbours: str
) -> None:
    document = table.patched({**table.SFT, "spec.accelerator.type": type, "spec.training.batchSize": 61440})
    message = send(api, namespace, document).expect(422)["message"]
    assert f"spec.accelerator.type: Invalid value: {type}" in message.replace('"string": ', "").replace(
        '"object": ', ""
    )
    assert f"nearest: {neighbours}" in message


def test_field_that_an_older_crd_does_not_have_is_refused_and_not_left_out(api: Cluster, namespace: str) -> None:
    document = table.patched({"metadata.namespace": namespace, "spec.invented": "by a newer ptctl"})
    with pytest.raises(Invalid, match=r'unknown field "spec.invented"'):
        api.kube.create(POSTTRAINJOBS, document, strict=True)
    assert find(api.kube, POSTTRAINJOBS, "good", namespace) is None


CHANGES = [
    ({"spec.training.steps": 20}, "spec.training.steps", MESSAGE),
    ({"spec.model.uri": "random://small"}, "spec.model.uri", MESSAGE),
    ({"spec.env": [{"name": "A", "value": "1"}]}, "spec.env", MESSAGE),
    ({"spec.runPolicy.maxRestarts": 9}, "spec.runPolicy.maxRestarts", MESSAGE),
    ({"spec.queue": "b"}, "spec.queue", QUEUE_MESSAGE),
    ({"spec.runPolicy.suspend": True}, "", ""),
    ({"spec.queue": "b"}, "", ""),
    ({"spec.runPolicy.suspend": False, "spec.queue": "c"}, "", ""),
    ({"spec.queue": "d"}, "spec.queue", QUEUE_MESSAGE),
    ({"spec.runPolicy.activeDeadlineSeconds": 60}, "", ""),
    ({"spec.runPolicy.ttlSecondsAfterFinished": 60}, "", ""),
    ({"metadata.labels": {"team": "a"}}, "", ""),
]


def test_changes_after_creation(api: Cluster, namespace: str) -> None:
    send(api, namespace, table.GOOD, dry_run=False).expect(201)
    path = f"/apis/posttrain.dev/v1alpha1/namespaces/{namespace}/posttrainjobs/good"
    for patch, field, message in CHANGES:
        current = api.http("GET", path).expect(200)
        for name, value in patch.items():
            *parents, last = name.split(".")
            node = current
            for step in parents:
                node = node.setdefault(step, {})
            node[last] = value
        answer = api.http("PUT", path, current)
        assert answer.status == (422 if field else 200), (patch, answer.text[:1000])
        if field:
            assert f"{field}: " in answer.json["message"]
            assert message in answer.json["message"]


def test_status_keeps_every_field_that_the_operator_writes(api: Cluster, namespace: str) -> None:
    send(api, namespace, table.GOOD, dry_run=False).expect(201)
    status = PostTrainJobStatus.model_validate(FULL_STATUS)
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    current = api.kube.get(POSTTRAINJOBS, "good", namespace)
    stored = api.kube.replace_status(POSTTRAINJOBS, {**current, "status": written})
    assert stored["status"] == json.loads(json.dumps(written))
    assert stored["spec"] == current["spec"]


NOW = "2026-11-21T03:00:00Z"
FULL_STATUS: dict[str, Any] = {
    "phase": "Running",
    "observedGeneration": 1,
    "conditions": [{"type": "Running", "status": "True", "reason": "Training", "lastTransitionTime": NOW}],
    "algorithm": "grpo",
    "chips": 16,
    "jobSet": "good",
    "startTime": NOW,
    "completionTime": NOW,
    "progress": {"step": 3, "total": 10, "steps": "3/10", "percent": 30, "secondsPerStep": 1.5, "eta": "1m"},
    "metrics": {"loss": "0.5", "reward": "0.25", "evalReward": "0.9"},
    "checkpoint": {"step": 2, "uri": "file:///runs/good/checkpoints/2", "time": NOW},
    "capacity": {"attempts": [{"option": "existing", "started": NOW}]},
    "restarts": {"Preempted": 1},
    "failure": {"failureClass": "Preempted", "message": "node went away", "exitCode": 75, "pod": "good-0", "time": NOW},
    "time": {"queueing": 1, "training": 2, "goodput": "50%"},
    "cost": {"chipHours": "1.5"},
    "links": {"run": "file:///runs/good"},
}  # fmt: skip


def test_table_of_jobs_has_the_columns_of_the_design(api: Cluster, namespace: str) -> None:
    send(api, namespace, table.GOOD, dry_run=False).expect(201)
    current = api.kube.get(POSTTRAINJOBS, "good", namespace)
    api.kube.replace_status(POSTTRAINJOBS, {**current, "status": FULL_STATUS})
    lines = api.kubectl("get", "ptj", "-n", namespace).stdout.splitlines()
    assert lines[0].split() == ["NAME", "PHASE", "ALGORITHM", "ACCELERATOR", "STEP", "LOSS", "REWARD", "ETA", "AGE"]
    assert lines[1].split()[:8] == ["good", "Running", "grpo", "cpu-2", "3/10", "0.5", "0.25", "1m"]
    assert "good" in api.kubectl("get", "all", "-n", namespace).stdout
    explained = api.kubectl("explain", "ptj.spec.training.batchSize").stdout
    assert "Sequences per optimizer step" in " ".join(explained.split())
