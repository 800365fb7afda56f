"""`ptctl workload metrics|samples|tensorboard|export` on a run directory that only pods see."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptkube.client import Kube
from ptkube.errors import ApiError
from ptkube.resources import PODS, POSTTRAINJOBS, Manifest

Run = Callable[..., subprocess.CompletedProcess[str]]
WORK = "/mnt/posttrain-claim"
CLAIM: Manifest = {"persistentVolumeClaim": {"claimName": "work"}}
WRITER = """
mkdir -p "$1/samples" "$1/tensorboard"
for step in 1 2 3; do
  echo "{\\"step\\": $step, \\"loss\\": $step.5}" >> "$1/metrics.jsonl"
  echo "{\\"prompt\\": \\"p$step\\", \\"completion\\": \\"c$step\\", \\"reward\\": 1.0}" > "$1/samples/step-0000000$step.jsonl"
done
echo events > "$1/tensorboard/events.out"
mkdir -p "$1/export/critic"; head -c 3000000 /dev/urandom > "$1/export/model.safetensors"
echo v > "$1/export/critic/value.safetensors"; echo '{}' > "$1/export/config.json"
"""  # noqa: E501


@pytest.fixture
def kube(cluster: Any) -> Kube:
    client: Kube = cluster.kube
    return client


@pytest.fixture
def claimed(kube: Kube, ptctl: Run, job: Callable[..., str], namespace: str) -> Iterator[Callable[..., None]]:
    """Create a job that sleeps, with its run directory on a claim, and fill that by a pod."""

    def make(name: str, image: str = "mine:1") -> None:
        document = yaml.safe_load(job(name, suspend=False))
        volume = {"name": "work", "mountPath": WORK, **CLAIM}
        document["spec"] |= {"output": {"uri": f"file://{WORK}/runs"}, "volumes": [volume], "image": image}
        document["spec"]["runtime"] = {"container": {"command": ["sleep", "600"]}}
        document["spec"]["runPolicy"]["terminationGracePeriodSeconds"] = 1
        done = ptctl("workload", "create", "-f", "-", stdin=json.dumps(document))
        assert done.returncode == 0, done.stderr
        until(lambda: (kube.get(POSTTRAINJOBS, name, namespace).get("status") or {}).get("jobSet"))
        container = {
            "name": "writer",
            "image": "none",
            "command": ["/bin/sh", "-c", WRITER, "sh", f"{WORK}/runs/{name}"],
            "volumeMounts": [{"name": "work", "mountPath": WORK}],
        }
        spec = {"restartPolicy": "Never", "containers": [container], "volumes": [{"name": "work", **CLAIM}]}
        kube.create(PODS, {"metadata": {"name": "writer", "namespace": namespace}, "spec": spec})
        until(lambda: kube.get(PODS, "writer", namespace)["status"].get("phase") == "Succeeded")

    yield make
    with suppress(ApiError):
        kube.delete(PODS, "writer", namespace)


def until(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def readers(kube: Kube, namespace: str) -> list[Manifest]:
    return kube.list(PODS, namespace, labels="app.kubernetes.io/component=reader").items


def test_a_run_on_a_claim_is_read_by_a_pod_that_is_gone_afterwards(
    kube: Kube, ptctl: Run, claimed: Callable[..., None], namespace: str, tmp_path: Path
) -> None:
    claimed("a")
    rows = ptctl("workload", "metrics", "a", "-o", "json")
    assert [json.loads(line) for line in rows.stdout.splitlines()] == [
        {"step": step, "loss": step + 0.5} for step in (1, 2, 3)
    ], rows.stderr
    assert "p3" in ptctl("workload", "samples", "a").stdout
    assert "p2" in ptctl("workload", "samples", "a", "--step", "2").stdout
    assert ptctl("workload", "samples", "a", "--step", "9").returncode == 3
    followed = ptctl("workload", "samples", "a", "-f")
    assert (followed.returncode, "leave out -f" in followed.stderr) == (1, True)
    opened = ptctl("workload", "tensorboard", "a").stdout.split()
    assert (Path(opened[2]) / "events.out").read_text() == "events\n"
    for there_already in (0, 3):
        copied = ptctl("workload", "export", "a", str(tmp_path / "model"))
        assert (copied.returncode, copied.stderr.count("already there")) == (0, there_already), copied.stderr
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "model").rglob("*.safetensors")}
    assert sizes == {"model.safetensors": 3_000_000, "value.safetensors": 2}
    until(lambda: readers(kube, namespace) == [])


def test_ctrl_c_takes_the_pod_away(
    kube: Kube, ptctl_command: Callable[..., list[str]], claimed: Callable[..., None], namespace: str
) -> None:
    claimed("b", image="registry.invalid/trainer:1")  # cannot be pulled, so the pod waits
    command = ptctl_command("workload", "metrics", "b")
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE) as child:
        until(lambda: readers(kube, namespace))
        (pod,) = readers(kube, namespace)
        assert pod["metadata"]["ownerReferences"][0]["name"] == "b"
        assert pod["spec"]["activeDeadlineSeconds"] == 300
        assert pod["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] is True
        child.send_signal(signal.SIGINT)
        assert child.wait(300) == 130
    until(lambda: readers(kube, namespace) == [])
