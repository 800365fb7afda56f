"""`ptctl top`: who uses which chips, who waits, what is free and what it costs."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptctl.cluster.actions import top
from ptkube.errors import Forbidden
from ptkube.resources import NODES, PODS, POSTTRAINJOBS

Invoke = Callable[..., Any]
TPU = "google.com/tpu"


@pytest.fixture(autouse=True)
def busy(kube: Any, make_job: Callable[..., Any]) -> None:
    """A pool of 8 chips, on half of which a job trains; another job waits for 16."""
    for number in (1, 2):
        labels = {"cloud.google.com/gke-nodepool": "v6e-pool", "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}
        ready = [{"type": "Ready", "status": "True"}]
        node = {"metadata": {"name": f"n{number}", "labels": labels}, "spec": {}}
        kube.put(NODES, {**node, "status": {"capacity": {TPU: "4"}, "conditions": ready}})
    container = {"name": "trainer", "resources": {"limits": {TPU: "4"}}}
    pod = {"metadata": {"name": "a-0", "labels": {"posttrain.dev/job": "a"}}}
    kube.put(PODS, {**pod, "spec": {"nodeName": "n1", "containers": [container]}, "status": {"phase": "Running"}})
    status = {
        "chips": 4,
        "metrics": {"hbmInUse": "12.5", "dutyCycle": "0.87", "mfu": "0.41"},
        "progress": {"step": 40, "total": 300, "stage": "training"},
        "cost": {"chipHours": "3.20", "amount": "9.60 USD"},
        "time": {"goodput": "87%"},
    }
    kube.put(POSTTRAINJOBS, make_job("a", "Running", spec={"accelerator": {"type": "v6e-4"}}, **status))
    waiting = make_job("b", "Queued", spec={"accelerator": {"type": "v6e-16"}, "queue": "team"}, chips=16)
    kube.put(POSTTRAINJOBS, waiting)


def test_jobs_waits_and_pools_are_shown_with_memory_use_and_cost(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("chipHour: {v6e: 2.50}")
    shown = invoke("top", "-A", "--prices", str(tmp_path / "prices.yaml"))
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[:2] == ["4 of 8 chips in use, 4 free", "jobs: 1 on their chips, 1 waiting for 16 chips"]
    running = lines[lines.index("Running") + 2].split()
    assert running == ["default/a", "Running", "v6e-4", "4", "40/300", "training", "12.5/32", "0.87", "0.41", "87%",
                       "3.20", "9.60", "USD", "10.00"]  # fmt: skip
    assert lines[lines.index("Waiting") + 2].split()[1:4] == ["b", "Queued", "team"]
    assert lines[lines.index("Node pools") + 2].split()[-4:] == ["2/2", "8", "4", "default/a"]


def test_a_job_that_goes_on_without_a_slice_is_shown_with_its_restarts(
    invoke: Invoke, kube: Any, make_job: Callable[..., Any]
) -> None:
    status = {
        "chips": 8,
        "restarts": {"HostError": 2, "Resized": 1},
        "slices": {"total": 2, "training": 1, "restarts": {"HostError": 1, "Resized": 1}},
    }
    job = make_job("a", "Running", spec={"accelerator": {"type": "v6e-4", "slices": 2, "minSlices": 1}}, **status)
    kube.put(POSTTRAINJOBS, job)
    (row,) = json.loads(invoke("top", "-o", "json").out)["running"]
    assert (row["slices"], row["restarts"]) == ("1 of 2", 3)
    described = invoke("workload", "describe", "a").out
    assert "1 of 2 train" in described
    assert "2 x HostError, 1 x Resized (2 in place)" in described


METRICS = """\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",container="trainer",namespace="default",pod="g-0"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",modelName="NVIDIA L4",container="trainer",namespace="default",pod="g-0"} 70
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-c",modelName="NVIDIA L4"} 3
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",namespace="default",pod="g-0",note="a \\"b\\""} 0.5
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="1",namespace="default",pod="g-0"} NaN
DCGM_FI_DEV_FB_USED{gpu="0",namespace="default",pod="g-0"} 9216 1767225600000
DCGM_FI_DEV_FB_USED{gpu="1",namespace="other",pod="g-0"} 20000
"""


@pytest.fixture
def on_gpus(kube: Any, make_job: Callable[..., Any]) -> None:
    """A job on two L4, and GKE's exporter on their node."""
    kube.put(POSTTRAINJOBS, make_job("g", "Running", spec={"accelerator": {"type": "l4-2"}}, chips=2))
    kube.put(PODS, {"metadata": {"name": "g-0", "labels": {"posttrain.dev/job": "g"}}, "spec": {"containers": []}})
    own = {"name": "dcgm-1", "namespace": "gke-managed-system"}
    labels = {"app.kubernetes.io/name": "gke-managed-dcgm-exporter"}
    kube.put(PODS, {"metadata": {**own, "labels": labels}, "spec": {}, "status": {"phase": "Running"}})
    kube.http["gke-managed-system/dcgm-1:9400/metrics"] = METRICS


@pytest.mark.usefixtures("on_gpus")
def test_how_busy_gpus_are_comes_from_the_exporters_samples_of_the_jobs_pods(invoke: Invoke) -> None:
    rows = {row["job"]: row for row in json.loads(invoke("top", "-o", "json").out)["running"]}
    assert [rows["default/g"][key] for key in ("duty", "tensor", "hbm GiB")] == ["0.80", "0.50", "9.00/22"]
    assert [rows["default/a"][key] for key in ("duty", "tensor")] == ["0.87", ""]


@pytest.mark.usefixtures("on_gpus")
def test_without_the_right_to_read_the_exporter_the_rest_is_shown_with_what_is_missing(
    invoke: Invoke, kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise Forbidden(403, "Forbidden", 'pods "dcgm-1" is forbidden')

    monkeypatch.setattr(kube, "pod_http", refuse)
    shown = invoke("top")
    assert (shown.code, "default/g" in shown.out) == (0, True)
    assert "how busy GPUs are is not shown" in shown.err
    assert "get pods/proxy" in shown.err


def test_json_has_the_same_and_the_sum(invoke: Invoke) -> None:
    document = json.loads(invoke("top", "-o", "json").out)
    assert document["chips"] == {"total": 8, "used": 4, "free": 4, "waited for": 16}
    assert [row["job"] for row in document["running"]] == ["default/a"]


def test_a_narrow_terminal_drops_columns_and_keeps_who_and_how_many(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (80, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = invoke("top", terminal=True).out.splitlines()
        assert max(map(len, lines)) <= width
        assert lines[lines.index("Running") + 2].split()[:2] == ["default/a", "Running"]


def test_watched_in_a_pipe_it_is_printed_once_and_on_a_terminal_again(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_at_the_second(_: float, times: list[int] = []) -> None:  # noqa: B006
        times.append(1)
        if len(times) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=stop_at_the_second))
    assert invoke("top", "-w").out.count("chips in use") == 1
    repeated = invoke("top", "-w", terminal=True)
    assert (repeated.code, repeated.out.count("\x1b[H\x1b[2J4 of 8 chips")) == (130, 2)
