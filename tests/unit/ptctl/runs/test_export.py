"""`ptctl workload export`: a run's result, into a directory, a bucket and a model repository."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.builders.servers import bucket as buckets
from tests.builders.servers import hub_repositories as hubs

from ptctl.runs.export import destination, export
from ptctl.runs.export import source as sources
from ptkube.resources import POSTTRAINJOBS

Invoke = Callable[..., Any]
FILES = {
    "model.safetensors": b"w" * 5000,
    "tokenizer.json": b"{}",
    "critic/value.safetensors": b"v",
    "config.json": b"{}",
}
RECORD = "posttrain-export.json"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[buckets.Buckets]:
    with buckets.serve_here(monkeypatch) as served:
        yield served


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[hubs.Repositories]:
    with hubs.serve_here(monkeypatch) as served:
        yield served


@pytest.fixture
def run(kube: Any, make_job: Callable[..., Any], tmp_path: Path) -> Path:
    """The job `a`, whose run has ended."""
    kube.put(POSTTRAINJOBS, make_job("a", "Succeeded", spec={"output": {"uri": f"{tmp_path.as_uri()}/runs"}}))
    for name, content in FILES.items():
        path = tmp_path / "runs" / "a" / "export" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "runs" / "a"


def contents(folder: Path) -> dict[str, bytes]:
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files.pop(RECORD, None)
    return files


@pytest.mark.usefixtures("run")
def test_a_directory_gets_every_file_and_what_is_there_is_not_copied_again(invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = invoke("workload", "export", "a", str(out))
    assert (first.code, first.out, contents(out)) == (0, f"{out}\n", FILES), first.err
    assert json.loads((out / RECORD).read_text())["job"] == "a"
    (out / "model.safetensors").write_bytes(b"half")
    again = invoke("workload", "export", "a", str(out))
    assert (contents(out), again.err.count("already there")) == (FILES, len(FILES) - 1)


@pytest.mark.usefixtures("run")
def test_what_a_killed_command_has_left_is_finished_by_the_next(invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert invoke("workload", "export", "a", str(out)).code == 0
    for name in ("model.safetensors", "config.json"):  # killed with -9 while it wrote the model
        (out / name).unlink()
    (out / ".model.safetensors.part").write_bytes(b"w" * 17)
    again = invoke("workload", "export", "a", str(out))
    assert (again.code, contents(out), again.err.count("already there")) == (0, FILES, 2), again.err


def test_what_is_no_export_of_this_result_is_replaced_only_on_request(
    invoke: Invoke, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model-00001-of-00002.safetensors").write_bytes(b"another model")
    (out / "notes.txt").write_bytes(b"mine")
    refused = invoke("workload", "export", "a", str(out))
    assert (refused.code, "holds 2 files, such as model-00001" in refused.err) == (2, True), refused.err
    assert (len(contents(out)), "--overwrite" in refused.err) == (2, True)
    assert invoke("workload", "export", "a", str(out), "--overwrite").code == 0
    assert contents(out) == {**FILES, "notes.txt": b"mine"}
    (run / "export" / "model.safetensors").write_bytes(b"trained further")
    changed = invoke("workload", "export", "a", str(out))
    assert (changed.code, "holds another export, of job 'a'" in changed.err) == (2, True)
    assert contents(out) == {**FILES, "notes.txt": b"mine"}


def test_a_run_without_a_result_says_so_and_leaves_nothing(invoke: Invoke, run: Path, tmp_path: Path) -> None:
    (run / "export" / "config.json").unlink()  # the trainer writes it last
    refused = invoke("workload", "export", "a", str(tmp_path / "out"))
    assert (refused.code, "has no result" in refused.err, "--step N" in refused.err) == (3, True, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("place", ["s3://bucket/x", "hf://name", "gs://"])
def test_other_places_are_refused_with_those_that_are_accepted(invoke: Invoke, place: str) -> None:
    refused = invoke("workload", "export", "a", place)
    assert (refused.code, "accepted:" in refused.err, "hf://ORGANISATION/NAME" in refused.err) == (2, True, True)


@pytest.mark.usefixtures("run")
def test_adapters_of_a_job_that_has_none_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    refused = invoke("workload", "export", "a", str(tmp_path / "out"), "--adapters")
    assert (refused.code, "trains all weights" in refused.err) == (2, True)


@pytest.mark.usefixtures("run")
def test_a_bucket_gets_every_file_and_an_answer_that_is_lost_does_no_harm(
    invoke: Invoke, bucket: buckets.Buckets
) -> None:
    bucket.unanswered = 2
    done = invoke("workload", "export", "a", "gs://lab/models/v1")
    assert (done.code, done.out) == (0, "gs://lab/models/v1\n"), done.err
    stored = {name.removeprefix("models/v1/"): bucket.content("lab", name) for name in bucket.names("lab")}
    assert {**FILES, RECORD: stored[RECORD]} == stored
    before = dict(bucket.objects)
    again = invoke("workload", "export", "a", "gs://lab/models/v1")
    assert again.err.count("already there") == len(FILES)
    assert bucket.objects == before


@pytest.mark.usefixtures("run")
def test_a_full_bucket_is_an_error_with_its_own_words(invoke: Invoke, bucket: buckets.Buckets) -> None:
    bucket.full = True
    refused = invoke("workload", "export", "a", "gs://lab/models/v1")
    assert (refused.code, "over its quota" in refused.err) == (1, True), refused.err


def test_from_bucket_to_bucket_nothing_passes_here_and_to_a_directory_everything_is_checked(
    kube: Any, make_job: Callable[..., Any], invoke: Invoke, bucket: buckets.Buckets, tmp_path: Path
) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Succeeded", spec={"output": {"uri": "gs://lab/runs"}}))
    for name, content in FILES.items():
        bucket.put("lab", f"runs/a/export/{name}", content)
    done = invoke("workload", "export", "a", "gs://other/models/v1")
    assert (done.code, bucket.downloads) == (0, [f"models/v1/{RECORD}"]), done.err
    assert {name: bucket.content("other", f"models/v1/{name}") for name in FILES} == FILES
    assert invoke("workload", "export", "a", str(tmp_path / "out")).code == 0
    assert contents(tmp_path / "out") == FILES
    bucket.corrupt = True
    broken = invoke("workload", "export", "a", str(tmp_path / "broken"))
    assert (broken.code, contents(tmp_path / "broken")) == (1, {}), broken.err


def test_of_two_exports_to_one_place_the_second_is_refused(
    invoke: Invoke, run: Path, bucket: buckets.Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find the place empty; then one of them begins."""
    claim, other = export.claimed, tmp_path / "other" / "export"
    shutil.copytree(run, tmp_path / "other")
    (other / "model.safetensors").write_bytes(b"another model")

    def overtaken(place: Any, record: bytes, **options: Any) -> Any:
        mine = claim(place, record, **options)
        theirs = sources.in_folder(other)
        place.write(theirs, claim(place, b'{"job": "other"}', overwrite=False), lambda _: None)
        return mine

    monkeypatch.setattr(export, "claimed", overtaken)
    for place in (str(tmp_path / "out"), "gs://lab/models"):
        refused = invoke("workload", "export", "a", place)
        assert (refused.code, "another export has just begun here" in refused.err) == (2, True), refused.err
    assert contents(tmp_path / "out")["model.safetensors"] == b"another model"
    assert bucket.content("lab", "models/model.safetensors") == b"another model"


