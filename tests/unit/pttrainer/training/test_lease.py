"""The lease of a run directory, between processes that are real, on a disk and in a bucket."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.builders.cluster.manifests import eventually
from tests.builders.servers import bucket as bucketserver
from tests.builders.servers.bucket import Buckets
from tests.builders.trainer import writer
from tests.builders.trainer.forked import Process
from tests.builders.trainer.writer import LIMIT_S, end, held, job, lines, start, taken

from ptapi.failures import ExitCode
from ptapi.run_directory import LEASE, Lease
from pttrainer.errors import ConfigError, OutputConflict, StorageError
from pttrainer.runtime.io import storage
from pttrainer.runtime.io.place import Place, no_fence
from pttrainer.training.run_directory import lease, lease_holder, lease_writer
from pttrainer.training.run_directory.lease_writer import LeaseWriter, Moment, follower

Begin = Callable[..., Process]
LONG_S = 600.0
"""A limit that nobody waits for."""
Hold = Callable[[Place], LeaseWriter]


@pytest.fixture(scope="module")
def buckets() -> Iterator[Buckets]:
    with bucketserver.serve() as served:
        yield served


@pytest.fixture(params=["file", "gs"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "file":
        return storage.place(f"file://{tmp_path}/sums")
    return in_bucket(request.getfixturevalue("buckets"), tmp_path, monkeypatch)


ON_A_DISK = pytest.mark.parametrize("place", ["file"], indirect=True)


def in_bucket(buckets: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A directory of the test's own in a bucket, here and in the processes that the test starts."""
    for name, value in buckets.environment().items():
        monkeypatch.setenv(name, value)
    return storage.place(f"gs://out/{tmp_path.name}")


@pytest.fixture
def begin(place: Place) -> Iterator[Begin]:
    """Starts writers in the place; those that are left are killed."""
    running: list[Process] = []

    def one(*words: str, limit_s: float = LIMIT_S) -> Process:
        running.append(start(place.uri, *words, limit_s=limit_s))
        return running[-1]

    yield one
    for process in running:
        process.kill()
        process.communicate()


def test_of_writes_at_the_same_time_one_succeeds(place: Place) -> None:
    assert place.read_versioned("a") == (None, 0)
    assert place.write_if("a", b"x", 5) is None
    tries, wrote, together = range(8), [], threading.Barrier(8)

    def write(i: int) -> None:
        own = storage.place(place.uri)
        for _ in tries:
            generation = place.read_versioned("a").generation
            together.wait(120)
            if own.write_if("a", f"{i} at {generation}".encode(), generation) is not None:
                wrote.append(generation)
            together.wait(120)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrote) == len(set(wrote)) == len(tries)
    content, generation = place.read_versioned("a")
    assert content is not None
    assert place.write_if("a", b"shorter", generation - 1) is None
    assert place.read("a") == content
    assert place.write_if("a", b"", generation) is not None


def test_the_second_writer_is_refused_with_who_writes_there_and_leaves_nothing(place: Place, begin: Begin) -> None:
    first = begin()
    taken(first)
    code, errors = end(begin())
    assert code == ExitCode.OUTPUT_CONFLICT, errors
    assert f"{place.uri}: ptctl train on {os.uname().nodename}, pid {first.pid} (since 20" in errors
    assert "writes there; accepted: one process at a time; hint:" in errors
    assert len(errors.splitlines()) == 1
    assert place.names() == [LEASE, writer.LINES]
    assert held(place).pid == first.pid
    first.send_signal(signal.SIGTERM)
    assert end(first) == (0, "")
    assert held(place).released


def test_of_machines_that_begin_at_once_one_writes(place: Place, begin: Begin) -> None:
    processes = [begin("--host", f"laptop-{i}", limit_s=6.0) for i in range(5)]  # none starts so late that it is silent
    eventually(lambda: sum(process.poll() is None for process in processes) == 1)
    (winner,) = (process for process in processes if process.poll() is None)
    ends = [end(process) for process in processes if process is not winner]
    assert [code for code, _ in ends] == [ExitCode.OUTPUT_CONFLICT] * 4, ends
    assert all(f"ptctl train on {held(place).host}, pid {winner.pid} " in errors for _, errors in ends)
    assert set(lines(place)) == {held(place).host}


def test_a_process_of_this_machine_that_was_killed_holds_nothing(place: Place, begin: Begin) -> None:
    first = begin(limit_s=LONG_S)
    taken(first)
    first.kill()
    first.wait()
    assert not held(place).released
    assert taken(begin(limit_s=LONG_S)) < LONG_S / 2
    assert held(place).attempt == 2


