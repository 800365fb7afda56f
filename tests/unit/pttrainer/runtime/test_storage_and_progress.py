"""The run directory: whose it is, and documents that are never half written or doubled."""

import asyncio
import errno
import json
import os
import re
import signal
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tensorstore
import yaml

from ptapi import run_directory
from ptapi.failures import ExitCode
from ptapi.load import parse_job
from ptapi.run_directory import SlicesProgress
from ptapi.spec import PostTrainJob
from ptapi.text.terminal import PROGRESS_LINE
from pttrainer.errors import ConfigError, DataError, Preempted, StorageError
from pttrainer.runtime.io import storage
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.reporting import progress as progress_module
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.metrics_log import MetricsLog
from pttrainer.runtime.reporting.progress import Reporter
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.training.run_directory import run_files


def job(output: Path, name: str = "sums", uid: str | None = None) -> PostTrainJob:
    metadata = {"name": name} if uid is None else {"name": name, "uid": uid}
    return parse_job(
        {
            "apiVersion": "posttrain.dev/v1alpha1",
            "kind": "PostTrainJob",
            "metadata": metadata,
            "spec": {
                "model": {"uri": "random://tiny"},
                "algorithm": {"sft": {}},
                "data": {"train": {"uri": f"file://{output}/rows.jsonl"}},
                "accelerator": {"type": "cpu-1"},
                "output": {"uri": f"file://{output}"},
            },
        }
    )


def claimed(output: Path, **names: Any) -> Directory:
    mine = job(output, **names)
    place = run_files.open_run(mine)
    run_files.claim(place, mine)
    assert isinstance(place, Directory)
    return place


def test_a_job_comes_back_to_its_own_directory(tmp_path: Path) -> None:
    place = claimed(tmp_path, uid="u-1")
    assert run_files.open_run(job(tmp_path, uid="u-1")).uri == place.uri == f"file://{tmp_path}/sums"


def test_without_a_cluster_the_name_says_whose_it_is(tmp_path: Path) -> None:
    claimed(tmp_path)
    assert run_files.open_run(job(tmp_path))


@pytest.mark.parametrize(("owner", "other"), [("u-1", "u-2"), ("u-1", None), (None, "u-2")])
@pytest.mark.parametrize("step", [run_directory.METRICS, f"{run_directory.CHECKPOINTS}/20/_METADATA"])
def test_the_directory_of_another_job_is_refused_and_not_touched(
    tmp_path: Path, owner: str | None, other: str | None, step: str
) -> None:
    place = claimed(tmp_path, uid=owner)
    place.write(step, b'{"step": 1}\n')
    before = {name: place.read(name) for name in place.names()}
    message = rf"belongs to another job \(no namespace/sums, uid {owner or 'none'}\); accepted"
    with pytest.raises(ConfigError, match=message + rf"(.|\n)*fork: {{uri: file://{tmp_path}/sums, state: full}}"):
        run_files.open_run(job(tmp_path, uid=other))
    assert {name: place.read(name) for name in place.names()} == before


@pytest.mark.parametrize("content", [b"", b"{}", b"{"])
def test_an_owner_that_cannot_be_read_is_another_job(tmp_path: Path, content: bytes) -> None:
    place = claimed(tmp_path)
    place.write(run_directory.METRICS, b'{"step": 1}\n')
    place.write(run_directory.OWNER, content)
    with pytest.raises(ConfigError, match="no namespace/no name that can be read, uid none"):
        run_files.open_run(job(tmp_path))


def test_the_refusal_says_who_writes_there_now(tmp_path: Path) -> None:
    place = claimed(tmp_path, uid="u-1")
    place.write(run_directory.METRICS, b'{"step": 1}\n')
    lease = run_directory.Lease(holder="pod sums-0 (namespace team)", token="a", heartbeat="2026-01-02T03:04:05Z")
    place.write(run_directory.LEASE, lease.model_dump_json(by_alias=True).encode())
    with pytest.raises(ConfigError, match=r"pod sums-0 \(namespace team\) \(.*2026-01-02T03:04:05Z\) writes there"):
        run_files.open_run(job(tmp_path))