@pytest.mark.usefixtures("run")
def test_a_repository_is_made_private_and_gets_one_commit(invoke: Invoke, hub: hubs.Repositories) -> None:
    done = invoke("workload", "export", "a", "hf://org/model")
    assert (done.code, done.out) == (0, "hf://org/model\n"), done.err
    assert {name: hub.files["org/model"][name] for name in FILES} == FILES
    assert (hub.private, hub.commits) == ({"org/model"}, {"org/model": 1})
    assert str(json.loads(hub.files["org/model"][RECORD])).count("file:") == 0, "a repository may be public"


@pytest.mark.usefixtures("run")
def test_a_repository_with_a_model_of_somebody_else_is_refused(invoke: Invoke, hub: hubs.Repositories) -> None:
    theirs = {"README.md": b"theirs", "model.safetensors": b"theirs", "adapter_config.json": b"theirs"}
    hub.files["org/model"] = dict(theirs)
    refused = invoke("workload", "export", "a", "hf://org/model")
    assert (refused.code, hub.files["org/model"], hub.commits) == (2, theirs, {}), refused.err
    assert invoke("workload", "export", "a", "hf://org/model", "--overwrite").code == 0
    assert set(hub.files["org/model"]) == {*FILES, RECORD, "README.md"}


@pytest.mark.usefixtures("run")
def test_an_upload_that_broke_off_goes_on_where_it_was(
    invoke: Invoke, hub: hubs.Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = SimpleNamespace(**vars(time) | {"sleep": lambda _: None})
    monkeypatch.setattr("huggingface_hub.utils._http.time", pauses)  # the client waits between its tries
    hub.faults = [("POST .*/commit/", 400), ("PUT /blobs/", 429), ("PUT /blobs/", 0)]
    broken = invoke("workload", "export", "a", "hf://org/model")
    assert (broken.code, set(hub.files["org/model"])) == (1, {".gitattributes"}), broken.err
    assert hashlib.sha256(FILES["model.safetensors"]).hexdigest() in hub.blobs
    hub.requests.clear()
    assert invoke("workload", "export", "a", "hf://org/model").code == 0
    assert {name: hub.files["org/model"][name] for name in FILES} == FILES
    assert not [line for line in hub.requests if line.startswith("PUT")], "the blobs were there already"


@pytest.mark.usefixtures("run")
def test_a_token_that_may_not_write_is_said_with_what_to_do(
    invoke: Invoke, hub: hubs.Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    refused = invoke("workload", "export", "a", "hf://org/model")
    assert (refused.code, "hf auth login" in refused.err, hub.files) == (1, True, {}), refused.err


def test_sizes_are_said_as_people_say_them() -> None:
    assert [destination.size(n) for n in (7, 1500, 4_900_000_000)] == ["7 B", "1.5 kB", "4.9 GB"]
