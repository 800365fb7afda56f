"""Experiment trackers: each real client gets each step once, and none of them can stop a run."""

import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.builders.cluster.manifests import eventually
from tests.builders.servers.mlflow import mlflow_server

from ptapi.load import parse_job
from ptapi.spec import PostTrainJob
from ptapi.spec.tracking import Tracking, Wandb
from pttrainer.errors import ConfigError
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.reporting import experiment_trackers
from pttrainer.runtime.reporting.experiment_trackers import background
from pttrainer.runtime.reporting.experiment_trackers.background import Background
from pttrainer.runtime.reporting.experiment_trackers.tracked_run import TrackedRun
from pttrainer.runtime.reporting.metrics_log import MetricsLog


def job(tracking: dict[str, Any]) -> PostTrainJob:
    spec = {
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": "file:///data/train.jsonl"}},
        "accelerator": {"type": "cpu-1"},
        "output": {"uri": "file:///runs"},
        "env": [{"name": "CORPUS", "value": "hunter2"}],
        "tracking": tracking,
    }
    head = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": "curve"}}
    return parse_job(head | {"spec": spec})


def attempt(
    folder: Path, tracking: dict[str, Any], resumed: int, steps: range, *, is_failed: bool = False
) -> list[str]:
    """Write the metrics of an attempt that resumes after `resumed` steps; returns the log."""
    notes: list[str] = []
    place = Directory(folder)
    log = MetricsLog(place, resumed, tensorboard=False)
    log.trackers = experiment_trackers.start(job(tracking), place, log.last_step, notes.append)
    for step in steps:
        log.write(step, {"loss": 1.0 / (step + 1), "eval/pass@8": 0.5, "broken": float("nan")}, 1000.0 + step)
    log.close(is_failed=is_failed)
    return notes


def test_mlflow_gets_each_step_once_under_one_run_and_the_spec_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "key")
    with mlflow_server() as server:
        tracking = {"mlflow": {"trackingUri": server.uri, "experiment": "maths"}}
        assert attempt(tmp_path, tracking, 0, range(5), is_failed=True) == []
        [run] = server.runs.values()
        assert run["status"] == "FAILED"
        assert attempt(tmp_path, tracking, 2, range(3, 7)) == []
        [run] = server.runs.values()
    assert [step for name, step, _ in run["metrics"] if name == "loss"] == list(range(7))
    assert ("eval/pass_8", 6, 0.5) in run["metrics"]
    assert {name for name, _, _ in run["metrics"]} == {"loss", "eval/pass_8"}
    assert (run["name"], run["status"]) == ("curve", "FINISHED")
    assert run["params"]["model.uri"] == "random://tiny"
    assert "hunter2" not in json.dumps(run["params"])
    assert server.tokens == {"Bearer key"}


def records(content: bytes) -> Iterator[bytes]:
    """The whole records of wandb's file, which is LevelDB's log format after a header of 7 bytes."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        if at + 7 + size > len(content):
            return
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def of_wandb(file: Path) -> list[Any]:
    """What a run has written so far; wandb's process writes the end after `finish` has returned."""
    from wandb.proto import wandb_internal_pb2

    return [wandb_internal_pb2.Record.FromString(content) for content in records(file.read_bytes())]


def test_wandb_offline_writes_each_step_into_the_run_directory_under_one_id(tmp_path: Path) -> None:
    tracking = {"wandb": {"project": "maths", "mode": "offline", "tags": ["small"]}}
    assert attempt(tmp_path, tracking, 0, range(3)) == []
    time.sleep(1.1)  # wandb names its folders by the second
    assert attempt(tmp_path, tracking, 1, range(2, 5)) == []
    steps, runs = [], set()
    for file in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime):
        eventually(lambda file=file: any(record.HasField("exit") for record in of_wandb(file)))
        for record in of_wandb(file):
            if record.HasField("run"):
                runs.add((record.run.run_id, record.run.project, record.run.display_name))
            if record.HasField("history"):
                steps.append(record.history.step.num)
    assert steps == [0, 1, 2, 3, 4]
    [(run_id, project, name)] = runs
    assert (project, name) == ("maths", "curve")
    assert run_id == json.loads((tmp_path / "tracking.json").read_text())["wandb"]


def test_trackio_keeps_its_runs_in_the_run_directory(tmp_path: Path) -> None:
    # Trackio reads TRACKIO_DIR once, when it is imported; a run is a process of its own.
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.unit.pttrainer.runtime.test_experiment_trackers import attempt\n"
        "assert attempt(Path(sys.argv[1]), {'trackio': {'project': 'maths'}}, 0, range(3)) == []\n"
        "assert attempt(Path(sys.argv[1]), {'trackio': {'project': 'maths'}}, 1, range(2, 5)) == []\n"
        "from trackio.sqlite_storage import SQLiteStorage\n"
        "[run] = SQLiteStorage.get_runs('maths')\n"
        "print([row['step'] for row in SQLiteStorage.get_logs('maths', run)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).resolve().parents[4],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[0, 1, 2, 3, 4]"
    assert list((tmp_path / "trackio").glob("maths*"))


def test_a_tracker_that_fails_is_named_once_and_the_metrics_are_written(tmp_path: Path) -> None:
    with mlflow_server() as server:
        server.fails = True
        notes = attempt(tmp_path, {"mlflow": {"trackingUri": server.uri, "experiment": "maths"}}, 0, range(3))
    [note] = notes
    assert note.startswith("warning: MLflow gets no more metrics (")
    assert "out of service" in note
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


class Stuck:
    """A tracker that takes for ever."""

    def log(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        threading.Event().wait()

    def finish(self, *, is_failed: bool) -> None: ...


def test_a_tracker_that_hangs_holds_neither_a_step_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "LAST_S", 0.2)
    monkeypatch.setattr(background, "WAITING", 2)
    notes: list[str] = []
    tracker = Background("Stuck", Stuck, 0, notes.append)
    began = time.monotonic()
    for step in range(1, 6):
        tracker.log(step, {"loss": 1.0}, 0.0)
    tracker.close(is_failed=False)
    assert time.monotonic() - began < 5
    assert any("step 5 is not reported there" in note for note in notes)
    assert "has not taken everything" in notes[-1]


def test_trackers_that_start_at_the_same_time_all_keep_their_ids(tmp_path: Path) -> None:
    both, here = threading.Barrier(2, timeout=30), threading.local()

    class Slow(Directory):
        """A place where both threads have read the file before one of them writes it."""

        def read(self, name: str) -> bytes | None:
            content = super().read(name)
            if not hasattr(here, "has_read"):
                here.has_read = True
                both.wait()
            return content

    run = TrackedRun(job({}), Slow(tmp_path), tmp_path)
    threads = [threading.Thread(target=run.id_of, args=(name,)) for name in ("wandb", "trackio")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(json.loads((tmp_path / "tracking.json").read_text())) == {"wandb", "trackio"}


def test_no_key_is_refused_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"apiKeySecretRef: unset, and nothing else holds a key for api\.wandb\.ai"):
        experiment_trackers.check(Tracking(wandb=Wandb(project="maths")))
    experiment_trackers.check(Tracking(wandb=Wandb(project="maths", mode="offline")))
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    experiment_trackers.check(Tracking(wandb=Wandb(project="maths")))


def test_a_package_that_is_not_there_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"spec\.tracking\.wandb: the package wandb is not installed.*trackers"):
        experiment_trackers.check(Tracking(wandb=Wandb(project="maths", mode="offline")))