@pytest.mark.parametrize(("owner", "other"), [("u-1", "u-2"), ("u-1", None), (None, "u-2")])
def test_a_directory_without_a_step_is_anybodys_and_nothing_in_it_misleads(
    tmp_path: Path, owner: str | None, other: str | None
) -> None:
    place = claimed(tmp_path, uid=owner)
    left = (
        run_directory.PROGRESS,
        run_directory.TERMINATION,
        run_directory.LINEAGE,
        run_directory.sample_file(1),
        run_directory.stack_file(1, 0),
    )
    for name in (
        *left,
        run_directory.PREFLIGHT,
        run_directory.METRICS,
        f"{run_directory.CHECKPOINTS}/2.orbax-checkpoint-tmp/_METADATA",
    ):
        place.write(name, b"" if name == run_directory.METRICS else b"{}")
    claimed(tmp_path, uid=other)
    assert not any(place.read(name) for name in left)
    assert place.read(run_directory.PREFLIGHT) == b"{}"  # the new job's own: it is made before its run
    assert json.loads(place.read(run_directory.OWNER) or b"")["uid"] == (other or "")


def test_opening_writes_nothing(tmp_path: Path) -> None:
    run_files.open_run(job(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_spec_in_the_directory_is_the_job_that_runs(tmp_path: Path) -> None:
    content = claimed(tmp_path).read(run_directory.SPEC)
    assert content is not None
    assert parse_job(yaml.safe_load(content)) == job(tmp_path)


def test_the_lineage_names_versions_and_the_data_s_digest(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    place = claimed(tmp_path)
    run_files.write_lineage(place, job(tmp_path), job(tmp_path).spec.data, {"mesh": {"data": 1}})
    document = json.loads(place.read(run_directory.LINEAGE) or b"")
    (file,) = document["data"]["train"]["files"]
    assert file["bytes"] == 14
    assert len(file["sha256"]) == 64
    assert document["versions"]["jax"]
    assert document["mesh"] == {"data": 1}


def test_a_write_that_fails_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Directory(tmp_path)
    place.write("a.json", b"old")

    def full(self: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match=r"a\.json: no space left; hint: free space"):
        place.write("a.json", b"new")
    assert place.read("a.json") == b"old"
    assert place.names() == ["a.json"]


def test_schemes_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="s3:// not supported yet; accepted: file://, gs://"):
        storage.place("s3://bucket/x")


@pytest.mark.parametrize("name", ["ab", "Lab", "lab_", "lab..example", "lab-.example", "a" * 64, "lab." * 55 + "abc"])
def test_a_name_that_no_bucket_can_have_is_refused_before_the_service_hears_of_it(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"gs://{re.escape(name)}/runs: bucket '{re.escape(name)}'; accepted: 3 to 63 "
    ):
        storage.place(f"gs://{name}/runs")


def lines(place: Directory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.read(run_directory.METRICS) or b"").splitlines()]


def test_a_resumed_run_rewrites_the_steps_after_its_checkpoint(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    first = MetricsLog(place, 0, tensorboard=False)
    for step in range(6):
        first.write(step, {"loss": float(step)}, 1.0)
    place.append(run_directory.METRICS, b'{"step": 6, "lo')  # cut off by a kill
    again = MetricsLog(place, 3, tensorboard=False)
    again.write(4, {"loss": 40.0}, 2.0)
    assert [(line["step"], line["loss"]) for line in lines(place)] == [
        (0, 0.0),
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 40.0),
    ]


def test_a_run_that_starts_again_from_nothing_drops_old_lines(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    MetricsLog(place, 0, tensorboard=False).write(0, {"loss": 1.0}, 1.0)
    MetricsLog(place, 0, tensorboard=False)
    assert lines(place) == []


def test_numbers_go_to_tensorboard_too(tmp_path: Path) -> None:
    log = MetricsLog(Directory(tmp_path), 0, tensorboard=True)
    log.write(1, {"loss": 0.625}, 1.0)
    log.close(is_failed=False)
    (events,) = (tmp_path / run_directory.TENSORBOARD).iterdir()
    assert b"loss" in events.read_bytes()
    assert struct.pack("<f", 0.625) in events.read_bytes()


def test_a_step_without_a_reward_is_a_gap_in_tensorboard_and_words_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    place = Directory(tmp_path)
    log = MetricsLog(place, 0, tensorboard=True)
    log.write(1, {"loss": 1.0, "reward": float("nan")}, 1.0)
    log.close(is_failed=False)
    assert "NaN" not in caplog.text
    Reporter(place, "u-1", leader=True).finished_step(1, {"loss": float("nan"), "reward": float("nan")}, seconds=2.0)
    assert capsys.readouterr().out == "step 1/0  loss nan  no reward  2.00 s\n"


def progress(place: Directory) -> run_directory.Progress:
    return run_directory.Progress.model_validate_json(place.read(run_directory.PROGRESS) or b"")


def test_the_log_repeats_the_document_at_each_stage_and_then_seldom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Directory(tmp_path)
    reporter = Reporter(place, "u-1", leader=True, in_log=True)
    reporter.stage("training")
    reporter.start(0, 4)
    for step in range(1, 5):
        reporter.finished_step(step, {"loss": 0.5}, seconds=2.0)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith(PROGRESS_LINE)]
    documents = [run_directory.Progress.model_validate_json(line.partition(": ")[2]) for line in printed]
    assert [(each.stage, each.step) for each in documents] == [("training", 0), ("training", 4)]
    assert documents[-1] == progress(place)


def test_progress_says_where_the_run_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Directory(tmp_path)
    reporter = Reporter(place, "u-1", leader=True)
    reporter.stage("training")
    reporter.start(0, 4)
    for step in (1, 2):
        reporter.finished_step(step, {"loss": 0.5, "tokens_per_second": 7.0}, seconds=2.0)
    reporter.evaluated(2, {"eval/loss": 0.25, "eval/reward": float("nan")})
    reporter.checkpoint(2, "file:///x/2")
    reporter.stage("saving")
    state = progress(place)
    assert (state.job_uid, state.attempt, state.stage, state.step, state.total_steps) == ("u-1", 1, "saving", 2, 4)
    assert (state.seconds_per_step, state.eta_seconds, state.metrics["loss"]) == (2.0, 4.0, 0.5)
    assert state.metrics["eval/loss"] == 0.25
    assert "eval/reward" not in state.metrics
    assert state.checkpoint.step == 2
    assert state.updated.endswith("Z")
    assert capsys.readouterr().out.splitlines() == [
        "step 1/4  loss 0.5000  7 tok/s  2.00 s",
        "step 2/4  loss 0.5000  7 tok/s  2.00 s",
    ]


def test_whoever_waits_for_something_that_has_a_limit_is_alive_for_watchdog_and_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Directory(tmp_path)
    reporter = Reporter(place, "u-1", leader=True)
    reporter.stage("training")
    heard, written = reporter.beat().since, (tmp_path / run_directory.PROGRESS).stat().st_mtime_ns
    reporter.alive()
    assert reporter.beat().since > heard
    assert (tmp_path / run_directory.PROGRESS).stat().st_mtime_ns == written  # once in a while is enough
    monkeypatch.setattr(progress_module, "ALIVE_S", 0.0)
    reporter.alive()
    assert (tmp_path / run_directory.PROGRESS).stat().st_mtime_ns > written
    assert progress(place).stage == "training"


def test_a_file_in_the_place_of_the_run_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    place = Directory(tmp_path / "runs" / "job")
    for put in (place.write, place.append):
        with pytest.raises(StorageError, match=r"runs/job/a\.json: cannot be written: (Not a directory|File exists)"):
            put("a.json", b"{}")


def test_a_restarted_run_stands_where_it_stood_until_it_knows_better(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    first = Reporter(place, "u-1", leader=True)
    first.start(0, 40)
    first.finished_step(27, {"loss": 0.5}, seconds=2.0)
    first.checkpoint(24, "file:///x/24")
    first.stage("saving")
    again = Reporter(place, "u-1", leader=True)
    again.stage("loading")
    state = progress(place)
    assert (state.attempt, state.stage, state.step, state.total_steps, state.eta_seconds) == (
        2,
        "loading",
        27,
        40,
        None,
    )
    assert (state.metrics, state.checkpoint and state.checkpoint.step) == ({"loss": 0.5}, 24)
    again.start(24, 40)
    again.stage("training")
    assert (progress(place).step, progress(place).checkpoint) == (24, state.checkpoint)
    again.start(0, 40)  # none of its checkpoints was good
    again.stage("training")
    assert (progress(place).step, progress(place).checkpoint) == (0, None)


def test_the_cost_of_a_restart_is_counted(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    first = Reporter(place, "u-1", leader=True, slices=SlicesProgress(present=[0, 1, 2], total=3))
    first.start(0, 40)
    first.stage("training")
    first.finished_step(27, {"loss": 0.5}, seconds=2.0)
    first.stage("saving")
    assert progress(place).time.fewer_slices == 0
    before = progress(place).model_copy(update={"updated": "2026-01-02T10:00:00Z"})
    place.write(run_directory.PROGRESS, before.model_dump_json(by_alias=True).encode())
    slices = SlicesProgress(present=[0, 2], total=3, generation=2, restarts={"HostError": 1})
    again = Reporter(place, "u-1", leader=True, slices=slices)
    again.start(24, 40)
    again.stage("training")
    again.stage("saving")
    after = progress(place)
    assert after.slices == slices
    assert (after.time.repeated, after.time.restarting > 1000) == (6.0, True)
    assert 0 < after.time.fewer_slices <= after.time.training
    Reporter(place, "u-1", leader=True).stage("loading")
    assert progress(place).slices is None, "what another attempt had says nothing of this one"


def test_attempts_and_seconds_add_up_over_restarts(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    for attempt in (1, 2, 3):
        Reporter(place, "u-1", leader=True).stage("loading")
        assert progress(place).attempt == attempt
    Reporter(place, "another job", leader=True).stage("loading")
    assert progress(place).attempt == 1


def test_processes_that_do_not_lead_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(Directory(tmp_path), "u-1", leader=False)
    reporter.stage("training")
    reporter.finished_step(1, {"loss": 0.5}, seconds=2.0)
    reporter.note("hello")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), ExitCode.CONFIG_ERROR),
        (DataError("x"), ExitCode.DATA_ERROR),
        (Preempted("x"), ExitCode.PREEMPTED_SAVED),
        (OSError(errno.ENOSPC, "No space left on device"), ExitCode.STORAGE),
        (ValueError("RESOURCE_EXHAUSTED: Failed writing: No space left on device"), ExitCode.STORAGE),
        (MemoryError(), ExitCode.OUT_OF_MEMORY_HOST),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), ExitCode.OUT_OF_MEMORY_HBM),
        (RuntimeError("surprise"), ExitCode.UNKNOWN),
    ],
)
def test_every_end_has_its_exit_code(error: Exception, code: ExitCode) -> None:
    assert termination.exit_code(error) == code


