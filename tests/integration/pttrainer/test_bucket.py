"""A run whose data, checkpoints and export are on gs://, through the real client libraries, killed and resumed."""

import gzip
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.builders.cluster.manifests import eventually
from tests.builders.servers import bucket as bucketserver
from tests.builders.trainer import runs
from tests.builders.trainer.forked import Process

from ptapi import run_directory
from ptapi.failures import ExitCode
from ptapi.spec import DataSource
from pttrainer.data.sources import files
from pttrainer.errors import DataError

ROWS = "".join(json.dumps({"question": f"What is {a} plus {a}?", "answer": f"{a + a}"}) + "\n" for a in range(40))


def job(home: Path, name: str, data: str, output: str, steps: int) -> Path:
    training = {"steps": steps, "sequenceLength": 64}
    return runs.job(home, name, data={"train": {"uri": data}}, training=training, output={"uri": output})


def start(home: Path, path: Path, environment: dict[str, str]) -> Process:
    return start_command(home, environment, "run", str(path))


def start_command(home: Path, environment: dict[str, str], *words: str) -> Process:
    return runs.command(*words, env={"XDG_CACHE_HOME": str(home), **environment}, stderr=subprocess.STDOUT)


def finish(process: Process) -> tuple[int | None, str]:
    out, _ = process.communicate(timeout=900)
    return process.returncode, out


def losses(metrics: bytes) -> list[tuple[int, float]]:
    rows: list[dict[str, Any]] = [json.loads(line) for line in metrics.splitlines()]
    return [(row["step"], row[run_directory.LOSS]) for row in rows if run_directory.LOSS in row]