def test_a_killed_process_of_another_machine_holds_the_directory_until_it_was_silent_for_the_limit(
    place: Place, begin: Begin
) -> None:
    first = begin("--host", "laptop-a")
    taken(first)
    first.kill()
    first.wait()
    second = begin("--host", "laptop-b")
    assert LIMIT_S <= taken(second) < 3 * LIMIT_S
    second.send_signal(signal.SIGTERM)
    code, errors = end(second)
    assert code == 0
    assert "waiting for ptctl train on laptop-a" in errors


@pytest.mark.parametrize("hosts", [("laptop-a", "laptop-b"), ("one", "one")])
def test_a_stopped_process_that_goes_on_when_another_writes_there_ends_and_writes_nothing_more(
    place: Place, begin: Begin, hosts: tuple[str, str]
) -> None:
    first = begin("--host", hosts[0])
    taken(first)
    eventually(lambda: len(lines(place)) > 3)
    first.send_signal(signal.SIGSTOP)
    second = begin("--host", hosts[1])
    assert taken(second) >= LIMIT_S
    eventually(lambda: len(lines(place)) > 10)
    token, before = held(place).token, lines(place)
    first.send_signal(signal.SIGCONT)
    code, errors = end(first)
    assert code == ExitCode.OUTPUT_CONFLICT, errors
    assert f"ptctl train on {hosts[1]}, pid {second.pid} has held the lease since" in errors
    eventually(lambda: len(lines(place)) > len(before) + 3)
    assert set(lines(place)[len(before) :]) == {hosts[1]}
    assert held(place).token == token
    assert place.names() == [LEASE, writer.LINES]


def test_a_stopped_process_goes_on_where_nobody_else_came(place: Place, begin: Begin) -> None:
    process = begin()
    taken(process)
    eventually(lambda: lines(place))
    process.send_signal(signal.SIGSTOP)
    before = lines(place)
    time.sleep(LIMIT_S * 1.2)
    process.send_signal(signal.SIGCONT)
    eventually(lambda: len(lines(place)) > len(before) + 3)
    process.send_signal(signal.SIGTERM)
    assert end(process) == (0, "")


@ON_A_DISK
def test_an_earlier_attempt_of_the_same_job_is_waited_for_while_it_lives(place: Place, begin: Begin) -> None:
    first = begin("--host", "pod-a", "--uid", "u-1")
    taken(first)
    second = begin("--host", "pod-b", "--uid", "u-1")
    assert second.stderr is not None
    assert "waiting for" in writer.first_line(second.stderr)
    time.sleep(1.3 * LIMIT_S)
    assert second.poll() is None
    assert held(place).pid == first.pid
    first.send_signal(signal.SIGTERM)
    assert end(first) == (0, "")
    assert taken(second) > LIMIT_S
    third = begin("--host", "pod-c", "--uid", "u-1")
    time.sleep(LIMIT_S / 3)
    third.send_signal(signal.SIGTERM)
    code, errors = end(third)
    assert code == ExitCode.PREEMPTED_SAVED, errors
    other = begin("--host", "pod-d", "--uid", "u-2")
    assert end(other)[0] == ExitCode.OUTPUT_CONFLICT


@ON_A_DISK
def test_a_lease_that_cannot_be_read_is_somebodys_until_it_was_silent(place: Place, begin: Begin) -> None:
    place.write(LEASE, b"{")
    assert taken(begin()) >= LIMIT_S


@pytest.fixture
def of_here() -> Iterator[Hold]:
    """Holds the lease by this process, until the test's end; who loses it raises instead of ending the tests."""
    holders: list[LeaseWriter] = []

    def hold(place: Place) -> LeaseWriter:
        mine = lease_holder.lease_of_this_process(job()).model_copy(update={"limit_seconds": 600.0})
        generation = place.write_if(LEASE, mine.model_dump_json().encode(), place.read_versioned(LEASE).generation)
        assert generation is not None
        holders.append(LeaseWriter(place, mine, generation, Moment.now(), end=lambda code: None))
        place.fence = holders[-1].check
        return holders[-1]

    yield hold
    for holder in holders:
        with suppress(OutputConflict):
            holder.release()


def late(monkeypatch: pytest.MonkeyPatch, clock: str) -> None:
    """One of the two clocks says that much time has passed."""
    shown = vars(lease_writer.time)
    later = {clock: lambda *which: shown[clock](*which) + 500.0}
    monkeypatch.setattr(lease_writer, "time", SimpleNamespace(**{**shown, **later}))