def test_the_termination_message_is_one_line_that_fits_kubernetes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_directory.TERMINATION_LOG_ENV, str(tmp_path / "log"))
    place = Directory(tmp_path)
    termination.report(ExitCode.DATA_ERROR, "ü" * 5000, Attempt(place, step=7))
    text = (tmp_path / "log").read_text()
    assert len(text.encode()) < 4096
    state = run_directory.Termination.model_validate_json(text)
    assert (state.exit_code, state.failure_class, state.step) == (65, "DataError", 7)
    assert place.read(run_directory.TERMINATION) == text.encode()


def test_a_user_s_mistake_is_told_in_one_line_and_a_bug_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    termination.show(DataError("rows.jsonl line 3: no"), ExitCode.DATA_ERROR)
    assert capsys.readouterr().err == "error: rows.jsonl line 3: no\n"
    termination.show(RuntimeError("surprise"), ExitCode.UNKNOWN)
    assert "RuntimeError: surprise" in capsys.readouterr().err


def test_writes_that_fail_after_the_first_show_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", lambda arguments: shown.append(str(arguments.exc_value)))

    def fail_when_nobody_waits() -> None:
        promise, future = tensorstore.Promise.new()

        async def wait() -> None:
            await future

        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # nobody ends the task
        task = loop.create_task(wait())
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        failing = threading.Thread(target=lambda: promise.set_exception(ValueError("over its quota")))
        failing.start()
        failing.join()
        assert not task.done()

    fail_when_nobody_waits()
    assert shown == ["Event loop is closed"]
    termination.quiet_background_threads()
    fail_when_nobody_waits()
    assert shown == ["Event loop is closed"]

    class Broken:
        def __del__(self) -> None:
            raise RuntimeError("a bug")

    Broken()
    assert shown == ["Event loop is closed", "a bug"]


def test_a_signal_asks_to_stop_and_does_not_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stop = StopRequest()
    try:
        stop.listen()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == "SIGTERM"
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_numbers_that_are_not_finite_leave_readable_documents(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    reporter = Reporter(place, "u-1", leader=True)
    reporter.start(0, 1)
    reporter.finished_step(1, {"loss": float("nan"), "reward": 0.5}, seconds=1.0)
    assert progress(place).metrics == {"reward": 0.5}
    MetricsLog(place, 0, tensorboard=False).write(1, {"loss": float("inf")}, 1.0)
    assert lines(place)[0]["loss"] is None


def test_a_progress_document_that_cannot_be_read_does_not_stop_the_run(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    place.write(run_directory.PROGRESS, b"{")
    Reporter(place, "u-1", leader=True).stage("loading")
    assert progress(place).attempt == 1
