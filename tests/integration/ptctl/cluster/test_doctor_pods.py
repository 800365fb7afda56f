"""`ptctl cluster doctor --from-pods`: what pods with the trainer's image can do, in a cluster that runs pods."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.builders.servers import bucket as buckets

from ptctl.cluster.doctor import pods
from ptctl.cluster.doctor.finding import Finding, Severity
from ptctl.cluster.doctor.pods import TrainerPod, check
from ptkube.client import Kube
from ptkube.resources import JOBS, PODS, SERVICES

NAMESPACE = "default"
BUCKET = "gs://lab/runs"


@pytest.fixture
def kube(cluster: Any, kubeconfig: Path) -> Iterator[Kube]:
    yield cluster.kube
    until(lambda: left(cluster.kube) == [])


def left(kube: Kube) -> list[str]:
    doctors = "app.kubernetes.io/component=doctor"
    return [each["metadata"]["name"] for r in (JOBS, PODS, SERVICES) for each in kube.list(r, labels=doctors).items]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def shown(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {each.check: each for each in findings}


def test_pods_pull_their_image_reach_each_other_and_use_the_bucket(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    with buckets.serve_here(monkeypatch) as bucket:
        well = shown(check(kube, TrainerPod(NAMESPACE, "trainer:1"), BUCKET))
        assert {name: each.severity for name, each in well.items()} == dict.fromkeys(
            ("image", "dns", "bucket"), Severity.OK
        ), well
        assert bucket.names("lab") == [], "what was written to try it is deleted"
        bucket.full = True
        full = shown(check(kube, TrainerPod(NAMESPACE, "trainer:1"), BUCKET))["bucket"]
    assert (full.severity, "over its quota" in full.message) == (Severity.ERROR, True), full
    assert "ServiceAccount default/default" in full.fix


def test_an_image_that_cannot_be_pulled_is_named(kube: Kube) -> None:
    findings = shown(check(kube, TrainerPod(NAMESPACE, "registry.invalid/trainer:1"), ""))
    assert findings.keys() == {"image"}
    assert "registry.invalid/trainer:1 cannot be pulled" in findings["image"].message


def test_ctrl_c_takes_the_pods_away(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    def press() -> None:
        until(lambda: left(kube) != [])
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(pods, "_problem", lambda *_, **__: None)  # they would be given up
    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        shown(check(kube, TrainerPod(NAMESPACE, "registry.invalid/trainer:1"), ""))
    job = pods._manifest("n", TrainerPod(NAMESPACE, "i"), "")  # killed with -9, it ends and goes by itself
    assert (job["spec"]["activeDeadlineSeconds"], job["spec"]["ttlSecondsAfterFinished"]) == (600, 60)
