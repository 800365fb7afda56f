"""Models and data from the hub: the real client against a small server that speaks the hub's protocol."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from tests.builders.servers.hub import COMMIT, DATASET, GATED, REPOSITORY, TOKEN, hub
from tests.builders.trainer import runs


def write_job(directory: Path, name: str, model: str, **source: str) -> Path:
    data = {"train": {"uri": f"file://{directory}/train.jsonl", **source}}
    runs.write_rows(directory / "train.jsonl", runs.SUMS[:16])
    training = {"steps": 1, "batchSize": 2, "sequenceLength": 64}
    return runs.job(directory, name, model={"uri": model}, data=data, training=training)


def run(job: Path, **env: str) -> subprocess.CompletedProcess[str]:
    process = runs.command("run", str(job), env={"HF_HUB_DISABLE_TELEMETRY": "1", **env})
    out, err = process.communicate(timeout=900)
    return subprocess.CompletedProcess(str(job), process.returncode or 0, out, err)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def endpoint(directory: Path) -> Iterator[str]:
    """Serves a model that a first run exported."""
    done = run(write_job(directory, "first", "random://tiny"))
    assert done.returncode == 0, done.stdout + done.stderr
    table = pyarrow.Table.from_pylist([{"question": f"{i}+1?", "answer": f"#### {i + 1}"} for i in range(8)])
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        for configuration in ("main", "other"):
            (directory / "data" / configuration).mkdir(parents=True, exist_ok=True)
            parquet.write_table(table, directory / "data" / configuration / f"{name}.parquet")
    (directory / "data" / "README.md").write_text("about")
    with hub(directory / "runs" / "first" / "export", directory / "data") as address:
        yield address


def test_a_model_from_the_hub_is_trained_and_its_commit_is_pinned(directory: Path, endpoint: str) -> None:
    job = write_job(directory, "second", f"hf://{REPOSITORY}")
    done = run(job, HF_ENDPOINT=endpoint, HF_HOME=str(directory / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert COMMIT in (directory / "runs" / "second" / "lineage.json").read_text()


def test_a_model_that_is_not_there_is_a_config_error_that_names_it(directory: Path, endpoint: str) -> None:
    job = write_job(directory, "nobody", "hf://org/nothing")
    done = run(job, HF_ENDPOINT=endpoint, HF_HOME=str(directory / "cache"))
    assert done.returncode == 64
    assert "spec.model.uri: hf://org/nothing: no such model" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_gated_model_needs_a_token_that_is_never_shown(directory: Path, endpoint: str) -> None:
    job = write_job(directory, "gated", f"hf://{GATED}")
    refused = run(job, HF_ENDPOINT=endpoint, HF_HOME=str(directory / "cache"))
    assert refused.returncode == 64
    assert "spec.model.tokenSecretRef" in refused.stderr + refused.stdout
    allowed = run(job, HF_ENDPOINT=endpoint, HF_HOME=str(directory / "cache"), HF_TOKEN=TOKEN)
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr
    assert TOKEN not in allowed.stdout + allowed.stderr
    written = [path for path in (directory / "runs" / "gated").rglob("*") if path.is_file()]
    assert [path for path in written if TOKEN.encode() in path.read_bytes()] == []


def test_a_split_of_a_data_set_is_trained_on_and_its_commit_and_files_are_pinned(
    directory: Path, endpoint: str
) -> None:
    job = write_job(directory, "rows", "random://tiny", uri=f"hf://datasets/{DATASET}/main", split="train")
    done = run(job, HF_ENDPOINT=endpoint, HF_HOME=str(directory / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data.train: 16 rows (prompt-answer: question, answer)" in done.stdout + done.stderr
    data = json.loads((directory / "runs" / "rows" / "lineage.json").read_text())["data"]["train"]
    assert (data["uri"], data["revision"], data["commit"]) == (f"hf://datasets/{DATASET}/main", None, COMMIT)
    assert [file["uri"] for file in data["files"]] == [
        f"hf://datasets/{DATASET}/main/train-0000{i}-of-00002.parquet" for i in (0, 1)
    ]
    cached = [path.name for path in (directory / "cache").rglob("*.parquet")]
    assert sorted(cached) == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"], "only what was asked for"


WRONG: tuple[tuple[dict[str, str], str], ...] = (
    ({"uri": "hf://datasets/org/nothing"}, "no such data set, or you have no access to it"),
    ({"uri": f"hf://datasets/{DATASET}", "split": "train"}, "several configurations: main, other"),
    ({"uri": f"hf://datasets/{DATASET}/main"}, "the splits test, train; hint: name one in spec.data.train"),
    ({"uri": f"hf://datasets/{DATASET}/main/none.parquet"}, "no such file or directory in org/data"),
    ({"uri": f"hf://datasets/{DATASET}/*/none-*"}, "no file matches the pattern"),
    ({"uri": f"hf://datasets/{DATASET}/main", "revision": "v9"}, "at v9: no such branch, tag or commit"),
)


def test_data_that_are_not_there_are_data_errors_that_name_them(directory: Path, endpoint: str) -> None:
    answers = find(directory, endpoint, *(source for source, _ in WRONG))
    for (source, message), refused in zip(WRONG, answers, strict=True):
        assert refused.startswith("DataError: spec.data.train.uri: " + source["uri"])
        assert message in refused


def test_patterns_and_files_of_a_data_set_are_found(directory: Path, endpoint: str) -> None:
    paths = {"main/train-*": 2, "main/test-00000-of-00001.parquet": 1, "**/*.parquet": 6}
    sources = [{"uri": f"hf://datasets/{DATASET}/{path}", "revision": "v1"} for path in paths]
    assert [len(uris) for uris in find(directory, endpoint, *sources)] == list(paths.values())


def test_a_hub_that_cannot_be_reached_ends_a_run_so_that_it_is_started_again(directory: Path) -> None:
    job = write_job(directory, "cut-off", f"hf://{REPOSITORY}")
    done = run(job, HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(directory / "empty"))
    assert done.returncode == 68, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_hub_that_cannot_be_reached_is_said_to_be(directory: Path) -> None:
    (refused,) = find(directory, "http://127.0.0.1:9", {"uri": f"hf://datasets/{DATASET}"})
    assert "cannot be fetched: " in refused
    assert "hint: is the hub reachable" in refused


FIND = """
import json, sys
from ptapi.spec import DataSource
from pttrainer.data.sources import files
for source in sys.argv[1:]:
    try:
        there = files.find(DataSource.model_validate_json(source), "spec.data.train", lambda line: None)
        print(json.dumps([file.uri for file in there if file.path.is_file()]))
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
"""


def find(directory: Path, endpoint: str, *sources: dict[str, str]) -> list[Any]:
    """For each source the files of it, or why there are none; in a process: the client reads its environment once."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(directory / "other-cache")}
    command = [sys.executable, "-c", FIND, *map(json.dumps, sources)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