@pytest.mark.slow
def test_run_on_a_bucket_is_killed_resumes_and_learns_what_a_local_run_learns(tmp_path: Path) -> None:
    steps = 6
    (tmp_path / "train.jsonl").write_text(ROWS)
    local = job(tmp_path, "local", f"file://{tmp_path}/train.jsonl", f"file://{tmp_path}/runs", steps)
    code, out = finish(start(tmp_path, local, {}))
    assert code == ExitCode.OK, out
    with bucketserver.serve() as buckets:
        half = ROWS.index("\n", len(ROWS) // 2) + 1
        buckets.put("data", "rows/part-0.jsonl", ROWS[:half].encode())
        buckets.put("data", "rows/part-1.jsonl.gz", gzip.compress(ROWS[half:].encode()))
        buckets.put("data", "rows/about.txt", b"not rows")
        path = job(tmp_path, "remote", "gs://data/rows/part-*", "gs://out/runs", steps)
        environment = {"XDG_CACHE_HOME": str(tmp_path), **buckets.environment()}
        first = runs.held(path, 5, tmp_path / "never", environment, stderr=subprocess.STDOUT)
        committed = f"runs/remote/{run_directory.CHECKPOINTS}/2/commit_success.txt"
        eventually(lambda: committed in buckets.names("out") or first.poll() is not None)
        was_running = first.poll() is None
        first.send_signal(signal.SIGKILL)
        _, out = finish(first)
        assert was_running, out
        code, out = finish(start(tmp_path, path, buckets.environment()))
        assert code == ExitCode.OK, out
        assert "resuming after step" in out
        assert "Traceback" not in out
        remote = losses(buckets.content("out", f"runs/remote/{run_directory.METRICS}"))
        assert remote == losses((tmp_path / "runs" / "local" / run_directory.METRICS).read_bytes())
        exported = f"runs/remote/{run_directory.EXPORT}/model.safetensors"
        there = (tmp_path / "runs" / "local" / run_directory.EXPORT / "model.safetensors").read_bytes()
        assert buckets.content("out", exported) == there

        step = f"gs://out/runs/remote/{run_directory.CHECKPOINTS}/{steps}"
        export = ("export", "--out", str(tmp_path / "again"), "--checkpoint")
        code, out = finish(start_command(tmp_path, buckets.environment(), *export, step))
        assert code == ExitCode.OK, out
        assert (tmp_path / "again" / "model.safetensors").read_bytes() == there
        code, out = finish(start_command(tmp_path, buckets.environment(), *export, "gs://out/runs/nowhere"))
        assert code == ExitCode.CONFIG_ERROR, out
        assert "gs://out/runs/nowhere: no spec.yaml in gs://out/runs/nowhere" in out
        assert "Traceback" not in out


@pytest.mark.slow
def test_a_bucket_that_is_full_ends_the_run_with_its_words_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    with bucketserver.serve() as buckets:
        buckets.put("data", "train.jsonl", ROWS.encode())
        path = job(tmp_path, "remote", "gs://data/train.jsonl", "gs://out/runs", 400)
        first = start(tmp_path, path, buckets.environment())
        committed = f"runs/remote/{run_directory.CHECKPOINTS}/2/commit_success.txt"
        eventually(lambda: committed in buckets.names("out") or first.poll() is not None)
        buckets.full = True
        code, out = finish(first)
        assert code == ExitCode.STORAGE, out
        assert "Traceback" not in out
        assert "over its quota" in out
        buckets.full = False
        path = job(tmp_path, "remote", "gs://data/train.jsonl", "gs://out/runs", 400)
        second = start(tmp_path, path, buckets.environment())
        assert second.stdout is not None
        lines = iter(second.stdout.readline, "")
        assert any("resuming after step" in line for line in lines)
        second.kill()
        second.communicate()


def test_a_bucket_without_credentials_is_refused_in_one_line(tmp_path: Path) -> None:
    path = job(tmp_path, "remote", "gs://data/train.jsonl", "gs://out/runs", 4)
    nothing = {
        "HOME": str(tmp_path),
        "GCE_METADATA_HOST": "127.0.0.1:1",
        "GOOGLE_APPLICATION_CREDENTIALS": "",
        "NO_GCE_CHECK": "true",
    }
    code, out = finish(start(tmp_path, path, nothing))
    assert code == ExitCode.CONFIG_ERROR, out
    assert "Traceback" not in out
    assert "gs://out: no Google credentials" in out


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("gs://data/rows", ["rows/a.jsonl", "rows/deep/b.jsonl"]),
        ("gs://data/rows/", ["rows/a.jsonl", "rows/deep/b.jsonl"]),
        ("gs://data/rows/a.jsonl", ["rows/a.jsonl"]),
        ("gs://data/r*/*.jsonl", ["rows/a.jsonl", "rows-2/c.jsonl"]),
        ("gs://data/**/b.jsonl", ["rows/deep/b.jsonl"]),
    ],
)
def test_a_file_a_pattern_and_a_directory_of_a_bucket_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, names: list[str]
) -> None:
    with bucket_of_rows(tmp_path, monkeypatch):
        got = files.find(DataSource(uri=uri), "spec.data.train", print)
    assert sorted(file.uri for file in got) == sorted(f"gs://data/{name}" for name in names)
    assert [files.read(file) for file in got] == [file.uri.removeprefix("gs://data/").encode() for file in got]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("gs://data/none", "no such file"),
        ("gs://data/*.csv", "no file matches"),
        ("gs://none/a.jsonl", "no such file|none"),
    ],
)
def test_what_a_bucket_does_not_have_is_a_data_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, message: str
) -> None:
    with bucket_of_rows(tmp_path, monkeypatch), pytest.raises(DataError, match=f"spec.data.train.*({message})"):
        files.find(DataSource(uri=uri), "spec.data.train", print)


@contextmanager
def bucket_of_rows(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with bucketserver.serve() as buckets:
        for name, value in buckets.environment().items():
            monkeypatch.setenv(name, value)
        for name in ("rows/a.jsonl", "rows/deep/b.jsonl", "rows/about.txt", "rows-2/c.jsonl"):
            buckets.put("data", name, name.encode())
        yield
