"""`stage`: the real clients of hub and bucket, against small servers of both."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
from tests.builders.cluster.manifests import eventually
from tests.builders.servers import bucket as bucketserver
from tests.builders.servers.bucket import Buckets
from tests.builders.servers.hub import COMMIT, GATED, REPOSITORY, TOKEN, hub

from ptapi.failures import ExitCode
from ptapi.run_directory import TERMINATION_LOG_ENV, Termination
from pttrainer.__main__ import main
from pttrainer.commands.model import stage, stage_report
from pttrainer.runtime.io import model_files

FILES = {
    "config.json": b"{}", "tokenizer.json": b'{"a": 1}', "chat_template.jinja": b"{{ x }}",
    "model-1.safetensors": b"1" * 40_000, "model-2.safetensors": b"2" * 30_000,
}  # fmt: skip
OTHERS = {"README.md": b"about", "original/model.safetensors": b"3", "consolidated.safetensors": b"4"}
TARGET = "gs://models/org/model"


@pytest.fixture
def buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    for name, content in (FILES | OTHERS).items():
        (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / name).write_bytes(content)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with bucketserver.serve_here(monkeypatch) as served, hub(tmp_path / "model") as endpoint:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield served


def staged(repository: str = REPOSITORY, target: str = TARGET) -> int:
    return main(["stage", f"hf://{repository}", target])


def clock_of_waiting(monotonic: Callable[[], float], sleep: Callable[[float], None]) -> SimpleNamespace:
    """Return a clock for the waiting alone: the clients' own pauses between tries stay as they are."""
    return SimpleNamespace(monotonic=monotonic, sleep=sleep)


def objects(buckets: Buckets) -> dict[str, bytes]:
    names = buckets.names("models", "org/model/")
    return {name.removeprefix("org/model/"): buckets.content("models", name) for name in names}


def test_a_model_is_copied_whole_and_a_job_reads_it_from_the_bucket(
    buckets: Buckets, capsys: pytest.CaptureFixture[str]
) -> None:
    assert staged() == ExitCode.OK
    held = objects(buckets)
    assert COMMIT.encode() in held.pop(stage.RECORD)
    assert held == FILES
    errors = capsys.readouterr().err
    assert f"hf://{REPOSITORY} at {COMMIT[:12]}: 5 files, 0.00 GB" in errors
    assert errors.splitlines()[-2].startswith("staged config.json"), "last, as it makes the model complete"
    fetched = model_files.fetch(TARGET, "spec.model.uri", lambda _: None).directory
    assert {name: (fetched / name).read_bytes() for name in FILES} == FILES
    before = dict(buckets.objects)
    assert staged() == ExitCode.OK
    assert f"{TARGET}: holds all of them already" in capsys.readouterr().err
    assert buckets.objects == before, "nothing is written twice"


def test_what_was_interrupted_or_changed_is_copied_and_nothing_else(
    buckets: Buckets, capsys: pytest.CaptureFixture[str]
) -> None:
    buckets.full = True
    assert staged() == ExitCode.STORAGE
    buckets.full = False
    assert staged() == ExitCode.OK
    kept = buckets.objects["models", "org/model/model-2.safetensors"]
    buckets.put("models", "org/model/model-1.safetensors", b"changed")
    del buckets.objects["models", "org/model/config.json"]
    capsys.readouterr()
    assert staged() == ExitCode.OK
    assert f"{TARGET}: 2 files to copy" in capsys.readouterr().err
    assert {**objects(buckets), stage.RECORD: b""} == {**FILES, stage.RECORD: b""}
    assert buckets.objects["models", "org/model/model-2.safetensors"] == kept