@pytest.mark.parametrize("clock", ["clock_gettime", "time"])
def test_who_was_away_writes_nothing_before_the_lease_is_renewed(
    of_here: Hold, place: Place, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    mine = of_here(place)
    place.write("a", b"1")
    assert held(place).renewals == 0
    late(monkeypatch, clock)
    place.write("a", b"2")
    assert held(place).renewals == 1
    late(monkeypatch, clock)
    there = place.read_versioned(LEASE)
    other = Lease(holder="pod run-0 (namespace team)", token="other", acquired="2026-01-01T00:00:00Z")
    assert place.write_if(LEASE, other.model_dump_json(by_alias=True).encode(), there.generation) is not None
    for write in (place.write, place.append, storage.below(place, "export").write):
        with pytest.raises(OutputConflict, match=r"pod run-0 \(namespace team\) has held the lease since 2026-01-01"):
            write("a", b"3")
    with pytest.raises(OutputConflict):
        place.remove("a")
    with pytest.raises(OutputConflict):
        mine.renew()
    assert place.read("a") == b"2"


def test_a_lease_that_somebody_removed_is_written_again(of_here: Hold, place: Place) -> None:
    mine = of_here(place)
    storage.place(place.uri).remove(LEASE)
    mine.renew()
    assert held(place).token


def test_a_renewal_whose_answer_was_lost_counts(
    of_here: Hold, buckets: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = in_bucket(buckets, tmp_path, monkeypatch)
    mine = of_here(place)
    buckets.unanswered = 1
    mine.renew()
    mine.renew()
    assert buckets.unanswered == 0
    assert held(place).renewals == 2
    buckets.unanswered = 1
    (tmp_path / "x").mkdir()
    fresh = in_bucket(buckets, tmp_path / "x", monkeypatch)
    lease.acquire(fresh, job(), lambda: None).release()
    assert held(fresh).released


def test_a_bucket_that_cannot_be_written_lets_nobody_write_who_was_away(
    of_here: Hold, buckets: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = in_bucket(buckets, tmp_path, monkeypatch)
    of_here(place)
    late(monkeypatch, "time")
    buckets.full = True
    try:
        with pytest.raises(StorageError, match="over its quota"):
            place.write("a", b"1")
    finally:
        buckets.full = False
    place.write("a", b"1")


def test_for_a_moment_the_lease_is_taken_or_refused_at_once(place: Place, begin: Begin) -> None:
    with lease.hold_briefly(place, job()):
        assert not held(place).released
    assert held(place).released
    taken(begin("--host", "laptop-a", limit_s=LONG_S))
    began = time.monotonic()
    with pytest.raises(OutputConflict, match="laptop-a"), lease.hold_briefly(place, job()):
        pass
    assert time.monotonic() - began < LONG_S / 2


def test_processes_that_do_not_lead_write_while_their_leader_holds_the_lease(of_here: Hold, place: Place) -> None:
    mine = of_here(place)
    check = follower(place, end=lambda code: None)
    check()
    mine.release()
    check()
    place.fence = no_fence
    place.write(LEASE, json.dumps({"token": "other", "holder": "pod run-0 (namespace team)"}).encode())
    with pytest.raises(OutputConflict, match="pod run-0"):
        check()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "running"),
        ({"process_started": 1}, "gone"),
        ({"pid": 4_194_303}, "gone"),
        ({"boot": "another"}, "unknown"),
        ({"pid_namespace": "pid:[1]"}, "unknown"),
        ({"host": "another"}, "unknown"),
        ({"pid": 0}, "unknown"),
    ],
)
def test_what_is_known_of_a_holder(changes: dict[str, object], expected: str) -> None:
    assert lease_holder.life(lease_holder.lease_of_this_process(job()).model_copy(update=changes)) == expected


def test_a_process_that_nobody_has_buried_is_gone() -> None:
    child = subprocess.Popen(["true"])
    eventually(lambda: Path(f"/proc/{child.pid}/stat").read_text().split()[2] == "Z")
    mine = lease_holder.lease_of_this_process(job())
    started = int(Path(f"/proc/{child.pid}/stat").read_text().split()[21])
    assert lease_holder.life(mine.model_copy(update={"pid": child.pid, "process_started": started})) == "gone"
    child.wait()


def test_a_pod_is_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTNAME", "sums-trainer-0-0")
    assert lease_holder.lease_of_this_process(job(uid="u-1")).holder == "pod sums-trainer-0-0 (namespace default)"


@pytest.mark.parametrize("wrong", ["", "soon", "0.5", "-3", "nan"])
def test_a_limit_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("POSTTRAIN_LEASE_SECONDS", wrong)
    with pytest.raises(ConfigError, match=r"POSTTRAIN_LEASE_SECONDS: .*accepted: seconds, at least 1"):
        lease_holder.lease_of_this_process(job())
