"""`ptctl top`: who uses which chips, who waits, what is free and what it costs."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptctl.cluster.actions import top
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