def test_a_gated_model_without_a_token_is_refused_before_anything_is_written(
    buckets: Buckets, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert staged(GATED) == ExitCode.CONFIG_ERROR
    errors = capsys.readouterr().err
    assert f"hf://{GATED}: you have no access; hint: request it on the model's page, and set HF_TOKEN" in errors
    assert not buckets.objects
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert staged(GATED) == ExitCode.OK
    assert TOKEN not in capsys.readouterr().err


def test_a_directory_holds_one_model_and_one_process_writes_it(
    buckets: Buckets, capsys: pytest.CaptureFixture[str]
) -> None:
    buckets.put("models", "org/model/own.json", b"{}")
    assert staged() == ExitCode.CONFIG_ERROR
    assert f"{TARGET}: holds 1 objects that were not staged, such as own.json; accepted: a" in capsys.readouterr().err
    del buckets.objects["models", "org/model/own.json"]
    assert staged() == ExitCode.OK
    record = buckets.content("models", f"org/model/{stage.RECORD}")
    buckets.put("models", f"org/model/{stage.RECORD}", record.replace(COMMIT.encode(), b"f" * 40))
    assert staged() == ExitCode.CONFIG_ERROR
    assert (
        f"holds hf://{REPOSITORY} at ffffffffffff, and hf://{REPOSITORY} is at {COMMIT[:12]}" in capsys.readouterr().err
    )
    buckets.objects.clear()
    files = [stage.HubFile("a", 1, "0")]
    first, second = (stage.Record(stage.HubModel("hf://a/b", COMMIT, files)) for _ in range(2))
    place = stage.storage.bucket(TARGET)
    first.write(place)
    with pytest.raises(stage.ConfigError, match="another process stages a model here; accepted: one at a time"):
        second.write(place)


def test_a_file_that_is_not_the_hubs_is_never_uploaded(
    buckets: Buckets, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_digest", lambda path, file: "0" * 64 if "model-1" in file.name else file.digest)
    assert staged() == ExitCode.CONFIG_ERROR
    assert "model-1.safetensors: is corrupt after the download: its digest is 0000" in capsys.readouterr().err
    assert not {"model-1.safetensors", "config.json"} & objects(buckets).keys()


def reported(source: str = f"hf://{REPOSITORY}", target: str = "gs://models/runs/.models") -> tuple[int, Termination]:
    code = main(["stage", source, target, "--report"])
    return code, Termination.model_validate_json(Path(os.environ[TERMINATION_LOG_ENV]).read_text())


@pytest.fixture
def in_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TERMINATION_LOG_ENV, str(tmp_path / "termination"))


def test_for_a_job_a_commit_has_a_directory_of_its_own_which_the_termination_message_names(
    buckets: Buckets, in_pod: None
) -> None:
    copy = f"gs://models/runs/.models/org--model@{COMMIT}"
    for _ in range(2):
        code, termination = reported()
        assert (code, termination.exit_code, termination.staged) == (ExitCode.OK, 0, copy)
    fetched = model_files.fetch(copy, "spec.model.uri", lambda _: None).directory
    assert {name: (fetched / name).read_bytes() for name in FILES} == FILES


def test_for_a_job_a_gated_model_without_a_token_is_told_in_the_termination_message(
    buckets: Buckets, in_pod: None
) -> None:
    code, termination = reported(f"hf://{GATED}")
    assert (code, termination.failure_class, termination.staged) == (ExitCode.CONFIG_ERROR, "ConfigError", None)
    assert f"hf://{GATED}: you have no access" in termination.message
    assert "spec.model.tokenSecretRef" in termination.message


def test_of_two_jobs_that_stage_a_model_one_copies_and_the_other_waits(
    buckets: Buckets, in_pod: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = f"gs://models/runs/.models/org--model@{COMMIT}"
    model, place = stage.hub_model(f"hf://{REPOSITORY}", None), stage.storage.bucket(copy)
    other = stage.Record(model)
    other.write(place)
    waits: list[float] = []

    def other_copies(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) < 4:
            other.write(place)  # it is alive
        else:
            stage._copy_all(model, place, other, model.files)

    monkeypatch.setattr(stage_report, "time", clock_of_waiting(time.monotonic, other_copies))
    code, termination = reported()
    assert (code, termination.staged, len(waits)) == (ExitCode.OK, copy, 4)
    errors = capsys.readouterr().err
    assert f"{copy}: waiting for another process, which stages the model" in errors
    assert f"{copy}: holds all of them already" in errors


def test_what_a_killed_process_began_is_taken_over_once_its_record_stays_the_same(
    buckets: Buckets, in_pod: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = f"gs://models/runs/.models/org--model@{COMMIT}"
    stage.Record(stage.hub_model(f"hf://{REPOSITORY}", None)).write(stage.storage.bucket(copy))
    clock = [0.0]
    pass_time = clock_of_waiting(lambda: clock[0], lambda seconds: clock.append(clock.pop() + seconds))
    monkeypatch.setattr(stage_report, "time", pass_time)
    code, termination = reported()
    assert (code, termination.staged) == (ExitCode.OK, copy)
    assert clock[0] >= stage_report.SILENT_S


def test_a_process_whose_write_is_not_answered_takes_nobody_else_for_the_writer(
    buckets: Buckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = stage.Bucket.write_if

    def write_twice(place: stage.Bucket, name: str, content: bytes, generation: int) -> int | None:
        write(place, name, content, generation)  # its answer is lost, and the client tries again
        return write(place, name, content, generation)

    monkeypatch.setattr(stage.Bucket, "write_if", write_twice)
    assert staged() == ExitCode.OK


def test_a_process_that_copies_keeps_its_record_fresh(buckets: Buckets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "BEAT_S", 0.01)
    record, place = stage.Record(stage.hub_model(f"hf://{REPOSITORY}", None)), stage.storage.bucket(TARGET)
    record.write(place)
    begun = record.generation
    with record.kept_fresh(place):
        eventually(lambda: record.generation >= begun + 2, 60)
    ended = record.generation
    assert place.read_versioned(stage.RECORD).generation == ended


@pytest.mark.parametrize(
    ("source", "target", "answer"),
    [
        ("org/model", TARGET, "org/model: accepted: hf://…"),
        ("hf://org/model", "file:///tmp/x", "file:///tmp/x: accepted: gs://…"),
        ("hf://org/model", "gs://ab/x", "gs://ab/x: bucket 'ab'; accepted: 3 to 63 "),
        ("hf://org/nothing", TARGET, "hf://org/nothing: no such model, or you have no access to it"),
    ],
)
def test_wrong_addresses_are_answered(
    buckets: Buckets, source: str, target: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stage", source, target]) == ExitCode.CONFIG_ERROR
    assert answer in capsys.readouterr().err
